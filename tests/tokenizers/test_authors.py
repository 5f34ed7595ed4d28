"""The authors' k-means goes on after a kill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from clustermim.tokenizers import authors
from clustermim.tokenizers.authors import authors_kmeans


def quiet(**values: Any) -> None:
    pass


def stream(stop: bool = False) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)
    for number in range(4):
        if stop and number == 2:
            raise KeyboardInterrupt
        yield torch.rand(64, 5, generator=generator)


def test_a_fit_that_was_stopped_goes_on_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(authors, "SECONDS", -1.0)
    path = tmp_path / "cache" / "progress.safetensors"
    whole = authors_kmeans((stream() for _ in range(5)), 6, 0, quiet)
    with pytest.raises(KeyboardInterrupt):
        authors_kmeans((stream(stop=epoch == 3) for epoch in range(5)), 6, 0, quiet, path)
    assert path.exists()
    epochs: list[int] = []
    again = authors_kmeans((stream() for _ in range(5)), 6, 0, lambda **values: epochs.append(values["epoch"]), path)
    assert epochs == [4, 5]
    assert torch.equal(again, whole)
    assert "continuing after epoch 3" in capsys.readouterr().err
    assert not path.exists()


def test_a_damaged_file_costs_the_epochs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "progress.safetensors"
    path.write_bytes(b"damaged")
    found = authors_kmeans((stream() for _ in range(2)), 6, 0, quiet, path)
    assert torch.equal(found, authors_kmeans((stream() for _ in range(2)), 6, 0, quiet))
    assert "begins anew" in capsys.readouterr().err
