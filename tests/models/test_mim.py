"""MAE's and BEiT's layouts: what they predict, what they see, and what learns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clustermim.errors import ConfigError
from clustermim.models import ViT, make_model
from clustermim.models.cross import CrossAttention
from clustermim.models.masking import Mask, draw_from, random_mask
from clustermim.models.mim import CrossAutoencoder, MaskedAutoencoder, MaskedEncoder

Layout = Callable[[ViT], nn.Module]
LAYOUTS: dict[str, Layout] = {
    "mae": lambda encoder: MaskedAutoencoder(encoder, 16, 2, 2, out_dim=7),
    "beit": lambda encoder: MaskedEncoder(encoder, out_dim=7),
    "cross": lambda encoder: CrossAutoencoder(encoder, 16, 2, 2, out_dim=7),
}


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> Layout:
    return LAYOUTS[request.param]


def make(channels: int = 3, **options: Any) -> ViT:
    """A small encoder of 16×24 pixels and 4×6 patches."""
    torch.manual_seed(0)
    return ViT((16, 24), 4, channels, width=32, depth=2, heads=4, **options)


def draw(batch: int = 3, ratio: float = 0.75) -> Mask:
    return random_mask(draw_from(torch.Generator().manual_seed(0), batch), 24, ratio)


@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize("ratio", [0.75, 0.4])
def test_predictions_for_masked_patches_only(layout: Layout, channels: int, ratio: float) -> None:
    mask = draw(ratio=ratio)
    assert layout(make(channels))(torch.randn(3, channels, 16, 24), mask).shape == (3, mask.masked.shape[1], 7)


def test_predictions_follow_the_order_of_the_mask(layout: Layout) -> None:
    model, images, mask = layout(make()), torch.randn(3, 3, 16, 24), draw()
    prediction = model(images, mask)
    shuffle = torch.randperm(mask.masked.shape[1])
    torch.testing.assert_close(model(images, mask._replace(masked=mask.masked[:, shuffle])), prediction[:, shuffle])
    torch.testing.assert_close(model(images, mask._replace(keep=mask.keep.flip(1))), prediction)


def test_masked_pixels_are_not_seen(layout: Layout) -> None:
    model, mask = layout(make()), draw(1)
    images = torch.randn(1, 3, 16, 24, requires_grad=True)
    model(images, mask).pow(2).sum().backward()
    assert images.grad is not None
    gradient = images.grad.reshape(3, 4, 4, 6, 4).permute(1, 3, 0, 2, 4).reshape(24, -1)  # (N, C·p·p)
    assert not gradient[mask.masked[0]].any()
    assert gradient[mask.keep[0]].abs().sum(1).min() > 0


@pytest.mark.parametrize("positions", ["sincos", "learned"])
def test_gradients_reach_what_is_learned(layout: Layout, positions: Any) -> None:
    model = layout(make(positions=positions))
    model(torch.randn(3, 3, 16, 24), draw()).pow(2).sum().backward()
    fixed = {"decoder_pos_embed", "encoder.pos_embed"} if positions == "sincos" else {"decoder_pos_embed"}
    for name, parameter in model.named_parameters():
        if name in fixed:
            assert not parameter.requires_grad
            assert parameter.grad is None
        else:
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name


def test_one_image_is_learned(layout: Layout) -> None:
    model, images, mask = layout(make()), torch.randn(1, 3, 16, 24), draw(1)
    target = torch.randn(1, mask.masked.shape[1], 7)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    losses = []
    for _ in range(120):
        loss = (model(images, mask) - target).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]


def test_one_graph_for_torch_compile(layout: Layout) -> None:
    model, images, mask = layout(make()), torch.randn(3, 3, 16, 24), draw()
    compiled = torch.compile(model, backend="eager", fullgraph=True)  # fullgraph: whatever breaks the graph raises
    torch.testing.assert_close(compiled(images, mask), model(images, mask))


def test_an_encoder_keeps_its_weights(layout: Layout) -> None:
    encoder = make()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    model: Any = layout(encoder)
    assert model.encoder is encoder
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
    assert not any("mask_token" in name or "decoder" in name for name in before)


def test_masked_encoder_by_hand() -> None:
    """Mask tokens in place in the row-major sequence, and the head on all of it, as BEiT's paper draws it."""
    model, images, mask = MaskedEncoder(make(), 7), torch.randn(3, 3, 16, 24), draw(ratio=0.4)
    encoder = model.encoder
    hidden = torch.zeros(3, 24, 1).scatter(1, mask.masked[..., None], 1.0)
    patches: Tensor = encoder.patch_embed(images) * (1 - hidden) + model.mask_token * hidden
    tokens = encoder.encode(patches + encoder.pos_embed[:, 1:])
    wanted = torch.stack([row[1:][index] for row, index in zip(model.head(tokens), mask.masked, strict=True)])
    torch.testing.assert_close(model(images, mask), wanted)


