"""The one table of scores, and the function that computes them: `score(tokenizer, source)`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from clustermim.data import Source, open_source
from clustermim.errors import ConfigError, DataError, did_you_mean
from clustermim.options import flat
from clustermim.progress import log_info
from clustermim.results import Result, Table
from clustermim.scores.bags import bag_accuracies, half_retrievals, split, transferability, view_retrieval
from clustermim.scores.base import Score, Value
from clustermim.scores.codebook import nmi, perplexity
from clustermim.scores.collect import SAMPLE, Tokens
from clustermim.scores.intervals import adjusted, chance, debiased, null, table_facts, tcas_score
from clustermim.scores.networks import psnr, untrained_features
from clustermim.scores.ranks import alpha_req, centred, lidar_of, neighbour_mi, plain, rankme, self_cluster, stable_rank
from clustermim.scores.spectral import alpha, sum_sq
from clustermim.scores.tcas import TCASVariant, warn_if_flat
from clustermim.scores.transfer import gbc, h_score, labels_of, leep, logistic_accuracy, logme, nleep
from clustermim.tokenizers import Tokenizer, load_tokenizer
from clustermim.training import Device, find_device

ANNOUNCED = 2e8  # bytes: work that takes more says so before it begins

BOUND_RATIO = 2.5  # of the label term to the spectral one in the bound Σλ² + r·α, as the paper chooses it

SCORES: dict[str, Score] = {
    row.name: row
    for row in (
        Score("transferability", True, True, "bag_accuracy above chance × (1 − half_retrieval)", transferability),
        Score("bag_accuracy", True, True, "images whose class naive Bayes finds from their tokens, places aside",
              lambda tokens: float(np.mean(tokens.cached(bag_accuracies)))),
        Score("half_retrieval", False, False, "images whose left half finds their right half by its tokens",
              lambda tokens: float(np.mean(tokens.cached(half_retrievals)))),
        Score("view_retrieval", True, False, "images one random view of which finds another by its tokens",
              view_retrieval),
        Score("debiased", False, True, "TCAS without the bias of rare tokens", debiased),
        Score("adjusted", True, True, "1 − tcas/null: 0 is no class information, 1 is perfect", adjusted),
        Score("tcas", False, True, "TCAS as counted; too low where tokens are rare", tcas_score),
        Score("null", None, True, "TCAS of the same tokens with the labels of the images permuted", null),
        Score("chance", None, True, "TCAS of tokens without class information, given endless data", chance),
        Score("alpha", False, True, "label error: two patches with one token differ in class",
              lambda tokens: alpha(tokens.table())),
        Score("sum_sq", False, False, "Σλ² of tokens that share an image: the other term of the bound", sum_sq),
        Score("bound", False, True, f"the paper's bound, sum_sq + {BOUND_RATIO:g}·alpha",
              lambda tokens: tokens.cached(sum_sq) + BOUND_RATIO * alpha(tokens.table())),
        Score("nmi", True, True, "normalised mutual information of token and class",
              lambda tokens: nmi(tokens.table())),
        Score("perplexity", None, False, "how many evenly used tokens would be as diverse",
              lambda tokens: perplexity(tokens.frequencies)),
        Score("rankme", True, False, "RankMe: effective rank of bags of tokens",
              lambda tokens: rankme(tokens.cached(plain)), on_request=True),
        Score("stable_rank", True, False, "Σσ²/σ₁² of bags of tokens",
              lambda tokens: stable_rank(tokens.cached(plain)), on_request=True),
        Score("nesum", True, False, "NESum: Σλ/λ₁ of the covariance of bags of tokens",
              lambda tokens: stable_rank(tokens.cached(centred)), on_request=True),
        Score("alpha_req", None, False, "α-ReQ: how fast the eigenvalues of that covariance fall; best near 1",
              lambda tokens: alpha_req(tokens.cached(centred)), on_request=True),
        Score("self_cluster", False, False, "SelfCluster: how alike bags of tokens are, 0 as random directions",
              lambda tokens: self_cluster(tokens.cached(plain), tokens.vocab_size), on_request=True),
        Score("lidar", True, False, "LiDAR: effective rank of what views of an image have in common", lidar_of,
              on_request=True),
        Score("neighbour_mi", None, False, "share of a token's entropy that the patch beside it tells",
              lambda tokens: neighbour_mi(tokens.sample[0].numpy(), tokens.grid), on_request=True),
        Score("leep", True, True, "LEEP of single tokens: −H(class | token)",
              lambda tokens: leep(tokens.table()), on_request=True),
        Score("nleep", True, True, "NLEEP: LEEP of clusters of bags of tokens",
              lambda tokens: nleep(tokens.cached(centred), tokens.cached(labels_of)), on_request=True),
        Score("logme", True, True, "LogME: evidence of a linear model from bags of tokens to classes",
              lambda tokens: logme(tokens.cached(plain), tokens.cached(labels_of)), on_request=True),
        Score("h_score", True, True, "H-score: variance between classes over all variance, C − 1 at most",
              lambda tokens: h_score(tokens.cached(centred), tokens.cached(labels_of)), on_request=True),
        Score("gbc", True, True, "GBC: minus the overlap of classes as spherical Gaussians",
              lambda tokens: gbc(tokens.cached(centred), tokens.cached(labels_of)), on_request=True),
        Score("logistic_accuracy", True, True, "images whose class logistic regression finds from their tokens",
              lambda of: logistic_accuracy(of.cached(centred), of.cached(labels_of), split(of.sample[0])),
              on_request=True),
        Score("untrained_accuracy", True, True, "the same from what an untrained encoder reads in their tokens",
              lambda of: logistic_accuracy(of.cached(untrained_features), of.cached(labels_of), split(of.sample[0])),
              on_request=True),
        Score("psnr", True, False, "decibels of images drawn again from their tokens", psnr, on_request=True),
    )
}  # fmt: skip


@dataclass(frozen=True, repr=False)
class Scores(Result):
    """What `score` found: a value for each name, its interval and parts; what was counted; and for which images."""

    results: Mapping[str, Value]
    facts: Mapping[str, Any]
    title: str = ""
    missing: str = ""  # which scores there are none of, and why

    @property
    def values(self) -> dict[str, float]:
        """The scores by name; NaN where there is none."""
        return {name: found.value for name, found in self.results.items()}

    @property
    def notes(self) -> dict[str, str]:
        """Why a score, or its interval, is missing."""
        return {
            name if math.isnan(found.value) else f"{name}_interval": found.note
            for name, found in self.results.items()
            if found.note
        }

    def to_dict(self) -> dict[str, Any]:
        """All numbers under one name each, as a summary holds them: NAME, NAME_low, NAME_high."""
        found: dict[str, Any] = {}
        for name, (value, low, high, *_) in self.results.items():
            found[name] = value
            if name in WITH_INTERVAL or not math.isnan(low):
                found |= {f"{name}_low": low, f"{name}_high": high}
        return {**found, **self.facts, "notes": self.notes}

    def table(self) -> Table:
        """The scores with their intervals, and which of them to trust."""
        rows = []
        for name, found in self.results.items():
            interval = "" if math.isnan(found.low) else f"{found.low:.4f} … {found.high:.4f}"
            better = {True: "higher", False: "lower", None: ""}[SCORES[name].higher_is_better]
            rows.append([name, f"{found.value:.4f}", interval, better, SCORES[name].meaning])
        reasons: dict[str, list[str]] = {}
        for name, note in self.notes.items():
            reasons.setdefault(note, []).append(name)
        notes = [f"No {', '.join(names)}: {note}." for note, names in reasons.items()]
        facts = self.facts
        used = f", {facts['used']:,} of {facts['vocab_size']:,} tokens" if "used" in facts else ""
        variant = f"; TCAS: {facts['variant']}" if "variant" in facts else ""
        counted = f"Counted: {facts['images']:,} images, {facts['patches']:,} patches{used}{variant}."
        lines = [counted, self.missing, *notes, trust(self.to_dict())]
        caption = "\n".join(line for line in lines if line)
        return Table(self.title, ("score", "value", "95 % interval", "better", "what it is"), rows, caption)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value:.4f}" for name, value in list(self.values.items())[:5])
        return f"Scores({values}{', …' if len(self.results) > 5 else ''})"


WITH_INTERVAL = ("transferability", "view_retrieval", "debiased", "adjusted")


@flat
def score(
    tokenizer: Tokenizer | str | Path | Callable[[Tensor], Any],
    source: object,
    *,
    scores: Sequence[str] | None = None,
    rivals: bool = False,
    variant: TCASVariant = TCASVariant(),
    permutations: int = 10,
    images: int = SAMPLE,
    seed: int = 0,
    device: Device | None = None,
    unlabelled: object = None,
) -> Scores:
    """Score a tokenizer before any training, each image tokenized once; without labels, by the scores that need none.

    >>> from clustermim.tokenizers import RandomTokenizer
    >>> tokenizer = RandomTokenizer(k=10, patch_size=2).fit("digits/train")
    >>> score(tokenizer, "digits/test", scores=["alpha", "half_retrieval"])
    Scores(alpha=0.8989, half_retrieval=0.0194)

    Args:
        tokenizer: a fitted tokenizer, its folder, `module:package.module:factory`, or a callable of your own from
            images to ids that says its `vocab_size` and `patch_size`.
        source: the images, or the text, path or Dataset to open; best not those it was fitted on.
        scores: names of SCORES to compute; by default all but known scores, or all of these that need no labels.
        rivals: without names, also known scores to compare with: RankMe, LiDAR, LEEP, LogME, … (docs/scores.md).
        permutations: of the image labels, for `null`.
        images: how many to draw at random for the scores that compare images with each other.
        seed: of the permutations and of the groups of images.
        device: where to compute the tokens; by default where the tokenizer is.
        unlabelled: more images, for half_retrieval, which needs no labels: transferability then does with fewer.
    """
    data, fitted = open_source(source), load_tokenizer(tokenizer)
    if device is not None or not isinstance(tokenizer, Tokenizer):
        fitted = fitted.to(find_device(device))
    names, missing = _asked(data, scores, rivals)
    tokens = Tokens(
        fitted,
        data,
        variant,
        permutations,
        seed,
        images,
        unlabelled=None if unlabelled is None else open_source(unlabelled),
    )
    if scores is None and (size := tokens.memory(rivals)) > ANNOUNCED:
        log_info(f"scoring {len(data):,} images takes up to {size / 1e9:.1f} GB of memory")
    results = {name: SCORES[name].measure(tokens) for name in names}
    return Scores(results, _facts(tokens), f"{fitted.kind} tokenizer on {data.spec}", missing)


def _asked(source: Source, scores: Sequence[str] | None, rivals: bool) -> tuple[list[str], str]:
    """The scores to compute, and a line about those that cannot be."""
    for name in scores or ():
        if name not in SCORES:
            raise ConfigError(f"there is no score {name!r}{did_you_mean(name, list(SCORES))}")
    names = [name for name, row in SCORES.items() if rivals or not row.on_request] if scores is None else list(scores)
    if source.labels is not None:
        return names, ""
    without = [name for name in names if SCORES[name].needs_labels]
    if scores is not None and without:
        raise DataError(
            f"{source.spec} has no labels, and {without[0]} needs them: arrange the images in one folder a class"
        )
    return [name for name in names if name not in without], f"Not without labels: {', '.join(without)}."


def _facts(tokens: Tokens) -> dict[str, Any]:
    """What was counted on the way to the scores."""
    read = vars(tokens)
    found: dict[str, Any] = {"vocab_size": tokens.vocab_size}
    if "ids" in read:
        counts = tokens.frequencies[tokens.frequencies > 0]
        found |= {"used": len(counts), "min_count": float(counts.min()), "patches": int(counts.sum())}
    else:
        found |= {"patches": len(tokens.sample[1]) * tokens.patches if "sample" in read else 0}
    found["images"] = found["patches"] // tokens.patches
    if "rows" in read:
        warn_if_flat(tokens.variant)
        found |= table_facts(tokens)
    return found


def trust(scores: Mapping[str, Any]) -> str:
    """Which number to trust, and why, for these scores."""
    choice = ""
    if not math.isnan(scores.get("transferability", math.nan)):
        choice = "Choose by `transferability`, which best predicted what pretraining gives. "
    elif not math.isnan(scores.get("view_retrieval", math.nan)) and "tcas" not in scores:
        choice = "Choose by `view_retrieval`, the best predictor that needs no labels. "
    if not {"debiased", "adjusted", "debiased_kept"} <= scores.keys():
        return choice
    kept, used = scores["debiased_kept"], scores["used"]
    if math.isnan(scores["debiased"]) or kept < used / 2:
        advice = "Trust `adjusted` here" if not math.isnan(scores["adjusted"]) else "Trust none of these"
        return (
            f"{choice}{advice}: only {kept} of {used} used tokens occur in all four parts of the images, too few "
            f"for `debiased`. `tcas` alone flatters rare tokens, which look pure. More images would help."
        )
    return (
        f"{choice}Trust `debiased` of TCAS, against chance {scores['plain_chance']:.4f}: a rare token does not look "
        "pure. Compare codebooks of different size by `adjusted`, and bounds by the pair (sum_sq, alpha)."
    )
