"""What a user can get wrong from Python gets one line and a type of its own, never a TypeError from inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import clustermim as cm
from clustermim.errors import ConfigError, DataError, RunError, TeacherError, TokenizerError, UserError

IMAGES = np.random.default_rng(0).integers(0, 256, (64, 8, 8, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def source() -> Any:
    return cm.from_arrays(IMAGES, np.arange(64) % 4, channels="last")


@pytest.fixture(scope="module")
def tokenizer(source: Any) -> Any:
    return cm.KMeansTokenizer(k=8, patch_size=4).fit(source)


@pytest.mark.parametrize("thing", [torch.zeros(4, 3, 8, 8), IMAGES, 3, None, object(), [1, 2]])
def test_what_is_no_source(thing: Any, tokenizer: Any) -> None:
    for use in (cm.open, cm.KMeansTokenizer(k=2, patch_size=4).fit, lambda x: cm.score(tokenizer, x), cm.pretrain):
        with pytest.raises(DataError) as refused:
            use(thing)
        assert "\n" not in str(refused.value)
    if not np.isscalar(thing) and isinstance(thing, torch.Tensor | np.ndarray):
        assert "from_arrays" in str(refused.value)


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", str(tmp_path / "nothing"), f"folder:{tmp_path}/nothing"):
        with pytest.raises(DataError, match="nothing"):
            cm.open(path)
    with pytest.raises(TokenizerError, match="there is no tokenizer folder"):
        cm.load_tokenizer(tmp_path / "nothing")
    with pytest.raises(RunError, match="nothing"):
        cm.load_encoder(tmp_path / "nothing")


def test_labels_of_the_wrong_length() -> None:
    with pytest.raises(DataError, match="64 images need labels of shape"):
        cm.from_arrays(IMAGES, np.arange(63), channels="last")


def test_images_out_of_range(tokenizer: Any) -> None:
    with pytest.raises(DataError, match=r"\[0, 1\]"):
        cm.from_arrays(IMAGES.astype(np.float32), channels="last")
    for images in (torch.full((1, 3, 8, 8), 1.5), torch.full((1, 3, 8, 8), -1.0)):
        with pytest.raises(TokenizerError, match="for_normalized"):
            tokenizer(images)


def test_normalised_images_have_a_way(tokenizer: Any, source: Any) -> None:
    images = source.read([0, 1, 2]).images.float() / 255
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    normalised = (images - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    assert torch.equal(tokenizer.for_normalized(mean, std)(normalised), tokenizer(images))


def test_an_unfitted_tokenizer(source: Any) -> None:
    unfitted = cm.KMeansTokenizer(k=4, patch_size=4)
    for use in (
        lambda: unfitted(torch.zeros(1, 3, 8, 8)),
        lambda: cm.score(unfitted, source),
        lambda: cm.pretrain(source, target=unfitted),
    ):
        with pytest.raises(TokenizerError, match="not fitted"):
            use()


def test_a_patch_size_that_is_not_the_tokenizers(source: Any, tokenizer: Any) -> None:
    with pytest.raises(TokenizerError, match="patches of 4"):
        cm.pretrain(source, target=tokenizer, patch_size=2)


def test_targets_and_teachers_that_are_none(source: Any) -> None:
    for target in (3, None, object()):
        with pytest.raises(UserError):
            cm.pretrain(source, target=target)
    for teacher in (3, None, object()):
        with pytest.raises(TeacherError):
            cm.open_teacher(teacher)


def test_options_that_are_not_there(source: Any) -> None:
    with pytest.raises(ConfigError, match="no option 'epoch'; did you mean epochs"):
        cm.pretrain(source, target="pixels", epoch=3)


def test_evaluations_without_labels_or_encoder(source: Any, tokenizer: Any) -> None:
    encoder = cm.pretrain(source, target="pixels", epochs=1, batch_size=32)
    bare = cm.from_arrays(IMAGES, channels="last")
    for measure in (cm.linear_probe, cm.knn, cm.finetune):
        with pytest.raises(DataError, match="has no labels"):
            measure(encoder, bare, source)
        with pytest.raises(UserError):
            measure(3, source, source)
        with pytest.raises(UserError):
            measure(tokenizer, source, source)


def test_scores_without_labels_are_those_that_need_none(tokenizer: Any) -> None:
    found = cm.score(tokenizer, cm.from_arrays(IMAGES, channels="last"))
    assert "view_retrieval" in found.values
    assert "transferability" not in found.values
