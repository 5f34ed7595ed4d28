"""What the decoder predicts of a masked patch, and its loss: pixels, HOG, tokens. A new target is one class."""

from clustermim.targets.contract import Target, select
from clustermim.targets.hog import HOGTarget
from clustermim.targets.pixels import PixelTarget
from clustermim.targets.tokens import TokenTarget

__all__ = ["TARGETS", "HOGTarget", "PixelTarget", "Target", "TokenTarget", "select"]

TARGETS: dict[str, type[Target]] = {"pixels": PixelTarget, "hog": HOGTarget, "tokens": TokenTarget}
