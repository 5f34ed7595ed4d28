"""Iterated ClusterMIM: rounds, the choice of layer and K with and without labels, and continuation."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from clustermim.cli import main
from clustermim.errors import ConfigError
from clustermim.stages.iterate import Candidate, best_of
from clustermim.tokenizers import KMeansTokenizer, load_tokenizer

DATA = "textures:?images=96&grid=4&patch=4"
SHORT = ["--data", DATA, "--epochs", "1", "--batch-size", "32", "--first-k", "6", "--layers", "[2, 4]", "--ks", "[4]"]


def test_the_best_candidate_by_either_score() -> None:
    scores = {
        Candidate(1, 50): {"patch_mi": 0.3, "adjusted": 0.05, "transferability": 0.1, "view_retrieval": 0.0},
        Candidate(2, 50): {"patch_mi": 0.2, "adjusted": 0.07, "transferability": 0.1, "view_retrieval": 0.2},
        Candidate(3, 50): {"patch_mi": math.nan, "adjusted": math.nan, "transferability": 0.2, "view_retrieval": 0.1},
    }
    assert best_of(scores, "view_retrieval") == (2, 50)
    assert best_of(scores, "patch_mi") == (1, 50)
    assert best_of(scores, "tcas") == (2, 50)
    assert best_of(scores, "transferability") == (3, 50)
    with pytest.raises(ConfigError, match="too few images"):
        best_of({Candidate(3, 50): scores[Candidate(3, 50)]}, "tcas")


@pytest.mark.slow
def test_rounds_and_their_continuation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rounds"
    assert main(["iterate", *SHORT, "--rounds", "2", "--out", str(out), "--labelled", DATA, "--choose", "tcas"]) == 0
    record = json.loads((out / "rounds.json").read_text())
    assert record[0] == {"round": 1, "tokenizer": "pixels", "k": 6}
    found = record[1]["candidates"]
    assert set(found) == {"layer-2-k-4", "layer-4-k-4"}
    assert record[1]["tokenizer"] == max(found, key=lambda name: found[name]["adjusted"])
    shown = ("view_retrieval", "patch_mi", "transferability")  # whatever is chosen by
    assert all(math.isfinite(scores[name]) for scores in found.values() for name in shown)
    tokenizer = load_tokenizer(out / "round-2" / record[1]["tokenizer"])
    assert isinstance(tokenizer, KMeansTokenizer)
    assert (tokenizer.vocab_size, tokenizer.options.whiten, tokenizer.options.image_mean_weight) == (4, 64, -1)
    weights = out / "round-2" / "run" / "encoder.safetensors"
    before = weights.stat().st_mtime_ns
    assert main(["iterate", *SHORT, "--rounds", "3", "--out", str(out)]) == 0  # without labels from here on
    assert weights.stat().st_mtime_ns == before
    assert (out / "round-3" / "run" / "summary.json").exists()
    longer = json.loads((out / "rounds.json").read_text())
    assert longer[:2] == record  # what was chosen stays
    assert longer[2]["chosen_by"] == "view_retrieval"

    record = (out / "rounds.json").read_bytes()  # other options do not find themselves done
    for words in (
        ["--first-k", "5"],
        ["--epochs", "2"],
        ["--whiten", "0"],
        ["--data", DATA.replace("96", "90")],
        ["--seed", "1"],
    ):
        assert main(["iterate", *SHORT, "--rounds", "3", "--out", str(out), *words]) == 2
        assert "choose another --out" in capsys.readouterr().err.splitlines()[-1]
    assert (out / "rounds.json").read_bytes() == record


@pytest.mark.parametrize("damage", ["", "{", '["x"]', '[{"round": 1}]', "7"])
def test_a_damaged_record(damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rounds" / "round-1" / "run").mkdir(parents=True)
    (tmp_path / "rounds" / "round-1" / "run" / "config.yaml").touch()
    (tmp_path / "rounds" / "rounds.json").write_text(damage)
    assert main(["iterate", *SHORT, "--out", str(tmp_path / "rounds")]) == 2
    assert "rounds.json cannot be read: remove it" in capsys.readouterr().err
    assert (tmp_path / "rounds" / "rounds.json").read_text() == damage


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        (["--rounds", "0"], "--rounds 0 is too small"),
        (["--layers", "[9]"], "the encoder has blocks 1 … 4"),
        (["--choose", "tcas"], "--choose tcas needs --labelled"),
        (["--choose", "transferability"], "--choose transferability needs --labelled"),
        (["--labelled", "cifar10/nowhere"], "cifar10/nowhere"),
        (["--labelled", "textures:?images=9&grid=3&patch=3"], "do not divide into patches of 4"),
    ],
)
def test_what_cannot_be(options: list[str], reported: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["iterate", "--data", DATA, "--out", str(tmp_path / "rounds"), *options]) == 2
    assert reported in capsys.readouterr().err
    assert not (tmp_path / "rounds").exists()
