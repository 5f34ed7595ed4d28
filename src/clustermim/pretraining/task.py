"""Masked image modelling as a task: predict a target of the masked patches."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from safetensors.torch import save
from torch import Tensor, nn

from clustermim.data import Batch, Source, channel_stats, to_float
from clustermim.data.augment import Augment
from clustermim.data.randomness import ImageRandom
from clustermim.data.remembered import Numbers
from clustermim.data.statistics import ChannelStats
from clustermim.data.transforms import normalize
from clustermim.distributed import all_reduce_sum, rank, world_size
from clustermim.errors import ConfigError
from clustermim.evaluation.features import check_shape
from clustermim.files import write_atomic
from clustermim.models.encoder import Encoder
from clustermim.models.masking import Mask
from clustermim.models.mim import Layout, MaskedModel
from clustermim.models.vit import Block
from clustermim.patches import select
from clustermim.pretraining.masked_batch import MaskedBatch, MaskedCollator
from clustermim.pretraining.watching import Watch
from clustermim.progress import log_info, track
from clustermim.runs import Run
from clustermim.targets import UNMASKED, Target, TokenTarget
from clustermim.tokenizers.token_encoder import TokenEncoder
from clustermim.tokenizers.usage import remember_ids
from clustermim.training import Out, RunOptions, Schedule, Settings, Share, Task, TrainResult, fit

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class MaskedModeling(Task):
    """A masked model that learns to predict a target of the images of a source.

    Args:
        source: the images.
        target: what is predicted of each masked patch.
        model: an encoder in its layout.
        model_name: the text that builds its encoder.
        collator: makes masks.
        augment: what is done to the images before.
        uniformity: weight of the term of U-MAE.
        cache_tokens: compute the tokens, or values, of all images once.
    """

    name, base_lr = "pretrain", 1.5e-3
    blocks: type[nn.Module] | None = Block
    watch: Watch | None = None  # what is measured between epochs

    def __init__(
        self,
        source: Source,
        target: Target,
        model: MaskedModel,
        model_name: str,
        collator: MaskedCollator,
        augment: Augment = "none",
        uniformity: float = 0.0,
        cache_tokens: bool = False,
    ) -> None:
        if cache_tokens and augment != "none":
            raise ConfigError(f"--cache-tokens needs --augment none: under {augment} every view has its own")
        self.source, self.target, self.model, self.model_name = source, target, model, model_name
        self.collator, self.augment, self.uniformity, self.cache_tokens = collator, augment, uniformity, cache_tokens
        self.stats = channel_stats(source)

    @property
    def net(self) -> MaskedModel:
        """The encoder in its layout: the model, or the part of it that predicts."""
        return cast(MaskedModel, self.model)

    @property
    def inputs(self) -> dict[str, str]:
        watched = {"watch": self.watch.source.fingerprint} if self.watch else {}
        return {**super().inputs, "target": self.target.version(), **watched}

    def setup(self, settings: Settings, fabric: Fabric) -> None:
        if self.watch:
            check_shape(self.encoder([]), self.watch.source)
            self.blocks = None  # ranks that share a model out cannot look at it one by one
        check_uniformity(self.uniformity, self.net.layout, settings.images_per_batch)
        if self.net.layout == "mixmae" and (images := settings.images_per_batch) % 2:
            remedy = "change --batch-size or --accumulate"
            raise ConfigError(f"--layout mixmae mixes pairs of images, and {images} at a time are odd: {remedy}")
        self.target, self.batch_size = self.target.to(fabric.device), settings.images_per_batch

    def start(self) -> None:
        if self.cache_tokens:
            self.collator = replace(self.collator, tokens=all_tokens(self.target, self.source, self.batch_size))
        if self.watch and rank() == 0:
            self.watch.start()

    def after_epoch(self, epoch: int) -> dict[str, float]:
        looks = self.watch and rank() == 0 and epoch % self.watch.every == 0  # the other ranks wait at their next step
        return self.watch(self.encoder([])) if self.watch and looks else {}

    def save_epoch(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.encoder([]).save(folder)

    def view(self, batch: Batch, random: ImageRandom) -> MaskedBatch:
        return self.collator(batch, random)

    def step(self, model: nn.Module, batch: MaskedBatch) -> dict[str, Tensor]:
        return masked_loss(model, batch, self.target, self.stats, self.uniformity)

    def split(self, batch: MaskedBatch, parts: int) -> list[Share]:
        drops = any(isinstance(module, Block) and module.drop_path for module in self.net.modules())
        alone = self.net.layout in ("mae", "beit", "blank") and not self.net.encoder.coupled
        if not alone or self.uniformity or drops:
            return super().split(batch, parts)
        if batch.tokens is None:  # here, because nobody promises that a target may be called by two threads
            batch = batch._replace(tokens=self.target(to_float(batch.images), batch.labels))
        return [(len(part.images) / len(batch.images), part) for part in batch.split(parts)]

    def train(self, schedule: Schedule, out: Out, options: RunOptions) -> TrainResult:
        """Train to the end of a schedule; one of no epochs leaves the weights as a training would start with them."""
        if not schedule.epochs:
            return TrainResult(0, {}, 0.0, 0.0, 0.0, 0.0, 0.0, [])
        return fit(self, schedule, out, options=options)

    def encoder(self, history: list[dict[str, Any]]) -> Encoder:
        """The encoder as it is now, ready for evaluation."""
        parts = self.net.encoder, self.model_name, *self.stats, history
        if self.net.layout != "mage":
            return Encoder(*parts).eval()
        assert isinstance(self.target, TokenTarget)  # as checked
        return TokenEncoder(self.target.tokenizer, *parts).eval()

    def save(self, run: Run, result: TrainResult) -> None:
        """Write the encoder and the rest of the model into a run folder, and what the summary says."""
        if rank() == 0:
            self.encoder(result.history).save(run.folder)
            state = {key: value for key, value in self.net.state_dict().items() if not key.startswith("encoder.")}
            write_atomic(run.folder / "decoder.safetensors", save({k: v.cpu().contiguous() for k, v in state.items()}))
        parameters = sum(parameter.numel() for parameter in self.net.encoder.parameters())
        results: dict[str, Any] = {**result.summary(), "parameters": parameters}
        if self.watch:
            results["watch"] = watched_epochs(result.history)
        run.summary = {"results": results, "data": self.source.describe()}


def watched_epochs(history: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What was measured after each epoch, by its number: a study finds `watch.1.knn`."""
    found: dict[str, dict[str, Any]] = {}
    for line in history:
        values = {name.removeprefix("watch_"): line[name] for name in line if name.startswith("watch_")}
        if values:
            found[str(line["epoch"])] = values
    return found


