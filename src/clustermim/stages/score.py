"""The stage that judges a tokenizer before any training: `clustermim score`."""

from __future__ import annotations

import math
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from clustermim.data import Source, open_source
from clustermim.distributed import all_reduce_sum, process_group, rank
from clustermim.errors import ConfigError, DataError
from clustermim.progress import log_info, warn_skipped
from clustermim.runs import check_not_inside, open_run, to_json
from clustermim.scores import (
    Diag,
    Empty,
    Norm,
    TCASVariant,
    TokenClassTable,
)
from clustermim.scores.label_free import PatchMI, patch_mi_jittered
from clustermim.scores.sampled import transferability, view_retrieval, with_interval
from clustermim.tokenizers import Tokenizer, load_tokenizer, tokenize
from clustermim.tokenizers.modules import is_module
from clustermim.training import Device, find_device

BOUND_RATIO = 2.5  # of the label term to the spectral one in the bound Σλ² + r·α, as the paper chooses it
GROUPS = 20  # of images, for the intervals; five to each fold of the debiased score

PLAIN = TCASVariant()
MEANING = {
    "transferability": "how good a target they should be: bag, less chance, times 1 − recognised",
    "bag_accuracy": "images whose class a naive Bayes classifier tells from their tokens",
    "half_retrieval": "images whose one half finds the other by its tokens",
    "view_retrieval": "images one random view of which finds another by its tokens; needs no labels",
    "debiased": "TCAS without the bias of rare tokens; lower is better",
    "adjusted": "1 − TCAS/null: 0 is no class information, 1 is perfect",
    "tcas": "TCAS as counted; too low where tokens are rare",
    "null": "TCAS of the same tokens when the labels of the images are permuted",
    "chance": "TCAS of tokens that know nothing, given endless data",
    "alpha": "label error: two patches with one token differ in class",
    "sum_sq": "Σλ², from tokens that share an image; the other term of the bound",
    "patch_mi": "what tokens tell of each other in an image, places aside; needs no labels",
    "patch_mi_jittered": "the same between an image and itself in another light; needs no labels",
    "nmi": "normalised mutual information of token and class",
    "perplexity": "how many evenly used tokens would be as diverse",
}


def tcas(
    tokenizer: str,
    data: str,
    out: str | None = None,
    norm: Norm = "plain",
    diag: Diag = "C",
    tau: float = 1.0,
    empty: Empty = "drop",
    permutations: int = 10,
    seed: int = 0,
    json: bool = False,
    device: Device | None = None,
    overwrite: bool = False,
) -> None:
    """Score a tokenizer against the classes of labelled images: TCAS, its debiased and adjusted forms, α and Σλ².

    Args:
        tokenizer: the folder of a fitted tokenizer, or `module:package.module:factory`.
        data: where the labelled images are; best not those it was fitted on.
        out: the run folder to write; by default a folder `score-…` inside the tokenizer's, replaced when run again;
            for a module in the current folder.
        norm: class shares of a token as they are, or through a softmax as the paper's text says.
        diag: the diagonal of C as the paper defines it, or the norm that its equation prints.
        tau: temperature of the softmax.
        empty: what to do with tokens that never occur.
        permutations: of the image labels, for the null.
        seed: of the permutations and of the groups of images.
        json: print one JSON object instead of the table.
        device: where to compute the tokens; by default the fastest that is there.
        overwrite: replace a complete run in `out`.
    """
    with process_group():
        variant = TCASVariant(norm, diag, tau, empty)
        scores = run_tcas(tokenizer, data, out, variant, permutations, seed, overwrite, device)
        if rank() == 0 and json:
            print(to_json(scores))
        elif rank() == 0:
            print_scores(scores, f"{tokenizer} on {data}")


def run_tcas(
    tokenizer: str,
    data: str,
    out: str | None = None,
    variant: TCASVariant = PLAIN,
    permutations: int = 10,
    seed: int = 0,
    overwrite: bool = False,
    device: Device | None = None,
) -> dict[str, Any]:
    """Score a tokenizer folder on a data source and write the run folder; returns the scores."""
    loaded, source = load_tokenizer(tokenizer).to(find_device(device)), open_source(data)
    config = {"tokenizer": tokenizer, "data": data, **variant.check()._asdict(), "permutations": permutations}
    folder = out or str(_place(tokenizer) / f"score-{_slug(source.spec)}-{source.fingerprint[:8]}")
    check_not_inside(tokenizer, folder, "the tokenizer to score")
    with open_run(folder, "score", {**config, "seed": seed}, overwrite=overwrite or out is None) as run:
        with warnings.catch_warnings(record=True) as reported:
            warnings.simplefilter("always")
            scores = score(loaded, source, variant, permutations, seed)
        run.summary = {"results": scores, "data": source.describe()}
    for warning in reported:
        log_info(f"warning: {warning.message}")
    warn_skipped(source.skipped)
    return scores


