"""`pretrain`: an encoder that has learned to predict what is masked."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from clustermim.data import Source, channel_stats, open_source
from clustermim.data.augment import Augment
from clustermim.errors import ConfigError
from clustermim.models import Encoder, Layout, Positions, TimmBackbone, build_backbone, make_model
from clustermim.models.mim import MaskedModel
from clustermim.models.vit import Block
from clustermim.options import flat, flattened
from clustermim.patches import DEFAULT_PATCH_SIZE
from clustermim.pretraining.masked_batch import MaskedCollator, Masking
from clustermim.pretraining.online import OnlineModeling, check_layout, start_from, with_cosines
from clustermim.pretraining.task import MaskedModeling
from clustermim.pretraining.watching import make_watch
from clustermim.targets import ONLINE, TargetOptions, TokenTarget, check_options, make_target
from clustermim.targets.online import DEFAULT_PROTOTYPES, OnlineOptions, OnlineTarget
from clustermim.training import Out, RunOptions, Schedule, run_opener
from clustermim.training import init_from as load_weights

PUBLISHED = "published"  # what `init_from` says for the weights that timm offers
PRETRAINING = Schedule(base_lr=MaskedModeling.base_lr)


@dataclass(frozen=True)
class Architecture:
    """The model that is pretrained.

    Args:
        model: size of the encoder: micro, tiny, small, base, large or huge; or a network of timm, timm:NAME.
        patch_size: side of a patch in pixels; by default that of the tokenizer, and otherwise 4.
        layout: `mae` shows visible patches only to the encoder; `beit` shows it mask tokens too; `blank` shows it
            images whose masked patches have the mean colour; `mixmae` shows it two images mixed, half of each, so that
            the mask of an image depends on its partner in the batch; `mage` shows it tokens instead of pixels.
        positions: fixed sine and cosine, or learned.
        registers: learned tokens that the encoder has besides class token and patches, to note things in; DINOv2's are
            4, CAPI's 16. Its output leaves them out.
        drop_path: stochastic depth of the last block.
        decoder_width: width of the decoder, a multiple of 32; 0 is that of the model's size. MAE's is 512.
        decoder_depth: blocks of the decoder; 0 is that of the model's size. MAE's are 8.
        cross_decoder: a decoder in which masked patches look at the encoder's output only, not at one another as in
            MAE's, so that `--predict-fraction` saves in proportion.
        checkpoint_activations: keep the input of each block only and compute the rest again for the gradient: less
            memory, a third more work.
    """

    model: str = "micro"
    patch_size: int | None = None
    layout: Layout = "mae"
    positions: Positions = "sincos"
    registers: int = 0
    drop_path: float = 0.0
    decoder_width: int = 0
    decoder_depth: int = 0
    cross_decoder: bool = False
    checkpoint_activations: bool = False


@dataclass(frozen=True)
class Objective:
    """What a step of pretraining does, besides predicting the target.

    Args:
        augment: random resized crops of the stored images, shifts by an eighth with mirrored borders, or none; all but
            none also flip.
        cache_tokens: compute the tokens, or features, of all images once, before the training, for a tokenizer or
            teacher slower than the model; needs `--augment none`.
        uniformity: weight of a term that drives the class tokens of different images apart; U-MAE's is 0.01.
    """

    augment: Augment = "crop"
    cache_tokens: bool = False
    uniformity: float = 0.0


@flat
def pretrain(
    source: Any,
    target: Any = "pixels",
    *,
    architecture: Architecture = Architecture(),
    masks: Masking = Masking(),
    targets: TargetOptions = TargetOptions(),
    online: OnlineOptions = OnlineOptions(),
    objective: Objective = Objective(),
    schedule: Schedule = PRETRAINING,
    init_from: str | Path | None = None,
    watch: Any = None,
    watch_every: int | None = None,
    out: Out = None,
    run_options: RunOptions = RunOptions(),
) -> Encoder:
    """Pretrain an encoder by predicting what is masked; it has the metrics of its training as `.history`.

    >>> encoder = pretrain("textures:?images=32&grid=2&patch=4", "pixels", epochs=1, batch_size=16, device="cpu")
    >>> encoder
    Encoder(micro: 3×8×8 images, patches of 4, width 128, 800,384 parameters)
    >>> encoder.history[-1]["step"]
    2

    Args:
        source: images, as `clustermim.open` takes them; labels are not needed.
        target: what to predict of a masked patch: a tokenizer (ClusterMIM) or a list of several, a teacher or an
            encoder (MaskFeat's features), "pixels" (MAE), "hog" (MaskFeat), "online" (clusters that learn with the
            encoder, as CAPI's), or the folder of a tokenizer or encoder.
        epochs: passes over the images; 0 gives the untrained encoder, to compare others with.
        init_from: a checkpoint to start from, on a new schedule, for "online" of the teacher too; or the word
            published, for the weights that timm offers for its network and downloads.
        watch: images to measure the encoder on between epochs: neighbours and a quick probe where they have labels,
            RankMe and LiDAR; 1,024 of them at most.
        watch_every: epochs from one look to the next; by default 1.
        out: a run folder to keep, which `resume=True` continues; without it nothing is written.
    """
    opened = open_source(source)
    watched = make_watch(watch, watch_every)
    task = make_task(opened, target, architecture, masks, targets, objective, schedule.seed, init_from, online)
    task.watch = watched
    parts = (architecture, masks, targets, online, objective, schedule)
    options = flattened({type(part).__name__: part for part in parts})
    named = target if isinstance(target, str) else task.target.kind
    config = {"data": opened.spec, **options, "target": named, "patch_size": task.target.patch_size}
    config["init_from"] = None if init_from is None else str(init_from)
    config |= {"watch": watched.source.spec if watched else None, "watch_every": watch_every}
    with run_opener(out, task.name, config, run_options) as opener:
        result = task.train(schedule, opener, run_options)
        if opener:
            task.save(opener(), result)
    return task.encoder(result.history)


def make_task(
    source: Source,
    target: Any,
    architecture: Architecture,
    masks: Masking,
    targets: TargetOptions,
    objective: Objective,
    seed: int = 0,
    init_from: str | Path | None = None,
    online: OnlineOptions = OnlineOptions(),
) -> MaskedModeling:
    """What `pretrain` trains, checked as far as it can be before a schedule is known."""
    given = {field.name: value for field in fields(online) if (value := getattr(online, field.name)) != field.default}
    if isinstance(target, str) and target == ONLINE:
        return _make_online(source, architecture, masks, targets, objective, seed, init_from, given)
    made = make_target(target, source, patch_size=architecture.patch_size, options=targets)
    for name in given:
        raise ConfigError(f"--{name.replace('_', '-')} is for --target {ONLINE}, not {made.kind}")
    torch.manual_seed(seed)  # the initial weights, whatever the target drew; the loop seeds what comes after
    name = architecture.model
    if architecture.layout == "mage":
        if not isinstance(made, TokenTarget) or made.needs_labels:
            raise ConfigError(f"--layout mage reads tokens, which follow from the image alone: not {made.kind}")
        made.tokenizer.tensors()  # one that cannot be saved is refused now: the encoder carries it
        name = f"tokens:{made.dim}:{name}"
    model = _make_model(source, name, made.patch_size, made.dim, architecture)
    _begin_with(init_from, model, load_weights)
    return MaskedModeling(source, made, model, name, *_views(model, architecture, masks, objective))


def _make_online(
    source: Source,
    architecture: Architecture,
    masks: Masking,
    targets: TargetOptions,
    objective: Objective,
    seed: int,
    init_from: str | Path | None,
    given: dict[str, Any],
) -> MaskedModeling:
    """The same with a target that is made of the encoder."""
    check_options(ONLINE, (), targets)
    torch.manual_seed(seed)
    patch_size, name = architecture.patch_size or DEFAULT_PATCH_SIZE, architecture.model
    check_layout(architecture.layout)
    size = given.get("prototypes", DEFAULT_PROTOTYPES)
    model = with_cosines(_make_model(source, name, patch_size, size, architecture))
    _begin_with(init_from, model, start_from)
    teacher = Encoder(deepcopy(model.encoder), name, *channel_stats(source))
    made = OnlineTarget(teacher, **given)
    return OnlineModeling(source, made, model, name, *_views(model, architecture, masks, objective))


def _make_model(source: Source, name: str, patch_size: int, dim: int, architecture: Architecture) -> MaskedModel:
    """An encoder in its layout, which predicts so many values."""
    encoder = build_backbone(
        name,
        source.shape[1:],
        patch_size,
        source.shape[0],
        positions=architecture.positions,
        drop_path=architecture.drop_path,
        registers=architecture.registers,
    )
    decoder = architecture.decoder_width, architecture.decoder_depth, architecture.cross_decoder
    model = make_model(architecture.layout, encoder, dim, *decoder)
    if architecture.checkpoint_activations and isinstance(encoder, TimmBackbone):
        raise ConfigError("--checkpoint-activations is for the ViT of this library, not for networks of timm")
    for block in model.modules() if architecture.checkpoint_activations else ():
        if isinstance(block, Block):
            block.checkpointed = True
    return model


def _begin_with(
    init_from: str | Path | None, model: MaskedModel, load: Callable[[str | Path, MaskedModel], None]
) -> None:
    """Take weights from a file, or those that are published for the encoder."""
    if init_from == PUBLISHED:
        model.encoder.load_published()
    elif init_from is not None:
        load(init_from, model)


def _views(
    model: MaskedModel, architecture: Architecture, masks: Masking, objective: Objective
) -> tuple[MaskedCollator, Augment, float, bool]:
    """What a task does to images, and what it does besides."""
    collator = MaskedCollator(model.encoder.grid, masks, layout=architecture.layout)
    return collator, objective.augment, objective.uniformity, objective.cache_tokens
