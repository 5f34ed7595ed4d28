"""Several real processes under torchrun give what one gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from clustermim.cli import main
from stages_on_ranks import STAGES

RANKS = [int(ranks) for ranks in os.environ.get("CLUSTERMIM_TEST_RANKS", "1 2").split()]  # `make soak` has 4 too


def torchrun(ranks: int, script: Path, *words: object) -> None:
    """Run a script in so many processes."""
    launch = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--standalone", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launch, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr


def losses(metrics: Path) -> list[float]:
    """The losses of epochs in a file of metrics."""
    return [line["epoch_loss"] for line in map(json.loads, metrics.open()) if "epoch_loss" in line]


def numbers(value: Any) -> Any:
    """JSON values without those of time, which differ between any two runs; losses are near the others."""
    if isinstance(value, dict):
        timed = ("seconds", "images_per_second", "data_share")
        return {name: numbers(item) for name, item in value.items() if not name.endswith(timed)}
    if isinstance(value, list):
        return [numbers(item) for item in value]
    return pytest.approx(value, abs=1e-4) if isinstance(value, float) else value


@pytest.mark.slow
def test_every_stage_gives_the_same_on_any_number_of_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, *others = (tmp_path / str(ranks) for ranks in RANKS)
    for ranks in RANKS:
        torchrun(ranks, Path(__file__).parent / "stages_on_ranks.py", tmp_path / str(ranks))
    for many in others:
        check_prints(one, many)
        check_losses(one, many)
        for path in sorted(path.relative_to(one) for path in one.rglob("tokenizer.safetensors")):
            first, second = load_file(one / path), load_file(many / path)
            near = 1e-5 if path.parts[0] in ("km", "white", "advice") else 1e-3  # of pixels, or of what was trained
            for name in first:
                assert torch.allclose(first[name].float(), second[name].float(), rtol=near, atol=near), (path, name)
        assert np.array_equal(np.load(one / "ids.npy"), np.load(many / "ids.npy"))
        assert np.load(many / "ids.npy").min() == 0
    whole, unbroken = (losses(one / run / "metrics.jsonl") for run in ("run", "unbroken"))
    assert (len(whole), len(unbroken)) == (5, 2)  # of 50 steps, and of 6
    for folder in (one, *others):
        assert losses(folder / "fsdp" / "metrics.jsonl") == pytest.approx(whole, abs=1e-5), folder
        for run in ("resumed", "fsdp-resumed"):  # one rank's checkpoint, continued
            assert losses(folder / run / "metrics.jsonl") == pytest.approx(unbroken, abs=1e-5), (folder, run)
        ddp, fsdp = (load_file(folder / run / "encoder.safetensors") for run in ("run", "fsdp"))
        assert all(
            torch.allclose(ddp[name], fsdp[name], atol=1e-4) for name in ddp
        )  # AdamW enlarges what rounding does
    monkeypatch.chdir(others[-1])
    for run in ("paused", "fsdp-paused"):  # a checkpoint of several ranks, continued by one
        assert len(losses(Path(run, "metrics.jsonl"))) == 1
        assert main(STAGES["resume"].replace("resumed", run).split()) == 0
        assert losses(Path(run, "metrics.jsonl")) == pytest.approx(unbroken, abs=1e-5)


def check_prints(one: Path, many: Path) -> None:
    """Every stage says the same: counts are exact, and no image changes its class."""
    for stage in STAGES:
        here, there = (json.loads((folder / f"{stage}.json").read_text()) for folder in (one, many))
        if here.startswith("{"):
            assert numbers(json.loads(there)) == numbers(json.loads(here)), stage
        else:  # only the first rank speaks
            assert there.count("wrote ") == here.count("wrote "), stage


def check_losses(one: Path, many: Path) -> None:
    """Views and masks belong to the images, so that only rounding differs."""
    trained = sorted(path.relative_to(one) for path in one.rglob("metrics.jsonl") if losses(path))
    assert len(trained) == 16
    for path in trained:
        assert losses(many / path) == pytest.approx(losses(one / path), abs=1e-4), path


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
    torchrun(2, tmp_path / "unequal.py")
    reported = "k = 600, but there are only 540 distinct patches among the 540 used"
    assert all((tmp_path / f"refused-{rank}").read_text().startswith(reported) for rank in range(2))
