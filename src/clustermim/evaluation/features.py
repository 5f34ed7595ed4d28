"""Features of a frozen encoder: both poolings in one pass, kept on disk, and checked before they are compared."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clustermim.data import Source, to_float
from clustermim.data.cache import fingerprint_of
from clustermim.errors import ConfigError, DataError, RunError
from clustermim.evaluation.classes import class_numbers, need_labels
from clustermim.files import write_atomic
from clustermim.progress import log_info, track
from clustermim.runs import to_json
from clustermim.training.devices import keep_freed_memory

# Images (B, C, H, W), float32 in [0, 1], to tokens (B, 1 + N, D) after the last norm, the class token first.
Encode = Callable[[Tensor], Tensor]

Pooling = Literal["avg", "cls"]
POOLINGS: tuple[Pooling, ...] = ("avg", "cls")  # the mean of the patch tokens, and the class token

_LAYOUT = 1  # part of the key: raise it when the same key would mean other numbers
_NORMAL_95 = 1.959963984540054  # 95 % of a normal distribution lie within so many standard deviations


class Features(NamedTuple):
    """One row an image, and its class; without `class_names` the classes are called by their numbers."""

    values: Tensor  # (n, D) float32
    labels: Tensor  # (n,) int64
    class_names: tuple[str, ...] = ()


def extract(encode: Encode, source: Source, batch_size: int = 256) -> dict[str, Features]:
    """Features of all images of a source, by pooling; images that cannot be read are left out."""
    need_labels(source)
    arrays = _pooled(encode, source, batch_size)
    return {pooling: _features(arrays[pooling], arrays["labels"], source) for pooling in POOLINGS}


def cached_features(
    folder: Path,
    weights: str,
    encode: Encode,
    source: Source,
    *,
    extra: Mapping[str, Any] | None = None,
    batch_size: int = 256,
) -> dict[str, Features]:
    """As `extract`, but read from `folder` when these weights saw this data before; values are memory-mapped.

    `weights` is a hash of them; `extra` holds whatever else the numbers depend on, as JSON values (a
    normalisation, say). Damaged files are computed again; a folder that cannot be written costs time only.
    """
    need_labels(source)
    origin = {"layout": _LAYOUT, "weights": weights, "data": source.fingerprint, "extra": dict(extra or {})}
    key = fingerprint_of(json.dumps(origin, sort_keys=True))
    arrays = _load(folder, key)
    if arrays is None:
        arrays = _pooled(encode, source, batch_size)
        try:
            if not source.skipped:  # what could not be read may be mended, and is to be told each time
                _save(folder, key, origin, arrays)
        except OSError as error:
            log_info(f"warning: features are not kept for another time: cannot write to {folder}: {error.strerror}")
    return {pooling: _features(arrays[pooling], arrays["labels"], source) for pooling in POOLINGS}


def check_pair(train: Features, test: Features) -> tuple[Features, Features]:
    """Both sets, the test labels numbered as in train; an error when they cannot be compared."""
    for name, part in (("train", train), ("test", test)):
        if not len(part.values):
            raise DataError(f"the {name} set holds no images")
        if len(part.labels) != len(part.values):
            raise DataError(f"the {name} set has {len(part.values)} features and {len(part.labels)} labels")
        bad = int((~torch.isfinite(part.values)).sum())
        if bad:
            raise RunError(
                f"{bad} of {part.values.numel()} feature values of the {name} set are NaN or infinite: "
                "the encoder's weights are damaged or its training diverged; take an earlier checkpoint"
            )
    if train.values.shape[1] != test.values.shape[1]:
        raise DataError(
            f"train features have {train.values.shape[1]} values and test features {test.values.shape[1]}: "
            "compute both with the same encoder"
        )
    numbers = class_numbers(train.labels, train.class_names, test.labels, test.class_names)
    return train, test._replace(labels=numbers[test.labels], class_names=train.class_names)


def score(predicted: Tensor, labels: Tensor) -> dict[str, Any]:
    """Accuracy of predictions (n,) with its 95 % interval (Wilson's), as a summary holds it."""
    return accuracy_from_counts(int((predicted == labels).sum()), len(labels))


def accuracy_from_counts(correct: int, total: int) -> dict[str, Any]:
    """The same from counts."""
    return {"accuracy": correct / total, "interval": wilson(correct, total), "test_images": total}


def wilson(correct: int, total: int, z: float = _NORMAL_95) -> list[float]:
    """The binomial interval of Wilson (1927): the shares p with |correct/total − p| ≤ z·√(p(1−p)/total).

    >>> [round(bound, 4) for bound in wilson(8, 10)]
    [0.4902, 0.9433]
    """
    share, weight = correct / total, z * z / total
    centre = share + weight / 2
    half_width = math.sqrt(weight * (share * (1 - share) + weight / 4))
    return [max(0.0, (centre - half_width) / (1 + weight)), min(1.0, (centre + half_width) / (1 + weight))]


@torch.no_grad()  # not inference mode: a probe computes gradients from these
def _pooled(encode: Encode, source: Source, batch_size: int) -> dict[str, NDArray[Any]]:
    """Values (n, D) of each pooling, and labels (n,), filled batch by batch."""
    if batch_size < 1:
        raise ConfigError(f"--batch-size {batch_size} is too small: 1 at least")
    keep_freed_memory()
    arrays: dict[str, NDArray[Any]] = {"labels": np.empty(len(source), np.int64)}
    done = 0
    for batch in track(source.batches(batch_size), "features", total=-(-len(source) // batch_size)):
        tokens = encode(to_float(batch.images)).float()  # (B, 1 + N, D)
        for pooling, values in (("avg", tokens[:, 1:].mean(dim=1)), ("cls", tokens[:, 0])):
            whole = arrays.setdefault(pooling, np.empty((len(source), values.shape[1]), np.float32))
            whole[done : done + len(values)] = values.cpu().numpy()
        assert batch.labels is not None  # of a labelled source
        arrays["labels"][done : done + len(tokens)] = batch.labels.numpy()
        done += len(tokens)
    if not done:
        raise DataError(f"{source.spec}: no image can be read; {'; '.join(list(source.skipped.values())[:1])}")
    return {name: whole[:done] for name, whole in arrays.items()}


def _features(values: NDArray[Any], labels: NDArray[Any], source: Source) -> Features:
    return Features(torch.from_numpy(values), torch.from_numpy(labels), source.class_names)


def _save(folder: Path, key: str, origin: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
    """Arrays as KEY-NAME.npy, and KEY.json last: with it they are complete."""
    for name, array in arrays.items():
        write_atomic(folder / f"{key}-{name}.npy", lambda file, array=array: np.save(file, array))  # type: ignore[misc]
    described = {
        name: {"shape": list(array.shape), "fingerprint": fingerprint_of(array)} for name, array in arrays.items()
    }
    write_atomic(folder / f"{key}.json", (to_json({**origin, "arrays": described}, indent=2) + "\n").encode())


def _load(folder: Path, key: str) -> dict[str, NDArray[Any]] | None:
    """What `_save` kept, memory-mapped, or None if it is not there whole."""
    try:
        described = json.loads((folder / f"{key}.json").read_bytes())["arrays"]
        arrays = {}
        for name in (*POOLINGS, "labels"):
            # "c": changes stay in memory; torch warns about arrays that cannot be changed
            arrays[name] = np.load(folder / f"{key}-{name}.npy", mmap_mode="c", allow_pickle=False)
            known = described[name]
            if list(arrays[name].shape) != known["shape"] or fingerprint_of(arrays[name]) != known["fingerprint"]:
                return None
    except (OSError, ValueError, TypeError, KeyError, EOFError):
        return None
    return arrays
