"""Random mask graphs for the property tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from clustermim import theory


@dataclass(frozen=True)
class Graph:
    M: NDArray[np.float64]  # sums to 1; some views and targets may have no mass
    tok: NDArray[np.int64]
    y1: NDArray[np.int64]
    rng: np.random.Generator


def augmentation(M: ArrayLike, tok: ArrayLike) -> NDArray[np.float64]:
    """A = J diag(1/p) Jᵀ, (N1, N1): probability that two views have the same token (the paper's section 2.1)."""
    joint = theory.token_joint(M, tok)
    dense = joint if isinstance(joint, np.ndarray) else joint.toarray()
    mass = dense.sum(axis=0)
    return (dense * np.divide(1, mass, out=np.zeros_like(mass), where=mass > 0)) @ dense.T


@st.composite
def graphs(draw: st.DrawFn, views: int = 8, targets: int = 8) -> Graph:
    """Graphs with many zeros or none, with even or wild weights, and a random tokenizer and labels."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n1, n2 = draw(st.integers(1, views)), draw(st.integers(1, targets))
    weights = rng.random((n1, n2)) ** draw(st.sampled_from([1, 4]))
    weights *= rng.random((n1, n2)) < draw(st.sampled_from([0.3, 0.7, 1.0]))
    weights[rng.integers(n1), rng.integers(n2)] += 0.1
    tok = np.unique(rng.integers(draw(st.integers(1, n2)), size=n2), return_inverse=True)[1]
    return Graph(weights / weights.sum(), tok, rng.integers(3, size=n1), rng)


@dataclass(frozen=True)
class TrainTest:
    M: NDArray[np.float64]
    y1: NDArray[np.int64]
    y2: NDArray[np.int64]


@st.composite
def admissible_graphs(draw: st.DrawFn, targets: int = 6) -> TrainTest:
    """Graphs in which no weight joins two classes, every class with mass: the setting of Theorem 1."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    classes = draw(st.integers(2, 3))
    n2 = draw(st.integers(classes, targets))
    y2 = rng.permutation(np.concatenate([np.arange(classes), rng.integers(classes, size=n2 - classes)]))
    y1 = np.concatenate([np.arange(classes), rng.integers(classes, size=draw(st.integers(0, 4)))])
    weights = (rng.random((len(y1), n2)) ** draw(st.sampled_from([0, 1, 4])) + 1e-3) * (y1[:, None] == y2)
    return TrainTest(weights / weights.sum(), y1, y2)
