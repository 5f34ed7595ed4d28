"""What is collected of tokens, against the known tokens of textures and brute force."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from clustermim.data import Source, open_source, to_float
from clustermim.data.textures import TextureSource
from clustermim.drawing import gallery
from clustermim.drawing.gallery import collect_tokens
from clustermim.errors import ConfigError, DataError
from clustermim.patches import patchify
from clustermim.tokenizers import KMeansTokenizer, LabelTokenizer, RandomTokenizer, Tokenizer
from clustermim.tokenizers.kmeans import SpaceName

CLEAN = "textures:?noise=0&jitter=0&images=120"
NOISY = "textures:?images=60&grid=4&patch=4"


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of a few images, so that there are many to merge."""
    monkeypatch.setattr(gallery, "BATCH_VALUES", 8000)


def all_ids(tokenizer: Tokenizer, source: Source) -> torch.Tensor:
    """The ids (images, patches) of a whole source."""
    batch = source.read(range(len(source)))
    ids: torch.Tensor = tokenizer(to_float(batch.images), batch.labels if tokenizer.needs_labels else None)
    return ids


@pytest.mark.usefixtures("small_batches")
def test_clean_textures_give_back_their_prototypes() -> None:
    source = open_source(CLEAN)
    assert isinstance(source, TextureSource)
    tokenizer = KMeansTokenizer(len(source.prototypes), 8).fit(source)
    found = collect_tokens(tokenizer, source, tokens=100, patches=5)
    ids, truth = all_ids(tokenizer, source).numpy(), source.patch_ids(range(len(source)))
    assert found.images == len(source)
    assert found.used == len(source.prototypes) == len(found.shown)
    assert np.array_equal(found.counts, np.bincount(ids.ravel(), minlength=tokenizer.vocab_size))
    assert (np.diff(found.counts[found.shown]) <= 0).all()
    for token, center, patches in zip(found.shown, found.centers, found.patches, strict=True):
        (prototype,) = np.unique(truth[ids == token])
        assert np.array_equal(center, source.prototypes[prototype])
        assert (patches == source.prototypes[prototype]).all()


@pytest.mark.usefixtures("small_batches")
def test_class_counts_equal_brute_force() -> None:
    source = open_source(NOISY)
    assert source.labels is not None
    tokenizer = KMeansTokenizer(7, 4).fit(source)
    found = collect_tokens(tokenizer, source)
    table = np.zeros((7, 4), dtype=np.int64)
    for tokens, label in zip(all_ids(tokenizer, source).tolist(), source.labels.tolist(), strict=True):
        for token in tokens:
            table[token, label] += 1
    assert found.class_counts is not None
    assert np.array_equal(found.class_counts, table)
    assert found.class_names == source.class_names


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("space", ["pixel", "pixel-norm"])
def test_patches_are_the_nearest_in_the_space_of_the_tokenizer(space: SpaceName) -> None:
    source = open_source(NOISY)
    tokenizer = KMeansTokenizer(9, 4, space=space).fit(source)
    found = collect_tokens(tokenizer, source, tokens=9, patches=6)
    assert found.nearest
    patches = patchify(source.read(range(len(source))).images, 4).flatten(0, 1)
    ids = all_ids(tokenizer, source).flatten()
    for row, token in enumerate(found.shown.tolist()):
        vectors = tokenizer.space_.embed(patches[ids == token], ids)
        distances = (vectors - tokenizer.centers_[token]).square().sum(1).sort().values[:6]
        kept = torch.from_numpy(found.patches[row, : found.filled[row]]).movedim(1, -1).flatten(1)
        mine = (tokenizer.space_.embed(kept, ids) - tokenizer.centers_[token]).square().sum(1)
        torch.testing.assert_close(mine, distances)


def test_without_centres_the_mean_and_a_random_sample() -> None:
    source = open_source(NOISY)
    tokenizer = RandomTokenizer(5, 4).fit(source)
    found = collect_tokens(tokenizer, source, patches=3)
    patches = patchify(source.read(range(len(source))).images, 4).flatten(0, 1)
    ids = all_ids(tokenizer, source).flatten()
    assert not found.has_centers
    assert not found.nearest
    assert found.samples.rebuilt is None
    for row, token in enumerate(found.shown.tolist()):
        own = patches[ids == token]
        mean = own.float().mean(0).reshape(4, 4, 3).permute(2, 0, 1)
        assert np.abs(found.centers[row] - mean.numpy()).max() <= 0.51
        kept = torch.from_numpy(found.patches[row]).movedim(1, -1).flatten(1)
        assert (kept[:, None] == own).all(-1).any(1).all()
    again = collect_tokens(tokenizer, source, patches=3)
    assert np.array_equal(found.patches, again.patches)
    assert not np.array_equal(found.patches, collect_tokens(tokenizer, source, patches=3, seed=1).patches)


