"""MixMAE: its loss by plain loops from the weights alone, what the encoder sees, exact resumption, bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from clustermim.cli import main
from clustermim.data import channel_stats, open_source, to_float
from clustermim.drawing.reconstructions import PICTURE
from clustermim.models import ViT, make_model
from clustermim.models.masking import draw_from, pair_mask, random_mask
from clustermim.pretraining import MaskedBatch, MaskedCollator, Masking
from clustermim.training import SeededBatches
from clustermim.training.optimizer import parameter_groups
from plain_vit import Weights, decoded, embedded, encoded, patch_of

DATA = "textures:?images=16&grid=4&patch=4"
WORDS = ("--target", "pixels", "--layout", "mixmae", "--mask-ratio", "0.5", "--batch-size", "16", "--device", "cpu")


def run(out: Path, *words: str, data: str = DATA) -> int:
    try:
        return main(["pretrain", "--data", data, "--out", str(out), *WORDS, *words])
    except SystemExit as stopped:  # of --stop-after
        return int(stopped.code or 0)


def make_vit() -> ViT:
    torch.manual_seed(0)
    return ViT.of_size("micro", (16, 16), 4, 3)


def first_batch(masking: Masking = Masking(mask_ratio=0.5), batch_size: int = 16) -> MaskedBatch:
    """What the first step of a run with seed 0 sees."""
    collator = MaskedCollator((4, 4), masking, layout="mixmae")
    return next(iter(SeededBatches(open_source(DATA), batch_size, 0, collator, "crop").make(0, 0)))


def predict_pair(first: Tensor, second: Tensor, shown: set[int], weights: Weights) -> list[dict[int, Tensor]]:
    """Predictions for two images (C, H, W), mixed in row-major order: `shown` are the patches of the first."""
    mixed = [weights["encoder.cls_token"][0, 0] + weights["encoder.pos_embed"][0, 0]]
    for place in range(16):
        if place in shown:
            mixed.append(embedded(first, place, weights))
        else:
            mixed.append(embedded(second, place, weights) + weights["mix_embed"][0, 0])
    x = encoded(mixed, weights)
    halves = shown, set(range(16)) - shown
    return [decoded(x[0], {place: x[1 + place] for place in half}, weights) for half in halves]


def test_the_loss_of_the_first_step(tmp_path: Path) -> None:
    assert run(tmp_path / "run", "--epochs", "1", "--normalize-pixels") == 0
    results = json.loads((tmp_path / "run" / "summary.json").read_text())["results"]
    weights = dict(make_model("mixmae", make_vit(), 48).state_dict())
    batch, stats = first_batch(), channel_stats(open_source(DATA))
    mean, std = (torch.tensor(values)[:, None, None] for values in stats)
    images = (to_float(batch.images) - mean) / std
    errors = []
    for pair in range(8):
        shown = set(batch.mask.keep[pair].tolist())
        assert set(batch.mask.keep[pair + 8].tolist()) == set(range(16)) - shown
        first, second = predict_pair(images[pair], images[pair + 8], shown, weights)
        for image, found in ((pair, first), (pair + 8, second)):
            assert sorted(found) == batch.mask.masked[image].tolist()
            for place, prediction in found.items():
                wanted = patch_of(images[image], place).permute(1, 2, 0).flatten()
                wanted = (wanted - wanted.mean()) / (wanted.var() + 1e-6).sqrt()
                errors.append((prediction - wanted).square().mean())
    assert len(errors) == 16 * 8
    assert results["loss"] == pytest.approx(torch.stack(errors).mean().item(), rel=1e-4)
    assert (tmp_path / "run" / PICTURE).exists()


def test_masked_attention_would_be_mae() -> None:
    """What the layout's explanation says: two images that may not attend to each other are MAE's at a ratio of 0.5."""
    model = make_model("mae", make_vit(), 7).eval()
    weights, images = dict(model.state_dict()), torch.randn(2, 3, 16, 16)
    mask = pair_mask(random_mask(draw_from(torch.Generator().manual_seed(0), 2), 16, 0.5))
    owner = torch.tensor([0, 1] + [0 if place in mask.keep[0].tolist() else 1 for place in range(16)])
    mixed = [weights["encoder.cls_token"][0, 0] + weights["encoder.pos_embed"][0, 0]] * 2
    mixed += [embedded(images[image], place, weights) for place, image in enumerate(owner[2:].tolist())]
    x = encoded(mixed, weights, owner[:, None] == owner[None])
    predictions = model(images, mask)
    for image in range(2):
        found = decoded(x[image], {place: x[2 + place] for place in mask.keep[image].tolist()}, weights)
        wanted = torch.stack([found[place] for place in mask.masked[image].tolist()])
        torch.testing.assert_close(predictions[image], wanted, rtol=1e-4, atol=1e-5)


def test_masked_pixels_are_not_seen_and_partners_are() -> None:
    model, images = make_model("mixmae", make_vit(), 7), torch.randn(4, 3, 16, 16, requires_grad=True)
    mask = pair_mask(random_mask(draw_from(torch.Generator().manual_seed(0), 4), 16, 0.5))
    model(images, mask)[0].square().sum().backward()  # of the first image
    assert images.grad is not None
    gradient = images.grad.reshape(4, 3, 4, 4, 4, 4).permute(0, 2, 4, 1, 3, 5).reshape(4, 16, -1)  # (B, N, C·p·p)
    for image, partner in ((0, True), (1, False), (2, True), (3, False)):
        assert not gradient[image][mask.masked[image]].any()
        assert (gradient[image][mask.keep[image]].abs().sum(1) > 0).all() == partner


def test_everything_learned_has_a_gradient_and_the_embedding_does_not_decay() -> None:
    model = make_model("mixmae", make_vit(), 7)
    mask = pair_mask(random_mask(draw_from(torch.Generator().manual_seed(0), 4), 16, 0.5))
    model(torch.randn(4, 3, 16, 16), mask).square().sum().backward()
    learned = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in learned.values())
    still = [group for group in parameter_groups(model) if group["weight_decay"] == 0]
    assert any(parameter is learned["mix_embed"] for group in still for parameter in group["params"])


def test_pairs_are_the_same_on_any_number_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def pairs(ranks: int) -> dict[tuple[int, int], list[int]]:
        found: dict[tuple[int, int], list[int]] = {}
        monkeypatch.setattr("clustermim.training.randomness.world_size", lambda: ranks)
        for rank in range(ranks):
            monkeypatch.setattr("clustermim.training.randomness.rank", lambda rank=rank: rank)
            seen: list[Any] = []
            collator = MaskedCollator((4, 4), Masking(mask_ratio=0.5), layout="mixmae")

            def view(batch: Any, random: Any, seen: list[Any] = seen, collator: Any = collator) -> MaskedBatch:
                seen.append(batch.indices.tolist())
                return collator(batch, random)

            made = next(SeededBatches(open_source(DATA), 16 // ranks, 0, view).make(0, 0))
            half = 8 // ranks
            for b in range(half):
                found[seen[0][b], seen[0][b + half]] = made.mask.keep[b].tolist()
        return found

    assert len(pairs(1)) == 8
    assert pairs(1) == pairs(2) == pairs(4)


@pytest.mark.parametrize("fraction", [0.0, 0.5])
def test_an_image_without_a_partner_is_left_out(fraction: float) -> None:
    """Files can become unreadable in the middle of an epoch."""
    batch = first_batch(Masking(mask_ratio=0.5, predict_fraction=fraction), batch_size=7)
    assert len(batch.images) == len(batch.mask.keep) == len(batch.mask.masked) == 6
    assert batch.mask.masked.shape[1] == (4 if fraction else 8)
    for b in range(3):
        assert sorted([*batch.mask.keep[b].tolist(), *batch.mask.keep[b + 3].tolist()]) == list(range(16))


@pytest.mark.parametrize("words", [("--masking", "block"), ("--mask-patch-size", "2"), ("--predict-fraction", "0.5")])
def test_other_masks(words: tuple[str, ...], tmp_path: Path) -> None:
    assert run(tmp_path / "run", "--epochs", "1", "--batch-size", "14", *words, data=DATA.replace("16", "15")) == 0
    assert (tmp_path / "run" / PICTURE).exists()  # of 15 images 8 are drawn


def test_a_picture_of_an_odd_number_of_images(tmp_path: Path) -> None:
    assert run(tmp_path / "run", "--epochs", "1", "--batch-size", "2", data=DATA.replace("16", "5")) == 0
    assert (tmp_path / "run" / PICTURE).exists()


def test_one_epoch_and_one_more_give_the_same_bytes(tmp_path: Path) -> None:
    words = ("--epochs", "2", "--batch-size", "8", "--drop-path", "0.2", "--accumulate", "2")
    assert run(tmp_path / "whole", *words) == 0
    assert run(tmp_path / "part", *words, "--stop-after", "1") == 0
    assert run(tmp_path / "part", *words, "--resume") == 0
    for file in ("encoder.safetensors", "decoder.safetensors", "metrics.jsonl", "config.yaml"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "part" / file).read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--mask-ratio 0.75", "needs as many visible as masked patches, not 4 and 12: --mask-ratio 0.5"),
        ("--mask-ratio 0.6", "not 6 and 10"),
        ("--batch-size 15", "mixes pairs of images, and 15 at a time are odd: change --batch-size or --accumulate"),
        ("--batch-size 12 --accumulate 4", "and 3 at a time are odd"),
        ("--uniformity 0.01", "--uniformity is for --layout mae, whose decoder reads the class token, not mixmae"),
    ],
)
def test_bad_input(words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "run", *words.split()) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_an_odd_number_of_patches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "run", data="textures:?images=16&grid=3&patch=4") == 2
    assert "not 4 and 5: --mask-ratio 0.5, and an even number of patches" in capsys.readouterr().err.splitlines()[-1]
