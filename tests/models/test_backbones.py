"""A foreign backbone: one class and one entry, and every room takes it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from clustermim.data import open_source
from clustermim.errors import ConfigError
from clustermim.evaluation.features import extract
from clustermim.models import BACKBONES, Backbone, ViT, build_backbone, load_encoder
from clustermim.models.export import export
from clustermim.patches import patchify
from clustermim.pretraining import pretrain
from clustermim.teachers import open_teacher

DATA = "textures:?images=16&grid=2&patch=4"


class Toy(Backbone):
    """A linear map of each patch; the token of the image is their mean."""

    def __init__(self, rest: str, image_size: tuple[int, int], patch_size: int, channels: int, **_: object) -> None:
        super().__init__()
        self.image_size, self.patch_size, self.channels, self.width = image_size, patch_size, channels, int(rest or 32)
        self.embed = nn.Linear(patch_size**2 * channels, self.width)

    def forward(self, images: Tensor, keep: Tensor | None = None) -> Tensor:
        x = self.embed(patchify(images, self.patch_size))  # (B, N, D)
        if keep is not None:
            x = x.gather(1, keep[..., None].expand(-1, -1, self.width))  # (B, n, D)
        return torch.cat([x.mean(1, keepdim=True), x], dim=1)  # (B, 1+n, D)


@pytest.fixture(autouse=True)
def entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKBONES, "toy", Toy)


@pytest.mark.parametrize(("model", "width"), [("toy", 32), ("toy:64", 64)])
def test_a_toy_is_pretrained_saved_loaded_and_probed(model: str, width: int, tmp_path: Path) -> None:
    encoder = pretrain(DATA, model=model, epochs=1, batch_size=16, device="cpu")
    assert encoder.history[-1]["step"] == 1
    encoder.save(tmp_path / "toy")
    again = load_encoder(tmp_path / "toy")
    assert isinstance(again.backbone, Toy)
    images = torch.rand(2, 3, 8, 8)
    assert torch.equal(again(images), encoder(images))
    features = extract(again, open_source(DATA))
    assert features["avg"].values.shape == (16, width)
    assert open_teacher(f"run:{tmp_path / 'toy'}")(images, (2, 2)).shape == (2, 4, width)
    with pytest.raises(ConfigError, match=f"^{model} cannot be exported to timm: only the ViT"):
        export(again, "timm", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_a_toy_cannot(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--layout beit is not for Toy"):
        pretrain(DATA, model="toy", layout="beit", epochs=1, batch_size=16, device="cpu")
    with pytest.raises(ConfigError, match="--layout mixmae is not for Toy"):
        pretrain(DATA, model="toy", layout="mixmae", mask_ratio=0.5, epochs=1, batch_size=16, device="cpu")
    small, large = (build_backbone("toy", (side, side), 4) for side in (8, 16))
    large.load_resized(build_backbone("toy", (16, 16), 4))
    with pytest.raises(ConfigError, match="was made for images of"):
        large.load_resized(small)


def test_names() -> None:
    assert isinstance(build_backbone("micro", (8, 8), 4), ViT)
    assert isinstance(build_backbone("vit:micro", (8, 8), 4), ViT)
    with pytest.raises(ConfigError, match="there is no model 'micros'; did you mean micro"):
        build_backbone("micros", (8, 8), 4)
