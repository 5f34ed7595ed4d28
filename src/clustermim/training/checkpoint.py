"""Checkpoints: all that is needed to continue exactly, in one safetensors file with JSON inside; never pickle.

    model.NAME             parameters and buffers
    optimizer.ENTRY.NAME   what the optimizer remembers of a parameter
    generator.NAME         states of the global generators (ranks, length)
    metadata               a JSON record: the step, running means, and what must not change between save and load;
                           and the sha256 of all bytes of the file, with zeros in the place of that sum

One file is consistent with itself at any moment: it is written under another name and renamed. The ones before it are
checkpoint-1, checkpoint-2, …: where the newest is damaged, a run continues from the newest that is not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim import Optimizer

from clustermim.distributed import rank
from clustermim.errors import RunError
from clustermim.files import write_atomic, writing
from clustermim.progress import log_info
from clustermim.reading import parse_json
from clustermim.training.sharding import full_tensor, shard_like
from clustermim.weights import read_header

CHECKPOINT = "checkpoint.safetensors"
DAMAGED = ".damaged"  # the suffix of one that was set aside
FORMAT = 2  # the first had no checksum
KEY, SUM = "clustermim", "sha256"  # of our record and of the checksum, in the metadata
ZEROS = b"0" * 64  # in the place of the checksum, when it is computed
PIECE = 1 << 24  # bytes that are hashed at a time


def save_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: Optimizer,
    generators: Mapping[str, Tensor],
    record: Mapping[str, Any],
    keep: int = 1,
) -> None:
    """Write a checkpoint, and keep so many with it; whatever happens meanwhile, one is there that is whole.

    All ranks call this, and the first one writes.
    """
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {f"generator.{name}": state for name, state in generators.items()}
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    for parameter, entries in optimizer.state.items():
        for entry, value in entries.items():
            if value is not None:
                tensors[f"optimizer.{entry}.{names[parameter]}"] = value
    tensors = {name: full_tensor(tensor.detach()) for name, tensor in tensors.items()}
    if rank() > 0:
        return
    metadata = {KEY: json.dumps({"format": FORMAT, **record}), SUM: ZEROS.decode()}
    content = save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, metadata)
    digest, place, view = hashlib.sha256(content).hexdigest(), content.index(ZEROS), memoryview(content)
    new = _numbered(path, 0)
    write_atomic(new, lambda file: file.writelines((view[:place], digest.encode(), view[place + len(ZEROS) :])))
    with writing(path):
        for number in range(keep - 1, 0, -1):  # from the oldest: a kill in between leaves a gap, and every file whole
            before = path if number == 1 else _numbered(path, number - 1)
            if before.exists():
                before.replace(_numbered(path, number))
        new.replace(path)
        for old in checkpoints(path.parent)[keep:]:
            old.unlink()


def _numbered(path: Path, number: int) -> Path:
    return path.with_stem(f"{path.stem}-{number}")


def checkpoints(folder: Path) -> list[Path]:
    """Those of a run, the newest first: number 0 is one that a kill kept from its name."""
    ages = {path: path.stem.rpartition("-")[2] for path in folder.glob(f"{Path(CHECKPOINT).stem}-*.safetensors")}
    found = {path: float(age) for path, age in ages.items() if age.isdigit()}
    if (folder / CHECKPOINT).exists():
        found[folder / CHECKPOINT] = 0.5
    return sorted(found, key=lambda path: found[path])


def name_newest(folder: Path) -> None:
    """Give the newest checkpoint the name that a kill kept it from, where nothing is left to be trained."""
    if rank() == 0 and (newest := checkpoints(folder)[0]).name != CHECKPOINT:
        newest.replace(folder / CHECKPOINT)


def load_newest(folder: Path, model: nn.Module, optimizer: Optimizer) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Load the newest checkpoint that is not damaged; those that are get another name, and are told."""
    faults: dict[Path, RunError] = {}
    for path in checkpoints(folder):
        try:
            tensors, record = _read(path)
        except RunError as error:
            faults[path] = error
            continue
        for bad, fault in faults.items():
            log_info(f"warning: {fault}; {path.name}, the newest that is whole, is used")
            if rank() == 0:  # or it would take the place of a good one
                bad.replace(bad.with_suffix(DAMAGED))
        return _fill(path, tensors, record, model, optimizer)
    raise next(iter(faults.values()))


