"""Tar shards: which there are, what is in them, and their bytes from front to back.

Members that share their name up to its first dot are one sample, as webdataset has it: 0001.jpg, 0001.cls.
Only bytes are taken from them. webdataset's decoders are never used: some run code that a shard contains.
"""

from __future__ import annotations

import glob
import json
import re
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from lzma import LZMAError
from typing import IO, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from clustermim.data.images import SUFFIXES
from clustermim.data.spec import Spec
from clustermim.errors import DataError
from clustermim.files import user_path

IMAGE_MEMBERS = tuple(suffix[1:] for suffix in SUFFIXES)
LABEL_MEMBERS = ("cls", "json")
MEMBER_BYTES = 500_000_000  # a larger member is neither an image nor a label

_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ")
# webdataset hands a URL to curl, in old versions through a shell: nothing in it may end a quoted text.
_URL = re.compile(r"https?://[\w.~:/@!$&()*+,;=%-]+", re.ASCII)
_DAMAGED_HEADERS = (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError)  # type: ignore[attr-defined]
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # two letters at least: one is a drive


class Shard(NamedTuple):
    """The images of a tar file, in order."""

    place: str  # path or URL
    names: list[str]  # of the image members
    sizes: NDArray[np.int64]
    starts: NDArray[np.int64]  # where their bytes begin; empty for compressed or remote shards
    labels: list[object]  # None where a sample has none


def find_shards(spec: Spec) -> list[str]:
    """The paths and URLs that a pattern with {000..123} or * stands for, in order."""
    from webdataset.shardlists import expand_urls

    places: list[str] = []
    for place in expand_urls(spec.path):
        if _URL.fullmatch(place):
            places.append(place)
        elif _SCHEME.match(place):
            # pipe: runs its text in a shell, gs:, s3: and others run programs.
            raise DataError(f"{spec.text}: only files and plain http(s) URLs are read, not {place}")
        else:
            path = user_path(place)
            found = [str(path)] if path.is_file() else sorted(glob.glob(str(path), recursive=True))
            if not found:
                raise DataError(f"{spec.text}: {place} is not there")
            places += found
    return places


@contextmanager
def open_shard(place: str) -> Iterator[IO[bytes]]:
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


def read_images(shard: Shard) -> Iterator[bytes]:
    """The images of a shard as they come."""
    position = 0
    with open_shard(shard.place) as file, _open_tar(file, "r|*") as tar:
        for info in _walk(tar):
            if position < len(shard.names) and info.name == shard.names[position]:
                position += 1
                yield _content(tar, info)
    if position < len(shard.names):
        raise DataError(f"{shard.place}: has changed since it was opened, {shard.names[position]} is missing")


def list_shard(spec: Spec, place: str) -> Shard:
    """What is in a shard. Of a plain file the headers and labels are read, of others everything passes by."""
    from webdataset.tariterators import group_by_keys

    infos: list[tuple[str, int, int]] = []
    labels: list[object] = []
    with open_shard(place) as file:
        plain = not _URL.fullmatch(place) and not _is_compressed(file)
        with _open_tar(file, "r:" if plain else "r|*") as tar:
            try:
                for sample in group_by_keys(_list_members(spec, tar, place)):
                    info = _pick(sample, spec.options.get("image"), IMAGE_MEMBERS)
                    if info is not None:
                        infos.append((info.name, info.size, info.offset_data))
                        labels.append(_label(spec, place, sample))
            except ValueError as error:  # two members of one name
                raise DataError(f"{place}: {error.args[0]}") from error
    return Shard(
        place,
        [name for name, _, _ in infos],
        np.array([size for _, size, _ in infos], np.int64),
        np.array([start for _, _, start in infos] if plain else [], np.int64),
        labels,
    )


def _is_compressed(file: IO[bytes]) -> bool:
    start = file.read(6)
    file.seek(0)
    return start.startswith(_COMPRESSED)


def _open_tar(file: IO[bytes], mode: Any) -> tarfile.TarFile:
    return tarfile.open(fileobj=file, mode=mode, tarinfo=_StrictInfo)


def _walk(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    while (info := tar.next()) is not None:
        tar.members = []  # type: ignore[attr-defined]  # it would keep a record of every member
        if info.isreg():
            yield info


def _content(tar: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    if info.size > MEMBER_BYTES:
        raise tarfile.ReadError(f"{info.name} has {info.size:,} bytes")
    file = tar.extractfile(info)
    return b"" if file is None else file.read()


def _list_members(spec: Spec, tar: tarfile.TarFile, place: str) -> Iterator[dict[str, Any]]:
    """Every member in the form that webdataset groups into samples; labels as bytes, of others the header."""
    from webdataset.tariterators import base_plus_ext

    wanted = (spec.options["label"],) if "label" in spec.options else LABEL_MEMBERS
    for info in _walk(tar):
        suffix = (base_plus_ext(info.name)[1] or "").lower()
        data = (info.name, _content(tar, info)) if suffix in wanted else info
        yield {"fname": info.name, "data": data, "__url__": place}


def _pick(sample: dict[str, Any], wanted: str | None, usual: Sequence[str]) -> Any:
    """The member of a sample with the wanted suffix, or with the first of the usual ones that it has."""
    return next((sample[name] for name in ((wanted,) if wanted else usual) if name in sample), None)


def _label(spec: Spec, place: str, sample: dict[str, Any]) -> object:
    """The number in a .cls member, or `label` of a .json member; None if there is neither."""
    found = _pick(sample, spec.options.get("label"), LABEL_MEMBERS)
    if found is None:
        return None
    name, content = found
    try:
        if name.lower().endswith("json"):
            value = json.loads(content)
            return value.get("label") if isinstance(value, dict) else None
        return int(content.decode("ascii"))
    except ValueError as error:
        raise DataError(f"{place}: {name} does not hold a label ({error})") from error
