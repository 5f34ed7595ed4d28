"""Sources of objects in memory: arrays, tensors, torch and 🤗 Datasets; and what is no source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from table_toys import LABELS, PIXELS, PNGS, TRUE, assert_true
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from clustermim.data import Source, from_arrays, open_source, to_float
from clustermim.data.arrays import ArraySource
from clustermim.data.spec import OPENERS, Opener, Spec
from clustermim.errors import DataError


class Items(Dataset[Any]):
    """A dataset of whatever a function gives."""

    def __init__(self, make: Any, count: int = 20) -> None:
        self.make, self.count = make, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> Any:
        return self.make(row)


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
@pytest.mark.parametrize("channels", ["first", "last"])
def test_arrays_and_tensors(channels: Any, dtype: str, tensors: bool) -> None:
    pixels: Any = PIXELS if channels == "last" else PIXELS.transpose(0, 3, 1, 2)
    pixels = pixels if dtype == "uint8" else (pixels / 255).astype(dtype)
    labels: Any = LABELS
    if tensors:
        pixels, labels = torch.from_numpy(pixels), torch.from_numpy(labels)
    source = from_arrays(pixels, labels, channels=channels, class_names=["x", "y", "z"])
    assert_true(source)
    assert source.class_names == ("x", "y", "z")
    assert source.fingerprint == from_arrays(PIXELS, LABELS).fingerprint


def test_the_spec_of_arrays_names_them_and_cannot_be_opened() -> None:
    source = from_arrays(PIXELS, LABELS)
    assert source.spec == f"arrays:20x3x6x5#{source.fingerprint}"
    assert repr(source) == f"<ArraySource {source.spec}: 20 images of 3×6×5, 3 classes>"
    with pytest.raises(DataError, match="made of objects in memory"):
        open_source(source.spec)


def test_arrays_of_other_kinds() -> None:
    assert from_arrays(PIXELS[..., 0]).shape == (1, 6, 5)
    assert from_arrays(torch.zeros(2, 3, 8, 8, dtype=torch.bfloat16)).shape == (3, 8, 8)
    assert from_arrays(PIXELS[..., 0] > 99)[0][0].unique().tolist() == [0, 255]
    assert from_arrays(PIXELS.astype(np.uint16))[3][0].equal(TRUE[3])
    deep = from_arrays(PIXELS.astype(np.uint16) * 257)
    assert deep.dtype == np.uint16
    assert to_float(deep[3][0]).equal(to_float(TRUE[3]))
    assert from_arrays(PIXELS, ["dog", "cat"] * 10).class_names == ("cat", "dog")
    assert from_arrays(PIXELS).labels is None


@pytest.mark.parametrize(
    ("arguments", "options", "reason"),
    [
        ((PIXELS, LABELS[:5]), {}, r"20 images need labels of shape \(20,\), not \(5,\)"),
        ((PIXELS, LABELS + 0.5), {}, "labels must be whole numbers"),
        ((PIXELS, 3), {}, "labels must be an array or tensor, not int"),
        ((PIXELS, LABELS), {"class_names": ["x"]}, "label 2 is beyond the 1 names"),
        ((PIXELS,), {"channels": "front"}, 'channels must be "first" or "last"'),
        ((np.zeros((4, 3, 6, 3), np.uint8),), {}, 'add channels="first" or channels="last"'),
        ((np.zeros((4, 9, 6, 8), np.uint8),), {}, 'add channels="first" or channels="last"'),
        ((PIXELS[0],), {"channels": "last"}, "non-empty|expected"),
        ((PIXELS[0, 0],), {}, r"images of shape \(5, 3\); expected"),
        ((np.full((2, 4, 4), 3.0),), {}, r"must lie in \[0, 1\], found 3 to 3"),
        ((np.full((2, 4, 4), np.nan),), {}, "NaN or infinite"),
        ((np.zeros((0, 4, 4), np.uint8),), {}, "non-empty"),
        ((None,), {}, "images must be an array or tensor, not NoneType"),
        (("digits",), {}, "images must be an array or tensor"),
        (([np.zeros((2, 2)), np.zeros((3, 3))],), {}, "images must be one array or tensor, all of one shape"),
    ],
)
def test_arrays_that_do_not_fit(arguments: Any, options: Any, reason: str) -> None:
    if "expected" in reason and arguments[0].ndim == 3:
        arguments = (arguments[0][None, None],)
    with pytest.raises(DataError, match=reason) as caught:
        from_arrays(*arguments, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda row: (Image.fromarray(PIXELS[row]), int(LABELS[row])),
        lambda row: (TRUE[row], torch.tensor(LABELS[row])),
        lambda row: (TRUE[row] / 255, LABELS[row], "more"),
        lambda row: {"image": PIXELS[row], "label": LABELS[row], "path": "a"},
        lambda row: {"jpg": Image.fromarray(PIXELS[row]), "class": int(LABELS[row])},
    ],
)
def test_torch_datasets(make: Any) -> None:
    source = open_source(Items(make))
    assert_true(source)
    assert source.class_names == ("0", "1", "2")
    assert source.spec == f"dataset:20x3x6x5#{source.fingerprint}"
    assert source.fingerprint == open_source(Items(make)).fingerprint
    with pytest.raises(IndexError):
        source.read([20])


def test_labels_of_a_torch_dataset() -> None:
    plain = open_source(Items(lambda row: TRUE[row]))
    assert (plain.labels, plain.class_names) == (None, ())
    assert "no labels" in repr(plain)
    named = Items(lambda row: (TRUE[row], 0 if row == 0 else pytest.fail("an item was read for its label")), count=1)
    named.targets, named.classes = [0], ["cat", "dog"]  # type: ignore[attr-defined]
    assert open_source(named).class_names == ("cat", "dog")
    assert_true(open_source(TensorDataset(TRUE, torch.from_numpy(LABELS))))
    part = open_source(Subset(TensorDataset(TRUE), [4, 2]))
    assert torch.equal(part.read([0, 1]).images, TRUE[[4, 2]])


def test_torch_dataset_of_mixed_shapes() -> None:
    mixed = Items(lambda row: Image.fromarray(PIXELS[row] if row < 9 else PIXELS[row, :4, :, 0]))
    with pytest.raises(DataError, match=r"item 9 has shape \(1, 4, 5\) where the first has \(3, 6, 5\).*size="):
        list(open_source(mixed).batches(5))
    source = open_source(mixed, size=(4, 5), channels=3, limit=15)
    assert (len(source), source.shape) == (15, (3, 4, 5))
    assert sum(len(batch.images) for batch in source.batches(4)) == 15
    arrays = Items(lambda row: TRUE[row, :, : 6 - row % 2])
    assert open_source(arrays, size=4, channels=1).read([0, 1]).images.shape == (2, 1, 4, 4)


@pytest.mark.parametrize(
    ("dataset", "reason"),
    [
        (Items(None, count=0), "has no items"),
        (Items(lambda row: 1 / 0), r"item 0 cannot be read \(ZeroDivisionError"),
        (Items(lambda row: torch.rand(3, 4, 4)), "take its random transforms away"),
        (Items(lambda row: TRUE[row] / 255 - 1), r"item 0: float images must lie in \[0, 1\]"),
        (Items(lambda row: "a"), "item 0 must be an array or tensor"),
        (Items(lambda row: {"picture": TRUE[row]}), "no image column"),
        (Items(lambda row: (TRUE[row], 0.5)), "labels must be whole numbers"),
        (type("Stream", (IterableDataset,), {"__iter__": lambda self: iter([])})(), "cannot be read by position"),
        (type("Endless", (Dataset,), {})(), "does not say how many"),
    ],
)
def test_torch_datasets_that_do_not_fit(dataset: Any, reason: str) -> None:
    with pytest.raises(DataError, match=reason) as caught:
        open_source(dataset)
    assert "\n" not in str(caught.value)


def table() -> datasets.Dataset:
    return datasets.Dataset.from_dict(
        {"img": [{"bytes": png, "path": None} for png in PNGS], "label": LABELS.tolist()},
        features=datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(names=["x", "y", "z"])}),
    )


def test_tables_of_the_datasets_library(tmp_path: Path) -> None:
    for given in (table(), table().with_format("torch")):
        source = open_source(given)
        assert_true(source)
        assert source.class_names == ("x", "y", "z")
        assert source.spec == f"dataset:20x3x6x5#{source.fingerprint}"
    table().save_to_disk(tmp_path / "saved")
    assert source.fingerprint == open_source(f"hf:{tmp_path / 'saved'}").fingerprint
    assert open_source(table(), size=4, limit=7).read([0]).images.shape == (1, 3, 4, 4)
    with pytest.raises(DataError, match="give one: 'train', 'test'"):
        open_source(datasets.DatasetDict({"train": table(), "test": table()}))
    with pytest.raises(DataError, match="cannot be read by position"):
        open_source(table().to_iterable_dataset())
    with pytest.raises(DataError, match="no image column photo"):
        open_source(table(), image="photo")


@pytest.mark.parametrize("data", [None, 3, PIXELS, TRUE, (PIXELS, LABELS), [1], {}, object(), Path])
def test_what_is_no_source(data: Any) -> None:
    with pytest.raises(DataError, match=r"clustermim\.from_arrays\(images, labels, channels=\"last\"\)") as caught:
        open_source(data)
    assert "\n" not in str(caught.value)


def test_a_source_is_itself_or_seen_with_other_options() -> None:
    source = from_arrays(PIXELS, LABELS)
    assert open_source(source) is source
    small = open_source(source, size=4, limit=9)
    assert (len(small), small.shape) == (9, (3, 4, 4))
    assert source.spec in small.spec
    assert small.fingerprint != source.fingerprint == from_arrays(PIXELS, LABELS).fingerprint
    digits = open_source(open_source("digits"), limit=9)
    assert (digits.spec, digits.fingerprint) == ("digits/train?limit=9", open_source("digits?limit=9").fingerprint)
    with pytest.raises(DataError, match="no option 'sise'; did you mean size"):
        open_source(source, sise=3)


def test_options_beside_a_text() -> None:
    for source in (
        open_source("digits?limit=9", size=(4, 6)),
        open_source("digits", limit=9, size=(4, 6), channels=None),
    ):
        assert source.spec == "digits/train?limit=9&size=4x6"
        assert source.fingerprint == open_source("digits?limit=9&size=4x6").fingerprint
    with pytest.raises(DataError, match="digits has no option 'sise'"):
        open_source("digits", sise=3)


def test_paths(tmp_path: Path, encode: Any, noise: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "images?#"
    for name in ("digits", "b"):
        (folder / name).mkdir(parents=True)
        (folder / name / "1.png").write_bytes(encode(noise(6, 8, 3)))
    np.savez(tmp_path / "a.npz", images=noise(4, 6, 8, 3))
    assert open_source(folder).class_names == ("b", "digits")
    assert open_source(tmp_path / "a.npz").shape == (3, 6, 8)
    monkeypatch.chdir(folder)
    assert len(open_source(Path("digits"))) == 1  # a path is never the name of a kind
    assert len(open_source("b")) == 1
    assert open_source("b", size=4).shape == (3, 4, 4)
    (folder / "empty").mkdir()
    (folder / "notes.txt").touch()
    for place, reason in [
        (folder / "nowhere", "there is no such folder or file"),
        (folder / "empty", "no images in"),
        (folder / "notes.txt", "is a file of an unknown kind"),
    ]:
        with pytest.raises(DataError, match=reason):
            open_source(place)


def test_a_new_kind_of_source_is_one_function_and_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_stripes(spec: Spec) -> Source:
        images = np.zeros((spec.integer("number", 4), 1, 8, 8), np.uint8)
        images[:, :, ::2] = 255
        return ArraySource(spec.text, images)

    monkeypatch.setitem(OPENERS, "stripes", Opener(open_stripes, ("number",), splits=True))
    source = open_source("stripes?number=6&limit=3")
    assert (source.spec, len(source)) == ("stripes/train?number=6&limit=3", 3)
    with pytest.raises(DataError, match="did you mean stripes"):
        open_source("stripe")
