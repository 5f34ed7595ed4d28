"""Published tokenizers: small models, saved by their own libraries, give the ids that those libraries give."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import torch.nn.functional as F
from diffusers import VQModel
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import FlavaImageCodebook, FlavaImageCodebookConfig

from clustermim.cli import main
from clustermim.data import Source, open_source
from clustermim.errors import ConfigError, DataError, MissingExtraError, TokenizerError
from clustermim.tokenizers import ExternalTokenizer, load_tokenizer

DATA = "textures:?images=40&grid=3x5&patch=4"  # images of 12×20 pixels
WEIGHTS = {"hf-flava": "model.safetensors", "diffusers-vq": "diffusion_pytorch_model.safetensors"}


def lively(model: nn.Module) -> Any:
    """The model with weights large enough for many different ids."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            spread = (2 / parameter[0].numel()) ** 0.5
            parameter.data = torch.randn(parameter.shape, generator=generator) * spread
    return model.eval()


def make_flava(**sizes: int) -> Any:
    config = {"hidden_size": 4, "vocab_size": 30, "num_blocks_per_group": 1} | sizes
    model = lively(FlavaImageCodebook(FlavaImageCodebookConfig(**config)))
    logits = model(draw_images(8, 6, 6, 8))  # (8, vocab_size, 6, 6)
    model.blocks.output.conv.bias.data = -logits.mean((0, 2, 3))  # no id is ahead everywhere
    return model


def make_vq(blocks: int = 3, **sizes: Any) -> Any:
    down, up = ("DownEncoderBlock2D",) * blocks, ("UpDecoderBlock2D",) * blocks
    config = {"block_out_channels": (4,) * blocks, "norm_num_groups": 2, "latent_channels": 4, "num_vq_embeddings": 30}
    return lively(VQModel(down_block_types=down, up_block_types=up, **(config | sizes)))


def draw_images(count: int, rows: int, columns: int, patch_size: int) -> Tensor:
    """Noise on patches of different colours, (count, 3, H, W) in [0, 1]."""
    generator = torch.Generator().manual_seed(patch_size)
    colors = torch.rand(count, 3, rows, columns, generator=generator)
    images = F.interpolate(colors, scale_factor=patch_size)  # (count, 3, rows·p, columns·p)
    return (images + torch.rand(images.shape, generator=generator)) / 2


def flava_ids(model: Any, images: Tensor, size: tuple[int, int]) -> Tensor:
    """Ids of images one by one, as transformers gives them for a resized and mapped view."""
    view = F.interpolate(images, size, mode="bicubic", antialias=True).clamp(0, 1)
    return torch.cat([model.get_codebook_indices((1 - 2 * 0.1) * one + 0.1).flatten(1) for one in view.split(1)])


def vq_ids(model: Any, images: Tensor, size: tuple[int, int]) -> Tensor:
    """Ids of images one by one, as diffusers gives them for a resized view in [−1, 1]."""
    view = F.interpolate(images, size, mode="bicubic", antialias=True).clamp(0, 1)
    return torch.stack([model.quantize(model.encode(2.0 * one - 1.0).latents)[2][2] for one in view.split(1)])


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {"hf-flava": make_flava(), "diffusers-vq": make_vq()}


