"""Teachers that need no other library: encoders of this project, HOG, and the user's own."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from clustermim.cli import main
from clustermim.errors import TeacherError, UserError
from clustermim.models import Encoder, ViT, load_encoder
from clustermim.patches import patchify
from clustermim.teachers import TEACHERS, Teacher, open_teacher
from clustermim.teachers.base import device_of, resample
from clustermim.teachers.handcrafted import hog
from clustermim.tokenizers import load_tokenizer

OWN = '''
"""A user's teachers."""
import torch

class Map(torch.nn.Module):
    has_position = False
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 5, 8, 8)
        self.drop = torch.nn.Dropout(0.5)
    def forward(self, images):
        return self.drop(self.conv(images))

def feature_map():
    torch.manual_seed(0)
    return Map()

def tokens():
    conv = feature_map().conv
    return lambda images: conv(images).flatten(2).transpose(1, 2)

def flat():
    return lambda images: images.flatten(1)

def integers():
    return lambda images: images.flatten(2).long()

def nothing():
    return lambda images: None

def broken():
    raise RuntimeError("no\\nweights")

def fails():
    def teach(images):
        raise ValueError("too large")
    return teach

def number():
    return 3

def grows():
    widths = iter(range(2, 99))
    return lambda images: torch.zeros(len(images), next(widths), 2, 2)

def odd():
    return lambda images: torch.zeros(len(images), 7, 4)

def wide():
    teacher = lambda images: torch.zeros(len(images), 4, 2, 2)
    teacher.channels, teacher.image_size = "three", 64
    return teacher

def nan():
    return lambda images: torch.full((len(images), 4, 2, 2), float("nan"))
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The start of the text for a teacher of a module in the current folder."""
    (tmp_path / "own_teachers.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_teachers", raising=False)
    return "module:own_teachers:"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of an encoder with random numbers everywhere."""
    torch.manual_seed(0)
    vit = ViT.of_size("micro", (16, 24), 4)
    with torch.no_grad():
        vit.cls_token.add_(0.1)
    folder = tmp_path / "run"
    folder.mkdir()
    Encoder(vit, "micro", (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)).save(folder)
    return folder


def ask(teacher: Teacher, images: Tensor, grid: tuple[int, int]) -> Tensor:
    features: Tensor = teacher(images, grid)
    return features


def test_the_encoder_of_a_run(run: Path) -> None:
    images, encoder = torch.rand(3, 3, 16, 24), load_encoder(run)
    with torch.no_grad():
        tokens = encoder(images)[:, 1:]
    for text in (f"run:{run}", str(run)):
        torch.testing.assert_close(ask(open_teacher(text), images, (4, 6)), tokens)
    last, first = open_teacher(f"run:{run}?layer=-1"), open_teacher(f"run:{run}?layer=0")
    normed = encoder.backbone.norm(ask(last, images, (4, 6)))
    torch.testing.assert_close(normed, tokens)
    torch.testing.assert_close(ask(open_teacher(f"{run}?layer=4"), images, (4, 6)), ask(last, images, (4, 6)))
    with torch.no_grad():
        mean, std = torch.tensor(encoder.mean).view(3, 1, 1), torch.tensor(encoder.std).view(3, 1, 1)
        torch.testing.assert_close(ask(first, images, (4, 6)), encoder.backbone.embed((images - mean) / std))
    assert last.has_position
    assert last.dim == 128


def test_a_teacher_stays_in_evaluation_and_frozen(run: Path, own: str) -> None:
    for text in (f"run:{run}", own + "feature_map"):
        teacher = open_teacher(text).train()
        assert not any(module.training for module in teacher.modules())
        assert not any(parameter.requires_grad for parameter in teacher.parameters())


def test_gradients_reach_the_images(run: Path) -> None:
    images = torch.rand(1, 3, 16, 24, requires_grad=True)
    teacher = open_teacher(str(run))
    teacher.features(images).sum().backward()
    assert images.grad is not None
    assert not ask(teacher, images, (4, 6)).requires_grad


def test_gradients_of_gradients_are_finite() -> None:
    """Also at corners, where the mirrored image has no slope at all."""
    images = torch.rand(1, 3, 28, 14, requires_grad=True)
    found = open_teacher("hog:").features(images)
    assert found.shape == (1, 27, 4, 2)  # patches of 7, since 8 do not fit
    assert torch.equal(found, open_teacher("hog:").features(images.detach()))
    found.square().sum().backward()
    assert images.grad is not None
    assert torch.isfinite(images.grad).all()
    assert images.grad.abs().sum() > 0