def test_names_of_the_decoder_are_those_of_mae() -> None:
    model = MaskedAutoencoder(make(), 16, 1, 2, out_dim=7)
    names = {name for name, _ in model.named_parameters() if not name.startswith("encoder.")}
    assert {name.split(".")[0] for name in names} == {
        "decoder_embed",
        "mask_token",
        "decoder_pos_embed",
        "decoder_blocks",
        "decoder_norm",
        "decoder_pred",
    }


def test_bad_arguments() -> None:
    with pytest.raises(ConfigError, match="a width of 16 does not divide into 3 attention heads"):
        MaskedAutoencoder(make(), 16, 1, 3, out_dim=7)
    with pytest.raises(ConfigError, match="width divisible by 4, not 18"):
        MaskedAutoencoder(make(), 18, 1, 3, out_dim=7)
    with pytest.raises(ConfigError, match="depth ≥ 1 and out_dim ≥ 1, not 0 and 7"):
        MaskedAutoencoder(make(), 16, 0, 2, out_dim=7)
    with pytest.raises(ConfigError, match="out_dim ≥ 1, not 0"):
        MaskedEncoder(make(), 0)
    with pytest.raises(ConfigError, match="--layout mage is not for ViT: mage reads tokens, all others images"):
        make_model("mage", make(), 7)


def test_cross_attention_is_that_of_torch() -> None:
    torch.manual_seed(0)
    ours, theirs = CrossAttention(16, 4), nn.MultiheadAttention(16, 4, batch_first=True)
    assert theirs.in_proj_weight is not None
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.q.weight, ours.kv.weight]))
        theirs.in_proj_bias.copy_(torch.cat([ours.q.bias, ours.kv.bias]))
        theirs.out_proj.load_state_dict(ours.proj.state_dict())
    queries, tokens = torch.randn(3, 5, 16), torch.randn(3, 9, 16)
    torch.testing.assert_close(ours(queries, tokens), theirs(queries, tokens, tokens)[0])


def test_a_masked_patch_does_not_see_another() -> None:
    model, images, mask = CrossAutoencoder(make(), 16, 2, 2, out_dim=7), torch.randn(3, 3, 16, 24), draw()
    everything, part = model(images, mask), model(images, mask._replace(masked=mask.masked[:, 4:6]))
    torch.testing.assert_close(part, everything[:, 4:6])
    self_attention = MaskedAutoencoder(make(), 16, 2, 2, out_dim=7)
    everything, part = (self_attention(images, mask._replace(masked=m)) for m in (mask.masked, mask.masked[:, 4:6]))
    assert not torch.allclose(part, everything[:, 4:6])


def test_cross_attention_is_of_maes_layout() -> None:
    assert isinstance(make_model("mae", make(), 7, cross_decoder=True), CrossAutoencoder)
    with pytest.raises(ConfigError, match="--cross-decoder is for --layout mae, not beit"):
        make_model("beit", make(), 7, cross_decoder=True)
