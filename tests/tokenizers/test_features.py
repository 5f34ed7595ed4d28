"""k-means on a teacher's features: one space for fitting and use, positions taken away, files that stand alone."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from clustermim.cli import main
from clustermim.data import Source, open_source, to_float
from clustermim.data.arrays import ArraySource
from clustermim.errors import ConfigError, TeacherError, TokenizerError
from clustermim.models import Encoder, ViT
from clustermim.patches import patchify
from clustermim.teachers import open_teacher
from clustermim.tokenizers import KMeansTokenizer, load_tokenizer
from clustermim.tokenizers.nearest import nearest_center
from clustermim.tokenizers.space import Space, draw_sample

DATA = "textures:?images=60&grid=4&patch=4"
OWN = '''
import torch

def positions():
    """Features that say nothing but where a patch is."""
    places = torch.randn(1, 6, 4, 4, generator=torch.Generator().manual_seed(0))
    return lambda images: places.expand(len(images), -1, -1, -1)

def both():
    """The mean colours of a patch, and a larger number for where it is."""
    places = 10 * torch.arange(16.0).reshape(1, 1, 4, 4)
    return lambda images: torch.nn.functional.adaptive_avg_pool2d(images, (4, 4)) + places

def weights():
    torch.manual_seed(SEED)
    return torch.nn.Conv2d(3, 6, 4, 4)
'''


@pytest.fixture(scope="module")
def source() -> Source:
    return open_source(DATA)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of an encoder."""
    torch.manual_seed(0)
    folder = tmp_path / "run"
    folder.mkdir()
    Encoder(ViT.of_size("micro", (16, 16), 4), "micro", (0.5,) * 3, (0.25,) * 3).save(folder)
    return folder


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The start of the text for a teacher of a module in the current folder."""
    (tmp_path / "tokenizer_teachers.py").write_text(OWN.replace("SEED", "0"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "tokenizer_teachers", raising=False)
    return "module:tokenizer_teachers:"


def fitted(source: Source, teacher: str, **options: Any) -> KMeansTokenizer:
    settings = {"k": 9, "patch_size": 4, "space": "features", "teacher": teacher, **options}
    return KMeansTokenizer(**settings).fit(source)


def all_images(source: Source) -> Tensor:
    return to_float(source.read(range(len(source))).images)


SPACES: list[dict[str, Any]] = [
    {},
    {"center_positions": False},
    {"l2_normalize": True},
    {"whiten": 5},
    {"l2_normalize": True, "whiten": 7, "epochs": 1},
    {"image_mean_weight": 2.5},
    {"image_mean_weight": -1.0, "whiten": 4},
    {"image_mean_weight": 0.5, "center_positions": False, "whiten": 4, "epochs": 1},
]


@pytest.mark.parametrize("options", SPACES, ids=str)
def test_ids_are_the_nearest_centres_and_survive_saving(
    options: dict[str, Any], source: Source, run: Path, tmp_path: Path
) -> None:
    tokenizer, images = fitted(source, f"run:{run}", **options), all_images(source)
    ids = tokenizer(images)
    assert ids.shape == (60, 16)
    features = open_teacher(f"run:{run}")(images, (4, 4)).double()
    features = features + options.get("image_mean_weight", 0) * features.mean(1, keepdim=True)
    if options.get("center_positions", True):
        features = features - features.mean(0)
    if options.get("l2_normalize"):
        features = features / features.norm(dim=2, keepdim=True)
    vectors = features.flatten(0, 1)
    if options.get("whiten"):
        vectors = (vectors - vectors.mean(0)) @ tokenizer.space_.axes.double()
        variance = vectors.T.cov(correction=0)
        torch.testing.assert_close(variance, torch.eye(options["whiten"]).double(), rtol=1e-3, atol=1e-3)
    distances = torch.cdist(vectors, tokenizer.centers_.double())
    assert (distances.argmin(1) == ids.flatten()).float().mean() > 0.999  # but for ties within rounding
    if "epochs" not in options:
        assert tokenizer.inertia_ == pytest.approx(distances.min(1).values.square().mean().item(), rel=1e-3)
    tokenizer.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert (loaded.config(), loaded.fitted()) == (tokenizer.config(), tokenizer.fitted())
    assert torch.equal(loaded(images), ids)
    assert torch.equal(torch.cat([loaded(images[i : i + 1]) for i in range(20)]), ids[:20])


def test_the_space_of_fitting_is_that_of_use(source: Source, run: Path) -> None:
    tokenizer = fitted(source, str(run), k=5, l2_normalize=True, whiten=6)
    sample = draw_sample(Space(4, teacher=open_teacher(str(run))), source, 10_000, seed=0)
    ids = nearest_center(tokenizer.space_.vectors(sample)[:], tokenizer.centers_)[0]
    assert torch.equal(torch.bincount(ids, minlength=5), torch.bincount(tokenizer(all_images(source)).flatten()))


def test_the_same_bytes_when_fitted_twice(source: Source, run: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        fitted(source, str(run), whiten=4, epochs=1).save(tmp_path / name)
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_pictures_are_the_mean_pixels_of_a_token(source: Source) -> None:
    tokenizer, images = fitted(source, "hog:"), all_images(source)
    ids, patches = tokenizer(images).flatten(), patchify(images, 4).flatten(0, 1)
    pictures = tokenizer.center_patches()
    assert pictures.shape == (9, 3, 4, 4)
    for token in range(9):
        mean = patches[ids == token].mean(0).reshape(4, 4, 3).permute(2, 0, 1)
        torch.testing.assert_close(pictures[token], mean, atol=0.5 / 255 + 1e-6, rtol=0)


def test_centring_takes_positions_away(source: Source, own: str) -> None:
    places = fitted(source, own + "positions", k=16, center_positions=False)(all_images(source))
    assert torch.equal(places, places[:1].expand(60, -1))  # a code of the position and nothing else
    assert len(places.unique()) == 16
    with pytest.raises(TokenizerError, match="only 1 distinct patches"):
        fitted(source, own + "positions", k=2)
    mixed, centred = (fitted(source, own + "both", center_positions=on)(all_images(source)) for on in (False, None))
    assert all(len(column.unique()) == 1 for column in mixed.T)
    assert all(len(column.unique()) > 2 for column in centred.T)


def test_by_default_positions_are_centred_where_features_bear_them(source: Source, run: Path) -> None:
    assert len(fitted(source, str(run)).space_.means) == 16
    assert len(fitted(source, "hog:").space_.means) == 0
    assert len(fitted(source, "hog:", center_positions=True).space_.means) == 16


def test_another_grid(source: Source, run: Path) -> None:
    wider = torch.rand(2, 3, 16, 24)
    with pytest.raises(TokenizerError, match="of a 4×4 grid, and these images have 4×6 patches"):
        fitted(source, str(run))(wider)
    assert fitted(source, str(run), center_positions=False)(wider).shape == (2, 24)


def test_an_encoder_comes_along(source: Source, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    tokenizer = fitted(source, f"run:{run}?layer=2")
    tokenizer.save(out)
    shutil.rmtree(run)
    assert torch.equal(load_tokenizer(out)(all_images(source)), tokenizer(all_images(source)))
    record = json.loads((out / "tokenizer.json").read_text())
    assert record["fitted"]["encoder"]["layer"] == 2


def test_other_teachers_are_found_by_name_and_checked(source: Source, own: str, tmp_path: Path) -> None:
    tokenizer = fitted(source, own + "weights")
    tokenizer.save(tmp_path)
    assert torch.equal(load_tokenizer(tmp_path)(all_images(source)), tokenizer(all_images(source)))
    (tmp_path / "tokenizer_teachers.py").write_text(OWN.replace("SEED", "12345"))
    del sys.modules["tokenizer_teachers"]
    with pytest.raises(TokenizerError, match="weights has other weights than when this tokenizer was fitted"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_teachers.py").unlink()
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    del sys.modules["tokenizer_teachers"]
    with pytest.raises(TokenizerError, match=r"needs the teacher it was fitted with: module:.*cannot be imported"):
        load_tokenizer(tmp_path)


def test_the_sample_is_bounded_and_the_sums_are_not(source: Source) -> None:
    teacher = open_teacher("hog:")
    sample = draw_sample(Space(4, teacher=teacher), source, 200, seed=3)
    assert (len(sample), sample.images) == (200, draw_sample(Space(4), source, 200, 3).images)
    features, patches = teacher(all_images(source), (4, 4)), patchify(source.read(range(60)).images, 4)
    for row in range(0, 200, 17):  # each row belongs to one patch: its pixels, its place and its features
        image = (patches[:, sample.positions[row]] == sample.patches[row]).all(1).nonzero()[:, 0]
        assert any(torch.allclose(features[i, sample.positions[row]], sample.features[row]) for i in image)
    whole = draw_sample(Space(4, teacher=teacher), source, 10_000, seed=3)
    torch.testing.assert_close(whole.sums, features.double().sum(0), rtol=1e-6, atol=1e-6)
    assert len(torch.unique(whole.positions, return_counts=True)[1].unique()) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "--k 0 is too small: 1 at least"),
        ({"whiten": -1}, "--whiten -1 is too small"),
        ({"image_mean_weight": -1.5}, "--image-mean-weight -1.5 is too small: -1 at least"),
        ({"image_mean_weight": float("nan")}, "--image-mean-weight nan must be a finite number"),
        ({"whiten": 28}, "--whiten 28 is more than the 27 numbers"),
        ({"max_patches": 8}, "--max-patches 8 is too small: 9 at least"),
    ],
)
def test_bad_settings(options: dict[str, Any], message: str, source: Source) -> None:
    with pytest.raises(ConfigError, match=message):
        fitted(source, "hog:", **options)


def test_bad_data(source: Source) -> None:
    with pytest.raises(TokenizerError, match="k = 9, but there are only 1 distinct"):
        fitted(ArraySource("flat", np.zeros((4, 3, 16, 16), dtype=np.uint8)), "hog:")
    with pytest.raises(TeacherError, match=r"takes 3-channel images, these have 1: add \?channels=3"):
        fitted(open_source("digits:?size=16"), "hog:")
    with pytest.raises(TokenizerError, match="not fitted"):
        KMeansTokenizer(9, 4, "features", teacher="hog:")(torch.rand(1, 3, 16, 16))


def fit_words(out: Path, *words: str) -> list[str]:
    return ["fit", "kmeans", "--data", DATA, "--k", "6", "--patch-size", "4", "--out", str(out), *words]


def test_the_command_and_a_pretraining_step(run: Path, tmp_path: Path) -> None:
    words = ("--space", "features", "--teacher", str(run), "--center-positions", "false", "--l2-normalize")
    assert main(fit_words(tmp_path / "km", *words, "--whiten", "4")) == 0
    results = json.loads((tmp_path / "km" / "summary.json").read_text())["results"]
    assert (results["vocab_size"], results["patches"], results["images"]) == (6, 960, 60)
    loaded = load_tokenizer(tmp_path / "km")
    assert isinstance(loaded, KMeansTokenizer)
    options = loaded.options
    assert (options.center_positions, options.l2_normalize, options.whiten) == (False, True, 4)
    shutil.rmtree(run)
    step = ("--batch-size", "60", "--epochs", "1", "--device", "cpu", "--target", "tokens")
    words = ("--data", DATA, "--tokenizer", str(tmp_path / "km"), "--out", str(tmp_path / "mim"))
    assert main(["pretrain", *words, *step]) == 0
    assert np.isfinite(json.loads((tmp_path / "mim" / "summary.json").read_text())["results"]["loss"])


@pytest.mark.parametrize(
    ("words", "window", "components"),
    [((), 8, 64), (("--window", "4"), 4, 48), (("--window", "6", "--whiten", "20"), 6, 20)],
)
def test_whitened_pixels(words: tuple[str, ...], window: int, components: int, tmp_path: Path) -> None:
    teacher = f"pixels:?patch=4&window={window}&normalize=1&channels=3"
    assert main(fit_words(tmp_path / "short", "--space", "pixel-white", *words)) == 0
    spelled = ("--space", "features", "--teacher", teacher, "--whiten", str(components))
    assert main(fit_words(tmp_path / "long", *spelled)) == 0
    assert len({(tmp_path / name / "tokenizer.safetensors").read_bytes() for name in ("short", "long")}) == 1
    short, long = (load_tokenizer(tmp_path / name) for name in ("short", "long"))
    assert short.fitted() == long.fitted()
    from_python = KMeansTokenizer(6, 4, "pixel-white", window=window, whiten=components).fit(DATA)
    assert from_python.version() == short.version() == long.version()


def test_whitened_pixels_of_grey_images(tmp_path: Path) -> None:
    words = fit_words(tmp_path / "km", "--space", "pixel-white", "--data", "textures:?images=60&size=16&channels=1")
    assert main(words) == 0
    tokenizer = load_tokenizer(tmp_path / "km")
    assert tokenizer(torch.rand(2, 1, 16, 16)).shape == (2, 16)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--space", "features"), "--space features needs --teacher"),
        (("--teacher", "hog:"), "--teacher is for --space features, not pixel"),
        (("--space", "pixel-norm", "--whiten", "3"), "--whiten is for --space features, not pixel-norm"),
        (("--space", "pixel-white", "--teacher", "hog:"), "--teacher is for --space features, not pixel-white"),
        (("--window", "8"), "--window is for --space pixel-white, not pixel"),
        (("--space", "features", "--teacher", "hog:", "--window", "8"), "--window is for --space pixel-white"),
        (("--image-mean-weight", "2"), "--image-mean-weight is for --space features, not pixel"),
        (("--center-positions", "false"), "--center-positions is for --space features"),
        (("--l2-normalize",), "--l2-normalize is for --space features"),
        (("--device", "cpu"), "--device is for --space features"),
        (("--space", "features", "--teacher", "hug:"), "there is no kind of teacher 'hug'"),
    ],
)
def test_bad_commands(words: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(fit_words(tmp_path / "km", *words)) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "km").exists()


def test_whitening_of_directions_without_variance() -> None:
    space = Space(4, teacher=open_teacher("hog:"))
    sample = draw_sample(space, open_source(DATA), 10_000, seed=0)
    sample.features[:, 5:] = 0
    space.learn(sample, False, 8)
    vectors = space.vectors(sample)[:]
    assert torch.isfinite(vectors).all()
    torch.testing.assert_close(vectors[:, :5].T.cov(correction=0), torch.eye(5), rtol=1e-3, atol=1e-3)
