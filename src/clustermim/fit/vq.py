"""`clustermim fit vq`, `fit vqgan` and `fit peco`: tokens are the nearest vectors of a codebook."""

from __future__ import annotations

from typing import Any

from clustermim.data.augment import Augment
from clustermim.errors import ConfigError
from clustermim.fit.learning import Extras, learn
from clustermim.progress import say
from clustermim.training import Device, Precision


def fit_vq(
    data: str,
    out: str,
    k: int = 512,
    patch_size: int = 16,
    width: int = 64,
    depth: int = 2,
    code_dim: int = 32,
    cosine: bool = False,
    decay: float = 0.99,
    revive: float = 0.1,
    commitment: float = 0.25,
    epochs: int = 3,
    batch_size: int = 64,
    base_lr: float = 4e-3,
    augment: Augment = "pad-crop",
    seed: int = 0,
    device: Device = "auto",
    precision: Precision = "auto",
    stop_after: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> None:
    """Train a VQ-VAE: tokens are the nearest vectors to what an encoder makes of patches.

    Args:
        data: where the images are; labels are not needed.
        out: the run folder to write.
        k: size of the codebook.
        patch_size: side of a patch in pixels; there is one token a patch.
        width: channels inside encoder and decoder.
        depth: residual blocks in each of them, which look at neighbouring patches.
        code_dim: width of the codebook's vectors.
        cosine: compare directions only.
        decay: of the moving averages that the codebook consists of, a step.
        revive: a token used less than this share of an even use starts anew at a random patch; 0 is never.
        commitment: weight of the loss that keeps features near their vectors.
        epochs: passes over the data.
        batch_size: images to an optimizer step, over all ranks.
        base_lr: learning rate for 256 images; the peak is base_lr · batch_size / 256.
        augment: shifts by an eighth with mirrored borders, random resized crop, or none; all but none also flip.
        seed: the same seed, data and machine give the same bytes on a CPU.
        device: where to compute.
        precision: auto is bf16 where the hardware has it.
        stop_after: leave after so many epochs of the schedule, to resume later; for queues that give few hours.
        resume: continue an unfinished run exactly.
        overwrite: replace what is in `out`.
    """
    options = dict(locals())
    learn("vq", options, codebook_options(options))


def fit_vqgan(
    data: str,
    out: str,
    k: int = 512,
    patch_size: int = 16,
    width: int = 64,
    depth: int = 2,
    code_dim: int = 32,
    cosine: bool = False,
    decay: float = 0.99,
    revive: float = 0.1,
    commitment: float = 0.25,
    teacher: list[str] | None = None,
    perceptual_weight: float = 1.0,
    discriminator_weight: float = 0.1,
    discriminator_start: float = 0.5,
    epochs: int = 3,
    batch_size: int = 64,
    base_lr: float = 4e-3,
    augment: Augment = "pad-crop",
    seed: int = 0,
    device: Device = "auto",
    precision: Precision = "auto",
    stop_after: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> None:
    """Train a VQGAN: a VQ-VAE whose reconstructions should also look real to a discriminator.

    Args:
        data: where the images are; labels are not needed.
        out: the run folder to write.
        k: size of the codebook.
        patch_size: side of a patch in pixels; there is one token a patch.
        width: channels inside encoder and decoder.
        depth: residual blocks in each of them, which look at neighbouring patches.
        code_dim: width of the codebook's vectors.
        cosine: compare directions only.
        decay: of the moving averages that the codebook consists of, a step.
        revive: a token used less than this share of an even use starts anew at a random patch; 0 is never.
        commitment: weight of the loss that keeps features near their vectors.
        teacher: whose features a reconstruction should keep, such as run:FOLDER?layer=2; may be given several times.
        perceptual_weight: of this loss.
        discriminator_weight: of the adversarial loss, beside the ratio of gradients that balances it.
        discriminator_start: share of the training after which the discriminator takes part.
        epochs: passes over the data.
        batch_size: images to an optimizer step, over all ranks.
        base_lr: learning rate for 256 images; the peak is base_lr · batch_size / 256.
        augment: shifts by an eighth with mirrored borders, random resized crop, or none; all but none also flip.
        seed: the same seed, data and machine give the same bytes on a CPU.
        device: where to compute.
        precision: auto is bf16 where the hardware has it.
        stop_after: leave after so many epochs of the schedule, to resume later; for queues that give few hours.
        resume: continue an unfinished run exactly.
        overwrite: replace what is in `out`.
    """
    options = dict(locals())
    extras = Extras(perceptual_weight, discriminator_weight, discriminator_start)
    if not teacher:
        say("vqgan: without --teacher there is no perceptual loss; no VGG or LPIPS weights are shipped")
    learn("vqgan", options, codebook_options(options), teacher or (), extras)


def fit_peco(
    data: str,
    out: str,
    k: int = 512,
    patch_size: int = 16,
    width: int = 64,
    depth: int = 2,
    code_dim: int = 32,
    cosine: bool = False,
    decay: float = 0.99,
    revive: float = 0.1,
    commitment: float = 0.25,
    teacher: list[str] | None = None,
    perceptual_weight: float = 1.0,
    epochs: int = 3,
    batch_size: int = 64,
    base_lr: float = 4e-3,
    augment: Augment = "pad-crop",
    seed: int = 0,
    device: Device = "auto",
    precision: Precision = "auto",
    stop_after: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> None:
    """Train PeCo's tokenizer: a VQ-VAE that keeps what several layers of a teacher see.

    Args:
        data: where the images are; labels are not needed.
        out: the run folder to write.
        k: size of the codebook.
        patch_size: side of a patch in pixels; there is one token a patch.
        width: channels inside encoder and decoder.
        depth: residual blocks in each of them, which look at neighbouring patches.
        code_dim: width of the codebook's vectors.
        cosine: compare directions only.
        decay: of the moving averages that the codebook consists of, a step.
        revive: a token used less than this share of an even use starts anew at a random patch; 0 is never.
        commitment: weight of the loss that keeps features near their vectors.
        teacher: whose features a reconstruction should keep, such as run:FOLDER?layer=2; may be given several times.
        perceptual_weight: of this loss.
        epochs: passes over the data.
        batch_size: images to an optimizer step, over all ranks.
        base_lr: learning rate for 256 images; the peak is base_lr · batch_size / 256.
        augment: shifts by an eighth with mirrored borders, random resized crop, or none; all but none also flip.
        seed: the same seed, data and machine give the same bytes on a CPU.
        device: where to compute.
        precision: auto is bf16 where the hardware has it.
        stop_after: leave after so many epochs of the schedule, to resume later; for queues that give few hours.
        resume: continue an unfinished run exactly.
        overwrite: replace what is in `out`.
    """
    options = dict(locals())
    if not teacher:
        raise ConfigError("fit peco needs --teacher, such as run:FOLDER?layer=4, once for each layer to keep")
    learn("peco", options, codebook_options(options), teacher, Extras(perceptual_weight))


def codebook_options(options: dict[str, Any]) -> dict[str, Any]:
    """Those of a stage's options that are the quantizer's."""
    return {name: options[name] for name in ("code_dim", "cosine", "decay", "revive", "commitment")}
