"""SimMIM, U-MAE and feature targets through the stage: the loss of the first step by hand, and what bad input gets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from clustermim.cli import main
from clustermim.data import channel_stats, open_source, to_float
from clustermim.data.transforms import normalize
from clustermim.drawing.reconstructions import PICTURE
from clustermim.models.mim import CrossAutoencoder, Layout, make_model
from clustermim.models.vit import ViT
from clustermim.patches import select
from clustermim.pretraining import MaskedBatch, MaskedCollator, Masking
from clustermim.targets import Target, make_target
from clustermim.teachers import Teacher
from clustermim.training import SeededBatches
from stub_teacher import StubTeacher

DATA = "textures:?images=16&grid=4&patch=4"
ONE_STEP = ("--batch-size", "16", "--epochs", "1", "--device", "cpu")


@pytest.fixture
def teach(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Teacher]], list[str]]:
    """A function that puts a teacher in place of whatever is asked for; gives the specs that were."""

    def put(make: Callable[[], Teacher]) -> list[str]:
        asked: list[str] = []

        def open_stub(spec: str) -> Teacher:
            asked.append(spec)
            return make()

        monkeypatch.setattr("clustermim.targets.kinds.open_teacher", open_stub)
        return asked

    return put


def pretrain(out: Path, *words: str) -> dict[str, Any]:
    """The results of a run of one step."""
    assert main(["pretrain", "--data", DATA, "--out", str(out), *ONE_STEP, *words]) == 0
    results: dict[str, Any] = json.loads((out / "summary.json").read_text())["results"]
    assert results["steps"] == 1
    return results


def first_step(
    name: str,
    layout: Layout,
    teacher: str | None = None,
    tokenizers: list[str] | None = None,
    cross: bool = False,
    **masking: Any,
) -> tuple[Target, torch.nn.Module, MaskedBatch]:
    """Target, untrained model and views of the first step of a run with seed 0."""
    source = open_source(DATA)
    target = make_target(name, source, patch_size=4, teacher=teacher, tokenizers=tokenizers)
    torch.manual_seed(0)
    encoder = ViT.of_size("micro", source.shape[1:], 4, source.shape[0])
    model = make_model(layout, encoder, target.dim, cross_decoder=cross)
    views = MaskedCollator(encoder.grid, Masking(**masking))
    batch = next(iter(SeededBatches(source, 16, 0, views, "crop")(0, 0)))
    return target, model, batch._replace(images=to_float(batch.images))


def inputs(views: MaskedBatch) -> torch.Tensor:
    stats = channel_stats(open_source(DATA))
    return normalize(views.images, stats.mean, stats.std)


def test_simmim(tmp_path: Path) -> None:
    words = (
        "--target",
        "pixels",
        "--pixel-loss",
        "l1",
        "--layout",
        "beit",
        "--mask-patch-size",
        "2",
        "--mask-ratio",
        "0.6",
    )
    results = pretrain(tmp_path / "run", *words)
    target, model, views = first_step("pixels", "beit", mask_ratio=0.6, mask_patch_size=2)
    assert views.mask.masked.shape == (16, 12)  # three of four units
    error = model(inputs(views), views.mask) - select(target(views.images), views.mask.masked)
    assert results["loss"] == pytest.approx(error.abs().mean().item(), rel=1e-5)
    assert (tmp_path / "run" / PICTURE).exists()


def test_u_mae(tmp_path: Path) -> None:
    results = pretrain(tmp_path / "run", "--target", "pixels", "--uniformity", "0.5")
    target, model, views = first_step("pixels", "mae", mask_ratio=0.75)
    prediction, classes = model(inputs(views), views.mask, with_class=True)
    similar = torch.cosine_similarity(classes[:, None], classes[None], dim=-1).square()  # (16, 16)
    expected = similar[~torch.eye(16, dtype=torch.bool)].mean().item()
    error = prediction - select(target(views.images), views.mask.masked)
    assert results["uniformity"] == pytest.approx(expected, rel=1e-4)
    assert results["loss"] == pytest.approx(error.square().mean().item() + 0.5 * expected, rel=1e-5)
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert line["uniformity"] == results["uniformity"]


@pytest.mark.parametrize("layout", ["mae", "beit"])
def test_part_of_the_masked_patches_is_predicted(layout: Layout, tmp_path: Path) -> None:
    results = pretrain(tmp_path / "run", "--target", "pixels", "--layout", layout, "--predict-fraction", "0.25")
    target, model, views = first_step("pixels", layout, predict_fraction=0.25)
    *_, whole = first_step("pixels", layout)
    assert views.mask.masked.shape == (16, 3)  # of 12
    assert torch.equal(views.mask.keep, whole.mask.keep)
    assert (views.mask.masked[:, :, None] == whole.mask.masked[:, None]).any(2).all()
    error = model(inputs(views), views.mask) - select(target(views.images), views.mask.masked)
    assert results["loss"] == pytest.approx(error.square().mean().item(), rel=1e-5)
    assert (tmp_path / "run" / PICTURE).exists()


@pytest.mark.parametrize("layout", ["mae", "beit"])
def test_checkpointed_activations_change_nothing(layout: Layout, tmp_path: Path) -> None:
    words = ("--target", "pixels", "--layout", layout, "--drop-path", "0.5", "--epochs", "3")
    for name, value in (("a", "false"), ("b", "true")):
        command = ["pretrain", "--data", DATA, "--out", str(tmp_path / name), *ONE_STEP, *words]
        assert main([*command, "--checkpoint-activations", value]) == 0
    for file in ("encoder.safetensors", "metrics.jsonl"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


@pytest.mark.parametrize("layout", ["mae", "beit"])
def test_features(layout: Layout, tmp_path: Path, teach: Callable[..., list[str]]) -> None:
    asked = teach(StubTeacher)
    words = ("--target", "features", "--teacher", "run:somewhere?layer=3", "--layout", layout)
    results = pretrain(tmp_path / "run", *words)
    assert asked == ["run:somewhere?layer=3"]
    target, model, views = first_step("features", layout, teacher="stub", mask_ratio=0.75)
    error = model(inputs(views), views.mask) - select(target(views.images), views.mask.masked)
    assert results["loss"] == pytest.approx(error.square().mean().item(), rel=1e-5)
    assert (tmp_path / "run" / PICTURE).exists()
    for file in ("encoder.safetensors", "decoder.safetensors"):
        with safe_open(tmp_path / "run" / file, "pt") as tensors:
            assert not any("mix" in name or "teacher" in name for name in tensors.keys())  # noqa: SIM118


@pytest.mark.parametrize("layout", ["mae", "beit"])
def test_tokens_of_several_tokenizers(layout: Layout, tmp_path: Path) -> None:
    folders = [str(tmp_path / name) for name in ("few", "more")]
    for folder, k in zip(folders, ("4", "6"), strict=True):
        assert main(["fit", "kmeans", "--data", DATA, "--patch-size", "4", "--k", k, "--out", folder]) == 0
    words = ("--target", "multi-tokens", "--tokenizers", f"[{','.join(folders)}]", "--layout", layout)
    results = pretrain(tmp_path / "run", *words)
    target, model, views = first_step("multi-tokens", layout, tokenizers=folders)
    scores = model(inputs(views), views.mask)  # (16, m, 4 + 6)
    ids = select(target(views.images), views.mask.masked)  # (16, m, 2)
    expected = [
        torch.nn.functional.cross_entropy(part.flatten(0, 1), ids[..., place].flatten())
        for place, part in enumerate((scores[..., :4], scores[..., 4:]))
    ]
    assert results["loss"] == pytest.approx(sum(expected).item() / 2, rel=1e-5)
    assert (tmp_path / "run" / PICTURE).exists()


def test_an_encoder_pretrained_here_is_a_teacher(tmp_path: Path) -> None:
    """As dBOT's rounds have it: the next encoder predicts features of the one before."""
    pretrain(tmp_path / "first", "--target", "pixels")
    for layer, name in (("", "last"), ("?layer=2", "second")):
        pretrain(tmp_path / name, "--target", "features", "--teacher", f"run:{tmp_path / 'first'}{layer}")
    last, second = ((tmp_path / name / "encoder.safetensors").read_bytes() for name in ("last", "second"))
    assert last != second
    with safe_open(tmp_path / "last" / "decoder.safetensors", "pt") as tensors:
        assert tensors.get_tensor("decoder_pred.weight").shape == (128, 96)  # micro's width, from its decoder's


