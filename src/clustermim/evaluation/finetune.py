"""The stage that trains an encoder and a head on labels. `clustermim finetune`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Generator, Tensor, nn

from clustermim.data import Batch
from clustermim.data.augment import Augment, augmented
from clustermim.data.transforms import normalize
from clustermim.distributed import process_group, rank, world_size
from clustermim.evaluation.classifier import Classifier, build_encoder, check_layer_decay, save_classifier
from clustermim.evaluation.features import Pooling
from clustermim.evaluation.labelled import TrainTest, measure, open_labelled, print_results
from clustermim.evaluation.mixing import MixConfig, draw_seed
from clustermim.evaluation.randaugment import RandAugment
from clustermim.models.storage import Encoder, load_encoder
from clustermim.runs import NOT_CONFIGURATION, ResumableRun, check_not_inside, open_resumable_run
from clustermim.training import (
    Device,
    Precision,
    SeededBatches,
    Tracker,
    TrainResult,
    adamw,
    check_trackers,
    layer_groups,
    make_schedule,
    open_fabric,
    train,
)

BETAS = (0.9, 0.999)  # a longer memory than in pretraining, as BEiT and MAE fine-tune
LAYER_DECAY = 0.75  # MAE's for a ViT-B; lower layers know more that is worth keeping


def finetune(
    run: str,
    data: str,
    test_data: str,
    out: str,
    from_scratch: bool = False,
    pooling: Pooling = "avg",
    epochs: int = 20,
    batch_size: int = 256,
    base_lr: float = 1e-3,
    min_lr: float = 0.0,
    warmup_epochs: float | None = None,
    weight_decay: float = 0.05,
    layer_decay: float | None = None,
    clip: float | None = None,
    accumulate: int = 1,
    augment: Augment = "crop",
    randaugment_ops: int = 2,
    randaugment_magnitude: int = 9,
    mixup: float = 0.8,
    cutmix: float = 1.0,
    label_smoothing: float = 0.1,
    erasing: float = 0.25,
    drop_path: float = 0.0,
    device: Device = "auto",
    precision: Precision = "auto",
    compile: bool = False,
    seed: int = 0,
    track: list[Tracker] | None = None,
    stop_after: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> None:
    """Fine-tune a pretrained encoder with a linear head on labelled images, and measure it on others.

    Args:
        run: the folder of a pretrained encoder.
        data: labelled images to train on; of another size than in pretraining, positions are interpolated.
        test_data: labelled images to measure on, after every epoch; the last epoch counts.
        out: the run folder to write.
        from_scratch: start from new weights of the same architecture: the baseline.
        pooling: what the head sees: the mean of the patch tokens, or the class token.
        epochs: passes over the data.
        batch_size: images to an optimizer step, over all ranks and accumulated parts.
        base_lr: learning rate for 256 images; the peak is base_lr · batch_size / 256.
        min_lr: the learning rate at the end of the cosine.
        warmup_epochs: epochs in which the learning rate rises; by default a tenth of them.
        weight_decay: of AdamW, not on biases, norms, tokens and positions.
        layer_decay: each layer learns at this share of the rate of the next; by default 0.75, or 1 from scratch.
        clip: largest norm of the gradient.
        accumulate: parts that a batch is computed in, when memory is short.
        augment: random resized crop, shifts by an eighth with mirrored borders, or none; all but none also flip.
        randaugment_ops: operations of RandAugment on each image; 0 for none.
        randaugment_magnitude: their strength, below 30.
        mixup: α of the Beta distribution of mixup; 0 for none. With CutMix too, each batch gets one of them.
        cutmix: α of the Beta distribution of CutMix; 0 for none.
        label_smoothing: share of the target that all classes have in common.
        erasing: probability that a box of an image is erased.
        drop_path: stochastic depth of the last block.
        device: where to compute.
        precision: auto is bf16 where the hardware has it.
        compile: use torch.compile.
        seed: the same seed, data and machine give the same bytes on a CPU.
        track: also log to tensorboard or wandb.
        stop_after: leave after so many epochs of the schedule, to resume later.
        resume: continue an unfinished run exactly.
        overwrite: replace what is in `out`.
    """
    if layer_decay is None:
        layer_decay = 1.0 if from_scratch else LAYER_DECAY  # new weights have nothing to keep
    config = {key: value for key, value in locals().items() if key not in NOT_CONFIGURATION}
    check_not_inside(run, out, "the encoder to start from")
    with process_group():
        torch.manual_seed(seed)  # the initial weights; the loop seeds what comes after
        pretrained, labelled = load_encoder(run), open_labelled(data, test_data)
        encoder = build_encoder(pretrained, labelled.train.shape, drop_path, from_scratch)
        net = Classifier(encoder, labelled.classes, pooling)
        mixing = MixConfig(mixup, cutmix, label_smoothing, erasing)
        policy = None
        if randaugment_ops:
            policy = RandAugment(randaugment_ops, randaugment_magnitude, encoder.channels)
        groups = layer_groups(net, check_layer_decay(layer_decay), weight_decay)
        settings = make_schedule(
            labelled.train, epochs, batch_size, base_lr, min_lr, warmup_epochs, clip, accumulate, seed, stop_after
        )
        fabric = open_fabric(device, precision)
        size = batch_size // accumulate // world_size()
        batches = SeededBatches(labelled.train, size, seed, lambda batch, draws: make_views(batch, augment, draws))
        prepare = Prepare(pretrained, labelled.classes, policy, mixing)
        config["weights"] = pretrained.weights  # a run does not go on from another encoder
        check_trackers(track or ())
        # only now, when nothing the user chose can be wrong any more
        with open_resumable_run(out, "finetune", config, resume=resume, overwrite=overwrite) as folder:
            done = train(
                lambda wrapped, views: step(wrapped, views, prepare),
                batches,
                torch.compile(net) if compile else net,
                adamw(groups, settings.lr, BETAS),
                settings,
                folder,
                fabric,
                trackers=track or (),
                inputs={"data": labelled.train.fingerprint},
                after_epoch=lambda _: {
                    "test_accuracy": evaluate(net, pretrained, labelled, size, fabric)["accuracy"],
                },
            )
            results = {
                **evaluate(net, pretrained, labelled, size, fabric),
                "protocol": "from scratch" if from_scratch else "finetune",
                "pooling": pooling,
            }
            finish(folder, net, pretrained, labelled, results, done)
        labelled.warn_skipped()
        if rank() == 0:
            print_results({pooling: results}, False, "from scratch" if from_scratch else "fine-tuned")


class MaskedBatch(NamedTuple):
    """What one step is given, made in the background."""

    images: Tensor  # (B, C, H, W) float32 in [0, 1], cropped and flipped
    labels: Tensor  # (B,)
    seed: int  # of all else that is random about the batch


class Prepare(NamedTuple):
    """From views to what the model sees; in the main thread, on the device of the images."""

    pretrained: Encoder  # for its normalisation
    classes: int
    policy: RandAugment | None
    mixing: MixConfig

    def images_and_targets(self, views: MaskedBatch) -> tuple[Tensor, Tensor]:
        """Normalised images (B, C, H, W) and soft targets (B, K)."""
        generator = Generator().manual_seed(views.seed)
        images = views.images if self.policy is None else self.policy(views.images, draw_seed(generator))
        images = normalize(images, self.pretrained.mean, self.pretrained.std)
        return self.mixing(images, views.labels, self.classes, generator)


def make_views(batch: Batch, augment: Augment, generator: Generator) -> MaskedBatch:
    """Crop and flip a batch, and draw the seed of what comes later."""
    assert batch.labels is not None  # of a labelled source
    images = augmented(batch.images, augment, generator)
    return MaskedBatch(images, batch.labels, draw_seed(generator))


def step(model: nn.Module, views: MaskedBatch, prepare: Prepare) -> dict[str, Tensor]:
    """The cross-entropy of one batch with its soft targets."""
    images, targets = prepare.images_and_targets(views)
    return {"loss": F.cross_entropy(model(images), targets)}


def evaluate(net: Classifier, pretrained: Encoder, data: TrainTest, size: int, fabric: Fabric) -> dict[str, Any]:
    """Accuracy on the test images, with its interval."""
    net.eval()  # the loop turns training on again

    def predict(images: Tensor) -> dict[str, Tensor]:
        with fabric.autocast():
            return {net.pooling: net(normalize(images, pretrained.mean, pretrained.std))}

    return measure(predict, (net.pooling,), data, size, fabric.device)[net.pooling]


def finish(
    folder: ResumableRun,
    net: Classifier,
    pretrained: Encoder,
    data: TrainTest,
    results: Mapping[str, Any],
    done: TrainResult,
) -> None:
    """Write the classifier, its encoder and the summary."""
    if rank() == 0:
        save_classifier(folder.folder, net, pretrained.model, pretrained.mean, pretrained.std, data.class_names)
    folder.summary = {
        "results": {
            **results,
            **done.summary(),
            "parameters": sum(p.numel() for p in net.parameters()),
            "train_images": len(data.train),
            "classes": data.classes,
        },
        **data.describe(),
        "weights": None if results["protocol"] == "from scratch" else pretrained.weights,  # what it began with
    }
