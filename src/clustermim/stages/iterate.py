"""Iterated ClusterMIM: cluster the features of the encoder just pretrained, pretrain again. `clustermim iterate`."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from clustermim.data import open_source
from clustermim.data.augment import Augment
from clustermim.distributed import process_group, rank
from clustermim.errors import ConfigError, RunError
from clustermim.files import write_atomic
from clustermim.models.vit import find_size
from clustermim.patches import grid_size
from clustermim.progress import log_info
from clustermim.runs import CONFIG, SUMMARY, check_same_config, to_json
from clustermim.scores import SCORES as ROWS
from clustermim.scores import score as score_tokenizer
from clustermim.stages.fit import fit_kmeans
from clustermim.stages.pretrain import pretrain
from clustermim.stages.score import run_score
from clustermim.tokenizers import load_tokenizer

Choice = Literal["view_retrieval", "patch_mi", "transferability", "tcas"]
WITHOUT_LABELS: tuple[Choice, ...] = ("view_retrieval", "patch_mi")
SCORES: dict[Choice, str] = {  # the highest is chosen
    "view_retrieval": "view_retrieval",
    "patch_mi": "patch_mi",
    "transferability": "transferability",
    "tcas": "adjusted",
}
RECORD = "rounds.json"


class Candidate(NamedTuple):
    """A layer of the encoder before, clustered into k tokens."""

    layer: int
    k: int

    def name(self) -> str:
        return f"layer-{self.layer}-k-{self.k}"


def iterate(
    data: str,
    out: str,
    rounds: int = 3,
    first_k: int = 50,
    layers: list[int] | None = None,
    ks: list[int] | None = None,
    whiten: int = 64,
    image_mean_weight: float = -1.0,
    choose: Choice = "view_retrieval",
    labelled: str | None = None,
    model: str = "micro",
    patch_size: int = 4,
    epochs: int = 7,
    batch_size: int = 256,
    augment: Augment = "crop",
    seed: int = 0,
) -> None:
    """Pretrain on clusters of pixels, then again and again on clusters of the features of the encoder before.

    No outside teacher is needed. Whatever is complete in `out` is not done again, so a later call with more rounds
    continues; how to choose may differ in it, and holds from the first round that was not begun. Every round trains a
    new encoder for the same epochs.

    Args:
        data: where the images are.
        out: the folder of all rounds.
        rounds: how many pretrainings.
        first_k: clusters of pixels in the first round.
        layers: blocks of the encoder whose features may be clustered, 1 for the first; by default its upper half.
        ks: numbers of clusters to try; by default 200 and 500.
        whiten: cluster so many principal components of the features, of unit variance; 0 for the features themselves.
        image_mean_weight: add so many times the mean feature of the image to that of each patch; −1 takes it away.
        choose: take the candidate that is best without labels, by outlook or kinship, or by promise or adjusted TCAS
            on a few labelled images.
        labelled: some labelled images; scores on them are shown in any case, and needed to choose by them.
        model: size of the encoder.
        patch_size: side of a patch in pixels.
        epochs: of each round.
        batch_size: images to an optimizer step.
        augment: as of `clustermim pretrain`.
        seed: of all rounds.
    """
    depth = find_size(model).depth
    layers = layers or list(range(depth // 2, depth + 1))
    _check(rounds, layers, depth)
    _check_labelled(labelled, choose, patch_size)
    candidates = [Candidate(layer, k) for layer in layers for k in ks or (200, 500)]
    space = {"whiten": whiten, "image_mean_weight": image_mean_weight}
    training: dict[str, Any] = {
        "model": model,
        "patch_size": patch_size,
        "epochs": epochs,
        "batch_size": batch_size,
        "augment": augment,
        "seed": seed,
    }
    with process_group():
        maker = _Rounds(data, Path(out), patch_size, first_k, candidates, space, choose, labelled, seed)
        record = maker.begun()
        for number in range(1, rounds + 1):
            run = maker.run(number)
            if number <= len(record):
                tokenizer = maker.chosen(number, record[number - 1]["tokenizer"])
            else:
                tokenizer, reported = maker.tokens(number)
                record.append({"round": number, **reported})
                if rank() == 0:
                    write_atomic(Path(out) / RECORD, (to_json(record, indent=1) + "\n").encode())
            if is_complete(run):
                check_same_config(run, training, maker.fingerprint)
            else:
                pretrain(data, str(run), tokenizer=str(tokenizer), resume=(run / CONFIG).exists(), **training)


@dataclass(frozen=True)
class _Rounds:
    """Makes the tokens of each round; the options are those of `iterate`."""

    data: str
    out: Path
    patch_size: int
    first_k: int
    candidates: list[Candidate]
    space: dict[str, Any]  # what is done to features before they are clustered
    choose: Choice
    labelled: str | None
    seed: int

    def run(self, number: int) -> Path:
        """The folder of a round's pretraining."""
        return self.out / f"round-{number}" / "run"

    def begun(self) -> list[dict[str, Any]]:
        """What an earlier call wrote down of the rounds whose pretraining it began: their tokens are chosen."""
        file = self.out / RECORD
        try:
            record: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
            begun = [(self.run(entry["round"]) / CONFIG).exists() and bool(entry["tokenizer"]) for entry in record]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise RunError(f"{file} cannot be read: remove it, or choose another --out") from error
        return record[: [*begun, False].index(False)]

    def chosen(self, number: int, name: str) -> Path:
        """The folder of the tokens that a round was begun with, which must be of the same options."""
        options = {"k": self.first_k} if number == 1 else self.space
        folder = self.out / f"round-{number}" / ("tokenizer" if number == 1 else name)
        check_same_config(folder, {**options, "patch_size": self.patch_size, "seed": self.seed}, self.fingerprint)
        return folder

    def tokens(self, number: int) -> tuple[Path, dict[str, Any]]:
        """The folder of a round's tokenizer, and what there is to say of it."""
        folder = self.out / f"round-{number}"
        if number == 1:
            tokenizer = folder / "tokenizer"
            self.fit(tokenizer, k=self.first_k, space="pixel")
            return tokenizer, {"tokenizer": "pixels", "k": self.first_k}
        scores = {one: self.score(one, self.run(number - 1), folder / one.name()) for one in self.candidates}
        best = best_of(scores, self.choose)
        log_info(f"round {number}: {best.name()}, the best of {len(scores)} by {self.choose}")
        shown = {one.name(): found for one, found in scores.items()}
        return folder / best.name(), {"tokenizer": best.name(), "chosen_by": self.choose, "candidates": shown}

    def score(self, candidate: Candidate, before: Path, folder: Path) -> dict[str, float]:
        """Fit a candidate to the encoder before and score it, on labelled images where there are some."""
        teacher = f"{before}?layer={candidate.layer}"
        self.fit(folder, k=candidate.k, space="features", teacher=teacher, **self.space)
        if self.labelled is None:
            free = [name for name, row in ROWS.items() if not row.needs_labels]
            return score_tokenizer(load_tokenizer(folder), open_source(self.data), scores=free).values
        found = run_score(str(folder), self.labelled).values
        return {name: found[name] for name in (*SCORES.values(), "debiased", "sum_sq")}

    def fit(self, folder: Path, **options: Any) -> None:
        """Clusters in a folder, unless they are there already."""
        options |= {"patch_size": self.patch_size, "seed": self.seed}
        if is_complete(folder):
            check_same_config(folder, options, self.fingerprint)
        else:
            fit_kmeans(self.data, str(folder), **options)

    @cached_property
    def fingerprint(self) -> str:
        return open_source(self.data).fingerprint