def score(
    tokenizer: Tokenizer, source: Source, variant: TCASVariant, permutations: int = 10, seed: int = 0
) -> dict[str, Any]:
    """All scores of a tokenizer on a labelled source, in one pass; count tables are the only state."""
    if source.labels is None:
        raise DataError(f"{source.spec} has no labels, and TCAS needs them: arrange the images in one folder a class")
    if permutations < 0:
        raise ConfigError(f"--permutations {permutations} is too small: 0 at least")
    generator = np.random.default_rng(seed)
    labels = torch.from_numpy(source.labels)
    groups = torch.from_numpy(generator.permutation(len(source)) % GROUPS)  # without regard to the class
    shuffles = np.array([generator.permutation(len(source)) for _ in range(permutations)], dtype=np.int64)
    null_labels = labels[torch.from_numpy(shuffles.reshape(permutations, len(source)))]  # (P, images)
    table = TokenClassTable(tokenizer.vocab_size, len(source.class_names), GROUPS, permutations, **variant._asdict())
    kin = PatchMI(tokenizer, source)
    seen = torch.zeros(2, dtype=torch.long)
    for batch, ids in tokenize(tokenizer, source):
        where = batch.indices
        table.update(ids, labels[where], groups[where], null_labels[:, where])
        kin.update(ids, groups[where] % 2)
        seen += torch.tensor([len(ids), ids.numel()])
    images, patches = all_reduce_sum(seen).tolist()
    found: dict[str, Any] = {
        **table.compute(),
        **kin.compute(),
        "patch_mi_jittered": patch_mi_jittered(tokenizer, source),
    }
    found |= transferability(tokenizer, source).describe() | with_interval(
        "view_retrieval", view_retrieval(tokenizer, source)
    )
    found["bound"] = found["sum_sq"] + BOUND_RATIO * found["alpha"]
    return {**found, "images": images, "patches": patches}


def print_scores(scores: dict[str, Any], title: str) -> None:
    """One table, and which number of it to trust."""
    table = Table(title=title, title_justify="left", caption=trust(scores), caption_justify="left")
    for column, justify in (("", "left"), ("value", "right"), ("95 % interval", "right"), ("what it is", "left")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for name, meaning in MEANING.items():
        low, high = scores.get(f"{name}_low", math.nan), scores.get(f"{name}_high", math.nan)
        interval = "" if math.isnan(low) else f"{low:.4f} … {high:.4f}"
        style = "bold" if name in ("transferability", "debiased") else ""
        table.add_row(name, f"{scores[name]:.4f}", interval, meaning, style=style)
    table.add_row("used", f"{scores['used']}", "", f"of {scores['vocab_size']} tokens")
    counted = f"{scores['images']:,} images, {scores['patches']:,} patches; reading: {scores['variant']}"
    table.add_row("counted", "", "", counted)
    Console(highlight=False, width=None).print(table)


def trust(scores: dict[str, Any]) -> str:
    """Which number to trust, and why, for these scores."""
    choice = (
        "" if math.isnan(scores["transferability"]) else "Choose by `promise`, which best told what pretraining gives. "
    )
    return choice + trust_of_tcas(scores)


def trust_of_tcas(scores: dict[str, Any]) -> str:
    """Which form of TCAS to trust, and why."""
    kept, used = scores["debiased_kept"], scores["used"]
    if math.isnan(scores["debiased"]) or kept < used / 2:
        advice = "Trust `adjusted` here" if not math.isnan(scores["adjusted"]) else "Trust none of these"
        return (
            f"{advice}: only {kept} of {used} used tokens occur in all four parts of the images, too few "
            f"for `debiased`. `tcas` alone flatters rare tokens, which look pure. More images would help."
        )
    return (
        f"Trust `debiased` of TCAS, against chance {scores['plain_chance']:.4f}: it multiplies counts of different "
        f"images only, so a rare token does not look pure. Compare codebooks of different size by `adjusted`, and "
        f"bounds by the pair (sum_sq, alpha): a coarser codebook lowers the first and raises the second."
    )


def _place(tokenizer: str) -> Path:
    """Where its scores lie: inside its folder; a module has none, so in one of its name in the current folder."""
    return Path(_slug(tokenizer) if is_module(tokenizer) else tokenizer)


def _slug(spec: str) -> str:
    """A source's text as part of a file name."""
    return re.sub(r"[^A-Za-z0-9]+", "-", spec).strip("-")[-40:]
