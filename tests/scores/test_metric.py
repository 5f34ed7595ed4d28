"""TCAS as a torchmetrics class: streaming, merging, resetting and synchronising give what one table gives."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from clustermim import scores as metrics
from clustermim.errors import ConfigError, DataError

IMAGES, PATCHES, TOKENS, CLASSES = 40, 6, 5, 3


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (IMAGES,), generator=generator)
    return torch.randint(TOKENS, (IMAGES, PATCHES), generator=generator), labels


def fed(chosen: slice = slice(None), **options: Any) -> metrics.TCAS:
    """A metric that has seen some of the images."""
    metric = metrics.TCAS(**({"vocab_size": TOKENS, "num_classes": CLASSES} | options))
    metric.update(*(values[chosen] for values in batch()))
    return metric


@given(cuts=st.lists(st.integers(0, IMAGES), max_size=5).map(sorted))
def test_any_split_into_batches(cuts: list[int]) -> None:
    pieces = metrics.TCAS(TOKENS, CLASSES)
    for start, stop in zip([0, *cuts], [*cuts, IMAGES], strict=True):  # empty batches among them
        pieces.update(*(values[start:stop] for values in batch()))
    assert torch.equal(pieces.counts, fed().counts)
    assert pieces.compute() == fed().compute()


def test_states_of_two_ranks_add_up() -> None:
    first, second = fed(slice(0, IMAGES, 2)), fed(slice(1, IMAGES, 2))
    first.counts = first._reductions["counts"](torch.stack([first.counts, second.counts]))  # type: ignore[operator]
    assert torch.equal(first.counts, fed().counts)
    assert first.compute() == fed().compute()


def run_rank(rank: int, folder: str) -> None:
    """One of two processes: every second image, then synchronised results."""
    torch.set_num_threads(1)
    init = f"file://{folder}/rendezvous"
    torch.distributed.init_process_group("gloo", init_method=init, rank=rank, world_size=2)
    torch.save(float(fed(slice(rank, IMAGES, 2)).compute()), Path(folder) / f"rank{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    mp.spawn(run_rank, args=(str(tmp_path),), nprocs=2)
    for rank in range(2):
        assert torch.load(tmp_path / f"rank{rank}.pt") == float(fed().compute())


def test_results_are_those_of_the_function() -> None:
    tokens, labels = batch()
    counts = np.zeros((TOKENS, CLASSES), dtype=int)
    np.add.at(counts, (tokens.numpy(), labels.numpy()[:, None]), 1)
    np.testing.assert_array_equal(fed().counts.numpy(), counts)
    assert float(fed().compute()) == pytest.approx(metrics.tcas(counts), abs=1e-6)


def test_reset_forgets() -> None:
    metric = fed()
    metric.reset()
    assert not metric.counts.any()


def test_variants_reach_the_score() -> None:
    variant: dict[str, Any] = {"norm": "softmax", "diag": "norm", "tau": 0.2, "empty": "zero"}
    metric = fed(vocab_size=TOKENS + 1, **variant)
    assert float(metric.compute()) == pytest.approx(metrics.tcas(metric.counts, **variant), abs=1e-6)


def ids(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: metrics.TCAS(0, 3), ConfigError, "vocab_size"),
        (lambda: metrics.TCAS(3, 0), ConfigError, "num_classes"),
        (lambda: metrics.TCAS(3, 3, tau=-1), ConfigError, "tau"),
        (lambda: metrics.TCAS(3, 3).update(ids(2, 4) + 3, ids(2)), DataError, "tokens must lie in 0..2"),
        (lambda: metrics.TCAS(3, 3).update(ids(2, 4) - 1, ids(2)), DataError, "tokens must lie in 0..2"),
        (lambda: metrics.TCAS(3, 3).update(ids(2), ids(2)), DataError, "images, patches"),
        (lambda: metrics.TCAS(3, 3).update(ids(2, 4), ids(3)), DataError, "labels must have shape"),
        (lambda: metrics.TCAS(3, 3).update(ids(2, 4), ids(2) - 1), DataError, "labels must lie"),
        (lambda: metrics.TCAS(3, 3).update(ids(2, 4).float(), ids(2)), DataError, "int64"),
    ],
)
def test_refusals(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_nothing_counted_yet() -> None:
    with pytest.raises(DataError):
        metrics.TCAS(3, 3).compute()


def test_torchmetrics_is_imported_only_where_it_works() -> None:
    script = "import sys, clustermim.scores; print('clustermim.scores.metric' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
