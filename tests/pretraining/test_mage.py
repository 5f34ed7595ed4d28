"""MAGE: its masks, its loss by plain loops, the encoder with its tokenizer, exact resumption, bad input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import kstest, truncnorm
from torch import Tensor

import clustermim as cm
from clustermim.cli import main
from clustermim.data import open_source, to_float
from clustermim.drawing.reconstructions import PICTURE
from clustermim.errors import ConfigError, RunError, TeacherError, TokenizerError, UserError
from clustermim.models import build_backbone, make_model
from clustermim.models.masking import Mask, draw_from, mage_mask
from clustermim.pretraining import MaskedBatch, MaskedCollator, Masking, masked_values, token_accuracy
from clustermim.tokenizers import load_tokenizer
from clustermim.tokenizers.token_encoder import TokenEncoder
from clustermim.training import SeededBatches
from plain_vit import Weights, decoded, encoded

DATA = "textures:?images=16&grid=4&patch=4"
WORDS = ("--layout", "mage", "--mask-ratio", "0.55", "--batch-size", "16", "--device", "cpu")


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tokens") / "km"
    cm.KMeansTokenizer(k=12, patch_size=4).fit(DATA).save(folder)
    return str(folder)


def run(out: Path, *words: str) -> int:
    try:
        return main(["pretrain", "--data", DATA, "--out", str(out), *WORDS, *words])
    except SystemExit as stopped:  # of --stop-after
        return int(stopped.code or 0)


def draw(batch: int, patches: int, mean: float = 0.55) -> Mask:
    return mage_mask(draw_from(torch.Generator().manual_seed(0), batch), patches, mean)


@pytest.mark.parametrize("patches", [16, 15])
def test_masks(patches: int) -> None:
    mask = draw(50, patches)
    assert mask.shown is not None
    entering = patches // 2
    assert mask.keep.shape == (50, entering)
    assert torch.equal(mask.masked[:, :entering], mask.keep)
    assert torch.equal(mask.masked.sort(1).values, torch.arange(patches).expand(50, -1))
    assert not mask.shown[:, entering:].any()  # what is dropped is masked
    assert (mask.keep.diff(dim=1) > 0).all()
    moved = mask.to("meta")
    assert moved.shown is not None
    assert {part.device.type for part in moved if part is not None} == {"meta"}


def test_the_share_of_an_image_is_a_truncated_gaussian() -> None:
    mask = draw(4000, 1024)
    assert mask.shown is not None
    shares = (~mask.shown).double().mean(1).numpy() - 0.5 / 1024  # rounded up
    ends = np.array([0.5 - 0.55, 1 - 0.55]) / 0.25
    assert kstest(shares, truncnorm(*ends, loc=0.55, scale=0.25).cdf).pvalue > 0.01
    assert (shares >= 0.5 - 1e-3).all()


def predicted(ids: Tensor, keep: list[int], shown: set[int], weights: Weights) -> dict[int, Tensor]:
    """Scores of the masked tokens of one image by place."""
    positions = weights["encoder.pos_embed"][0]
    sequence = [weights["encoder.cls_token"][0, 0] + positions[0]]
    for place in keep:
        known = weights["encoder.patch_embed.weight"][ids[place]]
        sequence.append((known if place in shown else weights["token_mask_token"][0, 0]) + positions[1 + place])
    x = encoded(sequence, weights)
    return decoded(x[0], {place: x[1 + i] for i, place in enumerate(keep) if place in shown}, weights)


def first_batch() -> MaskedBatch:
    """What the first step of a run with seed 0 sees."""
    collator = MaskedCollator((4, 4), Masking(mask_ratio=0.55), layout="mage")
    return next(iter(SeededBatches(open_source(DATA), 16, 0, collator, "crop").make(0, 0)))


def test_the_loss_of_the_first_step(tokens: str, tmp_path: Path) -> None:
    assert run(tmp_path / "run", "--epochs", "1", "--tokenizer", tokens, "--label-smoothing", "0.1") == 0
    results = json.loads((tmp_path / "run" / "summary.json").read_text())["results"]
    torch.manual_seed(0)
    weights = dict(make_model("mage", build_backbone("tokens:12:micro", (16, 16), 4, 3), 12).state_dict())
    batch = first_batch()
    ids, mask, losses, right = load_tokenizer(tokens)(to_float(batch.images)), batch.mask, [], []
    assert mask.shown is not None
    for image in range(16):
        shown = set(mask.masked[image][mask.shown[image]].tolist())
        found = predicted(ids[image], mask.keep[image].tolist(), shown, weights)
        assert sorted(found) == sorted(set(range(16)) - shown)
        for place, scores in found.items():
            logs = scores - scores.exp().sum().log()
            losses.append(-0.9 * logs[ids[image][place]] - 0.1 * logs.mean())
            right.append(float(scores.argmax() == ids[image][place]))
    assert 16 * 8 <= len(losses) < 16 * 16
    assert results["loss"] == pytest.approx(torch.stack(losses).mean().item(), rel=1e-5)
    assert results["accuracy"] == pytest.approx(np.mean(right), abs=1e-6)
    assert (tmp_path / "run" / PICTURE).exists()


def test_hidden_tokens_are_not_seen() -> None:
    torch.manual_seed(0)
    model, mask = make_model("mage", build_backbone("tokens:12:micro", (16, 16), 4, 3), 12).eval(), draw(8, 16)
    assert mask.shown is not None
    ids = torch.randint(12, (8, 16))
    hidden = torch.zeros(8, 16, dtype=torch.bool).scatter(1, mask.masked, ~mask.shown)
    before = model(ids, mask)
    assert torch.equal(model(torch.where(hidden, (ids + 1) % 12, ids), mask), before)
    some = mask.shown.any(1)
    assert some.any()
    assert (model(torch.where(hidden, ids, (ids + 1) % 12), mask) - before)[some].abs().amax((1, 2)).min() > 0


def test_everything_learned_has_a_gradient() -> None:
    model = make_model("mage", build_backbone("tokens:12:micro", (16, 16), 4, 3), 12)
    model(torch.randint(12, (8, 16)), draw(8, 16)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert not parameter.requires_grad or (parameter.grad is not None and parameter.grad.abs().sum() > 0), name


def test_shown_patches_do_not_count() -> None:
    mask = Mask(torch.tensor([[0, 2]]), torch.tensor([[0, 2, 1, 3]]), torch.tensor([[True, False, False, False]]))
    values = masked_values(torch.tensor([[5, 6, 7, 8]]), mask)
    assert values.tolist() == [[-100, 7, 6, 8]]
    scores = torch.nn.functional.one_hot(torch.tensor([[5, 7, 6, 1]]), 9).float()
    assert token_accuracy(scores, values).item() == pytest.approx(2 / 3)


def test_the_encoder_carries_its_tokenizer(tokens: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, options = tmp_path / "run", {"layout": "mage", "epochs": 1, "batch_size": 16, "device": "cpu"}
    encoder = cm.pretrain(DATA, load_tokenizer(tokens), out=out, **options)
    again, images = cm.load_encoder(out), torch.rand(2, 3, 16, 16)
    assert isinstance(encoder, TokenEncoder)
    assert isinstance(again, TokenEncoder)
    assert torch.equal(again(images), encoder(images))
    assert again(images).shape == (2, 17, 128)
    ids = load_tokenizer(tokens)(images)
    assert torch.equal(again.backbone(ids), again(images))
    assert cm.load_encoder(again) is again
    assert {path.suffix for path in (out / "tokenizer").iterdir()} == {".json", ".safetensors"}
    for words in (("probe",), ("knn", "--k", "5")):
        assert main([*words, str(out), "--data", DATA, "--test-data", DATA]) == 0
    capsys.readouterr()
    for refused in (f"finetune {out} --data {DATA} --test-data {DATA}", f"export {out} --to timm"):
        assert main([*refused.split(), "--out", str(tmp_path / "other")]) == 2
        assert "error: tokens:12:micro " in capsys.readouterr().err
        assert not (tmp_path / "other").exists()
    with pytest.raises((ConfigError, TeacherError), match="reads tokens, not images"):
        cm.open_teacher(f"run:{out}")(images, (4, 4))
    (out / "tokenizer" / "tokenizer.json").unlink()
    with pytest.raises((RunError, TokenizerError)):
        cm.load_encoder(out)


def test_one_epoch_and_one_more_give_the_same_bytes(tokens: str, tmp_path: Path) -> None:
    words = ("--tokenizer", tokens, "--epochs", "2", "--batch-size", "8", "--drop-path", "0.2", "--accumulate", "2")
    assert run(tmp_path / "whole", *words) == 0
    assert run(tmp_path / "part", *words, "--stop-after", "1") == 0
    assert run(tmp_path / "part", *words, "--resume") == 0
    for file in ("encoder.safetensors", "decoder.safetensors", "metrics.jsonl", "tokenizer/tokenizer.safetensors"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "part" / file).read_bytes()


def test_cached_tokens_give_the_same(tokens: str, tmp_path: Path) -> None:
    for name, value in (("a", "false"), ("b", "true")):
        words = ("--tokenizer", tokens, "--epochs", "1", "--augment", "none", "--cache-tokens", value)
        assert run(tmp_path / name, *words) == 0
    first, second = ((tmp_path / name / "encoder.safetensors").read_bytes() for name in "ab")
    assert first == second


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--target pixels", "--layout mage reads tokens, which follow from the image alone: not pixels"),
        ("--masking block", "--layout mage has masks of its own, around --mask-ratio"),
        ("--predict-fraction 0.5", "--layout mage has masks of its own, around --mask-ratio"),
        ("--mask-ratio 1.5", "a mask ratio lies between 0 and 1, not 1.5"),
        ("--uniformity 0.01", "--uniformity is for --layout mae"),
        ("--label-smoothing 1", "--label-smoothing 1.0 is no share"),
        ("--target pixels --layout mae --label-smoothing 0.1", "--label-smoothing is for --target tokens, not pixels"),
        (
            "--model tokens:9:micro --layout mae",
            "--layout mae is not for TokenViT: mage reads tokens, all others images",
        ),
        ("--model tokens:micro --layout mae", "tokens:micro does not say how many tokens there are"),
    ],
)
def test_bad_input(words: str, message: str, tokens: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = () if "pixels" in words else ("--tokenizer", tokens)
    assert run(tmp_path / "run", *words.split(), *more) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_tokenizers_that_an_encoder_cannot_carry() -> None:
    oracle = cm.LabelTokenizer(patch_size=4).fit(DATA)
    with pytest.raises(UserError, match="which follow from the image alone"):
        cm.pretrain(DATA, oracle, layout="mage", epochs=1, batch_size=16, device="cpu")
