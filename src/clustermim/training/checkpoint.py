"""Checkpoints: all that is needed to continue exactly, in one safetensors file with JSON inside; never pickle.

    model.NAME             parameters and buffers
    optimizer.ENTRY.NAME   what the optimizer remembers of a parameter
    generator.NAME         states of the global generators (ranks, length)
    metadata               a JSON record: the step, running means, and what must not change between save and load

One file is consistent with itself at any moment: it is written under another name and renamed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim import Optimizer

from clustermim.errors import RunError
from clustermim.files import write_atomic
from clustermim.reading import parse_json
from clustermim.weights import read_header

CHECKPOINT = "checkpoint.safetensors"
FORMAT = 1
KEY = "clustermim"  # of our record in the metadata


def save_checkpoint(
    path: Path, model: nn.Module, optimizer: Optimizer, generators: Mapping[str, Tensor], record: Mapping[str, Any]
) -> None:
    """Write a checkpoint; whatever happens meanwhile, the previous one is there until the new one is whole."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {f"generator.{name}": state for name, state in generators.items()}
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    for parameter, entries in optimizer.state.items():
        for entry, value in entries.items():
            if value is not None:
                tensors[f"optimizer.{entry}.{names[parameter]}"] = value
    metadata = {KEY: json.dumps({"format": FORMAT, **record})}
    content = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, metadata)
    write_atomic(path, content)


def load_checkpoint(path: Path, model: nn.Module, optimizer: Optimizer) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Put a checkpoint into a model and its optimizer; its record and generator states. It fits whole or not at all."""
    tensors, record = _read(path)
    if record is None:
        raise RunError(f"{path} is not a checkpoint of clustermim: it holds no training state")
    weights, moments, generators = (_below(tensors, prefix) for prefix in ("model.", "optimizer.", "generator."))
    check_fit(path, weights, model)
    state = _optimizer_state(path, moments, model, optimizer)
    model.load_state_dict(weights)
    optimizer.load_state_dict(state)
    return record, generators


def init_from(path: str | Path, model: nn.Module) -> None:
    """Load weights alone, for a new schedule: from a run folder, a checkpoint, or a safetensors file of a model."""
    file = Path(path) / CHECKPOINT if Path(path).is_dir() else Path(path)
    tensors, record = _read(file)
    weights = tensors if record is None else _below(tensors, "model.")
    check_fit(file, weights, model)
    model.load_state_dict(weights)


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
        state.setdefault(places[name], {})[entry] = tensor
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
    except FileNotFoundError:
        raise RunError(f"{path} is not there") from None
    except ValueError as error:
        raise RunError(f"{path} has a damaged record: {error}") from None
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from error
    if record is not None and (not isinstance(record, dict) or record.get("format") != FORMAT):
        raise RunError(f"{path} is not a checkpoint of format {FORMAT}, the one this version reads")
    return tensors, record


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
