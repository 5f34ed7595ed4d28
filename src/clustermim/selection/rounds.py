"""`iterate`: cluster the features of the encoder just pretrained, and pretrain again."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from clustermim.cost import measure_cost, over_ranks
from clustermim.data import Source, open_source
from clustermim.distributed import rank, world_size
from clustermim.errors import ConfigError, RunError
from clustermim.files import write_atomic
from clustermim.models import Encoder, load_encoder
from clustermim.models.vit import find_size
from clustermim.options import flat, flattened
from clustermim.patches import grid_size
from clustermim.pretraining import PRETRAINING, Architecture, Objective, pretrain
from clustermim.progress import log_info
from clustermim.reading import Whole, check_shape, fits, read_json
from clustermim.results import Result, Table
from clustermim.runs import CONFIG, SUMMARY, check_same_config, read_summary, to_json
from clustermim.scores import SCORES, score
from clustermim.selection.candidates import Candidate, check_by, ranked
from clustermim.tokenizers import Tokenizer
from clustermim.training import Schedule

RECORD = "rounds.json"
SHAPE = Whole({"round": range(1, 1000), "tokenizer": str, str: object})
COST = {"flops": float, "cpu_seconds": float}
SHAPE_CHOSEN = Whole({"chosen_by": str, "candidates": {str: {str: (float, type(None))}}, str: object})


@dataclass(frozen=True)
class IterateOptions:
    """What the rounds try, and how they choose.

    Args:
        rounds: how many pretrainings; by default 3, or one for each of `round_epochs`.
        round_epochs: epochs of each round, such as 2, 2 and 3; by default those of the schedule in each.
        first_ks: numbers of clusters to try in the first round; by default 50.
        first_spaces: spaces to try in the first round: pixel, pixel-norm or pixel-white; by default pixel.
        layers: blocks of the encoder whose features may be clustered, 1 for the first; by default its upper half.
        ks: numbers of clusters to try in later rounds, up to some thousands; by default 200 and 500.
        whiten: cluster so many principal components of the features, of unit variance; 0 for the features themselves.
        image_mean_weight: add so many times the mean feature of the image to that of each patch; −1 takes it away.
        choose: the score that chooses among several candidates; by default transferability where there are labelled
            images, and view_retrieval, which needs no labels, where there are none.
        labelled: some labelled images to score on; by default those to pretrain on, without labels.
    """

    rounds: int | None = None
    round_epochs: list[int] | None = None
    first_ks: list[int] | None = None
    first_spaces: list[Literal["pixel", "pixel-norm", "pixel-white"]] | None = None
    layers: list[int] | None = None
    ks: list[int] | None = None
    whiten: int = 64
    image_mean_weight: float = -1.0
    choose: str | None = None
    labelled: str | None = None

    @property
    def score(self) -> str:
        """The score that chooses."""
        return self.choose or ("transferability" if self.labelled else "view_retrieval")

    def epochs(self, schedule: Schedule) -> list[int]:
        """The epochs of each round."""
        return self.round_epochs or [schedule.epochs] * (3 if self.rounds is None else self.rounds)


@dataclass(frozen=True, repr=False)
class Rounds(Result):
    """What each round chose, with the scores of its candidates and its cost, and the encoder of the last."""

    record: list[dict[str, Any]]
    encoder: Encoder

    def to_dict(self) -> dict[str, Any]:
        """The rounds, as rounds.json lists them, each with its epochs and its whole cost, and the cost of all."""
        return {"rounds": self.record, "cost": self.cost()}

    def cost(self) -> dict[str, float]:
        """Operations and seconds of CPU of all rounds: of fits, of scores and of pretraining."""
        return {unit: sum(entry["cost"][unit] for entry in self.record if "cost" in entry) for unit in COST}

    def table(self) -> Table:
        """One row a round."""
        rows = []
        for entry in self.record:
            by, name = entry.get("chosen_by", ""), entry["tokenizer"]
            value = f"{entry['candidates'][name][by]:.4f}" if by else ""
            rows.append([str(entry["round"]), name, by, value, str(entry.get("epochs", "")), *shown(entry.get("cost"))])
        rows.append(["all", "", "", "", str(sum(entry.get("epochs", 0) for entry in self.record)), *shown(self.cost())])
        columns = ("round", "tokenizer", "chosen by", "value", "epochs", "TFLOPs", "CPU seconds")
        caption = "Costs are of fits, scores and pretraining; the summary of a pretrain has flops and cpu_seconds too."
        return Table("Rounds of pretraining", columns, rows, caption)

    def __repr__(self) -> str:
        return f"Rounds({len(self.record)}, {self.encoder!r})"


@flat
def iterate(
    source: object,
    *,
    options: IterateOptions = IterateOptions(),
    architecture: Architecture = Architecture(patch_size=4),
    objective: Objective = Objective(),
    schedule: Schedule = replace(PRETRAINING, epochs=7),
    out: str | Path | None = None,
) -> Rounds:
    """Pretrain on clusters of pixels, then again and again on clusters of the features of the encoder before.

    No outside teacher is needed. Every round trains a new encoder on the same schedule, or on so many epochs as
    `round_epochs` gives it. Whatever is complete in `out` is not done again, so a later call with more rounds
    continues; how to choose may differ in it, and holds from the first round that was not begun.

    >>> options = {"first_ks": [6], "layers": [2], "ks": [4], "epochs": 1, "batch_size": 16, "device": "cpu"}
    >>> iterate("textures:?images=32&grid=2&patch=4", rounds=1, **options)
    Rounds(1, Encoder(micro: 3×8×8 images, patches of 4, width 128, 800,384 parameters))

    Args:
        source: the images.
        out: a folder to keep all rounds in.
    """
    if out is None and world_size() > 1:
        raise ConfigError("iterate on several ranks needs a folder that all of them see: name one with out")
    shared = {"patch_size": architecture.patch_size, "seed": schedule.seed}
    opened = open_source(source)
    layers, epochs = _check(options, architecture, schedule, opened), options.epochs(schedule)
    with TemporaryDirectory() if out is None else nullcontext(out) as folder:
        record, done = _begun(Path(folder)), list[dict[str, Any]]()
        for number in range(1, len(epochs) + 1):
            home = Path(folder) / f"round-{number}"
            tried = _candidates(number, layers, options, home.with_name(f"round-{number - 1}") / "run")
            if number > len(record):
                fitted = {one.name: one.fitted(opened, home, **shared) for one in tried}
                record.append({"round": number, **_choose(fitted, opened, options)})
                if rank() == 0:
                    write_atomic(Path(folder) / RECORD, (to_json(record, indent=1) + "\n").encode())
            entry = record[number - 1]
            if number == 1 and entry["tokenizer"] not in [one.name for one in tried]:
                raise RunError(f"{folder} began with {entry['tokenizer']}, not {tried[0].name}; choose another --out")
            tokens = home / entry["tokenizer"]
            check_same_config(tokens, shared | _space(number, options), opened.fingerprint)
            own = replace(schedule, epochs=epochs[number - 1])
            parts = {"architecture": architecture, "objective": objective, "schedule": own}
            encoder = _kept(opened, home / "run", tokens, parts)
            done.append({**entry, "epochs": own.epochs, "cost": _cost(home, entry)})
            log_info(
                f"round {number} {in_words(done[-1]['cost'])}; all so far {in_words(Rounds(done, encoder).cost())}"
            )
    return Rounds(done, encoder)


def _space(number: int, options: IterateOptions) -> dict[str, Any]:
    """The options that all candidates of a round share."""
    if number == 1:
        return {}
    return {"space": "features", "whiten": options.whiten, "image_mean_weight": options.image_mean_weight}


def _candidates(number: int, layers: list[int], options: IterateOptions, run: Path) -> list[Candidate]:
    """Clusters of pixels in the first round; then each layer of the encoder before, with each number of clusters."""
    if number == 1:
        tried = itertools.product(options.first_spaces or ("pixel",), options.first_ks or (50,))
        return [Candidate(f"{space}-k-{k}", {"k": k, "space": space}) for space, k in tried]
    shared = _space(number, options)
    return [
        Candidate(f"layer-{layer}-k-{k}", {"k": k, "teacher": f"{run}?layer={layer}", **shared})
        for layer in layers
        for k in options.ks or (200, 500)
    ]


def _choose(fitted: dict[str, Tokenizer], source: Source, options: IterateOptions) -> dict[str, Any]:
    """The best of a round's candidates, what there is to say of them, and what it cost; of one, nothing is asked."""
    if len(fitted) == 1:
        return {"tokenizer": next(iter(fitted))}
    by = options.score
    rows = [row for row in SCORES.values() if options.labelled or not row.needs_labels]
    names = [row.name for row in rows if row.name == by or not row.on_request]
    with measure_cost() as cost:
        found = {name: score(one, options.labelled or source, scores=names) for name, one in fitted.items()}
    order = ranked({name: scores.results[by] for name, scores in found.items()}, by)
    if not order:
        raise ConfigError(f"no candidate has a {by} score: there are too few images or patches")
    log_info(f"{order[0]} is the best of {len(found)} by {by}")
    values = {name: scores.values for name, scores in found.items()}
    return {"tokenizer": order[0], "chosen_by": by, "candidates": values, "scores_cost": over_ranks(cost)}


