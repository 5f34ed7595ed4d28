"""`clustermim fit dvae`, `fit fsq`, `fit lfq` and `fit random-projection`: tokens without a search for the nearest."""

from __future__ import annotations

from typing import Any

import torch

from clustermim.data import Source
from clustermim.data.augment import Augment
from clustermim.distributed import all_sum
from clustermim.fit.folder import fit_into
from clustermim.fit.learning import MEASURED, learn
from clustermim.metrics.codebook import perplexity, usage
from clustermim.patches import grid_size
from clustermim.progress import say
from clustermim.runs import Run
from clustermim.tokenizers import tokenize
from clustermim.tokenizers.learned import RandomProjectionTokenizer
from clustermim.tokenizers.quantizers import nearest_levels
from clustermim.training import Device, Precision


def fit_dvae(
    data: str,
    out: str,
    k: int = 512,
    patch_size: int = 16,
    width: int = 64,
    depth: int = 2,
    code_dim: int = 32,
    temperature: float = 1 / 16,
    kl_weight: float = 0.001,
    kl_warmup: float = 0.1,
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
    """Train a discrete VAE by Gumbel-softmax, the recipe of DALL·E's tokenizer.

    Args:
        data: where the images are; labels are not needed.
        out: the run folder to write.
        k: size of the codebook.
        patch_size: side of a patch in pixels; there is one token a patch.
        width: channels inside encoder and decoder.
        depth: residual blocks in each of them, which look at neighbouring patches.
        code_dim: width of the features that logits are made of, and of the vectors that stand for tokens.
        temperature: of the Gumbel-softmax at the end of training; it starts at 1.
        kl_weight: of the divergence of a patch's tokens from a uniform distribution, in nats.
        kl_warmup: share of the training in which this weight rises from 0.
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
    own = {name: options[name] for name in ("code_dim", "temperature", "kl_weight", "kl_warmup")}
    learn("dvae", options, own)


def fit_fsq(
    data: str,
    out: str,
    k: int = 512,
    patch_size: int = 16,
    width: int = 64,
    depth: int = 2,
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
    """Train an autoencoder whose few features are rounded to levels (FSQ): a codebook that cannot collapse.

    Args:
        data: where the images are; labels are not needed.
        out: the run folder to write.
        k: size of the codebook; the nearest product of levels is taken.
        patch_size: side of a patch in pixels; there is one token a patch.
        width: channels inside encoder and decoder.
        depth: residual blocks in each of them, which look at neighbouring patches.
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
    levels = nearest_levels(max(k, 2))
    product = torch.tensor(levels).prod()
    say(f"fsq: {product} tokens = {' × '.join(map(str, levels))} levels, the nearest to --k {k}")
    learn("fsq", options, {})


def fit_lfq(
    data: str,
    out: str,
    k: int = 512,
    patch_size: int = 16,
    width: int = 64,
    depth: int = 2,
    entropy_weight: float = 0.1,
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
    """Train an autoencoder whose features' signs are the bits of tokens (lookup-free quantization).

    Args:
        data: where the images are; labels are not needed.
        out: the run folder to write.
        k: size of the codebook, a power of two.
        patch_size: side of a patch in pixels; there is one token a patch.
        width: channels inside encoder and decoder.
        depth: residual blocks in each of them, which look at neighbouring patches.
        entropy_weight: of the loss that makes each token sure and all tokens equally frequent.
        commitment: weight of the loss that keeps features near ±1.
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
    learn("lfq", options, {"entropy_weight": entropy_weight, "commitment": commitment})


def fit_random_projection(
    data: str,
    out: str,
    k: int = 512,
    patch_size: int = 16,
    code_dim: int = 16,
    seed: int = 0,
    overwrite: bool = False,
) -> None:
    """Draw a random projection and random directions, the quantizer of BEST-RQ: nothing is trained.

    Args:
        data: where the images are; their number of channels is used, and how often each token occurs is counted.
        out: the run folder to write.
        k: size of the codebook.
        patch_size: side of a patch in pixels.
        code_dim: width of the projection.
        seed: another seed gives another tokenizer.
        overwrite: replace a complete run in `out`.
    """
    tokenizer = RandomProjectionTokenizer(k, patch_size, code_dim, seed)

    def fit(source: Source, run: Run) -> dict[str, Any]:
        tokenizer.fit(source)
        counts = torch.zeros(k, dtype=torch.int64)
        for _, ids in tokenize(tokenizer, source, seed=0, limit=MEASURED):
            counts += torch.bincount(ids.flatten(), minlength=k)
        counts, (rows, columns) = all_sum(counts), grid_size(*source.shape[1:], patch_size)
        images = int(counts.sum()) // (rows * columns)
        return {"vocab_size": k, "usage": usage(counts), "perplexity": perplexity(counts), "measured_images": images}

    fit_into(tokenizer, fit, data, out, overwrite)
