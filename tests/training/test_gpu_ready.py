"""The steps on the meta device, where a tensor that stayed on the CPU and every number read by Python are errors.

A GPU would compute the same with the first, slowly or not at all, and wait at the second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from clustermim.data import open_source, to_float
from clustermim.models.masking import Mask
from clustermim.pretraining import Architecture, MaskedModeling, Masking, Objective, make_task
from clustermim.targets import TargetOptions
from clustermim.targets.online import OnlineOptions
from clustermim.tokenizers import KMeansTokenizer, LearnedTokenizer, RandomProjectionTokenizer
from clustermim.tokenizers.nearest import nearest_center, nearest_of_few
from clustermim.training import Schedule, SeededBatches
from one_device import OneDevice

DATA = "textures:?images=64&grid=4&patch=4"
TARGETS: dict[str, Callable[[], Any]] = {
    "pixels": lambda: "pixels",
    "hog": lambda: "hog",
    "features": lambda: "hog:",
    "pixel": lambda: KMeansTokenizer(k=8, patch_size=4),
    "pixel-norm": lambda: KMeansTokenizer(k=8, patch_size=4, space="pixel-norm"),
    "pixel-white": lambda: KMeansTokenizer(k=8, patch_size=4, space="pixel-white"),
    "clustered-hog": lambda: KMeansTokenizer(k=8, patch_size=4, space="features", teacher="hog:"),
    "random-projection": lambda: RandomProjectionTokenizer(k=8, patch_size=4),
    "vq": lambda: LearnedTokenizer("vq", k=8, patch_size=4),
}


def prepared(target: str, **architecture: Any) -> tuple[MaskedModeling, Any]:
    """A task on the meta device, and a batch for it."""
    source, made = open_source(DATA), TARGETS[target]()
    more = {"schedule": Schedule(epochs=1, batch_size=32)} if target == "vq" else {}
    made = made if isinstance(made, str) else made.fit(source, **more)
    parts = Architecture(patch_size=4, **architecture), Masking(mask_ratio=0.5), TargetOptions(), Objective()
    task = make_task(source, made, *parts)
    batch = next(SeededBatches(source, 16, 0, task.view, task.augment).make(0, 0))
    task.model.to("meta")
    task.target = task.target.to(torch.device("meta"))
    moved = {"images": batch.images.to("meta"), "labels": None, "mask": batch.mask.to("meta")}
    return task, batch._replace(**moved)


def take_step(task: MaskedModeling, batch: Any) -> dict[str, Tensor]:
    with OneDevice():
        found = task.step(task.model, batch)
        found["loss"].backward()
        torch.nn.utils.clip_grad_norm_(task.model.parameters(), 1.0)
        torch.optim.AdamW(task.model.parameters(), foreach=True).step()
    return found


@pytest.mark.parametrize("target", TARGETS)
def test_a_step_of_pretraining_stays_on_its_device(target: str) -> None:
    task, batch = prepared(target)
    assert {value.device.type for value in take_step(task, batch).values()} == {"meta"}


@pytest.mark.parametrize("layout", ["beit", "blank", "mixmae", "mage"])
def test_a_step_in_another_layout_stays_on_its_device(layout: str) -> None:
    task, batch = prepared("pixel", layout=layout)
    assert take_step(task, batch)["loss"].device.type == "meta"


@pytest.mark.parametrize("options", [{}, {"queue_images": 8}, {"positions_together": True, "whiten": 0}])
@pytest.mark.parametrize("layout", ["mae", "beit"])
def test_a_step_with_learning_clusters_stays_on_its_device(layout: Any, options: dict[str, Any]) -> None:
    source = open_source(DATA)
    parts = Architecture(patch_size=4, layout=layout), Masking(mask_ratio=0.5), TargetOptions(), Objective(), 0, None
    task = make_task(source, "online", *parts, OnlineOptions(prototypes=8, **options))
    batch = next(SeededBatches(source, 16, 0, task.view, task.augment).make(0, 0))
    task.model.to("meta").train()
    moved = batch._replace(images=batch.images.to("meta"), labels=None, mask=batch.mask.to("meta"))
    assert {value.device.type for value in take_step(task, moved).values()} == {"meta"}
    task.steps = 10  # type: ignore[attr-defined]
    with OneDevice():
        task.after_step(task.model, 1)


@pytest.mark.parametrize("mistake", ["a tensor of the CPU", "a number read"])
def test_mistakes_are_noticed(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task, batch = prepared("pixels")
    step = task.step

    def wrong(model: Any, views: Any) -> dict[str, Tensor]:
        found = step(model, views)
        if mistake == "a number read":
            return {"loss": found["loss"] * float(found["loss"].detach())}
        return {"loss": found["loss"] + torch.zeros(3).sum(0, keepdim=True)}

    monkeypatch.setattr(task, "step", wrong)
    with pytest.raises((RuntimeError, NotImplementedError)):
        take_step(task, batch)


def test_an_index_of_the_cpu_is_noticed() -> None:
    task, batch = prepared("pixels")
    kept = Mask(torch.zeros_like(batch.mask.keep, device="cpu"), batch.mask.masked)
    with pytest.raises((RuntimeError, NotImplementedError)):
        take_step(task, batch._replace(mask=kept))


def test_the_nearest_of_few_are_the_nearest() -> None:
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(50, 8, generator=generator)
    centers = torch.cat([centers, centers[:10], centers[:10] + 1e-7])  # ties and near ties
    vectors = torch.cat([torch.randn(2000, 8, generator=generator), centers])
    ids, _ = nearest_center(vectors, centers)
    middle = centers.mean(0)
    x, c = vectors - middle, centers - middle
    scores = torch.addmm(c.square().sum(1)[None], x, c.t(), alpha=-2)
    exact = (vectors.double()[:, None] - centers.double()).square().sum(2).gather(1, ids[:, None])
    found = (vectors.double()[:, None] - centers.double()).square().sum(2)
    few = nearest_of_few(x, c, scores)
    assert torch.allclose(found.gather(1, few[:, None]), exact, atol=1e-9)


def test_a_step_with_learning_clusters_compiles_without_a_break() -> None:
    torch.compiler.reset()
    source = open_source(DATA)
    parts = Architecture(patch_size=4), Masking(mask_ratio=0.5), TargetOptions(), Objective(), 0, None
    task = make_task(source, "online", *parts, OnlineOptions(prototypes=8, queue_images=4))
    task.target.start(source, 0)  # type: ignore[attr-defined]
    batch = next(SeededBatches(source, 8, 0, task.view).make(0, 0))
    model = torch.compile(task.model.eval(), fullgraph=True, backend="eager")
    loss = task.step(model, batch)["loss"]
    loss.backward()
    assert torch.allclose(loss, task.step(task.model, batch)["loss"])
    task.step(model.train(), batch)["loss"].backward()


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("layout", ["mae", "beit", "blank", "mixmae", "mage"])
@pytest.mark.parametrize("target", ["pixels", "pixel"])
def test_a_step_compiles_without_a_break(target: str, layout: Any, checkpointed: bool) -> None:
    if (target, layout) == ("pixels", "mage"):
        pytest.skip("MAGE predicts tokens only")
    torch._dynamo.reset()  # type: ignore[no-untyped-call]  # else every case counts as a recompilation of the last
    source, made = open_source(DATA), TARGETS[target]()
    made = made if isinstance(made, str) else made.fit(source)
    architecture = Architecture(patch_size=4, layout=layout, checkpoint_activations=checkpointed)
    task = make_task(source, made, architecture, Masking(mask_ratio=0.5), TargetOptions(), Objective())
    batch = next(SeededBatches(source, 8, 0, task.view).make(0, 0))
    if target != "pixels":  # on a CPU a tokenizer looks at its near ties: what it gives is an input here
        batch = batch._replace(tokens=task.target(to_float(batch.images)))
    torch.compiler.reset()  # it counts what other tests compiled
    loss = torch.compile(task.step, fullgraph=True, backend="eager")(task.model, batch)["loss"]
    loss.backward()
    assert torch.allclose(loss, task.step(task.model, batch)["loss"])