def masked_loss(
    model: nn.Module, batch: MaskedBatch, target: Target, stats: ChannelStats, uniformity: float = 0.0
) -> dict[str, Tensor]:
    """The loss of one batch, on masked patches only; with a weight for uniformity, the term of U-MAE is added to it."""
    images, labels, mask, tokens = to_float(batch.images), *batch[1:]
    everything = target(images, labels) if tokens is None else tokens  # (B, N) or (B, N, dim)
    values = masked_values(everything, mask)  # (B, m) or (B, m, dim)
    inputs = model_inputs(images, everything, stats, mask)
    if uniformity:
        prediction, classes = model(inputs, mask, with_class=True)  # (B, m, dim), (B, D)
        similarity = mean_similarity(classes)
        result = {"loss": target.loss(prediction, values) + uniformity * similarity, "uniformity": similarity}
    else:
        prediction = model(inputs, mask)  # (B, m, dim)
        result = {"loss": target.loss(prediction, values)}
    if values.ndim == 2:
        result["accuracy"] = token_accuracy(prediction.detach(), values)
    return result


def model_inputs(images: Tensor, values: Tensor, stats: ChannelStats, mask: Mask) -> Tensor:
    """What a model sees of images (B, C, H, W): normalised images; or `values`, their ids (B, N), with MAGE's mask."""
    return normalize(images, stats.mean, stats.std) if mask.shown is None else values


