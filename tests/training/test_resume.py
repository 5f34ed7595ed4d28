"""However a run is broken, resuming it gives the bytes of an unbroken one."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
import toy
from safetensors.torch import load_file

from clustermim.errors import RunError
from clustermim.training import CHECKPOINT, Stopped

KILLS = int(os.environ.get("CLUSTERMIM_TEST_KILLS", "6"))
RANK_KILLS = int(os.environ.get("CLUSTERMIM_TEST_RANK_KILLS", "1"))
PROCESSES = multiprocessing.get_context("forkserver")  # children that start fast and share nothing with the tests
PROCESSES.set_forkserver_preload(["clustermim.training", "lightning_fabric"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unbroken run."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    toy.run_toy(folder)
    return folder


def same(first: Path, second: Path) -> bool:
    """Whether two runs ended with the same weights, optimizer, generators and metrics."""
    metrics = [(folder / "metrics.jsonl").read_bytes() for folder in (first, second)]
    return toy.tensors(first / CHECKPOINT) == toy.tensors(second / CHECKPOINT) and metrics[0] == metrics[1]


def start(folder: Path, resume: bool, pause: float = 0.002, checkpoint_seconds: float = 0.01) -> ForkServerProcess:
    process = PROCESSES.Process(target=toy.run_process, args=(folder, resume, pause, checkpoint_seconds))
    process.start()
    return process


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split("\n"))


def wait_for_lines(folder: Path) -> None:
    """Until the run has written a line of metrics."""
    path = folder / "metrics.jsonl"
    while not path.exists() or not path.read_bytes():
        time.sleep(0.005)


def test_the_same_run_twice(whole: Path, tmp_path: Path) -> None:
    toy.run_toy(tmp_path / "run")
    assert same(tmp_path / "run", whole)


def test_two_epochs_and_two_more(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(Stopped) as stopped:
        toy.run_toy(tmp_path / "run", stop_after=2)
    assert stopped.value.code == 0
    assert not (tmp_path / "run" / "summary.json").exists()
    toy.run_toy(tmp_path / "run", resume=True)
    assert same(tmp_path / "run", whole)
    assert (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize("at", [1, 5, 6, 7, 23])
def test_a_failure_in_the_middle_of_an_epoch(whole: Path, tmp_path: Path, at: int) -> None:
    calls = iter(range(1000))

    def fail(model: Any, batch: Any) -> Any:
        if next(calls) == at * toy.ACCUMULATE + 1:  # in the second of two accumulated batches
            raise OSError("unplugged")
        return toy.step(model, batch)

    with pytest.raises(OSError, match="unplugged"):
        toy.run_toy(tmp_path / "run", step=fail, checkpoint_seconds=0.0)
    trained = toy.run_toy(tmp_path / "run", resume=True)
    assert same(tmp_path / "run", whole)
    assert trained.steps == 24


def test_work_after_the_last_checkpoint_is_done_again(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        toy.run_toy(tmp_path / "run", stop_after=1)
    path = tmp_path / "run" / "metrics.jsonl"
    with path.open("a") as file:  # lines beyond the checkpoint, the last one cut short by a kill
        file.write('{"step": 8, "loss": 1.0}\n{"step": 12, "lo')
    toy.run_toy(tmp_path / "run", resume=True)
    steps = [json.loads(line)["step"] for line in path.read_text().splitlines()]
    assert steps == sorted(set(steps))
    assert same(tmp_path / "run", whole)


def test_a_damaged_checkpoint_costs_the_steps_since_the_one_before(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    with pytest.raises(Stopped):
        toy.run_toy(out, stop_after=2, checkpoint_seconds=0.0)
    assert sorted(path.name for path in out.glob("checkpoint*")) == ["checkpoint-1.safetensors", CHECKPOINT]
    content = bytearray((out / CHECKPOINT).read_bytes())
    content[-7] ^= 1
    (out / CHECKPOINT).write_bytes(content)
    toy.run_toy(out, resume=True)
    said = capsys.readouterr().err
    assert f"{out / CHECKPOINT} is damaged: its bytes are not those that were written; checkpoint-1.safeten" in said
    assert "continuing after step 11 of 24" in said
    assert same(out, whole)
    assert [path.name for path in out.glob("checkpoint*")] == [CHECKPOINT]  # a complete run keeps one


def test_a_finished_training_is_not_done_again(tmp_path: Path) -> None:
    toy.run_toy(tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()  # the stage failed after training
    trained = toy.run_toy(tmp_path / "run", resume=True, step=None)
    assert trained.steps == 24
    assert trained.final["loss"] > 0
    with pytest.raises(RunError, match="holds a complete run"):
        toy.run_toy(tmp_path / "run", resume=True)


def test_the_line_that_an_interrupted_run_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)

    def ask(model: Any, batch: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return toy.step(model, batch)

    with pytest.raises(Stopped) as stopped:
        toy.run_toy(tmp_path / "run", step=ask, accumulate=1, steps_per_epoch=12)  # a batch a step: one signal
    assert stopped.value.code == 130
    assert f"stopped after step 1 of 48, saved in {tmp_path / 'run'}; --resume continues" in one_line(capsys)
    assert signal.getsignal(signal.SIGINT) is before


def test_nohup_is_respected(whole: Path, tmp_path: Path) -> None:
    def hang_up(model: Any, batch: Any) -> Any:
        signal.raise_signal(signal.SIGHUP)
        return toy.step(model, batch)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        toy.run_toy(tmp_path / "run", step=hang_up)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert same(tmp_path / "run", whole)


def test_a_second_ctrl_c_does_not_wait(tmp_path: Path) -> None:
    def impatient(model: Any, batch: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError

    with pytest.raises(KeyboardInterrupt):
        toy.run_toy(tmp_path / "run", step=impatient)
    assert not (tmp_path / "run" / CHECKPOINT).exists()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_an_interrupted_run_saves_and_leaves(whole: Path, tmp_path: Path, number: signal.Signals, code: int) -> None:
    process = start(tmp_path / "run", resume=False, pause=0.05, checkpoint_seconds=1000.0)
    wait_for_lines(tmp_path / "run")
    assert not (tmp_path / "run" / CHECKPOINT).exists()
    assert process.pid is not None
    os.kill(process.pid, number)
    process.join()
    assert process.exitcode == code
    toy.run_toy(tmp_path / "run", resume=True)
    assert same(tmp_path / "run", whole)


def test_a_kill_between_the_last_checkpoint_and_its_name(whole: Path, tmp_path: Path) -> None:
    toy.run_toy(tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    (tmp_path / "run" / CHECKPOINT).rename(tmp_path / "run" / "checkpoint-0.safetensors")
    toy.run_toy(tmp_path / "run", resume=True)
    assert same(tmp_path / "run", whole)


@pytest.mark.slow
def test_a_run_killed_at_random_moments(whole: Path, tmp_path: Path) -> None:
    moments = random.Random(0)
    kills = runs = 0
    while kills < KILLS:
        runs += 1
        folder = tmp_path / f"run{runs}"
        attempts = 0
        while not (folder / "summary.json").exists():
            attempts += 1
            process = start(folder, resume=True)
            process.join(moments.uniform(0.0, 0.1 * attempts))  # longer each time: it arrives on a slow machine too
            if process.exitcode is None:
                process.kill()
            process.join()
            kills += process.exitcode == -signal.SIGKILL
            assert process.exitcode in (0, -signal.SIGKILL)
        assert same(folder, whole)
        assert not list(folder.glob(".*.partial"))


def torchrun(*words: str | Path) -> str:
    """The toy on two ranks, begun again whenever one of them dies; its stderr."""
    launch = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "--max-restarts=100"]
    # without the second, ranks that begin again may read where those before them were, and wait for ever
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    command = [sys.executable, *launch, toy.__file__, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.slow
def test_two_ranks_resume_exactly(tmp_path: Path) -> None:
    said = torchrun(tmp_path)
    assert same(tmp_path / "halves", tmp_path / "whole")
    assert said.count("continuing after step 6 of 12") == 1  # only the first rank speaks
    steps = [json.loads(line)["step"] for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [3, 4, 6, 8, 9, 12]
    states = load_file(tmp_path / "whole" / CHECKPOINT)["generator.torch"]
    assert not states[0].equal(states[1])  # every rank draws numbers of its own
    kills = runs = 0
    while kills < RANK_KILLS:  # by SIGKILL, of either rank; torchrun ends the other and begins both again
        runs += 1
        torchrun(tmp_path, f"killed{runs}")
        assert same(tmp_path / f"killed{runs}", tmp_path / "whole")
        tally = tmp_path / f"killed{runs}-kills"
        kills += len(tally.read_text()) if tally.exists() else 0
