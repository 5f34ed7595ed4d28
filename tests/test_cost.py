"""What work costs: counted products against products counted by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import clustermim as cm
from clustermim.cost import add_cost, measure_cost
from clustermim.data import remembered
from clustermim.runs import read_summary
from clustermim.threads import in_threads


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


def test_a_measurement_inside_another_is_part_of_it() -> None:
    rows, before = torch.rand(4, 5, 7), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with measure_cost() as whole:
            rows[0] @ rows[0].T
            with measure_cost() as part:
                in_threads(lambda place: rows[place] @ rows[place].T, range(4))
    finally:
        torch.set_num_threads(before)
    assert part["flops"] == 4 * (2 * 5 * 7 * 5)
    assert whole["flops"] == 5 * (2 * 5 * 7 * 5)


def test_what_was_computed_before_counts_in_all_open_measurements() -> None:
    add_cost(7, 1.0)  # nobody counts
    with measure_cost() as whole:
        with measure_cost() as part:
            add_cost(10, 0.5)
        add_cost(1, 0.25)
    assert (part["flops"], whole["flops"]) == (10, 11)
    assert part["cpu_seconds"] >= 0.5
    assert whole["cpu_seconds"] >= 0.75


def test_tokens_that_the_cache_holds_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTERMIM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(remembered, "SECONDS", -1.0)
    data = "digits/train?limit=64"
    tokenizer = cm.KMeansTokenizer(8, 4).fit(data)
    sizes: list[int] = []
    asked = tokenizer.ids
    monkeypatch.setattr(tokenizer, "ids", lambda images, *labels: sizes.append(len(images)) or asked(images, *labels))
    for name in ("first", "second"):
        once = {"epochs": 1, "batch_size": 32, "augment": "none", "cache_tokens": True}
        cm.pretrain(data, tokenizer, **once, out=tmp_path / name)
    assert sum(size == 32 for size in sizes) == 2  # the two batches of the first training; an image tells their shape
    first, second = (read_summary(tmp_path / name)["results"] for name in ("first", "second"))
    assert first["flops"] == second["flops"] > 0
    assert first["loss"] == second["loss"]


def test_tokens_that_are_computed_once_are_counted(tmp_path: Path) -> None:
    data = "digits/train?limit=64"
    tokenizer = cm.KMeansTokenizer(8, 4).fit(data)
    for cached in (True, False):
        once = {"epochs": 1, "batch_size": 32, "augment": "none", "cache_tokens": cached}
        cm.pretrain(data, tokenizer, **once, out=tmp_path / str(cached))
    first, second = (read_summary(tmp_path / str(cached))["results"]["flops"] for cached in (True, False))
    assert first == second  # in one epoch, each image is looked at once
