"""The stages that make tokenizers, `clustermim fit …`, and `clustermim tokenize`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, make_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from clustermim.cost import measure_cost
from clustermim.data import Source, open_source
from clustermim.data.augment import Augment
from clustermim.distributed import process_group, rank
from clustermim.errors import ConfigError, RunError
from clustermim.files import write_atomic
from clustermim.options import describe_arguments, flat
from clustermim.progress import log_info, warn_skipped
from clustermim.runs import Run, check_not_inside, open_run
from clustermim.tokenizers import TOKENIZERS, KMeansTokenizer, LearnedTokenizer, Tokenizer, load_tokenizer
from clustermim.tokenizers.learning import SCHEDULE, AuxiliaryLosses
from clustermim.tokenizers.quantizers import QUANTIZERS
from clustermim.tokenizers.usage import all_ids, measure_use, warn_unused
from clustermim.training import Device, RunOptions, Schedule, find_device, run_opener

EXTERNAL_IMAGES = 2000  # to measure the use of a codebook on
EXTERNAL_BATCH = 32  # of them; some networks take gigabytes for more
REMEDIES = {
    "vq": "a lower --k, a higher --dead-code-threshold, a lower --decay or more --epochs",
    "dvae": "a lower --k, a higher --kl-weight, a higher --temperature or more --epochs",
    "fsq": "a lower --k or more --epochs",
    "lfq": "a lower --k, a higher --entropy-weight or more --epochs",
    "random-projection": "a larger --code-dim, or a smaller --k",
    "external": "images like those the tokenizer was trained on, larger ones, or a larger --patch-size",
}


def _plain(tokenizer: Tokenizer, source: Source, run: Run) -> dict[str, Any]:
    return tokenizer.fit(source).results()


def _measured(tokenizer: Tokenizer, source: Source, run: Run) -> dict[str, Any]:
    return measure_use(tokenizer.fit(source), source)


def _kmeans(tokenizer: KMeansTokenizer, source: Source, run: Run, *, device: Device | None = None) -> dict[str, Any]:
    """With the log of its iterations.

    Args:
        device: where the teacher computes; by default the fastest that is there.
    """
    return tokenizer.fit(source, device=device, log=run.log).results()


def _external(tokenizer: Tokenizer, source: Source, run: Run) -> dict[str, Any]:
    return measure_use(tokenizer.fit(source), source, EXTERNAL_IMAGES, batch_size=EXTERNAL_BATCH)


def _stage(kind: str, fit: Callable[..., dict[str, Any]] = _plain) -> Callable[..., None]:
    """The stage of a kind of tokenizer, explained as its class is: with its options, and the named ones of `fit`."""
    tokenizer = TOKENIZERS[kind]
    own = inspect.signature(tokenizer, eval_str=True).parameters
    more = {n: p for n, p in inspect.signature(fit, eval_str=True).parameters.items() if p.kind is p.KEYWORD_ONLY}

    def stage(data: str, out: str, *, overwrite: bool = False, **options: Any) -> None:
        """Fit it in a run folder.

        Args:
            data: where the images are: `folder:PATH`, `cifar10/train`, `textures:`, …
            out: the run folder to write.
            k: size of the codebook.
            patch_size: side of a patch in pixels.
            seed: another seed gives other ids.
            overwrite: replace a complete run in `out`.
        """
        check_not_inside(options.get("teacher"), out, "the teacher")
        new = tokenizer(**{name: options[name] for name in own})
        fit_into(new, partial(fit, new, **{name: options[name] for name in more}), data, out, overwrite)

    given = [p for p in inspect.signature(stage, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]
    named = [p.replace(kind=p.KEYWORD_ONLY) for p in (*own.values(), *more.values())]
    stage.__signature__ = shown = inspect.Signature(  # type: ignore[attr-defined]
        [*given[:2], *named, given[2]], return_annotation=None
    )
    texts: dict[str, str] = {}
    for documented in (stage, tokenizer, tokenizer.__init__, fit):
        texts |= describe_arguments(documented)
    about, lines = (tokenizer.__doc__ or "").splitlines()[0], [f"        {n}: {texts[n]}" for n in shown.parameters]
    stage.__name__, stage.__doc__ = f"fit_{kind.replace('-', '_')}", "\n".join([about, "", "    Args:", *lines])
    return flat(stage)


fit_kmeans = _stage("kmeans", _kmeans)
fit_random = _stage("random")
fit_labels = _stage("labels")
fit_toy = _stage("toy")
fit_random_projection = _stage("random-projection", _measured)
fit_external = _stage("external", _external)


def fit_into(
    tokenizer: Tokenizer, fit: Callable[[Source, Run], dict[str, Any]], data: str, out: str, overwrite: bool
) -> None:
    """Fit, save and describe a tokenizer in a run folder; its configuration is the tokenizer's."""
    config = {"data": data, **tokenizer.config()}
    with process_group():
        with open_run(out, f"fit {tokenizer.kind}", config, overwrite=overwrite) as run:
            source = open_source(data)
            with measure_cost() as cost:
                results = fit(source, run)
            tokenizer.save(run.folder)
            run.summary = {"results": {**results, **cost}, "data": source.describe()}
        _report(tokenizer, results, source, out)


