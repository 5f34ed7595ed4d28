"""The stage that pretrains: source, target and model put together for the training loop. `clustermim pretrain`."""

from __future__ import annotations

from dataclasses import replace

import torch
from safetensors.torch import save
from torch import Tensor, nn

from clustermim.data import Source, channel_stats, open_source
from clustermim.data.augment import Augment
from clustermim.data.statistics import ChannelStats
from clustermim.data.transforms import normalize
from clustermim.distributed import process_group, rank, world_size
from clustermim.files import write_atomic
from clustermim.models.storage import save_encoder
from clustermim.models.vit import Positions, ViT
from clustermim.pretraining.build import Layout, MaskedModel, TargetName, decoder_size, make_model
from clustermim.pretraining.tokens import all_tokens, check_cache_tokens
from clustermim.pretraining.uniformity import check_uniformity, mean_similarity
from clustermim.pretraining.views import MaskedBatch, MaskedCollator, Masking
from clustermim.progress import warn_skipped
from clustermim.runs import NOT_CONFIGURATION, ResumableRun, check_not_inside, open_resumable_run
from clustermim.targets import PixelLoss, Target, TargetOptions, make_target, select
from clustermim.training import (
    Device,
    Precision,
    SeededBatches,
    Tracker,
    TrainResult,
    adamw,
    check_trackers,
    make_schedule,
    open_fabric,
    parameter_groups,
    train,
)
from clustermim.training import init_from as load_weights


