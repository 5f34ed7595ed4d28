"""What the picture of a run shows, against loops over patches."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from clustermim.data import Batch, Source, channel_stats, open_source
from clustermim.drawing.colors import paler, token_palette
from clustermim.drawing.gallery import from_centers
from clustermim.drawing.page import PICTURE, page_size, to_png
from clustermim.drawing.reconstructions import (
    HIDDEN,
    Reconstruction,
    component_colors,
    draw_reconstruction,
    predicted_pixels,
    quality,
    read_some,
    reconstruct,
    rows_of,
    write_reconstructions,
)
from clustermim.models.masking import draw_from, random_mask
from clustermim.models.mim import Layout, MaskedModel, make_model
from clustermim.models.vit import ViT
from clustermim.patches import grid_size, patchify
from clustermim.pretraining import MaskedCollator, Masking
from clustermim.targets import HOGTarget, PixelTarget, Target, TokenTarget
from clustermim.targets.kinds import TargetOptions
from clustermim.tokenizers import KMeansTokenizer, LabelTokenizer, RandomTokenizer, Tokenizer

DATA = "textures:?images=32&grid=4x6&patch=4"


class CosineTarget(Target):
    """A target that the picture knows nothing of."""

    kind, dim = "cosine", 5

    def __init__(self, patch_size: int, channels: int) -> None:
        super().__init__()
        self.patch_size, self.channels = patch_size, channels

    @classmethod
    def build(cls, source: Source, patch_size: int | None, options: TargetOptions) -> CosineTarget:
        return cls(patch_size or 4, source.shape[0])

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        return patchify(images, self.patch_size)[..., :5]

    def loss(self, prediction: Tensor, values: Tensor) -> Tensor:
        return -torch.cosine_similarity(prediction, values, dim=-1).mean()


def make_target(name: str, source: Source, patch_size: int = 4) -> Target:
    channels, stats = source.shape[0], channel_stats(source)
    if name.startswith("pixels"):
        return PixelTarget(patch_size, channels, stats.mean, stats.std, name == "pixels normalised")
    if name == "hog":
        return HOGTarget(patch_size, channels)
    if name == "cosine":
        return CosineTarget(patch_size, channels)
    tokenizers: dict[str, Tokenizer] = {
        "tokens": KMeansTokenizer(6, patch_size, iterations=2),
        "random": RandomTokenizer(6, patch_size),
        "labels": LabelTokenizer(patch_size),
    }
    return TokenTarget(tokenizers[name].fit(source))


def make_net(target: Target, source: Source, layout: Layout = "mae", drop_path: float = 0.0) -> MaskedModel:
    torch.manual_seed(0)
    encoder = ViT.of_size("micro", source.shape[1:], target.patch_size, source.shape[0], drop_path=drop_path)
    net = make_model(layout, encoder, target.dim)
    for parameter in net.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)  # at the start all predictions of an image are alike
    return net


def see(target: Target, source: Source, ratio: float = 0.75) -> tuple[Batch, Reconstruction]:
    """A few images and what an untrained model makes of them."""
    batch = source.read(range(3))
    patches = int(np.prod(grid_size(*source.shape[1:], target.patch_size)))
    mask = random_mask(draw_from(torch.Generator().manual_seed(1), 3), patches, ratio)
    return batch, reconstruct(make_net(target, source), target, batch, channel_stats(source), mask)


@pytest.mark.parametrize("training", [True, False])
def test_no_global_state_changes(training: bool, tmp_path: Path) -> None:
    source = open_source(DATA)
    target = make_target("tokens", source)
    net = make_net(target, source, drop_path=0.9).train(training)
    views = MaskedCollator(net.encoder.grid, Masking())
    weights = {name: value.clone() for name, value in net.state_dict().items()}
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    run: Any = SimpleNamespace(folder=tmp_path, config={"epochs": 1})
    for _ in range(2):
        write_reconstructions(run, net, target, source, channel_stats(source), views)
        assert torch.equal(before[0], torch.get_rng_state())
        assert all(map(np.array_equal, before[1], np.random.get_state()))  # noqa: NPY002
        assert before[2] == random.getstate()
    assert all(module.training == training for module in net.modules())
    assert all(torch.equal(value, weights[name]) for name, value in net.state_dict().items())
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [PICTURE]


@pytest.mark.parametrize("name", ["tokens", "random", "labels"])
def test_predicted_tokens_equal_a_loop_over_patches(name: str) -> None:
    source = open_source(DATA)
    target = make_target(name, source)
    batch, seen = see(target, source)
    true = target(seen.images, batch.labels)
    completed, right = seen.completed, 0
    assert completed.shape == (3, 24)
    for image in range(3):
        masked = seen.mask.masked[image].tolist()
        for patch in range(24):
            logits = seen.prediction[image, masked.index(patch)] if patch in masked else None
            expected = true[image, patch] if logits is None else logits.max(0).indices
            assert completed[image, patch] == expected
            assert bool(seen.hidden[image, patch]) == (patch in masked)
            right += int(patch in masked and expected == true[image, patch])
    assert quality(target, seen).startswith(f"{right / seen.mask.masked.numel():.1%} of tokens right, loss ")


def test_the_map_of_tokens() -> None:
    source = open_source(DATA)
    target = make_target("tokens", source)
    _, seen = see(target, source)
    size = page_size(*source.shape[1:])
    rows, _ = rows_of(target, seen)
    side = size[0] // 4
    true, found = (ids.reshape(3, 4, 6).numpy() for ids in (seen.truth, seen.completed))
    hidden = seen.hidden.reshape(3, 4, 6).numpy()
    assert (true != found).any()
    corners = rows["predicted tokens"][:, ::side, ::side]
    assert isinstance(target, TokenTarget)
    palette = token_palette(target.tokenizer)
    assert np.array_equal(corners, np.where(hidden[..., None], palette[found], paler(palette[found])))
    middles = rows["predicted tokens"][:, side // 2 :: side, side // 2 :: side]
    assert np.array_equal((middles == 0).all(-1), true != found)
    assert np.array_equal(rows["true tokens"][:, ::side, ::side], palette[true])
    centers = target.tokenizer.center_patches()
    assert centers is not None
    for name, ids in {"true centres": true, "predicted centres": found}.items():
        for image, row, column in np.ndindex(true.shape):
            place = rows[name][image, row * 4 : row * 4 + 4, column * 4 : column * 4 + 4]
            center = centers[ids[image, row, column]].permute(1, 2, 0)
            assert np.array_equal(place, (center * 255).round().numpy())


@pytest.mark.parametrize("name", ["random", "labels"])
def test_tokenizers_without_centres_have_no_rows_of_them(name: str) -> None:
    source = open_source(DATA)
    target = make_target(name, source)
    rows, _ = rows_of(target, see(target, source)[1])
    assert list(rows) == ["image", "visible", "true tokens", "predicted tokens"]


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ["pixels", "pixels normalised"])
def test_pixels(name: str, channels: int, npz: Callable[..., str]) -> None:
    source = open_source(npz(9, channels, 8, 16))
    target = make_target(name, source)
    assert isinstance(target, PixelTarget)
    batch, seen = see(target, source, ratio=0.5)
    found = predicted_pixels(target, seen)
    hidden = seen.hidden.reshape(3, 2, 4).repeat_interleave(4, 1).repeat_interleave(4, 2)[:, None].expand_as(found)
    assert torch.equal(found[~hidden], seen.images[~hidden])
    stats = channel_stats(source)
    patches = patchify(seen.images, 4)
    for image in range(3):
        for place, patch in enumerate(seen.mask.masked[image].tolist()):
            values = seen.prediction[image, place].reshape(4, 4, channels)
            if target.normalize:
                true = (patches[image, patch].reshape(4, 4, channels) - torch.tensor(stats.mean)) / torch.tensor(
                    stats.std
                )
                values = values * (true.var() + 1e-6).sqrt() + true.mean()
            pixels = (values * torch.tensor(stats.std) + torch.tensor(stats.mean)).clamp(0, 1).permute(2, 0, 1)
            row, column = divmod(patch, 4)
            torch.testing.assert_close(
                found[image, :, row * 4 : row * 4 + 4, column * 4 : column * 4 + 4], pixels, atol=1e-4, rtol=1e-4
            )
    rows, notes = rows_of(target, seen)
    shown = hidden[:, 0].numpy()
    assert np.array_equal(rows["prediction"][~shown], rows["image"][~shown])
    assert np.array_equal(rows["visible"][~shown], rows["image"][~shown])
    assert (rows["visible"][shown] == HIDDEN).all()
    if channels == 3:
        assert np.array_equal(rows["image"], batch.images.permute(0, 2, 3, 1))
    assert bool(notes) == target.normalize


@pytest.mark.parametrize(("name", "word"), [("hog", "HOG"), ("cosine", "cosine")])
def test_values_of_any_kind_are_shown_by_their_main_directions(name: str, word: str) -> None:
    source = open_source(DATA)
    target = make_target(name, source)
    _, seen = see(target, source)
    rows, notes = rows_of(target, seen)
    assert list(rows) == ["image", "visible", f"true {word}", f"predicted {word}"]
    true, predicted = rows[f"true {word}"], rows[f"predicted {word}"]
    hidden = seen.hidden.reshape(3, 4, 6).numpy()
    assert np.array_equal(true, component_colors(seen.truth, seen.truth).reshape(3, 4, 6, 3))
    assert np.array_equal(predicted[~hidden], paler(true[~hidden]))
    assert not np.array_equal(predicted[hidden], true[hidden])
    assert f"principal components of the true {word}" in notes[0]


@pytest.mark.parametrize("name", ["pixels", "hog", "tokens", "cosine"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (2, 16, 8), (5, 8, 40), (3, 4, 800)], ids=str)
def test_any_channels_and_shapes(name: str, shape: tuple[int, int, int], npz: Callable[..., str]) -> None:
    source = open_source(npz(9, *shape))
    target = make_target(name, source, 4)
    batch, seen = see(target, source, ratio=0.5)
    picture = Image.open(io.BytesIO(to_png(draw_reconstruction(target, source, batch, seen, "a title"))))
    picture.load()
    assert picture.width >= 1200


@pytest.mark.parametrize(
    ("image", "size"),
    [
        ((8, 8), (192, 192)),
        ((28, 28), (196, 196)),
        ((32, 48), (128, 192)),
        ((224, 224), (224, 224)),
        ((512, 256), (256, 128)),
        ((1, 3000), (1, 333)),
    ],
)
def test_patches_stay_even(image: tuple[int, int], size: tuple[int, int]) -> None:
    assert page_size(*image) == size


@pytest.mark.parametrize("length", [1, 7, 8, 9, 1000])
def test_images_are_spread_over_the_source(length: int) -> None:
    batch = read_some(open_source(f"textures:?images={length}&grid=1&patch=4"))
    assert batch is not None
    chosen, parts = batch.indices.tolist(), min(8, length)
    assert len(chosen) == len(set(chosen)) == parts
    assert all(abs(position - place * (length - 1) / max(parts - 1, 1)) < 1 for place, position in enumerate(chosen))


def test_images_that_cannot_be_read_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = open_source(DATA)
    target, read = make_target("pixels", source), source.read
    net = make_net(target, source)
    views = MaskedCollator(net.encoder.grid, Masking())
    run: Any = SimpleNamespace(folder=tmp_path, config={"epochs": 1})
    for kept in (3, 0):
        monkeypatch.setattr(source, "read", lambda indices, kept=kept: read(indices).first(kept))
        write_reconstructions(run, net, target, source, channel_stats(open_source(DATA)), views)
        assert (tmp_path / PICTURE).exists() == (kept > 0)
        (tmp_path / PICTURE).unlink(missing_ok=True)
    assert "none of the 8 images" in capsys.readouterr().err


def test_images_are_put_together_from_centres() -> None:
    centers = torch.rand(7, 2, 3, 3)
    ids = torch.arange(12).reshape(2, 6) % 7
    images = from_centers(centers, ids, (2, 3))
    for image, row, column in np.ndindex(2, 2, 3):
        place = images[image, :, row * 3 : row * 3 + 3, column * 3 : column * 3 + 3]
        assert torch.equal(place, centers[ids[image, row * 3 + column]])
