"""Tables with a column of images: `parquet:PATH`, `hf:NAME[/SPLIT]` and objects of the datasets library."""

from __future__ import annotations

import glob
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustermim.data.arrays import to_classes
from clustermim.data.cache import fingerprint_of
from clustermim.data.images import EncodedSource, by_group, evenly_spaced, sample_bytes
from clustermim.data.spec import Spec
from clustermim.errors import DataError, MissingExtraError, format_error
from clustermim.files import user_path
from clustermim.hub import HUB_NAME

IMAGE_COLUMNS = ("image", "img", "jpg", "png")
LABEL_COLUMNS = ("label", "labels", "fine_label", "class")
SPLIT_NAMES = ("train", "test", "validation", "val", "valid")  # of a set's parts, wherever it comes from
CACHE_BYTES = 256_000_000  # of encoded images that a parquet source keeps in memory


class ParquetSource(EncodedSource):
    """Rows of parquet files, read by row group; the groups used last stay in memory, up to CACHE_BYTES.

    `groups` are (file, group of that file, rows, bytes); a group larger than the cache is held alone.
    """

    def __init__(
        self,
        spec: Spec,
        groups: Sequence[tuple[Path, int, int, int]],
        leaf: str,
        labels: NDArray[np.int64] | None,
        class_names: Sequence[str],
    ) -> None:
        self._groups, self._leaf, self._lock = groups, leaf, threading.Lock()
        self._starts = np.cumsum([0, *(rows for _, _, rows, _ in groups)])
        self._loaded: OrderedDict[int, Any] = OrderedDict()
        sample = [int(self._starts[g]) for g in evenly_spaced(len(groups), most=4)]
        first = [*map(self._fetcher(sample), sample)]
        if not any(first):
            raise DataError(f"{spec.text}: {leaf} is empty; the table may hold only the paths of its images")
        listing = ",".join(f"{rows}:{size}" for _, _, rows, size in groups)
        fingerprint = fingerprint_of(listing, b"" if labels is None else labels.tobytes(), *first)
        count = int(self._starts[-1])
        super().__init__(spec, count, self._name, self._fetcher, labels, class_names, fingerprint, sample)

    def _fetcher(self, rows: Sequence[int]) -> Callable[[int], bytes]:
        found: dict[int, bytes] = {}
        for group, members in by_group(self._starts, rows):
            cells, first = self._load_group(group), int(self._starts[group])
            found.update((row, cells[row - first].as_py() or b"") for row in members)
        return found.__getitem__

    def shuffle(self, seed: int) -> NDArray[np.int64]:
        """Row groups shuffled, then the rows of as many as fit in memory: each is needed during one stretch only."""
        generator = np.random.default_rng(seed)
        stretches: list[list[NDArray[np.int64]]] = [[]]
        held = 0
        for group in generator.permutation(len(self._groups)).tolist():
            held += self._groups[group][3]
            # Half, since a batch at the border of two stretches needs groups of both.
            if held > CACHE_BYTES // 2 and stretches[-1]:
                stretches.append([])
                held = self._groups[group][3]
            stretches[-1].append(np.arange(self._starts[group], self._starts[group + 1]))
        return np.concatenate([generator.permutation(np.concatenate(stretch)) for stretch in stretches])

    def _load_group(self, group: int) -> Any:
        """The image column of a group, a pyarrow array of bytes."""
        with self._lock:
            if group not in self._loaded:
                path, number, _, _ = self._groups[group]
                self._loaded[group] = _read_cells(path, number, self._leaf)
                while len(self._loaded) > 1 and sum(c.nbytes for c in self._loaded.values()) > CACHE_BYTES:
                    self._loaded.popitem(last=False)
            self._loaded.move_to_end(group)
            return self._loaded[group]

    def _name(self, row: int) -> str:
        ((group, _),) = by_group(self._starts, [row])
        path = self._groups[group][0]
        first = next(g for g, other in enumerate(self._groups) if other[0] == path)
        return f"{path} row {row - int(self._starts[first])}"


def open_parquet(spec: Spec) -> ParquetSource:
    """Images of one or several parquet files of the same columns, in the order of the files' names.

    The image column holds encoded files, as bytes or as the hub's {bytes, path}; the label column whole
    numbers or texts. The options `image` and `label` name them, otherwise usual names are looked for.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtraError(spec.text, "hf") from error
    groups: list[tuple[Path, int, int, int]] = []
    values: list[object] = []
    files = _find_files(spec)
    for path in files:
        try:
            with pq.ParquetFile(path) as file:
                if path == files[0]:
                    image, label = find_columns(spec, file.schema_arrow.names)
                    leaf = _image_leaf(path, file.schema_arrow.field(image).type, image)
                    names = _hub_class_names(file.schema_arrow.metadata or {}, label)
                column = [file.schema.column(c).path for c in range(len(file.schema))].index(leaf)
                parts = [file.metadata.row_group(g) for g in range(file.num_row_groups)]
                sizes = [
                    (g, part.num_rows, part.column(column).total_uncompressed_size) for g, part in enumerate(parts)
                ]
                groups += [(path, *size) for size in sizes if size[1]]
                values += file.read(columns=[label])[label].to_pylist() if label else []
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            raise DataError(f"{path}: not a parquet file with the columns of {files[0].name} ({error})") from error
    if not groups:
        raise DataError(f"{spec.text}: the table has no rows")
    return ParquetSource(spec, groups, leaf, *find_classes(spec.text, values, names))


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


def _image_leaf(path: Path, kind: Any, image: str) -> str:
    """What to read of the image column: itself when it holds bytes, the field `bytes` of a struct."""
    import pyarrow.types as kinds

    if kinds.is_binary(kind) or kinds.is_large_binary(kind):
        return image
    if kinds.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        return f"{image}.bytes"
    raise DataError(f"{path}: column {image!r} holds {kind}, not encoded images as bytes; name another, ?image=…")


def _read_cells(path: Path, group: int, leaf: str) -> Any:
    """The encoded images of a row group, as a pyarrow array of bytes."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            cells = file.read_row_group(group, columns=[leaf]).column(0)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: row group {group} is damaged ({error})") from error
    return pc.struct_field(cells, "bytes") if pa.types.is_struct(cells.type) else cells


def _hub_class_names(metadata: Mapping[bytes, bytes], label: str | None) -> Sequence[str]:
    """The names of the classes that the hub's tables carry; none if they do not."""
    try:
        names = json.loads(metadata[b"huggingface"])["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError):
        return ()
    return tuple(map(str, names)) if isinstance(names, list) else ()


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
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError(spec.text, "hf") from error
    name, split = split_path(spec)
    folder = user_path(name)
    if not folder.is_dir() and not HUB_NAME.fullmatch(name):
        raise DataError(f"{spec.text}: neither a folder nor a name of the hub, OWNER/NAME[/SPLIT]")
    try:
        if folder.is_dir():
            table = datasets.load_from_disk(str(folder))
        else:
            config, revision = spec.options.get("config"), spec.options.get("revision")
            table = datasets.load_dataset(name, config, split=split, revision=revision)
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
    return open_table(table, spec)


def split_path(spec: Spec) -> tuple[str, str]:
    """The name of the dataset, and its split."""
    path, split = spec.path.rstrip("/"), spec.options.get("split")
    name, _, last = path.rpartition("/")
    if split is None and name and last in SPLIT_NAMES and not user_path(path).is_dir():
        return name, last
    return path, split or "train"


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
    labels, class_names = find_classes(spec.text, values, names or ())
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