def pretrain(
    data: str,
    out: str,
    model: str = "micro",
    patch_size: int = 4,
    target: TargetName = "tokens",
    tokenizer: str | None = None,
    teacher: str | None = None,
    layout: Layout = "mae",
    masking: Masking = "random",
    mask_ratio: float = 0.75,
    mask_patch_size: int = 0,
    epochs: int = 20,
    batch_size: int = 256,
    base_lr: float = 1.5e-3,
    min_lr: float = 0.0,
    warmup_epochs: float | None = None,
    weight_decay: float = 0.05,
    clip: float | None = None,
    accumulate: int = 1,
    augment: Augment = "crop",
    normalize_pixels: bool = False,
    pixel_loss: PixelLoss | None = None,
    label_smoothing: float = 0.0,
    cache_tokens: bool = False,
    uniformity: float = 0.0,
    positions: Positions = "sincos",
    drop_path: float = 0.0,
    decoder_width: int = 0,
    decoder_depth: int = 0,
    device: Device = "auto",
    precision: Precision = "auto",
    compile: bool = False,
    seed: int = 0,
    track: list[Tracker] | None = None,
    init_from: str | None = None,
    stop_after: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> None:
    """Pretrain an encoder by predicting what is masked.

    Args:
        data: where the images are; labels are not needed.
        out: the run folder to write.
        model: size of the encoder: micro, tiny, small, base, large or huge.
        patch_size: side of a patch in pixels.
        target: what to predict of a masked patch: its pixels (MAE), its HOG or a teacher's features (MaskFeat), or its
            token (ClusterMIM).
        tokenizer: the folder of a fitted tokenizer or `module:package.module:factory`, for tokens.
        teacher: whose features to predict, such as `run:FOLDER` for an encoder pretrained here.
        layout: `mae` shows visible patches only to the encoder; `beit` shows it mask tokens too.
        masking: single patches, or blocks of them as BEiT masks.
        mask_ratio: share of patches to mask; BEiT's is 0.4.
        mask_patch_size: mask squares of so many patches a side instead of single ones; SimMIM's is 2.
        epochs: passes over the data.
        batch_size: images to an optimizer step, over all ranks and accumulated parts.
        base_lr: learning rate for 256 images; the peak is base_lr · batch_size / 256.
        min_lr: the learning rate at the end of the cosine.
        warmup_epochs: epochs in which the learning rate rises; by default a tenth of them.
        weight_decay: of AdamW, not on biases, norms, tokens and positions.
        clip: largest norm of the gradient.
        accumulate: parts that a batch is computed in, when memory is short.
        augment: random resized crop, shifts by an eighth with mirrored borders, or none; all but none also flip.
        normalize_pixels: predict pixels normalised by the mean and spread of their patch.
        pixel_loss: `l1` is the mean absolute error, as in SimMIM; by default the error is squared.
        label_smoothing: of the cross-entropy of tokens.
        cache_tokens: compute the tokens of all images once, before the training, for a tokenizer slower than the
            model; needs `--augment none`.
        uniformity: weight of a term that drives the class tokens of different images apart; U-MAE's is 0.01.
        positions: fixed sine and cosine, or learned.
        drop_path: stochastic depth of the last block.
        decoder_width: width of the decoder, a multiple of 32; 0 is that of the model's size. MAE's is 512.
        decoder_depth: blocks of the decoder; 0 is that of the model's size. MAE's are 8.
        device: where to compute.
        precision: auto is bf16 where the hardware has it.
        compile: use torch.compile.
        seed: the same seed, data and machine give the same bytes on a CPU.
        track: also log to tensorboard or wandb.
        init_from: a checkpoint to start from, on a new schedule.
        stop_after: leave after so many epochs of the schedule, to resume later; for queues that give few hours.
        resume: continue an unfinished run exactly.
        overwrite: replace what is in `out`.
    """
    config = {key: value for key, value in locals().items() if key not in NOT_CONFIGURATION}
    for option, used in {"--tokenizer": tokenizer, "--teacher": teacher, "--init-from": init_from}.items():
        check_not_inside(used, out, option)
    with process_group():
        source = open_source(data)
        stats = channel_stats(source)
        wanted = TargetOptions(tokenizer, teacher, normalize_pixels, pixel_loss, label_smoothing)
        objective = make_target(target, source, patch_size=patch_size, options=wanted)
        torch.manual_seed(seed)  # the initial weights, whatever the target drew; the loop seeds what comes after
        encoder = ViT.of_size(
            model, source.shape[1:], patch_size, source.shape[0], positions=positions, drop_path=drop_path
        )
        net = make_model(layout, encoder, decoder_size(layout, model, decoder_width, decoder_depth), objective.dim)
        if init_from is not None:
            load_weights(init_from, net)
        settings = make_schedule(
            source, epochs, batch_size, base_lr, min_lr, warmup_epochs, clip, accumulate, seed, stop_after
        )
        fabric = open_fabric(device, precision)
        objective = objective.to(fabric.device)
        views = MaskedCollator(encoder.grid, augment, masking, mask_ratio, mask_patch_size)
        part = batch_size // accumulate // world_size()  # images that are computed at once
        check_uniformity(uniformity, layout, part)
        if cache_tokens:
            check_cache_tokens(objective, augment)
        optimizer = adamw(parameter_groups(net, weight_decay), settings.lr)
        check_trackers(track or ())
        inputs = {"data": source.fingerprint, "target": objective.version()}
        # only now, when nothing the user chose can be wrong any more
        with open_resumable_run(out, "pretrain", config, resume=resume, overwrite=overwrite) as run:
            if cache_tokens:
                views = replace(views, tokens=all_tokens(objective, source))
            done = train(
                lambda wrapped, views: step(wrapped, views, objective, stats, uniformity),
                SeededBatches(source, part, seed, views),
                torch.compile(net) if compile else net,  # type: ignore[arg-type]
                optimizer,
                settings,
                run,
                fabric,
                trackers=track or (),
                inputs=inputs,
            )
            finish(run, net, model, stats, source, objective, views, done)
        warn_skipped(source.skipped)
        if rank() == 0:
            print(f"wrote an encoder pretrained for {epochs} epochs to {out}")


def step(
    model: nn.Module, views: MaskedBatch, target: Target, stats: ChannelStats, uniformity: float = 0.0
) -> dict[str, Tensor]:
    """The loss of one batch, on masked patches only; with a weight for uniformity, the term of U-MAE is added to it."""
    images, labels, mask, tokens = views
    values = select(target(images, labels) if tokens is None else tokens, mask.masked)  # (B, m) or (B, m, dim)
    inputs = normalize(images, stats.mean, stats.std)
    if uniformity:
        prediction, classes = model(inputs, mask, with_class=True)  # (B, m, dim), (B, D)
        similarity = mean_similarity(classes)
        result = {"loss": target.loss(prediction, values) + uniformity * similarity, "uniformity": similarity}
    else:
        prediction = model(inputs, mask)  # (B, m, dim)
        result = {"loss": target.loss(prediction, values)}
    if values.ndim == 2:
        result["accuracy"] = (prediction.detach().argmax(-1) == values).float().mean()
    return result


def finish(
    run: ResumableRun,
    net: MaskedModel,
    name: str,
    stats: ChannelStats,
    source: Source,
    target: Target,
    views: MaskedCollator,
    done: TrainResult,
) -> None:
    """Write the encoder, the decoder, a picture of what they predict, and the summary."""
    if rank() == 0:
        save_encoder(run.folder, net.encoder, name, stats.mean, stats.std)
        rest = {key: value for key, value in net.state_dict().items() if not key.startswith("encoder.")}
        write_atomic(run.folder / "decoder.safetensors", save({k: v.cpu().contiguous() for k, v in rest.items()}))
        from clustermim.drawing.encoder_reconstructions import write_reconstructions  # matplotlib is slow to import

        write_reconstructions(run, net, target, source, stats, views, done.steps)
    run.summary = {
        "results": {
            **done.summary(),
            "parameters": sum(p.numel() for p in net.encoder.parameters()),
        },
        "data": source.describe(),
    }
