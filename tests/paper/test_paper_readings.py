"""What each reading of TCAS can give at all: its range against the scores of tables, and exact numbers."""

import doctest
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from clustermim.scores import tcas
from paper import readings
from paper.readings import tcas_capacity, tcas_range

Table = NDArray[np.int64]
VECTORS = json.loads((Path(__file__).parents[1] / "scores" / "vectors.json").read_text())
TOLERANCE = 1e-12


def of_kind(kind: str) -> pytest.MarkDecorator:
    chosen = [vector for vector in VECTORS if vector["kind"] == kind]
    assert chosen
    return pytest.mark.parametrize("vector", chosen, ids=[vector["id"] for vector in chosen])


def close(value: float) -> Any:
    return pytest.approx(value, abs=TOLERANCE, rel=0)


def tables(max_tokens: int = 7, max_classes: int = 6, high: int = 9) -> st.SearchStrategy[Table]:
    shapes = st.tuples(st.integers(1, max_tokens), st.integers(1, max_classes))
    counts = shapes.flatmap(lambda shape: arrays(np.int64, shape, elements=st.integers(0, high)))
    return counts.filter(lambda table: table.any())


def test_examples() -> None:
    assert doctest.testmod(readings).failed == 0


@given(tables(), st.sampled_from(["plain", "softmax"]), st.sampled_from(["C", "norm"]), st.floats(0.05, 0.9))
def test_score_stays_within_its_range(table: Table, norm: Any, diag: Any, tau: float) -> None:
    used = int(np.count_nonzero(table.sum(axis=1)))
    low, high = tcas_range(used, table.shape[1], norm, diag, tau)
    assert low - 1e-12 <= tcas(table, norm=norm, diag=diag, tau=tau) <= high + 1e-12


@pytest.mark.parametrize("norm", ["plain", "softmax"])
@pytest.mark.parametrize("diag", ["C", "norm"])
@pytest.mark.parametrize(("l1", "l2"), [(1, 1), (1, 4), (3, 5), (5, 5), (40, 3)])
def test_upper_end_of_the_range_is_reached(norm: Any, diag: Any, l1: int, l2: int) -> None:
    same_class = np.zeros((l1, l2))
    same_class[:, 0] = 1
    reached = [tcas(table, norm=norm, diag=diag, tau=0.4) for table in (same_class, np.ones((l1, l2)))]
    assert max(reached) == pytest.approx(tcas_range(l1, l2, norm, diag, 0.4)[1], abs=1e-12)


def test_outer_ranges_of_the_readings() -> None:
    """The intervals of docs/theory.md#tcas hold for every codebook, so they hold ours."""
    outer = {
        ("softmax", "C", 100): (0.97954, 0.98021),
        ("softmax", "norm", 100): (0.80747, 0.81011),
        ("softmax", "C", 10): (0.7755, 0.8243),
        ("softmax", "norm", 10): (0.4284, 0.4818),
    }
    for (norm, diag, l2), (least, most) in outer.items():
        for l1 in (1, 2, 50, 10_000):
            low, high = tcas_range(l1, l2, norm, diag)  # type: ignore[arg-type]
            assert least - 1e-4 <= low <= high <= most + 1e-4


def test_more_tokens_than_classes_cannot_reach_zero() -> None:
    low, _ = tcas_range(12, 4)
    spread = np.tile(np.eye(4), (3, 1))
    gap = 1 / 4 - 1 / 12
    assert low == pytest.approx(gap / (1 + gap))
    assert low <= tcas(spread) == pytest.approx(gap)


@given(tables(max_tokens=5))
def test_capacity_is_a_lower_bound(table: Table) -> None:
    largest = table.sum(axis=0).max() / table.sum()
    assert tcas_capacity(table.sum(axis=1), float(largest)) <= tcas(table) + 1e-12


@pytest.mark.filterwarnings("ignore:softmax at temperature")
@of_kind("tcas_range")
def test_tcas_range(vector: dict[str, Any]) -> None:
    l1, l2 = vector["input"]["l1"], vector["input"]["l2"]
    tables = {"pure": np.eye(l1, l2), "uniform": np.ones((l1, l2))}
    for name, expected in vector["expected"].items():
        table, norm, diag = name.split(",")
        assert tcas(tables[table], norm=norm, diag=diag) == close(expected), name
        low, high = tcas_range(l1, l2, norm, diag)
        if table == "pure":
            assert low == close(expected), name
        assert low - TOLERANCE <= expected <= high + TOLERANCE, name


@of_kind("tcas_capacity")
def test_tcas_capacity(vector: dict[str, Any]) -> None:
    given = vector["input"]
    assert tcas_capacity(given["usage"], given["prior_max"]) == close(vector["expected"]["value"])
