"""Every kind of artifact, small: how it is made, the files it has, and what reads and uses it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from torch import Tensor, nn

import clustermim as cm
from clustermim.data import open_source, to_float
from clustermim.models import Encoder
from clustermim.parsing import options_of
from clustermim.reports.curves import read_curves
from clustermim.runs import Run, check_same_config, open_resumable_run, open_run, read_summary
from clustermim.selection.rounds import Rounds, _begun
from clustermim.stage_table import STAGES
from clustermim.studies.presets import open_study
from clustermim.studies.records import read_recorded
from clustermim.studies.running import checked_cells, collect
from clustermim.tokenizers import (
    TOKENIZERS,
    KMeansTokenizer,
    LabelTokenizer,
    LearnedTokenizer,
    PrototypeTokenizer,
    RandomProjectionTokenizer,
    RandomTokenizer,
    Tokenizer,
    load_tokenizer,
)
from clustermim.tokenizers.base import checksum
from clustermim.tokenizers.external import ExternalTokenizer
from clustermim.tokenizers.quantizers import QUANTIZERS
from clustermim.training import CHECKPOINT, Stopped
from training.toy import run_toy

DATA = "textures:?images=16&grid=2&patch=4"


@dataclass(frozen=True)
class Artifact:
    """A kind of artifact in a folder; the first of its files is the one that it cannot be without."""

    make: Callable[[Path], object]
    read: Callable[[Path], Any]  # reads and uses it; what it gives is equal for equal artifacts
    files: tuple[str, ...]
    seal: Callable[[Path], None] = lambda folder: None  # makes checksums right again, as a stranger would


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    """Change the values of a JSON file."""
    path.write_text(json.dumps(change(json.loads(path.read_bytes()))))


def make_tokenizer(kind: str, folder: Path) -> Tokenizer:
    """Fit a tokenizer of a kind, or of a space of k-means, and save it."""
    if kind == "external":
        from transformers import FlavaImageCodebook, FlavaImageCodebookConfig

        config = FlavaImageCodebookConfig(hidden_size=4, vocab_size=9, num_blocks_per_group=1)
        FlavaImageCodebook(config).save_pretrained(folder / "published")
        made: Tokenizer = ExternalTokenizer(f"hf-flava:{folder / 'published'}", 4).fit(DATA)
    elif kind in QUANTIZERS:
        made = LearnedTokenizer(kind, k=4, patch_size=4, width=4, depth=1)
        made.fit(DATA, epochs=1, batch_size=16, device="cpu", teacher=["hog:"] if kind in ("peco", "vqkd") else None)
    else:
        made = {
            "kmeans": lambda: KMeansTokenizer(4, 4),
            "kmeans pixel-white": lambda: KMeansTokenizer(4, 4, "pixel-white", whiten=4),
            "kmeans features": lambda: KMeansTokenizer(4, 4, "features", teacher="hog:", center_positions=True),
            "kmeans encoder": lambda: KMeansTokenizer(4, 4, "features", teacher=new_encoder(), whiten=4),
            "random": lambda: RandomTokenizer(4, 4),
            "labels": lambda: LabelTokenizer(4),
            "random-projection": lambda: RandomProjectionTokenizer(4, 4, 4),
            "toy": lambda: PrototypeTokenizer("class"),
        }[kind]().fit(DATA)
    made.save(folder)
    return made


def use_tokenizer(folder: Path) -> Any:
    """Load it, and ask it for ids and all that a picture shows."""
    tokenizer, batch = load_tokenizer(folder), open_source(DATA).read(range(3))
    ids = tokenizer(to_float(batch.images), batch.labels)
    assert ids.shape == (3, 4)
    assert 0 <= int(ids.min()) <= int(ids.max()) < tokenizer.vocab_size
    tokenizer.center_patches()
    tokenizer.distances(to_float(batch.images), ids)
    return ids.tolist(), repr(tokenizer)


def seal_tokenizer(folder: Path) -> None:
    def change(record: Any) -> Any:
        weights = hashlib.sha256((folder / "tokenizer.safetensors").read_bytes()).hexdigest()
        record = {key: value for key, value in record.items() if key != "sha256"} | {"tensors_sha256": weights}
        return {**record, "sha256": checksum(record)}

    edit(folder / "tokenizer.json", change)


def new_encoder() -> Encoder:
    """An encoder without training."""
    return cm.pretrain(DATA, patch_size=4, epochs=0, device="cpu")


def make_encoder(folder: Path) -> None:
    new_encoder().save(folder)


def make_mage(folder: Path) -> None:
    cm.pretrain(DATA, RandomTokenizer(4, 4).fit(DATA), layout="mage", epochs=0, device="cpu").save(folder)


def use_encoder(folder: Path) -> list[float]:
    encoder = cm.load_encoder(folder)
    found: Tensor = encoder(to_float(open_source(DATA).read(range(2)).images))
    return found.flatten()[:50].tolist()


def seal_encoder(folder: Path) -> None:
    weights = hashlib.sha256((folder / "encoder.safetensors").read_bytes()).hexdigest()
    edit(folder / "encoder.json", lambda record: {**record, "weights_sha256": weights})


def make_checkpoint(folder: Path) -> None:
    with suppress(Stopped):
        run_toy(folder / "run", stop_after=3)


def use_checkpoint(folder: Path) -> Any:
    """Continue it to the end."""
    return run_toy(folder / "run", resume=True).final


def make_run(folder: Path) -> None:
    """A run that began and did not end."""
    try:
        with open_resumable_run(folder / "run", "train", {"k": 3, "teacher": None}) as run:
            for step in range(4):
                run.log(step=step, loss=0.5)
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass


def use_run(folder: Path) -> Any:
    """Continue it."""
    with open_resumable_run(folder / "run", "train", {"k": 3, "teacher": None}, resume=True) as run:
        return Run(run.folder, "train", {}).rewind(2), {
            key: places.tolist() for key, places in read_curves(run.folder / "metrics.jsonl").items()
        }


def make_runs(folder: Path) -> None:
    """A tokenizer, its score, a pretraining and its measurements, as a report takes them."""
    source = open_source(DATA)
    with open_run(folder / "km", "fit kmeans", {"data": DATA, "k": 4}) as run:
        KMeansTokenizer(4, 4).fit(source).save(run.folder)
        run.summary = {"results": {"vocab_size": 4}, "data": source.describe()}
    with open_run(folder / "km" / "score", "score", {"tokenizer": str(folder / "km")}) as run:
        run.summary = {"results": {"nmi": 0.5, "used": 4, "variant": "plain"}, "data": source.describe()}
    with open_run(folder / "run", "pretrain", {"tokenizer": str(folder / "km"), "target": "tokens"}) as run:
        run.log(step=1, loss=2.0)
        run.log(step=2, loss=1.0)
        run.summary = {"results": {"loss": 1.0}, "data": source.describe()}
    advice = {"recommended": "km", "scores": {"km": {"transferability": 0.3, "parts": [0.2, 0.4]}}}
    (folder / "advice.json").write_text(json.dumps(advice))
    for stage in ("probe", "knn"):
        with open_run(folder / "run" / stage, stage, {"run": str(folder / "run")}) as run:
            result = {"avg": {"accuracy": 0.5, "interval": [0.4, 0.6]}}
            run.summary = {"results": result, "data": source.describe(), "test_data": source.describe()}


def use_runs(folder: Path) -> Any:
    page = folder / "page.html"
    page.unlink(missing_ok=True)
    found = cm.report(folder, page, images=16)
    assert page.stat().st_size < 5_000_000
    return found.tokenizers, found.encoders


def use_summary(folder: Path) -> Any:
    check_same_config(folder / "km", {"k": 4}, open_source(DATA).fingerprint)
    return read_summary(folder / "run").get("results")


SCORED = {"stage": "score", "options": {"tokenizer": "@tokens", "data": DATA}, "grid": {"seed": [0, 1]}}
STUDY = {
    "title": "a study",
    "parts": {"images": {"data": DATA, "patch_size": 4}},
    "stages": [
        {"name": "tokens", "stage": "fit random", "use": "images", "grid": {"k": [4, 5]}},
        {"name": "score", **SCORED},
    ],
    "table": {
        "rows": {"four": {"tokens": {"k": 4}}, "five": {"tokens": {"k": 5}}},
        "columns": {
            "nmi": {"stage": "score", "value": "nmi", "decimals": 3},
            "vocab": {"value": "vocab_size", "total": True},
        },
        "differences": [["four", "five"]],
        "correlations": {"of": ["nmi"], "with": ["vocab"]},
        "paper": {"four": {"nmi": 0.5}},
    },
}


def make_study(folder: Path) -> None:
    (folder / "study.yaml").write_text(yaml.safe_dump(STUDY, sort_keys=False))


def use_study(folder: Path) -> Any:
    return [(cell.key, cell.title()) for cell in checked_cells(open_study(folder / "study.yaml"))]


def make_record(folder: Path) -> None:
    """A study, and a record of it."""
    make_study(folder)
    cells = checked_cells(open_study(folder / "study.yaml"))
    entries = [
        {
            "name": cell.name, "stage": cell.stage, "axes": cell.axes, "key": cell.key,
            "needs": [other.key for other in cell.needs()], "options": cell.options,
            "results": {"nmi": 0.1 * place, "vocab_size": 4}, "data": open_source(DATA).describe(), "seed": 0,
        }
        for place, cell in enumerate(cells)
    ]  # fmt: skip
    (folder / "results").mkdir()
    record = {"format": 1, "study": "study", "title": "a study", "cells": entries}
    (folder / "results" / "study.json").write_text(json.dumps(record))


def use_record(folder: Path) -> Any:
    """Read it as --results and as --records."""
    study = open_study(folder / "study.yaml")
    found = collect(study, folder / "runs", str(folder / "results" / "study.json"), None)
    read_recorded(folder / "results")
    return str(found), found.markdown(), str(collect(study, folder / "runs", None, folder / "results"))


def make_config(folder: Path) -> None:
    options = {"data": DATA, "k": 4, "patch_size": 4, "space": "pixel", "whiten": 0, "seed": 1, "out": "somewhere"}
    (folder / "options.yaml").write_text(yaml.safe_dump(options))


def use_config(folder: Path) -> Any:
    return options_of("fit kmeans", STAGES["fit kmeans"], ["--config", str(folder / "options.yaml")])


def make_rounds(folder: Path) -> None:
    scores = {"layer-1": {"view_retrieval": 0.5}}
    second = {"round": 2, "tokenizer": "layer-1", "chosen_by": "view_retrieval", "candidates": scores}
    (folder / "rounds.json").write_text(json.dumps([{"round": 1, "tokenizer": "pixels", "k": 4}, second]))
    for number in (1, 2):
        (folder / f"round-{number}" / "run").mkdir(parents=True)
        (folder / f"round-{number}" / "run" / "config.yaml").touch()


def use_rounds(folder: Path) -> str:
    return str(Rounds(_begun(folder), nn.Identity()).table())  # type: ignore[arg-type]


def make_arrays(folder: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    np.savez(folder / "images.npz", images=pixels, labels=np.arange(4))


def use_arrays(folder: Path) -> Any:
    return open_source(folder / "images.npz").read(range(4)).images.tolist()


KINDS = (*TOKENIZERS, "kmeans pixel-white", "kmeans features", "kmeans encoder")
TOKENIZER = ("tokenizer.json", "tokenizer.safetensors")
ENCODER = ("encoder.json", "encoder.safetensors")
RESUMED = ("run/config.yaml", "run/metrics.jsonl")
RUNS = [f"{run}/{name}" for run in ("km", "run", "km/score", "run/probe") for name in ("summary.json", "config.yaml")]

ARTIFACTS: dict[str, Artifact] = {
    **{kind: Artifact(partial(make_tokenizer, kind), use_tokenizer, TOKENIZER, seal_tokenizer) for kind in KINDS},
    "encoder": Artifact(make_encoder, use_encoder, ENCODER, seal_encoder),
    "token encoder": Artifact(make_mage, use_encoder, (*ENCODER, "tokenizer/tokenizer.json"), seal_encoder),
    "checkpoint": Artifact(
        make_checkpoint, use_checkpoint, (f"run/{CHECKPOINT}", "run/metrics.jsonl", "run/config.yaml")
    ),
    "unfinished run": Artifact(make_run, use_run, RESUMED),
    "summary": Artifact(make_runs, use_summary, ("km/summary.json", "km/config.yaml", "run/summary.json")),
    "report": Artifact(make_runs, use_runs, (*RUNS, "advice.json", "km/tokenizer.json", "run/metrics.jsonl")),
    "study": Artifact(make_study, use_study, ("study.yaml",)),
    "record": Artifact(make_record, use_record, ("results/study.json",)),
    "options": Artifact(make_config, use_config, ("options.yaml",)),
    "rounds": Artifact(make_rounds, use_rounds, ("rounds.json",)),
    "arrays": Artifact(make_arrays, use_arrays, ("images.npz",)),
}