def _cost(home: Path, entry: Mapping[str, Any]) -> dict[str, float]:
    """What a round cost: all its fits, its scores and its pretraining, as their summaries say."""
    made = [read_summary(path.parent)["results"] for path in sorted(home.glob(f"*/{SUMMARY}"))]
    parts = [*made, entry.get("scores_cost", {})]
    return {unit: sum(part[unit] for part in parts if fits(part.get(unit), float)) for unit in COST}


def shown(cost: Mapping[str, float] | None) -> list[str]:
    """A cost as the table has it."""
    return [f"{cost['flops'] / 1e12:.3f}", f"{cost['cpu_seconds']:.1f}"] if cost else ["", ""]


def in_words(cost: Mapping[str, float]) -> str:
    """A cost in a sentence.

    >>> in_words({"flops": 2.5e12, "cpu_seconds": 30})
    'cost 2.500 TFLOPs and 30.0 CPU seconds'
    """
    return "cost {} TFLOPs and {} CPU seconds".format(*shown(cost))


def _kept(source: Source, run: Path, tokenizer: Path, parts: dict[str, Any]) -> Encoder:
    """The encoder of a run folder, trained or trained further if it is not complete."""
    if not (run / SUMMARY).exists():
        resume = (run / CONFIG).exists()
        return pretrain(source, "tokens", tokenizer=str(tokenizer), out=run, resume=resume, **parts)
    check_same_config(run, flattened(parts), source.fingerprint)
    return load_encoder(run)