def test_a_teacher_that_draws_changes_nothing(tmp_path: Path, teach: Callable[..., list[str]]) -> None:
    """Networks are filled with random numbers before their weights are loaded."""

    def drawing() -> Teacher:
        torch.rand(7)
        return StubTeacher()

    for name, make in (("a", StubTeacher), ("b", drawing)):
        teach(make)
        pretrain(tmp_path / name, "--target", "features", "--teacher", "stub")
    first, second = ((tmp_path / name / "encoder.safetensors").read_bytes() for name in "ab")
    assert first == second


def test_what_is_off_changes_nothing(tmp_path: Path) -> None:
    pretrain(tmp_path / "a", "--target", "pixels")
    pretrain(
        tmp_path / "b", "--target", "pixels", "--mask-patch-size", "1", "--uniformity", "0", "--predict-fraction", "1"
    )
    for file in ("encoder.safetensors", "decoder.safetensors", "metrics.jsonl"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--target features", "--target features needs --teacher, such as run:FOLDER"),
        ("--target pixels --teacher stub", "--teacher is for --target features, not pixels"),
        ("--target hog --pixel-loss l1", "--pixel-loss is for --target pixels, not hog"),
        ("--target features --teacher grey", "the teacher stub takes 1-channel images, these have 3"),
        ("--target features --teacher stub --patch-size 5", "do not divide into patches of 5"),
        ("--target pixels --pixel-loss l2", "--pixel-loss: expected one of 'l1', got l2"),
        ("--target pixels --mask-patch-size -2", "--mask-patch-size -2 is not a number of patches"),
        ("--target pixels --mask-patch-size 4", "--mask-patch-size 4 makes one unit of the grid of 4×4 patches"),
        ("--target pixels --mask-patch-size 2 --mask-ratio 0.9", "leaves 0 of 4 units visible"),
        ("--target pixels --mask-patch-size 2 --masking block", "--mask-patch-size is for --masking random"),
        ("--target pixels --predict-fraction 1.5", "--predict-fraction 1.5 is no share: 0 to 1, where 0 predicts all"),
        ("--target pixels --predict-fraction -0.1", "--predict-fraction -0.1 is no share"),
        ("--target pixels --uniformity -1", "--uniformity -1.0 is not a weight"),
        ("--target pixels --uniformity 0.01 --layout beit", "--uniformity is for --layout mae"),
        ("--target pixels --uniformity 0.01 --accumulate 16", "raise --batch-size or lower --accumulate"),
    ],
)
def test_bad_input(
    words: str, message: str, tmp_path: Path, teach: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    teach(lambda: StubTeacher(channels=1 if "grey" in words else 3))
    command = ["pretrain", "--data", DATA, "--out", str(tmp_path / "run"), *ONE_STEP, *words.split()]
    try:
        code = main(command)
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    errors = capsys.readouterr().err.splitlines()
    assert code == 2
    assert message in errors[-1]
    assert len([line for line in errors if line.startswith("error: ")]) == 1
    assert not (tmp_path / "run").exists()


def test_a_decoder_of_cross_attention_and_one_visible_block(tmp_path: Path) -> None:
    words = (
        "--target",
        "pixels",
        "--cross-decoder",
        "true",
        "--masking",
        "inverse-block",
        "--predict-fraction",
        "0.25",
    )
    results = pretrain(tmp_path / "run", *words)
    target, model, views = first_step("pixels", "mae", cross=True, masking="inverse-block", predict_fraction=0.25)
    assert isinstance(model, CrossAutoencoder)
    error = model(inputs(views), views.mask) - select(target(views.images), views.mask.masked)
    assert results["loss"] == pytest.approx(error.square().mean().item(), rel=1e-5)
    assert (tmp_path / "run" / PICTURE).exists()
    command = ["pretrain", "--data", DATA, *ONE_STEP, *words, "--epochs", "2", "--out"]
    assert main([*command, str(tmp_path / "whole")]) == 0
    with pytest.raises(SystemExit):
        main([*command, str(tmp_path / "parts"), "--stop-after", "1"])
    assert main([*command, str(tmp_path / "parts"), "--resume"]) == 0
    for file in ("encoder.safetensors", "decoder.safetensors", "metrics.jsonl"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "parts" / file).read_bytes()
