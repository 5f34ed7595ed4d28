"""Advice: candidates in order, a budget, intervals, continuation, objects without folders, and what bad input gets."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clustermim.cli import main
from clustermim.data import open_source
from clustermim.scores import SCORES, Score, Value
from clustermim.selection import Advice, Candidate
from clustermim.selection import advice as module
from clustermim.selection import advise as advise_source
from clustermim.selection.advice import candidates
from clustermim.tokenizers import KMeansTokenizer, RandomTokenizer, Tokenizer

DATA = "textures:?images=128&grid=4&patch=4&channels=3&classes=4&noise=0.1"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few images and few clusters: textures have few patches."""
    monkeypatch.setattr(module, "FEWEST", 16)

    def few(channels: int, teachers: Sequence[str]) -> list[Candidate]:
        return [one._replace(options={**one.options, "k": 4}) for one in candidates(channels, teachers)]

    monkeypatch.setattr(module, "candidates", few)


def advise(out: Path, *words: str) -> int:
    return main(["advise", "--data", DATA, "--out", str(out), "--images", "128", *words])


def test_a_ranking_a_recommendation_and_its_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert advise(tmp_path / "advice") == 0
    record = json.loads((tmp_path / "advice" / "advice.json").read_text())
    scores = record["scores"]
    assert set(scores) == {candidate.name for candidate in candidates(3, ())}
    assert record["recommended"] == max(scores, key=lambda name: scores[name]["transferability"])
    assert all(len(found["parts"]) == 8 for found in scores.values())
    printed = capsys.readouterr().out
    assert f"recommended: {record['recommended']}" in printed
    following = printed.splitlines()[-1].removeprefix("next: clustermim ")
    command = [word if word != "RUN" else str(tmp_path / "run") for word in shlex.split(following)]
    assert command[command.index("--tokenizer") + 1] == str(tmp_path / "advice" / record["recommended"])
    assert main([*command, "--epochs", "1", "--batch-size", "64", "--device", "cpu"]) == 0  # it works as printed


def test_labels_may_come_from_other_images(tmp_path: Path, noise: Callable[..., Any]) -> None:
    np.savez(tmp_path / "bare.npz", images=noise(128, 16, 16, 3))
    bare = f"npz:{tmp_path / 'bare.npz'}"
    assert advise(tmp_path / "advice", "--data", bare, "--labelled", DATA, "--budget", "0") == 0
    record = json.loads((tmp_path / "advice" / "advice.json").read_text())
    assert all(found.keys() == {"transferability", "parts", "points_behind"} for found in record["scores"].values())


@pytest.mark.parametrize(("labels", "missing"), [({}, "no labels"), ({"labels": np.zeros(128)}, "one class only")])
def test_without_labels_it_goes_by_view_retrieval(
    labels: dict[str, Any], missing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], noise: Callable[..., Any]
) -> None:
    labels = {name: values.astype(np.int64) for name, values in labels.items()}
    np.savez(tmp_path / "bare.npz", images=noise(128, 16, 16, 3), **labels)
    bare = f"npz:{tmp_path / 'bare.npz'}"
    assert advise(tmp_path / "advice", "--data", bare, "--budget", "0") == 0
    assert f"{bare} has {missing}: tokenizers are compared by view_retrieval" in capsys.readouterr().err
    scores = json.loads((tmp_path / "advice" / "advice.json").read_text())["scores"]
    assert all(found.keys() == {"view_retrieval", "parts", "points_behind"} for found in scores.values())
    assert advise(tmp_path / "other", "--labelled", bare) == 2  # said to be labelled
    assert f"--labelled {bare} has {missing}" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_what_is_complete_is_not_fitted_again_and_a_budget_ends_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert advise(tmp_path / "advice", "--budget", "0") == 0
    assert "the budget is spent: 7 candidates were not tried" in capsys.readouterr().err
    first = json.loads((tmp_path / "advice" / "advice.json").read_text())
    assert len(first["scores"]) == 2
    monkeypatch.setattr(KMeansTokenizer, "fit", lambda *_: pytest.fail("fitted again"))
    assert advise(tmp_path / "advice", "--budget", "0") == 0
    assert json.loads((tmp_path / "advice" / "advice.json").read_text()) == first


