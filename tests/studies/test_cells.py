"""Cells from grids: which there are, what they need, and the keys that name them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from toy_study import DATA, cells_of, described

from clustermim.studies import expand, read_study
from clustermim.studies.cells import replaced


def test_cells_are_the_points_of_grids_joined_on_equal_axes(tmp_path: Path) -> None:
    cells = cells_of(tmp_path, described())
    places = {
        name: [cell.axes for cell in cells if cell.name == name] for name in ("tokens", "score", "clusters", "knn")
    }
    assert places["tokens"] == [{"k": 4}, {"k": 8}]
    assert places["score"] == [{"k": 4}, {"k": 8}]
    assert len(places["clusters"]) == 4
    assert places["clusters"][1] == {"seed": 0, "k": 8}
    # knn's own option k is 3 in every cell; the axis k belongs to the tokenizers
    assert [place["run"] for place in places["knn"]] == ["mae"] * 2 + ["clusters"] * 4
    order = [cell.key for cell in cells]
    assert all(order.index(needed.key) < order.index(cell.key) for cell in cells for needed in cell.needs())


def test_seeds_of_a_tokenizer_and_of_the_pretraining_on_it_are_paired(tmp_path: Path) -> None:
    study = described()
    study["stages"][0]["grid"] = {"seed": [0, 1]}
    clusters = [cell for cell in cells_of(tmp_path, study) if cell.name == "clusters"]
    assert [(cell.options["seed"], cell.cells["tokens"].options["seed"]) for cell in clusters] == [
        (0, 0),
        (1, 1),
    ]


def test_a_key_depends_on_what_matters_only(tmp_path: Path) -> None:
    def keys(**options: Any) -> dict[str, str]:
        study = described()
        study["stages"][2]["options"] |= options
        return {cell.title(): cell.key for cell in cells_of(tmp_path, study)}

    plain = keys()
    assert len(set(plain.values())) == len(plain)
    assert keys(mask_ratio=0.75, clip=None, normalize_pixels=False) == plain  # the defaults, written out
    for change in ({"mask_ratio": 0.5}, {"normalize_pixels": True}, {"warmup_epochs": 0}):
        changed = keys(**change)
        assert {title for title in plain if plain[title] != changed[title]} == {
            "mae (seed 0)", "mae (seed 1)", "knn (run mae, seed 0)", "knn (run mae, seed 1)"
        }  # fmt: skip


def test_a_change_upstream_changes_all_that_follows(tmp_path: Path) -> None:
    study = described()
    before = {cell.title(): cell.key for cell in cells_of(tmp_path, study)}
    study["stages"][0]["options"]["iterations"] = 3
    after = {cell.title(): cell.key for cell in cells_of(tmp_path, study)}
    assert {title for title in before if before[title] == after[title]} == {
        "mae (seed 0)", "mae (seed 1)", "knn (run mae, seed 0)", "knn (run mae, seed 1)"
    }  # fmt: skip


def test_references_keep_what_follows_and_stand_in_lists(tmp_path: Path) -> None:
    stages = [
        {"name": "mae", "stage": "pretrain", "options": {"data": DATA, "target": "pixels"}, "grid": {"seed": [0, 1]}},
        {"name": "probe", "stage": "probe", "options": {"run": "@mae?layer=2", "data": DATA, "test_data": DATA}},
        {"name": "plain", "stage": "probe", "options": {"run": "@mae", "data": DATA, "test_data": DATA}},
    ]
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump({"stages": stages}))
    cells = {(cell.name, cell.axes["seed"]): cell for cell in expand(read_study(path))}
    first = cells["probe", 1]
    assert first.arguments(Path("out"))["run"] == f"{cells['mae', 1].folder(Path('out'))}?layer=2"
    assert first.needs() == [cells["mae", 1]]
    assert first.key not in (cells["plain", 1].key, cells["probe", 0].key)
    listed = replaced({"teacher": ["@mae?layer=1", "@mae"], "k": 3}, lambda name, rest: f"{name} at {rest}")
    assert listed == {"teacher": ["mae at ?layer=1", "mae at "], "k": 3}
