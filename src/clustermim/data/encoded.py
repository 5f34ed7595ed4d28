"""Sources of images that are kept as encoded files, in a folder, a table or a shard: decoded by several threads."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from clustermim.data.cache import cache_folder, fingerprint_of, read_record, write_record
from clustermim.data.images import Name, Pixels, count_channels, decode_crop, decode_image
from clustermim.data.source import Batch, Rows, Source, split
from clustermim.data.spec import Spec
from clustermim.data.transforms import TRIES
from clustermim.errors import ConfigError, DataError
from clustermim.progress import log_info, track

T = TypeVar("T")
Fetch = Callable[[int], bytes]

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
THREADS = max(1, CORES // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))  # ranks of one machine share its cores
CHECKED_AT_ONCE = 1024  # images whose bytes are in memory while files are checked
NAMED = 10  # bad files that a message names


class EncodedSource(Source):
    """Images kept as encoded files, decoded by several threads when read: the decoders release Python's lock.

    Size, channels and on_bad_image come from `spec`; without `channels`, the source is grey if all files of `sample`,
    positions that are cheap to fetch together, are. `name` gives the name of an image by position, for messages.
    `fetcher` makes some positions ready and gives a function from position to bytes, which is called from several
    threads at once and may raise OSError or DataError.
    """

    workers: int = THREADS

    def __init__(
        self,
        spec: Spec,
        count: int,
        name: Callable[[int], str],
        fetcher: Callable[[Sequence[int]], Fetch],
        labels: NDArray[np.int64] | None,
        class_names: Sequence[str],
        fingerprint: str,
        sample: Sequence[int],
        dates: str = "",
    ) -> None:
        self.spec, self.labels, self.class_names = spec.text, labels, tuple(class_names)
        self.fingerprint, self.dates, self.skipped, self._contents = fingerprint, dates, {}, ""
        self.name, self.fetcher = name, fetcher
        self._count, self._skip, self._size, self._channels = count, spec.skips_bad_images, spec.size, spec.channels
        found: list[int | DataError] = []
        if self._channels is None:  # a grey source keeps each file's own, so that one in colour is noticed
            fetch = fetcher(sample)
            found = [self._attempt(count_channels, fetch, row) for row in sample]
            self._channels = 3 if 3 in found else None
        row, first = self._first_readable()
        self.shape = (first.shape[0], first.shape[1], first.shape[2])
        self.dtype = np.uint16 if first.dtype == np.uint16 else np.uint8
        if not self._skip and (row or any(isinstance(channels, DataError) for channels in found)):
            self.readable(range(count))  # names all that are bad

    def __len__(self) -> int:
        return self._count

    def read(self, indices: Rows) -> Batch:
        decode = partial(decode_image, channels=self._channels, size=self._size, dtype=self.dtype)
        return self._load(self.rows(indices), lambda _, data, name: decode(data, name), self.shape)

    def read_crops(self, indices: Rows, draws: Callable[[int], Tensor], size: tuple[int, int] | None = None) -> Batch:
        """Boxes of the files themselves, decoded at the lowest resolution that is enough."""
        mirrored, numbers = (draws(1)[:, 0] < 0.5).tolist(), draws(4 * TRIES).view(-1, 4, TRIES).tolist()
        size = size or self.shape[1:]
        decode = partial(decode_crop, size=size, channels=self._channels, dtype=self.dtype)

        def decode_one(place: int, data: bytes, name: Name) -> Pixels:
            return decode(data, name, numbers[place], mirrored[place])

        batch = self._load(self.rows(indices), decode_one, (*size, self.shape[0]))  # channels last, as they are made
        return batch._replace(images=batch.images.permute(0, 3, 1, 2))

    def readable(self, indices: Rows) -> NDArray[np.bool_]:
        rows = self.rows(indices)
        path = cache_folder() / "checked" / f"{fingerprint_of(self.fingerprint, self.dates, rows)}.json"
        known = read_record(path) or {}
        with contextlib.suppress(ValueError, AttributeError, KeyError):  # not there
            bad = {int(row): str(why) for row, why in known["bad"].items()}
            self._contents = str(known["contents"])
            return self._without_bad(rows, bad)
        faults, digest = dict[int, DataError](), hashlib.sha256()
        pieces = [piece.tolist() for piece in split(rows, CHECKED_AT_ONCE)]
        for piece in track(pieces, "checking files", total=len(pieces)):
            found = _pool(self.workers).map(partial(self._check, self.fetcher(piece)), piece)
            for row, (content, fault) in zip(piece, found, strict=True):
                digest.update(content)
                if fault is not None:
                    faults[row] = fault
        bad, self._contents = {row: str(fault) for row, fault in faults.items()}, digest.hexdigest()[:16]
        if not any(isinstance(fault.__cause__, OSError) for fault in faults.values()):  # which may be gone tomorrow
            write_record(path, {"bad": {str(row): why for row, why in bad.items()}, "contents": self._contents})
        return self._without_bad(rows, bad)

    def contents(self) -> str:
        return self._contents

    def _without_bad(self, rows: NDArray[np.int64], bad: dict[int, str]) -> NDArray[np.bool_]:
        if bad and not self._skip:
            named = "; ".join(list(bad.values())[:NAMED])
            more = f"; and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
            remedy = f"{self.spec}{'&' if '?' in self.spec else '?'}on_bad_image=skip"
            raise DataError(
                f"{len(bad)} of {len(rows):,} images cannot be used: {named}{more}. "
                f"Mend or remove them, or leave them out with {remedy}"
            )
        if any(self.name(row) not in self.skipped for row in bad):  # said once
            log_info(f"{len(bad)} of {len(rows):,} images cannot be read and are left out, such as {min(bad.values())}")
        for row, why in bad.items():
            self.skipped[self.name(row)] = why.removeprefix(f"{self.name(row)}: ")
        return ~np.isin(rows, list(bad))

    def _check(self, fetch: Fetch, row: int) -> tuple[bytes, DataError | None]:
        """The sha256 of a file, and why it cannot be used; None if it can."""
        small = None if self._size is None else (8, 8)  # all of the file is read, and little of it computed
        content = b""
        try:
            data = _bytes(fetch, row, self.name)
            content = hashlib.sha256(data).digest()
            image = decode_image(data, self.name(row), channels=self._channels, size=small)
        except DataError as error:
            return content, error
        return content, self._misfit(row, image.shape) if small is None and image.shape != self.shape else None

    def _load(
        self, rows: NDArray[np.int64], decode: Callable[[int, bytes, Name], Pixels], shape: tuple[int, int, int]
    ) -> Batch:
        """A batch of images of a shape; with `on_bad_image=skip` without those that cannot be decoded."""
        images, bad, misfits = np.empty((len(rows), *shape), self.dtype), dict[int, DataError](), dict[int, DataError]()
        fetch = self.fetcher(rows.tolist())

        def fill(worker: int) -> None:
            for place in places:  # each the next that nobody has taken: none waits long for the others at the end
                row = int(rows[place])
                try:
                    result = decode(place, _bytes(fetch, row, self.name), partial(self.name, row))
                except DataError as error:
                    bad[place] = error
                    continue
                if result.shape == shape:
                    images[place] = result
                else:
                    found = result.shape if shape == self.shape else result.transpose(2, 0, 1).shape
                    misfits[place] = self._misfit(row, found)

        places = iter(range(len(rows)))
        list(_pool(self.workers).map(fill, range(self.workers)))
        if faults := misfits if self._skip else misfits | bad:
            self.readable(range(len(self)))  # names all that are bad, not the first one only
            first = faults[min(faults)]  # whichever thread met one first
            raise first if first in misfits.values() else DataError(f"{first}; it was good when files were checked")
        for place in sorted(bad):
            name = self.name(int(rows[place]))
            self.skipped[name] = str(bad[place]).removeprefix(f"{name}: ")
        kept = ~np.isin(np.arange(len(rows)), list(bad))
        return self.batch(images[kept] if bad else images, rows[kept])

    def _attempt(self, use: Callable[[bytes, Name], T], fetch: Fetch, row: int) -> T | DataError:
        """What `use` makes of a file, or its error."""
        try:
            return use(_bytes(fetch, row, self.name), partial(self.name, row))
        except DataError as error:
            return error

    def _first_readable(self) -> tuple[int, Pixels]:
        decode = partial(decode_image, channels=self._channels, size=self._size)
        for row in range(len(self)):
            result = self._attempt(decode, self.fetcher([row]), row)
            if not isinstance(result, DataError):
                return row, result
        raise DataError(f"{self.spec}: none of its {len(self)} images can be read; the last: {result}")

    def _misfit(self, row: int, shape: tuple[int, ...]) -> DataError:
        """What to say of an image of another shape than the first."""
        (channels, height, width), side, where = shape, min(self.shape[1:]), self.name(row)
        if channels != self.shape[0]:
            return DataError(f"{where}: in colour among grey images; add channels=3 or channels=1 to {self.spec}")
        return DataError(  # patches of the usual sizes fit a multiple of 32
            f"{where}: {height}×{width} pixels where the first image has {self.shape[1]}×{self.shape[2]}; "
            f"add ?size={side // 32 * 32 or side} to bring all to one size"
        )


def set_workers(count: int) -> None:
    """How many threads decode files, for all sources of this process; 0 for one a core."""
    if count < 0:
        raise ConfigError(f"--workers {count} is no number of threads: 0 stands for one a core, {CORES} here")
    if count > CORES:
        log_info(f"warning: {count} workers share {CORES} cores: they will wait for each other")
    EncodedSource.workers = count or THREADS


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    """The threads that decode, shared by all sources."""
    return ThreadPoolExecutor(workers, "decode")


def _bytes(fetch: Fetch, row: int, name: Callable[[int], str]) -> bytes:
    try:
        return fetch(row)
    except OSError as error:
        raise DataError(f"{name(row)}: {error.strerror or error}") from error


def sample_bytes(fetch: Fetch, sample: Sequence[int]) -> list[bytes]:
    """The bytes of some images for a fingerprint; those that cannot be read are an error, or skipped, later."""
    found = []
    for row in sample:
        found.append(b"")
        with contextlib.suppress(OSError):
            found[-1] = fetch(row)
    return found


def evenly_spaced(count: int, most: int = 256) -> list[int]:
    """At most `most` of the positions 0…count−1, evenly spaced, the first and last among them."""
    return sorted({round(position) for position in np.linspace(0, count - 1, min(count, most))})
