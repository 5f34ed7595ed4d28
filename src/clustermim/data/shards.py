"""`wds:PATTERN`: images in tar shards on this machine's disks, as webdataset writes them.

Members that share their name up to its first dot are one sample: 0001.jpg, 0001.cls. Only bytes are taken from them:
nothing is ever unpickled or run.
"""

from __future__ import annotations

import glob
import itertools
import math
import re
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from clustermim.data.cache import fingerprint_of
from clustermim.data.encoded import EncodedSource, evenly_spaced
from clustermim.data.images import SUFFIXES
from clustermim.data.spec import Spec
from clustermim.data.tables import find_classes
from clustermim.errors import DataError
from clustermim.files import user_path
from clustermim.reading import parse_json

MEMBER_BYTES = 500_000_000  # a larger member is neither an image nor a label
MOST_SHARDS = 100_000
SHUFFLED_SHARDS = 16  # whose images are shuffled together: neighbours in time are then neighbours on the disk

_SAMPLE = 64  # images that are looked at on opening
_RANGE = re.compile(r"\{(\d{1,18})\.\.(\d{1,18})\}|\{([^{}]*,[^{}]*)\}")
_DAMAGED_HEADERS = (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError)  # type: ignore[attr-defined]


class Shard(NamedTuple):
    """The images of a tar file, in order."""

    path: Path
    names: list[str]  # of the image members
    sizes: list[int]
    starts: list[int]  # where their bytes begin
    labels: list[object]  # None where a sample has none


class ShardSource(EncodedSource):
    """Images in tar shards, none of them empty, read from their places."""

    def __init__(
        self, spec: Spec, shards: Sequence[Shard], labels: NDArray[np.int64] | None, class_names: Sequence[str]
    ) -> None:
        self._shards, self._starts = shards, np.cumsum([0, *(len(shard.names) for shard in shards)])
        count = int(self._starts[-1])
        sample = evenly_spaced(count, _SAMPLE)
        listing = ["\0".join(shard.names).encode() + np.array(shard.sizes).tobytes() for shard in shards]
        parts = [*listing, b"" if labels is None else labels.tobytes(), *map(self._fetch, sample)]
        dates = fingerprint_of(np.array([shard.path.stat().st_mtime_ns for shard in shards]))
        print_of = fingerprint_of(*parts)
        super().__init__(
            spec, count, self._name, lambda rows: self._fetch, labels, class_names, print_of, sample, dates
        )

    def shuffle(self, seed: int) -> NDArray[np.int64]:
        """Shards in random order, and the images of a few of them together."""
        generator = np.random.default_rng(seed)
        shards = generator.permutation(len(self._shards)).tolist()
        rows = [np.arange(self._starts[shard], self._starts[shard + 1]) for shard in shards]
        groups = [np.concatenate(rows[i : i + SHUFFLED_SHARDS]) for i in range(0, len(rows), SHUFFLED_SHARDS)]
        return np.concatenate([generator.permutation(group) for group in groups])

    def _place(self, row: int) -> tuple[Shard, int]:
        """The shard of an image, and its number there."""
        number = int(np.searchsorted(self._starts, row, side="right")) - 1
        return self._shards[number], row - int(self._starts[number])

    def _fetch(self, row: int) -> bytes:
        shard, place = self._place(row)
        with shard.path.open("rb") as file:
            file.seek(shard.starts[place])
            return file.read(shard.sizes[place])

    def _name(self, row: int) -> str:
        shard, place = self._place(row)
        return f"{shard.path}: {shard.names[place]}"


def open_wds(spec: Spec) -> ShardSource:
    """Images in plain tar files, with labels from .cls or .json members if there are any.

    The options `image` and `label` name the members by their suffix. Opening reads the headers of every shard once.
    """
    shards = [shard for path in _find_shards(spec) if (shard := _list_shard(spec, path)).names]
    if not shards:
        raise DataError(f"{spec.text}: no images in these shards")
    return ShardSource(spec, shards, *find_classes(spec.text, [label for shard in shards for label in shard.labels]))


