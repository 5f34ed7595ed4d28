"""A dataset of 8 + 4 images in the forms in which the mirrors keep CIFAR."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from clustermim.data.cifar import CifarFacts, Split, SplitFacts, load_split

RNG = np.random.default_rng(0)
TRUE: dict[str, Split] = {
    "train": (RNG.integers(0, 256, (8, 3, 32, 32), dtype=np.uint8), np.array([0, 1, 1, 0, 1, 0, 0, 1])),
    "test": (RNG.integers(0, 256, (4, 3, 32, 32), dtype=np.uint8), np.array([1, 0, 1, 0])),
}
MEMBERS = {"train": ("toy/data_batch_1.bin", "toy/data_batch_2.bin"), "test": ("toy/test_batch.bin",)}


def sha256(array: np.ndarray) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


def make_facts(label_bytes: int = 1) -> CifarFacts:
    """A dataset of 8 + 4 images in two classes, its train images in two parts."""
    splits = {
        split: SplitFacts(
            count=len(labels),
            members=MEMBERS[split],
            pixels_sha256=tuple(sha256(part) for part in np.split(images, len(MEMBERS[split]))),
            labels_sha256=sha256(labels.astype("<i8")),
        )
        for split, (images, labels) in TRUE.items()
    }
    return CifarFacts(
        name="toy",
        classes=("a", "b"),
        splits=splits,
        label_bytes=label_bytes,
        archive_url="https://toy.invalid/toy-binary.tar.gz",
        archive_md5="",
        npm_package="toy@1.0.0",
    )


FACTS = make_facts()


def write_tar(path: Path, contents: dict[str, bytes], extra: tarfile.TarInfo | None = None) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        if extra is not None:
            tar.addfile(extra)
    return path


def archive_contents(label_bytes: int = 1) -> dict[str, bytes]:
    contents = {"toy/readme.html": b"hello"}
    for split, names in MEMBERS.items():
        images, labels = TRUE[split]
        leading = np.full((len(labels), label_bytes - 1), 7, np.uint8)
        records = np.concatenate([leading, labels[:, None].astype(np.uint8), images.reshape(len(labels), -1)], axis=1)
        for name, part in zip(names, np.split(records, len(names)), strict=True):
            contents[name] = part.tobytes()
    return contents


def to_png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def npm_contents() -> dict[str, bytes]:
    contents = {"package/package.json": b"{}"}
    for split, names in MEMBERS.items():
        images, labels = TRUE[split]
        rows = images.transpose(0, 2, 3, 1).reshape(len(images), 1024, 3)
        for name, part in zip(names, np.split(rows, len(names)), strict=True):
            contents[f"package/{Path(name).stem}.png"] = to_png(part)
        contents[f"package/{split}_lables.json"] = json.dumps(labels.tolist()).encode()
    return contents


def assert_installed(folder: Path) -> None:
    for split, (images, labels) in TRUE.items():
        found = load_split(FACTS, folder, split)
        assert (found[0] == images).all()
        assert (found[1] == labels).all()
