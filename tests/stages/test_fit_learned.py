"""The stages that train tokenizers: a real short training of every kind, exact resumption, and what bad input gets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from clustermim.cli import main
from clustermim.data import open_source, to_float
from clustermim.errors import ConfigError, UserError
from clustermim.tokenizers import LearnedTokenizer, learning, load_tokenizer
from clustermim.tokenizers.learning import AuxiliaryLosses, Learner
from clustermim.tokenizers.quantizers import QUANTIZERS
from clustermim.tokenizers.usage import measure_use, use_of, warn_unused

DATA = "textures:?images=96&grid=4&patch=4"
TEACHER = "random:micro?image=16&patch=4&layer=1"
SMALL = ("--k", "16", "--patch-size", "4", "--width", "12", "--depth", "1", "--batch-size", "32", "--device", "cpu")
FILES = ("tokenizer.safetensors", "tokenizer.json", "metrics.jsonl", "config.yaml", "reconstructions.png")


def run(*words: str | Path) -> int:
    """The exit code, also of a run that stops early."""
    try:
        return main([str(word) for word in words])
    except SystemExit as stopped:
        return int(stopped.code or 0)


def fit(kind: str, out: Path, *words: str) -> int:
    """Train on a few textures."""
    teacher = ("--teacher", TEACHER) if kind in ("peco", "vqkd") else ()
    return run("fit", kind, "--data", DATA, "--out", out, *SMALL, *teacher, *words)


def learner(kind: str, extras: AuxiliaryLosses | None = None) -> Learner:
    tokenizer = LearnedTokenizer(kind, k=16, patch_size=4, width=12, depth=1, quantizer={"code_dim": 6})
    torch.manual_seed(0)
    return Learner(tokenizer.initialize(open_source(DATA)), 10, extras or AuxiliaryLosses())


@pytest.mark.parametrize("kind", QUANTIZERS)
def test_every_kind(kind: str, tmp_path: Path) -> None:
    assert fit(kind, tmp_path / "run", "--epochs", "1") == 0
    results = json.loads((tmp_path / "run" / "summary.json").read_text())["results"]
    assert results["steps"] == 3
    assert results["measured_images"] == 96
    assert 0 < results["usage"] <= 1
    assert 1 <= results["perplexity"] <= results["usage"] * results["vocab_size"] + 1e-6
    assert kind == "vqkd" or 5 < results["psnr"] < 60
    terms = [results[name] for name in results if name in TERMS]
    assert results["loss"] == pytest.approx(sum(terms), rel=1e-4)
    assert len(terms) == {"fsq": 1, "vqgan": 4, "peco": 3}.get(kind, 2)
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last.get("psnr") == results.get("psnr")
    assert ("psnr" in last) == (kind != "vqkd")
    assert (tmp_path / "run" / "reconstructions.png").read_bytes().startswith(b"\x89PNG")
    tokenizer = load_tokenizer(tmp_path / "run")
    assert tokenizer.kind == kind
    ids = tokenizer(torch.rand(2, 3, 16, 16))
    assert ids.shape == (2, 16)
    assert int(ids.max()) < tokenizer.vocab_size == results["vocab_size"]


TERMS = ("reconstruction", "distillation", "commitment", "kl", "entropy", "perceptual", "discriminator", "generator")


def test_training_makes_reconstructions_better(tmp_path: Path) -> None:
    assert fit("vq", tmp_path / "run", "--epochs", "6", "--augment", "none", "--base-lr", "0.04") == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    scores = [line["psnr"] for line in lines]
    assert len(scores) == 6
    assert scores[-1] > scores[0] + 0.5


@pytest.mark.parametrize("kind", ["vq", "dvae", "vqgan", "vqkd"])
def test_two_epochs_and_two_more_give_the_same_bytes(kind: str, tmp_path: Path) -> None:
    words = ("--epochs", "4")
    assert fit(kind, tmp_path / "whole", *words) == 0
    assert fit(kind, tmp_path / "part", *words, "--stop-after", "2") == 0
    assert not (tmp_path / "part" / "summary.json").exists()
    assert not (tmp_path / "part" / "tokenizer.json").exists()
    assert fit(kind, tmp_path / "part", *words, "--resume") == 0
    for file in FILES:
        assert (tmp_path / "part" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes(), file


def test_random_projection(tmp_path: Path) -> None:
    words = ("--data", DATA, "--patch-size", "4", "--k", "9", "--seed", "2")
    for name in "ab":
        assert run("fit", "random-projection", *words, "--out", tmp_path / name) == 0
    results = json.loads((tmp_path / "a" / "summary.json").read_text())["results"]
    assert results["measured_images"] == 96
    source, tokenizer = open_source(DATA), load_tokenizer(tmp_path / "a")
    ids = tokenizer(to_float(source.read(range(96)).images))
    assert results["usage"] == pytest.approx(len(ids.unique()) / 9)
    for file in ("tokenizer.safetensors", "tokenizer.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_measures_on_a_known_case() -> None:
    source, tokenizer = open_source(DATA), learner("vq").tokenizer
    images = to_float(source.read(range(96)).images)
    ids = tokenizer(images)
    counts = np.bincount(ids.flatten().numpy(), minlength=16)
    shares = counts[counts > 0] / counts.sum()
    found = measure_use(tokenizer, source)
    assert found["usage"] == pytest.approx((counts > 0).mean())
    assert found["perplexity"] == pytest.approx(np.exp(-(shares * np.log(shares)).sum()))
    error = (tokenizer.decode(ids.view(96, 4, 4)) - images).square().mean()
    assert found["psnr"] == pytest.approx(-10 * np.log10(float(error)), abs=1e-4)
    assert measure_use(tokenizer, source, limit=10)["measured_images"] == 10


def test_a_collapsed_codebook_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    for counts in ([1] * 4 + [0] * 16, [2, 1] + [0] * 14, [9]):  # a fifth of them; few patches; a single token
        warn_unused(use_of(torch.tensor(counts), 3), "a lower --k")
    assert not capsys.readouterr().err
    warn_unused(use_of(torch.tensor([40, 7] + [0] * 14), 3), "a lower --k")
    line = " ".join(capsys.readouterr().err.split())
    assert line == "warning: only 2 of the 16 tokens occur in 3 images: try a lower --k"


def test_schedules_count_steps_that_a_checkpoint_keeps() -> None:
    trained = learner("dvae")
    images = torch.rand(2, 3, 16, 16)
    assert float(trained(images)["kl"].detach()) == 0
    for _ in range(3):
        later = trained(images)
    assert int(trained.steps) == 4
    assert float(later["kl"].detach()) > 0
    assert "steps" in trained.state_dict()


def test_the_discriminator_waits_and_then_learns() -> None:
    trained = learner("vqgan", AuxiliaryLosses(discriminator_start=0.1))  # of ten steps: from the second on
    assert trained.discriminator is not None
    images = torch.rand(2, 3, 16, 16)
    first = trained(images)
    first["loss"].backward()
    assert float(first["discriminator"].detach()) == float(first["generator"].detach()) == 0
    assert all(p.grad is not None and not p.grad.any() for p in trained.discriminator.parameters())
    trained.zero_grad()
    second = trained(images)
    second["loss"].backward()
    assert float(second["discriminator"].detach()) > 0
    for layer in (trained.discriminator.first, trained.discriminator.second, trained.discriminator.score):
        assert layer.weight.grad is not None
        assert bool(layer.weight.grad.any())


def test_a_loss_that_is_not_finite_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "discriminator_loss", lambda *given: torch.tensor(torch.nan))
    tokenizer = LearnedTokenizer("vqgan", k=16, patch_size=4, width=12, depth=1)
    with pytest.raises(UserError, match=r"step 1 .*loss nan.*, discriminator nan; .*lower the learning rate"):
        tokenizer.fit(DATA, epochs=1, batch_size=32, discriminator_start=0.0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("lfq", "--k", "100"), "--k 100 is not a power of two"),
        (("vq", "--patch-size", "5"), "do not divide into patches of 5"),
        (("vq", "--k", "4000"), "--k 4000 is more than the 1536 patches of textures/train?images=96"),
        (("vq", "--batch-size", "500"), "96 images, fewer than a batch of 500"),
        (("dvae", "--temperature", "2"), "--temperature 2.0 is not above 0 and at most 1"),
        (("peco",), "fit peco needs --teacher"),
        (("peco", "--teacher", "random:micro?image=16&patch=4&channels=1"), "takes 1-channel images, these have 3"),
        (("vqkd",), "fit vqkd needs one --teacher, whose features it predicts, such as run:FOLDER?layer=4 or hog:"),
        (("vqkd", "--teacher", "hog:", "--teacher", "pixels:"), "fit vqkd needs one --teacher"),
        (("vqkd", "--teacher", "hog:?channels=1"), "takes 1-channel images, these have 3"),
        (
            ("vqkd", "--teacher", "hog:?cells=3"),
            "do not divide into 2×2 square patches of 2 pixels or more in 3×3 cells",
        ),
        (("vqkd", "--teacher", "hog:", "--depth", "0"), "an encoder needs depth ≥ 1"),
        (("vqgan", "--teacher", "nowhere"), "nowhere: there is no kind of teacher"),
        (("vqgan", "--discriminator-start", "2"), "--discriminator-start 2.0 is not a share of the training"),
        (("fsq", "--code-dim", "4"), "there is no option --code-dim"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input(words: tuple[str, ...], message: str, tmp_path: Path, refuse: Callable[..., str]) -> None:
    kind, *own = words
    assert message in refuse("fit", kind, "--data", DATA, "--out", tmp_path / "run", *SMALL, *own)
    assert not (tmp_path / "run").exists()


def test_a_training_that_breaks(tmp_path: Path, refuse: Callable[..., str]) -> None:
    words = ("--epochs", "3", "--base-lr", "1e36")
    line = refuse("fit", "fsq", "--data", DATA, "--out", tmp_path / "run", *SMALL, *words)
    assert "training broke at step" in line
    assert not (tmp_path / "run" / "summary.json").exists()


def test_extras_are_checked() -> None:
    with pytest.raises(ConfigError, match="--discriminator-start -1 is not a share"):
        AuxiliaryLosses(discriminator_start=-1)
