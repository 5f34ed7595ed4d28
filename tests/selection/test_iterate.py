"""Iterated ClusterMIM: rounds, the choice of layer and K with and without labels, and continuation."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from clustermim.cli import main
from clustermim.data import open_source
from clustermim.scores import Value
from clustermim.selection import iterate, ranked
from clustermim.tokenizers import KMeansTokenizer, load_tokenizer

DATA = "textures:?images=96&grid=4&patch=4"
SHORT = ["--data", DATA, "--epochs", "1", "--batch-size", "32", "--first-k", "6", "--layers", "[2, 4]", "--ks", "[4]"]


def test_the_best_candidate_by_either_score() -> None:
    values = {
        "view_retrieval": (0.0, 0.2, 0.1),
        "nmi": (0.3, 0.2, math.nan),
        "tcas": (0.8, 0.7, math.nan),
        "transferability": (0.1, 0.1, 0.2),
    }
    best = {by: ranked({str(i): Value(value) for i, value in enumerate(found)}, by)[0] for by, found in values.items()}
    assert best == {"view_retrieval": "1", "nmi": "0", "tcas": "1", "transferability": "2"}
    assert ranked({"a": Value(math.nan)}, "tcas") == []


@pytest.mark.slow
def test_rounds_of_objects_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    options = {"rounds": 2, "first_k": 6, "layers": [2], "ks": [4], "epochs": 1, "batch_size": 32}
    found = iterate(DATA, **options)
    assert [entry["tokenizer"] for entry in found.record] == ["pixels", "layer-2-k-4"]
    assert "layer-2-k-4" in str(found)
    assert found.encoder(open_source(DATA).read([0]).images / 255).shape == (1, 17, 128)
    assert not list(here.iterdir())
    kept = iterate(DATA, **options, out=tmp_path / "kept")  # with a folder, the same weights
    assert kept.encoder.weights == found.encoder.weights
    again = iterate(DATA, **options, out=tmp_path / "kept")
    assert again.encoder.weights == found.encoder.weights
    assert again.record == kept.record


@pytest.mark.slow
def test_rounds_and_their_continuation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rounds"
    assert (
        main(["iterate", *SHORT, "--rounds", "2", "--out", str(out), "--labelled", DATA, "--choose", "adjusted"]) == 0
    )
    record = json.loads((out / "rounds.json").read_text())
    assert record[0] == {"round": 1, "tokenizer": "pixels", "k": 6}
    found = record[1]["candidates"]
    assert set(found) == {"layer-2-k-4", "layer-4-k-4"}
    assert record[1]["tokenizer"] == max(found, key=lambda name: found[name]["adjusted"])
    shown = ("view_retrieval", "half_retrieval", "transferability")  # whatever is chosen by
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
