"""Every metric against numbers that were computed in exact arithmetic, outside this package."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clustermim import scores as metrics

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())
TOLERANCE = 1e-12


def of_kind(kind: str) -> pytest.MarkDecorator:
    chosen = [vector for vector in VECTORS if vector["kind"] == kind]
    assert chosen
    return pytest.mark.parametrize("vector", chosen, ids=[vector["id"] for vector in chosen])


def close(value: float) -> Any:
    return pytest.approx(value, abs=TOLERANCE, rel=0)


def options(text: str) -> dict[str, Any]:
    """`"softmax,C,tau=0.1,empty=drop"` as keyword arguments of `tcas`."""
    norm, diag, *rest = text.split(",")
    named = dict(part.split("=") for part in rest)
    return {
        "norm": norm,
        "diag": diag,
        "tau": float(named.get("tau", 1)),
        "empty": named.get("empty", "drop"),
    }


@pytest.mark.parametrize("as_input", [np.array, torch.tensor, list], ids=["numpy", "torch", "list"])
@pytest.mark.filterwarnings("ignore:softmax at temperature")
@of_kind("tcas")
def test_tcas(vector: dict[str, Any], as_input: Any) -> None:
    table = as_input(vector["input"]["R"])
    for variant, expected in vector["expected"].items():
        assert metrics.tcas(table, **options(variant)) == close(expected), variant


@of_kind("tcas_fourfold")
def test_tcas_fourfold(vector: dict[str, Any]) -> None:
    value, kept = metrics.tcas_fourfold(torch.tensor(vector["input"]["R4"]))
    assert value == close(vector["expected"]["value"])
    assert kept == vector["expected"]["kept"]


@of_kind("class_level")
def test_alpha(vector: dict[str, Any]) -> None:
    assert metrics.alpha(vector["input"]["R"]) == close(vector["expected"]["alpha"])


@of_kind("cooccurrence")
def test_cooccurrence(vector: dict[str, Any]) -> None:
    tokens, size = torch.tensor(vector["input"]["tokens"]), vector["input"]["l"]
    table = metrics.pair_counts(tokens, size)
    assert table[0, 1] / table.sum().double() == close(vector["expected"]["Q_01"])
    assert metrics.cooccurrence_sum_sq(table) == close(vector["expected"]["sum_sq"])
    halves = [metrics.pair_counts(half, size) for half in (tokens[: len(tokens) // 2], tokens[len(tokens) // 2 :])]
    assert metrics.sum_sq_half(*halves) == close(vector["expected"]["sum_sq_half"])
