"""The torchmetrics classes: streaming, merging, resetting and synchronising give what one table gives."""

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

IMAGES, PATCHES, TOKENS, CLASSES, GROUPS, PERMUTATIONS = 40, 6, 5, 3, 8, 4


def batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (IMAGES,), generator=generator)
    shuffled = [labels[torch.randperm(IMAGES, generator=generator)] for _ in range(PERMUTATIONS)]
    return {
        "tokens": torch.randint(TOKENS, (IMAGES, PATCHES), generator=generator),
        "labels": labels,
        "groups": torch.arange(IMAGES) % GROUPS,
        "null_labels": torch.stack(shuffled),
        "halves": torch.arange(IMAGES) % 2,
    }


def part(data: dict[str, Tensor], chosen: Any) -> dict[str, Tensor]:
    """Some of the images; `null_labels` has them in its second dimension."""
    return {name: value[:, chosen] if name == "null_labels" else value[chosen] for name, value in data.items()}


def feed(metric: Any, data: dict[str, Tensor]) -> None:
    if isinstance(metric, metrics.TCAS):
        metric.update(data["tokens"], data["labels"])
    elif isinstance(metric, metrics.TokenClassTable):
        metric.update(data["tokens"], data["labels"], data["groups"], data["null_labels"])
    else:
        metric.update(data["tokens"], data["halves"])


def new_metrics() -> list[Any]:
    return [
        metrics.TCAS(TOKENS, CLASSES),
        metrics.TokenClassTable(TOKENS, CLASSES, GROUPS, PERMUTATIONS),
        metrics.TokenCooccurrence(TOKENS),
    ]


def states(metric: Any) -> dict[str, Any]:
    return {name: getattr(metric, name).tolist() for name in metric._defaults}


def plain(value: Any) -> Any:
    """A computed result with arrays as lists, to compare with =="""
    if isinstance(value, dict):
        return {name: entry.tolist() if hasattr(entry, "tolist") else entry for name, entry in value.items()}
    return float(value)


@pytest.mark.parametrize("which", [0, 1, 2], ids=["TCAS", "TokenClassTable", "TokenCooccurrence"])
@given(cuts=st.lists(st.integers(0, IMAGES), max_size=5).map(sorted))
def test_any_split_into_batches(which: int, cuts: list[int]) -> None:
    whole, pieces = new_metrics()[which], new_metrics()[which]
    feed(whole, batch())
    for start, stop in zip([0, *cuts], [*cuts, IMAGES], strict=True):  # empty batches among them
        feed(pieces, part(batch(), slice(start, stop)))
    assert states(pieces) == states(whole)
    assert plain(pieces.compute()) == plain(whole.compute())


@pytest.mark.parametrize("which", [0, 1, 2], ids=["TCAS", "TokenClassTable", "TokenCooccurrence"])
def test_states_of_two_ranks_add_up(which: int) -> None:
    whole, first, second = (new_metrics()[which] for _ in range(3))
    feed(whole, batch())
    feed(first, part(batch(), slice(0, IMAGES, 2)))
    feed(second, part(batch(), slice(1, IMAGES, 2)))
    for name, reduce in first._reductions.items():
        setattr(first, name, reduce(torch.stack([getattr(first, name), getattr(second, name)])))
    assert states(first) == states(whole)
    assert plain(first.compute()) == plain(whole.compute())


