"""FSDP: each rank holds a part of every weight, its gradient and its moments; a block is whole while it computes.

What leaves the ranks, checkpoints and encoders, is whole: one process reads it, or any number of ranks.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, cast

from torch import Tensor

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from clustermim.training.task import Task

Strategy = Literal["ddp", "fsdp"]


def make_strategy(ranks: int) -> Any:
    """Fabric's strategy for a model that is shared out among so many ranks."""
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy  # slow to import

    return ModelParallelStrategy(lambda model, mesh: model, data_parallel_size=ranks, tensor_parallel_size=1)


@contextmanager
def shared_out(task: Task, fabric: Fabric) -> Iterator[None]:
    """While the block lasts, a task's model is shared out, where Fabric's strategy says so; at its end it is whole."""
    mesh = getattr(fabric.strategy, "device_mesh", None)
    if mesh is None or task.blocks is None:
        yield
        return
    from torch.distributed.fsdp import fully_shard  # slow to import

    # some models give a view of their output, and nothing here changes one in place
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning)
    model, task.model = task.model, copy.deepcopy(task.model)
    blocks = [module for module in task.model.modules() if isinstance(module, task.blocks)]
    for module in (*blocks, task.model):
        fully_shard(module, mesh=mesh["data_parallel"])
    yield
    model.load_state_dict({name: full_tensor(tensor).cpu() for name, tensor in task.model.state_dict().items()})
    task.model = model


def full_tensor(tensor: Tensor) -> Tensor:
    """A tensor with the parts of all ranks, which all call this."""
    return cast(Any, tensor).full_tensor() if hasattr(tensor, "full_tensor") else tensor


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, shared out as another one is; every rank has it."""
    if not hasattr(like, "placements"):
        return tensor
    from torch.distributed.tensor import distribute_tensor  # slow to import

    place = cast(Any, like)
    return distribute_tensor(tensor.to(like.device), place.device_mesh, place.placements, src_data_rank=None)
