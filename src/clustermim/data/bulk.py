"""Encoded images that are cheaper to fetch many at a time than one by one: rows of tables, shards."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from clustermim.data.images import EncodedSource
from clustermim.data.source import Batch
from clustermim.data.spec import Spec
from clustermim.errors import DataError


class Numbered(Sequence[str]):
    """The names of images by position, made when asked for: a million strings would take 100 MB."""

    def __init__(self, count: int, name: Callable[[int], str]) -> None:
        self._count = count
        self._name = name

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> str:  # type: ignore[override]  # no slices
        if not -self._count <= index < self._count:
            raise IndexError(index)
        return self._name(index % self._count)


class BulkSource(EncodedSource):
    """Encoded images behind `collect`.

    `sample` are positions that are cheap to fetch together, from which the number of channels is found. A
    subclass sets what `collect` needs before it calls this constructor, which already reads images.
    """

    def __init__(
        self,
        spec: Spec,
        names: Sequence[str],
        labels: NDArray[np.int64] | None,
        class_names: Sequence[str],
        fingerprint: str,
        sample: Sequence[int],
    ) -> None:
        self._sample = sample
        super().__init__(spec, names, self._fetch_one, labels, class_names, fingerprint)

    @abstractmethod
    def collect(self, rows: Sequence[int]) -> dict[int, bytes]:
        """The encoded images at these positions, by position, without those whose files cannot be read."""

    def read(self, indices: Sequence[int] | NDArray[np.int64]) -> Batch:
        rows = np.asarray(indices, dtype=np.int64).tolist()
        return self.decode(rows, self.collect(rows))

    def decode(self, rows: Sequence[int], encoded: Mapping[int, bytes]) -> Batch:
        """A batch of images whose bytes are at hand."""
        return EncodedSource.read(self._with(self.names, encoded), rows)

    def _fetch_one(self, index: int) -> bytes:
        return self._with(self.names, self.collect([index]))._fetch(index)

    def _find_channels(self) -> int | None:
        encoded = self.collect(self._sample)
        names = [self.names[row] for row in self._sample]
        numbered = {number: encoded[row] for number, row in enumerate(self._sample) if row in encoded}
        return EncodedSource._find_channels(self._with(names, numbered))

    def _with(self, names: Sequence[str], encoded: Mapping[int, bytes]) -> BulkSource:
        """This source, but with bytes at hand; a copy, so that several batches can be decoded at once."""

        def fetch(row: int) -> bytes:
            if row not in encoded:
                raise DataError(f"{names[row]}: the file that it names cannot be read")
            return encoded[row]

        view = copy.copy(self)
        view.names, view._fetch = names, fetch
        return view
