"""Parquet files, written by the tests."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from table_toys import LABELS, PNGS, TRUE, assert_true

from clustermim.data import open_source
from clustermim.errors import DataError, MissingExtraError


def write(path: Path, columns: dict[str, Any] | None = None, group: int = 4, names: Any = None) -> Path:
    if columns is None:
        columns = {"img": [{"bytes": png, "path": f"{i}.png"} for i, png in enumerate(PNGS)], "label": LABELS}
    table = pa.table(columns)
    if names is not None:
        features = {"label": {"names": names, "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(exist_ok=True, parents=True)
    pq.write_table(table, path, row_group_size=group)
    return path


def test_parquet_as_the_hub_writes_it(tmp_path: Path) -> None:
    source = open_source(f"parquet:{write(tmp_path / 'a.parquet', names=['x', 'y', 'z'])}")
    assert_true(source)
    assert source.class_names == ("x", "y", "z")


def test_parquet_of_plain_bytes_and_own_names(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"label": PNGS, "photo": PNGS, "kind": LABELS})
    source = open_source(f"parquet:{path}?image=photo&label=kind")
    assert_true(source)
    assert source.class_names == ("0", "1", "2")


def test_parquet_files_of_a_folder_or_pattern_are_joined_by_name(tmp_path: Path) -> None:
    for name, rows in (("b", slice(8, 20)), ("a", slice(0, 8))):
        write(tmp_path / f"train-{name}.parquet", {"image": PNGS[rows], "label": LABELS[rows]})
    assert_true(open_source(f"parquet:{tmp_path}"))
    write(tmp_path / "test-a.parquet", {"image": PNGS, "label": LABELS})
    assert_true(open_source(f"parquet:{tmp_path}/train-*.parquet"))
    with pytest.raises(DataError, match=r"several splits \(test, train\)"):
        open_source(f"parquet:{tmp_path}")


def test_parquet_of_splits_in_subfolders_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "train" / "0.parquet")
    for other in ("validation", "val"):
        write(tmp_path / other / "0.parquet")
        with pytest.raises(DataError, match="several splits"):
            open_source(f"parquet:{tmp_path}")
        shutil.rmtree(tmp_path / other)
    assert_true(open_source(f"parquet:{tmp_path / 'train'}"))


def test_parquet_common_options(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet")
    source = open_source(f"parquet:{path}?limit=5&size=4&channels=1")
    assert len(source) == 5
    assert source.shape == (1, 4, 4)
    assert source.labels is not None
    assert len(source.labels) == 5


def test_parquet_shuffle_and_ranks_cover_everything_once(tmp_path: Path) -> None:
    source = open_source(f"parquet:{write(tmp_path / 'a.parquet')}")
    orders = []
    for seed in (0, 0, 1):
        process_group = [
            torch.cat([b.indices for b in source.batches(3, seed=seed, rank=rank, world_size=2)]) for rank in (0, 1)
        ]
        orders.append(torch.stack(process_group, dim=1).flatten().tolist())
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == list(range(20))
    for batch in source.batches(6, seed=3):
        assert torch.equal(batch.images, TRUE[batch.indices])


def test_parquet_fingerprint(tmp_path: Path) -> None:
    first = open_source(f"parquet:{write(tmp_path / 'one' / 'a.parquet')}").fingerprint
    again = open_source(f"parquet:{write(tmp_path / 'two' / 'b.parquet')}").fingerprint
    assert first == again
    columns = {"img": [{"bytes": png, "path": ""} for png in PNGS], "label": LABELS[::-1]}
    assert open_source(f"parquet:{write(tmp_path / 'c.parquet', columns)}").fingerprint != first


@pytest.mark.parametrize(
    ("labels", "wanted", "names"),
    [
        (["dog", "cat"] * 10, [1, 0], ("cat", "dog")),
        ([None] * 20, None, ()),
        ([-1] * 20, None, ()),
    ],
)
def test_parquet_labels(tmp_path: Path, labels: list[Any], wanted: Any, names: tuple[str, ...]) -> None:
    source = open_source(f"parquet:{write(tmp_path / 'a.parquet', {'img': PNGS, 'label': labels})}")
    assert source.class_names == names
    assert (None if source.labels is None else source.labels[:2].tolist()) == wanted


def test_parquet_without_labels(tmp_path: Path) -> None:
    source = open_source(f"parquet:{write(tmp_path / 'a.parquet', {'jpg': PNGS})}")
    assert source.labels is None
    assert next(source.batches(4)).labels is None


@pytest.mark.parametrize(
    ("columns", "options", "reason"),
    [
        ({"photo": PNGS}, "", r"no image column of a usual name; add \?image= one of photo"),
        ({"img": PNGS}, "?image=photo", "no image column photo"),
        ({"img": PNGS}, "?label=kind", "no label column kind"),
        ({"img": [1] * 20}, "", "does not hold images"),
        ({"img": [{"bytes": None, "path": "x"}] * 20}, "", "the file that it names cannot be read"),
        ({"img": PNGS, "label": [None, *range(19)]}, "", "1 of 20 labels are missing"),
        ({"img": PNGS, "label": [0.5] * 20}, "", "whole numbers or texts"),
        ({"img": PNGS, "label": [-1, *range(19)]}, "", "must be 0 or more"),
        ({"img": pa.array([], pa.binary())}, "", "no parquet files, or"),
    ],
)
def test_parquet_that_does_not_fit(tmp_path: Path, columns: Any, options: str, reason: str) -> None:
    path = write(tmp_path / "a.parquet", columns)
    with pytest.raises(DataError, match=reason):
        open_source(f"parquet:{path}{options}")


def test_a_table_names_files_of_its_own_folder_only(tmp_path: Path) -> None:
    """A stranger's table does not bring private files into a report."""
    (tmp_path / "table" / "images").mkdir(parents=True)
    (tmp_path / "private.png").write_bytes(PNGS[0])
    (tmp_path / "table" / "images" / "0.png").write_bytes(PNGS[0])
    (tmp_path / "table" / "link.png").symlink_to(tmp_path / "private.png")
    for name in (str(tmp_path / "private.png"), "../private.png", "link.png", "images/0.png"):
        table = write(tmp_path / "table" / "a.parquet", {"img": [{"bytes": None, "path": name}] * 4})
        if name == "images/0.png":
            assert len(open_source(f"parquet:{table}").read([0]).images) == 1
            continue
        with pytest.raises(DataError, match="it names a file outside of the folder of its table"):
            open_source(f"parquet:{table}").read([0])


