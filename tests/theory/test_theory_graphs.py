"""What must hold for every mask graph and every tokenizer."""

import numpy as np
import pytest
from graph_toys import Graph, augmentation, graphs
from hypothesis import given, settings
from scipy.sparse import coo_array, csr_array

from clustermim import theory
from clustermim.errors import ConfigError, DataError
from clustermim.scores import alpha

MANY = settings(max_examples=800)


def normalised(graph: Graph, tok: np.ndarray) -> np.ndarray:
    """Ā, written out."""
    A, d = augmentation(graph.M, tok), graph.M.sum(axis=1)
    root = np.sqrt(np.divide(1, d, out=np.zeros_like(d), where=d > 0))
    return root[:, None] * A * root


@MANY
@given(graphs())
def test_spectrum_and_degrees(graph: Graph) -> None:
    values = theory.spectrum(graph.M, graph.tok)
    A = augmentation(graph.M, graph.tok)
    assert values[0] == pytest.approx(1, abs=1e-12)
    assert (values >= 0).all()
    assert (np.diff(values) <= 0).all()
    np.testing.assert_allclose(A.sum(axis=1), graph.M.sum(axis=1), atol=1e-14)
    assert A.sum() == pytest.approx(1, abs=1e-12)
    written_out = np.linalg.eigvalsh(normalised(graph, graph.tok))[::-1]
    np.testing.assert_allclose(values, written_out[: len(values)], atol=1e-12)
    assert np.abs(written_out[len(values) :]).sum() < 1e-10
    assert theory.sum_sq(graph.M, graph.tok) == pytest.approx(values @ values, abs=1e-12)


@MANY
@given(graphs())
def test_coarsening_is_monotone(graph: Graph) -> None:
    merged = np.unique(graph.rng.integers(graph.tok.max() + 1, size=graph.tok.max() + 1), return_inverse=True)[1]
    coarse = np.unique(merged[graph.tok], return_inverse=True)[1]
    difference = normalised(graph, graph.tok) - normalised(graph, coarse)
    assert np.linalg.eigvalsh(difference)[0] >= -1e-12
    fine_values, coarse_values = theory.spectrum(graph.M, graph.tok), theory.spectrum(graph.M, coarse)
    count = min(len(fine_values), len(coarse_values))
    assert (coarse_values[:count] <= fine_values[:count] + 1e-12).all()
    assert theory.sum_sq(graph.M, coarse) <= theory.sum_sq(graph.M, graph.tok) + 1e-12
    assert theory.alpha_hard(graph.M, coarse, graph.y1) >= theory.alpha_hard(graph.M, graph.tok, graph.y1) - 1e-12


@MANY
@given(graphs())
def test_names_do_not_matter(graph: Graph) -> None:
    views, targets = (graph.rng.permutation(size) for size in graph.M.shape)
    renamed = graph.rng.permutation(graph.tok.max() + 1)[graph.tok]
    moved = graph.M[views][:, targets]
    args = moved, renamed[targets]
    assert theory.sum_sq(*args) == pytest.approx(theory.sum_sq(graph.M, graph.tok), abs=1e-12)
    np.testing.assert_allclose(theory.spectrum(*args), theory.spectrum(graph.M, graph.tok), atol=1e-12)
    expected = theory.alpha_hard(graph.M, graph.tok, graph.y1)
    assert theory.alpha_hard(*args, 7 - 2 * graph.y1[views]) == pytest.approx(expected, abs=1e-12)


@MANY
@given(graphs())
def test_alpha_and_class_level_bound(graph: Graph) -> None:
    """‖L‖² ≤ Σλ², and α from the class table is the α of the graph written out."""
    table = theory.class_mass(graph.M, graph.tok, graph.y1).T
    filled = table[np.ix_(table.sum(axis=1) > 0, table.sum(axis=0) > 0)]
    scaled = filled / np.sqrt(np.outer(filled.sum(axis=1), filled.sum(axis=0)))  # L = scaledᵀ scaled
    assert np.sum((scaled.T @ scaled) ** 2) <= theory.sum_sq(graph.M, graph.tok) + 1e-12
    value = theory.alpha_hard(graph.M, graph.tok, graph.y1)
    assert value == pytest.approx(alpha(table), abs=1e-12)
    differ = graph.y1[:, None] != graph.y1
    assert value == pytest.approx(augmentation(graph.M, graph.tok)[differ].sum(), abs=1e-12)


