"""`folder:IMAGES?masks=FOLDER`: for each image a PNG of the same name whose values are the classes of its pixels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from clustermim.data.cache import fingerprint_of
from clustermim.data.encoded import NAMED, EncodedSource, evenly_spaced, sample_bytes
from clustermim.data.images import FORMATS, MASK_MODES, decode_mask, upright_size
from clustermim.data.source import IGNORED, Masks, Rows
from clustermim.data.spec import Spec
from clustermim.data.transforms import resize_masks
from clustermim.errors import DataError
from clustermim.files import user_path

UNLABELLED = 255  # the value of a pixel that does not count, as data sets have it
WANTED = "A mask is a PNG of the name and size of its image, grey or with a palette: its values are classes, 255 none"


def add_masks(source: EncodedSource, spec: Spec, images: Sequence[str], names: Sequence[str], small: int) -> None:
    """Give a source of image files, whose paths below its folder are `names`, their masks.

    All are looked at first, by their headers. `small` is the size in bytes below which all of them are hashed.
    """
    root = user_path(spec.options["masks"])
    if not root.is_dir():
        raise DataError(
            f"{spec.text}: {root} is {'not a folder' if root.exists() else 'not there'}, and masks= names it"
        )
    paths = [os.path.join(root, os.path.splitext(name)[0] + ".png") for name in names]
    with ThreadPoolExecutor(source.workers) as pool:
        faults = [fault for fault in pool.map(_fault, images, paths) if fault]
    if faults:
        more = f"; and {len(faults) - NAMED} more" if len(faults) > NAMED else ""
        listed = "; ".join(faults[:NAMED])
        raise DataError(f"{spec.text}: {len(faults)} of {len(paths):,} masks cannot be used: {listed}{more}. {WANTED}")
    sizes = [os.path.getsize(path) for path in paths]
    hashed = range(len(paths)) if sum(sizes) <= small else evenly_spaced(len(paths))
    contents = sample_bytes(lambda row: Path(paths[row]).read_bytes(), hashed)
    source.fingerprint = fingerprint_of(source.fingerprint, np.array(sizes), *contents)
    source.masks = Masks(partial(_read, source, paths))


def _read(source: EncodedSource, paths: Sequence[str], indices: Rows) -> Tensor:
    """The masks (B, H, W) of the images at these positions, resized as these are."""
    with ThreadPoolExecutor(source.workers) as pool:
        found = list(pool.map(_decode, [paths[row] for row in source.rows(indices)]))
    resized = [resize_masks(mask[None], source.shape[1:]) for mask in found]
    return torch.cat(resized) if resized else torch.empty(0, *source.shape[1:], dtype=torch.int16)


def _decode(path: str) -> Tensor:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    values = torch.from_numpy(decode_mask(data, path).astype(np.int16))
    return torch.where(values == UNLABELLED, IGNORED, values)


def _fault(image: str, mask: str) -> str:
    """What the header of a mask says against it; nothing if it can be used."""
    if not os.path.isfile(mask):
        return f"{mask} is not there"
    try:
        with Image.open(mask, formats=("PNG",)) as found:
            mode, size = found.mode, (found.height, found.width)
    except Exception as error:  # decoders raise nearly every kind of exception on damaged files
        return f"{mask} cannot be read as a PNG ({type(error).__name__})"
    if mode not in MASK_MODES:
        return f"{mask} is a PNG of the mode {mode}"
    try:
        with Image.open(image, formats=FORMATS) as shown:
            wanted = upright_size(shown)
    except Exception:  # the image is bad, or of a kind that another library reads: that is said where it is read
        return ""
    there, here = ("×".join(map(str, pair)) for pair in (size, wanted))
    return f"{mask} has {there} pixels and its image {here}" if there != here else ""
