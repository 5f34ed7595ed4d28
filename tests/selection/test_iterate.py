"""Iterated ClusterMIM: rounds, the choice of layer and K with and without labels, and continuation."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from clustermim.cli import main
from clustermim.data import open_source
from clustermim.errors import RunError
from clustermim.pretraining import pretrain
from clustermim.scores import Value
from clustermim.selection import iterate, ranked, rounds
from clustermim.tokenizers import KMeansTokenizer, load_tokenizer
from clustermim.training import RunOptions, Schedule, Stopped

DATA = "textures:?images=96&grid=4&patch=4"
SHORT = [
    "--data",
    DATA,
    "--epochs",
    "1",
    "--batch-size",
    "32",
    "--first-ks",
    "[6]",
    "--layers",
    "[2, 4]",
    "--ks",
    "[4]",
]


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
    options = {"rounds": 2, "first_ks": [6], "layers": [2], "ks": [4], "epochs": 1, "batch_size": 32}
    found = iterate(DATA, **options)
    assert [entry["tokenizer"] for entry in found.record] == ["pixel-k-6", "layer-2-k-4"]
    assert "layer-2-k-4" in str(found)
    assert found.encoder(open_source(DATA).read([0]).images / 255).shape == (1, 17, 128)
    assert not list(here.iterdir())
    kept = iterate(DATA, **options, out=tmp_path / "kept")  # with a folder, the same weights
    assert kept.encoder.weights == found.encoder.weights
    again = iterate(DATA, **options, out=tmp_path / "kept")
    assert again.encoder.weights == found.encoder.weights
    assert again.record == kept.record
    assert again.cost() == kept.cost()


@pytest.mark.slow
def test_rounds_and_their_continuation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rounds"
    assert (
        main(["iterate", *SHORT, "--rounds", "2", "--out", str(out), "--labelled", DATA, "--choose", "adjusted"]) == 0
    )
    record = json.loads((out / "rounds.json").read_text())
    assert record[0] == {"round": 1, "tokenizer": "pixel-k-6"}
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
        ["--first-ks", "[5]"],
        ["--epochs", "2"],
        ["--whiten", "0"],
        ["--data", DATA.replace("96", "90")],
        ["--seed", "1"],
    ):
        assert main(["iterate", *SHORT, "--rounds", "3", "--out", str(out), *words]) == 2
        assert "choose another --out" in capsys.readouterr().err.splitlines()[-1]
    assert (out / "rounds.json").read_bytes() == record


QUICK = {"first_ks": [6], "layers": [2], "ks": [4], "batch_size": 32, "device": "cpu"}  # 3 steps an epoch


@pytest.mark.slow
def test_each_round_has_its_epochs_and_its_cost_also_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = iterate(DATA, round_epochs=[1, 2], out=tmp_path / "whole", **QUICK)
    total = dict.fromkeys(("flops", "cpu_seconds"), 0.0)
    for number, (epochs, tokens) in enumerate(((1, "pixel-k-6"), (2, "layer-2-k-4")), start=1):
        home, entry = tmp_path / "whole" / f"round-{number}", whole.record[number - 1]
        made = [json.loads((home / part / "summary.json").read_text())["results"] for part in (tokens, "run")]
        assert made[1]["steps"] == 3 * epochs == 3 * entry["epochs"]
        assert min(made[0]["cpu_seconds"], made[1]["cpu_seconds"], made[1]["flops"]) > 0
        assert entry["cost"] == {unit: pytest.approx(made[0][unit] + made[1][unit]) for unit in total}
        total = {unit: value + entry["cost"][unit] for unit, value in total.items()}
    assert (
        whole.record[1]["cost"]["flops"] > 1.9 * whole.record[0]["cost"]["flops"]
    )  # two epochs, and a fit of features
    assert whole.cost() == whole.to_dict()["cost"] == pytest.approx(total)
    last = str(whole).splitlines()[-2].split()
    assert last == ["all", "3", f"{total['flops'] / 1e12:.3f}", f"{total['cpu_seconds']:.1f}"]

    def leave(*given: Any, schedule: Schedule, **options: Any) -> Any:
        stop = RunOptions(stop_after=1 if schedule.epochs == 2 else None, resume=options.pop("resume"))
        return pretrain(*given, schedule=schedule, run_options=stop, **options)

    with monkeypatch.context() as patch:
        patch.setattr(rounds, "pretrain", leave)
        with pytest.raises(Stopped):
            iterate(DATA, round_epochs=[1, 2], out=tmp_path / "part", **QUICK)
    assert not (tmp_path / "part" / "round-2" / "run" / "summary.json").exists()
    part = iterate(DATA, round_epochs=[1, 2], out=tmp_path / "part", **QUICK)
    assert part.encoder.weights == whole.encoder.weights
    assert [entry["cost"]["flops"] for entry in part.record] == [entry["cost"]["flops"] for entry in whole.record]
    with pytest.raises(RunError, match="epochs 2, not 1; choose another --out"):
        iterate(DATA, round_epochs=[1, 1], out=tmp_path / "part", **QUICK)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "by"),
    [({}, "view_retrieval"), ({"labelled": DATA}, "transferability")],
)
def test_the_first_round_chooses_its_space_and_k(options: dict[str, Any], by: str) -> None:
    first = {"first_spaces": ["pixel", "pixel-white"], "first_ks": [4, 40]}
    (entry,) = iterate(DATA, rounds=1, epochs=1, **{**QUICK, **first, **options}).record
    names = ["pixel-k-4", "pixel-k-40", "pixel-white-k-4", "pixel-white-k-40"]
    assert list(entry["candidates"]) == names
    assert entry["chosen_by"] == by
    assert entry["tokenizer"] == max(names, key=lambda name: entry["candidates"][name][by])
    assert entry["scores_cost"]["cpu_seconds"] > 0
    assert entry["cost"]["cpu_seconds"] > entry["scores_cost"]["cpu_seconds"]


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
        (["--round-epochs", "[1, 2]", "--rounds", "3"], "--round-epochs [1, 2] are for 2 rounds, not --rounds 3"),
        (["--round-epochs", "[1, 0]"], "--round-epochs [1, 0]: 1 at least in each round"),
        (["--ks", "[200, 8192]"], "8,192 clusters are more than the 1,536 patches of textures/train?images=96"),
        (["--first-spaces", "[features]"], "--first-spaces"),
        (["--first-k", "50"], "it is --first-ks now"),
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
