"""`clustermim data get NAME`: fetch a dataset from the first mirror that has it, verify it, keep it."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustermim.data.cache import cache_folder
from clustermim.data.cifar import DATASETS, SHAPE, CifarFacts, Split, SplitFacts, load_split
from clustermim.data.mirrors import MIRRORS, Mirror, MirrorError, Say, read_archive
from clustermim.errors import DataError

_MEANS_TOLERANCE = 1e-4  # the published means have four digits


def get(name: str, force: bool = False) -> Path:
    """Download a dataset into the cache, verified; returns its folder.

    Args:
        name: cifar10 or cifar100.
        force: fetch it again even when it is there.
    """
    if name not in DATASETS:
        raise DataError(f"there is nothing to download named {name!r}; there are: {', '.join(DATASETS)}")
    return install(DATASETS[name], cache_folder(), MIRRORS, force=force)


def install(
    facts: CifarFacts, home: Path, mirrors: Mapping[str, Mirror], *, force: bool = False, log_info: Say = print
) -> Path:
    """Put a dataset into `home/NAME` as uint8 and int64 .npy files: complete and verified, or not at all."""
    target = home / facts.name
    if not force and target.is_dir():
        try:
            counts = {split: len(load_split(facts, target, split)[1]) for split in facts.splits}
        except DataError as error:
            log_info(f"{error}; it is fetched again")
        else:
            log_info(f"{facts.name} is already in {target}: {_describe(counts)}")
            return target
    try:
        home.mkdir(parents=True, exist_ok=True)
        # Everything happens in one folder that vanishes on success, failure and Ctrl-C alike.
        with tempfile.TemporaryDirectory(dir=home, prefix=f".{facts.name}-") as scratch:
            mirror, splits = _obtain(facts, home, mirrors, Path(scratch), log_info)
            _store(splits, mirror, Path(scratch) / "new")
            if target.exists():
                target.rename(Path(scratch) / "old")
            (Path(scratch) / "new").rename(target)
    except OSError as error:
        raise DataError(
            f"cannot store {facts.name} in {home} ({error}); free some space or set CLUSTERMIM_HOME"
        ) from error
    log_info(f"{facts.name} is in {target}: {_describe({s: len(labels) for s, (_, labels) in splits.items()})}")
    return target


def _describe(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {split}" for split, count in counts.items()) + " images"


def _obtain(
    facts: CifarFacts, home: Path, mirrors: Mapping[str, Mirror], scratch: Path, log_info: Say
) -> tuple[str, dict[str, Split]]:
    """The dataset from the archive that the user put into place, else from the first mirror that works."""
    placed = home / "downloads" / facts.archive_name
    sources: dict[str, Mirror] = {}
    if placed.is_file():
        sources[str(placed)] = lambda facts, folder, log_info: read_archive(facts, placed)
    reasons = []
    for number, (name, mirror) in enumerate({**sources, **mirrors}.items()):
        folder = scratch / str(number)
        folder.mkdir()
        log_info(f"{facts.name} from {name}")
        try:
            splits = mirror(facts, folder, log_info)
            return name, {split: verify(facts, split, splits[split]) for split in facts.splits}
        except MirrorError as error:
            log_info(f"  failed: {error}")
            reasons.append(f"{name}: {error}")
    raise DataError(
        f"{facts.name} could not be downloaded ({'; '.join(reasons)}). Download {facts.archive_url} by hand, "
        f"put it at {placed} and run `clustermim data get {facts.name}` again"
    )


def verify(facts: CifarFacts, split: str, arrays: Split) -> Split:
    """The same images and labels in the official order; a MirrorError when they are not the genuine ones."""
    images, labels = np.ascontiguousarray(arrays[0]), arrays[1]
    split_facts, classes = facts.splits[split], len(facts.classes)
    if images.shape != (split_facts.count, *SHAPE) or labels.shape != (split_facts.count,):
        raise MirrorError(f"{len(images):,} {split} images and {len(labels):,} labels, not {split_facts.count:,}")
    if labels.min() < 0 or (np.bincount(labels, minlength=classes) * classes != split_facts.count).any():
        raise MirrorError(f"the {split} labels are not {classes} classes of equal size")
    if split_facts.pixels_sha256:
        images, labels = _put_in_order(split, split_facts, images, labels)
    if split_facts.labels_sha256:
        found = _sha256(labels.astype("<i8"))
        if found != split_facts.labels_sha256:
            raise MirrorError(f"the {split} labels have sha256 {found}, not {split_facts.labels_sha256}")
    means = images.mean(axis=(0, 2, 3)) / 255
    if split == "train" and np.abs(means - facts.means).max() > _MEANS_TOLERANCE:
        raise MirrorError(f"the train images have channel means {means.round(4)}, not {facts.means}")
    return images, labels


def _put_in_order(split: str, facts: SplitFacts, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> Split:
    """Whole parts of the official archive may come in another order, as on the hub: their sums tell which."""
    size = facts.count // len(facts.pixels_sha256)
    sums = [_sha256(images[start : start + size]) for start in range(0, facts.count, size)]
    if sorted(sums) != sorted(facts.pixels_sha256):
        raise MirrorError(f"the {split} images have sha256 {sums}, not {list(facts.pixels_sha256)}")
    order = [sums.index(wanted) for wanted in facts.pixels_sha256]
    if order == sorted(order):
        return images, labels
    rows = np.concatenate([np.arange(part * size, (part + 1) * size) for part in order])
    return images[rows], labels[rows]


def _sha256(array: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def _store(splits: Mapping[str, Split], mirror: str, folder: Path) -> None:
    """Write the arrays, and beside them where they came from and their sums."""
    folder.mkdir()
    origin: dict[str, object] = {"mirror": mirror}
    for split, (images, labels) in splits.items():
        np.save(folder / f"{split}_images.npy", images)
        np.save(folder / f"{split}_labels.npy", labels)
        origin[split] = {
            "images": len(images),
            "pixels_sha256": _sha256(images),
            "labels_sha256": _sha256(labels.astype("<i8")),
        }
    (folder / "origin.json").write_text(json.dumps(origin, indent=2) + "\n", encoding="utf-8")
