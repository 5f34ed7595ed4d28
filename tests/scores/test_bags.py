"""Bags of tokens: counts by hand, a peer's naive Bayes, tokens that know the class, the image, or nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score
from sklearn.naive_bayes import MultinomialNB
from torch import Tensor

from clustermim.scores import bags as module
from clustermim.scores.bags import bag_accuracy, bags, class_counts, retrieval


def draw(images: int, patches: int, size: int, seed: int = 0) -> Tensor:
    return torch.randint(0, size, (images, patches), generator=torch.Generator().manual_seed(seed))


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 4), st.integers(1, 3), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_counts_by_hand(images: int, patches: int, size: int, classes: int, seed: int) -> None:
    ids, labels = draw(images, patches, size, seed), draw(images, 1, classes, seed + 1)[:, 0]
    expected = torch.zeros(classes, size, dtype=torch.long)
    for row, label in zip(ids.tolist(), labels.tolist(), strict=True):
        for token in row:
            expected[label, token] += 1
    assert torch.equal(class_counts(ids, labels, size, classes), expected)
    assert torch.equal(bags(ids, size).sum(0).long(), expected.sum(0))


def test_the_classifier_is_that_of_a_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all tokens are equally frequent, the prior is the same number for each token and class: Laplace's."""
    monkeypatch.setattr(module, "PRIOR", 6)
    labels = torch.arange(60) % 3
    ids = (labels[:, None] + draw(60, 4, 2)) % 6
    counts = class_counts(ids, labels, 6, 3)
    counts[0] += counts.sum(0).max() - counts.sum(0)  # every token equally frequent
    peer = MultinomialNB(alpha=1.0, fit_prior=False)
    peer.fit(counts.numpy(), np.arange(3))
    fresh = draw(200, 4, 6, seed=5)
    reported = draw(200, 1, 3, seed=6)[:, 0]
    expected = balanced_accuracy_score(reported.numpy(), peer.predict(bags(fresh, 6).numpy()))
    assert bag_accuracy(fresh, reported, counts) == pytest.approx(expected)


def test_tokens_of_the_class_and_tokens_of_nothing() -> None:
    labels = torch.arange(400) % 4
    ids = labels[:, None].expand(-1, 5)
    assert bag_accuracy(ids, labels, class_counts(ids, labels, 4, 4)) == 1
    blind = draw(400, 16, 4, seed=1)
    assert bag_accuracy(blind, labels, class_counts(draw(400, 16, 4), labels, 4, 4)) == pytest.approx(0.25, abs=0.08)
    nothing = torch.zeros(4, 4, dtype=torch.long)
    assert bag_accuracy(ids, labels, nothing) == 0.25  # the first class, of all


def test_classes_of_which_nothing_was_seen_do_not_compete() -> None:
    """Labels may begin at 1, and a part of ImageNet may keep the numbers of its classes."""
    labels = torch.arange(600) % 2
    ids = torch.where(draw(600, 16, 3, seed=1) == 0, labels[:, None] * 5, 0) + draw(600, 16, 5)
    counts = class_counts(ids, labels, 10, 2)
    more = class_counts(ids, labels + 3, 10, 9)
    assert bag_accuracy(ids, labels + 3, more) == bag_accuracy(ids, labels, counts) > 0.6


def test_an_image_with_tokens_of_its_own_is_recognised() -> None:
    own = torch.arange(20)[:, None].expand(-1, 3)
    frequencies = torch.full((20,), 6)
    assert retrieval(own, own, frequencies) == 1
    assert retrieval(own, own.roll(1, 0), frequencies) == 0
    assert retrieval(own * 0, own * 0, frequencies) == pytest.approx(1 / 20)  # all alike: one of them is drawn


def test_rare_tokens_weigh_more() -> None:
    """Both right halves share a token with the left half of the first image: one the rare, one the frequent."""
    left, right = torch.tensor([[0, 1], [1, 1]]), torch.tensor([[0, 2], [1, 2]])
    assert retrieval(left, right, torch.tensor([1, 100, 1])) == 1
    assert retrieval(left, right, torch.tensor([100, 1, 1])) == 0.5


@given(st.integers(2, 12), st.integers(1, 4), st.integers(2, 5), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_names_of_tokens_and_order_of_images_do_not_matter(images: int, patches: int, size: int, seed: int) -> None:
    first, second = draw(images, patches, size, seed), draw(images, patches, size, seed + 1)
    frequencies = torch.bincount(torch.cat([first, second]).flatten(), minlength=size)
    generator = torch.Generator().manual_seed(seed)
    names, order = torch.randperm(size, generator=generator), torch.randperm(images, generator=generator)
    renamed = torch.empty(size, dtype=torch.long)
    renamed[names] = frequencies
    found = retrieval(first, second, frequencies)
    assert 0 <= found <= 1
    assert retrieval(names[first][order], names[second][order], renamed) == pytest.approx(found, abs=1e-6)
