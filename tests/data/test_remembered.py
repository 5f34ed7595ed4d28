"""Numbers of images that are kept while they are computed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import clustermim as cm
from clustermim.data import Source, open_source, remembered
from clustermim.data.remembered import Remembered
from clustermim.scores.collect import Tokens
from clustermim.scores.tcas import TCASVariant
from clustermim.tokenizers import usage
from clustermim.tokenizers.modules import ModuleTokenizer


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    monkeypatch.setenv("CLUSTERMIM_HOME", str(tmp_path / "home"))
    return open_source("textures:?images=100&grid=2&patch=4")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything counts as long work."""
    monkeypatch.setattr(remembered, "SECONDS", -1.0)


def count_calls(known: Remembered, stop: int = 1000) -> int:
    """How many of the four batches are computed; an error before number `stop`."""
    calls = 0

    def compute(images: Tensor) -> Callable[[], Tensor]:
        def numbers() -> Tensor:
            nonlocal calls
            calls += 1
            if calls > stop:
                raise KeyboardInterrupt
            return images[:, None] * torch.tensor([1, 10])

        return numbers

    for images in torch.arange(100).split(25):
        found = known(images, compute(images))
        assert found.tolist() == [[i, 10 * i] for i in images.tolist()]
        assert found.dtype == torch.int64
    return calls


def test_work_that_was_stopped_goes_on(source: Source, at_once: None) -> None:
    with pytest.raises(KeyboardInterrupt):
        count_calls(Remembered(source, "x"), stop=3)
    assert count_calls(Remembered(source, "x")) == 1
    assert count_calls(Remembered(source, "x")) == 0
    assert count_calls(Remembered(source, "y")) == 4
    assert count_calls(Remembered(open_source("textures:?images=100&grid=2&patch=4&seed=1"), "x")) == 4


def test_short_work_is_not_kept(source: Source) -> None:
    with remembered.remembered(source, "x") as known:
        assert count_calls(known) == 4
    assert not known.folder.exists()


def test_what_came_before_the_cost_was_known_is_kept_with_it(source: Source, at_once: None) -> None:
    known = Remembered(source, "x")
    known.begun = time.monotonic() + 1000  # so early nothing is counted
    first, second = torch.arange(100).split(50)
    known(first, lambda: first[:, None])
    assert not known.folder.exists()
    known.begun = 0.0
    known(second, lambda: (torch.ones(50, 3) @ torch.ones(3, 1)).long())  # 2 · 3 operations an image
    again = Remembered(source, "x")
    assert (again.places >= 0).all()
    assert again.cost[:, 0].tolist() == [6.0] * 100


@pytest.mark.parametrize("damage", [b"", b"x", b"flip"])
def test_a_damaged_file_is_made_again(
    damage: bytes, source: Source, at_once: None, capsys: pytest.CaptureFixture[str]
) -> None:
    count_calls(known := Remembered(source, "x"))
    path = sorted(known.folder.iterdir())[0]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content) if damage == b"flip" else damage)
    assert count_calls(Remembered(source, "x")) == 1
    assert "is damaged and is made again" in capsys.readouterr().err


def test_what_nobody_asked_for_is_deleted(source: Source, at_once: None) -> None:
    count_calls(known := Remembered(source, "x"))
    os.utime(known.folder, (time.time() - 40 * 86400,) * 2)
    assert count_calls(Remembered(source, "y")) == 4
    assert not known.folder.exists()


def test_tokens_are_remembered(source: Source, at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = cm.KMeansTokenizer(4, 4).fit(source)
    ids = usage.all_ids(tokenizer, source)
    first = Tokens(tokenizer, source, TCASVariant(), images=40)
    before = first.views, first.many_views, first.ids, first.sample
    assert torch.equal(ids, tokenizer(torch.from_numpy(source.read(range(100)).images.numpy()).float() / 255).int())

    def refuse(*more: object) -> Tensor:
        raise AssertionError("it is known")

    monkeypatch.setattr(usage, "ids_of", refuse)
    monkeypatch.setattr("clustermim.scores.collect.ids_of", refuse)
    assert torch.equal(usage.all_ids(tokenizer, source), ids)
    again = Tokens(tokenizer, source, TCASVariant(), images=40)
    after = again.views, again.many_views, again.ids, again.sample
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])
    assert (before[2][0] == after[2][0]).all()
    assert torch.equal(before[3][0], after[3][0])


def test_ids_that_code_of_the_user_gives_are_computed_each_time(source: Source, at_once: None) -> None:
    class Brightness:
        vocab_size, patch_size = 5, 4

        def __init__(self, offset: int) -> None:
            self.offset = offset

        def __call__(self, images: Tensor) -> Tensor:
            return (4 * images.mean(1)[:, ::4, ::4]).long().clamp(0, 3).flatten(1) + self.offset

    first, second = (usage.all_ids(ModuleTokenizer.of_object(Brightness(offset)), source) for offset in (0, 1))
    assert torch.equal(first + 1, second)
