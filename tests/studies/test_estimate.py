"""Estimates of a dry run: against torch's own counts, against real modules, and in what is printed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from clustermim.cli import main
from clustermim.errors import DataError
from clustermim.models.masking import random_mask
from clustermim.models.mim import Layout
from clustermim.studies import Cell, estimate, expand, read_study
from clustermim.studies.costs import KEPT, Memory, Model, count, memory
from clustermim.studies.estimate import images_of

MICRO = Model("micro", (3, 32, 32), 4)
LAYOUTS: tuple[Layout, ...] = ("mae", "beit")
DATA = "textures:?images=96&grid=4&patch=4"


def small_study() -> dict[str, Any]:
    measure = {"data": DATA, "test_data": DATA}
    return {
        "stages": [
            {"name": "tokens", "stage": "fit kmeans", "options": {"data": DATA, "patch_size": 4, "k": 8}},
            {"name": "score", "stage": "score", "options": {"tokenizer": "@tokens", "data": DATA}},
            {
                "name": "model",
                "stage": "pretrain",
                "options": {"data": DATA, "tokenizer": "@tokens", "epochs": 3, "batch_size": 32},
            },
            {"name": "probe", "stage": "probe", "options": {"run": "@model", **measure}},
            {"name": "finetune", "stage": "finetune", "options": {"run": "@model", "batch_size": 32, **measure}},
            {"name": "other", "stage": "knn", "options": {"run": "elsewhere", **measure}},
            {"name": "dvae", "stage": "fit dvae", "options": {"data": DATA}},
        ]
    }


def opened(folder: Path, study: dict[str, Any]) -> tuple[str, dict[str, Cell]]:
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(study, sort_keys=False))
    return str(path), {cell.name: cell for cell in expand(read_study(path))}


def masked(layout: Layout, out_dim: int) -> Model:
    return MICRO._replace(layout=layout, mask_ratio=0.75, out_dim=out_dim)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_operations_are_those_of_a_real_step(layout: Layout) -> None:
    model = masked(layout, 50)
    net, images = model.build(), torch.rand(2, 3, 32, 32)
    mask = random_mask(2, 64, 0.75, torch.Generator().manual_seed(0))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as forward:
        out = net(images, mask)
    assert count(model).flops == pytest.approx(forward.get_total_flops() / 2, rel=0.01)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as backward:
        out.sum().backward()
    assert 2 * count(model).flops == pytest.approx(backward.get_total_flops() / 2, rel=0.05)


def test_operations_of_an_encoder_are_those_of_its_formula() -> None:
    """Of T = 197 tokens of width D: 24·T·D² + 4·T²·D in each of 12 blocks, and the patches' embedding."""
    width, tokens = 768, 197
    block = 24 * tokens * width**2 + 4 * tokens**2 * width
    assert count(Model("base", (3, 224, 224), 16)).flops == 12 * block + 2 * 196 * 768 * width


@pytest.mark.parametrize("model", [MICRO, *(masked(layout, 192) for layout in LAYOUTS)])
def test_parameters_are_those_of_the_modules(model: Model) -> None:
    real = list(model.build().parameters())
    assert not any(parameter.is_meta for parameter in real)
    assert count(model)[:2] == (sum(p.numel() for p in real), sum(p.numel() for p in real if p.requires_grad))


@pytest.mark.parametrize(("name", "number"), [("small", 21_665_664), ("base", 85_798_656), ("large", 303_301_632)])
def test_parameters_of_published_sizes(name: str, number: int) -> None:
    assert count(Model(name, (3, 224, 224), 16)).parameters == number  # timm's vit_…_patch16_224 without its head