def load_checkpoint(path: Path, model: nn.Module, optimizer: Optimizer) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Put a checkpoint into a model and its optimizer; its record and generator states. It fits whole or not at all."""
    return _fill(path, *_read(path), model, optimizer)


def _fill(
    path: Path, tensors: Mapping[str, Tensor], record: dict[str, Any] | None, model: nn.Module, optimizer: Optimizer
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if record is None:
        raise RunError(f"{path} is not a checkpoint of clustermim: it holds no training state")
    weights, moments, generators = (_below(tensors, prefix) for prefix in ("model.", "optimizer.", "generator."))
    check_fit(path, weights, model)
    state = _optimizer_state(path, moments, model, optimizer)
    _load(model, weights)
    optimizer.load_state_dict(state)
    return record, generators


def init_from(path: str | Path, model: nn.Module) -> None:
    """Load weights alone, for a new schedule: from a run folder, a checkpoint, or a safetensors file of a model."""
    file, weights = read_weights(path)
    check_fit(file, weights, model)
    _load(model, weights)


def read_weights(path: str | Path) -> tuple[Path, dict[str, Tensor]]:
    """The weights of a model in a run folder, a checkpoint, or a safetensors file, and which file they are from."""
    file = next(iter(checkpoints(Path(path))), Path(path) / CHECKPOINT) if Path(path).is_dir() else Path(path)
    tensors, record = _read(file)
    return file, tensors if record is None else _below(tensors, "model.")


def _load(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    now = model.state_dict()
    model.load_state_dict({name: shard_like(tensor, now[name]) for name, tensor in weights.items()})


def check_fit(path: Path, weights: Mapping[str, Tensor], model: nn.Module) -> None:
    """Refuse weights of another architecture, by the first name or shape that differs."""
    both = model.state_dict(), weights
    shapes, found = ({name: str(tuple(tensor.shape)) for name, tensor in tensors.items()} for tensors in both)
    for name in {**shapes, **found}:
        here, there = (known.get(name, "not there") for known in (shapes, found))
        if here != there:
            raise RunError(f"{path} does not fit this model: {name} is {there} in the file and {here} in the model")


def _optimizer_state(
    path: Path, moments: Mapping[str, Tensor], model: nn.Module, optimizer: Optimizer
) -> dict[str, Any]:
    """The state dict of an optimizer, which numbers parameters in the order of its groups."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    ordered = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    places = {names[parameter]: place for place, parameter in enumerate(ordered)}
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in moments.items():
        entry, _, name = key.partition(".")
        if name not in places:
            raise RunError(f"{path} does not fit this optimizer: it holds {key}, which the optimizer does not train")
        weight = ordered[places[name]]
        if tensor.shape not in (weight.shape, ()) or not tensor.is_floating_point():
            raise RunError(f"{path} does not fit this optimizer: {key} is {tensor.dtype} {tuple(tensor.shape)}")
        state.setdefault(places[name], {})[entry] = shard_like(tensor, weight) if tensor.shape else tensor
    if len({frozenset(entries) for entries in state.values()}) > 1:
        raise RunError(f"{path} is damaged: the optimizer does not remember the same of every parameter")
    return {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
    """The tensors of a safetensors file, and our record if it is a checkpoint."""
    try:
        _check_header(path)
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors: dict[str, Tensor] = {name: torch.clone(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
        record = parse_json(metadata[KEY], finite=False) if KEY in metadata else None
        damaged = SUM in metadata and _checksum(path, metadata[SUM]) != metadata[SUM]
    except FileNotFoundError:
        raise RunError(f"{path} is not there") from None
    except ValueError as error:
        raise RunError(f"{path} has a damaged record: {error}") from None
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from error
    if record is not None and (not isinstance(record, dict) or record.get("format") not in (1, FORMAT)):
        raise RunError(f"{path} is not a checkpoint of format {FORMAT}, the one this version reads")
    if damaged or (record is not None and record["format"] == FORMAT and SUM not in metadata):
        raise RunError(f"{path} is damaged: its bytes are not those that were written")
    if record is not None and record["format"] == 1:
        log_info(f"{path} is of an earlier version, without a checksum: damage to it would not be noticed")
    return tensors, record


def _checksum(path: Path, known: str) -> str:
    """The sha256 of a file with zeros in the place of its own checksum, in its header."""
    with path.open("rb") as file:
        length = file.read(8)
        header = file.read(int.from_bytes(length, "little"))
        digest = hashlib.sha256(length + header.replace(known.encode(), ZEROS, 1))
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()


def _check_header(path: Path) -> None:
    """Refuse what holds no tensors, and a pipe, which would be waited for."""
    try:
        read_header(path)
    except ValueError as error:
        raise RunError(
            f"{path} is truncated or not a safetensors file, the only kind that is loaded: {error}"
        ) from None


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
