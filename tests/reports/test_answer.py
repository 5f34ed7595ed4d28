"""The recommendation: the best that was measured, what it is not told from, and never what is there to compare with."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from toy_runs import TEXTURES, fit, measured, pretrained, score

from clustermim.data import open_source
from clustermim.evaluation.labels import wilson
from clustermim.mean_ci import MeanCI, newcombe
from clustermim.reports.answer import Answer, make_answer
from clustermim.reports.collect import RunInfo, collect
from clustermim.reports.ranking import best_first, rank_encoders
from clustermim.reports.records import Measurement, PretrainRecord, Records, TokenizerRecord, make_records

IMAGES = 400


def tokenizer(title: str, kind: str = "kmeans", on: str = "test?n=4", **scores: tuple[float, float, float]) -> Any:
    values = {name: Measurement(*found) for name, found in scores.items()}
    found = RunInfo(Path(title), f"fit {kind}", {"data": "train", "title": title}, {"results": {}})
    return TokenizerRecord(found, title, "", kind, 8, values, 8, on)


def encoder(title: str, right: int, of: TokenizerRecord | None = None, on: str = "test?n=4", **config: Any) -> Any:
    """An encoder that classifies so many of the test images as they are."""
    options = {"data": "train", "target": "tokens" if of else "pixels", "epochs": 5, "seed": 0, "tokenizer": title}
    found = RunInfo(Path(title), "pretrain", {**options, **config}, {"results": {}})
    low, high = wilson(right, IMAGES)
    value = {"probe avg": Measurement(100 * right / IMAGES, 100 * low, 100 * high)}
    return PretrainRecord(found, title, "", options["target"], of.title if of else "pixels", of, value, on)


def answer(encoders: list[PretrainRecord], tokenizers: list[TokenizerRecord] | None = None) -> Answer:
    return make_answer(Records(tokenizers or [], encoders, []))


def test_the_best_probe_with_its_interval_and_the_next_one_behind_it() -> None:
    found = answer([encoder("mae", 200, note=1), encoder("clustermim", 300, tokenizer("km-50"))])
    assert found.heading == "Predict the tokens of km-50"
    low, high = (100 * end for end in wilson(300, IMAGES))
    value = f"75.0 % (95 % interval {low:.1f} … {high:.1f})"
    assert found.facts[0] == f"Its encoder has the highest linear probe of 2 targets, {value}, on test."
    low, high = (100 * end for end in newcombe(0.75, wilson(300, IMAGES), 0.5, wilson(200, IMAGES)))
    gap = f"25.0 points behind (95 % interval {low:.1f} … {high:.1f})"
    assert found.facts[1] == f"It is told from all others: the next, mae, is {gap}."
    assert any("another seed moves" in fact for fact in found.facts)
    assert any(fact.startswith("The encoders differ in note too") for fact in found.facts)


def test_what_the_test_images_do_not_tell_apart_is_said() -> None:
    found = answer([encoder("mae", 295, mark=1), encoder("far", 100, mark=2), encoder("tokens", 300, tokenizer("km"))])
    assert "do not tell it from mae (73.8 %): take the cheapest of them" in found.facts[1]
    assert found.ranking is not None
    assert [(entry.title, entry.is_level) for entry in found.ranking.entries] == [
        ("tokens", False), ("mae", True), ("far", False)
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["random", "labels", "toy"])
def test_references_and_untrained_encoders_are_no_choice(kind: str) -> None:
    reference = encoder("oracle", 399, tokenizer("oracle", kind))
    found = answer([reference, encoder("mae", 250), encoder("floor", 150, epochs=0)])
    assert found.heading == "Predict pixels"
    assert "It is the only target that was measured" in found.facts[0]
    assert any(
        "An untrained encoder of its size has 37.5 %: pretraining is worth 25.0 points" in f for f in found.facts
    )
    assert found.ranking is not None
    assert [entry.role for entry in found.ranking.entries] == ["", "reference", "untrained"]
    only = answer([reference, encoder("floor", 150, epochs=0)])
    assert only.heading == "Which target to take is not known yet"
    assert "advise" in (only.command or "")


def test_nothing_is_recommended_that_is_not_told_from_no_training() -> None:
    found = answer([encoder("mae", 210), encoder("floor", 205, epochs=0)])
    assert found.heading == "No target is better yet than no training"
    assert found.facts[0].startswith("The best is mae.")
    assert any("That may be chance" in fact for fact in found.facts)
    # one of another size says nothing of it
    assert answer([encoder("mae", 210), encoder("floor", 205, epochs=0, model="tiny")]).heading == "Predict pixels"


def test_random_tokens_that_do_as_well_are_told() -> None:
    found = answer([encoder("mae", 300), encoder("on-random", 298, tokenizer("random", "random"))])
    assert found.heading == "Predict pixels"
    assert any("Nor do they tell it from on-random (74.5 %), whose tokens say nothing" in fact for fact in found.facts)
    found = answer([encoder("mae", 300), encoder("on-random", 198, tokenizer("random", "random"))])
    assert not any("on-random" in fact for fact in found.facts)


def test_seeds_are_one_target_with_their_mean() -> None:
    km = tokenizer("km")
    some = [encoder(f"run-{seed}", right, km, seed=seed, tokenizer="km") for seed, right in enumerate((300, 310, 305))]
    copy = encoder("again", 399, km, seed=0, tokenizer="km")
    ranking = rank_encoders([*some, copy, encoder("mae", 308)])
    assert ranking is not None
    assert [(entry.title, len(entry.values)) for entry in ranking.entries] == [("mae", 1), ("km", 3)]
    mean = MeanCI.of([75.0, 77.5, 76.25])
    (entry,) = [entry for entry in ranking.entries if len(entry.values) == 3]
    assert tuple(entry.value) == pytest.approx((mean.mean, *(mean.interval() or ())))
    others = [encoder(f"b-{seed}", 200 + seed, None, seed=seed, tokenizer=None) for seed in range(3)]
    welch = mean.minus(MeanCI.of([50.0, 50.25, 50.5]))
    found = answer([*some, *others])
    assert found.ranking is not None
    assert tuple(found.ranking.entries[1].behind or ()) == pytest.approx((welch.mean, *(welch.interval or ())))
    assert found.facts[0].startswith("Its 3 encoders, a seed each, have the highest mean linear probe of 2 targets")
    assert not any("another seed" in fact for fact in found.facts)


def test_only_what_was_measured_on_the_same_images_is_compared() -> None:
    found = answer([encoder("a", 200, mark=1), encoder("b", 210, mark=2), encoder("c", 390, on="easy", mark=3)])
    assert found.ranking is not None
    assert [entry.title for entry in found.ranking.entries] == ["b", "a"]


def test_before_any_accuracy_the_best_score_is_named() -> None:
    some = [
        tokenizer("a", transferability=(0.30, 0.28, 0.32), view_retrieval=(0.9, 0.8, 1.0)),
        tokenizer("b", transferability=(0.31, 0.29, 0.33)),
        tokenizer("oracle", "labels", transferability=(0.98, 0.98, 0.98)),
        tokenizer("far", transferability=(0.1, 0.09, 0.11)),
    ]
    found = answer([], some)
    assert found.heading == "Predict the tokens of b"
    assert found.facts[0] == (
        "Of 3 tokenizers it has the highest transferability, 0.310 (95 % interval 0.290 … 0.330), on test."
    )
    assert "do not tell it from a (0.300)" in found.facts[1]
    assert "the score that best predicted what training gives" in found.facts[2]
    assert found.command == "clustermim pretrain --data train --tokenizer b --out RUN"
    by_views = answer(
        [], [tokenizer("a", view_retrieval=(0.4, 0.3, 0.5)), tokenizer("b", view_retrieval=(0.2, 0.1, 0.3))]
    )
    assert "highest view_retrieval, 0.400" in by_views.facts[0]
    assert "of those that need no labels" in " ".join(by_views.facts)
    measured = answer([encoder("mae", 300)], some)  # what was measured counts more, and the score is told
    assert measured.heading == "Predict pixels"
    assert any("Before any training transferability had chosen b" in fact for fact in measured.facts)


def test_without_anything_it_says_what_to_run(tmp_path: Path) -> None:
    fit(tmp_path / "km")
    found = make_answer(make_records(collect([str(tmp_path)])[0]))
    assert found.heading == "Which target to take is not known yet"
    assert shlex.split(found.command or "")[:3] == ["clustermim", "score", str(tmp_path / "km")]
    pretrained(tmp_path / "run", tmp_path / "km")
    found = make_answer(make_records(collect([str(tmp_path)])[0]))
    assert shlex.split(found.command or "") == [
        "clustermim", "probe", str(tmp_path / "run"), "--data", open_source(TEXTURES).spec, "--test-data", "TEST-IMAGES"
    ]  # fmt: skip


def test_from_run_folders_to_the_order_of_the_tables(tmp_path: Path) -> None:
    for name, k, accuracy in (("low", 4, 0.3), ("high", 6, 0.7)):
        score(fit(tmp_path / name, k))
        measured(tmp_path / f"p-{name}", pretrained(tmp_path / f"on-{name}", tmp_path / name), accuracy=accuracy)
    measured(tmp_path / "p-floor", pretrained(tmp_path / "floor", epochs=0), accuracy=0.9)
    pretrained(tmp_path / "unmeasured")
    records = make_records(collect([str(tmp_path)])[0])
    found = make_answer(records)
    ordered = best_first(records, found.ranking)
    assert [record.title for record in ordered.pretrained] == ["on-high", "on-low", "unmeasured", "floor"]
    values = [record.scores["transferability"].value for record in ordered.tokenizers]
    assert values == sorted(values, reverse=True)
    assert any("Encoders that were not measured: 1." in fact for fact in found.facts)


def test_what_advise_found_counts_as_scores(tmp_path: Path) -> None:
    for name, k in (("a", 4), ("b", 6)):
        fit(tmp_path / "advice" / name, k)
    parts = {"a": [0.2, 0.22, 0.21], "b": [0.4, 0.42, 0.41]}
    record = {"recommended": "b", "scores": {n: {"transferability": sum(p) / 3, "parts": p} for n, p in parts.items()}}
    (tmp_path / "advice" / "advice.json").write_text(json.dumps(record))
    records = make_records(collect([str(tmp_path)])[0])
    by_title = {record.title: record for record in records.tokenizers}
    expected = MeanCI.of(parts["b"])
    assert tuple(by_title["b"].scores["transferability"]) == pytest.approx(
        (expected.mean, *(expected.interval() or ()))
    )
    assert by_title["b"].used is None
    assert make_answer(records).heading == "Predict the tokens of b"
    (tmp_path / "advice" / "advice.json").write_text('{"recommended": "b", "scores": {"a": 3}}')
    runs, left_out = collect([str(tmp_path)])
    assert [run.folder.name for run in runs] == ["a", "b"]
    assert "advice.json" in left_out[0]