def _find_shards(spec: Spec) -> list[Path]:
    """The files that a pattern with {000..123}, {a,b} or * stands for, in order."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", spec.path):  # two letters at least: one is a drive
        raise DataError(f"{spec.text}: only files of this machine are read, not {spec.path}; download the shards first")
    found: list[Path] = []
    for place in _expand(spec, spec.path):
        path = user_path(place)
        files = [path] if path.is_file() else sorted(map(Path, glob.glob(str(path), recursive=True)))
        if not files:
            raise DataError(f"{spec.text}: {place} is not there")
        found += files
    return found


def _expand(spec: Spec, pattern: str) -> list[str]:
    """A pattern without its braces, once for each of their values."""
    parts: list[Sequence[str]] = []
    place = count = 0
    for match in _RANGE.finditer(pattern):
        values: Sequence[str] = (match[3] or "").split(",")
        numbers = range(0) if match[3] is not None else range(int(match[1]), int(match[2]) + 1)
        if match[3] is None and not numbers:
            raise DataError(f"{spec.text}: {match[0]} is no range: its first number is larger than its last")
        count = math.prod(map(len, parts)) * (len(numbers) or len(values))
        if count > MOST_SHARDS:
            raise DataError(f"{spec.text}: {count:,} shards or more, and {MOST_SHARDS:,} are the most: give fewer")
        parts += [[pattern[place : match.start()]], [f"{n:0{len(match[1])}d}" for n in numbers] or values]
        place = match.end()
    return ["".join(words) for words in itertools.product(*parts, [pattern[place:]])]


class _StrictInfo(tarfile.TarInfo):
    """Python takes a damaged header after the first member for the end of the archive; this one does not."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tar)
        except _DAMAGED_HEADERS as error:
            raise tarfile.ReadError(f"{error} at byte {tar.offset}") from error


def _samples(path: Path, wants: Callable[[str], bool]) -> Iterator[dict[str, tuple[tarfile.TarInfo, bytes]]]:
    """The samples of a shard: their members by suffix, with the content of those that are wanted."""
    key, sample = "", dict[str, tuple[tarfile.TarInfo, bytes]]()
    with tarfile.open(path, "r:", tarinfo=_StrictInfo) as tar:
        for info in tar:
            folder, _, name = info.name.rpartition("/")
            stem, _, suffix = name.partition(".")
            if not info.isreg() or not stem or not suffix:
                continue
            if (own := f"{folder}/{stem}") != key:
                yield sample
                key, sample = own, {}
            if suffix.lower() in sample:
                raise tarfile.ReadError(f"{info.name} is there twice")
            member = tar.extractfile(info) if wants(suffix.lower()) else None
            if member is not None and info.size > MEMBER_BYTES:
                raise tarfile.ReadError(f"{info.name} has {info.size:,} bytes")
            sample[suffix.lower()] = info, b"" if member is None else member.read()
    yield sample


def _list_shard(spec: Spec, path: Path) -> Shard:
    """What is in a shard, from its headers and labels."""
    images = (spec.options["image"],) if "image" in spec.options else tuple(suffix[1:] for suffix in SUFFIXES)
    labels = (spec.options["label"],) if "label" in spec.options else ("cls", "json")
    found: list[tuple[tarfile.TarInfo, object]] = []
    try:
        for sample in _samples(path, labels.__contains__):
            image = next((sample[name][0] for name in images if name in sample), None)
            label = next((_to_label(path, *sample[name]) for name in labels if name in sample), None)
            if image is not None:
                found.append((image, label))
        if found and found[-1][0].offset_data + found[-1][0].size > path.stat().st_size:
            raise tarfile.ReadError("it ends too early")
    except (tarfile.TarError, OSError) as error:
        raise DataError(f"{path}: damaged, or compressed: unpack it to a plain .tar ({error})") from error
    infos = [info for info, _ in found]
    sizes, starts = [info.size for info in infos], [info.offset_data for info in infos]
    return Shard(path, [info.name for info in infos], sizes, starts, [label for _, label in found])


def _to_label(path: Path, info: tarfile.TarInfo, content: bytes) -> object:
    """The number in a .cls member, or `label` of a .json member; None if there is neither."""
    try:
        if info.name.lower().endswith("json"):
            value = parse_json(content)
            return value.get("label") if isinstance(value, dict) else None
        return int(content.decode("ascii"))
    except ValueError as error:
        raise DataError(f"{path}: {info.name} does not hold a label ({error})") from error