def test_parquet_with_too_few_class_names(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="label 2 is beyond the 2 names"):
        open_source(f"parquet:{write(tmp_path / 'a.parquet', names=['x', 'y'])}")


def test_parquet_missing_damaged_or_mixed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no \.parquet file there"):
        open_source(f"parquet:{tmp_path}/none.parquet")
    write(tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 not really PAR1")
    with pytest.raises(DataError, match=r"no parquet files, or not of the same columns: a\.parquet, b\.parquet"):
        open_source(f"parquet:{tmp_path}")
    write(tmp_path / "b.parquet", {"other": [1]})
    with pytest.raises(DataError, match=r"no parquet files, or not of the same columns: a\.parquet, b\.parquet"):
        open_source(f"parquet:{tmp_path}")


def test_parquet_bad_images(tmp_path: Path) -> None:
    cells = [b"no image" if i == 3 else png for i, png in enumerate(PNGS)]
    path = write(tmp_path / "a.parquet", {"img": cells, "label": LABELS})
    with pytest.raises(DataError, match=r"a\.parquet row 3: not a JPEG"):
        list(open_source(f"parquet:{path}").batches(20))
    source = open_source(f"parquet:{path}?on_bad_image=skip")
    (batch,) = source.batches(20)
    assert batch.indices.tolist() == [i for i in range(20) if i != 3]
    assert list(source.skipped) == [f"{path} row 3"]


def test_parquet_needs_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'clustermim\[hf\]'"):
        open_source(f"parquet:{path}")
