"""FSDP: each rank holds a part of every weight, its gradient and its moments; a block is whole while it computes.

What leaves the ranks, checkpoints and encoders, is whole: one process reads it, or any number of ranks.
"""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Strategy = Literal["ddp", "fsdp"]
Model = TypeVar("Model", bound=nn.Module)


def make_strategy(ranks: int) -> Any:
    """Fabric's strategy for a model that `shard` has shared out."""
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy  # slow to import

    return ModelParallelStrategy(lambda model, mesh: model, data_parallel_size=ranks, tensor_parallel_size=1)


def shard(model: Model, mesh: DeviceMesh, blocks: type[nn.Module]) -> Model:
    """A copy of a model whose weights are shared out, those of each block and those of the rest together."""
    from torch.distributed.fsdp import fully_shard  # slow to import

    # some models give a view of their output, and nothing here changes one in place
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning)
    shared = copy.deepcopy(model)
    for module in shared.modules():
        if isinstance(module, blocks):
            fully_shard(module, mesh=mesh)
    fully_shard(shared, mesh=mesh)
    return shared


def whole(tensor: Tensor) -> Tensor:
    """A tensor with the parts of all ranks, which all call this."""
    return cast(Any, tensor).full_tensor() if hasattr(tensor, "full_tensor") else tensor


def spread(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, shared out as another one is; every rank has it."""
    if not hasattr(like, "placements"):
        return tensor
    from torch.distributed.tensor import distribute_tensor  # slow to import

    place = cast(Any, like)
    return distribute_tensor(tensor.to(like.device), place.device_mesh, place.placements, src_data_rank=None)


@torch.no_grad()
def gather_into(model: nn.Module, shared: nn.Module) -> None:
    """Copy the weights of a shared model into a whole one."""
    model.load_state_dict({name: whole(tensor).cpu() for name, tensor in shared.state_dict().items()})