def run_rank(rank: int, folder: str) -> None:
    """One of two processes: every second image, then synchronised results."""
    torch.set_num_threads(1)
    init = f"file://{folder}/rendezvous"
    torch.distributed.init_process_group("gloo", init_method=init, rank=rank, world_size=2)
    chosen = new_metrics()
    for metric in chosen:
        feed(metric, part(batch(), slice(rank, IMAGES, 2)))
    torch.save([plain(metric.compute()) for metric in chosen], Path(folder) / f"rank{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    mp.spawn(run_rank, args=(str(tmp_path),), nprocs=2)
    expected = []
    for metric in new_metrics():
        feed(metric, batch())
        expected.append(plain(metric.compute()))
    for rank in range(2):
        assert torch.load(tmp_path / f"rank{rank}.pt") == expected


def test_results_are_those_of_the_functions() -> None:
    data = batch()
    score, table, pairs = new_metrics()
    for metric in (score, table, pairs):
        feed(metric, data)
    counts = np.zeros((TOKENS, CLASSES), dtype=int)
    np.add.at(counts, (data["tokens"].numpy(), data["labels"].numpy()[:, None]), 1)
    np.testing.assert_array_equal(score.counts.numpy(), counts)
    np.testing.assert_array_equal(table.counts.sum(dim=0).numpy(), counts)
    assert float(score.compute()) == pytest.approx(metrics.tcas(counts), abs=1e-6)
    assert table.compute() == metrics.assess(table.counts, table.null_counts)
    for permuted, labels in zip(table.null_counts, data["null_labels"], strict=True):
        again = metrics.TCAS(TOKENS, CLASSES)
        again.update(data["tokens"], labels)
        assert permuted.tolist() == again.counts.tolist()
    result = pairs.compute()
    assert result["sum_sq"] == metrics.sum_sq_half(data["tokens"], TOKENS, data["halves"])
    expected = metrics.cooccurrence(data["tokens"], TOKENS)
    np.testing.assert_allclose(result["Q"], expected, atol=1e-15)
    assert result["plug_in"] == pytest.approx(metrics.cooccurrence_sum_sq(expected), abs=1e-12)


def test_groups_are_kept_apart() -> None:
    data = batch()
    table = metrics.TokenClassTable(TOKENS, CLASSES, GROUPS, 0)
    table.update(data["tokens"], data["labels"], data["groups"])
    alone = metrics.TCAS(TOKENS, CLASSES)
    chosen = part(data, data["groups"] == 3)
    alone.update(chosen["tokens"], chosen["labels"])
    assert table.counts[3].tolist() == alone.counts.tolist()
    assert np.isnan(table.compute()["adjusted"])


def test_default_halves_alternate_over_batches() -> None:
    data = batch()
    given_halves, default, forward = (metrics.TokenCooccurrence(TOKENS) for _ in range(3))
    given_halves.update(data["tokens"], data["halves"])
    for start, stop in ((0, 7), (7, 8), (8, IMAGES)):
        default.update(data["tokens"][start:stop])
    for start, stop in ((0, 7), (7, IMAGES)):
        forward(data["tokens"][start:stop])
    assert states(default) == states(forward) == states(given_halves)


def test_large_codebook_counts_the_same_pairs() -> None:
    tokens = batch()["tokens"] * 100
    metric = metrics.TokenCooccurrence(500)
    metric.update(tokens[:25])
    metric.update(tokens[25:])
    np.testing.assert_allclose(metric.compute()["Q"], metrics.cooccurrence(tokens, 500), atol=1e-15)


def test_reset_forgets() -> None:
    for metric in new_metrics():
        empty = states(metric)
        feed(metric, batch())
        metric.reset()
        assert states(metric) == empty


def test_readings_reach_the_score() -> None:
    data = batch()
    metric = metrics.TCAS(TOKENS + 1, CLASSES, norm="softmax", diag="norm", tau=0.2, empty="zero")
    feed(metric, data)
    expected = metrics.tcas(metric.counts, norm="softmax", diag="norm", tau=0.2, empty="zero")
    assert float(metric.compute()) == pytest.approx(expected, abs=1e-6)
    table = metrics.TokenClassTable(TOKENS, CLASSES, GROUPS, PERMUTATIONS, norm="softmax", tau=0.2)
    feed(table, data)
    assert table.compute()["variant"] == "softmax, diag=C, tau=0.2, empty=drop"


def ids(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: metrics.TCAS(0, 3), ConfigError, "vocab_size"),
        (lambda: metrics.TCAS(3, 0), ConfigError, "num_classes"),
        (lambda: metrics.TCAS(3, 3, tau=-1), ConfigError, "tau"),
        (lambda: metrics.TokenClassTable(3, 3, groups=6), ConfigError, "divisible by 4"),
        (lambda: metrics.TokenClassTable(3, 3, permutations=-1), ConfigError, "permutations"),
        (lambda: metrics.TokenClassTable(3, 3, norm="x"), ConfigError, "norm"),  # type: ignore[arg-type]
        (lambda: metrics.TokenCooccurrence(0), ConfigError, "vocab_size"),
        (lambda: metrics.TCAS(3, 3).update(ids(2, 4) + 3, ids(2)), DataError, "tokens must lie in 0..2"),
        (lambda: metrics.TCAS(3, 3).update(ids(2, 4) - 1, ids(2)), DataError, "tokens must lie in 0..2"),
        (lambda: metrics.TCAS(3, 3).update(ids(2), ids(2)), DataError, "images, patches"),
        (lambda: metrics.TCAS(3, 3).update(ids(2, 4), ids(3)), DataError, "labels must have shape"),
        (lambda: metrics.TCAS(3, 3).update(ids(2, 4), ids(2) - 1), DataError, "labels must lie"),
        (lambda: metrics.TCAS(3, 3).update(ids(2, 4).float(), ids(2)), DataError, "int64"),
        (
            lambda: metrics.TokenClassTable(3, 3).update(ids(2, 4), ids(2), ids(2) + 20),
            DataError,
            "groups must lie in 0..19",
        ),
        (
            lambda: metrics.TokenClassTable(3, 3).update(ids(2, 4), ids(2), ids(2), ids(9, 2)),
            DataError,
            "null_labels must have shape",
        ),
        (lambda: metrics.TokenCooccurrence(3).update(ids(2, 1)), DataError, "two patches"),
        (lambda: metrics.TokenCooccurrence(3).update(ids(2, 4), ids(2) + 2), DataError, "halves"),
    ],
)
def test_refusals(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_images_of_different_sizes_are_refused() -> None:
    metric = metrics.TokenCooccurrence(3)
    metric.update(ids(2, 4))
    with pytest.raises(DataError, match="4 and of 9 patches"):
        metric.update(ids(2, 9))


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_nothing_counted_yet() -> None:
    for metric in new_metrics():
        with pytest.raises(DataError):
            metric.compute()
    one = metrics.TokenCooccurrence(3)
    one.update(ids(1, 4))
    with pytest.raises(DataError, match="both halves"):
        one.compute()
