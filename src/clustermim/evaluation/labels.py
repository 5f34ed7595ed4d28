"""Train and test images with labels, where one class has one number, and classifiers that learn from them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from clustermim.data import Source, open_source, to_float
from clustermim.distributed import all_reduce_sum, rank, world_size
from clustermim.errors import DataError
from clustermim.evaluation.accuracy import Accuracy, EvaluationResult, Pooling, accuracy_of
from clustermim.options import flattened
from clustermim.progress import warn_skipped
from clustermim.training import Out, RunOptions, Schedule, Settings, Task, TrainResult, fit, run_opener

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_NAMED = 5  # classes an error message names


class TrainTest(NamedTuple):
    """Two labelled sources of one shape and the same classes."""

    train: Source
    test: Source
    numbers: Tensor  # (classes of test,) int64, the number of each in train
    class_names: tuple[str, ...]  # of train


def open_pair(train: Any, test: Any) -> TrainTest:
    """Train and test sources, or an error when one cannot be tested with the other."""
    train, test = open_labelled(train), open_labelled(test)
    if train.shape != test.shape:
        here, there = ("×".join(map(str, source.shape)) for source in (train, test))
        raise DataError(f"the images of {train.spec} are {here} and those of {test.spec} {there}: add ?size= to one")
    labels = torch.from_numpy(train.labels)
    numbers = class_numbers(labels, train.class_names, torch.from_numpy(test.labels), test.class_names)
    if len(set(train.labels.tolist())) < 2:
        raise DataError(f"all images of {train.spec} are of one class: a classifier needs at least two")
    return TrainTest(train, test, numbers, names_of(labels, train.class_names))


def open_labelled(data: Any) -> Source:
    """The source, which has images and a label of each."""
    source: Source = open_source(data)
    if source.labels is None:
        raise DataError(f"{source.spec} has no labels, and an evaluation needs them: use a folder with subfolders")
    if len(source.labels) != len(source):
        raise DataError(f"{source.spec} has {len(source)} images and {len(source.labels)} labels: one each is needed")
    check_any(source, len(source))
    return source


def check_any(source: Source, count: int) -> None:
    """Refuse a source that gave no image."""
    if not count:
        raise DataError("; ".join([f"{source.spec}: no image can be read", *list(source.skipped.values())[:1]]))


def names_of(labels: Tensor, names: Sequence[str]) -> tuple[str, ...]:
    """The names of the classes of labels (n,); without any, their numbers."""
    return tuple(names) or tuple(map(str, range(int(labels.max()) + 1)))


def class_numbers(train: Tensor, train_names: Sequence[str], test: Tensor, test_names: Sequence[str]) -> Tensor:
    """The number in train of each class of test (classes of test,), from labels (n,) and (m,) and names of classes.

    By name, since a folder that lacks a class numbers the others anew; by number when one side has no names of
    its own. An error when test has images of a class of which train has none.
    """
    here, there = names_of(train, train_names), names_of(test, test_names)
    nameless = any(names == tuple(map(str, range(len(names)))) for names in (here, there))
    if nameless and set(here).isdisjoint(there):
        here = there[: len(here)] + here[len(there) :]
    number, known = {name: label for label, name in enumerate(here)}, set(train.tolist())
    lacking = [there[label] for label in sorted(set(test.tolist())) if number.get(there[label]) not in known]
    if lacking:
        more = f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else ""
        raise DataError(
            f"the test set has images of {len(lacking)} classes that the train set lacks: "
            f"{', '.join(lacking[:_NAMED])}{more}; use train and test data of the same classes"
        )
    return torch.tensor([number.get(name, 0) for name in there])


class LabelledTask(Task):
    """Classifiers, one for each of some poolings, that learn from train images and are measured on test images."""

    poolings: Sequence[Pooling]

    def __init__(self, data: TrainTest, schedule: Schedule, weights: str | None) -> None:
        self.data, self.source, self.schedule, self.weights = data, data.train, schedule, weights
        self.counts = {"train_images": len(data.train), "classes": len(data.class_names)}

    @abstractmethod
    def predict(self, images: Tensor) -> Mapping[str, Tensor]:
        """Images (B, C, H, W), float32 in [0, 1], to scores of classes (B, K) by pooling."""

    @abstractmethod
    def result(self, done: TrainResult) -> EvaluationResult:
        """What the trained classifiers reach on test images."""

    def save(self, folder: Path) -> None:
        """Write what was trained into a run folder."""

    def setup(self, settings: Settings, fabric: Fabric) -> None:
        """Keep what an evaluation needs."""
        self.size, self.fabric = settings.images_per_batch, fabric

    @torch.no_grad()
    def measure(self, **details: Any) -> dict[str, Accuracy]:
        """Accuracy on test by pooling; the ranks share the images out. No random number is drawn."""
        self.model.eval()  # the loop turns training on again
        counts = torch.zeros(len(self.poolings) + 1, dtype=torch.int64)  # correct of each classifier, and images
        for batch in self.data.test.batches(self.size, rank=rank(), world_size=world_size()):
            labels, scores = (
                self.data.numbers[batch.labels],
                self.predict(to_float(batch.images.to(self.fabric.device))),
            )
            correct = [int((scores[name].argmax(dim=1).cpu() == labels).sum()) for name in self.poolings]
            counts += torch.tensor([*correct, len(labels)])
        *found, total = all_reduce_sum(counts.to(self.fabric.device)).tolist()
        check_any(self.data.test, total)
        return {name: accuracy_of(count, total, **details) for name, count in zip(self.poolings, found, strict=True)}

    def run(self, encoder: Any, options: Mapping[str, Any], out: Out, run_options: RunOptions) -> Any:
        """Train, measure, and write the run folder if there is one; gives the result."""
        config = {"data": self.data.train.spec, "test_data": self.data.test.spec, **flattened(options)}
        if isinstance(encoder, str | Path):
            config = {"run": str(encoder), **config}
        with run_opener(out, self.name, config, run_options) as opener:
            result = self.result(fit(self, self.schedule, opener, options=run_options))
            if opener and rank() == 0:
                self.save(opener().folder)
            for source in (self.data.train, self.data.test):
                warn_skipped(source.skipped)
            if opener:
                described = {"data": self.data.train.describe(), "test_data": self.data.test.describe()}
                opener().summary = {"results": result.to_dict(), **described, "weights": self.weights}
        return result
