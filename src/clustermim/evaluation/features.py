"""Features of a frozen encoder: both poolings in one pass, kept on disk, and checked before they are compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clustermim.data import Source, to_float
from clustermim.data.cache import cache_folder, fingerprint_of
from clustermim.errors import ConfigError, DataError, RunError
from clustermim.evaluation.labels import POOLINGS, Accuracy, Pooling, check_any, class_numbers, open_labelled
from clustermim.files import write_atomic
from clustermim.models.encoder import Encoder, load_encoder
from clustermim.progress import log_info, track, warn_skipped
from clustermim.runs import to_json
from clustermim.training.devices import keep_freed_memory

# Images (B, C, H, W), float32 in [0, 1], to tokens (B, 1 + N, D) after the last norm, the class token first.
Encode = Callable[[Tensor], Tensor]

_LAYOUT = 2  # part of the key: raise it when the same key would mean other numbers


class Features(NamedTuple):
    """One row an image, and its class; without `class_names` the classes are called by their numbers."""

    values: Tensor  # (n, D) float32
    labels: Tensor  # (n,) int64
    class_names: tuple[str, ...] = ()


def open_encoder(encoder: Any) -> Encode:
    """An encoder, loaded if it is a folder, in evaluation mode; or any function from images to tokens."""
    if isinstance(encoder, str | Path):
        encoder = load_encoder(encoder)
    if not callable(encoder):
        wanted = "an Encoder, its folder, or a function from images to tokens"
        raise ConfigError(f"an encoder is {wanted}, not {type(encoder).__name__}")
    return encoder.eval() if isinstance(encoder, nn.Module) else encoder


def check_shape(encode: Encode, source: Source) -> None:
    """Refuse images that the encoder cannot take, where it says which it takes."""
    wanted = (encode.channels, *encode.image_size) if isinstance(encode, Encoder) else source.shape
    if source.shape != wanted:
        given, made = ("×".join(map(str, shape)) for shape in (source.shape, wanted))
        change = f"channels={wanted[0]}" if source.shape[0] != wanted[0] else f"size={wanted[1]}x{wanted[2]}"
        raise DataError(f"the images of {source.spec} are {given} and the encoder was made for {made}: add ?{change}")


def pool(tokens: Tensor, pooling: Pooling) -> Tensor:
    """Tokens (B, 1+N, D), the class token first, to features (B, D): the mean of the others, or the class token."""
    return tokens[:, 1:].mean(dim=1) if pooling == "avg" else tokens[:, 0]


def measure_features(
    measure: Callable[..., Accuracy], encoder: Any, train: Any, test: Any, batch_size: int, **options: Any
) -> dict[str, Accuracy]:
    """What a function measures of train and test features, by pooling; those of an `Encoder` are kept in the cache."""
    encode, kept = open_encoder(encoder), dict[str, Any]()
    if isinstance(encode, Encoder):
        origin = {"weights": encode.weights, "mean": encode.mean, "std": encode.std}
        kept = {"cache": cache_folder() / "features", "origin": origin}
    here, there = (extract(encode, data, batch_size, **kept) for data in (train, test))
    return {pooling: measure(here[pooling], there[pooling], **options) for pooling in POOLINGS}


def extract(
    encode: Encode, data: Any, batch_size: int = 256, *, cache: Path | None = None, origin: Mapping[str, Any] = {}
) -> dict[Pooling, Features]:
    """Features of all images of a source, by pooling; images that cannot be read are left out.

    With a folder `cache` they are kept there, and read from there memory-mapped if they are whole. `origin` holds what
    they depend on beside the images, as JSON values: a hash of the weights, say.
    """
    source = open_labelled(data)
    check_shape(encode, source)
    key = json.dumps({"layout": _LAYOUT, "data": source.fingerprint, **origin}, sort_keys=True)
    path = None if cache is None else cache / f"{fingerprint_of(key)}.npy"
    values, labels = None if path is None else _load(path), torch.from_numpy(source.labels)
    if values is None:
        values, labels = _pooled(encode, source, batch_size)
        try:
            if path is not None and not source.skipped:  # what could not be read may be mended, and is reported again
                write_atomic(path, lambda file: np.save(file, values))
                write_atomic(path.with_suffix(".json"), to_json({"key": key, "hash": fingerprint_of(values)}).encode())
        except OSError as error:
            log_info(f"warning: features are not kept for another time: cannot write to {cache}: {error.strerror}")
    warn_skipped(source.skipped)
    parts = map(torch.from_numpy, values)
    return {pooling: Features(part, labels, source.class_names) for pooling, part in zip(POOLINGS, parts, strict=True)}


def _load(path: Path) -> NDArray[np.float32] | None:
    """What was kept, memory-mapped, or None if it is not there whole."""
    try:
        # "c": changes stay in memory; torch warns about arrays that cannot be changed
        values: NDArray[np.float32] = np.load(path, mmap_mode="c", allow_pickle=False)
        known = json.loads(path.with_suffix(".json").read_bytes())["hash"]
    except (OSError, ValueError, TypeError, KeyError, EOFError):
        return None
    return values if fingerprint_of(values) == known else None


@torch.no_grad()  # not inference mode: a probe computes gradients from these
def _pooled(encode: Encode, source: Source, batch_size: int) -> tuple[NDArray[np.float32], Tensor]:
    """Values (2, n, D) of both poolings, filled batch by batch, and labels (n,)."""
    if batch_size < 1:
        raise ConfigError(f"--batch-size {batch_size} is too small: 1 at least")
    keep_freed_memory()
    weight = next(encode.parameters(), None) if isinstance(encode, nn.Module) else None
    device = torch.device("cpu") if weight is None else weight.device
    values, labels, done = np.empty((2, 0, 0), np.float32), list[Any](), 0
    for batch in track(source.batches(batch_size), "features", total=-(-len(source) // batch_size)):
        tokens = encode(to_float(batch.images.to(device)))
        if not isinstance(tokens, Tensor) or tokens.ndim != 3 or tokens.shape[1] < 2:
            shape = tuple(tokens.shape) if isinstance(tokens, Tensor) else type(tokens).__name__
            raise ConfigError(f"the encoder gave {shape}, not tokens (B, 1 + N, D) with the class token first")
        values = values if done else np.empty((2, len(source), tokens.shape[2]), np.float32)
        both = torch.stack([pool(tokens.float(), pooling) for pooling in POOLINGS])  # (2, B, D)
        values[:, done : done + len(tokens)] = both.cpu().numpy()
        labels.append(batch.labels)
        done += len(tokens)
    check_any(source, done)
    return values[:, :done], torch.cat(labels)


def check_pair(train: Features, test: Features) -> tuple[Features, Features]:
    """Both sets, the test labels numbered as in train; an error when they cannot be compared."""
    for name, part in (("train", train), ("test", test)):
        if not len(part.values):
            raise DataError(f"the {name} set holds no images")
        if len(part.labels) != len(part.values):
            raise DataError(f"the {name} set has {len(part.values)} features and {len(part.labels)} labels")
        if bad := int((~torch.isfinite(part.values)).sum()):
            what = f"{bad} of {part.values.numel()} feature values of the {name} set are NaN or infinite"
            raise RunError(f"{what}: the encoder is damaged or its training diverged; take an earlier checkpoint")
    here, there = train.values.shape[1], test.values.shape[1]
    if here != there:
        raise DataError(f"train features have {here} values and test features {there}: compute both with one encoder")
    numbers = class_numbers(train.labels, train.class_names, test.labels, test.class_names)
    return train, test._replace(labels=numbers[test.labels], class_names=train.class_names)
