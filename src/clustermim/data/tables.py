"""Columns of images and labels, and `parquet:PATH`."""

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

from clustermim.data.arrays import check_labels
from clustermim.data.cache import fingerprint_of
from clustermim.data.images import EncodedSource, by_group, evenly_spaced
from clustermim.data.spec import Spec
from clustermim.errors import DataError, MissingExtraError
from clustermim.files import user_path

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
        self._groups, self._leaf = groups, leaf
        self._starts = np.cumsum([0, *(rows for _, _, rows, _ in groups)])
        self._loaded: OrderedDict[int, Any] = OrderedDict()
        self._lock = threading.Lock()
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
                    leaf = _image_leaf(path, file.schema_arrow, image)
                    names = _hub_class_names(file.schema_arrow.metadata or {}, label)
                groups += _list_groups(path, file.metadata, leaf)
                values += file.read(columns=[label])[label].to_pylist() if label else []
        except (pa.ArrowException, OSError, KeyError) as error:
            raise DataError(f"{path}: not a parquet file with the columns of {files[0].name} ({error})") from error
    if not groups:
        raise DataError(f"{spec.text}: the table has no rows")
    labels, class_names = to_classes(spec.text, values, names)
    return ParquetSource(spec, groups, leaf, labels, class_names)


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


def _list_groups(path: Path, metadata: Any, leaf: str) -> list[tuple[Path, int, int, int]]:
    groups = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = {group.column(c).path_in_schema: group.column(c) for c in range(group.num_columns)}
        if group.num_rows:
            groups.append((path, number, group.num_rows, columns[leaf].total_uncompressed_size))
    return groups


def _image_leaf(path: Path, schema: Any, image: str) -> str:
    """What to read of the image column: itself when it holds bytes, the field `bytes` of a struct."""
    import pyarrow.types as kinds

    kind = schema.field(image).type
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
            raise DataError(
                f"{spec.text}: no {option} column {name or 'of a usual name'}; add ?{option}= one of "
                f"{', '.join(columns)}"
            )
        found.append(name)
    return str(found[0]), found[1]


def to_classes(
    where: str, values: Sequence[object], names: Sequence[str]
) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """Labels (n,) and class names from a column of whole numbers or texts.

    A column of nothing, or of −1 as test sets on the hub have it, is no labels.
    """
    if all(value is None or value == -1 for value in values):
        return None, ()
    missing = sum(value is None for value in values)
    if missing:
        raise DataError(f"{where}: {missing} of {len(values)} labels are missing")
    if all(isinstance(value, str) for value in values):
        found, numbers = np.unique(np.array(values, dtype=str), return_inverse=True)
        return numbers.astype(np.int64), tuple(map(str, found))
    numbered = [int(value) for value in values if isinstance(value, int)]
    if len(numbered) < len(values):
        raise DataError(f"{where}: labels must be whole numbers or texts; name another column, ?label=…")
    labels = check_labels(where, np.array(numbered), len(values))
    count = int(labels.max()) + 1
    if names and count > len(names):
        raise DataError(f"{where}: label {count - 1} is beyond the {len(names)} names of classes")
    return labels, tuple(names) or tuple(map(str, range(count)))
