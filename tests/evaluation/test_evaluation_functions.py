"""The measurements from Python: objects in, results out, and nothing on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from clustermim.data import Source, open_source, to_float
from clustermim.data.arrays import ArraySource
from clustermim.errors import ConfigError, DataError, RunError, UserError
from clustermim.evaluation import EvaluationResult, finetune, knn, linear_probe
from clustermim.models.encoder import Encoder, load_encoder

PLAIN: dict[str, Any] = {"augment": "none", "mixup": 0.0, "cutmix": 0.0, "erasing": 0.0, "randaugment_ops": 0}
SHORT: dict[str, Any] = {"epochs": 2, "batch_size": 16, "device": "cpu"}


@pytest.fixture
def encoder(save_micro: Callable[..., Path]) -> Encoder:
    return load_encoder(save_micro())


@pytest.fixture
def bright(save_bright: Callable[..., str]) -> Source:
    return open_source(save_bright(count=40))


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file() and "home" not in path.relative_to(folder).parts}


def average(images: Tensor) -> Tensor:
    """Tokens of any encoder: the mean and deviation of the image, three times."""
    values = torch.stack([images.mean(dim=(1, 2, 3)), images.std(dim=(1, 2, 3))], dim=1)  # (B, 2)
    return values[:, None].expand(-1, 3, -1)  # (B, 1 + 2, 2)


@pytest.mark.parametrize("measure", [knn, linear_probe])
def test_an_encoder_its_folder_and_a_function(
    measure: Callable[..., EvaluationResult],
    save_micro: Callable[..., Path],
    bright: Source,
    tmp_path: Path,
) -> None:
    folder = save_micro()
    before = files(tmp_path)
    result = measure(load_encoder(folder), bright, bright)
    assert (
        result.to_dict()
        == measure(folder, bright.spec, bright).to_dict()
        == measure(str(folder), bright, bright).to_dict()
    )
    assert list(result.to_dict()) == ["avg", "cls"]
    assert result.avg is not None
    assert result.avg.accuracy > 0.9
    assert measure(average, bright, bright).to_dict()["cls"]["accuracy"] == 1.0
    assert files(tmp_path) == before


def test_weights_that_changed_are_measured_anew(encoder: Encoder, bright: Source) -> None:
    first = knn(encoder, bright, bright).to_dict()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.zero_()
    assert knn(encoder, bright, bright).to_dict() != first


def test_how_results_look(encoder: Encoder, bright: Source) -> None:
    result = knn(encoder, bright, bright, k=3)
    assert repr(result).startswith("<3 nearest neighbours: avg ")
    lines = str(result).splitlines()
    assert lines[0] == "3 nearest neighbours"
    names = ["avg", "cls", "avg, whitened", "cls, whitened"]
    assert [line.partition("  ")[0] for line in lines[3:7]] == names
    assert "isotropic" in lines[7]
    probed = linear_probe(encoder, bright, bright)
    assert [row[0] for row in probed.table().rows] == names[:2]
    assert not probed.table().caption
    assert "<td>avg</td>" in result._repr_html_()
    assert json.loads(json.dumps(result.to_dict())) == result.to_dict()


def test_the_stage_writes_what_the_function_gives(
    command: Callable[..., int], save_micro: Callable[..., Path], bright: Source
) -> None:
    folder, data = save_micro(), ("--data", bright.spec, "--test-data", bright.spec)
    for stage, name, words, found in (
        ("probe", "probe", (), linear_probe(folder, bright, bright)),
        ("knn", "knn", ("--k", "3"), knn(folder, bright, bright, k=3)),
        ("probe", "probe-mae", ("--protocol", "mae", "--epochs", "2", "--batch-size", "16", "--device", "cpu"),
         linear_probe(load_encoder(folder), bright, bright, protocol="mae", **SHORT)),
    ):  # fmt: skip
        assert command(stage, folder, *data, *words) == 0
        written = json.loads((folder / name / "summary.json").read_text())["results"]
        for results in (written, expected := found.to_dict()):
            for part in results.values():
                part.pop("training_seconds", None)
        assert written == expected


def test_finetune_gives_a_classifier(encoder: Encoder, bright: Source, tmp_path: Path) -> None:
    before, weights = files(tmp_path), encoder.weights
    result = finetune(encoder, bright, bright, epochs=4, batch_size=16, base_lr=0.03, device="cpu", **PLAIN)
    assert files(tmp_path) == before
    assert encoder.weights == weights != result.encoder.weights
    batch = bright.read(range(40))
    with torch.no_grad():
        scores = result.classifier.eval()(to_float(batch.images))
    assert scores.shape == (40, 2)
    assert float((scores.argmax(dim=1) == batch.labels).float().mean()) == pytest.approx(result.accuracy)
    assert result.accuracy == result.to_dict()["accuracy"] > 0.9
    assert result.encoder.history[-1]["test_accuracy"] == result.accuracy
    assert knn(result.encoder, bright, bright, k=3).avg is not None


@pytest.mark.parametrize("protocol", ["finetune", "mae"])
def test_out_keeps_a_run_that_goes_on(protocol: str, encoder: Encoder, bright: Source, tmp_path: Path) -> None:
    """With an encoder in memory as from a folder, to the same weights."""

    def run(given: Any, out: Path, **options: Any) -> None:
        if protocol == "mae":
            linear_probe(given, bright, bright, protocol="mae", out=out, **SHORT, **options)
        else:
            finetune(given, bright, bright, out=out, **SHORT, **PLAIN, **options)

    run(encoder, tmp_path / "whole")
    with pytest.raises(SystemExit):
        run(encoder, tmp_path / "part", stop_after=1)
    run(encoder, tmp_path / "part", resume=True)
    run(tmp_path / "pre", tmp_path / "loaded")
    metrics = {(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "part", "loaded")}
    assert len(metrics) == 1
    summary = json.loads((tmp_path / "part" / "summary.json").read_text())
    assert summary["weights"] == encoder.weights
    assert summary["data"]["spec"] == bright.spec


def labelled(labels: Any, shape: tuple[int, int, int] = (3, 8, 8)) -> ArraySource:
    return ArraySource("mine", np.zeros((20, *shape), np.uint8), labels)


@pytest.mark.parametrize("measure", [knn, linear_probe, finetune])
def test_what_cannot_be_measured(measure: Callable[..., Any], encoder: Encoder, bright: Source) -> None:
    for given, message in (
        (labelled(None), "mine has no labels"),
        (torch.zeros(4, 3, 8, 8), "from_arrays"),
        (None, "from_arrays"),
        ("nowhere", "nowhere"),
    ):
        for pair in ((given, bright), (bright, given)):
            with pytest.raises(UserError, match=message):
                measure(encoder, *pair)
    short = labelled(np.arange(20) % 2)
    short.labels = np.arange(7) % 2
    with pytest.raises(DataError, match="mine has 20 images and 7 labels"):
        measure(encoder, bright, short)
    for wrong in (None, 3, [encoder]):
        with pytest.raises(RunError, match=f"an encoder is .* not {type(wrong).__name__}"):
            measure(wrong, bright, bright)
    with pytest.raises(UserError, match="holds no pretrained encoder"):
        measure("nowhere", bright, bright)
    other = labelled(np.arange(20) % 2, (1, 8, 8))
    with pytest.raises(DataError, match="made for 3"):
        measure(encoder, other, other)


@pytest.mark.parametrize("protocol", ["lbfgs", "mae"])
def test_what_cannot_be_probed(protocol: str, encoder: Encoder, bright: Source) -> None:
    one, large = labelled(np.zeros(20, int)), labelled(np.arange(20) % 2, (3, 16, 16))
    options: dict[str, Any] = {"protocol": protocol}
    with pytest.raises(DataError, match="of one class"):
        linear_probe(encoder, one, one, **options)
    with pytest.raises(DataError, match=r"3×16×16 and the encoder was made for 3×8×8: add \?size=8x8"):
        linear_probe(encoder, large, large, **options)


def test_functions_that_are_no_encoders(bright: Source) -> None:
    for function, message in (
        (lambda images: images.flatten(1), r"the encoder gave \(40, 192\), not tokens"),
        (lambda images: {"tokens": images}, "the encoder gave dict"),
    ):
        with pytest.raises(ConfigError, match=message):
            knn(function, bright, bright)
    with pytest.raises(RunError, match="an encoder is an Encoder or the folder of one, not function"):
        finetune(average, bright, bright)
    with pytest.raises(RunError, match="an encoder is an Encoder or the folder of one, not int"):
        knn(3, bright, bright)


def test_options_that_are_unknown_or_ignored(encoder: Encoder, bright: Source, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="linear_probe has no option 'epoch'; did you mean epochs"):
        linear_probe(encoder, bright, bright, epoch=3)
    with pytest.raises(ConfigError, match="--out is for --protocol mae"):
        linear_probe(encoder, bright, bright, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