def best_of(scores: dict[Candidate, dict[str, float]], choose: Choice) -> Candidate:
    """The candidate of the highest score; of TCAS the adjusted one, which compares codebooks of any size."""
    name = SCORES[choose]
    known = {candidate: found[name] for candidate, found in scores.items() if not math.isnan(found[name])}
    if not known:
        raise ConfigError(f"no candidate has a {name} score: there are too few images or patches")
    return max(known, key=lambda candidate: known[candidate])


def is_complete(folder: Path) -> bool:
    """Whether a run folder was written to its end."""
    return (folder / SUMMARY).exists()


def _check(rounds: int, layers: list[int], depth: int) -> None:
    if rounds < 1:
        raise ConfigError(f"--rounds {rounds} is too small: 1 at least")
    for layer in layers:
        if not 1 <= layer <= depth:
            raise ConfigError(f"--layers {layer}: the encoder has blocks 1 … {depth}")


def _check_labelled(labelled: str | None, choose: Choice, patch_size: int) -> None:
    """Before the first round, which takes long."""
    if labelled is None:
        if choose not in WITHOUT_LABELS:
            raise ConfigError(f"--choose {choose} needs --labelled, some labelled images; --choose outlook needs none")
        return
    source = open_source(labelled)
    grid_size(*source.shape[1:], patch_size)
    if source.labels is None:
        raise ConfigError(f"--labelled {labelled} has no labels: arrange the images in one folder a class")
