"""The decoder as an encoder: against plain loops from a run's files, through probe and knn, and what bad input gets."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import clustermim as cm
from clustermim.cli import main
from clustermim.data.transforms import normalize
from clustermim.errors import RunError, TeacherError
from clustermim.models.predictor import Predictor, load_predictor
from plain_vit import Weights, block, embedded, encoded, linear, norm

DATA = "textures:?images=48&grid=4&patch=4"
SHORT: dict[str, Any] = {"epochs": 1, "batch_size": 16, "patch_size": 4, "device": "cpu"}
WAYS: dict[str, dict[str, Any]] = {
    "self": {},
    "cross": {"cross_decoder": True, "decoder_depth": 2, "decoder_width": 64},
    "online": {"target": "online", "prototypes": 8},
    "mixmae": {"layout": "mixmae", "mask_ratio": 0.5},
}


def pretrained(folder: Path, way: str) -> Path:
    options = dict(WAYS[way])
    cm.pretrain(DATA, options.pop("target", "pixels"), out=folder / way, **options, **SHORT)
    return folder / way


def weights_of(run: Path) -> Weights:
    return load_file(run / "decoder.safetensors") | {
        f"encoder.{name}": value for name, value in load_file(run / "encoder.safetensors").items()
    }


def tokens_of(image: Tensor, weights: Weights) -> Tensor:
    """The encoder's tokens (17, D) of a normalised image (C, 16, 16), all of it seen."""
    first = weights["encoder.cls_token"][0, 0] + weights["encoder.pos_embed"][0, 0]
    return encoded([first, *(embedded(image, place, weights) for place in range(16))], weights)


def asked_beside(tokens: Tensor, weights: Weights) -> Tensor:
    """MAE's decoder: mask tokens at all places, the class token's first, after the tokens of all places."""
    places = weights["decoder_pos_embed"][0]  # (17, W)
    x = torch.cat([linear(tokens, weights, "decoder_embed") + places, weights["mask_token"][0, 0] + places])
    x = block(x, weights, "decoder_blocks.0", 3, torch.ones(34, 34, dtype=torch.bool))
    return norm(x, weights, "decoder_norm")[17:]


def asked_across(tokens: Tensor, weights: Weights) -> Tensor:
    """The decoder of cross-attention: mask tokens that look at the encoder's tokens only, each by itself."""
    places = weights["decoder_pos_embed"][0]
    seen = norm(linear(tokens, weights, "decoder_embed") + places, weights, "encoder_norm")  # (17, 64)
    found = []
    for place in range(17):
        x = weights["mask_token"][0, 0] + places[place]  # (64,)
        for name in ("decoder_blocks.0", "decoder_blocks.1"):
            query = linear(norm(x, weights, f"{name}.norm1"), weights, f"{name}.attn.q")
            keys, values = linear(seen, weights, f"{name}.attn.kv").chunk(2, dim=1)
            heads = []
            for head in (slice(0, 32), slice(32, 64)):
                shares = (keys[:, head] @ query[head] / math.sqrt(32)).softmax(0)
                heads.append(shares @ values[:, head])
            x = x + linear(torch.cat(heads), weights, f"{name}.attn.proj")
            hidden = linear(norm(x, weights, f"{name}.norm2"), weights, f"{name}.mlp.fc1")
            hidden = hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2
            x = x + linear(hidden, weights, f"{name}.mlp.fc2")
        found.append(norm(x, weights, "decoder_norm"))
    return torch.stack(found)


@pytest.mark.parametrize("way", WAYS)
def test_features_in_plain_loops(way: str, tmp_path: Path) -> None:
    run = pretrained(tmp_path, way)
    weights, predictor = weights_of(run), cm.load_encoder(run, features="predictor")
    assert isinstance(predictor, Predictor)
    images = torch.rand(3, 3, 16, 16)
    with torch.no_grad():
        found = predictor(images)
    ask = asked_across if way == "cross" else asked_beside
    for image, tokens in zip(normalize(images, predictor.mean, predictor.std), found, strict=True):
        torch.testing.assert_close(tokens, ask(tokens_of(image, weights), weights), rtol=1e-4, atol=1e-4)
    assert found.shape == (3, 17, predictor.width)
    assert predictor.width == (64 if way == "cross" else 96)


def test_what_was_trained_is_what_is_measured(tmp_path: Path) -> None:
    """Of a patch that is hidden, a decoder of cross-attention is asked the same as in training."""
    predictor = load_predictor(pretrained(tmp_path, "cross"))
    net, images = predictor.net, torch.rand(2, 3, 16, 16)
    seen: list[Tensor] = []
    net.decoder_pred.register_forward_hook(lambda module, given, out: seen.append(given[0]))
    inputs = normalize(images, predictor.mean, predictor.std)
    everything = torch.arange(16).expand(2, -1)
    with torch.no_grad():
        tokens = net.encode(inputs, everything)
        net.decode(net.decoder_embed(tokens), torch.cat([everything, everything[:, 4:7]], 1), 3)
        torch.testing.assert_close(seen[0], predictor(images)[:, 5:8], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stage", ["probe", "knn"])
def test_probe_and_neighbours(stage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, labelled = pretrained(tmp_path, "self"), ["--data", DATA, "--test-data", DATA + "&seed=1"]
    assert main([stage, str(run), *labelled]) == 0
    assert main([stage, str(run), *labelled, "--features", "predictor"]) == 0
    plain, found = (json.loads((run / name / "summary.json").read_text()) for name in (stage, f"{stage}-predictor"))
    predictor = cm.load_encoder(run, features="predictor")
    measure = cm.linear_probe if stage == "probe" else cm.knn
    assert found["results"] == measure(predictor, DATA, DATA + "&seed=1", device="cpu").to_dict()
    assert found["weights"] == predictor.weights != plain["weights"]
    assert "features: predictor" in (run / f"{stage}-predictor" / "config.yaml").read_text()
    assert "features" not in (run / stage / "config.yaml").read_text()


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(run: Path, *words: str) -> str:
        command = ["probe", str(run), "--data", DATA, "--test-data", DATA, "--features", "predictor", *words]
        assert main(command) == 2
        (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("error: "))
        assert not (run / "probe-predictor").exists()
        return line

    cm.pretrain(DATA, "pixels", layout="beit", out=tmp_path / "beit", **SHORT)
    assert "was pretrained with --layout beit, without a predictor" in refuse(tmp_path / "beit")
    run = pretrained(tmp_path, "self")
    assert "--features is for --protocol lbfgs" in refuse(run, "--protocol", "mae")
    with pytest.raises(RunError, match="the predictor lies in a run folder"):
        cm.load_encoder(cm.load_encoder(run), features="predictor")
    with pytest.raises(TeacherError, match="a teacher is a text"):
        cm.open_teacher(cm.load_encoder(run, features="predictor"))
    state = load_file(run / "decoder.safetensors")
    for name, value in {
        "decoder_embed.weight": state["decoder_embed.weight"][:50],
        "decoder_norm.weight": torch.ones(7),
        "unknown": torch.ones(1),
    }.items():
        save_file({**state, name: value.contiguous()}, run / "decoder.safetensors")
        assert "is of a decoder that this version cannot read" in refuse(run)
    (run / "decoder.safetensors").write_bytes(b"nothing")
    assert "is of a decoder that this version cannot read" in refuse(run)
    (run / "decoder.safetensors").unlink()
    assert "holds no decoder.safetensors: only a run of pretrain has a predictor" in refuse(run)
