"""Train and test images with labels: both have them, and one class has one number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clustermim.data import Source, open_source, to_float
from clustermim.distributed import all_reduce_sum, rank, world_size
from clustermim.errors import DataError
from clustermim.evaluation.accuracy import Accuracy, accuracy_from_counts
from clustermim.progress import warn_skipped
from clustermim.results import Result
from clustermim.runs import Run

_NAMED = 5  # classes an error message names

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

    def config(self, encoder: Any) -> dict[str, Any]:
        """What a configuration says of the data and of an encoder that was given as a folder."""
        run = {"run": str(encoder)} if isinstance(encoder, str | Path) else {}
        return {**run, "data": self.train.spec, "test_data": self.test.spec}

    def finish(self, opener: Callable[[], Run] | None, result: Result, weights: str | None) -> None:
        """Report images that could not be read, and give the run, if there is one, its summary."""
        for source in (self.train, self.test):
            warn_skipped(source.skipped)
        if opener:
            described = {"data": self.train.describe(), "test_data": self.test.describe(), "weights": weights}
            opener().summary = {"results": result.to_dict(), **described}


def open_pair(train: Any, test: Any) -> TrainTest:
    """Train and test sources, or an error when one cannot be tested with the other."""
    train, test = open_labelled(train), open_labelled(test)
    if train.shape != test.shape:
        here, there = ("×".join(map(str, source.shape)) for source in (train, test))
        raise DataError(f"the images of {train.spec} are {here} and those of {test.spec} {there}: add ?size= to one")
    labels, test_labels = torch.from_numpy(train.labels), torch.from_numpy(test.labels)
    numbers = class_numbers(labels, train.class_names, test_labels, test.class_names)
    if len(set(labels.tolist())) < 2:
        raise DataError(f"all images of {train.spec} are of one class: a classifier needs at least two")
    return TrainTest(train, test, numbers, max(len(train.class_names), int(labels.max()) + 1))


def open_labelled(data: Any) -> Source:
    """The source, which has images and a label of each."""
    source: Source = open_source(data)
    if source.labels is None:
        raise DataError(f"{source.spec} has no labels, and an evaluation needs them: use a folder with subfolders")
    if len(source.labels) != len(source):
        raise DataError(f"{source.spec} has {len(source)} images and {len(source.labels)} labels: one each is needed")
    if not len(source):
        raise DataError(f"{source.spec} holds no images")
    return source


def class_numbers(train: Tensor, train_names: Sequence[str], test: Tensor, test_names: Sequence[str]) -> Tensor:
    """The number in train of each class of test (classes of test,), from labels (n,) and (m,) and names of classes.

    By name, since a folder that lacks a class numbers the others anew; by number when one side has no names of
    its own. An error when test has images of a class of which train has none.
    """
    here, there = (
        tuple(names) or tuple(map(str, range(int(labels.max()) + 1)))
        for labels, names in ((train, train_names), (test, test_names))
    )
    nameless = any(names == tuple(map(str, range(len(names)))) for names in (here, there))
    if nameless and set(here).isdisjoint(there):
        here = there[: len(here)] + here[len(there) :]
    number = {name: label for label, name in enumerate(here)}
    known = set(train.tolist())
    used = sorted(set(test.tolist()))
    lacking = [there[label] for label in used if number.get(there[label]) not in known]
    if lacking:
        more = f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else ""
        raise DataError(
            f"the test set has images of {len(lacking)} classes that the train set lacks: "
            f"{', '.join(lacking[:_NAMED])}{more}; use train and test data of the same classes"
        )
    numbers = torch.zeros(len(there), dtype=torch.int64)
    for label in used:
        numbers[label] = number[there[label]]
    return numbers


@torch.no_grad()
def measure(
    predict: Predict, names: Sequence[str], data: TrainTest, batch_size: int, device: torch.device
) -> dict[str, Accuracy]:
    """Accuracy on test of each classifier that `predict` names; the ranks share the images out.

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
    check_any(data.test, total)
    return {name: accuracy_from_counts(count, total) for name, count in zip(names, correct, strict=True)}


def check_any(source: Source, read: int) -> None:
    """Refuse a source of which no image could be read."""
    if not read:
        raise DataError(f"{source.spec}: no image can be read; {'; '.join(list(source.skipped.values())[:1])}")
