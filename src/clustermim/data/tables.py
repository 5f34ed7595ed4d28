"""Tables with a column of images: `parquet:PATH`, `hf:NAME[/SPLIT]` and objects of the datasets library."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustermim.data.arrays import to_classes
from clustermim.data.cache import cache_folder, fingerprint_of
from clustermim.data.encoded import EncodedSource, evenly_spaced, sample_bytes
from clustermim.data.spec import Spec
from clustermim.errors import DataError, MissingExtraError, format_error
from clustermim.files import user_path
from clustermim.hub import HUB_NAME
from clustermim.reading import read_bytes

IMAGE_COLUMNS = ("image", "img", "jpg", "png")
LABEL_COLUMNS = ("label", "labels", "fine_label", "class")
SPLIT_NAMES = ("train", "test", "validation", "val", "valid")  # of a set's parts, wherever it comes from


def open_parquet(spec: Spec) -> EncodedSource:
    """Images of one or several parquet files of the same columns, in the order of the files' names.

    The image column holds encoded files, as bytes or as the hub's {bytes, path}; the label column whole
    numbers or texts. The options `image` and `label` name them, otherwise usual names are looked for. 🤗 datasets keeps
    an uncompressed copy in the cache, which is read from the disk as needed.
    """
    datasets, files = _datasets(spec), _find_files(spec)
    places, cache = list(map(str, files)), cache_folder() / "parquet"
    try:
        table = datasets.Dataset.from_parquet(places, cache_dir=str(cache))
    except Exception as error:  # those of arrow and of datasets are of many kinds
        names = ", ".join(sorted({file.name for file in files}))
        reason = format_error(error.__cause__ or error)
        raise DataError(f"{spec.text}: no parquet files, or not of the same columns: {names} ({reason})") from error
    within = user_path(spec.path) if user_path(spec.path).is_dir() else files[0].parent
    return open_table(table, spec, fingerprint_of(np.array([file.stat().st_mtime_ns for file in files])), within)


def _datasets(spec: Spec) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError(spec.text, "hf") from error
    return datasets


def _find_files(spec: Spec) -> list[Path]:
    """The file, the .parquet files below the folder, or those that the pattern with * matches."""
    path = user_path(spec.path)
    if path.is_file():
        return [path]
    if path.is_dir():
        files = sorted(file for file in path.rglob("*.parquet") if not file.name.startswith("."))
    else:
        files = sorted(map(Path, glob.glob(str(path), recursive=True)))
    if not files:
        raise DataError(f"{spec.text}: no .parquet file there")
    # Splits often lie side by side; taken together, the test images would be trained on.
    names = [file.relative_to(path).parts if path.is_dir() else (file.name,) for file in files]
    splits = sorted({re.split("[-.]", part)[0] for parts in names for part in parts} & set(SPLIT_NAMES))
    if len(splits) > 1:
        raise DataError(
            f"{spec.text}: files of several splits ({', '.join(splits)}); name those of one, "
            "such as parquet:data/train-*.parquet"
        )
    return files


def find_columns(spec: Spec, columns: Sequence[str]) -> tuple[str, str | None]:
    """The names of the image column and of the label column, if there is one."""
    found: list[str | None] = []
    for option, usual in (("image", IMAGE_COLUMNS), ("label", LABEL_COLUMNS)):
        name = spec.options.get(option) or next((name for name in usual if name in columns), None)
        if name not in columns and (option in spec.options or option == "image"):
            known = ", ".join(columns)
            raise DataError(
                f"{spec.text}: no {option} column {name or 'of a usual name'}; add ?{option}= one of {known}"
            )
        found.append(name)
    return str(found[0]), found[1]


def find_classes(
    where: str, values: Sequence[object], names: Sequence[str] = ()
) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """Labels (n,) and class names from a column of whole numbers or texts; one of None or −1 alone is no labels."""
    if all(value is None or value == -1 for value in values):
        return None, ()
    if missing := sum(value is None for value in values):
        raise DataError(f"{where}: {missing} of {len(values)} labels are missing")
    kind = str if isinstance(values[0], str) else int
    if not all(isinstance(value, kind) for value in values):
        raise DataError(f"{where}: labels must be whole numbers or texts; name another column, ?label=…")
    return to_classes(where, np.array([kind(value) for value in values]), len(values), names)  # type: ignore[call-overload]


def open_hf(spec: Spec) -> EncodedSource:
    """A split of a dataset of the hub, or of a folder that `save_to_disk` wrote.

    A path that is a folder here is taken as such; otherwise the last component is the split if it is train,
    test or validation. The option `split` decides in any case, and without either it is train.
    """
    datasets = _datasets(spec)
    name, split = split_path(spec)
    folder = user_path(name)
    if not folder.is_dir() and not HUB_NAME.fullmatch(name):
        raise DataError(f"{spec.text}: neither a folder nor a name of the hub, OWNER/NAME[/SPLIT]")
    try:
        if folder.is_dir():
            table = datasets.load_from_disk(str(folder))
        else:
            config, revision = spec.options.get("config"), spec.options.get("revision")
            safe = {"trust_remote_code": False}  # older versions would ask
            table = datasets.load_dataset(name, config, split=split, revision=revision, **safe)
    except Exception as error:  # network errors of several libraries, those of the dataset, and whatever arrow raises
        problem = f"{name} (split {split}) cannot be loaded"
        remedy = "check the name and the network, or bring a folder written by save_to_disk and use hf:FOLDER"
        if folder.is_dir():
            problem, remedy = f"{folder} was not written by save_to_disk", "use folder:PATH or parquet:PATH"
        raise DataError(f"{spec.text}: {problem} ({format_error(error)}); {remedy}") from error
    if isinstance(table, datasets.DatasetDict):
        if split not in table:
            raise DataError(f"{spec.text}: no split {split!r}; there are: {', '.join(map(str, table))}")
        table = table[split]
    return open_table(table, spec, within=folder if folder.is_dir() else Path(datasets.config.HF_CACHE_HOME))


def split_path(spec: Spec) -> tuple[str, str]:
    """The name of the dataset, and its split."""
    path, split = spec.path.rstrip("/"), spec.options.get("split")
    name, _, last = path.rpartition("/")
    if split is None and name and last in SPLIT_NAMES and not user_path(path).is_dir():
        return name, last
    return path, split or "train"


def open_table(table: Any, spec: Spec, dates: str = "", within: Path | None = None) -> EncodedSource:
    """The images of a `datasets.Dataset`, without the format or transform that was set on it."""
    import datasets

    table = table.with_format(None)
    if not len(table):
        raise DataError(f"{spec.text}: the table has no rows")
    image, label = find_columns(spec, table.column_names)
    column = table.features[image]
    if isinstance(column, datasets.Image):
        table = table.cast_column(image, datasets.Image(decode=False))  # decoded by us, as from any source
    elif "bytes" not in column if isinstance(column, dict) else getattr(column, "dtype", "") not in _BYTES:
        raise DataError(f"{spec.text}: column {image!r} does not hold images; name another, ?image=…")
    values = list(table.select_columns([label])[label]) if label else []
    names = getattr(table.features[label], "names", None) if label else None
    labels, class_names = find_classes(spec.text, values, names or ())
    cells, sample = table.select_columns([image]), evenly_spaced(len(table))

    def fetcher(rows: Sequence[int]) -> Callable[[int], bytes]:
        found = dict(zip(rows, cells[list(rows)][image], strict=True))
        return lambda row: _to_bytes(found[row], within)

    parts = [b"" if labels is None else labels.tobytes(), *sample_bytes(fetcher(sample), sample)]
    fingerprint = fingerprint_of(str(len(table)), *parts)
    return EncodedSource(
        spec, len(table), lambda row: f"{spec.path} row {row}", fetcher, labels, class_names, fingerprint, sample, dates
    )


_BYTES = ("binary", "large_binary")


def _to_bytes(cell: Any, within: Path | None) -> bytes:
    """The bytes in a cell, or of the file that it names; a stranger's table names those below its own folder only."""
    if not isinstance(cell, dict):
        return cell if isinstance(cell, bytes) else b""
    if cell.get("bytes") is not None:
        return bytes(cell["bytes"])
    if not cell.get("path"):
        return b""
    path = Path(cell["path"]) if within is None else within / cell["path"]
    if within is not None and not path.resolve().is_relative_to(within.resolve()):
        raise OSError("it names a file outside of the folder of its table, which is not opened")
    try:
        return read_bytes(path)
    except OSError as error:
        raise OSError("the file that it names cannot be read") from error
