from __future__ import annotations

from itertools import combinations
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustermim.data import open_source
from clustermim.data.textures import TextureSource
from clustermim.errors import DataError


def textures(text: str) -> TextureSource:
    return cast(TextureSource, open_source(text))


def test_incidence_in_the_order_of_the_toy_model() -> None:
    source = textures("textures:?classes=3&points=5&shared=2")
    assert source.incidence.tolist() == [
        [1, 0, 0],
        [0, 1, 0],
        [0, 0, 1],
        [1, 1, 0],
        [1, 1, 0],
        [1, 0, 1],
        [1, 0, 1],
        [0, 1, 1],
        [0, 1, 1],
    ]


@settings(max_examples=15, deadline=None)
@given(classes=st.integers(2, 5), shared=st.integers(0, 2), extra=st.integers(1, 3), seed=st.integers(0, 9))
def test_every_pair_shares_as_many(classes: int, shared: int, extra: int, seed: int) -> None:
    points = (classes - 1) * shared + extra
    source = textures(f"textures:?classes={classes}&points={points}&shared={shared}&seed={seed}&images=9")
    assert len(source.prototypes) == classes * points - shared * classes * (classes - 1) // 2
    assert (source.incidence.sum(axis=0) == points).all()
    assert source.incidence.sum(axis=1).max() <= 2
    for k, other in combinations(range(classes), 2):
        assert (source.incidence[:, k] * source.incidence[:, other]).sum() == shared


@pytest.mark.parametrize("options", ["", "&grid=4x6", "&patch=5&channels=1", "&channels=5&grid=1x2"])
def test_without_noise_every_patch_is_a_prototype(options: str) -> None:
    source = textures(f"textures:test?noise=0&jitter=0&images=12{options}")
    channels, patch = source.prototypes.shape[1:3]
    rows, columns = source.grid
    assert source.shape == (channels, rows * patch, columns * patch)
    ids = source.patch_ids([11, 4])
    images = source.read([11, 4]).images.numpy()
    assert ids.shape == (2, rows * columns)
    for image, patches in zip(images, ids, strict=True):
        for place, prototype in enumerate(patches):
            y, x = divmod(place, columns)
            found = image[:, y * patch : (y + 1) * patch, x * patch : (x + 1) * patch]
            assert np.array_equal(found, source.prototypes[prototype])


def test_patches_come_uniformly_from_the_class() -> None:
    source = textures("textures:?classes=3&points=5&shared=2&images=600&noise=0&jitter=0")
    ids = source.patch_ids(range(600))
    for k in range(3):
        counts = np.bincount(ids[source.labels == k].ravel(), minlength=len(source.prototypes))
        assert (counts[source.incidence[:, k] == 0] == 0).all()
        drawn = counts[source.incidence[:, k] == 1] / counts.sum()
        assert np.abs(drawn - 1 / 5).max() < 0.02  # 12,800 draws: a standard deviation is 0.0035


def test_image_depends_on_seed_split_and_index_only() -> None:
    source = textures("textures:?images=50")
    alone = source.read([17])
    among = source.read([3, 17, 40])
    assert alone.images[0].equal(among.images[1])
    assert np.array_equal(source.patch_ids([17])[0], source.patch_ids([3, 17])[1])
    assert textures("textures:?images=5000").read([17]).images.equal(alone.images)
    other = textures("textures:test?images=50")
    assert np.array_equal(other.prototypes, source.prototypes)
    assert not other.read([17]).images.equal(alone.images)
    again = textures("textures:?images=50&seed=1")
    assert not np.array_equal(again.prototypes, source.prototypes)


def test_labels_are_balanced() -> None:
    source = textures("textures:?classes=3&shared=1&images=10")
    assert source.labels.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    assert len(source.class_names) == 3


def test_noise_and_jitter_have_their_size() -> None:
    clean = textures("textures:?images=40&noise=0&jitter=0").read(range(40)).images.double() / 255
    noisy = textures("textures:?images=40&noise=0.03&jitter=0").read(range(40)).images.double() / 255
    assert (noisy - clean).std().item() == pytest.approx(0.03, rel=0.03)
    jittered = textures("textures:?images=40&noise=0&jitter=0.1").read(range(40)).images.double() / 255
    shifts = (jittered - clean).mean(dim=(1, 2, 3))
    assert shifts.abs().max() <= 0.1
    assert shifts.std().item() == pytest.approx(0.2 / 12**0.5, rel=0.3)
    assert (jittered - clean).std(dim=(1, 2, 3)).max() < 0.01


def test_prototypes_are_far_apart() -> None:
    for options in ("", "?channels=1", "?patch=4&points=16", "?classes=10&points=20"):
        source = textures(f"textures:{options}")
        flat = source.prototypes.reshape(len(source.prototypes), -1) / 255
        flat = flat - flat.mean(axis=1, keepdims=True)  # what jitter cannot change
        distances = np.sqrt(((flat[:, None] - flat[None]) ** 2).mean(axis=-1))
        assert distances[~np.eye(len(flat), dtype=bool)].min() >= 0.12


def test_k_means_finds_the_prototypes() -> None:
    from sklearn.cluster import KMeans
    from sklearn.metrics import adjusted_rand_score

    source = textures("textures:?classes=2&points=4&shared=1&grid=4&images=60")
    images = source.read(range(60)).images.double() / 255
    patches = images.unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 1, 4, 5).reshape(60 * 16, -1)
    found = KMeans(len(source.prototypes), n_init=10, random_state=0).fit_predict(patches.numpy())
    assert adjusted_rand_score(source.patch_ids(range(60)).ravel(), found) > 0.99


def test_fingerprint() -> None:
    texts = ["textures:", "textures:test", "textures:?noise=0.06", "textures:?jitter=0.2", "textures:?seed=1"]
    texts += ["textures:?grid=4", "textures:?images=10", "textures:?limit=10"]
    prints = [open_source(text).fingerprint for text in texts]
    assert len(set(prints)) == len(texts)
    assert prints == [open_source(text).fingerprint for text in texts]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("classes=4&points=5&shared=2", r"5 points a class are too few: 2 shared with each of 3 others need 6"),
        ("classes=0", "classes=0 must be a whole number of at least 2"),
        ("shared=-1", "shared=-1"),
        ("noise=loud", "noise=loud must be a number"),
        ("jitter=-0.1", "jitter=-0.1"),
        ("grid=4x", "grid=4x"),
        ("images=0", "images=0"),
        ("patch=1&channels=1", "only 1 of 20 prototypes .* larger patch"),
    ],
)
def test_refuses(options: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_source(f"textures:?{options}")


def test_no_image_beyond_the_last() -> None:
    with pytest.raises(IndexError):
        textures("textures:?images=10").read([10])
