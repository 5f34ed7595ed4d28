"""Tables of the datasets library, saved to disk or handed over in place of the hub's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from table_toys import LABELS, PNGS, TRUE, assert_true

from clustermim.data import open_source
from clustermim.data.spec import parse_spec
from clustermim.data.tables import split_path
from clustermim.errors import DataError, MissingExtraError


def make_table(labels: bool = True) -> datasets.Dataset:
    columns: dict[str, Any] = {"img": [{"bytes": png, "path": None} for png in PNGS]}
    features: dict[str, Any] = {"img": datasets.Image()}
    if labels:
        columns["label"] = LABELS.tolist()
        features["label"] = datasets.ClassLabel(names=["x", "y", "z"])
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


def test_hf_saved_table(tmp_path: Path) -> None:
    make_table().save_to_disk(tmp_path / "saved")
    source = open_source(f"hf:{tmp_path / 'saved'}")
    assert_true(source)
    assert source.class_names == ("x", "y", "z")
    assert source.fingerprint == open_source(f"hf:{tmp_path / 'saved'}").fingerprint
    assert len(open_source(f"hf:{tmp_path / 'saved'}?limit=4&size=3")) == 4


def test_hf_saved_splits(tmp_path: Path) -> None:
    both = datasets.DatasetDict({"train": make_table(), "test": make_table(labels=False).select([4, 3])})
    both.save_to_disk(tmp_path / "saved")
    assert_true(open_source(f"hf:{tmp_path / 'saved'}"))
    for text in (f"hf:{tmp_path / 'saved'}?split=test", f"hf:{tmp_path / 'saved' / 'test'}"):
        source = open_source(text)
        assert source.labels is None
        assert torch.equal(source.read([0, 1]).images, TRUE[[4, 3]])
    with pytest.raises(DataError, match="no split 'dev'; there are: train, test"):
        open_source(f"hf:{tmp_path / 'saved'}?split=dev")


def test_hf_images_beside_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for index, png in enumerate(PNGS):
        (tmp_path / f"{index}.png").write_bytes(png)
    paths = [{"bytes": None, "path": str(tmp_path / f"{i}.png")} for i in range(20)]
    table = datasets.Dataset.from_dict(
        {"image": paths, "class": LABELS.tolist()},
        features=datasets.Features({"image": datasets.Image(), "class": datasets.Value("int64")}),
    )
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **options: table)
    with pytest.raises(DataError, match="it names a file outside of the folder of its table"):
        open_source("hf:owner/name").read([7])
    monkeypatch.setattr(datasets.config, "HF_CACHE_HOME", str(tmp_path))  # where the hub's files are
    source = open_source("hf:owner/name?on_bad_image=skip")
    assert source.class_names == ("0", "1", "2")
    assert torch.equal(source.read([7]).images, TRUE[[7]])
    (tmp_path / "7.png").unlink()
    assert source.read([6, 7]).indices.tolist() == [6]
    with pytest.raises(DataError, match="row 7: the file that it names cannot be read"):
        open_source("hf:owner/name").read([7])


def test_hf_wrong_folder_or_column(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="was not written by save_to_disk"):
        open_source(f"hf:{tmp_path}")
    table = datasets.Dataset.from_dict({"image": ["a", "b"]})
    table.save_to_disk(tmp_path / "texts")
    with pytest.raises(DataError, match="'image' does not hold images"):
        open_source(f"hf:{tmp_path / 'texts'}")


@pytest.mark.parametrize(
    ("text", "name", "split"),
    [
        ("hf:uoft-cs/cifar10", "uoft-cs/cifar10", "train"),
        ("hf:uoft-cs/cifar10/test", "uoft-cs/cifar10", "test"),
        ("hf:mnist/validation", "mnist", "validation"),
        ("hf:owner/test?split=dev", "owner/test", "dev"),
        ("hf:test", "test", "train"),
    ],
)
def test_hf_name_and_split(text: str, name: str, split: str) -> None:
    assert split_path(parse_spec(text)) == (name, split)


def test_hf_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load_dataset(*args: Any, **options: Any) -> datasets.Dataset:
        asked.append((args, options))
        return make_table()

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert_true(open_source("hf:owner/name/test?config=plain&revision=abc"))
    assert asked == [(("owner/name", "plain"), {"split": "test", "revision": "abc", "trust_remote_code": False})]


def test_hf_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*args: Any, **options: Any) -> None:
        raise ConnectionError("Couldn't reach\nthe hub")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(DataError, match=r"ConnectionError: Couldn't reach the hub.*check the name and") as caught:
        open_source("hf:owner/name")
    assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match="neither a folder nor a name of the hub"):
        open_source("hf:/no/such/folder")


def test_hf_needs_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"hf:owner/name needs .*clustermim\[hf\]"):
        open_source("hf:owner/name")
