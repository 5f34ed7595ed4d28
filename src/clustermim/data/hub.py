"""`hf:NAME[/SPLIT]`: images through the datasets library, from the hub or a folder of `save_to_disk`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from clustermim.data.cache import fingerprint_of
from clustermim.data.images import EncodedSource, evenly_spaced, sample_bytes
from clustermim.data.spec import Spec
from clustermim.data.tables import SPLIT_NAMES, find_columns, to_classes
from clustermim.errors import DataError, MissingExtraError
from clustermim.files import user_path

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)


def open_hf(spec: Spec) -> EncodedSource:
    """A split of a dataset of the hub, or of a folder that `save_to_disk` wrote.

    A path that is a folder here is taken as such; otherwise the last component is the split if it is train,
    test or validation. The option `split` decides in any case, and without either it is train.
    """
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError(spec.text, "hf") from error
    return open_table(_load(spec, datasets), spec)


def open_table(table: Any, spec: Spec) -> EncodedSource:
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
    cells, sample = table.select_columns([image]), evenly_spaced(len(table))

    def fetcher(rows: Sequence[int]) -> Callable[[int], bytes]:
        found = dict(zip(rows, cells[list(rows)][image], strict=True))
        return lambda row: _to_bytes(found[row])

    parts = [b"" if labels is None else labels.tobytes(), *sample_bytes(fetcher(sample), sample)]
    fingerprint = fingerprint_of(str(len(table)), *parts)
    return EncodedSource(
        spec, len(table), lambda row: f"{spec.path} row {row}", fetcher, labels, class_names, fingerprint, sample
    )


def _to_bytes(cell: Any) -> bytes:
    """The bytes in a cell, or of the file that it names."""
    if not isinstance(cell, dict):
        return cell if isinstance(cell, bytes) else b""
    if cell.get("bytes") is not None:
        return bytes(cell["bytes"])
    try:
        return Path(cell["path"]).read_bytes() if cell.get("path") else b""
    except OSError as error:
        raise OSError("the file that it names cannot be read") from error


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
    if not folder.is_dir() and not _HUB_NAME.fullmatch(name):
        raise DataError(f"{spec.text}: neither a folder nor a name of the hub, OWNER/NAME[/SPLIT]")
    try:
        if not folder.is_dir():
            config, revision = spec.options.get("config"), spec.options.get("revision")
            return datasets.load_dataset(name, config, split=split, revision=revision)
        loaded = datasets.load_from_disk(str(folder))
    except Exception as error:  # network errors of several libraries, those of the dataset, and whatever arrow raises
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        if folder.is_dir():
            problem, remedy = (
                f"{folder} was not written by save_to_disk",
                "for other files use folder:PATH or parquet:PATH",
            )
        else:
            problem = f"{name} (split {split}) cannot be loaded"
            remedy = (
                "check the name and the network, or copy a folder written by save_to_disk to this machine and "
                "use hf:FOLDER"
            )
        raise DataError(f"{spec.text}: {problem} ({reason}); {remedy}") from error
    if not isinstance(loaded, datasets.DatasetDict):
        return loaded
    if split not in loaded:
        raise DataError(f"{spec.text}: no split {split!r}; there are: {', '.join(loaded)}")
    return loaded[split]
