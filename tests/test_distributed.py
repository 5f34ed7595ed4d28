"""Several real processes under torchrun give what one gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

DATA = "textures:?images=301&grid=4&noise=0.1"  # an odd number: the ranks get unequal shares


def clustermim(processes: int, *words: str, threads: int = 1) -> str:
    """Run a command on so many ranks; its stdout."""
    launch = [] if processes == 1 else ["-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--standalone"]
    script = str(Path(__file__).parent / "launch.py")
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, *launch, script, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_two_ranks_agree_with_one(tmp_path: Path) -> None:
    found = {}
    for processes in (1, 2):
        out = str(tmp_path / f"km{processes}")
        words = ("--data", DATA, "--k", "20", "--patch-size", "8", "--out", out)
        printed = clustermim(processes, "fit", "kmeans", *words)
        assert printed.count("wrote a tokenizer") == 1  # only the first rank speaks and writes
        assert sorted(path.name for path in tmp_path.iterdir()) == [f"km{i + 1}" for i in range(processes)]
        found[processes] = json.loads((tmp_path / f"km{processes}" / "summary.json").read_text())["results"]
    assert found[2]["patches"] == found[1]["patches"] == 301 * 16
    assert found[2]["inertia"] == pytest.approx(found[1]["inertia"], rel=1e-6)
    first, second = (load_file(tmp_path / f"km{n}" / "tokenizer.safetensors")["centers"] for n in (1, 2))
    assert first.shape == (20, 192)
    assert (first - second).abs().max() < 1e-5
    # the score of one tokenizer is the same, number by number: counts are exact
    scores = [json.loads(clustermim(n, "score", str(tmp_path / "km1"), "--data", DATA, "--json")) for n in (1, 2)]
    assert scores[0] == scores[1]


@pytest.mark.slow
def test_one_two_and_four_ranks_learn_the_same(tmp_path: Path) -> None:
    """Views and masks belong to the images, so that only rounding differs."""
    data = "textures:?images=640&grid=4&patch=4&noise=0.1"
    losses = {}
    for processes in (1, 2, 4):
        out = tmp_path / str(processes)
        words = (
            "--data",
            data,
            "--target",
            "pixels",
            "--patch-size",
            "4",
            "--epochs",
            "5",
            "--batch-size",
            "64",
            "--out",
            str(out),
        )
        clustermim(processes, "pretrain", *words)
        losses[processes] = [json.loads(line)["loss"] for line in (out / "metrics.jsonl").open()]
    assert len(losses[1]) == 5  # of 50 steps
    assert losses[2] == pytest.approx(losses[1], abs=1e-4)
    assert losses[4] == pytest.approx(losses[1], abs=1e-4)


UNEQUAL = """
from pathlib import Path
import torch
from clustermim.distributed import process_group, rank
from clustermim.errors import TokenizerError
from clustermim.tokenizers import lloyd
lloyd.FIRST, lloyd.START = 16, 1
with process_group():
    vectors = torch.randn(300 - 60 * rank(), 3, generator=torch.Generator().manual_seed(rank()))
    steps = []
    work = lloyd.cluster(vectors, 4, seed=0, iterations=4, log=lambda **values: steps.append(values["patches"]))
    assert len(vectors) == len(work.ids) and int(work.counts.sum()) == 540 and max(steps) == 540, steps
    lloyd.cluster(vectors, 250, seed=0, iterations=1, log=lambda **values: None)  # more than the second has
    try:
        lloyd.cluster(vectors, 600, seed=0, iterations=1, log=lambda **values: None)
    except TokenizerError as error:
        Path(__file__).with_name(f"refused-{rank()}").write_text(str(error))  # on one stdout they would mingle
"""


def test_ranks_of_unequal_shares_take_the_same_steps(tmp_path: Path) -> None:
    (tmp_path / "unequal.py").write_text(UNEQUAL)
    launch = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", str(tmp_path / "unequal.py")]
    done = subprocess.run([sys.executable, *launch], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    reported = "k = 600, but there are only 540 distinct patches among the 540 used"
    assert all((tmp_path / f"refused-{rank}").read_text().startswith(reported) for rank in range(2))


@pytest.mark.slow
def test_every_rank_waits_for_the_round_before(tmp_path: Path) -> None:
    words = ("--data", "textures:?images=96&grid=4&patch=4", "--epochs", "1", "--batch-size", "32", "--first-k", "6")
    clustermim(2, "iterate", *words, "--layers", "[4]", "--ks", "[4]", "--rounds", "2", "--out", str(tmp_path / "all"))
    assert [entry["round"] for entry in json.loads((tmp_path / "all" / "rounds.json").read_text())] == [1, 2]
