"""The stages that make tokenizers, `clustermim fit …`, and `clustermim tokenize`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from clustermim.data import Source, open_source
from clustermim.data.augment import Augment
from clustermim.distributed import process_group, rank
from clustermim.errors import ConfigError, RunError
from clustermim.files import write_atomic
from clustermim.options import flat
from clustermim.patches import grid_size
from clustermim.progress import log_info, warn_skipped
from clustermim.runs import Run, check_not_inside, open_run, pending_run
from clustermim.tokenizers import (
    ExternalTokenizer,
    KMeansTokenizer,
    LabelTokenizer,
    LearnedTokenizer,
    PrototypeTokenizer,
    RandomProjectionTokenizer,
    RandomTokenizer,
    Tokenizer,
    load_tokenizer,
    tokenize,
)
from clustermim.tokenizers.kmeans_options import KMeansOptions, SpaceName
from clustermim.tokenizers.learning import SCHEDULE, AuxiliaryLosses
from clustermim.tokenizers.prototypes import Partition
from clustermim.tokenizers.quantizers import CodebookOptions, GumbelOptions, SignOptions
from clustermim.tokenizers.usage import measure_use, warn_unused
from clustermim.training import Device, RunOptions, Schedule, find_device

EXTERNAL_BATCH = 32  # images; some networks take gigabytes for more
REMEDIES = {
    "vq": "a lower --k, a higher --dead-code-threshold, a lower --decay or more --epochs",
    "dvae": "a lower --k, a higher --kl-weight, a higher --temperature or more --epochs",
    "fsq": "a lower --k or more --epochs",
    "lfq": "a lower --k, a higher --entropy-weight or more --epochs",
    "random-projection": "a larger --code-dim, or a smaller --k",
    "external": "images like those the tokenizer was trained on, larger ones, or a larger --patch-size",
}


@flat
def fit_kmeans(
    data: str,
    out: str,
    k: int = 50,
    patch_size: int = 16,
    space: SpaceName = "pixel",
    options: KMeansOptions = KMeansOptions(),
    cache_features: bool = False,
    device: Device | None = None,
    overwrite: bool = False,
) -> None:
    """Fit a k-means tokenizer, the one of ClusterMIM, on the patches of a data source.

    Args:
        data: where the images are: `folder:PATH`, `cifar10/train`, `textures:`, …
        out: the run folder to write.
        k: number of clusters, the size of the codebook.
        patch_size: side of a patch in pixels.
        space: cluster raw pixels; patches normalised to zero mean and unit variance; windows around them, normalised
            and whitened, so that edges and textures count as much as colours; or features of a teacher.
        cache_features: keep the teacher's features in the cache folder, for a fit with another k.
        device: where the teacher computes; by default the fastest that is there.
        overwrite: replace a complete run in `out`.
    """
    check_not_inside(options.teacher, out, "the teacher")
    tokenizer = KMeansTokenizer(k, patch_size, space, options=options)

    def fit(source: Source, run: Run) -> dict[str, Any]:
        return tokenizer.fit(source, device=device, cache_features=cache_features, log=run.log).results()

    fit_into(tokenizer, fit, data, out, overwrite)


def fit_random(data: str, out: str, k: int = 50, patch_size: int = 16, seed: int = 0, overwrite: bool = False) -> None:
    """Make the tokenizer that knows nothing: ids drawn at random for every image, the same each time.

    Args:
        data: where the images are; only their number of channels is used.
        out: the run folder to write.
        k: size of the codebook.
        patch_size: side of a patch in pixels.
        seed: another seed gives other ids.
        overwrite: replace a complete run in `out`.
    """
    tokenizer = RandomTokenizer(k, patch_size, seed)
    fit_into(tokenizer, lambda source, run: tokenizer.fit(source).results(), data, out, overwrite)


def fit_labels(data: str, out: str, patch_size: int = 16, overwrite: bool = False) -> None:
    """Make the oracle: the id of every patch is the class of its image. It needs labels wherever it is used.

    Args:
        data: where the labelled images are.
        out: the run folder to write.
        patch_size: side of a patch in pixels.
        overwrite: replace a complete run in `out`.
    """
    tokenizer = LabelTokenizer(patch_size)
    fit_into(tokenizer, lambda source, run: tokenizer.fit(source).results(), data, out, overwrite)


def fit_toy(data: str, out: str, partition: Partition = "prototype", tokens: int = 4, overwrite: bool = False) -> None:
    """Make a tokenizer of the toy model on `textures:` images, with the closed forms of what it should score.

    Args:
        data: `textures:` with its options.
        out: the run folder to write.
        partition: a token for each prototype, each pattern of classes or each class, or tokens across all classes.
        tokens: number of tokens across all classes.
        overwrite: replace a complete run in `out`.
    """
    tokenizer = PrototypeTokenizer(partition, tokens)
    fit_into(tokenizer, lambda source, run: tokenizer.fit(source).results(), data, out, overwrite)


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
    fit_into(tokenizer, lambda source, run: measure_use(tokenizer.fit(source), source), data, out, overwrite)


def fit_external(
    data: str,
    out: str,
    source: str,
    patch_size: int = 16,
    max_images: int = 2000,
    seed: int = 0,
    overwrite: bool = False,
) -> None:
    """Take a published tokenizer: its weights are copied, and its use of the codebook is measured on the data.

    Args:
        data: where the images are; labels are not needed.
        out: the run folder to write.
        source: `hf-flava:NAME` (the dVAE of DALL·E) or `diffusers-vq:NAME` (a VQGAN): a name of the hub or a folder.
        patch_size: side of a patch in pixels; images are resized so that each patch gets one id.
        max_images: images to measure usage and perplexity on, drawn at random.
        seed: of that choice.
        overwrite: replace a complete run in `out`.
    """
    if max_images < 1:
        raise ConfigError(f"--max-images {max_images} is too small: 1 at least")
    tokenizer = ExternalTokenizer(source, patch_size)

    def fit(images: Source, run: Run) -> dict[str, Any]:
        return measure_use(tokenizer.fit(images), images, max_images, seed, EXTERNAL_BATCH)

    fit_into(tokenizer, fit, data, out, overwrite, max_images=max_images, seed=seed)


def fit_into(
    tokenizer: Tokenizer,
    fit: Callable[[Source, Run], dict[str, Any]],
    data: str,
    out: str,
    overwrite: bool,
    **more: Any,
) -> None:
    """Fit, save and describe a tokenizer in a run folder; its configuration is the tokenizer's, and `more`."""
    config = {"data": data, **tokenizer.config(), **more}
    with process_group():
        with open_run(out, f"fit {tokenizer.kind}", config, overwrite=overwrite) as run:
            source = open_source(data)
            results = fit(source, run)
            tokenizer.save(run.folder)
            run.summary = {"results": results, "data": source.describe()}
        _report(tokenizer, results, source, out)


