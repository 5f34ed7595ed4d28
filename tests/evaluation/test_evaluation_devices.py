"""Evaluation on the meta device, where every number that is read is an error, as are tensors that stayed on the CPU.

Mistakes that are put in must be noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clustermim.evaluation.features
import clustermim.evaluation.frozen as frozen
from clustermim.data import Source, open_source
from clustermim.errors import ConfigError
from clustermim.evaluation import FINETUNING, PROBING, FinetuneOptions, MixConfig, ProbeOptions, knn, linear_probe
from clustermim.evaluation.features import extract
from clustermim.evaluation.finetuning import FinetuneTask
from clustermim.evaluation.labels import LabelledTask, open_pair
from clustermim.evaluation.probing import ProbeTask
from clustermim.models.encoder import Encoder, load_encoder
from clustermim.training import SeededBatches, open_fabric
from one_device import OneDevice

META = torch.device("meta")
NOTICED = (RuntimeError, NotImplementedError)


@pytest.fixture
def encoder(save_micro: Callable[..., Path]) -> Encoder:
    return load_encoder(save_micro())


@pytest.fixture
def bright(save_bright: Callable[..., str]) -> Source:
    return open_source(save_bright(count=40))


def test_features_stay_on_their_device(encoder: Encoder, bright: Source) -> None:
    with OneDevice():
        found = extract(encoder, bright, 16, META)
    for features in found.values():
        assert features.values.device == features.labels.device == META
        assert (features.values.shape, features.labels.shape) == ((40, 128), (40,))


@pytest.mark.parametrize(
    "mistake",
    [
        lambda tokens: tokens.cpu(),
        lambda tokens: tokens * float(tokens.mean()),
        lambda tokens: tokens @ torch.eye(128),
        lambda tokens: tokens[torch.arange(len(tokens))],
    ],
)
def test_mistakes_in_features_are_noticed(
    mistake: Callable[[Tensor], Tensor], encoder: Encoder, bright: Source
) -> None:
    encoder.register_forward_hook(lambda _module, _images, tokens: mistake(tokens))
    with OneDevice(), pytest.raises(NOTICED):
        extract(encoder, bright, 16, META)


@pytest.mark.parametrize("temperature", [0.07, None])
def test_the_vote_stays_on_its_device(temperature: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen, "_CHUNK", 400)  # several blocks
    values, labels = torch.empty(50, 6, device=META), torch.empty(50, dtype=torch.int64, device=META)
    queries = torch.empty(20, 6, device=META)
    with OneDevice():
        assert frozen.vote(values, labels, queries, 5, temperature, 3).device == META
        assert {part.device for part in frozen.whiten(values, queries)} == {META}
        cpu = torch.zeros(50, 6), torch.zeros(50, dtype=torch.int64), torch.zeros(20, 6)
        for wrong in ((cpu[0], labels, queries), (values, cpu[1], queries), (values, labels, cpu[2])):
            with pytest.raises(NOTICED):
                frozen.vote(*wrong, 5, temperature, 3)


def test_the_objective_of_the_probe_stays_on_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen, "_LOGITS", 60)  # several blocks
    model, values = torch.empty(3, 7, device=META), torch.empty(50, 6, device=META)
    labels = torch.empty(50, dtype=torch.int64, device=META)
    with OneDevice():
        loss, gradient = frozen.objective(model, values, labels, 0.1)
        assert (loss.device, loss.shape, gradient.device, gradient.shape) == (META, (), META, (3, 7))
        assert frozen.predict(model, values).device == META
        cpu = torch.zeros(3, 7), torch.zeros(50, 6), torch.zeros(50, dtype=torch.int64)
        for wrong in ((cpu[0], values, labels), (model, cpu[1], labels), (model, values, cpu[2])):
            with pytest.raises(NOTICED):
                frozen.objective(*wrong, 0.1)


def prepared(kind: str, encoder: Encoder, source: Source) -> tuple[LabelledTask, tuple[Tensor, Tensor, list[int]]]:
    """A task on the meta device, and a batch for it."""
    data = open_pair(source, source)
    task: LabelledTask
    if kind == "probe":
        task = ProbeTask(encoder, data, ProbeOptions("mae"), PROBING)
        encoder.to(META)
    else:
        task = FinetuneTask(encoder, data, FinetuneOptions(layer_decay=0.75), MixConfig(randaugment_ops=0), FINETUNING)
    task.fabric = open_fabric("cpu", "32-true")  # for its autocast alone
    images, labels, seeds = next(SeededBatches(source, 16, 0, task.view, task.augment).make(0, 0))
    task.model.to(META)
    return task, (images.to(META), labels.to(META), seeds)


def take_step(task: LabelledTask, batch: tuple[Tensor, Tensor, list[int]]) -> Tensor:
    with OneDevice():
        loss = task.step(task.model, batch)["loss"]
        loss.backward()  # type: ignore[no-untyped-call]
        if isinstance(task, ProbeTask):
            task.optimizer(0.1, 0.0).step()  # LARS, which is ours
    return loss


@pytest.mark.parametrize("kind", ["probe", "finetune"])
def test_a_step_with_labels_stays_on_its_device(kind: str, encoder: Encoder, bright: Source) -> None:
    task, (images, labels, seeds) = prepared(kind, encoder, bright)
    for more in range(4):  # mixup and CutMix are drawn
        assert take_step(task, (images, labels, [seed + more for seed in seeds])).device == META


MISTAKES: dict[str, Callable[[Tensor], Tensor]] = {
    "moved to the CPU": lambda scores: scores.cpu(),
    "a constant of the CPU": lambda scores: scores + torch.zeros(2),
    "a matrix of the CPU": lambda scores: scores @ torch.eye(2),
    "a number read": lambda scores: scores * float(scores.detach().sum()),
}


@pytest.mark.parametrize("kind", ["probe", "finetune"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_a_step_are_noticed(mistake: str, kind: str, encoder: Encoder, bright: Source) -> None:
    task, batch = prepared(kind, encoder, bright)
    for module in task.model.modules():
        if isinstance(module, nn.Linear) and module.out_features == 2:
            module.register_forward_hook(lambda _module, _features, scores: MISTAKES[mistake](scores))
    with pytest.raises(NOTICED):
        take_step(task, batch)


def test_labels_that_stayed_on_the_cpu_are_noticed(encoder: Encoder, bright: Source) -> None:
    task, (images, labels, seed) = prepared("probe", encoder, bright)
    with pytest.raises(NOTICED):
        take_step(task, (images, torch.zeros(labels.shape, dtype=torch.int64), seed))


# where it is computed, from Python and the command line


class Recorder(nn.Module):
    """A network that notes where it is sent, and stays."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.sent = nn.Parameter(torch.ones(2)), list[str]()

    def to(self, *args: Any, **_: Any) -> Any:
        self.sent.append(str(args[0]))
        return self

    def forward(self, images: Tensor) -> Tensor:
        return images.mean(dim=(1, 2, 3))[:, None, None].expand(-1, 3, 2)