def test_a_teacher_without_weights_can_be_moved() -> None:
    for text in ("hog:", "pixels:?patch=4"):
        teacher = open_teacher(text).to("meta")
        assert device_of(teacher) == torch.device("meta")
        assert teacher.version() == open_teacher(text).version()


def test_other_sizes_and_grids(run: Path) -> None:
    teacher, images = open_teacher(str(run)), torch.rand(2, 3, 16, 24)
    fine = ask(teacher, images, (4, 6))
    means = fine.reshape(2, 2, 2, 3, 2, 128).mean((2, 4)).reshape(2, 6, 128)
    torch.testing.assert_close(ask(teacher, images, (2, 3)), means)
    assert ask(teacher, torch.rand(2, 3, 20, 20), (5, 5)).shape == (2, 25, 128)
    flat = torch.full((1, 3, 16, 24), 0.3)  # resizing keeps a flat image as it is
    torch.testing.assert_close(ask(teacher, flat, (4, 6)), ask(teacher, torch.full((1, 3, 40, 40), 0.3), (4, 6)))


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
def test_resampling_keeps_a_constant_and_its_shape(height: int, width: int, rows: int, columns: int) -> None:
    features = torch.ones(1, 2, height, width) * torch.tensor([1.0, -2.0]).view(1, 2, 1, 1)
    found = resample(features, (rows, columns))
    torch.testing.assert_close(found, features[:, :, :1, :1].expand(1, 2, rows, columns))


def test_random_encoders_depend_on_the_seed(run: Path) -> None:
    texts = ("random:micro?image=16x24", "random:micro?image=16x24&seed=1", "random:micro?image=16x24&seed=0")
    first, second, again = (open_teacher(text) for text in texts)
    assert first.version() == again.version() != second.version()
    assert ask(first, torch.rand(2, 3, 16, 24), (4, 6)).shape == (2, 24, 128)
    before = torch.random.get_rng_state()
    open_teacher("random:micro")
    assert torch.equal(torch.random.get_rng_state(), before)


def test_hog_of_the_grid_that_is_asked_for() -> None:
    images = torch.rand(2, 3, 16, 24)
    plain, cells = open_teacher("hog:"), open_teacher("hog:?cells=2")
    torch.testing.assert_close(ask(plain, images, (4, 6)), hog(images, 4, cell=4))
    torch.testing.assert_close(ask(cells, images, (2, 3)), hog(images, 8))
    assert (plain.dim, cells.dim, plain.has_position) == (27, 108, False)
    assert plain.features(images).shape == (2, 27, 2, 3)
    for teacher, grid in ((plain, (4, 4)), (plain, (5, 6)), (cells, (16, 24)), (plain, (16, 24)), (plain, (99, 99))):
        with pytest.raises(TeacherError, match=r"do not divide into|has no gradients"):
            ask(teacher, images, grid)


def test_pixels_of_windows_around_patches() -> None:
    images = torch.rand(2, 3, 16, 24)
    patches = ask(open_teacher("pixels:?patch=4"), images, (4, 6)).unflatten(2, (3, 4, 4))
    torch.testing.assert_close(patches, patchify(images, 4).unflatten(2, (4, 4, 3)).permute(0, 1, 4, 2, 3))
    wide, normal = open_teacher("pixels:?patch=4&window=8"), open_teacher("pixels:?patch=4&window=8&normalize=1")
    windows = ask(wide, images, (4, 6))
    assert (wide.dim, wide.has_position) == (192, False)
    torch.testing.assert_close(windows[1, 8], images[1, :, 2:10, 6:14].flatten())  # row 1, column 2
    torch.testing.assert_close(
        windows[0, 0].unflatten(0, (3, 8, 8))[:, :2], images[0, :, [2, 1]][:, :, [2, 1, *range(6)]]
    )
    found = ask(normal, images, (4, 6))
    torch.testing.assert_close(found.mean(2), torch.zeros(2, 24), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.std(2), torch.ones(2, 24), atol=0.02, rtol=0)
    assert ask(normal, torch.full((1, 3, 8, 8), 0.7), (2, 2)).abs().max() < 1e-3  # flat ones are no noise
    torch.testing.assert_close(ask(wide, images, (2, 3)).shape, torch.Size((2, 6, 192)))  # resampled
    with pytest.raises(TeacherError, match="do not have patches of 4 in windows of 8"):
        ask(wide, torch.rand(1, 3, 10, 8), (2, 2))