def masked_values(values: Tensor, mask: Mask) -> Tensor:
    """The values (B, N) or (B, N, D) of the patches to predict: (B, m) or (B, m, D); `UNMASKED` where one is shown."""
    found = select(values, mask.masked)
    return found if mask.shown is None else found.masked_fill(mask.shown, UNMASKED)


def token_accuracy(prediction: Tensor, values: Tensor) -> Tensor:
    """The share of tokens (B, m) that scores (B, m, K) have right, among those that count."""
    return (prediction.argmax(-1) == values).sum() / (values != UNMASKED).sum()


def all_tokens(target: Target, source: Source, batch_size: int) -> Tensor:
    """Tokens (images, N) or values (images, N, dim) of the images as they are; zeros for unreadable ones.

    Each rank computes its share. Tokens that took long are kept in the cache, so that the next training has them.
    """
    device, found = next(target.buffers(), torch.empty(0)).device, None
    batches = source.batches(batch_size, rank=rank(), world_size=world_size())
    with kept_values(target, source) as known:
        for batch in track(batches, "targets", total=-(-len(source) // batch_size // world_size())):
            values = known(batch.indices, partial(target_values, target, batch, device))  # (B, N) or (B, N, dim)
            if found is None:
                kind = values.dtype if values.is_floating_point() else torch.int32
                found = torch.zeros(len(source), *values.shape[1:], dtype=kind)
                log_info(f"what is predicted of all images takes {found.nbytes / 1e6:,.0f} MB")
            found[batch.indices] = values.to(found.dtype)
    assert found is not None  # a source without a readable image has been refused
    return all_reduce_sum(found)


def target_values(target: Target, batch: Batch, device: torch.device) -> Tensor:
    """What is predicted of the images of a batch, on the CPU."""
    return target(to_float(batch.images.to(device)), batch.labels).cpu()  # type: ignore[no-any-return]


def kept_values(target: Target, source: Source) -> AbstractContextManager[Numbers]:
    """Tokens are kept in the cache; values, and the tokens of an oracle, are computed each time."""
    if isinstance(target, TokenTarget) and not target.needs_labels:
        return remember_ids(target.tokenizer, source)
    return nullcontext(lambda _, compute: compute())


def mean_similarity(features: Tensor) -> Tensor:
    """The mean over pairs i ≠ j of (zᵢᵀ zⱼ)², where z are the features (B, D) scaled to length 1; B ≥ 2.

    It is 1 where all point the same way and 0 where they are orthogonal. U-MAE's mean has the pairs i = j as well,
    which add a constant. Without them its expectation does not depend on the size of a batch, so that every rank and
    every accumulated part may compute its own.
    """
    z = F.normalize(features.float(), dim=1)
    squares = (z @ z.T).square()  # (B, B)
    pairs = len(z) * (len(z) - 1)
    return (squares.sum() - squares.diagonal().sum()) / pairs


def check_uniformity(weight: float, layout: Layout, images: int) -> None:
    """Refuse a weight that cannot be, or one that has no class tokens or no pairs of images to act on."""
    if not 0 <= weight < float("inf"):
        raise ConfigError(f"--uniformity {weight} is not a weight: 0 is off, and U-MAE's is 0.01")
    if weight and layout != "mae":
        raise ConfigError(f"--uniformity is for --layout mae, whose decoder reads the class token, not {layout}")
    if weight and images < 2:
        raise ConfigError(
            "--uniformity compares images, and here each is computed alone: raise --batch-size or lower --accumulate"
        )