def _report(tokenizer: Tokenizer, results: dict[str, Any], source: Source, out: str) -> None:
    """Say how a fit ended, and where little of a codebook is in use."""
    warn_skipped(source.skipped)
    log_info(", ".join(f"{name} {value:,.6g}" for name, value in results.items()))
    if "usage" in results:
        warn_unused(results, REMEDIES.get(tokenizer.kind, REMEDIES["vq"]))
    if rank() == 0:
        print(f"wrote a tokenizer of {tokenizer.vocab_size} tokens ({tokenizer.kind}) to {out}")


@dataclass(frozen=True)
class AutoencoderOptions:
    """What every learned tokenizer is made of and trained on.

    Args:
        k: size of the codebook; a power of two for lfq, and for fsq the nearest product of levels is taken.
        patch_size: side of a patch in pixels; there is one token a patch.
        width: channels inside encoder and decoder.
        depth: residual blocks in each of them, which look at neighbouring patches.
        augment: shifts by an eighth with mirrored borders, random resized crop, or none; all but none also flip.
    """

    k: int = 512
    patch_size: int = 16
    width: int = 64
    depth: int = 2
    augment: Augment = "pad-crop"


@dataclass(frozen=True)
class PerceptualLoss:
    """The loss on a teacher's features, of VQGAN and PeCo.

    Args:
        teacher: whose features a reconstruction should keep, such as run:FOLDER?layer=2; may be given several times.
        perceptual_weight: of this loss.
    """

    teacher: list[str] | None = None
    perceptual_weight: float = 1.0


@dataclass(frozen=True)
class NoOptions:
    """For a tokenizer without options of that kind."""


