"""The model card of an exported encoder: what its own run folder says of it, and how to load it. No path is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import yaml

from clustermim.errors import RunError
from clustermim.hub import HUB_NAME
from clustermim.models.encoder import Encoder
from clustermim.runs import CONFIG, SUMMARY, read_mapping, read_summary

HERE = "PATH/OF/THIS/FOLDER"
PUBLIC = ("cifar10", "cifar100", "digits", "textures")  # data whose names say no path
SETTINGS = (
    "target", "normalize_pixels", "tokenizer", "teacher", "layout", "masking", "mask_ratio", "augment",
    "epochs", "batch_size", "base_lr", "seed",
)  # fmt: skip
MEASURES = {"probe": "linear probe", "knn": "nearest neighbours", "finetune": "fine-tuned"}
PROTOCOLS = {"mae": ", by SGD"}
POOLINGS = {"avg": "mean of the patches", "cls": "class token"}
SCORES = ("transferability", "view_retrieval", "debiased")

LOAD = {
    "timm": """import timm

model = timm.create_model("{timm}", pretrained=True)
tokens = model.forward_features(images)  # normalised images (B, C, H, W) to (B, 1+N, D), the class token first
""",
    "transformers": """from transformers import AutoImageProcessor, AutoModel

processor, model = (kind.from_pretrained("{place}") for kind in (AutoImageProcessor, AutoModel))
tokens = model(**processor(picture, return_tensors="pt")).last_hidden_state  # (B, 1+N, D), the class token first
""",
}
OURS = """import clustermim as cm

encoder = cm.load_encoder("{ours}")
tokens = encoder(images)  # images in [0, 1], (B, C, H, W), to (B, 1+N, D), the class token first
"""


def make_card(encoder: Encoder, to: str, run: Path | None, license: str, name: str | None) -> str:
    """README.md of an encoder.

    Args:
        encoder: what is exported.
        to: the library that shall load it.
        run: its folder, which need not be a run's.
        license: of the weights.
        name: what it is called on the hub, if it goes there.
    """
    tags = ["clustermim", "masked-image-modeling", "self-supervised-learning"]
    front = {"license": license, "library_name": to, "pipeline_tag": "image-feature-extraction", "tags": tags}
    head = yaml.safe_dump(front, sort_keys=False)
    size = "×".join(map(str, (encoder.channels, *encoder.image_size)))
    count = sum(parameter.numel() for parameter in encoder.parameters())
    about = (
        f"A vision transformer ({encoder.model}) without a head: {count:,} parameters, features of width "
        f"{encoder.width}. It reads images of {size} (channels, height, width) in patches of {encoder.patch_size}×"
        f"{encoder.patch_size} pixels, and gives a class token and one token a patch. Written by clustermim, a library "
        "for masked image modelling."
    )
    parts = [f"---\n{head}---", f"# {name or 'An encoder of images'}", about]
    config, summary = _read(run)
    if summary:
        parts += ["## How it was made", _table(("setting", "value"), list(_making(config, summary)))]
        scores = list(_scores(config))
        if scores:
            parts += ["Scores of its tokenizer, from before the training:", _table(("score", "value"), scores)]
        measured = list(_measured(run, encoder, summary, str(config.get("pooling")))) if run else []
        if measured:
            columns = ("measured", "pooling", "accuracy", "95 % interval", "test images")
            parts += ["## What it reaches", _table(columns, measured)]
    place = name or HERE
    known = {"timm": f"{'hf-hub' if name else 'local-dir'}:{place}", "place": place}
    parts += ["## How to load it", f"```python\n{LOAD[to].format(**known)}```"]
    parts += ["or", f"```python\n{OURS.format(ours=f'hf:{name}' if name else HERE)}```"]
    return "\n\n".join(parts) + "\n"


def _read(run: Path | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Configuration and summary of a complete run; nothing where there is none."""
    if run is None or not (run / SUMMARY).is_file() or not (run / CONFIG).is_file():
        return {}, {}
    return read_mapping(run / CONFIG, f"{run} holds no {CONFIG}"), read_summary(run)


