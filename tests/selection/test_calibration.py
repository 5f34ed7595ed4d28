"""What transferability is worth in points of linear probe, as advise says it, is what the records say."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from clustermim.scores import Value
from clustermim.selection.advice import DOUBT, KNOWN, POINTS, REGRETS, UNDERRATED, Advice
from clustermim.studies import read_study
from clustermim.studies.records import read_record
from clustermim.studies.table import make_rows
from clustermim.tokenizers import RandomTokenizer

ROOT = Path(__file__).parents[2]
STUDIES = ("cifar10-tokenizers", "imagenette-tokenizers")
POLES = ("random", "labels")  # tokens of nothing, and of the class itself


WITH_LABELS = ("supervised",)  # clusters of the features of a teacher that had labels


def rows(study: str, score: str = "transferability", without: tuple[str, ...] = ()) -> np.ndarray:
    """(score, points of linear probe) of every tokenizer of a record but the poles, and others to leave out."""
    cells = json.loads((ROOT / "results" / f"{study}.json").read_text())["cells"]
    scores, probes = (
        {
            json.dumps({**cell["axes"], "run": ""}, sort_keys=True): cell["results"]
            for cell in cells
            if cell["name"] == name
        }
        for name in ("score", "probe")
    )
    assert scores.keys() == probes.keys()
    kept = [axes for axes in scores if json.loads(axes)["tokenizer"] not in POLES + without and score in scores[axes]]
    return np.array([(scores[axes][score], 100 * probes[axes]["avg"]["accuracy"]) for axes in kept])


@pytest.mark.parametrize("study", STUDIES)
def test_a_line_of_one_slope_fits_both_studies(study: str) -> None:
    found = rows(study)
    slope, start = np.polyfit(*found.T, 1)
    assert slope == pytest.approx(POINTS, rel=0.03)
    assert np.abs(found[:, 1] - slope * found[:, 0] - start).max() < 2.5
    assert found[:, 0].max() < KNOWN


@pytest.mark.parametrize("study", STUDIES)
def test_most_differences_are_as_it_says(study: str) -> None:
    errors = [abs(POINTS * (a[0] - b[0]) - (a[1] - b[1])) for a, b in combinations(rows(study), 2)]
    assert np.mean(np.array(errors) <= DOUBT) >= 0.93


def test_how_far_a_teachers_clusters_are_above_the_line() -> None:
    study = read_study(ROOT / "studies/imagenette-rivals.yaml")
    made = {row.name: row for row in make_rows(study, read_record(ROOT / f"results/{study.name}.json", study))}
    found = {
        name: [row.estimate(column) for column in ("transferability", "linear probe")] for name, row in made.items()
    }
    above = {name: given.mean - POINTS * score.mean for name, (score, given) in found.items() if score and given}
    teachers = [name for name in above if name.startswith("features of")]
    line = np.mean([above[name] for name in above if name not in (*teachers, "labels", "random tokens")])
    assert len(teachers) == 3
    assert round(max(above[name] for name in teachers) - line, 1) == UNDERRATED


@pytest.mark.parametrize("score", REGRETS)
def test_what_a_first_choice_lost(score: str) -> None:
    lost = [
        found[:, 1].max() - found[found[:, 0].argmax(), 1] for found in (rows(s, score, WITH_LABELS) for s in STUDIES)
    ]
    assert round(max(lost), 1) == REGRETS[score]


def test_the_document_says_the_same() -> None:
    text = " ".join((ROOT / "docs/scores.md").read_text().split())
    assert f"0.01 of transferability is worth {POINTS / 100:.2f} points" in text
    assert f"within {DOUBT:g} points" in text


def test_advice_in_points() -> None:
    results = {"white": Value.of([0.30, 0.32]), "pixels": Value.of([0.20, 0.22])}
    advice = Advice("photos", "transferability", results, RandomTokenizer(3, 4))
    assert advice.points_behind("pixels") == pytest.approx(4.8)
    assert advice.to_dict()["scores"]["pixels"]["points_behind"] == pytest.approx(4.8)
    assert "4.8" in str(advice.table())
    assert "± 2" in str(advice.table())


def test_nothing_is_said_in_points_of_a_teachers_clusters() -> None:
    results = {
        name: Value.of([value, value + 0.02]) for name, value in (("white", 0.3), ("vit", 0.25), ("pixels", 0.2))
    }
    advice = Advice("photos", "transferability", results, RandomTokenizer(3, 4), frozenset({"vit"}))
    assert advice.points_behind("vit") is None
    assert advice.points_behind("pixels") == pytest.approx(4.8)
    assert f"up to {UNDERRATED:g} points more" in str(advice.table())
    first = Advice("photos", "transferability", results, RandomTokenizer(3, 4), frozenset({"white"}))
    assert [first.points_behind(name) for name in results] == [None] * 3


@pytest.mark.parametrize(("by", "best"), [("transferability", 0.9), ("view_retrieval", 0.3)])
def test_nothing_is_said_of_what_is_not_known(by: str, best: float) -> None:
    advice = Advice("photos", by, {"a": Value.of([best, best]), "b": Value.of([0.1, 0.1])}, RandomTokenizer(3, 4))
    assert advice.points_behind("b") is None
    assert "±" not in str(advice.table())