@pytest.fixture(scope="module")
def saved(models: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    for name, model in models.items():
        model.save_pretrained(folder / name)
    return folder


@pytest.fixture(scope="module")
def source() -> Source:
    return open_source(DATA)


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A function that gives a copy of a saved model to spoil."""

    def copy_of(name: str) -> Path:
        return Path(shutil.copytree(saved / name, tmp_path / name))

    return copy_of


def fit(prefix: str, folder: Path, source: Source, patch_size: int = 4) -> ExternalTokenizer:
    return ExternalTokenizer(f"{prefix}:{folder}", patch_size).fit(source)


@pytest.mark.parametrize(
    ("rows", "columns", "patch_size"), [(3, 5, 4), (3, 2, 8), (2, 2, 2), (2, 3, 15)]
)  # patches smaller than the stride, equal to it, and larger
@torch.no_grad()
def test_ids_are_those_of_the_libraries(
    rows: int, columns: int, patch_size: int, models: dict[str, Any], saved: Path
) -> None:
    images = draw_images(5, rows, columns, patch_size)
    for prefix, theirs, stride in (("hf-flava", flava_ids, 8), ("diffusers-vq", vq_ids, 4)):
        tokenizer = ExternalTokenizer(f"{prefix}:{saved / prefix}", patch_size)
        tokenizer.fit(open_source(f"textures:?images=4&grid={rows}x{columns}&patch={patch_size}"))
        expected = theirs(models[prefix], images, (stride * rows, stride * columns))
        assert expected.shape == (5, rows * columns)
        assert len(expected.unique()) > 3
        assert torch.equal(tokenizer(images), expected)
        for size in (1, 2, 4):
            assert torch.equal(torch.cat([tokenizer(part) for part in images.split(size)]), expected)


@pytest.mark.parametrize("blocks", [1, 2])
@torch.no_grad()
def test_the_stride_of_a_vqgan_is_that_of_its_blocks(blocks: int, source: Source, tmp_path: Path) -> None:
    model = make_vq(blocks)
    model.save_pretrained(tmp_path / "vq")
    images = torch.rand(2, 3, 12, 20)
    stride = 2 ** (blocks - 1)
    ids = fit("diffusers-vq", tmp_path / "vq", source)(images)
    assert torch.equal(ids, vq_ids(model, images, (3 * stride, 5 * stride)))


@torch.no_grad()
def test_half_precision_and_older_names_of_weights(copy: Callable[[str], Path], source: Source) -> None:
    folder = copy("diffusers-vq")
    path = folder / WEIGHTS["diffusers-vq"]
    model = VQModel.from_pretrained(folder, low_cpu_mem_usage=False).half().float().eval()
    older = {}
    for name, tensor in load_file(path).items():
        for new, old in (("to_q", "query"), ("to_k", "key"), ("to_v", "value"), ("to_out.0", "proj_attn")):
            name = name.replace(f".{new}.", f".{old}.")
        older[name] = tensor.half()
    assert any(".proj_attn." in name for name in older)
    save_file(older, path)
    images = torch.rand(3, 3, 12, 20)
    assert torch.equal(fit("diffusers-vq", folder, source)(images), vq_ids(model, images, (12, 20)))


@pytest.mark.parametrize("prefix", WEIGHTS)
def test_its_folder_stands_alone(
    prefix: str, copy: Callable[[str], Path], source: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy(prefix)
    words = ["fit", "external", "--source", f"{prefix}:{folder}", "--data", DATA, "--patch-size", "4"]
    for name in ("a", "b"):
        assert main([*words, "--out", str(tmp_path / name)]) == 0, capsys.readouterr().err
    for name in ("tokenizer.json", "tokenizer.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    images = torch.rand(3, 3, 12, 20)
    ids = fit(prefix, folder, source)(images)
    shutil.rmtree(folder)
    loaded = load_tokenizer(tmp_path / "a")
    assert torch.equal(loaded(images), ids)
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    results = json.loads((tmp_path / "a" / "summary.json").read_text())["results"]
    assert results["vocab_size"] == loaded.vocab_size == 30
    assert results["measured_images"] == 40
    assert 1 / 30 <= results["usage"] <= 1
    assert 1 <= results["perplexity"] <= 30 * results["usage"] + 1e-6


def test_a_hardly_used_codebook_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_flava()
    model.blocks.output.conv.bias.data[7] = 1e6
    model.save_pretrained(tmp_path / "flava")
    words = ["fit", "external", "--source", f"hf-flava:{tmp_path / 'flava'}", "--data", DATA, "--patch-size", "4"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    assert "warning: only 1 of the 30 tokens occur in 40 images" in capsys.readouterr().err
    results = json.loads((tmp_path / "out" / "summary.json").read_text())["results"]
    assert results["perplexity"] == pytest.approx(1)


def test_what_does_not_fit_the_data(saved: Path, source: Source, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="do not divide into patches of 8"):
        fit("hf-flava", saved / "hf-flava", source, patch_size=8)
    grey = open_source(DATA + "&channels=1")
    with pytest.raises(TokenizerError, match=r"3-channel images, these have 1: add \?channels=3"):
        fit("hf-flava", saved / "hf-flava", grey)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hf-flav:a/b", "--source hf-flav:a/b is not one of .*did you mean hf-flava"),
        ("hf-flava:", "--source hf-flava: is not one of .*the name or folder is missing"),
        ("nothing", "--source nothing is not one of hf-flava:NAME, diffusers-vq:NAME"),
    ],
)
def test_other_sources(text: str, message: str, source: Source) -> None:
    with pytest.raises(ConfigError, match=message):
        ExternalTokenizer(text, 4).fit(source)


@pytest.mark.parametrize("prefix", WEIGHTS)
def test_pickled_and_damaged_weights(prefix: str, copy: Callable[[str], Path], source: Source) -> None:
    folder = copy(prefix)
    path = folder / WEIGHTS[prefix]
    content = path.read_bytes()
    (folder / "pytorch_model.bin").write_bytes(b"not looked at")
    assert fit(prefix, folder, source).vocab_size == 30  # beside safetensors it does no harm
    for spoiled in (content[: len(content) // 2], b"\x80\x04.", b""):
        path.write_bytes(spoiled)
        with pytest.raises(TokenizerError, match=f"{path.name} is damaged or not a safetensors file"):
            fit(prefix, folder, source)
    path.unlink()
    with pytest.raises(TokenizerError, match=r"only pickled weights \(pytorch_model.bin\), which are never read"):
        fit(prefix, folder, source)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(TokenizerError, match=f"has no {path.name}: save the model again with save_pretrained"):
        fit(prefix, folder, source)
    (folder / "config.json").unlink()
    with pytest.raises(TokenizerError, match=f"config.json is missing .* it needs config.json and {path.name}"):
        fit(prefix, folder, source)


def test_foreign_weights(copy: Callable[[str], Path], source: Source) -> None:
    flava, vq = copy("hf-flava"), copy("diffusers-vq")
    with pytest.raises(TokenizerError, match="holds VQModel, and this source is for FlavaImageCodebook"):
        fit("hf-flava", vq, source)
    with pytest.raises(TokenizerError, match="holds FlavaImageCodebook, and this source is for VQModel"):
        fit("diffusers-vq", flava, source)
    weights = load_file(flava / WEIGHTS["hf-flava"])
    last = "blocks.output.conv.bias"
    for changed, message in (
        ({name: tensor for name, tensor in weights.items() if name != last}, f'Missing key.* "{last}"'),
        (weights | {"decoder.w": torch.zeros(1)}, 'Unexpected key.* "decoder.w"'),
        (weights | {last: torch.zeros(31)}, rf"size mismatch for {last}: .*\[31\]"),
    ):
        save_file(changed, flava / WEIGHTS["hf-flava"])
        with pytest.raises(TokenizerError, match=f"does not hold a whole FlavaImageCodebook: .*{message}"):
            fit("hf-flava", flava, source)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("[]", "holds no known network, and this source is for VQModel"),
        ("{", "config.json is missing or not JSON"),
        ('{"_class_name": "VQModel", "block_out_channels": "many"}', "configuration and weights do not fit"),
    ],
)
def test_other_configurations(config: str, message: str, copy: Callable[[str], Path], source: Source) -> None:
    folder = copy("diffusers-vq")
    (folder / "config.json").write_text(config)
    with pytest.raises(TokenizerError, match=message) as caught:
        fit("diffusers-vq", folder, source)
    assert "\n" not in str(caught.value)


def test_names_of_the_hub(
    saved: Path, source: Source, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def cached(name: str, allow_patterns: list[str], local_files_only: bool = False) -> str:
        asked.append((name, allow_patterns, local_files_only))
        shutil.copytree(saved / "diffusers-vq", tmp_path / "hub" / "vqvae", dirs_exist_ok=True)
        return str(tmp_path / "hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", cached)
    assert ExternalTokenizer("diffusers-vq:owner/name/vqvae", 4).fit(source).vocab_size == 30
    assert asked == [("owner/name", [f"vqvae/{file}" for file in ("config.json", WEIGHTS["diffusers-vq"])], True)]

    def offline(*words: Any, **options: Any) -> str:
        raise ConnectionError("no\nnetwork")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", offline)
    words = ["fit", "external", "--data", DATA, "--patch-size", "4", "--out", str(tmp_path / "out"), "--source"]
    bring = "bring config.json and model.safetensors in a folder and name it: hf-flava:FOLDER"
    for name, why in (("owner/name", "ConnectionError: no network"), ("./nowhere", "there is no such folder")):
        assert main([*words, f"hf-flava:{name}"]) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.startswith(f"error: hf-flava:{name}")
        assert why in line
        assert bring in line
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("prefix", "library"), [("hf-flava", "transformers"), ("diffusers-vq", "diffusers")])
def test_without_the_library(
    prefix: str, library: str, saved: Path, source: Source, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fit(prefix, saved / prefix, source).save(tmp_path)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError, match=rf"{prefix} needs .*clustermim\[hf\]"):
        fit(prefix, saved / prefix, source)
    with pytest.raises(MissingExtraError, match=rf"{prefix} needs .*clustermim\[hf\]"):
        load_tokenizer(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=rf"{prefix}:owner/name needs"):
        ExternalTokenizer(f"{prefix}:owner/name", 4).fit(source)
