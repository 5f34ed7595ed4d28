"""Fetch CIFAR-10 or CIFAR-100 from the first mirror that has it, verify it, keep it."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustermim.data.cifar import SHAPE, CifarFacts, Split, SplitFacts, load_split
from clustermim.data.mirrors import Mirror, read_archive
from clustermim.errors import DataError, UserError
from clustermim.progress import log_info

_MEANS_TOLERANCE = 1e-4  # the published means have four digits


def install(facts: CifarFacts, home: Path, mirrors: Mapping[str, Mirror], *, force: bool = False) -> Path:
    """Put a dataset into `home/NAME` as uint8 and int64 .npy files: complete and verified, or not at all."""
    target = home / facts.name
    if not force and target.is_dir():
        try:
            for split in facts.splits:
                load_split(facts, target, split)
            log_info(f"{facts.name} is already in {target}")
            return target
        except DataError as error:
            log_info(f"{error}; it is fetched again")
    try:
        home.mkdir(parents=True, exist_ok=True)
        # Everything happens in one folder that vanishes on success, failure and Ctrl-C alike.
        with tempfile.TemporaryDirectory(dir=home, prefix=f".{facts.name}-") as scratch:
            new = Path(scratch) / "new"
            _store(*_obtain(facts, home, mirrors, Path(scratch)), new)
            if target.exists():
                target.rename(Path(scratch) / "old")
            new.rename(target)
    except OSError as error:
        raise DataError(
            f"cannot store {facts.name} in {home} ({error}); free some space or set CLUSTERMIM_HOME"
        ) from error
    return target


def _obtain(
    facts: CifarFacts, home: Path, mirrors: Mapping[str, Mirror], scratch: Path
) -> tuple[str, dict[str, Split]]:
    """The dataset from the archive that the user put into place, else from the first mirror that works."""
    placed = home / "downloads" / facts.archive_name
    by_hand: dict[str, Mirror] = {str(placed): lambda facts, _: read_archive(facts, placed)} if placed.is_file() else {}
    reasons = []
    for number, (name, mirror) in enumerate({**by_hand, **mirrors}.items()):
        folder = scratch / str(number)
        folder.mkdir()
        log_info(f"{facts.name} from {name}")
        try:
            splits = mirror(facts, folder)
            return name, {split: verify(facts, split, splits[split]) for split in facts.splits}
        except UserError as error:
            log_info(f"  failed: {error}")
            reasons.append(f"{name}: {error}")
    raise DataError(
        f"{facts.name} could not be downloaded ({'; '.join(reasons)}). Download {facts.archive_url} by hand, "
        f"put it at {placed} and run `clustermim data get {facts.name}` again"
    )


def verify(facts: CifarFacts, split: str, arrays: Split) -> Split:
    """The same images and labels in the official order; a DataError when they are not the genuine ones."""
    images, labels = np.ascontiguousarray(arrays[0]), arrays[1]
    known, classes = facts.splits[split], len(facts.classes)
    if images.shape != (known.count, *SHAPE) or labels.shape != (known.count,):
        raise DataError(f"{len(images):,} {split} images and {len(labels):,} labels, not {known.count:,}")
    if labels.min() < 0 or (np.bincount(labels, minlength=classes) * classes != known.count).any():
        raise DataError(f"the {split} labels are not {classes} classes of equal size")
    if known.pixels_sha256:
        images, labels = _put_in_order(split, known, images, labels)
    if known.labels_sha256 and (found := _sha256(labels.astype("<i8"))) != known.labels_sha256:
        raise DataError(f"the {split} labels have sha256 {found}, not {known.labels_sha256}")
    means = images.mean(axis=(0, 2, 3)) / 255
    if split == "train" and np.abs(means - facts.means).max() > _MEANS_TOLERANCE:
        raise DataError(f"the train images have channel means {means.round(4)}, not {facts.means}")
    return images, labels


def _put_in_order(split: str, known: SplitFacts, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> Split:
    """Whole parts of the official archive may come in another order, as on the hub: their sums say which."""
    parts = np.arange(known.count).reshape(len(known.pixels_sha256), -1)  # the rows of each part
    sums = [_sha256(images[rows]) for rows in parts]
    if sorted(sums) != sorted(known.pixels_sha256):
        raise DataError(f"the {split} images have sha256 {sums}, not {list(known.pixels_sha256)}")
    order = [sums.index(wanted) for wanted in known.pixels_sha256]
    rows = parts[order].reshape(-1)
    return (images, labels) if order == sorted(order) else (images[rows], labels[rows])


def _sha256(array: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def _store(mirror: str, splits: Mapping[str, Split], folder: Path) -> None:
    """Write the arrays, and beside them where they came from and their sums."""
    folder.mkdir()
    origin: dict[str, object] = {"mirror": mirror}
    for split, (images, labels) in splits.items():
        np.save(folder / f"{split}_images.npy", images)
        np.save(folder / f"{split}_labels.npy", labels)
        sums = {"pixels_sha256": _sha256(images), "labels_sha256": _sha256(labels.astype("<i8"))}
        origin[split] = {"images": len(images), **sums}
    (folder / "origin.json").write_text(json.dumps(origin, indent=2) + "\n", encoding="utf-8")
