"""What the decoder predicts of a masked patch, and its loss: pixels, HOG, features, tokens. A new one is a class."""

from clustermim.targets.base import Target, select
from clustermim.targets.features import FeatureTarget
from clustermim.targets.hog import HOGTarget
from clustermim.targets.pixels import PixelTarget
from clustermim.targets.tokens import TokenTarget

__all__ = ["TARGETS", "FeatureTarget", "HOGTarget", "PixelTarget", "Target", "TokenTarget", "select"]

TARGETS: dict[str, type[Target]] = {
    "pixels": PixelTarget,
    "hog": HOGTarget,
    "features": FeatureTarget,
    "tokens": TokenTarget,
}