def test_what_cannot_be_fitted_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    many, few = module.Candidate("many", {"k": 5000}), module.Candidate("few", {"k": 4})
    monkeypatch.setattr(module, "candidates", lambda channels, teachers: [many, few])
    assert advise(tmp_path / "advice") == 0
    assert "many is left out: k = 5000, but there are only" in capsys.readouterr().err
    assert json.loads((tmp_path / "advice" / "advice.json").read_text())["recommended"] == "few"
    monkeypatch.setattr(module, "candidates", lambda channels, teachers: [many])
    assert advise(tmp_path / "nothing") == 2
    assert "no candidate can be fitted" in capsys.readouterr().err.splitlines()[-1]


def test_grey_images_and_patches_of_an_odd_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = "textures:?images=128&grid=4&patch=5&channels=1&classes=4&noise=0.1"
    assert advise(tmp_path / "advice", "--data", data, "--patch-size", "5") == 0
    record = json.loads((tmp_path / "advice" / "advice.json").read_text())
    assert {"white-500", "gradients-100"} <= set(record["scores"])
    assert advise(tmp_path / "other", "--data", data, "--patch-size", "5", "--teacher", "hog:") == 2
    assert "takes 3-channel images" in capsys.readouterr().err  # a teacher that was asked for is not left out


def test_no_advice_without_scores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = Score("transferability", True, True, "", lambda tokens: Value(math.nan, note="images cannot be read"))
    monkeypatch.setitem(SCORES, "transferability", nothing)
    assert advise(tmp_path / "advice") == 2
    assert "does not tell tokenizers apart: images cannot be read" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "advice" / "advice.json").exists()


def test_candidates_of_other_options_or_data_are_not_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert advise(tmp_path / "advice", "--budget", "0") == 0
    record = (tmp_path / "advice" / "advice.json").read_bytes()
    for words in (("--seed", "1"), ("--patch-size", "8"), ("--data", DATA.replace("128", "160"))):
        assert advise(tmp_path / "advice", "--budget", "0", *words) == 2
        assert "choose another --out" in capsys.readouterr().err.splitlines()[-1]
    assert (tmp_path / "advice" / "advice.json").read_bytes() == record


def test_teachers_come_right_after_the_usual() -> None:
    names = [candidate.name for candidate in candidates(3, ["hog:", "run:x"])]
    assert names[:4] == ["white-500", "pixels-50", "teacher-1-100", "teacher-2-100"]
    assert names[4:6] == ["teacher-1-500", "teacher-2-500"]
    assert candidates(3, ["hog:"])[2].options == {"k": 100, "space": "features", "teacher": "hog:"}


def test_differences_are_paired() -> None:
    results = {"a": Value.of([0.3, 0.5, 0.7]), "b": Value.of([0.2, 0.4, 0.6])}
    found = Advice("images", "transferability", results, RandomTokenizer(4, 4))
    assert found.behind("b").mean == pytest.approx(0.1)
    assert found.behind("b").interval() == pytest.approx((0.1, 0.1))
    assert (found.best, found.rivals) == ("a", [])


def test_objects_without_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    source = open_source(DATA)
    found = advise_source(source, images=128, budget=0)
    assert isinstance(found.tokenizer, Tokenizer)
    assert found.tokenizer(source.read([0]).images / 255).shape == (1, 16)
    assert repr(found) == f"Advice({found.best}, the best of 2 by transferability)"
    assert f"recommended: {found.best}" in str(found)
    assert not list(here.iterdir())


def test_any_score_with_a_direction_may_choose() -> None:
    found = advise_source(DATA, images=128, budget=0, by="alpha")
    values = [value.value for value in found.results.values()]
    assert values == sorted(values)  # lower is better
    assert found.behind(list(found.results)[1]).mean == pytest.approx(values[1] - values[0])
    with pytest.raises(module.ConfigError, match="cannot be chosen by 'perplexity'"):
        advise_source(DATA, images=128, by="perplexity")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--images", "64"), "64 images are too few"),
        (("--budget", "-1"), "--budget -1 is no time"),
        (("--data", "textures:?images=64&grid=4&patch=4"), "64 images are too few"),
        (("--data", "textures:?images=128&grid=1&patch=4"), "is a single patch of 4 pixels"),
        (("--labelled", "textures:?images=64&grid=4&patch=4"), "64 images are too few"),
        (("--patch-size", "5"), "do not divide into patches of 5"),
    ],
)
def test_bad_input(words: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert advise(tmp_path / "advice", *words) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "advice").exists()