@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_is_about_what_backward_keeps(layout: Layout) -> None:
    model, batch = masked(layout, 50), 4
    net, kept = model.build(), dict[int, torch.UntypedStorage]()
    own = {parameter.untyped_storage().data_ptr() for parameter in net.parameters()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage  # held, so that its place is not given to another
        return tensor

    images = torch.rand(batch, 3, 32, 32)
    mask = random_mask(batch, 64, 0.75, torch.Generator().manual_seed(0))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = net(images, mask)
    found = sum(storage.nbytes() for storage in kept.values())
    assert batch * memory(model, "32-true").image == pytest.approx(found, rel=0.3)
    assert out.shape == (batch, 48, 50)


def test_memory_of_an_encoder() -> None:
    total, learned, _ = count(MICRO)
    frozen, trained = (memory(MICRO, "auto", trained=trained) for trained in (False, True))
    assert (frozen.model, trained.model) == (4 * total, 16 * learned)
    pixels = 8 * 3 * 32 * 32
    assert trained.image == KEPT["bf16-mixed"] * 65 * 4 * 128 + pixels > frozen.image > pixels


def test_images_are_known_before_they_are_here(tmp_path: Path, encode: Any, noise: Any) -> None:
    assert images_of("folder:imagenet100/train?size=224") == (126_689, (3, 224, 224))
    assert images_of("folder:/data/imagenet1k/val?size=64x96&limit=500&channels=1") == (500, (1, 64, 96))
    assert images_of("cifar10/train") == (50_000, (3, 32, 32))
    assert images_of("textures:test?images=7&grid=2x3&patch=8") == (7, (3, 16, 24))
    for place in range(3):
        (tmp_path / f"{place}.png").write_bytes(encode(noise(8, 8, 3)))
    assert images_of(f"folder:{tmp_path}?size=16") == (3, (3, 16, 16))
    for text in ("folder:nowhere/train?size=224", "folder:imagenet100/train", "folder:myimagenet100/train?size=8"):
        with pytest.raises(DataError, match="are known when they are here"):
            images_of(text)


def test_a_plan_has_a_line_for_each_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, cells = opened(tmp_path, small_study())
    assert main(["study", path, "--out", str(tmp_path / "runs"), "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    reported = {
        line[2:].split(",")[0]: lines[place + 2] for place, line in enumerate(lines) if line.endswith(", to do")
    }
    assert list(reported) == list(cells)
    assert reported["tokens"] == "#   1,536 patches in memory, under 0.1 core-hours"
    flops = 288 * (3 * count(Model("micro", (3, 16, 16), 4, "mae", 0.75, 8)).flops + 2 * 16 * 8 * 48)
    power = f"{flops:.1e}".replace("e+", "e")
    assert (
        f"0.8 M parameters, 288 images, {power} FLOPs, under 0.1 GPU-hours; 0.0 GB with batch 32" in reported["model"]
    )
    assert "not estimated: the size of the encoder in elsewhere is read when it runs" in reported["other"]
    assert reported["dvae"] == "#   not estimated"
    assert lines[-1].startswith("# total: 7 cells, 0 complete; ")
    assert lines[-1].endswith(", 2 not estimated")


def test_complete_cells_cost_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, cells = opened(tmp_path, small_study())
    for cell in cells.values():
        cell.folder(tmp_path).mkdir()
        (cell.folder(tmp_path) / "summary.json").write_text(json.dumps({}))
    assert main(["study", path, "--out", str(tmp_path), "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "to do" not in printed
    assert "#   " not in printed
    total = "# total: 7 cells, 7 complete; under 0.1 GPU-hours, under 0.1 core-hours"
    assert printed.splitlines()[-1] == total


@given(st.floats(0, 60e9), st.floats(1e6, 1e9), st.sampled_from([256, 1000, 4096]))
def test_the_parts_that_are_advised_fit_and_fewer_do_not(model: float, image: float, batch: int) -> None:
    memory = Memory(model, image)
    text = estimate._room(memory, {"batch_size": batch, "accumulate": 1})
    advised = re.search(r"--accumulate (\d+)$", text)
    if "too much" in text:
        assert memory.of(1) > estimate.GPU_ROOM
        return
    parts = int(advised[1]) if advised else 1
    assert batch % parts == 0
    assert memory.of(batch // parts) <= estimate.GPU_ROOM
    fewer = [n for n in range(1, parts) if batch % n == 0]
    assert all(memory.of(batch // n) > estimate.GPU_ROOM for n in fewer)


def test_kmeans_costs_with_k_epochs_and_its_teacher(tmp_path: Path) -> None:
    def seconds(**options: Any) -> float:
        entry = {"name": "tokens", "stage": "fit kmeans"}
        entry["options"] = {"data": "folder:imagenet100/train?size=224", "epochs": 1, **options}  # type: ignore[assignment]
        return estimate.estimate(opened(tmp_path, {"stages": [entry]})[1]["tokens"]).core_seconds

    unique = seconds()
    assert seconds(epochs=10) == pytest.approx(10 * unique, rel=0.05)
    assert seconds(k=220) == pytest.approx(2 * unique, rel=0.05)  # (220 + 120) / (50 + 120)
    features = seconds(space="features", teacher="hf:facebook/dino-vits16")
    teacher = (126_689 + 262_144 // 8) * count(Model("small", (3, 224, 224), 16)).flops / estimate.CORE_SPEED
    assert features == pytest.approx(unique / 2 + teacher, rel=0.05)
