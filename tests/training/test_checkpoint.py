"""A checkpoint holds everything, and whatever is not one is refused in one line."""

from __future__ import annotations

import errno
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim import Optimizer

from clustermim.errors import RunError
from clustermim.training import CHECKPOINT, adamw, init_from, load_checkpoint, parameter_groups, save_checkpoint
from clustermim.training.checkpoint import checkpoints, load_newest
from clustermim.training.randomness import generator_states, restore_generators, seed_generators

CPU = torch.device("cpu")


def make(width: int = 3, seed: int = 0, norm: bool = True) -> tuple[nn.Module, Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width) if norm else nn.Identity(), nn.Linear(width, 2))
    return model, adamw(parameter_groups(model), lr=0.1)


def work(model: nn.Module, optimizer: Optimizer) -> None:
    """One step on random rows."""
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint after two steps."""
    model, optimizer = make()
    work(model, optimizer)
    work(model, optimizer)
    save_checkpoint(tmp_path / CHECKPOINT, model, optimizer, generator_states(CPU), {"state": {"step": 2}})
    return tmp_path / CHECKPOINT


def test_a_loaded_checkpoint_goes_on_as_the_original(tmp_path: Path) -> None:
    model, optimizer = make()
    seed_generators(5)
    work(model, optimizer)
    np.random.standard_normal()  # noqa: NPY002 - leaves its twin cached in the state
    save_checkpoint(tmp_path / "c", model, optimizer, generator_states(CPU), {"note": [1, 0.1]})
    other, its_optimizer = make(seed=9)
    record, generators = load_checkpoint(tmp_path / "c", other, its_optimizer)
    assert record["note"] == [1, 0.1]
    drawn = []
    for pair in ((model, optimizer), (other, its_optimizer)):
        restore_generators(generators, CPU)
        work(*pair)
        drawn.append((torch.rand(3).tolist(), np.random.standard_normal(3).tolist()))  # noqa: NPY002
    assert drawn[0] == drawn[1]
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
    mine, its = optimizer.state_dict()["state"], its_optimizer.state_dict()["state"]
    assert mine.keys() == its.keys()
    for place in mine:
        assert all(torch.equal(mine[place][entry], its[place][entry]) for entry in ("step", "exp_avg", "exp_avg_sq"))


def test_a_checkpoint_is_tensors_and_json(saved: Path) -> None:
    tensors = load_file(saved)
    assert {name.split(".")[0] for name in tensors} == {"model", "optimizer", "generator"}
    assert tensors["optimizer.exp_avg.0.weight"].shape == (3, 4)
    length = int.from_bytes(saved.read_bytes()[:8], "little")
    header = json.loads(saved.read_bytes()[8 : 8 + length])
    assert json.loads(header["__metadata__"]["clustermim"]) == {"format": 2, "state": {"step": 2}}


def test_weights_alone(saved: Path, tmp_path: Path) -> None:
    trained = {name.removeprefix("model."): t for name, t in load_file(saved).items() if name.startswith("model.")}
    save_file(trained, tmp_path / "plain.safetensors")
    for source in (saved, saved.parent, tmp_path / "plain.safetensors"):
        model, _ = make(seed=4)
        init_from(source, model)
        assert all(torch.equal(tensor, trained[name]) for name, tensor in model.state_dict().items())


def test_another_architecture(saved: Path) -> None:
    wide, narrow, short = make(width=5), make(norm=False), make()
    short[0].append(nn.Linear(2, 2))
    cases = (
        (wide, r"0\.weight is \(3, 4\) in the file and \(5, 4\) in the model"),
        (narrow, r"1\.bias is \(3,\) in the file and not there in the model"),
        (short, r"3\.weight is not there in the file and \(2, 2\) in the model"),
    )
    for (model, optimizer), message in cases:
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        with pytest.raises(RunError, match=message):
            load_checkpoint(saved, model, optimizer)
        with pytest.raises(RunError, match=message):
            init_from(saved, model)
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_an_optimizer_of_other_parameters(saved: Path) -> None:
    model, _ = make()
    model[0].requires_grad_(False)
    with pytest.raises(RunError, match=r"holds \w+\.0\.\w+, which the optimizer does not train"):
        load_checkpoint(saved, model, adamw(parameter_groups(model), lr=0.1))


def test_foreign_files(saved: Path, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return (os.mkdir, (str(tmp_path / "executed"),))

    saved.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(RunError, match="not a safetensors file, the only kind that is loaded"):
        load_checkpoint(saved, *make())
    torch.save({"model": {}}, saved)
    with pytest.raises(RunError, match="not a safetensors file"):
        init_from(saved, make()[0])
    save_file({"x": torch.zeros(1)}, saved)
    with pytest.raises(RunError, match="is not a checkpoint of clustermim"):
        load_checkpoint(saved, *make())
    for record, message in (("{", "damaged record"), ('{"format": 99}', "format 2"), ("[]", "format 2")):
        save_file({"x": torch.zeros(1)}, saved, {"clustermim": record})
        with pytest.raises(RunError, match=message):
            load_checkpoint(saved, *make())
    with pytest.raises(RunError, match="is not there"):
        init_from(tmp_path / "nowhere", make()[0])
    assert not (tmp_path / "executed").exists()


def test_a_full_disk_leaves_the_previous_checkpoint(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"checkpoint-0\.safetensors: No space left"):
        save_checkpoint(saved, *make(), generator_states(CPU), {})
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir() if path.is_file()] == [CHECKPOINT]


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << place % 8
    path.write_bytes(content)


def test_no_flipped_byte_is_accepted(saved: Path) -> None:
    whole = saved.read_bytes()
    length = 8 + int.from_bytes(whole[:8], "little")
    for place in {*range(length), *range(length, len(whole), 97), len(whole) - 1}:  # all of the header
        flip(saved, place)
        with pytest.raises(RunError):
            load_checkpoint(saved, *make())
        saved.write_bytes(whole)
    load_checkpoint(saved, *make())


def test_one_of_an_earlier_version_has_no_checksum(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with safe_open(saved, "pt") as file:
        record = json.loads(file.metadata()["clustermim"])
    for number in (1, 2):
        save_file(load_file(saved), saved, {"clustermim": json.dumps({**record, "format": number})})
        if number == 1:
            load_checkpoint(saved, *make())
            assert "is of an earlier version, without a checksum" in capsys.readouterr().err
    with pytest.raises(RunError, match="is damaged: its bytes are not those that were written"):
        load_checkpoint(saved, *make())


def test_as_many_are_kept_as_asked_for(tmp_path: Path) -> None:
    for step in range(5):
        save_checkpoint(tmp_path / CHECKPOINT, *make(), generator_states(CPU), {"state": step}, keep=3)
        found = [load_checkpoint(path, *make())[0]["state"] for path in checkpoints(tmp_path)]
        assert found == list(range(step, max(-1, step - 3), -1))
    save_checkpoint(tmp_path / CHECKPOINT, *make(), generator_states(CPU), {"state": 5}, keep=1)
    assert [path.name for path in checkpoints(tmp_path)] == [CHECKPOINT]


def test_the_newest_that_is_whole_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in range(3):
        save_checkpoint(tmp_path / CHECKPOINT, *make(), generator_states(CPU), {"state": step}, keep=3)
    newest, second, third = checkpoints(tmp_path)
    flip(newest, 5000)
    second.write_bytes(b"")
    assert load_newest(tmp_path, *make())[0]["state"] == 0
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2
    assert told[0].endswith(f"{third.name}, the newest that is whole, is used")
    assert checkpoints(tmp_path) == [third]
    flip(third, 4000)
    with pytest.raises(RunError, match=rf"{third.name} is damaged"):
        load_newest(tmp_path, *make())
    assert checkpoints(tmp_path) == [third]  # the last one stays, whatever it is
