"""VQ-KD: its networks, loss and step against plain torch functions, and published files against their definition."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from clustermim.cli import main
from clustermim.data import open_source, to_float
from clustermim.errors import TokenizerError
from clustermim.tokenizers import ExternalTokenizer, LearnedTokenizer, load_tokenizer
from clustermim.tokenizers.learning import AuxiliaryLosses, Learner, open_teachers
from clustermim.tokenizers.vqkd import PatchTransformer, distillation_loss

DATA = "textures:?images=40&grid=4&patch=4"  # images of 16×16 pixels
DOCS = Path(__file__).parents[2] / "docs" / "tokenizers.md"
WIDTH, DEPTH, CODES, CODE_DIM, PATCH, SIDE = 128, 2, 50, 8, 4, 4  # of a small file with the published names


def block(x: Tensor, weights: dict[str, Tensor], heads: int) -> Tensor:
    """A pre-norm transformer block on tokens (B, T, D), by its definition."""
    batch, count, width = x.shape
    y = F.layer_norm(x, (width,), weights["norm1.weight"], weights["norm1.bias"], 1e-6)
    y = y @ weights["attn.qkv.weight"].t() + weights["attn.qkv.bias"]
    q, k, v = y.reshape(batch, count, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    attention = (q @ k.transpose(2, 3) / (width // heads) ** 0.5).softmax(-1)
    y = (attention @ v).transpose(1, 2).reshape(batch, count, width)
    x = x + y @ weights["attn.proj.weight"].t() + weights["attn.proj.bias"]
    y = F.layer_norm(x, (width,), weights["norm2.weight"], weights["norm2.bias"], 1e-6)
    y = F.gelu(y @ weights["mlp.fc1.weight"].t() + weights["mlp.fc1.bias"])
    return x + y @ weights["mlp.fc2.weight"].t() + weights["mlp.fc2.bias"]


def inside(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}


def plain(network: PatchTransformer, images: Tensor, heads: int) -> Tensor:
    """What a `PatchTransformer` gives of images of its own size, by its definition: (B, N, dim)."""
    w = network.state_dict()
    x = F.conv2d(
        (images - w["mean"]) / w["std"],
        w["vit.patch_embed.proj.weight"],
        w["vit.patch_embed.proj.bias"],
        network.vit.patch_size,
    )
    x = torch.cat([w["vit.cls_token"].expand(len(x), -1, -1), x.flatten(2).transpose(1, 2)], 1) + w["vit.pos_embed"]
    for number in range(network.vit.depth):
        x = block(x, inside(w, f"vit.blocks.{number}."), heads)
    x = F.layer_norm(x, x.shape[2:], w["vit.norm.weight"], w["vit.norm.bias"], 1e-6)[:, 1:]
    x = torch.tanh(x @ w["head.0.weight"].t() + w["head.0.bias"])
    return x @ w["head.2.weight"].t() + w["head.2.bias"]


@pytest.mark.parametrize(("width", "heads"), [(64, 2), (96, 3), (12, 1), (100, 1)])
def test_the_network_is_a_vit_and_two_layers(width: int, heads: int) -> None:
    torch.manual_seed(0)
    network, images = PatchTransformer(3, (8, 12), 4, width, 2, 5), torch.rand(2, 3, 8, 12)
    network.mean, network.std = torch.rand(3, 1, 1), 0.2 + torch.rand(3, 1, 1)
    found = network(images)
    assert found.shape == (2, 5, 2, 3)
    assert torch.allclose(found.flatten(2).transpose(1, 2), plain(network, images, heads), atol=1e-5)
    assert network(torch.rand(2, 3, 12, 16)).shape == (2, 5, 3, 4)  # any other size


def test_the_loss_is_one_minus_the_cosine() -> None:
    predicted = torch.tensor([[[[3.0, 0.0]], [[4.0, 2.0]]]])  # (1, 2, 1, 2): the vectors (3, 4) and (0, 2)
    features = torch.tensor([[[6.0, 8.0], [5.0, 0.0]]])
    assert float(distillation_loss(predicted, features)) == pytest.approx((0 + 1) / 2)
    assert float(distillation_loss(-predicted, features)) == pytest.approx((2 + 1) / 2)
    assert float(distillation_loss(predicted, 0 * features)) == 1  # a flat patch has no gradients: no NaN


def learner(teacher: str = "pixels:?patch=4") -> Learner:
    tokenizer = LearnedTokenizer("vqkd", k=12, patch_size=4, width=32, depth=1, quantizer={"code_dim": 6})
    source = open_source(DATA)
    torch.manual_seed(0)
    return Learner(tokenizer.initialize(source), 10, AuxiliaryLosses(), open_teachers(teacher, source.shape))


def test_a_step_by_its_definition() -> None:
    trained, images = learner(), to_float(open_source(DATA).read(range(8)).images)
    tokenizer, predictor = trained.tokenizer, trained.predictor
    assert isinstance(predictor, PatchTransformer)
    z = F.normalize(tokenizer.autoencoder(images).detach().movedim(1, -1), dim=-1)  # (B, h, w, 6)
    book = tokenizer.quantizer.inner.codebook.clone()
    assert torch.allclose(book.norm(dim=1), torch.ones(12), atol=1e-5)
    ids = (z @ book.t()).argmax(-1)
    assert torch.equal(tokenizer(images), ids.flatten(1))
    chosen = book[ids]  # (B, h, w, 6)
    rebuilt = plain(predictor, chosen.movedim(-1, 1), 1)  # (B, N, 48)
    pixels = F.unfold(images, 4, stride=4).transpose(1, 2)  # what the teacher says of patches
    found = trained(images)
    expected = (1 - F.cosine_similarity(rebuilt, pixels, dim=2)).mean()
    assert set(found) == {"loss", "distillation", "commitment"}
    assert float(found["distillation"].detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    assert float(found["commitment"].detach()) == pytest.approx(float((z - chosen).square().mean()), rel=1e-5)
    assert float(found["loss"].detach()) == pytest.approx(float((found["distillation"] + found["commitment"]).detach()))
    found["loss"].backward()
    for network in (tokenizer.autoencoder, predictor):
        assert all(bool(p.grad.any()) for p in network.parameters() if p.grad is not None)
        assert sum(p.grad is not None for p in network.parameters()) == len(list(network.parameters()))


def test_tokens_learn_to_tell_the_features() -> None:
    tokenizer = LearnedTokenizer("vqkd", k=12, patch_size=4, width=32, depth=1)
    more = {"epochs": 25, "batch_size": 10, "base_lr": 0.05, "augment": "none", "device": "cpu"}
    tokenizer.fit(DATA, teacher=["pixels:?patch=4"], **more)
    losses = [line["distillation"] for line in tokenizer.history if "distillation" in line]
    images = to_float(open_source(DATA).read(range(40)).images)
    pixels = F.normalize(F.unfold(images, 4, stride=4), dim=1)  # (B, 48, N)
    assert losses[-1] < 1 - float(pixels.mean((0, 2)).norm())  # what one answer to every patch would reach
    assert not hasattr(tokenizer, "psnr_")
    assert "psnr" not in tokenizer.results()
    assert tokenizer.usage_ > 0.2


def test_a_loaded_tokenizer_needs_no_teacher(tmp_path: Path) -> None:
    fitted = LearnedTokenizer("vqkd", k=12, patch_size=4, width=32, depth=1)
    fitted.fit(DATA, teacher=["pixels:?patch=4"], epochs=1, batch_size=20, device="cpu").save(tmp_path)
    assert "pixels" not in (tmp_path / "tokenizer.json").read_text()
    names = set(load_file(tmp_path / "tokenizer.safetensors"))
    assert {name.split(".")[0] for name in names} == {"autoencoder", "quantizer"}  # the decoder stays behind
    loaded, images = load_tokenizer(tmp_path), torch.rand(2, 3, 8, 24)  # on another grid than it learned on
    assert torch.equal(loaded(images), fitted(images))
    record = json.loads((tmp_path / "tokenizer.json").read_text())
    assert record["fitted"]["grid"] == [4, 4]


def publish(path: Path, dtype: torch.dtype = torch.float32, **changes: Tensor | None) -> dict[str, Tensor]:
    """A small file with the names of a published VQ-KD, its decoder and its training included; its weights."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        scale = 0.1 if len(shape) in (1, 3) else 1.5 * (torch.Size(shape).numel() / shape[0]) ** -0.5
        return torch.randn(shape, generator=generator).mul(scale).to(dtype)

    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, WIDTH), "pos_embed": (1, 1 + SIDE**2, WIDTH),
        "patch_embed.proj.weight": (WIDTH, 3, PATCH, PATCH), "patch_embed.proj.bias": (WIDTH,),
        "fc_norm.weight": (WIDTH,), "fc_norm.bias": (WIDTH,),
    }  # fmt: skip
    for number in range(DEPTH):
        shapes |= {
            f"blocks.{number}.{name}": shape
            for name, shape in {
                "norm1.weight": (WIDTH,), "norm1.bias": (WIDTH,), "attn.q_bias": (WIDTH,), "attn.v_bias": (WIDTH,),
                "attn.qkv.weight": (3 * WIDTH, WIDTH), "attn.proj.weight": (WIDTH, WIDTH), "attn.proj.bias": (WIDTH,),
                "norm2.weight": (WIDTH,), "norm2.bias": (WIDTH,), "mlp.fc1.weight": (4 * WIDTH, WIDTH),
                "mlp.fc1.bias": (4 * WIDTH,), "mlp.fc2.weight": (WIDTH, 4 * WIDTH), "mlp.fc2.bias": (WIDTH,),
            }.items()
        }  # fmt: skip
    weights = {f"encoder.{name}": draw(*shape) for name, shape in shapes.items()}
    weights |= {
        "encode_task_layer.0.weight": draw(WIDTH, WIDTH), "encode_task_layer.0.bias": draw(WIDTH),
        "encode_task_layer.2.weight": draw(CODE_DIM, WIDTH), "encode_task_layer.2.bias": draw(CODE_DIM),
        "quantize.embedding.weight": F.normalize(draw(CODES, CODE_DIM).float(), dim=1).to(dtype),
        "quantize.embedding.cluster_size": draw(CODES), "quantize.embedding.embed_avg": draw(CODES, CODE_DIM),
        "quantize.embedding.initted": torch.ones(1), "quantize.cluster_size": draw(CODES),
        "decoder.cls_token": draw(1, 1, WIDTH), "decode_task_layer.0.weight": draw(WIDTH, WIDTH),
    }  # fmt: skip
    for name, tensor in changes.items():
        weights.pop(name, None) if tensor is None else weights.__setitem__(name, tensor)
    save_file(weights, path)
    return weights


