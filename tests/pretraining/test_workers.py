"""The number of threads that decode changes nothing, not even when it changes in the middle of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from clustermim.data import images, open_source
from clustermim.data.encoded import CORES, EncodedSource, set_workers
from clustermim.errors import ConfigError, DataError
from clustermim.pretraining import pretrain
from clustermim.training import Stopped

OPTIONS = {"target": "pixels", "patch_size": 4, "epochs": 3, "batch_size": 8, "device": "cpu"}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for number in range(24):
        pixels = generator.integers(0, 256, (24 + number, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number:02d}.jpg")
    return tmp_path / "photos"


def test_a_run_resumed_with_other_workers_is_the_unbroken_one(photos: Path, tmp_path: Path) -> None:
    data = f"folder:{photos}?size=16"
    pretrain(data, out=tmp_path / "whole", **OPTIONS)
    with pytest.raises(Stopped):
        pretrain(data, out=tmp_path / "parts", workers=1, stop_after=1, **OPTIONS)
    with pytest.raises(Stopped):
        pretrain(data, out=tmp_path / "parts", workers=4, stop_after=2, resume=True, **OPTIONS)
    pretrain(data, out=tmp_path / "parts", resume=True, **OPTIONS)
    for name in ("encoder.safetensors", "decoder.safetensors", "metrics.jsonl"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()


def test_workers_that_cannot_be_and_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="--workers -1 is no number of threads"):
        set_workers(-1)
    set_workers(CORES + 1)
    assert f"{CORES + 1} workers share {CORES} cores" in capsys.readouterr().err
    set_workers(0)
    assert EncodedSource.workers >= 1


def test_all_bad_files_are_named_before_the_training(photos: Path, tmp_path: Path) -> None:
    good = (photos / "03.jpg").read_bytes()
    (photos / "03.jpg").write_bytes(good[: len(good) // 2])
    (photos / "17.jpg").write_bytes(b"no image")
    data = f"folder:{photos}?size=16"
    with pytest.raises(DataError, match=r"2 of 24 images cannot be used: .*03\.jpg.*17\.jpg.*on_bad_image=skip"):
        pretrain(data, out=tmp_path / "run", **OPTIONS)
    assert not (tmp_path / "run").exists()
    encoder = pretrain(f"{data}&on_bad_image=skip", **{**OPTIONS, "batch_size": 22, "epochs": 1})
    assert encoder.history[-1]["step"] == 1  # all that can be read are one batch


def test_a_file_that_breaks_after_the_check_is_the_same_to_any_number_of_workers(photos: Path) -> None:
    data = f"folder:{photos}?size=16"
    strict, lenient = open_source(data), open_source(f"{data}&on_bad_image=skip")
    assert strict.readable(range(24)).all()
    assert lenient.readable(range(24)).all()
    for name in ("07", "12", "20"):
        (photos / f"{name}.jpg").write_bytes(b"no image any more")
    errors, weights = set(), set()
    for workers in (1, 2, 4):
        with pytest.raises(DataError, match="it was good when files were checked") as caught:
            pretrain(strict, workers=workers, **{**OPTIONS, "batch_size": 24})
        errors.add(str(caught.value))
        encoder = pretrain(lenient, workers=workers, **{**OPTIONS, "epochs": 1})
        weights.add(encoder.weights)
        assert [Path(name).stem for name in sorted(lenient.skipped)] == ["07", "12", "20"]
    assert len(errors) == len(weights) == 1


def test_a_worker_that_fails_ends_the_run_which_then_continues(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, resize, calls = f"folder:{photos}?size=16", images.resize, []
    pretrain(data, out=tmp_path / "whole", **OPTIONS)
    with pytest.raises(Stopped):
        pretrain(data, out=tmp_path / "parts", stop_after=1, **OPTIONS)

    def fail(*words: Any) -> Any:
        calls.append(words)
        if len(calls) == 30:  # in the second epoch after the stop
            raise MemoryError("no memory left")
        return resize(*words)

    with monkeypatch.context() as patch:
        patch.setattr(images, "resize", fail)
        with pytest.raises(DataError, match=r"\d\d\.jpg: .*no memory left"):
            pretrain(data, out=tmp_path / "parts", resume=True, workers=4, **OPTIONS)
    pretrain(data, out=tmp_path / "parts", resume=True, **OPTIONS)
    for name in ("encoder.safetensors", "metrics.jsonl"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()
