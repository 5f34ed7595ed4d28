"""k-means in memory: what it promises about its parts, and peers as oracles for the whole."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from clustermim.errors import TokenizerError
from clustermim.tokenizers.lloyd import (
    MIN_REDUCED,
    Assignment,
    Part,
    Projection,
    Shuffled,
    cluster,
    cluster_means,
    distinct_pool,
    lloyd,
    plus_plus,
    relocate,
)
from clustermim.tokenizers.nearest import nearest_center


def nothing(**values: Any) -> None:
    """A log that keeps nothing."""


def blobs(count: int, k: int, width: int, spread: float = 0.05, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Shuffled vectors around k far centres, and which centre each belongs to."""
    generator = torch.Generator().manual_seed(seed)
    centers = torch.rand(k, width, generator=generator)
    ids = torch.randint(k, (count,), generator=generator)
    return centers[ids] + spread * torch.randn(count, width, generator=generator), ids


def inertia(vectors: torch.Tensor, centers: torch.Tensor) -> float:
    return float(nearest_center(vectors, centers)[1].double().mean())


def keys(count: int) -> torch.Tensor:
    return torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(5)).sort().values


def part(vectors: torch.Tensor) -> Part:
    return Part(vectors, keys(len(vectors)))


def shuffled(vectors: torch.Tensor) -> Shuffled:
    return Shuffled(vectors, keys(len(vectors)))


@pytest.mark.parametrize(("k", "width"), [(5, 3), (20, 48), (40, 200)])
def test_finds_blobs(k: int, width: int) -> None:
    vectors, truth = blobs(4000, k, width, spread=0.01)
    ids = cluster(vectors, k, seed=0, iterations=30, log=nothing).ids
    assert adjusted_rand_score(truth, ids) > 0.999


@pytest.mark.parametrize("width", [12, 300])
def test_inertia_matches_scikit_learn(width: int) -> None:
    generator = torch.Generator().manual_seed(3)
    basis = torch.randn(8, width, generator=generator)
    vectors = torch.randn(6000, 8, generator=generator) @ basis + 0.3 * torch.randn(6000, width, generator=generator)
    ours = inertia(vectors, cluster_means(vectors, cluster(vectors, 30, seed=0, iterations=50, log=nothing)))
    theirs = min(
        KMeans(30, n_init=1, random_state=seed).fit(vectors.numpy()).inertia_ / len(vectors) for seed in range(3)
    )
    assert ours <= 1.005 * theirs


def test_lloyd_never_raises_the_inertia() -> None:
    vectors, _ = blobs(3000, 20, 10, spread=0.3)
    log: list[float] = []
    generator = torch.Generator().manual_seed(0)
    lloyd(
        part(vectors), vectors[:20], generator, iterations=15, tolerance=0.0,
        log=lambda inertia, **rest: log.append(inertia),
    )  # fmt: skip
    assert len(log) > 3
    assert all(after <= before * (1 + 1e-6) for before, after in itertools.pairwise(log))


def test_empty_clusters_are_reseeded() -> None:
    vectors, _ = blobs(500, 4, 6)
    centers = torch.cat([vectors[:1], vectors[:1] + 100, vectors[:1] + 200])  # two that nothing is near to
    log: list[dict[str, Any]] = []
    found, _ = lloyd(
        part(vectors), centers, torch.Generator().manual_seed(0), iterations=20, tolerance=1e-6,
        log=lambda **values: log.append(values),
    )  # fmt: skip
    assert log[0]["reseeded"] == 2
    assert log[-1]["reseeded"] == 0
    assert (torch.bincount(nearest_center(vectors, found)[0], minlength=3) > 0).all()


def test_relocation_moves_an_idle_centre_to_a_crowded_cluster() -> None:
    vectors, _ = blobs(2000, 3, 5, spread=0.01)
    good = plus_plus(vectors, 3, torch.Generator().manual_seed(0))
    centers = torch.stack([good[0], good[0] + 1e-3, (good[1] + good[2]) / 2])  # two share a blob, one has two
    moved = relocate(part(vectors), centers, torch.Generator().manual_seed(0), 1)
    assert inertia(vectors, moved) < inertia(vectors, centers) / 2


def test_cost_and_saving_equal_their_definitions() -> None:
    vectors, _ = blobs(300, 5, 4, spread=0.2)
    centers = vectors[:5].clone()
    work = Assignment(vectors, centers, second=True)
    squares = (vectors[:, None] - centers).double().square().sum(2)
    assert work.cost.sum().item() == pytest.approx(squares.min(1).values.sum().item(), rel=1e-5)
    for j in range(5):
        rest = torch.cat([squares[:, :j], squares[:, j + 1 :]], dim=1).min(1).values.sum()
        assert work.saving[j].item() == pytest.approx((rest - squares.min(1).values.sum()).item(), rel=1e-3, abs=1e-4)


def test_projection_keeps_distances_of_short_vectors_and_most_variance_of_long_ones() -> None:
    short, _ = blobs(400, 5, 30)
    reduced = Projection(shuffled(short)).all(short)
    before, after = ((x[:, None] - x).square().sum(2) for x in (short, reduced))
    torch.testing.assert_close(after, before, atol=1e-4, rtol=1e-3)
    generator = torch.Generator().manual_seed(0)
    long = torch.randn(2000, 10, generator=generator) @ torch.randn(10, 500, generator=generator)
    projection = Projection(shuffled(long))
    assert projection.all(long).shape == (2000, MIN_REDUCED)
    assert projection.dropped == pytest.approx(0, abs=1e-6)


@given(st.integers(0, 2**31), st.integers(1, 20))
def test_plus_plus_chooses_distinct_rows(seed: int, k: int) -> None:
    pool = torch.arange(20.0)[:, None] * torch.ones(3)
    chosen = plus_plus(pool, k, torch.Generator().manual_seed(seed))
    assert len({tuple(row) for row in chosen.tolist()}) == k


def test_fewer_distinct_vectors_than_clusters() -> None:
    vectors = torch.tensor([[0.0], [1.0], [2.0]]).repeat(1000, 1)
    assert len(distinct_pool(shuffled(vectors), 3)) == 3
    with pytest.raises(TokenizerError, match="only 3 distinct patches among the 3000 used: choose --k 3 or less"):
        cluster(vectors, 4, seed=0, iterations=5, log=nothing)


def test_rare_distinct_vectors_are_found() -> None:
    vectors = torch.zeros(50_000, 2)
    vectors[49_000:49_004] = torch.eye(2).repeat(2, 1) * torch.tensor([[1.0], [1.0], [2.0], [2.0]])
    ids = cluster(vectors, 5, seed=0, iterations=10, log=nothing).ids
    assert sorted(torch.bincount(ids).tolist()) == [1, 1, 1, 1, 49_996]


def test_same_seed_same_clusters() -> None:
    vectors, _ = blobs(5000, 30, 100, spread=0.5)
    first, again, other = (cluster(vectors, 30, seed=s, iterations=10, log=nothing).ids for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_cluster_means_by_hand() -> None:
    vectors = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [5.0, 5.0]])
    work = Assignment(vectors, torch.tensor([[3.0, 3.0], [-9.0, -9.0], [4.9, 6.0]]))
    means = cluster_means(vectors, work)
    # 0 and 1 are nearest to the first; nothing is nearest to the second: it moves to the farthest vector
    assert means.tolist() == [[2.0, 3.0], [1.0, 2.0], [5.0, 5.5]]
