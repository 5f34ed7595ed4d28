"""Scores find their tokenizers, accuracies their encoders, and names tell runs apart."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_runs import fit, measured, pretrained, score

from clustermim.reports.collect import RunInfo, collect
from clustermim.reports.explorer import Explorer
from clustermim.reports.names import differences, first_distinct, natural
from clustermim.reports.page import make_page
from clustermim.reports.records import Records, as_float, make_records, unique


def records(*folders: Path) -> Records:
    return make_records(collect([str(folder) for folder in folders])[0])


def test_a_probe_belongs_to_the_run_it_names_wherever_that_was_moved(tmp_path: Path) -> None:
    for name in ("a", "b"):
        pretrained(tmp_path / "runs" / name)
    measured(tmp_path / "runs" / "p", tmp_path / "runs" / "a", accuracy=0.25)
    measured(tmp_path / "runs" / "q", "/somewhere/else/b", "knn", accuracy=0.75)
    first, second = records(tmp_path).pretrained
    assert {key: value.value for key, value in first.accuracies.items()} == {"probe avg": 25, "probe cls": 12.5}
    assert second.accuracies["knn avg"].value == 75
    assert second.accuracies["knn avg"].low == pytest.approx(70)
    (tmp_path / "runs").rename(tmp_path / "moved")
    first, second = records(tmp_path).pretrained
    assert first.accuracies["probe avg"].value == 25
    assert first.measured_on == "the test images"


def test_accuracies_on_different_images_stand_apart(tmp_path: Path) -> None:
    run = pretrained(tmp_path / "run")
    measured(tmp_path / "p", run, accuracy=0.25)
    other = measured(tmp_path / "q", run, "knn", accuracy=0.75)
    summary = json.loads((other / "summary.json").read_text())
    (other / "summary.json").write_text(json.dumps(summary | {"test_data": {"spec": "other images"}}))
    found = records(tmp_path)
    assert [(record.measured_on, set(record.accuracies)) for record in found.pretrained] == [
        ("the test images", {"probe avg", "probe cls"}), ("other images", {"knn avg", "knn cls"})
    ]  # fmt: skip
    assert [record.found.folder.name for record in unique(found.pretrained)] == ["run"]
    page = make_page(found, Explorer([], [], []), []).decode()
    assert "measured on" in page
    assert "Pretrained encoders: 1," in page
    assert "bold" not in page.split("<h2>Pretrained encoders</h2>")[1].split("</p>")[0]


def test_accuracies_of_different_labels_stand_apart_and_of_two_alike_one_is_shown(tmp_path: Path) -> None:
    run = pretrained(tmp_path / "run")
    for name, accuracy, labels in (("p", 0.5, "all"), ("q", 0.25, "few"), ("r", 0.75, "all")):
        folder = measured(tmp_path / name, run, accuracy=accuracy)
        summary = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps(summary | {"data": {"spec": labels}}))
    found = records(tmp_path)
    assert [(record.measured_on, record.accuracies["probe avg"].value) for record in found.pretrained] == [
        ("the test images, labels of all", 50), ("the test images, labels of few", 25)
    ]  # fmt: skip
    assert found.left_out == [f"{tmp_path / 'r'}: another measurement of the same kind is shown of run"]


def test_what_lies_inside_belongs_whatever_it_names(tmp_path: Path) -> None:
    run, other = pretrained(tmp_path / "run"), pretrained(tmp_path / "other")
    measured(run / "probe", other)
    by_title = {record.title: record for record in records(tmp_path).pretrained}
    assert by_title["run"].accuracies
    assert not by_title["other"].accuracies


def test_an_ambiguous_or_foreign_name_belongs_to_nobody(tmp_path: Path) -> None:
    for study in ("one", "two"):
        pretrained(tmp_path / study / "same")
    measured(tmp_path / "p", "/gone/same")
    measured(tmp_path / "q", "bad\0name")
    found = records(tmp_path).pretrained
    assert [record.title for record in found] == ["one/same", "two/same"]
    assert not any(record.accuracies for record in found)


def test_scores_and_targets(tmp_path: Path) -> None:
    tokenizer = fit(tmp_path / "km", 6)
    score(tokenizer)
    score(tokenizer, out=tmp_path / "on-fewer", data="textures:?images=20&grid=4x6&patch=4")
    pretrained(tmp_path / "run", tokenizer)
    pretrained(tmp_path / "gone", Path("/gone/vq"))
    pretrained(tmp_path / "norm", normalize_pixels=True)
    found = records(tmp_path)
    (km,) = found.tokenizers
    assert (km.title, km.kind, km.vocab_size) == ("km", "kmeans", 6)
    assert km.scored_on is not None
    assert "images=40" in km.scored_on  # the one on more images
    assert km.scores["debiased"].low is not None
    assert km.scores["transferability"].low is not None
    assert km.scores["alpha"].low is None
    by_title = {record.title: record for record in found.pretrained}
    assert by_title["run"].tokenizer is km
    assert {title: record.predicts for title, record in by_title.items()} == {
        "run": "km", "gone": "tokens of vq", "norm": "normalised pixels",
    }  # fmt: skip


def test_cells_of_a_study_get_readable_names(tmp_path: Path) -> None:
    tokenizer = fit(tmp_path / "fit-kmeans-0123456789ab", 6)
    for seed, key in enumerate(("aaaaaaaaaaaa", "bbbbbbbbbbbb")):
        pretrained(tmp_path / f"pretrain-{key}", tokenizer, seed=seed)
    pretrained(tmp_path / "mine")
    found = records(tmp_path)
    assert [record.title for record in found.tokenizers] == ["kmeans 6"]
    assert [record.title for record in found.pretrained] == ["kmeans 6, seed 0", "kmeans 6, seed 1", "mine"]
    assert [record.differs for record in found.pretrained] == ["seed 0", "seed 1", "seed 0"]


def test_equal_cells_are_told_apart_by_their_keys() -> None:
    runs = [RunInfo(Path(f"pretrain-{key * 12}"), "pretrain", {"target": "hog"}, {"results": {}}) for key in "ab"]
    assert [record.title for record in make_records(runs).pretrained] == ["hog, aaaaaaaaaaaa", "hog, bbbbbbbbbbbb"]


def test_what_is_no_accuracy_of_a_pretraining_is_left_out(tmp_path: Path) -> None:
    run = pretrained(tmp_path / "run")
    measured(tmp_path / "scratch", run, "finetune", from_scratch=True)
    measured(tmp_path / "null", run, "knn", accuracy=None)
    measured(tmp_path / "sgd", run, protocol="mae", accuracy=0.5)
    (record,) = records(tmp_path).pretrained
    assert set(record.accuracies) == {"knn cls", "mae avg", "mae cls"}


def test_differences_are_those_that_matter() -> None:
    configs: list[dict[str, Any]] = [{"k": 5, "seed": 0, "space": "pixel"}, {"k": 6, "seed": 0, "space": "pixel-norm"}]
    assert differences(configs) == ["space pixel", "space pixel-norm"]
    assert differences([{"seed": 0}]) == [""]
    assert differences([{"clip": None}, {"clip": 1.0}]) == ["", "clip 1.0"]


@given(st.lists(st.sampled_from(["a", "b", "c"]), min_size=0, max_size=6))
def test_titles_are_distinct_as_soon_as_they_can_be(words: list[str]) -> None:
    titles = first_distinct([(word, f"{word}-{place}") for place, word in enumerate(words)])
    assert len(set(titles)) == len(words)
    assert (titles == words) is (len(set(words)) == len(words))


def test_numbers_and_their_order() -> None:
    assert [as_float(value) for value in (1, 0.5, True, None, "1", math.nan, math.inf)] == [1, 0.5] + [None] * 5
    assert sorted(["k-500", "k-5", "a", "10", "9"], key=natural) == ["9", "10", "a", "k-5", "k-500"]
