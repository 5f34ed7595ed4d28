"""`iterate`: cluster the features of the encoder just pretrained, and pretrain again."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

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
from clustermim.reading import Whole, check_shape, read_json
from clustermim.results import Result, Table
from clustermim.runs import CONFIG, SUMMARY, check_same_config, to_json
from clustermim.scores import SCORES, score
from clustermim.selection.candidates import Candidate, check_by, ranked
from clustermim.tokenizers import Tokenizer
from clustermim.training import Schedule

RECORD = "rounds.json"
SHAPE = Whole({"round": range(1, 1000), "tokenizer": str, str: object})
SHAPE_CHOSEN = Whole({"chosen_by": str, "candidates": {str: {str: (float, type(None))}}, str: object})
FIRST = "tokenizer"  # the folder of the first round's clusters of pixels


@dataclass(frozen=True)
class IterateOptions:
    """What the rounds try, and how they choose.

    Args:
        rounds: how many pretrainings.
        first_k: clusters of pixels in the first round.
        layers: blocks of the encoder whose features may be clustered, 1 for the first; by default its upper half.
        ks: numbers of clusters to try; by default 200 and 500.
        whiten: cluster so many principal components of the features, of unit variance; 0 for the features themselves.
        image_mean_weight: add so many times the mean feature of the image to that of each patch; −1 takes it away.
        choose: the score that chooses a candidate: view_retrieval or another that needs no labels; or on labelled
            images transferability, adjusted (TCAS) or another.
        labelled: some labelled images to score on; by default those to pretrain on, without labels.
    """

    rounds: int = 3
    first_k: int = 50
    layers: list[int] | None = None
    ks: list[int] | None = None
    whiten: int = 64
    image_mean_weight: float = -1.0
    choose: str = "view_retrieval"
    labelled: str | None = None


@dataclass(frozen=True, repr=False)
class Rounds(Result):
    """What each round chose, with the scores of its candidates, and the encoder of the last."""

    record: list[dict[str, Any]]
    encoder: Encoder

    def to_dict(self) -> dict[str, Any]:
        """The rounds, as rounds.json lists them."""
        return {"rounds": self.record}

    def table(self) -> Table:
        """One row a round."""
        rows = []
        for entry in self.record:
            by, name = entry.get("chosen_by", ""), entry["tokenizer"]
            value = f"{entry['candidates'][name][by]:.4f}" if by else ""
            rows.append([str(entry["round"]), name, by, value])
        return Table("Rounds of pretraining", ("round", "tokenizer", "chosen by", "value"), rows)

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

    No outside teacher is needed. Every round trains a new encoder on the same schedule. Whatever is complete in `out`
    is not done again, so a later call with more rounds continues; how to choose may differ in it, and holds from the
    first round that was not begun.

    >>> options = {"first_k": 6, "layers": [2], "ks": [4], "epochs": 1, "batch_size": 16, "device": "cpu"}
    >>> iterate("textures:?images=32&grid=2&patch=4", rounds=1, **options)
    Rounds(1, Encoder(micro: 3×8×8 images, patches of 4, width 128, 800,384 parameters))

    Args:
        source: the images.
        out: a folder to keep all rounds in.
    """
    if out is None and world_size() > 1:
        raise ConfigError("iterate on several ranks needs a folder that all of them see: name one with out")
    parts = {"architecture": architecture, "objective": objective, "schedule": schedule}
    shared = {"patch_size": architecture.patch_size, "seed": schedule.seed}
    opened = open_source(source)
    layers = _check(options, architecture, opened)
    with TemporaryDirectory() if out is None else nullcontext(out) as folder:
        record = _begun(Path(folder))
        for number in range(1, options.rounds + 1):
            home = Path(folder) / f"round-{number}"
            space: dict[str, Any] = {"whiten": options.whiten, "image_mean_weight": options.image_mean_weight}
            space = {"k": options.first_k} if number == 1 else {"space": "features", **space}
            if number > len(record):
                tried = _candidates(space, layers, options, home.with_name(f"round-{number - 1}") / "run")
                fitted = {one.name: one.fitted(opened, home, **shared) for one in tried}
                record.append({"round": number, **_choose(fitted, opened, options)})
                if rank() == 0:
                    write_atomic(Path(folder) / RECORD, (to_json(record, indent=1) + "\n").encode())
            tokens = home / (FIRST if number == 1 else record[number - 1]["tokenizer"])
            check_same_config(tokens, shared | space, opened.fingerprint)
            encoder = _kept(opened, home / "run", tokens, parts)
    return Rounds(record, encoder)


def _candidates(space: dict[str, Any], layers: list[int], options: IterateOptions, run: Path) -> list[Candidate]:
    """Clusters of pixels in the first round; then each layer of the encoder before, with each number of clusters."""
    if "k" in space:
        return [Candidate(FIRST, space)]
    return [
        Candidate(f"layer-{layer}-k-{k}", {"k": k, "teacher": f"{run}?layer={layer}", **space})
        for layer in layers
        for k in options.ks or (200, 500)
    ]


def _choose(fitted: dict[str, Tokenizer], source: Source, options: IterateOptions) -> dict[str, Any]:
    """The best of a round's candidates, and what there is to say of them."""
    if FIRST in fitted:
        return {"tokenizer": "pixels", "k": options.first_k}
    rows = [row for row in SCORES.values() if options.labelled or not row.needs_labels]
    names = [row.name for row in rows if row.name == options.choose or not row.on_request]
    found = {name: score(one, options.labelled or source, scores=names) for name, one in fitted.items()}
    order = ranked({name: scores.results[options.choose] for name, scores in found.items()}, options.choose)
    if not order:
        raise ConfigError(f"no candidate has a {options.choose} score: there are too few images or patches")
    log_info(f"{order[0]} is the best of {len(found)} by {options.choose}")
    shown = {name: scores.values for name, scores in found.items()}
    return {"tokenizer": order[0], "chosen_by": options.choose, "candidates": shown}


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
        for entry in (entry for entry in record if "chosen_by" in entry):
            check_shape(entry, SHAPE_CHOSEN, str(file), RunError)
            _ = float(entry["candidates"][entry["tokenizer"]][entry["chosen_by"]])
        begun = [
            (out / f"round-{entry['round']}" / "run" / CONFIG).exists() and bool(entry["tokenizer"]) for entry in record
        ]
    except (OSError, ValueError, TypeError, KeyError, RunError) as error:
        raise RunError(f"{file} cannot be read: remove it, or choose another --out") from error
    return record[: [*begun, False].index(False)]


def _check(options: IterateOptions, architecture: Architecture, source: Source) -> list[int]:
    """The layers to try; refuses what cannot be before the first round, which takes long."""
    depth = find_size(architecture.model).depth
    layers = options.layers or list(range(depth // 2, depth + 1))
    if options.rounds < 1:
        raise ConfigError(f"--rounds {options.rounds} is too small: 1 at least")
    if min(layers) < 1 or max(layers) > depth:
        raise ConfigError(f"--layers {layers}: the encoder has blocks 1 … {depth}")
    check_by(options.choose)
    if options.labelled is None and SCORES[options.choose].needs_labels:
        raise ConfigError(f"--choose {options.choose} needs --labelled; --choose view_retrieval needs no labels")
    labelled = open_source(options.labelled) if options.labelled else source
    grid_size(*labelled.shape[1:], architecture.patch_size or 4)
    if options.labelled and labelled.labels is None:
        raise ConfigError(f"--labelled {labelled.spec} has no labels: arrange the images in one folder a class")
    return layers
