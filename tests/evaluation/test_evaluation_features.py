"""Features: what is computed, and what is refused."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import clustermim.evaluation.labels
from clustermim.data.arrays import ArraySource
from clustermim.errors import ConfigError, DataError, RunError
from clustermim.evaluation import knn
from clustermim.evaluation.features import extract
from clustermim.evaluation.labels import accuracy_of, open_pair, wilson


def embed(images: Tensor) -> Tensor:
    """Four tokens of two numbers: a class token and three patches."""
    means = images.mean(dim=(1, 2, 3))
    tokens = torch.stack([means, 10 * means, 20 * means, 30 * means], dim=1)
    return torch.stack([tokens, -tokens], dim=2)


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
    assert len(source.skipped) == 1


def test_no_images_at_a_time(noise: Any) -> None:
    with pytest.raises(ConfigError, match="--batch-size 0"):
        extract(embed, ArraySource("mine", noise(4, 1, 2, 2), [0, 1, 0, 1]), batch_size=0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_features_that_are_not_finite(source: ArraySource, value: float) -> None:
    with pytest.raises(RunError, match="44 of 44 feature values of mine are NaN or infinite"):
        knn(lambda images: embed(images) * value, source, source)


def test_interval_of_wilson() -> None:
    scipy_binomial = pytest.importorskip("scipy.stats").binomtest
    for correct, total in ((0, 7), (7, 7), (1, 2), (5012, 10_000)):
        expected = scipy_binomial(correct, total).proportion_ci(0.95, method="wilson")
        assert wilson(correct, total) == pytest.approx([expected.low, expected.high], abs=1e-12)
    result = accuracy_of(3, 4)
    assert (result.accuracy, result.test_images) == (0.75, 4)
    assert result.interval[0] < 0.75 < result.interval[1]


# pairs of train and test


def part(labels: list[int], *names: str, width: int = 2) -> ArraySource:
    return ArraySource("mine", np.zeros((len(labels), 3, width, width), np.uint8), np.array(labels), names)


def test_classes_are_matched_by_name() -> None:
    data = open_pair(part([0, 1, 2], "ant", "bee", "cat"), part([0, 1, 0], "bee", "cat"))
    assert data.numbers.tolist() == [1, 2]


def test_classes_without_names_are_matched_by_number() -> None:
    for train, test in (
        (part([0, 1, 2], "ant", "bee", "cat"), part([2, 0])),
        (part([0, 1, 2]), part([2, 0], "ant", "bee", "cat")),
        (part([0, 2]), part([2, 0])),
        (part([0, 1, 2], "0", "1", "2"), part([1, 0], "0", "2")),  # these are names of folders
    ):
        assert open_pair(train, test).numbers[torch.from_numpy(test.labels)].tolist() == [2, 0]


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (part([0, 1], "ant", "bee"), part([0, 1, 2], "ant", "bee", "cat"), "1 classes that the train set lacks: cat;"),
        (part([0, 1], "ant", "bee", "cat"), part([2, 0], "ant", "bee", "cat"), "lacks: cat;"),
        (part([0, 1], "ant", "bee"), part([0, 1], "cat", "dog"), "lacks: cat, dog;"),
        (part([0, 1], "ant", "bee"), part([0, 2]), "lacks: 2;"),
        (part([0, 1]), part(list(range(9))), "7 classes that the train set lacks: 2, 3, 4, 5, 6 and 2 more;"),
        (part([0, 1]), part([0], width=3), "are 3×2×2 and those of mine 3×3×3"),
        (part([1, 1]), part([1]), "all images of mine are of one class"),
    ],
)
def test_pairs_that_cannot_be_compared(train: ArraySource, test: ArraySource, message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_pair(train, test)