def _report(tokenizer: Tokenizer, results: dict[str, Any], source: Source, out: str) -> None:
    """Say how a fit ended, and where little of a codebook is in use."""
    warn_skipped(source.skipped)
    log_info(", ".join(f"{name} {value:,.6g}" for name, value in results.items()))
    if "usage" in results:
        warn_unused(results, REMEDIES.get(tokenizer.kind, REMEDIES["vq"]))
    if rank() == 0:
        print(f"wrote a tokenizer of {tokenizer.vocab_size} tokens ({tokenizer.kind}) to {out}")


def _options(owner: Any, names: Sequence[str]) -> Any:
    """Some options of a class, as a dataclass for `flat`."""
    given, texts = inspect.signature(owner, eval_str=True).parameters, describe_arguments(owner)
    doc = "\n".join(["Options.", "", "    Args:", *(f"        {name}: {texts[name]}" for name in names)])
    fields: list[Any] = [(name, given[name].annotation, given[name].default) for name in names]
    return make_dataclass("Options", fields, frozen=True, namespace={"__doc__": doc})()


def _learned(kind: str, about: str, *losses: str) -> Callable[..., None]:
    """The stage of a learned tokenizer, with the options of its quantizer and those of `AuxiliaryLosses` named here."""

    def stage(
        data: str,
        out: str,
        *,
        size: Any = _options(LearnedTokenizer, ("k", "patch_size", "width", "depth")),
        augment: Augment = "pad-crop",
        quantizer: Any = _options(QUANTIZERS[kind], list(inspect.signature(QUANTIZERS[kind]).parameters)[1:]),
        losses: Any = _options(AuxiliaryLosses, losses),
        schedule: Schedule = SCHEDULE,
        run: RunOptions = RunOptions(),
    ) -> None:
        """Train it in a run folder, and draw what it keeps of a few images.

        Args:
            data: where the images are; labels are not needed.
            out: the run folder to write.
            augment: shifts by an eighth with mirrored borders, random resized crop, or none; all but none also flip.
        """
        more = {"augment": augment, **asdict(quantizer), **asdict(losses), **asdict(schedule)}
        check_not_inside(more.get("teacher"), out, "the teacher")
        with process_group(), run_opener(out, f"fit {kind}", {"data": data, **asdict(size), **more}, run) as opened:
            tokenizer = LearnedTokenizer(kind, **asdict(size), quantizer=asdict(quantizer), seed=schedule.seed)
            source = open_source(data)
            tokenizer.fit(source, opened, augment=augment, **asdict(losses), schedule=schedule, options=run)
            if rank() == 0 and opened:
                from clustermim.drawing.reconstructions import write_tokenizer_reconstructions  # slow to import

                write_tokenizer_reconstructions(opened(), tokenizer, source, tokenizer.results())
            _report(tokenizer, tokenizer.results(), source, out)

    stage.__name__ = f"fit_{kind}"
    stage.__doc__ = about + (stage.__doc__ or "").partition("a few images.")[2].replace("\n    ", "\n")
    return flat(stage)


fit_vq = _learned("vq", "Train a VQ-VAE: tokens are the nearest vectors to what an encoder makes of patches.")
fit_vqgan = _learned(
    "vqgan",
    "Train a VQGAN: a VQ-VAE whose reconstructions should also look real to a discriminator.",
    *(field.name for field in fields(AuxiliaryLosses)),
)
fit_peco = _learned(
    "peco",
    "Train PeCo's tokenizer: a VQ-VAE that keeps what several layers of a teacher see.",
    "teacher",
    "perceptual_weight",
)
fit_vqkd = _learned(
    "vqkd",
    "Train VQ-KD, the tokenizer of BEiT v2: a ViT whose tokens tell a small decoder the features of a teacher.",
    "teacher",
)
fit_dvae = _learned("dvae", "Train a discrete VAE by Gumbel-softmax, the recipe of DALL·E's tokenizer.")
fit_fsq = _learned(
    "fsq", "Train an autoencoder whose few features are rounded to levels (FSQ): a codebook that cannot collapse."
)
fit_lfq = _learned(
    "lfq", "Train an autoencoder whose features' signs are the bits of tokens (lookup-free quantization)."
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
    found = all_ids(loaded, source).numpy().astype("<i4", copy=False)
    warn_skipped(source.skipped)
    if rank() == 0:
        write_atomic(path, lambda file: np.save(file, found))
    print(f"wrote the ids of {len(source):,} images × {found.shape[1]} patches to {path}")