def test_patches_of_feature_tokens_are_the_nearest_by_their_features() -> None:
    source = open_source(NOISY)
    tokenizer = KMeansTokenizer(5, 4, "features", teacher="pixels:?patch=4&window=8").fit(source)
    found = collect_tokens(tokenizer, source, tokens=5, patches=3)
    assert found.has_centers
    assert found.nearest
    images = source.read(range(len(source))).images
    patches, ids = patchify(images, 4).flatten(0, 1), all_ids(tokenizer, source)
    features = tokenizer.space_(images.float() / 255)
    for row, token in enumerate(found.shown.tolist()):
        own = (ids == token).flatten()
        order = (features[own] - tokenizer.centers_[token]).square().sum(1).argsort(stable=True)[:3]
        kept = torch.from_numpy(found.patches[row, : found.filled[row]]).movedim(1, -1).flatten(1)
        assert torch.equal(kept, patches[own][order])
    assert np.array_equal(found.faces, found.patches[:, 0])  # the mean of such patches says little


def test_the_face_of_a_pixel_token_is_its_centre() -> None:
    source = open_source(NOISY)
    found = collect_tokens(KMeansTokenizer(5, 4).fit(source), source, patches=3)
    assert np.array_equal(found.faces, found.centers)


def test_a_token_with_few_patches_is_filled_as_far_as_it_goes(npz: Callable[..., str]) -> None:
    source = open_source(npz(2, 3, 4, 4))
    found = collect_tokens(KMeansTokenizer(8, 2).fit(source), source, patches=5)
    assert found.filled.tolist() == [1] * 8
    assert not found.patches[:, 1:].any()
    assert found.class_counts is None
    assert found.samples.labels is None


@pytest.mark.usefixtures("small_batches")
def test_max_images_is_a_seeded_subset() -> None:
    source = open_source(NOISY)
    tokenizer = KMeansTokenizer(7, 4).fit(source)
    found = collect_tokens(tokenizer, source, max_images=25, seed=3)
    chosen = np.random.default_rng(3).permutation(len(source))[:25]
    ids = all_ids(tokenizer, source)[chosen]
    assert found.images == 25
    assert np.array_equal(found.counts, torch.bincount(ids.flatten(), minlength=7).numpy())


def test_sample_images_show_many_classes_and_are_rebuilt_from_centres() -> None:
    source = open_source(CLEAN)
    assert isinstance(source, TextureSource)
    tokenizer = KMeansTokenizer(len(source.prototypes), 8).fit(source)
    samples = collect_tokens(tokenizer, source, images=4).samples
    assert samples.labels is not None
    assert sorted(samples.labels.tolist()) == [0, 1, 2, 3]
    assert samples.ids.shape == (4, 8, 8)
    assert np.array_equal(samples.ids, tokenizer(to_float(torch.from_numpy(samples.images))).reshape(4, 8, 8))
    assert samples.rebuilt is not None
    assert np.array_equal(samples.rebuilt, samples.images)


def test_no_more_patches_are_held_than_can_be_shown() -> None:
    best = gallery.BestPatches(keep=2, width=1)
    for start in range(0, 12, 4):
        values = torch.arange(start, start + 4)
        best.add(values % 3, 20.0 - values, values[:, None].to(torch.uint8))
    assert best.patches.flatten().tolist() == [9, 6, 10, 7, 11, 8]
    assert best.take(torch.tensor([2, 0])).flatten().tolist() == [11, 8, 9, 6]


@pytest.mark.parametrize("option", ["tokens", "patches", "max_images"])
def test_nothing_to_show_is_refused(option: str) -> None:
    source = open_source(NOISY)
    with pytest.raises(ConfigError, match=f"--{option.replace('_', '-')} 0 is too small"):
        collect_tokens(RandomTokenizer(5, 4).fit(source), source, **{option: 0})


def test_an_oracle_needs_labels(npz: Callable[..., str]) -> None:
    tokenizer = LabelTokenizer(4).fit(open_source(NOISY))
    with pytest.raises(DataError, match="has no labels, and a labels tokenizer needs them"):
        collect_tokens(tokenizer, open_source(npz(4, 3, 8, 8)))
