"""`wds:PATTERN`: images in tar shards, streamed from front to back in bounded memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustermim.data.cache import fingerprint_of
from clustermim.data.columns import to_classes
from clustermim.data.images import EncodedSource, evenly_spaced
from clustermim.data.source import Batch
from clustermim.data.spec import Spec
from clustermim.data.tars import Shard, find_shards, list_shard, open_shard, read_images
from clustermim.errors import DataError, MissingExtraError

SHUFFLE_IMAGES = 4096  # that wait in the shuffle buffer at most,
SHUFFLE_BYTES = 256_000_000  # and their size at most

_SAMPLE = 64  # images that are looked at on opening


class ShardSource(EncodedSource):
    """Images in tar shards, none of them empty. With a seed: shards shuffled, then images in a bounded buffer."""

    def __init__(
        self, spec: Spec, shards: Sequence[Shard], labels: NDArray[np.int64] | None, class_names: Sequence[str]
    ) -> None:
        self._shards = shards
        self._starts = np.cumsum([0, *(len(shard.names) for shard in shards)])
        count = int(self._starts[-1])
        skippable = all(len(shard.starts) for shard in shards)
        sample = evenly_spaced(count, _SAMPLE) if skippable else list(range(min(count, _SAMPLE)))
        parts = ["\0".join(shard.names).encode() + shard.sizes.tobytes() for shard in shards]
        parts += [b"" if labels is None else labels.tobytes(), *map(self._fetcher(sample), sample)]
        super().__init__(spec, count, self._name, self._fetcher, labels, class_names, fingerprint_of(*parts), sample)

    def stream(self, seed: int | None, among: NDArray[np.bool_] | None) -> Iterator[tuple[int, bytes]]:
        """Positions and bytes; every rank streams all shards."""
        generator = np.random.default_rng(seed)
        numbers = range(len(self._shards)) if seed is None else generator.permutation(len(self._shards)).tolist()
        found = (item for item in self._read_shards(numbers) if among is None or among[item[0]])
        return found if seed is None else shuffled(found, generator)

    def load(self, chunk: list[Any]) -> Batch:
        encoded: dict[int, bytes] = dict(chunk)
        return self.decode(list(encoded), encoded.__getitem__)

    def _fetcher(self, rows: Sequence[int]) -> Callable[[int], bytes]:
        """From their places in plain files; compressed and remote shards are streamed up to the last one."""
        places = np.searchsorted(self._starts, rows, side="right") - 1
        found: dict[int, bytes] = {}
        for number in np.unique(places).tolist():
            shard, first = self._shards[number], int(self._starts[number])
            wanted = set(np.asarray(rows)[places == number].tolist())
            if len(shard.starts):
                with open_shard(shard.place) as file:
                    for row in sorted(wanted):
                        file.seek(int(shard.starts[row - first]))
                        found[row] = file.read(int(shard.sizes[row - first]))
                continue
            passing = itertools.islice(self._read_shards([number]), max(wanted) - first + 1)
            found.update(item for item in passing if item[0] in wanted)
        return found.__getitem__

    def _read_shards(self, numbers: Iterable[int]) -> Iterator[tuple[int, bytes]]:
        """Positions and bytes of all images of these shards."""
        for number in numbers:
            yield from enumerate(read_images(self._shards[number]), int(self._starts[number]))

    def _name(self, row: int) -> str:
        number = int(np.searchsorted(self._starts, row, side="right")) - 1
        shard = self._shards[number]
        return f"{shard.place}: {shard.names[row - int(self._starts[number])]}"


def open_wds(spec: Spec) -> ShardSource:
    """Images in local or http(s) tar shards, with labels from .cls or .json members if there are any.

    The options `image` and `label` name the members by their suffix. Opening lists every shard once: it reads
    the headers of plain files and all of compressed or remote ones.
    """
    try:
        import webdataset  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(spec.text, "webdataset") from error
    shards = [shard for place in find_shards(spec) if (shard := list_shard(spec, place)).names]
    if not shards:
        raise DataError(f"{spec.text}: no images in these shards")
    labels, class_names = to_classes(spec.text, [label for shard in shards for label in shard.labels], ())
    return ShardSource(spec, shards, labels, class_names)


def shuffled(items: Iterable[tuple[int, bytes]], generator: np.random.Generator) -> Iterator[tuple[int, bytes]]:
    """The same items, each a random one of those that wait in a buffer of bounded number and size."""
    waiting: list[tuple[int, bytes]] = []

    def take() -> tuple[int, bytes]:
        place = int(generator.integers(len(waiting)))
        waiting[place], waiting[-1] = waiting[-1], waiting[place]
        return waiting.pop()

    size = 0
    for item in items:
        waiting.append(item)
        size += len(item[1])
        while len(waiting) > SHUFFLE_IMAGES or (size > SHUFFLE_BYTES and len(waiting) > 1):
            taken = take()
            size -= len(taken[1])
            yield taken
    while waiting:
        yield take()
