"""Teachers of timm: its own patch tokens."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from clustermim.cli import main
from clustermim.errors import MissingExtraError, TeacherError
from clustermim.models import Encoder, ViT
from clustermim.teachers import open_teacher
from clustermim.teachers.timm_models import TimmTeacher
from timm_peer import import_timm


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """An encoder of this project, and the same in a folder of timm."""
    torch.manual_seed(0)
    run, out = tmp_path / "run", tmp_path / "timm"
    run.mkdir()
    Encoder(ViT.of_size("micro", (16, 16), 4), "micro", (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)).save(run)
    assert main(["export", str(run), "--to", "timm", "--out", str(out)]) == 0
    import_timm()
    return run, out


def test_the_same_features_as_our_encoder(folders: tuple[Path, Path]) -> None:
    images = torch.rand(2, 3, 16, 16)
    for option in ("", "?layer=2", "?layer=-1"):
        ours, theirs = (open_teacher(f"{text}{option}") for text in (folders[0], f"timm:local-dir:{folders[1]}"))
        torch.testing.assert_close(theirs(images, (4, 4)), ours(images, (4, 4)), rtol=1e-5, atol=1e-5)
        assert (theirs.dim, theirs.channels, theirs.has_position) == (128, 3, True)
    larger = open_teacher(f"timm:local-dir:{folders[1]}?size=24")
    assert larger(images, (6, 6)).shape == (2, 36, 128)


def test_blocks_of_a_convolutional_network(tmp_path: Path) -> None:
    timm = import_timm()
    torch.manual_seed(0)
    model = timm.create_model("test_efficientnet", num_classes=0).eval()
    timm.models.save_for_hf(model, tmp_path / "net", safe_serialization=True)
    images = torch.rand(1, 3, 64, 64)
    seen: list[torch.Tensor] = []
    for layer in range(1, len(model.blocks) + 1):
        teacher = open_teacher(f"timm:local-dir:{tmp_path / 'net'}?layer={layer}&size=64")
        assert isinstance(teacher, TimmTeacher)
        hook = teacher.model.blocks[layer - 1].register_forward_hook(lambda *parts: seen.append(parts[2]))
        found = teacher.features(images)
        hook.remove()
        assert torch.equal(found, seen[-1])


def test_bad_input(folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TeacherError, match="option layer=0 must be 1 … 4, or −1 … −4 from the end"):
        open_teacher(f"timm:local-dir:{folders[1]}?layer=0")
    with pytest.raises(TeacherError, match=r"no model.safetensors in"):
        open_teacher(f"timm:local-dir:{tmp_path}")
    with pytest.raises(TeacherError, match=r"timm:vit_nano cannot be loaded .* use timm:local-dir:FOLDER"):
        open_teacher("timm:vit_nano")
    timm = import_timm()
    net = tmp_path / "net"
    timm.models.save_for_hf(timm.create_model("test_efficientnet", num_classes=10), net, safe_serialization=True)
    assert open_teacher(f"timm:local-dir:{net}?size=64").channels == 3
    weights = load_file(net / "model.safetensors")
    save_file({f"theirs.{name}": value for name, value in weights.items()}, net / "model.safetensors")
    with pytest.raises(TeacherError, match=r"do not belong to its config.json: some layers would stay random"):
        open_teacher(f"timm:local-dir:{net}?size=64")
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtraError, match=r"clustermim\[timm\]"):
        open_teacher("timm:vit_small_patch16_224")
