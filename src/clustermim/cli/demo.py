"""`clustermim demo`: the path of a user on real photographs, from images to a report."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

from clustermim.data import open_source
from clustermim.data.cache import cache_folder
from clustermim.data.cifar import DATASETS
from clustermim.data.download import MIRRORS, install
from clustermim.errors import UserError
from clustermim.evaluation.labels import Accuracy
from clustermim.mean_ci import newcombe
from clustermim.progress import log_info
from clustermim.reports.page import report
from clustermim.results import Table
from clustermim.selection import Advice
from clustermim.stages.evaluate import knn, probe
from clustermim.stages.pretrain import pretrain
from clustermim.stages.select import advise
from clustermim.stages.show import show

EPOCHS = 6  # of pretraining: under a minute each on two idle cores
# Few images need small batches, so that there are many steps, and a high rate. Chosen on a tenth of the train images.
BATCH_SIZE, BASE_LR = 64, 6e-3
BUDGET = 0.3  # minutes of advice


class Images(NamedTuple):
    """Images to learn from and to test on, and how they are cut."""

    name: str
    train: str
    test: str
    patch_size: int


PHOTOGRAPHS = Images("cifar10", "cifar10/train?limit=5000", "cifar10/test?limit=2000", 4)
# 10 classes that share most of their patches, under noise: what is predicted makes a difference
_TOY = "classes=10&points=36&shared=3&patch=4&noise=0.25&jitter=0.1"
TEXTURES = Images("textures", f"textures:train?{_TOY}&images=5000", f"textures:test?{_TOY}&images=2000", 4)

NEXT = 'clustermim advise --data "folder:YOUR/IMAGES?size=64" --patch-size 8 --out advice'


def demo(out: str = "demo", seed: int = 0, embedded: bool = False) -> None:
    """Choose a tokenizer for 5,000 photographs, pretrain with it and with MAE, compare, and write a report.

    The photographs are CIFAR-10's, downloaded once. Where that fails, images of the paper's toy model take their place.

    Args:
        out: the folder to write into; what an earlier demo left there is replaced.
        seed: of everything random.
        embedded: take images of the toy model, which need no network.
    """
    images = TEXTURES if embedded else find_images()
    folder, begun = Path(out) / images.name, time.monotonic()
    log_info(f"the images: {open_source(images.train)!r}")
    options = {"budget": BUDGET, "images": 2000, "patch_size": images.patch_size, "seed": seed}
    advice = advise(images.train, str(folder / "advice"), **options)
    chosen, advised = folder / "advice" / advice.best, time.monotonic() - begun
    print(advice)
    show(str(chosen), images.test, str(folder / "tokens.png"), overwrite=True)
    names = {"untrained": "untrained", "mae": "MAE (normalised pixels)", "clustermim": f"ClusterMIM ({advice.best})"}
    measured = {name: train(folder / key, key, images, chosen, seed) for key, name in names.items()}
    columns = ("pretraining", "linear probe", "linear probe, class token", "kNN", "kNN, whitened")
    rows = [[name, *(f"{100 * found.accuracy:.1f} %" for found in four)] for name, four in measured.items()]
    print(Table(f"{EPOCHS} epochs on {images.train}, tested on {images.test}", columns, rows))
    print(f"\n{lessons(advice, advised, [four[0] for four in measured.values()])}\n")
    print(f"Pictures: {folder / 'tokens.png'}, {folder / 'clustermim' / 'reconstructions.png'}")
    print(report([folder], Path(out) / "report.html", seed=seed, overwrite=True))
    print(f"next, on your own images: {NEXT}")


def find_images() -> Images:
    """Photographs, or images of the toy model where they cannot be had."""
    try:
        install(DATASETS["cifar10"], cache_folder(), MIRRORS)
    except UserError as error:
        log_info(f"{error}; the demo takes images of the paper's toy model instead, which are no photographs")
        return TEXTURES
    return PHOTOGRAPHS


def train(run: Path, key: str, images: Images, tokenizer: Path, seed: int) -> list[Accuracy]:
    """Pretrain in one of the three ways; linear probe of both poolings, kNN, and kNN of whitened features."""
    targets: dict[str, dict[str, Any]] = {
        "untrained": {"target": "pixels", "epochs": 0},
        "mae": {"target": "pixels", "normalize_pixels": True, "epochs": EPOCHS},
        "clustermim": {"target": "tokens", "tokenizer": str(tokenizer), "cache_tokens": True, "epochs": EPOCHS},
    }
    shared = {"patch_size": images.patch_size, "batch_size": BATCH_SIZE, "augment": "none", "seed": seed}
    shared["base_lr"] = BASE_LR
    pretrain(images.train, str(run), **targets[key], **shared, overwrite=True)
    probed, near = probe(str(run), images.train, images.test, seed=seed), knn(str(run), images.train, images.test)
    found = [probed.avg, probed.cls, near.avg, near.avg and near.avg.whitened]
    return [accuracy for accuracy in found if accuracy is not None]  # all four, as asked for


def lessons(advice: Advice, seconds: float, probes: list[Accuracy]) -> str:
    """What was learned, in three sentences."""
    untrained, mae, tokens = (100 * found.accuracy for found in probes)
    ends = newcombe(probes[2].accuracy, probes[2].interval, probes[1].accuracy, probes[1].interval)
    low, high = (100 * end for end in ends)
    verdict = "so tokens were the better target here" if low > 0 else "so pixels were the better target here"
    if low <= 0 <= high:
        verdict = f"which {probes[1].test_images:,} test images do not tell apart"
    rivals = f"; these images do not tell it from {', '.join(advice.rivals)}" if advice.rivals else ""
    return (
        f"1. Before any training, in {seconds:.0f} seconds, advise chose {advice.best} among {len(advice.results)} "
        f"tokenizers by {advice.by}{rivals}.\n"
        f"2. The linear probe of ClusterMIM with it has {tokens:.1f} %, that of MAE {mae:.1f} %: {tokens - mae:+.1f} "
        f"points ({low:+.1f} … {high:+.1f}), {verdict}.\n"
        f"3. An untrained encoder has {untrained:.1f} %, so {EPOCHS} epochs are worth {mae - untrained:+.1f} points "
        f"with MAE and {tokens - untrained:+.1f} with ClusterMIM; one seed each, and another seed gives other numbers."
    )
