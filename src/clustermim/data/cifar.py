"""CIFAR-10 and CIFAR-100: what is known of them (`cifar.json`), and the sources `cifar10/train`, `cifar100/test`, …

`clustermim data get cifar10` (see `download.py`) puts them into the cache as plain arrays.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustermim.data.arrays import ArraySource
from clustermim.data.cache import cache_folder, fingerprint_of
from clustermim.data.spec import Spec
from clustermim.errors import DataError
from clustermim.progress import log_info

ORIGIN = "origin.json"  # where the arrays are from, and their checksums
SHAPE = (3, 32, 32)

Split = tuple[NDArray[np.uint8], NDArray[np.int64]]  # images (n, 3, 32, 32) and labels (n,)


@dataclass(frozen=True)
class SplitFacts:
    """What a split must hold: the same number of images of each class, in the official order."""

    count: int
    members: Sequence[str]  # the files of the official binary archive, in order
    pixels_sha256: Sequence[str] = ()  # of the images (n, 3, 32, 32), one for each member; empty: not known
    labels_sha256: str = ""  # of the labels as little-endian int64; empty: not known


@dataclass(frozen=True)
class CifarFacts:
    """What identifies a CIFAR dataset wherever it is fetched from."""

    name: str
    classes: Sequence[str]
    splits: Mapping[str, SplitFacts]
    label_bytes: int  # before the 3,072 pixel bytes of a record; the last one is the class
    archive_url: str
    archive_md5: str  # as published beside the archive; empty: not checked
    npm_package: str = ""
    superclasses: Mapping[str, Sequence[str]] = field(default_factory=dict)  # with their classes


def _read_facts() -> dict[str, CifarFacts]:
    stored = json.loads(resources.files("clustermim.data").joinpath("cifar.json").read_text(encoding="utf-8"))
    for facts in stored.values():
        facts["splits"] = {split: SplitFacts(**known) for split, known in facts["splits"].items()}
    return {name: CifarFacts(name, **facts) for name, facts in stored.items()}


DATASETS = _read_facts()


def open_cifar(spec: Spec) -> ArraySource:
    """A split of CIFAR-10 or CIFAR-100 from the cache, memory-mapped; `labels=coarse`: 20 superclasses."""
    facts = DATASETS[spec.scheme]
    images, labels = load_split(facts, cache_folder() / facts.name, spec.split)
    classes = facts.classes
    if spec.choice("labels", ("fine", "coarse"), "fine") == "coarse":
        classes = list(facts.superclasses)
        number = {name: k for k, names in enumerate(facts.superclasses.values()) for name in names}
        labels = np.array([number[name] for name in facts.classes], np.int64)[labels]
    # The known sums name the pixels, so that opening need not read them; the others are read once.
    known = facts.splits[spec.split].pixels_sha256
    return ArraySource(spec.text, images, labels, classes, fingerprint_of(*known, labels) if known else None)


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
        if (known := _known_sums(facts, folder, split)) is None:
            log_info(f"{folder} has no checksums: damage would not be noticed; `clustermim data get {name} --force`")
        elif known != checksums(facts, split, images, labels):
            raise ValueError("another sha256 than it was stored with")
    except (OSError, ValueError, EOFError, TypeError, AttributeError, MemoryError, OverflowError) as error:
        raise DataError(
            f"{split} of {name} is damaged in {folder} ({error}): run `clustermim data get {name} --force`"
        ) from error
    return images, labels


def checksums(facts: CifarFacts, split: str, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> dict[str, Any]:
    """The sha256 of the images of each member, and of the labels, as `SplitFacts` names them."""
    parts = [*np.split(images, len(facts.splits[split].members)), labels.astype("<i8")]
    *pixels, last = (hashlib.sha256(np.ascontiguousarray(part).data).hexdigest() for part in parts)
    return {"pixels_sha256": pixels, "labels_sha256": last}


def _known_sums(facts: CifarFacts, folder: Path, split: str) -> dict[str, Any] | None:
    """The checksums of a split as it was stored; of an earlier version the genuine ones, where they are known."""
    place, known = folder / ORIGIN, facts.splits[split]
    stored = json.loads(place.read_bytes()).get(split) if place.exists() else None
    if stored is None and known.pixels_sha256:
        return {"pixels_sha256": list(known.pixels_sha256), "labels_sha256": known.labels_sha256}
    return None if stored is None else dict(stored)