@pytest.mark.parametrize("measure", [knn, linear_probe])
def test_an_encoder_is_moved_and_put_back(
    measure: Callable[..., Any], bright: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Recorder()
    measure(network, bright, bright, device="cpu")
    assert network.sent == ["cpu"] * 3
    network.sent.clear()
    monkeypatch.setattr(clustermim.evaluation.features, "find_device", lambda device: META)
    with pytest.raises(NOTICED):  # the first number that is read says whether the features are finite
        measure(network, bright, bright)
    assert network.sent == ["meta", "cpu"]


@pytest.mark.parametrize("measure", [knn, linear_probe])
def test_naming_the_device_changes_nothing(measure: Callable[..., Any], encoder: Encoder, bright: Source) -> None:
    assert measure(encoder, bright, bright, device="cpu").to_dict() == measure(encoder, bright, bright).to_dict()


@pytest.mark.parametrize("stage", ["probe", "knn"])
def test_a_wrong_device_is_refused_first(stage: str, refuse: Callable[..., str], tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is there")
    measure: Callable[..., Any] = knn if stage == "knn" else linear_probe
    with pytest.raises(ConfigError, match=r"--device cuda is not available here; there are: .*cpu"):
        measure("nowhere", "nothing", "nothing", device="cuda")
    line = refuse(stage, tmp_path / "no", "--data", "nothing", "--test-data", "nothing", "--device", "cuda")
    assert "--device cuda is not available here" in line


def test_a_device_that_is_none() -> None:
    with pytest.raises(ConfigError, match="--device gpu is not available here"):
        knn("nowhere", "nothing", "nothing", device="gpu")  # type: ignore[arg-type]