def published_ids(weights: dict[str, Tensor], images: Tensor) -> Tensor:
    """Ids (B, N) of images in [0, 1], as the authors define them: images to −1 … 1, unit vectors, the nearest code."""
    w = {name: tensor.double() for name, tensor in weights.items()}
    x = F.conv2d(
        images.double() * 255 / 127.5 - 1,
        w["encoder.patch_embed.proj.weight"],
        w["encoder.patch_embed.proj.bias"],
        PATCH,
    )
    x = torch.cat([w["encoder.cls_token"].expand(len(x), -1, -1), x.flatten(2).transpose(1, 2)], 1)
    x = x + w["encoder.pos_embed"]
    for number in range(DEPTH):
        own = inside(w, f"encoder.blocks.{number}.")
        bias = torch.cat([own["attn.q_bias"], torch.zeros(WIDTH, dtype=torch.float64), own["attn.v_bias"]])
        x = block(x, own | {"attn.qkv.bias": bias}, WIDTH // 64)
    x = F.layer_norm(x[:, 1:], (WIDTH,), w["encoder.fc_norm.weight"], w["encoder.fc_norm.bias"], 1e-6)
    x = torch.tanh(F.linear(x, w["encode_task_layer.0.weight"], w["encode_task_layer.0.bias"]))
    x = F.normalize(F.linear(x, w["encode_task_layer.2.weight"], w["encode_task_layer.2.bias"]), dim=-1)
    return torch.cdist(x, w["quantize.embedding.weight"]).argmin(-1)


class TestPublished:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
    def test_ids_are_those_of_the_definition(self, dtype: torch.dtype, tmp_path: Path) -> None:
        weights = publish(tmp_path / "vqkd.safetensors", dtype)
        images = to_float(open_source(DATA).read(range(40)).images)
        tokenizer = ExternalTokenizer(f"vqkd:{tmp_path / 'vqkd.safetensors'}", patch_size=4).fit(DATA)
        expected = published_ids(weights, images)
        assert (tokenizer.vocab_size, tokenizer.channels_) == (CODES, 3)
        assert len(expected.unique()) > 10
        assert torch.equal(tokenizer(images), expected)
        assert torch.equal(torch.cat([tokenizer(part) for part in images.split(7)]), expected)

    def test_it_sees_images_at_its_own_patch_size(self, tmp_path: Path) -> None:
        weights = publish(tmp_path / "vqkd.safetensors")
        large = F.interpolate(to_float(open_source(DATA).read(range(4)).images), scale_factor=2, mode="bicubic").clamp(
            0, 1
        )
        tokenizer = ExternalTokenizer(f"vqkd:{tmp_path / 'vqkd.safetensors'}", patch_size=8).fit(
            "textures:?images=4&grid=4&patch=8"
        )
        view = F.interpolate(large, (16, 16), mode="bicubic", antialias=True).clamp(0, 1)
        assert torch.equal(tokenizer(large), published_ids(weights, view))
        assert tokenizer(torch.rand(2, 3, 24, 16)).shape == (2, 6)  # positions are interpolated

    def test_its_folder_stands_alone(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        publish(tmp_path / "vqkd.safetensors")
        words = ["--source", f"vqkd:{tmp_path / 'vqkd.safetensors'}", "--data", DATA, "--patch-size", "4"]
        assert main(["fit", "external", *words, "--out", str(tmp_path / "run")]) == 0, capsys.readouterr().err
        images = torch.rand(3, 3, 16, 16)
        expected = ExternalTokenizer(words[1], 4).fit(DATA)(images)
        (tmp_path / "vqkd.safetensors").unlink()
        loaded = load_tokenizer(tmp_path / "run")
        assert torch.equal(loaded(images), expected)
        assert not any("decoder" in name for name in loaded.tensors())

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"encoder.pos_embed": None}, r"'encoder.pos_embed' is missing; convert the published .pth as"),
            ({"quantize.embedding.weight": None}, "'quantize.embedding.weight' is missing"),
            ({"encoder.pos_embed": torch.zeros(1, 8, WIDTH)}, "its 7 positions do not form a square"),
            ({"encoder.pos_embed": torch.zeros(3)}, "its weights have other shapes"),
            ({"encoder.blocks.1.attn.v_bias": None}, "'encoder.blocks.1.attn.v_bias' is missing"),
            ({"encoder.blocks.1.norm1.bias": None}, "does not hold a whole PublishedVQKD: .*Missing key"),
            ({"encoder.blocks.1.gamma_1": torch.ones(WIDTH)}, "does not hold a whole PublishedVQKD: .*Unexpected key"),
            ({"encode_task_layer.2.weight": torch.zeros(CODE_DIM, 100)}, "size mismatch"),
            (
                {"encode_task_layer.0.weight": torch.zeros(100, WIDTH)},
                "a width of 100 does not divide into heads of 64",
            ),
        ],
    )
    def test_other_weights(self, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
        publish(tmp_path / "vqkd.safetensors", **changes)
        with pytest.raises(TokenizerError, match=message) as caught:
            ExternalTokenizer(f"vqkd:{tmp_path / 'vqkd.safetensors'}", 4).fit(DATA)
        assert "\n" not in str(caught.value)

    def test_files_that_are_none(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "vqkd.pth").write_bytes(b"never read")
        (tmp_path / "broken.safetensors").write_bytes(b"\x80\x04.")
        for name, message in (
            ("nowhere.safetensors", "there is no file"),
            ("vqkd.pth", "pickled weights are never read: convert the published .pth"),
            ("broken.safetensors", "is damaged or not a safetensors file"),
        ):
            words = ["--source", f"vqkd:{tmp_path / name}", "--data", DATA, "--patch-size", "4"]
            assert main(["fit", "external", *words, "--out", str(tmp_path / "out")]) == 2
            assert message in capsys.readouterr().err.splitlines()[-1]
            assert not (tmp_path / "out").exists()

    def test_the_documented_converter(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        weights = publish(tmp_path / "expected.safetensors")
        saved = {"model": {**weights, "teacher_model.w": torch.zeros(3)}, "args": argparse.Namespace(lr=1), "epoch": 99}
        code = next(
            found for found in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL) if ".pth" in found
        )
        (name,) = re.findall(r"[\w-]+\.pth", code)
        torch.save(saved, tmp_path / name)
        monkeypatch.chdir(tmp_path)
        exec(compile(code, str(DOCS), "exec"), {})  # noqa: S102 - our own documentation
        images = torch.rand(2, 3, 16, 16)
        assert torch.equal(
            ExternalTokenizer("vqkd:vqkd.safetensors", 4).fit(DATA)(images), published_ids(weights, images)
        )
