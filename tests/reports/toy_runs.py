"""Run folders as the stages write them, made in a moment: real tokenizers and scores, encoders without training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from clustermim.data import Source, open_source, to_float
from clustermim.patches import patchify
from clustermim.runs import Run, open_run
from clustermim.stages import score as stage
from clustermim.stages.fit import fit_into, fit_kmeans
from clustermim.tokenizers import KMeansTokenizer

TEXTURES = "textures:?images=40&grid=4x6&patch=4"
NASTY = "<img src=x onerror=alert(1)> \"two\" & 'one'"  # a file name may hold all of it
CLASSES = ["</script><script>alert(1)</script>", "\"double\" & 'single'", "line\u2028separator", "cat"]


def nasty_data(folder: Path) -> str:
    """Labelled images whose classes have such names."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (40, 3, 8, 12), dtype=np.uint8)
    np.savez(folder / "images.npz", images=images, labels=np.arange(40) % 4, class_names=np.array(CLASSES))
    return f"npz:{folder}/images.npz?layout=nchw"


def fit(out: Path, k: int = 6, data: str = TEXTURES, **options: Any) -> Path:
    """A k-means tokenizer, fitted."""
    fit_kmeans(data, str(out), k=k, patch_size=4, iterations=3, **options)
    return out


def fit_large(out: Path, k: int, patch_size: int, data: str, seed: int) -> Path:
    """A k-means tokenizer whose centres are patches of its data: large, at once, and every token occurs."""
    tokenizer = KMeansTokenizer(k, patch_size, seed=seed)

    def draw(source: Source, run: Run) -> dict[str, Any]:
        patches = patchify(to_float(source.read(range(len(source))).images), patch_size).flatten(0, 1)
        centers = patches[torch.randperm(len(patches), generator=torch.Generator().manual_seed(seed))[:k]]
        fitted = {"channels": source.shape[0], "inertia": 0.0, "patches": 0, "images": 0}
        tokenizer.restore(fitted, {"centers": centers})
        return {"vocab_size": k}

    fit_into(tokenizer, draw, data, str(out), overwrite=False)
    return out


def score(tokenizer: Path, data: str = TEXTURES, out: Path | None = None) -> None:
    stage.score(str(tokenizer), data, None if out is None else str(out), permutations=2)


def pretrained(out: Path, tokenizer: Path | None = None, losses: int = 20, **options: Any) -> Path:
    """The folder of a pretraining: configuration, losses, summary."""
    config = {"data": TEXTURES, "target": "tokens" if tokenizer else "pixels", "seed": 0, **options}
    with open_run(out, "pretrain", {**config, "tokenizer": tokenizer and str(tokenizer)}) as run:
        for step in range(1, losses + 1):
            run.log(step=step, epoch=1, loss=1 + 1 / step)
        run.summary = {"results": {"loss": 1.0}, "data": open_source(TEXTURES).describe()}
    return out


def measured(out: Path, run: Path | str, stage: str = "probe", accuracy: float | None = 0.5, **options: Any) -> Path:
    """The folder of a probe, of nearest neighbours, or of a fine-tuning."""
    share = 0.0 if accuracy is None else accuracy
    result = {"accuracy": accuracy, "interval": [share - 0.05, share + 0.05]}
    with open_run(out, stage, {"run": str(run), "data": TEXTURES, **options}) as folder:
        results = result if stage == "finetune" else {"avg": result, "cls": {**result, "accuracy": share / 2}}
        folder.summary = {"results": results, "test_data": {"spec": "the test images"}}
    return out


def everything(folder: Path) -> Path:
    """Tokenizers with scores, encoders with accuracies, names that try to break out."""
    folder.mkdir(exist_ok=True)
    tokenizers = [fit(folder / f"kmeans-{k}", k) for k in (4, 6, 9, 12)]
    nasty = fit(folder / NASTY, 5, nasty_data(folder))
    for tokenizer in tokenizers:
        score(tokenizer)
    for place, tokenizer in enumerate(tokenizers):
        run = pretrained(folder / f"run-{place}", tokenizer)
        measured(run / "probe", run, accuracy=0.5 + 0.05 * place + 0.01 * (place % 2))
        measured(run / "knn", run, "knn", accuracy=0.4 + 0.02 * (place % 3))
    pretrained(folder / "of the nasty one", nasty)
    measured(folder / "finetuned", pretrained(folder / "MAE"), "finetune", accuracy=0.9)
    return folder
