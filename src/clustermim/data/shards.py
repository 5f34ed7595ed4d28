"""`wds:PATTERN`: images in tar shards, streamed from front to back in bounded memory.

Members that share their name up to its first dot are one sample, as webdataset has it: 0001.jpg, 0001.cls.
Only bytes are taken from them. webdataset's decoders are never used: some run code that a shard contains.
"""

from __future__ import annotations

import glob
import itertools
import json
import re
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from lzma import LZMAError
from typing import IO, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from clustermim.data.cache import fingerprint_of
from clustermim.data.images import SUFFIXES, EncodedSource, by_group, evenly_spaced
from clustermim.data.source import Batch
from clustermim.data.spec import Spec
from clustermim.data.tables import find_classes
from clustermim.errors import DataError, MissingExtraError
from clustermim.files import user_path

SHUFFLE_IMAGES = 4096  # that wait in the shuffle buffer at most,
SHUFFLE_BYTES = 256_000_000  # and their size at most
MEMBER_BYTES = 500_000_000  # a larger member is neither an image nor a label

_SAMPLE = 64  # images that are looked at on opening
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ")
# webdataset hands a URL to curl, in old versions through a shell: nothing in it may end a quoted text.
_URL = re.compile(r"https?://[\w.~:/@!$&()*+,;=%-]+", re.ASCII)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # two letters at least: one is a drive
_DAMAGED_HEADERS = (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError)  # type: ignore[attr-defined]


class Shard(NamedTuple):
    """The images of a tar file, in order."""

    place: str  # path or URL
    names: list[str]  # of the image members
    sizes: NDArray[np.int64]
    starts: NDArray[np.int64]  # where their bytes begin; empty for compressed or remote shards
    labels: list[object]  # None where a sample has none


class ShardSource(EncodedSource):
    """Images in tar shards, none of them empty. With a seed: shards shuffled, then images in a bounded buffer."""

    def __init__(
        self, spec: Spec, shards: Sequence[Shard], labels: NDArray[np.int64] | None, class_names: Sequence[str]
    ) -> None:
        self._shards, self._starts = shards, np.cumsum([0, *(len(shard.names) for shard in shards)])
        count = int(self._starts[-1])
        plain = all(len(shard.starts) for shard in shards)
        sample = evenly_spaced(count, _SAMPLE) if plain else list(range(min(count, _SAMPLE)))
        parts = ["\0".join(shard.names).encode() + shard.sizes.tobytes() for shard in shards]
        parts += [b"" if labels is None else labels.tobytes(), *map(self._fetcher(sample), sample)]
        super().__init__(spec, count, self._name, self._fetcher, labels, class_names, fingerprint_of(*parts), sample)

    def stream(self, seed: int | None, among: NDArray[np.bool_] | None) -> Iterator[tuple[int, bytes]]:
        """Positions and bytes; every rank streams all shards."""
        generator = np.random.default_rng(seed)
        numbers = range(len(self._shards)) if seed is None else generator.permutation(len(self._shards)).tolist()
        items = itertools.chain.from_iterable(map(self._read_shard, numbers))
        found = (item for item in items if among is None or among[item[0]])
        return found if seed is None else shuffled(found, generator)

    def load(self, chunk: list[Any]) -> Batch:
        encoded: dict[int, bytes] = dict(chunk)
        return self.decode(list(encoded), encoded.__getitem__)

    def _fetcher(self, rows: Sequence[int]) -> Callable[[int], bytes]:
        """From their places in plain files; compressed and remote shards are streamed up to the last one."""
        found: dict[int, bytes] = {}
        for number, members in by_group(self._starts, rows):
            shard, first = self._shards[number], int(self._starts[number])
            if not len(shard.starts):
                passing = itertools.islice(self._read_shard(number), max(members) - first + 1)
                found.update(item for item in passing if item[0] in members)
                continue
            with _open_shard(shard.place) as file:
                for row in sorted(members):
                    file.seek(int(shard.starts[row - first]))
                    found[row] = file.read(int(shard.sizes[row - first]))
        return found.__getitem__

    def _read_shard(self, number: int) -> Iterator[tuple[int, bytes]]:
        """Positions and bytes of all images of a shard."""
        return enumerate(read_images(self._shards[number]), int(self._starts[number]))

    def _name(self, row: int) -> str:
        ((number, _),) = by_group(self._starts, [row])
        return f"{self._shards[number].place}: {self._shards[number].names[row - int(self._starts[number])]}"


def open_wds(spec: Spec) -> ShardSource:
    """Images in local or http(s) tar shards, with labels from .cls or .json members if there are any.

    The options `image` and `label` name the members by their suffix. Opening lists every shard once: it reads
    the headers of plain files and all of compressed or remote ones.
    """
    try:
        import webdataset  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(spec.text, "webdataset") from error
    shards = [shard for place in _find_shards(spec) if (shard := _list_shard(spec, place)).names]
    if not shards:
        raise DataError(f"{spec.text}: no images in these shards")
    return ShardSource(spec, shards, *find_classes(spec.text, [label for shard in shards for label in shard.labels]))


