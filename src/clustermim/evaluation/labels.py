"""Train and test images with labels, where one class has one number; classifiers of them, and their accuracy."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from clustermim.data import Batch, Source, open_source, to_float
from clustermim.data.augment import Augment
from clustermim.data.randomness import ImageRandom
from clustermim.distributed import all_reduce_sum, rank, world_size
from clustermim.errors import DataError
from clustermim.models.encoder import Encoder, build_described
from clustermim.options import flattened
from clustermim.progress import warn_skipped
from clustermim.results import Result, Table, percent
from clustermim.training import Out, RunOptions, Schedule, Settings, Task, TrainResult, fit, run_opener

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Pooling = Literal["avg", "cls"]
POOLINGS: tuple[Pooling, ...] = ("avg", "cls")  # the mean of the patch tokens, and the class token
WHITENING = "cosine similarity of plain features also measures how isotropic they are; whitening takes that away"
_NORMAL_95 = 1.959963984540054  # 95 % of a normal distribution lie within so many standard deviations


@dataclass(frozen=True)
class Accuracy:
    """Accuracy on test images with its 95 % interval (Wilson's), and what else defines it."""

    accuracy: float
    interval: tuple[float, float]
    test_images: int
    details: Mapping[str, Any]  # protocol, train_images, classes, …
    whitened: Accuracy | None = None  # the same of whitened features, where that was measured too

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values, details among the others."""
        found = {"accuracy": self.accuracy, "interval": list(self.interval), "test_images": self.test_images}
        return {**found, **self.details, **({"whitened": self.whitened.to_dict()} if self.whitened else {})}


def accuracy_of(correct: int, total: int, **details: Any) -> Accuracy:
    """Accuracy of so many correct predictions."""
    return Accuracy(correct / total, wilson(correct, total), total, details)


def wilson(correct: int, total: int, z: float = _NORMAL_95) -> tuple[float, float]:
    """The binomial interval of Wilson (1927): the shares p with |correct/total − p| ≤ z·√(p(1−p)/total).

    >>> [round(bound, 4) for bound in wilson(8, 10)]
    [0.4902, 0.9433]
    """
    share, weight = correct / total, z * z / total
    centre, half_width = share + weight / 2, math.sqrt(weight * (share * (1 - share) + weight / 4))
    return max(0.0, (centre - half_width) / (1 + weight)), min(1.0, (centre + half_width) / (1 + weight))


@dataclass(frozen=True, repr=False)
class EvaluationResult(Result):
    """Accuracy by pooling: of the mean of the patch tokens, and of the class token; None where it was not measured."""

    title: str
    avg: Accuracy | None = None
    cls: Accuracy | None = None

    def by_pooling(self) -> dict[str, Accuracy]:
        """The poolings that were measured."""
        return {name: found for name in POOLINGS if (found := getattr(self, name)) is not None}

    def to_dict(self) -> dict[str, Any]:
        """As a summary holds it: accuracy, interval and all that defines them, by pooling."""
        return {name: found.to_dict() for name, found in self.by_pooling().items()}

    def table(self) -> Table:
        """A row a pooling, and one more where it was measured on whitened features too."""
        plain = self.by_pooling()
        whitened = {f"{name}, whitened": found.whitened for name, found in plain.items() if found.whitened}
        rows = [
            [name, percent(found.accuracy), " … ".join(map(percent, found.interval)), f"{found.test_images:,}"]
            for name, found in (plain | whitened).items()
        ]
        columns = ("pooling", "accuracy", "95 % interval", "test images")
        return Table(self.title, columns, rows, WHITENING if whitened else "")

    def __repr__(self) -> str:
        return f"<{self.title}: {'; '.join(' '.join(row[:2]) for row in self.table().rows)}>"


class TrainTest(NamedTuple):
    """Two labelled sources of one shape and the same classes."""

    train: Source
    test: Source
    numbers: Tensor  # (classes of test,) int64, the number of each in train


def open_pair(train: Any, test: Any) -> TrainTest:
    """Train and test sources, or an error when one cannot be tested with the other."""
    train, test = open_source(train), open_source(test)
    for source in (train, test):
        if source.labels is None:
            raise DataError(f"{source.spec} has no labels, and an evaluation needs them: use a folder with subfolders")
        if len(source.labels) != len(source):
            raise DataError(f"{source.spec} has {len(source)} images and {len(source.labels)} labels, not one each")
        check_any(source, len(source))
    if train.shape != test.shape:
        here, there = ("×".join(map(str, source.shape)) for source in (train, test))
        raise DataError(f"the images of {train.spec} are {here} and those of {test.spec} {there}: add ?size= to one")
    if len(set(train.labels.tolist())) < 2:
        raise DataError(f"all images of {train.spec} are of one class: a classifier needs at least two")
    return TrainTest(train, test, class_numbers(train, test))


def check_any(source: Source, count: int) -> None:
    """Refuse a source that gave no image."""
    if not count:
        raise DataError("; ".join([f"{source.spec}: no image can be read", *list(source.skipped.values())[:1]]))


def class_numbers(train: Source, test: Source) -> Tensor:
    """The number in train of each class of test, (classes of test,).

    By name, since a folder that lacks a class numbers the others anew; by number when one side has no names.
    """
    assert train.labels is not None
    assert test.labels is not None
    here, there = train.class_names, test.class_names
    nameless = any(names == tuple(map(str, range(len(names)))) for names in (here, there))
    if nameless and set(here).isdisjoint(there):
        here = there[: len(here)] + here[len(there) :]
    number, known = {name: label for label, name in enumerate(here)}, set(train.labels.tolist())
    lacking = [there[label] for label in sorted(set(test.labels.tolist())) if number.get(there[label]) not in known]
    if lacking:
        named = ", ".join(lacking[:5]) + (f" and {len(lacking) - 5} more" if len(lacking) > 5 else "")
        what = f"the test set has images of {len(lacking)} classes that the train set lacks: {named}"
        raise DataError(f"{what}; use train and test data of the same classes")
    return torch.tensor([number.get(name, 0) for name in there])


class LabelledTask(Task):
    """Classifiers, one for each of some poolings, that learn from train images and are measured on test images."""

    poolings: Sequence[Pooling]
    augment: Augment
    schedule: Schedule

    def __init__(self, encoder: Any, data: TrainTest, options: Mapping[str, Any]) -> None:
        self.data, self.source = data, data.train
        weights = encoder.weights if isinstance(encoder, Encoder) else None  # a run goes on with these only
        self.config, self.schedule = {**flattened(options), "weights": weights}, options["schedule"]
        self.counts = {"train_images": len(data.train), "classes": len(data.train.class_names)}
        torch.manual_seed(self.schedule.seed)
        if isinstance(encoder, Encoder):  # draw as loading it does: a seed is the same for one in memory
            build_described(encoder.describe())

    @abstractmethod
    def predict(self, images: Tensor) -> Mapping[str, Tensor]:
        """Images (B, C, H, W), float32 in [0, 1], to scores of classes (B, K) by pooling."""

    @abstractmethod
    def result(self, done: TrainResult, folder: Path | None) -> EvaluationResult:
        """What the trained classifiers reach on test images; the first rank may keep them in a run folder."""

    def setup(self, settings: Settings, fabric: Fabric) -> None:
        self.size, self.fabric = settings.images_per_batch, fabric

    def view(self, batch: Batch, random: ImageRandom) -> tuple[Tensor, Any, list[int]]:
        """Images (B, C, H, W), whole numbers; labels (B,); a seed for all else that is random about each group."""
        return batch.images, batch.labels, random.seeds(self.group)

    @torch.no_grad()
    def measure(self, **details: Any) -> dict[str, Accuracy]:
        """Accuracy on test by pooling; the ranks share the images out. No random number is drawn."""
        self.model.eval()  # the loop turns training on again
        device = self.fabric.device
        counts = torch.zeros(len(self.poolings) + 1, dtype=torch.int64, device=device)  # correct of each, and images
        for batch in self.data.test.batches(self.size, rank=rank(), world_size=world_size()):
            labels = self.data.numbers[batch.labels].to(device)
            scores = self.predict(to_float(batch.images.to(device)))
            counts[:-1] += torch.stack([(scores[name].argmax(dim=1) == labels).sum() for name in self.poolings])
            counts[-1] += len(labels)
        *found, total = all_reduce_sum(counts).tolist()
        check_any(self.data.test, total)
        return {name: accuracy_of(count, total, **details) for name, count in zip(self.poolings, found, strict=True)}

    def run(self, encoder: Any, out: Out, run_options: RunOptions) -> Any:
        """Train, measure, and write the run folder if there is one; gives the result."""
        train, test = self.data.train, self.data.test
        given = {"run": str(encoder)} if isinstance(encoder, str | Path) else {}
        config = {**given, "data": train.spec, "test_data": test.spec, **self.config}
        with run_opener(out, self.name, config, run_options) as opener:
            done = fit(self, self.schedule, opener, options=run_options)
            result = self.result(done, opener().folder if opener and rank() == 0 else None)
            for source in (train, test):
                warn_skipped(source.skipped)
            if opener:
                described = {"data": train.describe(), "test_data": test.describe()}
                weights = None if self.config.get("from_scratch") else self.config["weights"]
                opener().summary = {"results": result.to_dict(), **described, "weights": weights}
        return result


def draw_seed(generator: torch.Generator) -> int:
    """A seed for a generator of another kind."""
    return int(torch.randint(2**62, (), generator=generator))