def _begun(out: Path) -> list[dict[str, Any]]:
    """What an earlier call wrote down of the rounds whose pretraining it began: their tokens are chosen."""
    file = out / RECORD
    try:
        record: list[dict[str, Any]] = read_json(file) if file.exists() else []
        check_shape(record, [SHAPE], str(file), RunError)
        for cost in (entry["scores_cost"] for entry in record if "scores_cost" in entry):
            check_shape(cost, COST, str(file), RunError)
        for entry in (entry for entry in record if "chosen_by" in entry):
            check_shape(entry, SHAPE_CHOSEN, str(file), RunError)
            _ = float(entry["candidates"][entry["tokenizer"]][entry["chosen_by"]])
        begun = [
            (out / f"round-{entry['round']}" / "run" / CONFIG).exists() and bool(entry["tokenizer"]) for entry in record
        ]
    except (OSError, ValueError, TypeError, KeyError, RunError) as error:
        raise RunError(f"{file} cannot be read: remove it, or choose another --out") from error
    return record[: [*begun, False].index(False)]


def _check(options: IterateOptions, architecture: Architecture, schedule: Schedule, source: Source) -> list[int]:
    """The layers to try; refuses what cannot be before the first round, which takes long."""
    depth = find_size(architecture.model).depth
    layers = options.layers or list(range(depth // 2, depth + 1))
    epochs = options.epochs(schedule)
    if options.rounds is not None and options.rounds < 1:
        raise ConfigError(f"--rounds {options.rounds} is too small: 1 at least")
    if options.round_epochs and options.rounds not in (None, len(epochs)):
        raise ConfigError(f"--round-epochs {epochs} are for {len(epochs)} rounds, not --rounds {options.rounds}")
    if min(epochs) < 1:
        raise ConfigError(f"--round-epochs {epochs}: 1 at least in each round")
    if min(layers) < 1 or max(layers) > depth:
        raise ConfigError(f"--layers {layers}: the encoder has blocks 1 … {depth}")
    check_by(options.score)
    if options.labelled is None and SCORES[options.score].needs_labels:
        raise ConfigError(f"--choose {options.score} needs --labelled; --choose view_retrieval needs no labels")
    labelled = open_source(options.labelled) if options.labelled else source
    grid_size(*labelled.shape[1:], architecture.patch_size or 4)
    rows, columns = grid_size(*source.shape[1:], architecture.patch_size or 4)
    largest, patches = max([*(options.first_ks or ()), *(options.ks or ())], default=1), len(source) * rows * columns
    if largest > patches:
        raise ConfigError(f"{largest:,} clusters are more than the {patches:,} patches of {source.spec}: lower them")
    if options.labelled and labelled.labels is None:
        raise ConfigError(f"--labelled {labelled.spec} has no labels: arrange the images in one folder a class")
    return layers
