"""The k-means tokenizer: its contract, its settings, and what it finds in images whose tokens are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.cluster import MiniBatchKMeans
from sklearn.metrics import normalized_mutual_info_score

from clustermim.data import Source, open_source, to_float
from clustermim.data.arrays import ArraySource
from clustermim.errors import ConfigError, DataError, TokenizerError
from clustermim.patches import patchify
from clustermim.tokenizers import KMeansTokenizer, load_tokenizer, tokenize
from clustermim.tokenizers.space import Space

SMALL = "textures:?images=200&grid=4"


def all_ids(tokenizer: KMeansTokenizer, source: Source) -> torch.Tensor:
    return torch.cat([ids for _, ids in tokenize(tokenizer, source)])


@pytest.fixture(scope="module")
def source() -> Source:
    return open_source(SMALL)


def test_finds_the_prototypes() -> None:
    source = open_source("textures:?images=300&noise=0&jitter=0")
    tokenizer = KMeansTokenizer(k=20, patch_size=8).fit(source)
    truth = source.patch_ids(range(300))  # type: ignore[attr-defined]
    assert normalized_mutual_info_score(truth.ravel(), all_ids(tokenizer, source).flatten()) > 0.99
    assert tokenizer.inertia_ == pytest.approx(0, abs=1e-4)
    prototypes = source.prototypes.reshape(20, -1) / 255  # type: ignore[attr-defined]
    centers = tokenizer.center_patches().reshape(20, -1).numpy()
    np.testing.assert_allclose(np.sort(centers, 0), np.sort(prototypes, 0), atol=1e-5)


def test_ids_are_the_nearest_centre_row_by_row(source: Source) -> None:
    tokenizer = KMeansTokenizer(k=12, patch_size=8).fit(source)
    images = to_float(source.read(range(10)).images)
    ids = tokenizer(images)
    assert ids.shape == (10, 16)
    assert ids.dtype == torch.int64
    patches = patchify(images, 8).double()
    distances = (patches[:, :, None] - tokenizer.centers_.double()).square().sum(3)  # (B, N, k)
    assert torch.equal(ids, distances.argmin(2))
    row, column = 2, 3  # the patch at this place of the grid is number row·4 + column
    alone = tokenizer(images[:, :, row * 8 : row * 8 + 8, column * 8 : column * 8 + 8])
    assert torch.equal(alone[:, 0], ids[:, row * 4 + column])


def test_same_ids_in_any_batch(source: Source) -> None:
    tokenizer = KMeansTokenizer(k=12, patch_size=4).fit(source)
    images = to_float(source.read(range(30)).images)
    assert torch.equal(tokenizer(images), torch.cat([tokenizer(image[None]) for image in images]))


@pytest.mark.parametrize("channels", [1, 5])
def test_any_channels_and_shape(channels: int, noise: Any) -> None:
    source = ArraySource("pixels", noise(40, channels, 12, 20))
    tokenizer = KMeansTokenizer(k=7, patch_size=4).fit(source)
    assert tokenizer(torch.rand(2, channels, 12, 20)).shape == (2, 15)
    assert tokenizer.center_patches().shape == (7, channels, 4, 4)


def test_normalised_space_ignores_brightness_and_contrast() -> None:
    patches, places, space = torch.rand(50, 48), torch.zeros(50, dtype=torch.long), Space(4, normalize=True)
    vectors = space.embed(patches, places)
    torch.testing.assert_close(vectors.mean(1), torch.zeros(50), atol=1e-5, rtol=0)
    torch.testing.assert_close(vectors.var(1), torch.ones(50), atol=1e-3, rtol=0)
    torch.testing.assert_close(space.embed(patches * 0.5 + 0.2, places), vectors, atol=1e-3, rtol=1e-3)
    assert space.embed(torch.full((2, 12), 0.3), places[:2]).abs().max() < 1e-3


@pytest.mark.parametrize(
    "settings",
    [{}, {"epochs": 2}, {"space": "pixel-norm"}, {"space": "pixel-white", "epochs": 2}],
)
def test_every_setting_fits_and_repeats(settings: dict[str, Any], source: Source) -> None:
    log: list[dict[str, Any]] = []
    first = KMeansTokenizer(k=10, patch_size=8, seed=3, **settings)
    assert first.fit(source, log=lambda **values: log.append(values)) is first
    again = KMeansTokenizer(k=10, patch_size=8, seed=3, **settings).fit(source)
    assert torch.equal(first.centers_, again.centers_)
    assert torch.isfinite(first.centers_).all()
    assert first.patches_ == 200 * 16
    assert log[-1] == {"patches": 3200, "inertia": first.inertia_, "final": True}
    labels = all_ids(first, source)
    assert len(labels.unique()) == 10


def test_inertia_is_that_of_the_patches_it_used(source: Source) -> None:
    tokenizer = KMeansTokenizer(k=10, patch_size=8).fit(source)
    patches = patchify(to_float(source.read(range(200)).images), 8).flatten(0, 1).double()
    distances = (patches[:, None] - tokenizer.centers_.double()).square().sum(2).min(1).values
    assert tokenizer.inertia_ == pytest.approx(distances.mean().item(), rel=1e-5)


def test_authors_procedure_is_partial_fit_in_the_order_of_the_source(noise: Any) -> None:
    pixels = np.sort(noise(300, 3, 8, 8), axis=0)  # sorted, as a folder is by class
    source = ArraySource("pixels", pixels)
    tokenizer = KMeansTokenizer(k=6, patch_size=4, epochs=2, seed=1).fit(source)
    model = MiniBatchKMeans(6, random_state=1, n_init="auto")
    patches = patchify(to_float(torch.from_numpy(pixels)), 4)
    for _ in range(2):
        model.partial_fit(patches[:256].flatten(0, 1).numpy())  # the last, incomplete batch is dropped
    np.testing.assert_allclose(tokenizer.centers_.numpy(), model.cluster_centers_, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 0}, "--k 0 is too small"),
        ({"patch_size": 0}, "--patch-size 0 is too small"),
        ({"max_patches": 3}, "--max-patches 3 is too small: 10 at least"),
        ({"epochs": -1}, "--epochs -1"),
        ({"iterations": 0}, "--iterations 0"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str, source: Source) -> None:
    tokenizer = KMeansTokenizer(**{"k": 10, "patch_size": 8, **settings})
    with pytest.raises(ConfigError, match=message):
        tokenizer.fit(source)


def test_a_patch_of_one_value_has_no_spread(noise: Any) -> None:
    grey = ArraySource("grey", noise(4, 1, 4, 4))
    with pytest.raises(ConfigError, match="has no spread to be normalised by"):
        KMeansTokenizer(k=2, patch_size=1, space="pixel-norm").fit(grey)
    assert KMeansTokenizer(k=2, patch_size=1, epochs=1, seed=2**40).fit(grey).k == 2  # any seed does


def test_too_few_distinct_patches() -> None:
    source = ArraySource("flat", np.zeros((9, 3, 8, 8), dtype=np.uint8))
    for epochs in (0, 1):
        with pytest.raises(TokenizerError, match=r"k = 2, but there are only 1 distinct patches among the 36"):
            KMeansTokenizer(k=2, patch_size=4, epochs=epochs).fit(source)


def test_images_that_do_not_divide(source: Source) -> None:
    with pytest.raises(DataError, match=r"32×32 pixels do not divide into patches of 5"):
        KMeansTokenizer(k=2, patch_size=5).fit(source)


def test_says_what_it_holds_in_memory(source: Source, capsys: pytest.CaptureFixture[str]) -> None:
    KMeansTokenizer(k=4, patch_size=8, max_patches=1000).fit(source)
    assert "1,000 of 3,200 patches of 192 numbers in memory, about 0 MB" in capsys.readouterr().err


def test_images_that_cannot_be_read_are_left_out(tmp_path: Path, noise: Any, encode: Any) -> None:
    for i in range(30):
        data = encode(noise(16, 16, 3, seed=i))
        (tmp_path / f"{i:02}.png").write_bytes(data[: len(data) // 2] if i % 3 == 0 else data)
    source = open_source(f"folder:{tmp_path}?on_bad_image=skip&size=16")
    tokenizer = KMeansTokenizer(k=5, patch_size=8).fit(source)
    assert (tokenizer.patches_, tokenizer.images_) == (80, 20)
    assert len(source.skipped) == 10


def test_one_fitted_in_a_single_process_is_loaded_by_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    KMeansTokenizer(4, 4, epochs=1).fit("textures:?images=16&grid=2&patch=4").save(tmp_path)
    monkeypatch.setattr("clustermim.tokenizers.kmeans.world_size", lambda: 2)
    assert load_tokenizer(tmp_path).vocab_size == 4