def shuffled(items: Iterable[tuple[int, bytes]], generator: np.random.Generator) -> Iterator[tuple[int, bytes]]:
    """The same items, each a random one of those that wait in a buffer of bounded number and size."""
    waiting: list[tuple[int, bytes]] = []
    size = 0
    for item in itertools.chain(items, [None]):  # None: no more will come
        if item is not None:
            waiting.append(item)
            size += len(item[1])
        while len(waiting) > SHUFFLE_IMAGES or (size > SHUFFLE_BYTES and len(waiting) > 1) or (waiting and not item):
            place = int(generator.integers(len(waiting)))
            waiting[place], waiting[-1] = waiting[-1], waiting[place]
            size -= len(waiting[-1][1])
            yield waiting.pop()


def _find_shards(spec: Spec) -> list[str]:
    """The paths and URLs that a pattern with {000..123} or * stands for, in order."""
    from webdataset.shardlists import expand_urls

    places: list[str] = []
    for place in expand_urls(spec.path):
        if _URL.fullmatch(place):
            places.append(place)
            continue
        if _SCHEME.match(place):  # pipe: runs its text in a shell, gs:, s3: and others run programs
            raise DataError(f"{spec.text}: only files and plain http(s) URLs are read, not {place}")
        path = user_path(place)
        found = [str(path)] if path.is_file() else sorted(glob.glob(str(path), recursive=True))
        if not found:
            raise DataError(f"{spec.text}: {place} is not there")
        places += found
    return places


@contextmanager
def _open_shard(place: str) -> Iterator[IO[bytes]]:
    """The bytes of a shard; whatever goes wrong while they are read becomes a DataError."""
    from webdataset.gopen import gopen_curl

    try:
        with gopen_curl(place) if _URL.fullmatch(place) else open(place, "rb") as file:
            yield file
    except (tarfile.TarError, OSError, EOFError, zlib.error, LZMAError) as error:
        raise DataError(f"{place}: damaged, or not to be read ({error})") from error


class _StrictInfo(tarfile.TarInfo):
    """Python takes a damaged header after the first member for the end of the archive; this one does not."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tar)
        except _DAMAGED_HEADERS as error:
            raise tarfile.ReadError(f"{error} at byte {tar.offset}") from error


def _members(file: IO[bytes], mode: Any, wanted: Callable[[str], bool]) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """The files of a tar, with the content of those whose name is wanted."""
    with tarfile.open(fileobj=file, mode=mode, tarinfo=_StrictInfo) as tar:
        while (info := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # it would keep a record of every member
            member = tar.extractfile(info) if info.isreg() and wanted(info.name) else None
            if member is not None and info.size > MEMBER_BYTES:
                raise tarfile.ReadError(f"{info.name} has {info.size:,} bytes")
            if info.isreg():
                yield info, b"" if member is None else member.read()


def read_images(shard: Shard) -> Iterator[bytes]:
    """The images of a shard as they come."""
    missing = iter(shard.names)
    name = next(missing, None)
    with _open_shard(shard.place) as file:
        for info, content in _members(file, "r|*", set(shard.names).__contains__):
            if info.name == name:
                yield content
                name = next(missing, None)
    if name is not None:
        raise DataError(f"{shard.place}: has changed since it was opened, {name} is missing")


def _list_shard(spec: Spec, place: str) -> Shard:
    """What is in a shard. Of a plain file the headers and labels are read, of others everything passes by."""
    from webdataset.tariterators import base_plus_ext, group_by_keys

    images = (spec.options["image"],) if "image" in spec.options else tuple(suffix[1:] for suffix in SUFFIXES)
    labels = (spec.options["label"],) if "label" in spec.options else ("cls", "json")

    def is_label(name: str) -> bool:
        return (base_plus_ext(name)[1] or "").lower() in labels

    found: list[tuple[tarfile.TarInfo, object]] = []
    with _open_shard(place) as file:
        plain = not _URL.fullmatch(place) and not file.read(6).startswith(_COMPRESSED)
        if not _URL.fullmatch(place):
            file.seek(0)
        members = _members(file, "r:" if plain else "r|*", is_label)
        try:
            for sample in group_by_keys({"fname": item[0].name, "data": item, "__url__": place} for item in members):
                image = next((sample[name] for name in images if name in sample), None)
                label = next((sample[name] for name in labels if name in sample), None)
                if image is not None:
                    found.append((image[0], label and _to_label(place, label[0].name, label[1])))
        except ValueError as error:  # two members of one name
            raise DataError(f"{place}: {error.args[0]}") from error
    sizes, starts = np.array([(i.size, i.offset_data) for i, _ in found], np.int64).reshape(-1, 2).T.copy()
    return Shard(place, [i.name for i, _ in found], sizes, starts if plain else starts[:0], [x for _, x in found])


def _to_label(place: str, name: str, content: bytes) -> object:
    """The number in a .cls member, or `label` of a .json member; None if there is neither."""
    try:
        if name.lower().endswith("json"):
            value = json.loads(content)
            return value.get("label") if isinstance(value, dict) else None
        return int(content.decode("ascii"))
    except ValueError as error:
        raise DataError(f"{place}: {name} does not hold a label ({error})") from error
