"""Features of a frozen encoder: both poolings in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clustermim.data import Source, to_float
from clustermim.errors import ConfigError, DataError, RunError
from clustermim.evaluation.labels import POOLINGS, Accuracy, Pooling, check_any, open_pair
from clustermim.models.encoder import Encoder
from clustermim.progress import track, warn_skipped
from clustermim.tokenizers.token_encoder import load_encoder
from clustermim.training.devices import Device, find_device, keep_freed_memory

# Images (B, C, H, W), float32 in [0, 1], to tokens (B, 1 + N, D) after the last norm, the class token first.
Encode = Callable[[Tensor], Tensor]
_CPU = torch.device("cpu")


class Features(NamedTuple):
    """One row an image, and its class."""

    values: Tensor  # (n, D) float32
    labels: Tensor  # (n,) int64


def open_encoder(encoder: Any) -> Encode:
    """An encoder, loaded if it is a folder, in evaluation mode; or any function from images to tokens."""
    if not callable(encoder):
        encoder = load_encoder(encoder)
    return encoder.eval() if isinstance(encoder, nn.Module) else encoder


def check_shape(encode: Encode, source: Source) -> None:
    """Refuse images that the encoder cannot take, where it says which it takes."""
    wanted = (encode.channels, *encode.image_size) if isinstance(encode, Encoder) else source.shape
    if source.shape != wanted:
        given, made = ("×".join(map(str, shape)) for shape in (source.shape, wanted))
        change = f"channels={wanted[0]}" if source.shape[0] != wanted[0] else f"size={wanted[1]}x{wanted[2]}"
        raise DataError(f"the images of {source.spec} are {given} and the encoder was made for {made}: add ?{change}")


def poolings_of(encode: Encode) -> tuple[Pooling, ...]:
    """The poolings that say something of an encoder: one without a class token has the mean of the patches only."""
    return POOLINGS[:1] if isinstance(encode, Encoder) and not encode.has_class_token else POOLINGS


def pool(tokens: Tensor, pooling: Pooling) -> Tensor:
    """Tokens (B, 1+N, D), the class token first, to features (B, D): the mean of the others, or the class token."""
    return tokens[:, 1:].mean(dim=1) if pooling == "avg" else tokens[:, 0]


@contextmanager
def put_back(encode: Encode) -> Iterator[None]:
    """In the end a network is again on the device where it was."""
    network = encode if isinstance(encode, nn.Module) else nn.Identity()
    home = next((weight.device for weight in network.parameters()), _CPU)
    try:
        yield
    finally:
        network.to(home)


def measure_features(
    measure: Callable[..., Accuracy],
    encoder: Any,
    train: Any,
    test: Any,
    batch_size: int,
    device: Device | None = None,
    **options: Any,
) -> dict[str, Accuracy]:
    """What a function measures of train and test features, by pooling, on one device."""
    chosen = find_device(device)
    encode, data = open_encoder(encoder), open_pair(train, test)
    check_shape(encode, data.train)
    found = []
    with put_back(encode):
        for source in (data.train, data.test):
            found.append(extract(encode, source, batch_size, chosen))
            check_finite(found[-1], source)
    here, there = found
    tests = {
        name: Features(part.values, data.numbers.to(part.labels.device)[part.labels]) for name, part in there.items()
    }
    return {pooling: measure(here[pooling], tests[pooling], **options) for pooling in poolings_of(encode)}


@torch.no_grad()  # not inference mode: a probe computes gradients from these
def extract(
    encode: Encode, source: Source, batch_size: int = 256, device: torch.device = _CPU
) -> dict[Pooling, Features]:
    """Features of all images of a labelled source, by pooling; images that cannot be read are left out.

    A network is moved to the device, and features stay there; no number is read from it. A function that is no network
    gets images of the CPU.
    """
    if batch_size < 1:
        raise ConfigError(f"--batch-size {batch_size} is too small: 1 at least")
    keep_freed_memory()
    if isinstance(encode, nn.Module):
        encode.to(device)
    images_on = device if isinstance(encode, nn.Module) else _CPU
    kept_on = _CPU if device.type == "mps" else device  # which has no float64, as the probe needs it
    values, labels, done = torch.empty(0), list[Any](), 0
    for batch in track(source.batches(batch_size), "features", total=-(-len(source) // batch_size)):
        tokens = encode(to_float(batch.images.to(images_on)))
        if not isinstance(tokens, Tensor) or tokens.ndim != 3 or tokens.shape[1] < 2:
            shape = tuple(tokens.shape) if isinstance(tokens, Tensor) else type(tokens).__name__
            raise ConfigError(f"the encoder gave {shape}, not tokens (B, 1 + N, D) with the class token first")
        values = values if done else torch.empty(2, len(source), tokens.shape[2], device=kept_on)
        both = torch.stack([pool(tokens.float(), pooling) for pooling in POOLINGS])  # (2, B, D)
        values[:, done : done + len(tokens)] = both
        labels.append(batch.labels)
        done += len(tokens)
    check_any(source, done)
    warn_skipped(source.skipped)
    known = torch.cat(labels).to(kept_on)
    return {name: Features(part[:done], known) for name, part in zip(POOLINGS, values, strict=True)}


def check_finite(features: Mapping[Pooling, Features], source: Source) -> None:
    """Refuse features that are no numbers."""
    values = [part.values for part in features.values()]
    if bad := sum(int((~torch.isfinite(part)).sum()) for part in values):
        what = f"{bad} of {sum(part.numel() for part in values)} feature values of {source.spec} are NaN or infinite"
        raise RunError(f"{what}: the encoder is damaged or its training diverged; take an earlier checkpoint")
