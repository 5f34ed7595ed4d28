"""A small study of everything, to be run in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from clustermim.studies import expand, read_study
from clustermim.studies.cells import Cell

DATA = "textures:?images=96&grid=4&patch=4"
SHORT = {"data": DATA, "patch_size": 4, "epochs": 2, "batch_size": 32, "device": "cpu"}


def described(**changes: Any) -> dict[str, Any]:
    """A small study of everything."""
    study: dict[str, Any] = {
        "title": "small",
        "parts": {"recipe": dict(SHORT), "measure": {"data": DATA, "test_data": DATA}},
        "stages": [
            {
                "name": "tokens",
                "stage": "fit kmeans",
                "options": {"data": DATA, "patch_size": 4},
                "grid": {"k": [4, 8]},
            },
            {"name": "score", "stage": "score", "options": {"tokenizer": "@tokens", "data": DATA}},
            {
                "name": "mae",
                "stage": "pretrain",
                "use": "recipe",
                "options": {"target": "pixels"},
                "grid": {"seed": [0, 1]},
            },
            {
                "name": "clusters",
                "stage": "pretrain",
                "use": ["recipe"],
                "options": {"tokenizer": "@tokens"},
                "grid": {"seed": [0, 1]},
            },
            {
                "name": "knn",
                "stage": "knn",
                "use": "measure",
                "options": {"k": 3},
                "grid": {"run": ["@mae", "@clusters"]},
            },
        ],
        "table": {
            "rows": {"MAE": "mae", "few": {"clusters": {"k": 4}}, "more": {"clusters": {"k": 8}}},
            "columns": {
                "kNN": {"stage": "knn", "value": "avg.accuracy", "percent": True},
                "loss": {"value": "loss"},
            },
            "differences": [["more", "MAE"]],
            "paper": {"MAE": {"kNN": 12.3}},
        },
    }
    return study | changes


def stages(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"stages": list(entries)}


def write(folder: Path, study: Any) -> Path:
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(study, sort_keys=False))
    return path


def cells_of(folder: Path, study: Any) -> list[Cell]:
    return expand(read_study(write(folder, study)))
