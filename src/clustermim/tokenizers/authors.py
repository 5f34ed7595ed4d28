"""The k-means of the paper's authors: scikit-learn's mini-batches over all patches, epoch after epoch."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from clustermim.data.cache import write_cached
from clustermim.data.remembered import SECONDS
from clustermim.errors import ConfigError, DataError
from clustermim.progress import log_info
from clustermim.tokenizers.lloyd import Log

STATE = "n_steps_", "_n_since_last_reassign"


def authors_kmeans(
    epochs: Iterable[Iterable[Tensor]], k: int, seed: int, log: Log, progress: Path | None = None
) -> Tensor:
    """Centres (k, d) as the authors make them: MiniBatchKMeans.partial_fit on batches in the order of the source.

    Its initial centres come from the first batch alone: about one class of a class-sorted folder. A smaller last
    batch is dropped, as theirs is. Epochs that take long are kept in the file `progress`, from which a fit that was
    killed goes on, to the same bits.
    """
    from sklearn.cluster import MiniBatchKMeans

    model = MiniBatchKMeans(k, random_state=seed % 2**32, n_init="auto")
    known = _read(progress) if progress else None
    done, full, since = known[0]["epoch"] if known else 0, 0, time.monotonic()
    for epoch, batches in enumerate(epochs, 1):
        if 1 < epoch <= done:
            continue
        for vectors in batches:
            full = full or len(vectors)
            if len(vectors) < full:
                continue
            if full < k:
                raise ConfigError(f"the first batch has {full} patches, fewer than k = {k}: choose a smaller --k")
            model.partial_fit(vectors.numpy())
            if epoch <= done:  # now it has all that it needs but its state
                break
        if known and epoch <= done:
            _restore(model, *known)
            log_info(f"continuing after epoch {done}, from {progress}")
            continue
        log(epoch=epoch, batches=int(model.n_steps_))
        if progress and time.monotonic() - since > SECONDS:
            _write(progress, model, epoch)
            since = time.monotonic()
    if progress:
        progress.unlink(missing_ok=True)
    return torch.from_numpy(model.cluster_centers_).float()


def _write(path: Path, model: Any, epoch: int) -> None:
    _, keys, *rest = model._random_state.get_state()
    tensors = {"centers": model.cluster_centers_, "counts": model._counts, "keys": keys.astype("int64")}
    record = {"epoch": epoch, "generator": rest, **{name: int(getattr(model, name)) for name in STATE}}
    content = save({name: torch.from_numpy(value) for name, value in tensors.items()}, {"state": json.dumps(record)})
    with contextlib.suppress(DataError):  # which costs time only
        write_cached(path, content)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    try:
        with safe_open(path, framework="pt") as file:
            return json.loads(file.metadata()["state"]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, SafetensorError):
        log_info(f"{path} is damaged: the fit begins anew")
        return None


def _restore(model: Any, record: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    for name in STATE:
        setattr(model, name, record[name])
    model.cluster_centers_, model._counts = tensors["centers"].numpy(), tensors["counts"].numpy()
    model._random_state.set_state(("MT19937", tensors["keys"].numpy().astype("uint32"), *record["generator"]))
