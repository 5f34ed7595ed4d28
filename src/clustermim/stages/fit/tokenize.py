"""`clustermim tokenize`: ids of a whole source in one file."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np

from clustermim.data import open_source
from clustermim.errors import ConfigError, RunError
from clustermim.files import write_atomic
from clustermim.patches import grid_size
from clustermim.progress import warn_skipped
from clustermim.tokenizers import load_tokenizer, tokenize
from clustermim.training import Device, find_device


def tokenize_source(tokenizer: str, data: str, out: str, device: Device | None = None, overwrite: bool = False) -> None:
    """Write the ids of every patch of a data source to a .npy file, int32 of shape (images, patches).

    Args:
        tokenizer: the folder of a fitted tokenizer.
        data: where the images are.
        out: the .npy file to write; an image that could not be read has ids −1.
        device: where to compute; by default the fastest that is there.
        overwrite: replace an existing file.
    """
    path = Path(out)
    if path.suffix != ".npy":
        raise ConfigError(f"--out {out} must end in .npy")
    if path.exists() and not overwrite:
        raise RunError(f"{path} exists; choose another --out, or replace it with --overwrite")
    loaded, source = load_tokenizer(tokenizer).to(find_device(device)), open_source(data)
    rows, columns = grid_size(*source.shape[1:], loaded.patch_size)

    def write(file: BinaryIO) -> None:
        header = {"descr": "<i4", "fortran_order": False, "shape": (len(source), rows * columns)}
        np.lib.format.write_array_header_1_0(file, header)
        row = 0
        for batch, ids in tokenize(loaded, source):
            found = np.full((int(batch.indices[-1]) + 1 - row, rows * columns), -1, dtype="<i4")
            found[batch.indices.numpy() - row] = ids.numpy()
            file.write(found.tobytes())
            row += len(found)
        file.write(np.full((len(source) - row, rows * columns), -1, dtype="<i4").tobytes())

    write_atomic(path, write)
    warn_skipped(source.skipped)
    print(f"wrote the ids of {len(source):,} images × {rows * columns} patches to {path}")
