"""`clustermim pretrain`: pretraining in a run folder, with a picture of what the model predicts."""

from __future__ import annotations

from clustermim.data import open_source
from clustermim.distributed import rank
from clustermim.options import flat, flattened
from clustermim.pretraining import PRETRAINING, Architecture, Masking, Objective, make_task, make_watch
from clustermim.progress import warn_skipped
from clustermim.runs import NOT_CONFIGURATION, check_not_inside, pending_run
from clustermim.targets import TargetOptions
from clustermim.targets.online import OnlineOptions
from clustermim.training import RunOptions, Schedule, TrainResult
from clustermim.training.trackers import track_picture


@flat
def pretrain(
    data: str,
    out: str,
    target: str = "tokens",
    architecture: Architecture = Architecture(),
    masks: Masking = Masking(),
    targets: TargetOptions = TargetOptions(),
    online: OnlineOptions = OnlineOptions(),
    objective: Objective = Objective(),
    schedule: Schedule = PRETRAINING,
    init_from: str | None = None,
    watch: str | None = None,
    watch_every: int | None = None,
    run_options: RunOptions = RunOptions(),
) -> None:
    """Pretrain an encoder by predicting what is masked.

    Args:
        data: where the images are; labels are not needed.
        out: the run folder to write.
        target: what to predict of a masked patch: its pixels (MAE), its HOG or a teacher's features (MaskFeat), its
            token (ClusterMIM), its tokens of several tokenizers, the vector that k-means made it of, or clusters that
            learn with the encoder (CAPI): pixels, hog, features, tokens, multi-tokens, vectors or online.
        epochs: passes over the images; 0 gives the untrained encoder, to compare others with.
        init_from: a checkpoint to start from, on a new schedule, with --target online of the teacher too; or the word
            published, for the weights that timm offers for its network and downloads.
        watch: images to measure the encoder on between epochs: neighbours and a quick probe where they have labels,
            RankMe and LiDAR; 1,024 of them at most.
        watch_every: epochs from one look to the next; by default 1.
    """
    config = {name: value for name, value in flattened(locals()).items() if name not in NOT_CONFIGURATION}
    used = [("--target", target), ("--tokenizer", targets.tokenizer), ("--teacher", targets.teacher)]
    used += [("--init-from", init_from), *(("--tokenizers", name) for name in targets.tokenizers or ())]
    for option, place in used:
        check_not_inside(place, out, option)
    source = open_source(data)
    task = make_task(source, target, architecture, masks, targets, objective, schedule.seed, init_from, online)
    task.watch = make_watch(watch, watch_every)
    config["patch_size"] = task.target.patch_size
    with pending_run(out, task.name, config, resume=run_options.resume, overwrite=run_options.overwrite) as opened:
        result = task.train(schedule, opened, run_options)
        run = opened()
        task.save(run, result)
        if rank() == 0:
            from clustermim.drawing.page import PICTURE  # slow to import
            from clustermim.drawing.reconstructions import write_reconstructions

            write_reconstructions(run, task.net, task.target, source, task.stats, task.collator)
            track_picture(run_options.track or (), run, result.steps, run.folder / PICTURE)
    warn_skipped(source.skipped)
    if rank() == 0:
        print(f"wrote an encoder pretrained for {schedule.epochs} epochs to {out}{last_epoch(result)}")


def last_epoch(result: TrainResult) -> str:
    """The last epoch in words: loss, how many tokens were predicted right, and the time of all."""
    if not result.steps:
        return ""
    right = f", token accuracy {result.final['accuracy']:.1%}" if "accuracy" in result.final else ""
    return f": loss {result.final['loss']:.4f}{right}, {result.seconds:,.0f} seconds"
