"""`hf:NAME[/SPLIT]`: images through the datasets library, from the hub or a folder of `save_to_disk`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustermim.data.bulk import BulkSource, Numbered
from clustermim.data.cache import fingerprint_of
from clustermim.data.columns import SPLIT_NAMES, find_columns, to_classes
from clustermim.data.images import evenly_spaced
from clustermim.data.spec import Spec
from clustermim.errors import DataError, MissingExtraError
from clustermim.files import user_path

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)


class HubSource(BulkSource):
    """Rows of a table of the datasets library, whose image column gives {bytes, path} or bytes."""

    def __init__(
        self,
        spec: Spec,
        table: Any,
        image: str,
        labels: NDArray[np.int64] | None,
        class_names: Sequence[str],
    ) -> None:
        self._table = table.select_columns([image])
        self._image = image
        self._where = spec.path
        sample = evenly_spaced(len(table))
        encoded = self.collect(sample)
        parts = [b"" if labels is None else labels.tobytes(), *(encoded.get(row, b"") for row in sample)]
        names = Numbered(len(table), lambda row: f"{self._where} row {row}")
        fingerprint = fingerprint_of(str(len(table)), *parts)
        super().__init__(spec, names, labels, class_names, fingerprint, sample)

    def collect(self, rows: Sequence[int]) -> dict[int, bytes]:
        cells = self._table[list(rows)][self._image]
        found = ((row, _to_bytes(cell)) for row, cell in zip(rows, cells, strict=True))
        return {row: data for row, data in found if data is not None}


def _to_bytes(cell: Any) -> bytes | None:
    """The bytes in a cell, or of the file that it names."""
    if not isinstance(cell, dict):
        return cell if isinstance(cell, bytes) else b""
    if cell.get("bytes") is not None:
        return bytes(cell["bytes"])
    try:
        return Path(cell["path"]).read_bytes() if cell.get("path") else b""
    except OSError:
        return None


def open_hf(spec: Spec) -> HubSource:
    """A split of a dataset of the hub, or of a folder that `save_to_disk` wrote.

    A path that is a folder here is taken as such; otherwise the last component is the split if it is train,
    test or validation. The option `split` decides in any case, and without either it is train.
    """
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError(spec.text, "hf") from error
    return open_table(_load(spec, datasets), spec)


def open_table(table: Any, spec: Spec) -> HubSource:
    """The images of a `datasets.Dataset`, without the format or transform that was set on it."""
    import datasets

    table = table.with_format(None)
    if not len(table):
        raise DataError(f"{spec.text}: the table has no rows")
    image, label = find_columns(spec, table.column_names)
    if isinstance(table.features[image], datasets.Image):
        table = table.cast_column(image, datasets.Image(decode=False))  # decoded by us, as from any source
    elif getattr(table.features[image], "dtype", "") not in ("binary", "large_binary"):
        raise DataError(f"{spec.text}: column {image!r} does not hold images; name another, ?image=…")
    values = list(table.select_columns([label])[label]) if label else []
    names = getattr(table.features[label], "names", None) if label else None
    labels, class_names = to_classes(spec.text, values, names or ())
    return HubSource(spec, table, image, labels, class_names)


def split_path(spec: Spec) -> tuple[str, str]:
    """The name of the dataset, and its split."""
    path, split = spec.path.rstrip("/"), spec.options.get("split")
    if split is None and not user_path(path).is_dir():
        name, _, last = path.rpartition("/")
        if name and last in SPLIT_NAMES:
            return name, last
    return path, split or "train"


def _load(spec: Spec, datasets: Any) -> Any:
    """The table, from a folder or else from the hub (or the hub's cache on this machine)."""
    name, split = split_path(spec)
    folder = user_path(name)
    if folder.is_dir():
        try:
            loaded = datasets.load_from_disk(str(folder))
        except Exception as error:  # whatever arrow and the library raise on files that are not theirs
            raise DataError(
                f"{spec.text}: {folder} was not written by save_to_disk ({_short(error)}); "
                "for other files use folder:PATH or parquet:PATH"
            ) from error
        if not isinstance(loaded, datasets.DatasetDict):
            return loaded
        if split not in loaded:
            raise DataError(f"{spec.text}: no split {split!r}; there are: {', '.join(loaded)}")
        return loaded[split]
    if not _HUB_NAME.fullmatch(name):
        raise DataError(f"{spec.text}: neither a folder nor a name of the hub, OWNER/NAME[/SPLIT]")
    try:
        return datasets.load_dataset(
            name, spec.options.get("config"), split=split, revision=spec.options.get("revision")
        )
    except Exception as error:  # network errors of several libraries, and those of the dataset itself
        raise DataError(
            f"{spec.text}: {name} (split {split}) cannot be loaded ({_short(error)}); check the name and the "
            "network, or copy a folder written by save_to_disk to this machine and use hf:FOLDER"
        ) from error


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}"
