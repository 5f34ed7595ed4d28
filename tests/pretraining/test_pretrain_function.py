"""`pretrain` on objects: what it takes, what it returns, and that a run folder changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from clustermim.data import open_source
from clustermim.errors import ConfigError, RunError, TokenizerError, UserError
from clustermim.models import load_encoder
from clustermim.pretraining import Masking, pretrain
from clustermim.runs import read_summary
from clustermim.targets import PixelTarget
from clustermim.tokenizers import KMeansTokenizer
from clustermim.training import Schedule
from stub_teacher import StubTeacher

DATA = "textures:?images=32&grid=4&patch=4"
SHORT: dict[str, Any] = {"epochs": 2, "batch_size": 16, "device": "cpu"}


def test_a_tokenizer_is_predicted_and_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(DATA)
    tokenizer = KMeansTokenizer(k=6, patch_size=8).fit(source)
    monkeypatch.chdir(tmp_path)
    before = {path for path in tmp_path.iterdir() if path.name != "home"}
    encoder = pretrain(source, tokenizer, **SHORT)
    assert {path for path in tmp_path.iterdir() if path.name != "home"} == before
    assert encoder.patch_size == 8  # the tokenizer's own
    assert encoder(torch.rand(2, 3, 16, 16)).shape == (2, 5, 128)
    assert not encoder.training
    assert [line["epoch"] for line in encoder.history] == [1, 2]
    assert "epoch_accuracy" in encoder.history[-1]
    with pytest.raises(TokenizerError, match="is for patches of 8 pixels and 3 channels, and the model for 4"):
        pretrain(source, tokenizer, patch_size=4, **SHORT)


def test_a_run_folder_changes_nothing(tmp_path: Path) -> None:
    free = pretrain(DATA, "pixels", layout="beit", drop_path=0.2, **SHORT)
    kept = pretrain(DATA, "pixels", layout="beit", drop_path=0.2, out=tmp_path / "run", **SHORT)
    assert free.weights == kept.weights == load_encoder(tmp_path / "run").weights
    assert free.history == kept.history
    assert [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()] == free.history
    assert read_summary(tmp_path / "run")["data"]["spec"] == open_source(DATA).spec
    assert (tmp_path / "run" / "decoder.safetensors").exists()
    with pytest.raises(RunError, match="holds a complete run"):
        pretrain(DATA, "pixels", out=tmp_path / "run", **SHORT)


def test_options_one_by_one_or_whole() -> None:
    whole = pretrain(DATA, masks=Masking(mask_ratio=0.5), schedule=Schedule(epochs=1, batch_size=16, device="cpu"))
    single = pretrain(DATA, mask_ratio=0.5, epochs=1, batch_size=16, device="cpu")
    assert whole.weights == single.weights


def test_teachers_encoders_and_targets() -> None:
    source = open_source(DATA)
    first = pretrain(source, "hog", epochs=1, batch_size=16, device="cpu")
    for target in (StubTeacher(), first, PixelTarget(4, 3, (0.5,) * 3, (0.2,) * 3)):
        assert pretrain(source, target, epochs=1, batch_size=16, device="cpu").weights != first.weights


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epoch": 3}, "has no option 'epoch'; did you mean epochs"),
        ({"target": "pixel"}, "there is no target 'pixel'"),
        ({"target": KMeansTokenizer(k=4, patch_size=4)}, "is not fitted"),
        ({"source": torch.rand(3, 3, 8, 8)}, "from_arrays"),
        ({"source": None}, "from_arrays"),
        ({"layout": "simmim"}, "layout is one of mae, beit, blank, mixmae, mage, not 'simmim'"),
        ({"device": "gpu"}, "device is one of auto, cpu, cuda, mps, not 'gpu'"),
        ({"pixel_loss": "l2"}, "pixel_loss is one of l1, not 'l2'"),
        ({"model": "micros"}, "did you mean micro"),
        ({"batch_size": 64}, "fewer than a batch of 64"),
        ({"stop_after": 1}, "name one with out"),
    ],
)
def test_bad_input(options: dict[str, Any], message: str) -> None:
    given = {"source": DATA, "device": "cpu", "batch_size": 16, **options}
    with pytest.raises(UserError, match=message) as error:
        pretrain(given.pop("source"), **given)
    assert "\n" not in str(error.value)


def test_encoders_of_epochs_are_kept_on_request(tmp_path: Path) -> None:
    short = {"epochs": 3, "batch_size": 16, "device": "cpu"}
    pretrain(DATA, "pixels", **short, out=tmp_path / "run", save_every=2)
    assert [folder.name for folder in sorted((tmp_path / "run").glob("epoch-*"))] == ["epoch-2"]
    early, late = load_encoder(tmp_path / "run" / "epoch-2"), load_encoder(tmp_path / "run")
    assert not torch.equal(early.backbone.norm.weight, late.backbone.norm.weight)
    with pytest.raises(ConfigError, match="save_every must be at least 1"):
        pretrain(DATA, "pixels", **short, out=tmp_path / "none", save_every=0)