def _learned(kind: str, about: str, quantizer: Any = NoOptions(), losses: Any = NoOptions()) -> Callable[..., None]:
    """The stage of a learned tokenizer, whose quantizer and losses have these options."""

    def stage(
        data: str,
        out: str,
        size: AutoencoderOptions = AutoencoderOptions(),
        quantizer: Any = quantizer,
        losses: Any = losses,
        schedule: Schedule = SCHEDULE,
        run: RunOptions = RunOptions(),
    ) -> None:
        """Train it in a run folder, and draw what it keeps of a few images.

        Args:
            data: where the images are; labels are not needed.
            out: the run folder to write.
        """
        config = {"data": data, **asdict(size), **asdict(quantizer), **asdict(losses), **asdict(schedule)}
        check_not_inside(config.get("teacher"), out, "the teacher")
        again = {"resume": run.resume, "overwrite": run.overwrite}
        with process_group(), pending_run(out, f"fit {kind}", config, **again) as opened:
            made = (kind, size.k, size.patch_size, size.width, size.depth, asdict(quantizer), schedule.seed)
            tokenizer, source = LearnedTokenizer(*made), open_source(data)
            tokenizer.fit(
                source, opened, augment=size.augment, **asdict(losses), schedule=schedule, options=run
            ).save_run(opened(), source)
            if rank() == 0:
                from clustermim.drawing.reconstructions import write_tokenizer_reconstructions  # slow to import

                write_tokenizer_reconstructions(opened(), tokenizer, source, tokenizer.results())
            _report(tokenizer, tokenizer.results(), source, out)

    stage.__name__ = f"fit_{kind}"
    stage.__doc__ = about + (stage.__doc__ or "").partition("a few images.")[2].replace("\n    ", "\n")
    return flat(stage)


fit_vq = _learned(
    "vq", "Train a VQ-VAE: tokens are the nearest vectors to what an encoder makes of patches.", CodebookOptions()
)
fit_vqgan = _learned(
    "vqgan",
    "Train a VQGAN: a VQ-VAE whose reconstructions should also look real to a discriminator.",
    CodebookOptions(),
    AuxiliaryLosses(),
)
fit_peco = _learned(
    "peco",
    "Train PeCo's tokenizer: a VQ-VAE that keeps what several layers of a teacher see.",
    CodebookOptions(),
    PerceptualLoss(),
)
fit_dvae = _learned(
    "dvae", "Train a discrete VAE by Gumbel-softmax, the recipe of DALL·E's tokenizer.", GumbelOptions()
)
fit_fsq = _learned(
    "fsq", "Train an autoencoder whose few features are rounded to levels (FSQ): a codebook that cannot collapse."
)
fit_lfq = _learned(
    "lfq",
    "Train an autoencoder whose features' signs are the bits of tokens (lookup-free quantization).",
    SignOptions(),
)


def tokenize_source(tokenizer: str, data: str, out: str, device: Device | None = None, overwrite: bool = False) -> None:
    """Write the ids of every patch of a data source to a .npy file, int32 of shape (images, patches).

    Args:
        tokenizer: the folder of a fitted tokenizer.
        data: where the images are.
        out: the .npy file to write; an image that could not be read has ids −1.
        device: where to compute; by default the fastest that is there.
        overwrite: replace an existing file.
    """
    path = Path(out)
    if path.suffix != ".npy":
        raise ConfigError(f"--out {out} must end in .npy")
    if path.exists() and not overwrite:
        raise RunError(f"{path} exists; choose another --out, or replace it with --overwrite")
    loaded, source = load_tokenizer(tokenizer).to(find_device(device)), open_source(data)
    rows, columns = grid_size(*source.shape[1:], loaded.patch_size)

    def write(file: BinaryIO) -> None:
        header = {"descr": "<i4", "fortran_order": False, "shape": (len(source), rows * columns)}
        np.lib.format.write_array_header_1_0(file, header)
        row = 0
        for batch, ids in tokenize(loaded, source):
            found = np.full((int(batch.indices[-1]) + 1 - row, rows * columns), -1, dtype="<i4")
            found[batch.indices.numpy() - row] = ids.numpy()
            file.write(found.tobytes())
            row += len(found)
        file.write(np.full((len(source) - row, rows * columns), -1, dtype="<i4").tobytes())

    write_atomic(path, write)
    warn_skipped(source.skipped)
    print(f"wrote the ids of {len(source):,} images × {rows * columns} patches to {path}")
