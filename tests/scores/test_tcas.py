"""TCAS: the fast form against the definition, its symmetries and its refusals."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from clustermim import scores as metrics
from clustermim.errors import ConfigError, DataError

Table = NDArray[np.int64]

VARIANTS = [
    {"norm": norm, "diag": diag, "tau": 0.3, "empty": empty}
    for norm in ("plain", "softmax")
    for diag in ("C", "norm")
    for empty in ("drop", "zero", "uniform")
]


def tables(max_tokens: int = 7, max_classes: int = 6, high: int = 9) -> st.SearchStrategy[Table]:
    shapes = st.tuples(st.integers(1, max_tokens), st.integers(1, max_classes))
    counts = shapes.flatmap(lambda shape: arrays(np.int64, shape, elements=st.integers(0, high)))
    return counts.filter(lambda table: table.any())


def definition(table: Table, norm: str, diag: str, tau: float, empty: str) -> float:
    """TCAS with the l1 × l1 matrix C written out, one token at a time."""
    profiles = []
    for row in table.astype(float):
        if row.sum() > 0:
            share = row / row.sum()
            if norm == "softmax":
                share = np.exp(share / tau) / np.exp(share / tau).sum()
            profiles.append(share)
        elif empty != "drop":
            profiles.append(np.zeros_like(row) if empty == "zero" else np.full_like(row, 1 / len(row)))
    C = np.array([[p @ q for q in profiles] for p in profiles])
    inner = np.diag(C) if diag == "C" else np.sqrt(np.diag(C))
    off_diagonal = (C**2).sum() - (np.diag(C) ** 2).sum()
    return float(np.mean((1 - inner) ** 2) + off_diagonal / len(C) ** 2)


@given(tables(), st.sampled_from(VARIANTS))
def test_fast_form_is_the_definition(table: Table, variant: dict[str, Any]) -> None:
    assert metrics.tcas(table, **variant) == pytest.approx(definition(table, **variant), abs=1e-12)


@given(tables(), st.randoms(use_true_random=False))
def test_names_of_tokens_and_classes_do_not_matter(table: Table, random: Any) -> None:
    rows, columns = list(range(table.shape[0])), list(range(table.shape[1]))
    random.shuffle(rows)
    random.shuffle(columns)
    renamed = table[rows][:, columns]
    assert metrics.tcas(renamed) == pytest.approx(metrics.tcas(table), abs=1e-12)


@given(tables())
def test_counts_of_one_token_can_be_scaled(table: Table) -> None:
    scaled = table * np.arange(1, len(table) + 1)[:, None]
    assert metrics.tcas(scaled) == pytest.approx(metrics.tcas(table), abs=1e-12)


@given(tables())
def test_torch_and_numpy_agree(table: Table) -> None:
    for dtype in (torch.int32, torch.int64, torch.float32, torch.float64):
        assert metrics.tcas(torch.from_numpy(table).to(dtype)) == metrics.tcas(table)


def test_softmax_limits() -> None:
    table = np.array([[8, 1, 1], [2, 6, 2], [0, 3, 9]])
    flat = metrics.tcas(np.ones((3, 3)))
    with pytest.warns(UserWarning, match="nearly the same value"):
        assert metrics.tcas(table, norm="softmax", tau=1e9) == pytest.approx(flat, abs=1e-6)
    # Each arg-max is another class, so sharp profiles are perfect; no overflow on the way.
    assert metrics.tcas(table, norm="softmax", tau=1e-5) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("patches", [1, 2, 5, 10, 30, 100, 1000])
def test_few_patches_a_token_look_pure(patches: int) -> None:
    """An information-free codebook, 100 classes: the numbers of docs/theory.md#few-patches-a-token."""
    expected = {1: 0.010, 2: 0.250, 5: 0.629, 10: 0.794, 30: 0.916, 100: 0.961, 1000: 0.978}[patches]
    table = np.random.default_rng(patches).multinomial(patches, np.full(100, 0.01), size=4000)
    assert metrics.tcas(table) == pytest.approx(expected, abs=0.004)
    purity = np.mean(np.sum((table / patches) ** 2, axis=1))
    assert purity == pytest.approx(0.01 + 0.99 / patches, abs=0.002)


GOOD = [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: metrics.tcas([[1, -1], [2, 2]]), DataError, "negative"),
        (lambda: metrics.tcas([[1, float("nan")]]), DataError, "NaN"),
        (lambda: metrics.tcas([[1, float("inf")]]), DataError, "infinity"),
        (lambda: metrics.tcas([[0, 0]]), DataError, "all zeros"),
        (lambda: metrics.tcas([1, 2]), DataError, "2 non-empty dimensions"),
        (lambda: metrics.tcas(np.zeros((0, 3))), DataError, "non-empty"),
        (lambda: metrics.tcas([[1, 2], [3]]), DataError, "ragged"),
        (lambda: metrics.tcas([["a"]]), DataError, "numbers"),
        (lambda: metrics.tcas(GOOD, norm="l2"), ConfigError, "norm is one of plain, softmax"),
        (lambda: metrics.tcas(GOOD, diag="c"), ConfigError, "diag"),
        (lambda: metrics.tcas(GOOD, empty="keep"), ConfigError, "empty"),
        (lambda: metrics.tcas(GOOD, tau=0.0), ConfigError, "tau"),
        (lambda: metrics.tcas(GOOD, tau=float("nan")), ConfigError, "tau"),
    ],
)
def test_refusals(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
