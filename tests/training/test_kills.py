"""Pretraining through the command line survives kill -9, whenever it comes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

KILLS = 20


@pytest.mark.slow
def test_twenty_kills_at_random_moments(tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).parent / "killing.py"), str(tmp_path), str(KILLS)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kills"] >= found["in_training"] >= KILLS
    for number in range(found["runs"]):
        for file in ("encoder.safetensors", "decoder.safetensors", "metrics.jsonl", "config.yaml"):
            whole, broken = (tmp_path / name / file for name in ("whole", f"broken{number}"))
            assert whole.read_bytes() == broken.read_bytes(), (number, file)
        assert not list((tmp_path / f"broken{number}").glob(".*.partial"))
