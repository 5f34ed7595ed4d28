"""Scores that draw images again, and that read tokens with an untrained encoder."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_squared_error

from clustermim.data import open_source, to_float
from clustermim.models.vit import TokenViT
from clustermim.patches import patchify
from clustermim.scores import score
from clustermim.scores.collect import Tokens
from clustermim.scores.networks import untrained_features
from clustermim.scores.tcas import TCASVariant
from clustermim.tokenizers import KMeansTokenizer, LearnedTokenizer, RandomTokenizer

SOURCE = "textures:?images=40&grid=4&patch=4&channels=3&classes=3&noise=0.4"


def test_psnr_is_that_of_patches_replaced_by_their_centres() -> None:
    source = open_source(SOURCE)
    tokenizer = KMeansTokenizer(7, 4).fit(source)
    images = to_float(source.read(np.arange(40)).images)
    patches = patchify(images, 4).flatten(0, 1)
    centres = tokenizer.centers_[tokenizer(images).flatten()]
    expected = -10 * math.log10(mean_squared_error(patches.numpy(), centres.numpy()))
    assert score(tokenizer, source, scores=["psnr"]).values["psnr"] == pytest.approx(expected, abs=1e-3)


def test_psnr_of_a_decoder_is_what_it_measured_itself() -> None:
    source = open_source(SOURCE)
    tokenizer = LearnedTokenizer("vq", k=8, patch_size=4, width=12, depth=1).fit(source, epochs=1, batch_size=20)
    assert score(tokenizer, source, scores=["psnr"]).values["psnr"] == pytest.approx(tokenizer.psnr_, abs=1e-3)


def test_tokens_without_pictures_have_no_psnr() -> None:
    source = open_source(SOURCE)
    found = score(RandomTokenizer(5, 4).fit(source), source, scores=["psnr"])
    assert math.isnan(found.values["psnr"])
    assert "no pictures" in found.notes["psnr"]


def test_an_untrained_encoder_reads_tokens_with_their_places() -> None:
    source = open_source(SOURCE)
    tokens = Tokens(KMeansTokenizer(7, 4).fit(source), source, TCASVariant())
    before = torch.random.get_rng_state()
    found = untrained_features(tokens)
    assert torch.equal(before, torch.random.get_rng_state())  # nothing else is drawn otherwise
    torch.manual_seed(0)
    reader = TokenViT.of_size("7:micro", (16, 16), 4).eval()
    with torch.no_grad():
        expected = reader(tokens.sample[0])[:, 1:].mean(1).double().numpy()
    expected -= expected.mean(0)
    assert found @ found.T == pytest.approx(expected @ expected.T, abs=1e-6)
