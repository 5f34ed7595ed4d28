"""What work costs: counted products against products counted by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import clustermim as cm
from clustermim.runs import read_summary
from clustermim.threads import in_threads
from clustermim.training.cost import measure_cost


def test_products_forward_and_backward() -> None:
    images, weight = torch.rand(5, 7), torch.rand(3, 7, requires_grad=True)
    with measure_cost() as cost:
        F.linear(images, weight).sum().backward()
    assert cost["flops"] == 2 * (2 * 5 * 7 * 3)  # the product, and that of the weight's gradient
    assert cost["cpu_seconds"] >= 0


def test_attention_on_a_cpu_is_counted() -> None:
    q, k, v = (torch.rand(2, 3, 11, 8, requires_grad=True) for _ in range(3))
    with measure_cost() as forward:
        found = F.scaled_dot_product_attention(q, k, v)
    assert forward["flops"] == 2 * (2 * 2 * 3 * 11 * 11 * 8)  # scores, and their product with the values
    with measure_cost() as backward:
        found.sum().backward()
    assert backward["flops"] > forward["flops"]


def test_products_in_other_threads_are_counted() -> None:
    rows, before = torch.rand(4, 5, 7), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with measure_cost() as cost:
            found = in_threads(lambda part: rows[part] @ rows[part].T, range(4))
    finally:
        torch.set_num_threads(before)
    assert len(found) == 4
    assert cost["flops"] == 4 * (2 * 5 * 7 * 5)


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_training_costs_its_first_step_times_all(epochs: int, tmp_path: object) -> None:
    cm.pretrain("digits/train?limit=64", patch_size=4, epochs=epochs, batch_size=32, out=f"{tmp_path}/run")
    results = read_summary(f"{tmp_path}/run")["results"]
    cm.pretrain("digits/train?limit=64", patch_size=4, epochs=1, batch_size=32, out=f"{tmp_path}/one")
    assert results["flops"] == epochs * read_summary(f"{tmp_path}/one")["results"]["flops"] > 0
    assert results["cpu_seconds"] > 0


def test_tokens_that_are_computed_once_are_counted(tmp_path: Path) -> None:
    data = "digits/train?limit=64"
    tokenizer = cm.KMeansTokenizer(8, 4).fit(data)
    for cached in (True, False):
        once = {"epochs": 1, "batch_size": 32, "augment": "none", "cache_tokens": cached}
        cm.pretrain(data, tokenizer, **once, out=tmp_path / str(cached))
    first, second = (read_summary(tmp_path / str(cached))["results"]["flops"] for cached in (True, False))
    assert first == second  # in one epoch, each image is looked at once
