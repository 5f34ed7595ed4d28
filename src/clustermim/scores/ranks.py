"""Known scores of features without labels, of bags of tokens: how many directions they fill, and how evenly.

The features of an image are the square roots of its tokens' shares: a vector of length 1, and the product of two says
how much two images have in common. Scores see them along their principal axes, which many tokens do not make larger.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy  # which imports its parts when they are used
from numpy.typing import NDArray

from clustermim.count_tables import Floats, Ints
from clustermim.errors import DataError
from clustermim.scores.base import check_memory
from clustermim.scores.codebook import entropy
from clustermim.scores.collect import AXIS, Tokens, renumber

TINY = 1e-12  # of the largest eigenvalue: smaller ones are rounding
RANKS = slice(3, 100)  # the eigenvalues that α-ReQ is fitted to
WITHIN = 1e-4  # δ of LiDAR
PLACES = 80  # bytes for each patch, where its neighbours are counted


def features(ids: NDArray[Any], vocab_size: int) -> Any:
    """Square roots of the shares of tokens in each image, a sparse (B, l) of those that occur, of ids (B, N)."""
    places, size = renumber(ids, np.bincount(ids.ravel(), minlength=vocab_size))
    check_memory(AXIS * len(ids) * min(len(ids), size), f"products of {len(ids):,} bags of {size:,} tokens")
    image = np.repeat(np.arange(len(ids)), ids.shape[1])
    cells = (np.full(ids.size, 1 / ids.shape[1]), (image, places.ravel()))
    return scipy.sparse.coo_array(cells, shape=(len(ids), size)).tocsr().sqrt()  # which adds up equal cells


def principal(vectors: Any) -> Floats:
    """The same vectors (n, d), or a sparse array of them, along their principal axes: (n, rank).

    Products of vectors stay. Columns are orthogonal to each other, the longest first.

    >>> principal(np.array([[0.0, 3.0], [0.0, -4.0]])).round(9).tolist() in ([[[3.0], [-4.0]], [[-3.0], [4.0]]])
    True
    """
    wide = vectors.shape[1] > vectors.shape[0]
    gram = vectors @ vectors.T if wide else vectors.T @ vectors
    values, axes = np.linalg.eigh(gram if isinstance(gram, np.ndarray) else gram.toarray())
    kept = np.flatnonzero(values > TINY * values[-1])[::-1]
    found: Floats = axes[:, kept] * np.sqrt(values[kept]) if wide else vectors @ axes[:, kept]
    return found


def energies(axes: Floats) -> Floats:
    """Squared lengths of the columns of `principal`: the eigenvalues, largest first."""
    found: Floats = np.einsum("ij,ij->j", axes, axes)
    return found


def plain(tokens: Tokens) -> Floats:
    """Features of the sampled images along their principal axes, (B, rank)."""
    if not len(tokens.sample[0]):
        raise DataError(f"no image of {tokens.source.spec} can be read")
    return principal(features(tokens.sample[0].numpy(), tokens.vocab_size))


def centred(tokens: Tokens) -> Floats:
    """`plain` without their mean, along the principal axes of what is left."""
    return centre(tokens.cached(plain))


def centre(vectors: Floats) -> Floats:
    """Vectors (n, d) without their mean, along the principal axes of what is left, (n, rank)."""
    moved = vectors - vectors.mean(0)
    if np.abs(moved).max() < np.sqrt(TINY):
        raise DataError("all images have the same tokens, or there is one only")
    return principal(moved)


def rankme(axes: Floats) -> float:
    """RankMe (Garrido et al. 2023): exp(−Σ p ln p), p the shares of the singular values of the features.

    axes: `principal` of features that are not centred. Without the 10⁻⁷ that the paper adds to each p.

    >>> round(rankme(np.eye(4)), 12)
    4.0
    """
    return float(np.exp(entropy(np.sqrt(energies(axes)))))


def stable_rank(axes: Floats) -> float:
    """Σσ²/σ₁² of singular values, ‖F‖_F²/‖F‖₂² (Tsitsulin et al. 2023), of features that are not centred.

    Of centred ones it is NESum, Σλ/λ₁ of the eigenvalues of their covariance (He & Ozay 2022).
    """
    found = energies(axes)
    return float(found.sum() / found[0])


def alpha_req(axes: Floats) -> float:
    """α-ReQ (Agrawal et al. 2022): α of λ_r ∝ r^(−α), eigenvalues of the covariance. axes: of centred features.

    As in the authors' code: least squares of ln λ_r on ln r over ranks 4 to 100, weighted by 1/r.
    """
    values = energies(axes)[RANKS]
    if len(values) < 2:
        raise DataError(f"α-ReQ needs {RANKS.start + 2} directions at least, not {axes.shape[1]}")
    ranks = np.arange(len(values)) + RANKS.start + 1
    return -float(np.polyfit(np.log(ranks), np.log(values), 1, w=ranks**-0.5)[0])


def self_cluster(axes: Floats, dimension: int) -> float:
    """SelfCluster (Tsitsulin et al. 2023): (d‖FFᵀ‖_F² − n(d+n−1))/((d−1)(n−1)n) of n unit vectors in d dimensions.

    1 where all are the same, 0 on average of random directions. The square is missing in print, and meant.
    """
    n, d = len(axes), dimension
    if n < 2 or d < 2:
        raise DataError("SelfCluster needs two images and two tokens at least")
    return float((d * np.sum(energies(axes) ** 2) - n * (d + n - 1)) / ((d - 1) * (n - 1) * n))


def lidar(views: Floats) -> float:
    """LiDAR (Thilak et al. 2023): exp(−Σ p ln p), p the shares of the eigenvalues of Σ_w^(−½) Σ_b Σ_w^(−½).

    views: features (n, q, d) of q views of n images. Σ_b is the covariance of their means, Σ_w that around them,
    plus δ = 10⁻⁴ on its diagonal. Without the 10⁻⁷ that the paper adds to each p.
    """
    means = views.mean(1)
    within, between = (views - means[:, None]).reshape(-1, views.shape[2]), means - means.mean(0)
    if np.abs(between).max() < np.sqrt(TINY):
        raise DataError("views of all images have the same tokens on average, or there is one image only")
    root = np.linalg.cholesky(within.T @ within / len(within) + WITHIN * np.eye(views.shape[2]))
    white: Floats = scipy.linalg.solve_triangular(root, between.T, lower=True)
    return float(np.exp(entropy(energies(principal(white.T)))))


def lidar_of(tokens: Tokens) -> float:
    """LiDAR of bags of random views of some sampled images."""
    views, images, patches = tokens.many_views.shape
    ids = tokens.many_views.transpose(0, 1).reshape(-1, patches).numpy()
    if not images:
        raise DataError(f"no image of {tokens.source.spec} can be read")
    return lidar(principal(features(ids, tokens.vocab_size)).reshape(images, views, -1))


def neighbour_mi(ids: Ints, grid: tuple[int, int]) -> float:
    """Mutual information of the tokens of patches side by side or one above the other, as a share of their entropy.

    ids: (B, N). What the same tokens in random pairs seem to say is subtracted: (I − I_random)/H. It is too much where
    most tokens occur once.
    """
    check_memory(PLACES * ids.size, f"pairs of {ids.size:,} tokens")
    rows = ids.astype(np.int64).reshape(-1, *grid)
    first = np.concatenate([rows[:, :, :-1].ravel(), rows[:, :-1].ravel()])
    second = np.concatenate([rows[:, :, 1:].ravel(), rows[:, 1:].ravel()])
    if not len(first):
        raise DataError("images of one patch have no neighbours")
    alone = _entropy(first) + _entropy(second)
    if not alone:
        raise DataError("one token only says nothing of its neighbours")
    random = np.random.default_rng(0).permutation(second)
    cells = first * (ids.max() + 1)
    return 2 * (_entropy(cells + random) - _entropy(cells + second)) / alone


def _entropy(values: Ints) -> float:
    return entropy(np.unique(values, return_counts=True)[1].astype(np.float64))
