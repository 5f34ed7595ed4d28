"""The debiased score: against its definition, and unbiased in simulation."""

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from clustermim import scores as metrics
from clustermim.errors import DataError

Table = NDArray[np.int64]


def tables(shape: tuple[int, ...], high: int = 5) -> st.SearchStrategy[Table]:
    return arrays(np.int64, shape, elements=st.integers(0, high))


def fourfold_by_definition(folds: Table) -> float:
    """Sums over tokens written out, with every product between different folds."""
    kept = (folds.sum(axis=2) > 0).all(axis=0)
    P = folds[:, kept] / folds[:, kept].sum(axis=2, keepdims=True)
    tokens = P.shape[1]
    diagonal, off = [], []
    for a, b, c, e in ((0, 1, 2, 3), (0, 2, 1, 3), (0, 3, 1, 2)):
        diagonal += [np.mean([(1 - P[a, i] @ P[b, i]) * (1 - P[c, i] @ P[e, i]) for i in range(tokens)])]
        for z, u in ((c, e), (e, c)):
            off += [
                sum((P[a, i] @ P[b, j]) * (P[z, i] @ P[u, j]) for i in range(tokens) for j in range(tokens) if i != j)
            ]
    return float(np.mean(diagonal) + np.mean(off) / tokens**2)


shapes = st.tuples(st.just(4), st.integers(1, 5), st.integers(1, 4))


@given(shapes.flatmap(tables).filter(lambda t: (t.sum(axis=2) > 0).all(axis=0).any()))
def test_fourfold_is_its_definition(folds: Table) -> None:
    value, kept = metrics.tcas_fourfold(folds)
    assert value == pytest.approx(fourfold_by_definition(folds), abs=1e-12)
    assert kept == np.flatnonzero((folds.sum(axis=2) > 0).all(axis=0)).tolist()


@given(tables((4, 4, 3), high=4).filter(lambda t: (t.sum(axis=2) > 0).all(axis=0).any()))
def test_fourfold_does_not_depend_on_the_order_of_folds(folds: Table) -> None:
    value = metrics.tcas_fourfold(folds)[0]
    for order in permutations(range(4)):
        assert metrics.tcas_fourfold(folds[list(order)])[0] == pytest.approx(value, abs=1e-12)


def test_equal_folds_give_the_plain_score() -> None:
    table = np.array([[8, 1, 1], [2, 6, 2], [0, 3, 9], [5, 5, 0]])
    value, kept = metrics.tcas_fourfold([table * scale for scale in (1, 2, 3, 7)])
    assert value == pytest.approx(metrics.tcas(table), abs=1e-12)
    assert kept == [0, 1, 2, 3]


def test_folds_remove_the_bias_of_few_patches() -> None:
    """Six patches a token, the truth known: the plug-in is far off, the correction is not."""
    rng = np.random.default_rng(0)
    profiles = rng.dirichlet(np.full(8, 0.5), size=30)
    truth = metrics.tcas(profiles)
    rounds = [[[rng.multinomial(6, p) for p in profiles] for _ in range(4)] for _ in range(200)]
    plain = np.mean([metrics.tcas(folds[0]) for folds in rounds])
    fourfold = np.mean([metrics.tcas_fourfold(folds)[0] for folds in rounds])
    assert abs(plain - truth) > 0.05
    assert fourfold == pytest.approx(truth, abs=0.004)


def test_folds_find_chance_where_patches_share_a_label() -> None:
    """Tokens cluster inside images; labels are independent of them. The four folds find chance."""
    rng = np.random.default_rng(1)
    images, patches, tokens, classes = 240, 12, 20, 4
    styles = rng.dirichlet(np.full(tokens, 0.3), size=6)
    fourfold = []
    for _ in range(60):
        ids = np.stack([rng.choice(tokens, patches, p=styles[rng.integers(6)]) for _ in range(images)])
        labels = rng.integers(classes, size=images)
        folds = np.zeros((4, tokens, classes), dtype=np.int64)
        np.add.at(folds, (np.arange(images)[:, None] % 4, ids, labels[:, None]), 1)
        fourfold.append(metrics.tcas_fourfold(folds)[0])
    chance = metrics.tcas(np.ones((tokens, classes)))
    assert np.mean(fourfold) == pytest.approx(chance, abs=0.004)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: metrics.tcas_fourfold(np.ones((3, 2, 2))), "4 tables"),
        (lambda: metrics.tcas_fourfold(np.eye(4)[:, :, None]), "all four folds"),
    ],
)
def test_refusals(call: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        call()