@settings(max_examples=200)
@given(graphs())
def test_sparse_is_dense(graph: Graph) -> None:
    for sparse in (csr_array(graph.M), coo_array(graph.M)):
        before = sparse.copy()
        assert theory.sum_sq(sparse, graph.tok) == pytest.approx(theory.sum_sq(graph.M, graph.tok), abs=1e-12)
        expected = theory.alpha_hard(graph.M, graph.tok, graph.y1)
        assert theory.alpha_hard(sparse, graph.tok, graph.y1) == pytest.approx(expected, abs=1e-12)
        np.testing.assert_allclose(theory.spectrum(sparse, graph.tok), theory.spectrum(graph.M, graph.tok), atol=1e-12)
        np.testing.assert_allclose(theory.token_joint(sparse, graph.tok).toarray().sum(), 1)
        assert (before != sparse).nnz == 0  # the user's matrix is not touched


def test_sparse_products_agree() -> None:
    rng = np.random.default_rng(0)
    M = rng.integers(0, 5, size=(60, 30)) * (rng.random((60, 30)) < 0.2)
    tok = np.arange(30) % 12
    assert theory.sum_sq(csr_array(M), tok) == pytest.approx(theory.sum_sq(M, tok), abs=1e-12)
    np.testing.assert_allclose(theory.token_matrix(csr_array(M), tok), theory.token_matrix(M, tok), atol=1e-12)
    assert theory.sum_sq(csr_array(M.T), np.arange(60)) == pytest.approx(theory.sum_sq(M.T, np.arange(60)), abs=1e-12)


@settings(max_examples=200)
@given(graphs())
def test_bound(graph: Graph) -> None:
    values = theory.spectrum(graph.M, graph.tok)
    alpha = theory.alpha_hard(graph.M, graph.tok, graph.y1)
    assert theory.bound(graph.M, graph.tok, graph.y1, 1.5) == pytest.approx(values @ values + 1.5 * alpha, abs=1e-12)


GOOD = [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.sum_sq([[1, -1], [2, 3]], [0, 1]), "negative"),
        (lambda: theory.sum_sq(csr_array([[1, -1], [2, 3]]), [0, 1]), "negative"),
        (lambda: theory.sum_sq(np.zeros((2, 2)), [0, 1]), "all zero"),
        (lambda: theory.sum_sq(csr_array((2, 2)), [0, 1]), "all zero"),
        (lambda: theory.sum_sq([[np.nan, 1.0]], [0, 1]), "NaN"),
        (lambda: theory.sum_sq([1, 2], [0, 1]), "views × targets"),
        (lambda: theory.sum_sq([[1, 2], [3]], [0, 1]), "ragged"),
        (lambda: theory.sum_sq(GOOD, [0, 2]), "gap: 1 is not used, but 2 is"),
        (lambda: theory.sum_sq(GOOD, [0, 1, 1]), "2 targets"),
        (lambda: theory.sum_sq(GOOD, [0, -1]), "negative"),
        (lambda: theory.sum_sq(GOOD, [0.5, 1]), "whole numbers"),
        (lambda: theory.alpha_hard(GOOD, [0, 1], [0]), "2 points"),
    ],
)  # fmt: skip
def test_bad_data(call: object, message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


def test_bad_options() -> None:
    with pytest.raises(ConfigError, match="ratio"):
        theory.bound(GOOD, [0, 1], [0, 1], ratio=-1)


def test_weights_at_any_scale() -> None:
    """Counts are divided by their total silently; other weights with a warning."""
    expected = theory.sum_sq(GOOD, [0, 1])
    assert theory.sum_sq(np.array(GOOD, dtype=float), [0, 1]) == expected
    assert theory.sum_sq(np.array(GOOD) / 10, [0, 1]) == pytest.approx(expected, abs=1e-14)
    with pytest.warns(UserWarning, match=r"sum to 2.5, not to 1"):
        assert theory.sum_sq(np.array(GOOD) / 4, [0, 1]) == pytest.approx(expected, abs=1e-14)
