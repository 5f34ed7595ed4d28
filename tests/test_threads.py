"""Work in threads: results in order, errors come through, torch's number of threads is as before."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from clustermim.threads import in_threads, undivided


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_results_are_in_order_and_every_thread_computes_alone() -> None:
    all_there = threading.Barrier(3, timeout=60)

    def work(part: int) -> tuple[int, int]:
        all_there.wait()  # passes only when three work side by side
        return part, torch.get_num_threads()

    assert in_threads(work, range(6)) == [(part, 1) for part in range(6)]
    assert torch.get_num_threads() == 3


def test_threads_to_come_have_the_number_of_all() -> None:
    in_threads(lambda part: part, range(6))
    found: list[int] = []
    other = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert found == [3]


def test_undivided_leaves_torch_one_thread_and_work_all_of_them() -> None:
    all_there = threading.Barrier(3, timeout=60)
    with undivided():
        assert torch.get_num_threads() == 1
        in_threads(lambda _: all_there.wait(), range(3))
        with undivided():
            in_threads(lambda _: all_there.wait(), range(3))
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3


def test_an_error_comes_through_and_changes_nothing() -> None:
    def work(part: int) -> None:
        raise ValueError(f"part {part}")

    with pytest.raises(ValueError, match="part 0"), undivided():
        in_threads(work, range(6))
    assert torch.get_num_threads() == 3
    assert in_threads(lambda part: part, []) == []


def test_threads_stay_and_a_forked_process_has_its_own() -> None:
    all_there = threading.Barrier(3, timeout=60)

    def work(_: int) -> int:
        all_there.wait()
        return threading.get_ident()

    assert set(in_threads(work, range(3))) == set(in_threads(work, range(3)))
    child = multiprocessing.get_context("fork").Process(target=in_threads, args=(abs, range(6)))
    child.start()
    child.join(60)
    assert child.exitcode == 0


def test_an_error_waits_for_the_other_parts() -> None:
    done: list[int] = []

    def work(part: int) -> None:
        if part == 0:
            raise ValueError("at once")
        time.sleep(0.05)
        done.append(part)

    with pytest.raises(ValueError, match="at once"):
        in_threads(work, range(6))
    assert sorted(done) == [1, 2, 3, 4, 5]
