"""`clustermim demo`: the whole path on embedded data, without a network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clustermim.progress import log_info
from clustermim.reports.page import report
from clustermim.results import Table
from clustermim.stages.evaluate import knn, probe
from clustermim.stages.fit import fit_kmeans, fit_labels, fit_random
from clustermim.stages.pretrain import pretrain
from clustermim.stages.score import score
from clustermim.stages.show import show

# 20 prototypes: 8 a class, 2 shared with each other class
OPTIONS = "classes=4&points=8&shared=2&noise=0.1&jitter=0.03"
# training data, test data, patch size, codebook sizes of k-means
SETTINGS = {
    "textures": (f"textures:train?{OPTIONS}", f"textures:test?{OPTIONS}&images=1000", 8, (5, 20, 500)),
    "digits": ("digits/train", "digits/test", 2, (10, 50, 500)),
}
EPOCHS = 80  # of pretraining on digits: about a minute on two cores
METHODS = {"MAE": "pixels", "ClusterMIM": "tokens"}  # the same encoder, masks and schedule, another target
COLUMNS = ("transferability", "debiased", "adjusted", "tcas", "chance", "alpha", "sum_sq", "used")


def demo(out: str = "demo", seed: int = 0) -> None:
    """Fit tokenizers on textures and digits, score and draw them; pretrain on digits with and without tokens.

    Args:
        out: the folder to write into; what an earlier demo left there is replaced.
        seed: of everything random.
    """
    scores: dict[str, dict[str, Any]] = {}
    for name, (train, test, patch_size, sizes) in SETTINGS.items():
        for tokenizer in fit_tokenizers(Path(out) / name, train, patch_size, sizes, seed):
            log_info(f"scoring {tokenizer} on {test}")
            scores[f"{name}/{tokenizer.name}"] = score(str(tokenizer), test, seed=seed).to_dict()
        show(str(Path(out) / name / f"kmeans-{sizes[1]}"), test, str(Path(out) / f"{name}.png"), overwrite=True)
    accuracies = list(pretrain_both(Path(out) / "digits", seed))
    # transferability is better when higher, TCAS when lower
    rows = [[name, *(f"{row[column]:.3g}" for column in COLUMNS)] for name, row in scores.items()]
    print(Table("Which tokenizer should masked pretraining predict?", ("tokenizer", *COLUMNS), rows))
    print(f"\n{lessons(scores)}\n")
    columns = ("pretraining", "measured by", "pooling", "accuracy", "95 % interval", "test images")
    print(Table(f"What did {EPOCHS} epochs of pretraining on digits learn?", columns, accuracies))
    print("360 test images of 8×8 pixels tell little apart; docs/results.md has the comparison on CIFAR-10.")
    pictures = [f"{name}.png" for name in SETTINGS] + [f"digits/{name}/reconstructions.png" for name in METHODS]
    print(f"Pictures in {out}: {', '.join(pictures)}")
    print(report([Path(out) / name for name in SETTINGS], Path(out) / "report.html", seed=seed, overwrite=True))


def fit_tokenizers(folder: Path, data: str, patch_size: int, sizes: tuple[int, ...], seed: int) -> Iterator[Path]:
    """The two reference tokenizers and k-means of several sizes, each as it is ready."""
    fit_random(data, str(folder / "random"), k=sizes[1], patch_size=patch_size, seed=seed, overwrite=True)
    yield folder / "random"
    for k in sizes:
        fit_kmeans(data, str(folder / f"kmeans-{k}"), k=k, patch_size=patch_size, seed=seed, overwrite=True)
        yield folder / f"kmeans-{k}"
    fit_labels(data, str(folder / "labels"), patch_size=patch_size, overwrite=True)
    yield folder / "labels"


def pretrain_both(folder: Path, seed: int) -> Iterator[list[str]]:
    """Pretrain on digits by predicting pixels, and tokens; the accuracy of each encoder by measure and pooling."""
    train, test, patch_size, sizes = SETTINGS["digits"]
    for name, target in METHODS.items():
        run = str(folder / name)
        log_info(f"{name}: pretraining on {train} by predicting {target}")
        tokenizer = str(folder / f"kmeans-{sizes[1]}") if target == "tokens" else None
        options = {"target": target, "tokenizer": tokenizer, "patch_size": patch_size, "epochs": EPOCHS, "seed": seed}
        # a mirrored or cropped digit may be another
        pretrain(train, run, **options, batch_size=128, augment="none", overwrite=True)
        measured = {"linear probe": probe(run, train, test, seed=seed), "nearest neighbours": knn(run, train, test)}
        yield from ([f"{name} ({target})", how, *row] for how, found in measured.items() for row in found.table().rows)


def lessons(scores: dict[str, dict[str, Any]]) -> str:
    """What was learned, in three sentences."""
    few, right, many = (scores[f"textures/kmeans-{k}"] for k in SETTINGS["textures"][3])
    random, large = scores["digits/random"], scores["digits/kmeans-500"]
    return (
        f"1. Textures are made of 20 prototype patches: 20 clusters score {right['debiased']:.2f}, between the "
        f"labels (0) and chance ({right['chance']:.2f}); 5 must mix classes ({few['debiased']:.2f}).\n"
        f"2. Counting flatters large codebooks: 500 tokens on digits show TCAS {large['tcas']:.2f}, and "
        f"{large['debiased']:.2f} without the bias of rare tokens; random tokens adjust to {random['adjusted']:.2f}.\n"
        f"3. Finer tokens trade one term of the bound for the other: from 5 to 500 on textures α goes from "
        f"{few['alpha']:.2f} to {many['alpha']:.2f} and Σλ² from {few['sum_sq']:.2f} to {many['sum_sq']:.2f}."
    )
