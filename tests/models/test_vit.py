"""The encoder: shapes, names, visible patches, positions, drop path and bad arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from clustermim.errors import ConfigError, DataError
from clustermim.models.backbones import DECODER_HEAD
from clustermim.models.vit import SIZES, Block, ViT, find_size, resize_positions, run_blocks
from clustermim.patches import sincos_positions


def make(image_size: tuple[int, int] = (16, 24), patch_size: int = 4, channels: int = 3, **options: Any) -> ViT:
    """A small encoder; its grid is 4×6 unless told."""
    torch.manual_seed(0)
    return ViT(image_size, patch_size, channels, **{"width": 32, "depth": 2, "heads": 4, **options})


# what timm.create_model("vit_…", num_classes=0, depth=1).state_dict() holds
TIMM_NAMES = {
    "cls_token",
    "pos_embed",
    "patch_embed.proj.weight",
    "patch_embed.proj.bias",
    "blocks.0.norm1.weight",
    "blocks.0.norm1.bias",
    "blocks.0.attn.qkv.weight",
    "blocks.0.attn.qkv.bias",
    "blocks.0.attn.proj.weight",
    "blocks.0.attn.proj.bias",
    "blocks.0.norm2.weight",
    "blocks.0.norm2.bias",
    "blocks.0.mlp.fc1.weight",
    "blocks.0.mlp.fc1.bias",
    "blocks.0.mlp.fc2.weight",
    "blocks.0.mlp.fc2.bias",
    "norm.weight",
    "norm.bias",
}


@pytest.mark.parametrize("positions", ["sincos", "learned"])
def test_names_and_shapes_are_those_of_timm(positions: Any) -> None:
    state = make(depth=1, positions=positions).state_dict()
    assert set(state) == TIMM_NAMES
    assert state["pos_embed"].shape == (1, 1 + 24, 32)
    assert state["cls_token"].shape == (1, 1, 32)
    assert state["patch_embed.proj.weight"].shape == (32, 3, 4, 4)
    assert state["blocks.0.attn.qkv.weight"].shape == (96, 32)
    assert state["blocks.0.mlp.fc1.weight"].shape == (128, 32)


def test_sizes() -> None:
    assert list(SIZES) == ["micro", "tiny", "small", "base", "large", "huge"]
    with torch.device("meta"):  # shapes without memory
        counts = {name: sum(p.numel() for p in ViT.of_size(name, (224, 224), 16).parameters()) for name in SIZES}
    # timm's vit_{tiny,small,base,large}_patch16_224 with num_classes=0
    published = {"tiny": 5524416, "small": 21665664, "base": 85798656, "large": 303301632}
    assert {name: counts[name] for name in published} == published
    for size in SIZES.values():
        assert size.width % size.heads == 0
        assert size.decoder[0] % DECODER_HEAD == 0


@settings(max_examples=20)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 7), st.sampled_from([1, 3, 5]))
def test_any_grid_patch_size_and_channels(rows: int, columns: int, patch_size: int, channels: int) -> None:
    encoder = make((rows * patch_size, columns * patch_size), patch_size, channels, depth=1)
    images = torch.rand(2, channels, rows * patch_size, columns * patch_size)
    assert encoder(images).shape == (2, 1 + rows * columns, 32)
    assert encoder(images, torch.zeros(2, 1, dtype=torch.long)).shape == (2, 2, 32)


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_patch_embedding_is_the_convolution(channels: int) -> None:
    encoder = make(channels=channels)
    images = torch.randn(3, channels, 16, 24)
    torch.nn.init.normal_(encoder.patch_embed.proj.bias)
    convolved = encoder.patch_embed.proj(images).flatten(2).transpose(1, 2)
    torch.testing.assert_close(encoder.patch_embed(images), convolved)
    keep = torch.stack([torch.randperm(24)[:5] for _ in range(3)])
    chosen = torch.stack([tokens[index] for tokens, index in zip(convolved, keep, strict=True)])
    torch.testing.assert_close(encoder.patch_embed(images, keep), chosen)


@pytest.mark.parametrize("positions", ["sincos", "learned"])
def test_keeping_all_is_keeping_none_back(positions: Any) -> None:
    encoder = make(positions=positions)
    images = torch.randn(3, 3, 16, 24)
    torch.testing.assert_close(encoder(images, torch.arange(24).expand(3, -1)), encoder(images))
    order = torch.stack([torch.randperm(24) for _ in range(3)])
    features = encoder(images)
    shuffled = torch.stack([tokens[index] for tokens, index in zip(features[:, 1:], order, strict=True)])
    given = encoder(images, order)
    torch.testing.assert_close(given[:, 0], features[:, 0])
    torch.testing.assert_close(given[:, 1:], shuffled)


def test_permuting_keep_permutes_the_tokens() -> None:
    encoder = make()
    images = torch.randn(2, 3, 16, 24)
    keep = torch.tensor([[3, 17, 5, 0], [23, 1, 2, 9]])
    shuffle = torch.tensor([2, 0, 3, 1])
    before, after = encoder(images, keep), encoder(images, keep[:, shuffle])
    torch.testing.assert_close(after[:, 1:], before[:, 1:][:, shuffle])
    torch.testing.assert_close(after[:, 0], before[:, 0])


def test_hidden_patches_do_not_matter() -> None:
    encoder = make()
    images = torch.randn(1, 3, 16, 24)
    other = torch.randn(1, 3, 16, 24)
    other[:, :, :4, 4:8] = images[:, :, :4, 4:8]  # patch 1, the only one that is kept
    keep = torch.tensor([[1]])
    assert torch.equal(encoder(images, keep), encoder(other, keep))
    assert not torch.allclose(encoder(images), encoder(other))


def test_last_tokens_alone_are_the_last_of_all() -> None:
    encoder = make()
    blocks = encoder.blocks
    tokens = torch.randn(2, 9, 32)
    torch.testing.assert_close(run_blocks(blocks, tokens, last=4), run_blocks(blocks, tokens)[:, 5:])


@pytest.mark.parametrize("positions", ["sincos", "learned"])
def test_gradients_reach_what_is_learned(positions: Any) -> None:
    encoder = make(positions=positions)
    encoder(torch.randn(2, 3, 16, 24), torch.arange(6).expand(2, -1)).pow(3).sum().backward()
    for name, parameter in encoder.named_parameters():
        if name == "pos_embed" and positions == "sincos":
            assert not parameter.requires_grad
            assert parameter.grad is None
        else:
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name


def test_fixed_positions_have_a_zero_for_the_class_token() -> None:
    positions = make().pos_embed
    assert not positions[0, 0].any()
    assert torch.equal(positions[0, 1:], sincos_positions((4, 6), 32))


def test_initial_weights() -> None:
    encoder = make(width=64, depth=1, positions="learned")
    for weight in (encoder.patch_embed.proj.weight.flatten(1), encoder.blocks[0].get_submodule("mlp.fc1").weight):
        bound = (6 / sum(weight.shape)) ** 0.5
        assert bound * 0.98 < weight.abs().max() <= bound
        assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)
    assert encoder.pos_embed.std().item() == pytest.approx(0.02, rel=0.1)
    assert encoder.cls_token.std().item() == pytest.approx(0.02, rel=0.5)
    assert not encoder.patch_embed.proj.bias.any()


def test_drop_path_rates_grow_linearly() -> None:
    blocks: Any = make(depth=5, drop_path=0.2).blocks
    assert [block.drop_path for block in blocks] == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])
    single: Any = make(depth=1, drop_path=0.2).blocks
    assert single[0].drop_path == 0


def test_drop_path_is_off_in_evaluation_and_keeps_the_mean_in_training() -> None:
    torch.manual_seed(0)
    block = Block(8, 2, drop_path=0.25)
    branch = torch.ones(4000, 3, 8)
    assert torch.equal(block.eval().drop(branch), branch)
    dropped = block.train().drop(branch)
    assert dropped.mean().item() == pytest.approx(1, abs=0.04)
    assert torch.equal(dropped, dropped[:, :1, :1].expand_as(dropped))  # a whole image at a time
    assert set(dropped.unique().tolist()) == {0, torch.tensor(1 / 0.75).item()}


def test_drop_path_in_the_encoder() -> None:
    encoder = make(drop_path=0.5)
    images = torch.randn(8, 3, 16, 24)
    assert not torch.equal(encoder(images), encoder(images))
    encoder.eval()
    assert torch.equal(encoder(images), encoder(images))


def test_resized_positions() -> None:
    positions = torch.randn(1, 1 + 24, 8)
    assert resize_positions(positions, (4, 6), (4, 6)) is positions
    larger = resize_positions(positions, (4, 6), (8, 9))
    assert larger.shape == (1, 1 + 72, 8)
    assert torch.equal(larger[:, 0], positions[:, 0])
    for grid in ((8, 9), (2, 3)):  # Pillow's bicubic filter, one number of the width at a time
        resized = resize_positions(positions, (4, 6), grid)[0, 1:].reshape(*grid, 8)
        for i in range(8):
            plane = Image.fromarray(positions[0, 1:, i].reshape(4, 6).numpy())
            by_pillow = torch.tensor(np.asarray(plane.resize(grid[::-1], Image.Resampling.BICUBIC)))
            torch.testing.assert_close(resized[..., i], by_pillow, rtol=1e-5, atol=1e-5)
    constant = torch.ones(1, 1 + 24, 8)
    torch.testing.assert_close(resize_positions(constant, (4, 6), (3, 11)), torch.ones(1, 1 + 33, 8))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 5}, "a width of 32 does not divide into 5 attention heads"),
        ({"heads": 0}, "a width of 32 does not divide into 0 attention heads"),
        ({"image_size": (16, 30)}, "images of 16×30 pixels do not divide into patches of 4"),
        ({"patch_size": 0}, "do not divide into patches of 0"),
        ({"positions": "rotary"}, "positions are sincos or learned, not 'rotary'"),
        ({"width": 6, "heads": 2}, "width divisible by 4, not 6"),
        ({"depth": 0}, "depth ≥ 1"),
        ({"channels": 0}, "channels ≥ 1"),
        ({"drop_path": 1.0}, "0 ≤ drop_path < 1"),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        make(**options)


def test_unknown_sizes() -> None:
    with pytest.raises(ConfigError, match=r"there is no model 'smal'; did you mean small\?"):
        find_size("smal")
    with pytest.raises(ConfigError, match="there are: micro, tiny, small, base, large, huge"):
        ViT.of_size("xyz", (32, 32), 4)


def test_images_of_another_shape() -> None:
    with pytest.raises(DataError, match="the images are 1×24×16, and the encoder was made for 3×16×24"):
        make()(torch.zeros(1, 1, 24, 16))
