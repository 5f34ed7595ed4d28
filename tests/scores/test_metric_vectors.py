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


@pytest.mark.filterwarnings("ignore:softmax at temperature")
@of_kind("tcas_range")
def test_tcas_range(vector: dict[str, Any]) -> None:
    l1, l2 = vector["input"]["l1"], vector["input"]["l2"]
    tables = {"pure": np.eye(l1, l2), "uniform": np.ones((l1, l2))}
    for name, expected in vector["expected"].items():
        table, norm, diag = name.split(",")
        assert metrics.tcas(tables[table], norm=norm, diag=diag) == close(expected), name
        low, high = metrics.tcas_range(l1, l2, norm, diag)
        if table == "pure":
            assert low == close(expected), name
        assert low - TOLERANCE <= expected <= high + TOLERANCE, name


@of_kind("tcas_unbiased")
def test_tcas_unbiased(vector: dict[str, Any]) -> None:
    value, kept = metrics.tcas_unbiased(np.array(vector["input"]["R"]))
    assert value == close(vector["expected"]["value"])
    assert kept == vector["expected"]["kept"]


@of_kind("tcas_fourfold")
def test_tcas_fourfold(vector: dict[str, Any]) -> None:
    value, kept = metrics.tcas_fourfold(torch.tensor(vector["input"]["R4"]))
    assert value == close(vector["expected"]["value"])
    assert kept == vector["expected"]["kept"]


@of_kind("tcas_chance")
def test_tcas_chance(vector: dict[str, Any]) -> None:
    given = vector["input"]
    assert metrics.tcas_chance(given["prior"], given["l1"]) == close(vector["expected"]["value"])


@of_kind("tcas_capacity")
def test_tcas_capacity(vector: dict[str, Any]) -> None:
    given = vector["input"]
    assert metrics.tcas_capacity(given["usage"], given["prior_max"]) == close(vector["expected"]["value"])


@of_kind("class_level")
def test_class_level(vector: dict[str, Any]) -> None:
    alpha, label_sum_sq = metrics.class_level(np.array(vector["input"]["R"]))
    assert alpha == close(vector["expected"]["alpha"])
    assert metrics.alpha(vector["input"]["R"]) == alpha
    assert label_sum_sq == close(vector["expected"]["label_sum_sq"])


@of_kind("cooccurrence")
def test_cooccurrence(vector: dict[str, Any]) -> None:
    tokens, size = np.array(vector["input"]["tokens"]), vector["input"]["l"]
    table = metrics.cooccurrence(tokens, size)
    assert table.sum() == close(1)
    assert table[0, 1] == close(vector["expected"]["Q_01"])
    assert metrics.cooccurrence_sum_sq(table) == close(vector["expected"]["sum_sq"])
    assert metrics.sum_sq_half(tokens, size) == close(vector["expected"]["sum_sq_half"])
