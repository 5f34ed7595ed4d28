"""Train and test images of the same classes, and how many of the test images a classifier gets right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clustermim.data import Source, open_source, to_float
from clustermim.distributed import all_reduce_sum, rank, world_size
from clustermim.errors import DataError
from clustermim.evaluation.classes import class_numbers, need_labels
from clustermim.evaluation.features import accuracy_from_counts
from clustermim.progress import warn_skipped
from clustermim.runs import to_json

# Images (B, C, H, W), float32 in [0, 1], to scores of classes (B, K) by name of the classifier.
Predict = Callable[[Tensor], Mapping[str, Tensor]]


class TrainTest(NamedTuple):
    """Two labelled sources of one shape and the same classes."""

    train: Source
    test: Source
    numbers: Tensor  # (classes of test,) int64, the number of each in train
    classes: int  # of train

    @property
    def class_names(self) -> list[str]:
        """The names of train's classes, by number."""
        return list(self.train.class_names) or [str(number) for number in range(self.classes)]

    def describe(self) -> dict[str, Any]:
        """What a summary says of the data."""
        return {"data": self.train.describe(), "test_data": self.test.describe()}

    def warn_skipped(self) -> None:
        """Say which images could not be read."""
        for source in (self.train, self.test):
            warn_skipped(source.skipped)


def open_labelled(data: str, test_data: str) -> TrainTest:
    """Train and test sources, or an error when one cannot be tested with the other."""
    train, test = open_source(data), open_source(test_data)
    for source in (train, test):
        need_labels(source)
        if not len(source):
            raise DataError(f"{source.spec} holds no images")
    if train.shape != test.shape:
        here, there = ("×".join(map(str, source.shape)) for source in (train, test))
        raise DataError(f"the images of {train.spec} are {here} and those of {test.spec} {there}: add ?size= to one")
    labels, test_labels = torch.from_numpy(train.labels), torch.from_numpy(test.labels)
    numbers = class_numbers(labels, train.class_names, test_labels, test.class_names)
    if len(set(labels.tolist())) < 2:
        raise DataError(f"all images of {train.spec} are of one class: a classifier needs at least two")
    return TrainTest(train, test, numbers, max(len(train.class_names), int(labels.max()) + 1))


@torch.no_grad()
def measure(
    predict: Predict, names: Sequence[str], data: TrainTest, batch_size: int, device: torch.device
) -> dict[str, dict[str, Any]]:
    """Accuracy on test of each classifier that `predict` names, with its interval; the ranks share the images out.

    It draws no random numbers, so that a training it interrupts goes on as without it.
    """
    counts = torch.zeros(len(names) + 1, dtype=torch.int64)  # correct of each classifier, and images
    for batch in data.test.batches(batch_size, rank=rank(), world_size=world_size()):
        assert batch.labels is not None  # of a labelled source
        labels, scores = data.numbers[batch.labels], predict(to_float(batch.images.to(device)))
        for place, name in enumerate(names):
            counts[place] += int((scores[name].argmax(dim=1).cpu() == labels).sum())
        counts[-1] += len(labels)
    *correct, total = all_reduce_sum(counts.to(device)).tolist()
    if not total:
        raise DataError(f"{data.test.spec}: no image can be read; {'; '.join(list(data.test.skipped.values())[:1])}")
    return {name: accuracy_from_counts(count, total) for name, count in zip(names, correct, strict=True)}


def print_results(results: Mapping[str, Any], json: bool, what: str) -> None:
    """One line for each classifier, or one JSON object."""
    if json:
        print(to_json(results))
        return
    for name, result in results.items():
        low, high = result["interval"]
        print(f"{what}, {name}: {result['accuracy']:.2%} ({low:.2%} … {high:.2%} of {result['test_images']:,} images)")
