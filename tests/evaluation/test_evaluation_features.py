"""Features: what is computed, what is kept, and what is refused."""

from __future__ import annotations

import doctest
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import clustermim.evaluation.labels
from clustermim.data import Source
from clustermim.data.arrays import ArraySource
from clustermim.errors import ConfigError, DataError, RunError
from clustermim.evaluation.features import Encode, Features, check_pair, extract
from clustermim.evaluation.labels import Pooling, accuracy_of, wilson


def embed(images: Tensor) -> Tensor:
    """Four tokens of two numbers: a class token and three patches."""
    means = images.mean(dim=(1, 2, 3))
    tokens = torch.stack([means, 10 * means, 20 * means, 30 * means], dim=1)
    return torch.stack([tokens, -tokens], dim=2)


def cached_features(
    folder: Path, weights: str, encode: Encode, source: Source, extra: dict[str, Any] | None = None
) -> dict[Pooling, Features]:
    return extract(encode, source, cache=folder, origin={"weights": weights, "extra": extra})


@pytest.fixture
def source(noise: Any) -> ArraySource:
    return ArraySource("mine", noise(11, 3, 4, 6), np.arange(11) % 3)


def test_examples() -> None:
    result = doctest.testmod(clustermim.evaluation.labels)
    assert result.attempted
    assert not result.failed


@pytest.mark.parametrize("batch_size", [1, 4, 11, 50])
def test_both_poolings_in_the_order_of_the_source(source: ArraySource, batch_size: int) -> None:
    calls = []
    features = extract(lambda images: calls.append(len(images)) or embed(images), source, batch_size)  # type: ignore[func-returns-value]
    assert sum(calls) == 11
    means = torch.from_numpy(source.images / 255).float().mean(dim=(1, 2, 3))
    torch.testing.assert_close(features["cls"].values, torch.stack([means, -means], dim=1))
    torch.testing.assert_close(features["avg"].values, torch.stack([20 * means, -20 * means], dim=1))
    for part in features.values():
        assert part.values.dtype == torch.float32
        assert part.labels.tolist() == [i % 3 for i in range(11)]
        assert part.class_names == ("0", "1", "2")


def test_features_can_be_learned_from(source: ArraySource) -> None:
    """Tensors of inference mode could not."""
    values = extract(embed, source)["avg"].values
    weight = torch.ones(2, requires_grad=True)
    (values @ weight).sum().backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None


def test_unreadable_images_are_left_out(tmp_path: Path, encode: Callable[..., bytes], noise: Any) -> None:
    from clustermim.data import open_source

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(3):
            (tmp_path / name / f"{number}.png").write_bytes(encode(noise(4, 4, 3, seed=number)))
    source = open_source(f"folder:{tmp_path}?on_bad_image=skip")
    (tmp_path / "a" / "1.png").write_bytes(b"no image")
    features = extract(embed, source)["cls"]
    assert features.labels.tolist() == [0, 0, 1, 1, 1]
    assert len(features.values) == 5
    for _ in range(2):  # told each time, since the files may be mended
        source.skipped.clear()
        assert len(cached_features(tmp_path / "kept", "weights", embed, source)["cls"].values) == 5
        assert len(source.skipped) == 1


def test_no_labels(noise: Any, tmp_path: Path) -> None:
    source = ArraySource("mine", noise(4, 1, 2, 2))
    with pytest.raises(DataError, match="mine has no labels"):
        extract(embed, source)
    with pytest.raises(DataError, match="mine has no labels"):
        cached_features(tmp_path, "w", embed, source)
    with pytest.raises(ConfigError, match="--batch-size 0"):
        extract(embed, ArraySource("mine", noise(4, 1, 2, 2), [0, 1, 0, 1]), batch_size=0)


def refuse(images: Tensor) -> Tensor:
    pytest.fail("was computed again")


def test_kept_and_read_again(source: ArraySource, tmp_path: Path) -> None:
    folder = tmp_path / "features"
    first = cached_features(folder, "weights", embed, source)
    again = cached_features(folder, "weights", refuse, source)
    for pooling in ("avg", "cls"):
        assert torch.equal(first[pooling].values, again[pooling].values)
        assert torch.equal(first[pooling].labels, again[pooling].labels)
        assert again[pooling].class_names == source.class_names
    (record,) = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    assert '"weights": "weights"' in record["key"]
    assert source.fingerprint in record["key"]
    assert len(list(folder.iterdir())) == 2  # and nothing half-written


def test_what_is_read_can_be_changed_and_the_file_cannot(source: ArraySource, tmp_path: Path) -> None:
    cached_features(tmp_path, "weights", embed, source)
    cached_features(tmp_path, "weights", refuse, source)["avg"].values.zero_()
    assert cached_features(tmp_path, "weights", refuse, source)["avg"].values.any()


