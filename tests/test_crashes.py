"""Commands killed at calls that write leave the old state or the new one; `make soak` tries every call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

POINTS = 1  # of each command


@pytest.mark.slow
def test_a_sample_of_kills(tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).parent / "crashing.py"), str(tmp_path / "work"), str(POINTS)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert set(found["points"].values()) == {POINTS}
    assert found["lost"] == []
