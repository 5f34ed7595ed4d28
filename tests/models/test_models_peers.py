"""The same weights in transformers' models give the same features, loss and gradients."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from transformers import ViTConfig, ViTMAEConfig, ViTMAEForPreTraining, ViTModel

from clustermim.models import ViT
from clustermim.models.masking import mask_from_noise
from clustermim.models.mim import MaskedAutoencoder
from clustermim.patches import patchify

ENCODER = {
    "cls_token": "embeddings.cls_token",
    "pos_embed": "embeddings.position_embeddings",
    "patch_embed.proj": "embeddings.patch_embeddings.projection",
    "norm": "layernorm",
}
BLOCK = {
    "norm1": "layernorm_before",
    "norm2": "layernorm_after",
    "attn.proj": "attention.o_proj",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}
QKV = ("attention.q_proj", "attention.k_proj", "attention.v_proj")


def encoder_to_transformers(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under timm's names, weights or gradients, under those of transformers' ViT."""
    result = {}
    for name, tensor in tensors.items():
        found = re.fullmatch(r"blocks\.(\d+)\.(.+)\.(weight|bias)", name)
        if found is None:
            part, dot, kind = name.rpartition(".") if name.endswith(("weight", "bias")) else (name, "", "")
            result[f"{ENCODER[part]}{dot}{kind}"] = tensor
        else:
            result |= block_to_transformers(f"layers.{found[1]}", found[2], found[3], tensor)
    return result


def block_to_transformers(prefix: str, part: str, kind: str, tensor: Tensor) -> dict[str, Tensor]:
    """One tensor of a block; queries, keys and values are one matrix here and three there."""
    if part == "attn.qkv":
        return {f"{prefix}.{name}.{kind}": third for name, third in zip(QKV, tensor.chunk(3), strict=True)}
    return {f"{prefix}.{BLOCK[part]}.{kind}": tensor}


def mae_to_transformers(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of a MaskedAutoencoder, weights or gradients, under the names of ViTMAEForPreTraining."""
    encoder = {name.removeprefix("encoder."): t for name, t in tensors.items() if name.startswith("encoder.")}
    result = {f"vit.{name}": tensor for name, tensor in encoder_to_transformers(encoder).items()}
    for name, tensor in tensors.items():
        found = re.fullmatch(r"decoder_blocks\.(\d+)\.(.+)\.(weight|bias)", name)
        if found is not None:
            result |= block_to_transformers(f"decoder.decoder_layers.{found[1]}", found[2], found[3], tensor)
        elif not name.startswith("encoder."):
            result[f"decoder.{name}"] = tensor
    return result


def scramble(model: nn.Module) -> None:
    """Random values everywhere, also in biases, norms and positions: none may hide a wrong name."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)


def test_features_of_transformers_vit() -> None:
    torch.manual_seed(0)
    encoder = ViT((16, 24), 4, 5, width=32, depth=3, heads=4, positions="learned").eval()
    scramble(encoder)
    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=128,
        layer_norm_eps=1e-6,
        image_size=(16, 24),
        patch_size=4,
        num_channels=5,
    )
    peer = ViTModel(config, add_pooling_layer=False).eval()
    peer.load_state_dict(encoder_to_transformers(encoder.state_dict()), strict=True)
    images = torch.randn(4, 5, 16, 24)
    with torch.no_grad():
        torch.testing.assert_close(encoder(images), peer(images).last_hidden_state, rtol=1e-5, atol=1e-5)


def test_loss_and_gradients_of_transformers_mae() -> None:
    torch.manual_seed(0)
    encoder = ViT((32, 32), 4, width=48, depth=3, heads=4)
    model = MaskedAutoencoder(encoder, 32, 2, 4, out_dim=48)
    config = ViTMAEConfig(
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=192,
        layer_norm_eps=1e-6,
        image_size=32,
        patch_size=4,
        decoder_hidden_size=32,
        decoder_num_hidden_layers=2,
        decoder_num_attention_heads=4,
        decoder_intermediate_size=128,
        mask_ratio=0.75,
        norm_pix_loss=False,
    )
    peer = ViTMAEForPreTraining(config)
    peer.decoder.initialize_weights(64)  # fills in its fixed positions, which are zeros so far
    torch.testing.assert_close(model.decoder_pos_embed, peer.decoder.decoder_pos_embed, rtol=0, atol=1e-6)
    scramble(model)
    peer.load_state_dict(mae_to_transformers(model.state_dict()), strict=True)

    images, noise = torch.randn(6, 3, 32, 32), torch.rand(6, 64)
    mask = mask_from_noise(noise, 0.75)
    target = patchify(images, 4).take_along_dim(mask.masked[..., None], 1)  # (B, m, p·p·C)
    loss = (model(images, mask) - target).pow(2).mean()
    loss.backward()
    wanted = peer(images, noise=noise).loss
    wanted.backward()
    torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=1e-5)

    ours = mae_to_transformers({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    theirs = {name: p.grad for name, p in peer.named_parameters() if p.grad is not None}
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-5, atol=1e-5, msg=name)