def test_a_users_own_teacher_in_both_shapes(own: str) -> None:
    images = torch.rand(2, 3, 32, 32)
    as_map, as_tokens = open_teacher(own + "feature_map"), open_teacher(own + "tokens")
    torch.testing.assert_close(ask(as_map, images, (4, 4)), ask(as_tokens, images, (4, 4)))
    torch.testing.assert_close(ask(as_map, images, (2, 2)), ask(as_tokens, images, (2, 2)))  # 16 tokens are a square
    wide = torch.rand(2, 3, 16, 32)
    torch.testing.assert_close(ask(as_map, wide, (2, 4)), ask(as_tokens, wide, (2, 4)))
    assert (as_map.dim, as_map.has_position, as_tokens.has_position) == (5, False, True)
    with pytest.raises(TeacherError, match="8 tokens an image, which form neither a square nor the grid"):
        ask(as_tokens, wide, (4, 4))


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("flat", r"gave torch.float32 of \(2, 12288\) for images \(2, 3, 64, 64\), and not a float tensor \(B, N, D\)"),
        ("integers", r"gave torch.int64 of .* for images"),
        ("nothing", r"gave NoneType for images"),
        ("broken", r"broken\(\) failed: RuntimeError: no weights; --debug shows where"),
        ("fails", r"failed on images \(2, 3, 64, 64\): ValueError: too large"),
        ("number", r"number\(\) gave a int, not a callable"),
        ("nobody", "the module own_teachers has no function nobody"),
        ("", "is not of the form module:package.module:factory"),
        ("grows", "gave features of 3 numbers, and of 2 before"),
        ("odd", "gave 7 tokens an image"),
        ("wide", "says channels 'three' and image_size 64: a number above 0"),
        ("nan", "gives NaN or infinite features"),
    ],
)
def test_bad_modules(factory: str, message: str, own: str) -> None:
    with pytest.raises(TeacherError, match=message) as caught:
        ask(open_teacher(own + factory), torch.rand(2, 3, 8, 8), (2, 2))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hgo:", r"there is no kind of teacher 'hgo', nor an encoder in such a folder; did you mean hog\?"),
        ("nowhere", "there is no kind of teacher 'nowhere'"),
        ("hf:", "hf needs a name or a folder after the colon"),
        ("run:nowhere", "run:nowhere: nowhere holds no pretrained encoder"),
        ("hog:dino", "hog has no name"),
        ("hog:?cells=0", "option cells=0 must be a whole number of at least 1"),
        ("hog:?cels=2", r"hog has no option 'cels'; did you mean cells\?"),
        ("pixels:x", "pixels has no name"),
        ("pixels:?patch=4&window=3", "option window=3 must be a whole number of at least 4"),
        ("pixels:?patch=4&window=7", "option window=7 must be 4 or wider by an even number"),
        ("random:micra", r"random:micra: there is no model 'micra'; did you mean micro\?"),
        ("random:micro?image=30", "images of 30×30 pixels do not divide into patches of 4"),
        ("random:micro?layer=5", "option layer=5 must be 0 … 4, or −1 … −5 from the end"),
        ("random:micro?seed=", "option seed has no value, write seed=VALUE"),
        ("module:no_such_package:f", r"the module no_such_package cannot be imported \(ModuleNotFoundError"),
        ("module:own?size=3", "module has no option 'size'; it has none"),
    ],
)
def test_bad_texts(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        open_teacher(text)
    assert "\n" not in str(caught.value)


def test_code_that_changed_is_told(own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fit", "kmeans", "--data", "textures:?images=20&grid=4&patch=4", "--patch-size", "4", "--k", "4"]
    (tmp_path / "own_teachers.py").write_text("def plain():\n    return lambda images: images[:, :, ::4, ::4]\n")
    assert main([*words, "--space", "features", "--teacher", own + "plain", "--out", "km"]) == 0
    for change, warned in (("", False), ("# and a word\n", True)):
        with (tmp_path / "own_teachers.py").open("a") as file:
            file.write(change)
        capsys.readouterr()
        load_tokenizer("km")
        assert ("has changed since this tokenizer was fitted" in capsys.readouterr().err) is warned


def test_every_scheme_can_be_opened() -> None:
    for place, _ in TEACHERS.values():
        module, function = place.split(":")
        assert callable(getattr(importlib.import_module(module), function))