def test_whatever_changes_the_numbers_changes_the_key(source: ArraySource, tmp_path: Path) -> None:
    other = ArraySource("mine", source.images[::-1].copy(), source.labels)
    cached_features(tmp_path, "w", embed, source, extra={"mean": [0.5], "std": [0.1]})
    cached_features(tmp_path, "w", refuse, source, extra={"std": [0.1], "mean": [0.5]})
    cached_features(tmp_path, "w", embed, source, extra={"mean": [0.4], "std": [0.1]})
    cached_features(tmp_path, "w", embed, source)
    cached_features(tmp_path, "v", embed, source)
    cached_features(tmp_path, "w", embed, other)
    assert len(list(tmp_path.glob("*.json"))) == 5


def flip(data: bytes) -> bytes:
    """One bit of a number or of a fingerprint is another."""
    place = data.rfind(b'"hash"') + 12 if data.startswith(b"{") else len(data) - 5
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


@pytest.mark.parametrize("which", ["*.json", "*.npy"])
@pytest.mark.parametrize(
    "damage", [lambda data: b"", lambda data: data[:-5], lambda data: b"[1]", lambda data: b"\x80\x04.", flip, None]
)
def test_damaged_files_are_computed_again(
    source: ArraySource, tmp_path: Path, which: str, damage: Callable[[bytes], bytes] | None
) -> None:
    first = cached_features(tmp_path, "weights", embed, source)["avg"]
    whole = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    (path,) = tmp_path.glob(which)
    if damage:
        path.write_bytes(damage(path.read_bytes()))
    else:
        path.unlink()
    calls = []
    again = cached_features(tmp_path, "weights", lambda x: calls.append(1) or embed(x), source)  # type: ignore[func-returns-value]
    assert calls
    assert torch.equal(again["avg"].values, first.values)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == whole


def test_arrays_of_another_shape_are_computed_again(source: ArraySource, tmp_path: Path) -> None:
    cached_features(tmp_path, "weights", embed, source)
    (path,) = tmp_path.glob("*.npy")
    np.save(path, np.load(path)[:, :5])
    assert len(cached_features(tmp_path, "weights", embed, source)["avg"].values) == 11


def test_a_folder_that_cannot_be_written(
    source: ArraySource, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    features = cached_features(tmp_path / "file" / "features", "weights", embed, source)
    assert len(features["avg"].values) == 11
    assert "features are not kept" in capsys.readouterr().err


def test_interval_of_wilson() -> None:
    scipy_binomial = pytest.importorskip("scipy.stats").binomtest
    for correct, total in ((0, 7), (7, 7), (1, 2), (5012, 10_000)):
        expected = scipy_binomial(correct, total).proportion_ci(0.95, method="wilson")
        assert wilson(correct, total) == pytest.approx([expected.low, expected.high], abs=1e-12)
    result = accuracy_of(3, 4)
    assert (result.accuracy, result.test_images) == (0.75, 4)
    assert result.interval[0] < 0.75 < result.interval[1]


# pairs of train and test


def part(labels: list[int], *names: str, width: int = 2) -> Features:
    return Features(torch.ones(len(labels), width), torch.tensor(labels, dtype=torch.int64), names)


def test_classes_are_matched_by_name() -> None:
    _, test = check_pair(part([0, 1, 2], "ant", "bee", "cat"), part([0, 1, 0], "bee", "cat"))
    assert test.labels.tolist() == [1, 2, 1]
    assert test.class_names == ("ant", "bee", "cat")


def test_classes_without_names_are_matched_by_number() -> None:
    for train, test in (
        (part([0, 1, 2], "ant", "bee", "cat"), part([2, 0])),
        (part([0, 1, 2]), part([2, 0], "ant", "bee", "cat")),
        (part([0, 2]), part([2, 0])),
        (part([0, 1, 2], "0", "1", "2"), part([1, 0], "0", "2")),  # these are names of folders
    ):
        assert check_pair(train, test)[1].labels.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (part([0, 1], "ant", "bee"), part([0, 1, 2], "ant", "bee", "cat"), "1 classes that the train set lacks: cat;"),
        (part([0, 1], "ant", "bee", "cat"), part([2, 0], "ant", "bee", "cat"), "lacks: cat;"),
        (part([0, 1], "ant", "bee"), part([0, 1], "cat", "dog"), "lacks: cat, dog;"),
        (part([0, 1], "ant", "bee"), part([0, 2]), "lacks: 2;"),
        (part([0]), part(list(range(8))), "7 classes that the train set lacks: 1, 2, 3, 4, 5 and 2 more;"),
        (part([]), part([0]), "the train set holds no images"),
        (part([0]), part([]), "the test set holds no images"),
        (part([0]), part([0], width=3), "train features have 2 values and test features 3"),
        (Features(torch.ones(3, 2), torch.zeros(2, dtype=torch.int64)), part([0]), "3 features and 2 labels"),
    ],
)
def test_pairs_that_cannot_be_compared(train: Features, test: Features, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_pair(train, test)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_features_that_are_not_finite(value: float) -> None:
    broken = part([0, 1, 0])
    broken.values[1] = value
    with pytest.raises(RunError, match="2 of 6 feature values of the train set are NaN or infinite"):
        check_pair(broken, part([0]))
    with pytest.raises(RunError, match="of the test set"):
        check_pair(part([0, 1]), broken)