def _making(config: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What a run did, in its own words."""
    yield "stage", str(summary.get("stage"))
    for key in SETTINGS:
        value = config.get(key)
        if key == "tokenizer" and isinstance(value, str):
            value = _tokenizer(Path(value))
        if key == "teacher" and isinstance(value, str):
            value = value.partition(":")[0]
        if value is not None and value is not False:
            yield key.replace("_", " "), str(value)
    yield "images", _images(summary.get("data"))
    yield "fingerprint of the images", str((summary.get("data") or {}).get("fingerprint"))
    results = summary.get("results") or {}
    for key, name in {"loss": "loss of the last epoch", "accuracy": "tokens predicted right"}.items():
        if _is_number(results.get(key)):
            yield name, f"{results[key]:.4g}"
    versions = summary.get("versions")
    if isinstance(versions, dict):
        yield "versions", ", ".join(f"{name} {version}" for name, version in versions.items())
    if summary.get("git_commit"):
        yield "commit of clustermim", str(summary["git_commit"])


def _tokenizer(folder: Path) -> str:
    """What kind of tokenizer a folder holds, without the name of the folder."""
    try:
        record = read_mapping(folder / "tokenizer.json", "")
    except RunError:
        return "a tokenizer whose folder is not there any more"
    settings = record.get("config")
    shown = {key: settings.get(key) for key in ("space", "k")} if isinstance(settings, dict) else {}
    words = [f"{key} {value}" for key, value in shown.items() if isinstance(value, str | int)]
    return ", ".join([str(record.get("kind")), *words])


def _images(data: Any) -> str:
    """How many images of which shape; their name where that is public."""
    known = data if isinstance(data, dict) else {}
    spec, shape = str(known.get("spec", "")), known.get("shape")
    name = spec.partition("?")[0].removeprefix("hf:")
    public = spec.startswith(PUBLIC) or (spec.startswith("hf:") and HUB_NAME.fullmatch(name))
    size = f" of {'×'.join(map(str, shape))}" if isinstance(shape, list) else ""
    count = known.get("images")
    counted = f"{count:,}" if isinstance(count, int) else "images"
    return f"{counted}{size}" + (f", {spec}" if public else "")


def _scores(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The scores inside the folder of its tokenizer, on the most images where there are several."""
    folder = config.get("tokenizer")
    if not isinstance(folder, str):
        return
    found = [results for path in Path(folder).glob("score*") if (results := _results(path, "score"))]
    counted = [results for results in found if _is_number(results.get("images"))]
    best = max(counted, key=lambda results: float(results["images"]), default={})
    for name in SCORES:
        value, low, high = (best.get(name + end) for end in ("", "_low", "_high"))
        if _is_number(value):
            interval = f" ({low:.4f} … {high:.4f})" if _is_number(low) and _is_number(high) else ""
            yield name, f"{value:.4f}{interval}, on {best['images']:,} images"


def _measured(run: Path, encoder: Encoder, summary: Mapping[str, Any], tuned: str) -> Iterator[tuple[str, ...]]:
    """The accuracies inside its folder, those of these very weights; its own of a pooling where it was fine-tuned."""
    records = [summary] if summary.get("stage") == "finetune" else []
    inside = [read_summary(path) for path in sorted(run.iterdir()) if _results(path, "probe", "knn")]
    records += [record for record in inside if record.get("weights") == encoder.weights]
    for record in records:
        results = record.get("results") or {}
        for pooling, found in ({tuned: results} if record["stage"] == "finetune" else results).items():
            whitened = found.get("whitened") if isinstance(found, dict) else None
            for ending, known in (("", found), (", whitened", whitened)):
                if pooling in POOLINGS and isinstance(known, dict) and _is_number(known.get("accuracy")):
                    what = MEASURES[record["stage"]] + PROTOCOLS.get(str(known.get("protocol")), "") + ending
                    yield what, POOLINGS[pooling], *_accuracy(known), _images(record.get("test_data"))


def _accuracy(found: Mapping[str, Any]) -> tuple[str, str]:
    """An accuracy in percent, and its interval where it has one."""
    ends = found.get("interval")
    numbers = ends if isinstance(ends, list) and len(ends) == 2 and all(map(_is_number, ends)) else []
    return f"{100 * found['accuracy']:.2f} %", " … ".join(f"{100 * end:.2f} %" for end in numbers)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _results(folder: Path, *stages: str) -> dict[str, Any]:
    """The results of a complete run of one of some stages; nothing of any other folder."""
    try:
        summary = read_summary(folder)
    except RunError:
        return {}
    return dict(summary.get("results") or {}) if summary.get("stage") in stages else {}


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; what files hold stays in its cell."""
    cells = [[" ".join(cell.replace("|", "\\|").split()) for cell in row] for row in (columns, *rows)]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([lines[0], f"|{' --- |' * len(columns)}", *lines[1:]])
