"""The one table of stages, read by the command line and by studies; to add a stage, write its function and one entry.

Functions are named as "module:function" and imported only when they are used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from clustermim.errors import did_you_mean


class Stage(NamedTuple):
    """A function by its place, what it does in a few words, and its parameters that are written without a name."""

    function: str
    about: str
    positional: tuple[str, ...] = ()
    in_studies: bool = False  # it writes a run folder, so a study can run it

    def load(self) -> Callable[..., Any]:
        module, name = self.function.split(":")
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return function


def _fit(name: str, about: str) -> Stage:
    return Stage(f"clustermim.stages.fit:fit_{name}", about, in_studies=True)


STAGES: dict[str, Stage] = {
    "data get": Stage("clustermim.stages.data:get", "download a data set into the cache", ("name",)),
    "fit kmeans": _fit("kmeans", "k-means clusters of patches, the tokenizer of ClusterMIM"),
    "fit random": _fit("random", "random tokens: the lowest reference"),
    "fit labels": _fit("labels", "the classes as tokens: the highest reference"),
    "fit dvae": _fit("dvae", "a discrete VAE, the recipe of DALL·E's tokenizer"),
    "fit vq": _fit("vq", "a VQ-VAE: the nearest vectors of a learned codebook"),
    "fit vqgan": _fit("vqgan", "a VQ-VAE with a discriminator"),
    "fit peco": _fit("peco", "a VQ-VAE that is also compared in the features of a teacher"),
    "fit vqkd": _fit("vqkd", "VQ-KD of BEiT v2: tokens that tell the features of a teacher"),
    "fit fsq": _fit("fsq", "a few features rounded to levels"),
    "fit lfq": _fit("lfq", "the signs of a few features"),
    "fit random-projection": _fit("random_projection", "BEST-RQ's quantizer: nothing is learned"),
    "fit external": _fit("external", "a published tokenizer: the dVAE of DALL·E, a VQGAN, or BEiT v2's"),
    "fit toy": _fit("toy", "the tokenizers of the theory, on textures:"),
    "tokenize": Stage("clustermim.stages.fit:tokenize_source", "write the ids of every patch", ("tokenizer",)),
    "score": Stage("clustermim.stages.score:score", "score a tokenizer before any training", ("tokenizer",), True),
    "advise": Stage("clustermim.stages.select:advise", "which tokenizer to pretrain with, from a few labels"),
    "pretrain": Stage("clustermim.stages.pretrain:pretrain", "pretrain an encoder on what is masked", (), True),
    "iterate": Stage("clustermim.stages.select:iterate", "cluster the encoder's own features and pretrain again"),
    "probe": Stage("clustermim.stages.evaluate:probe", "linear probe of a pretrained encoder", ("run",), True),
    "knn": Stage("clustermim.stages.evaluate:knn", "nearest neighbours of its features", ("run",), True),
    "segment": Stage("clustermim.stages.evaluate:segment", "classes of patches and pixels, of masks", ("run",), True),
    "finetune": Stage("clustermim.stages.evaluate:finetune", "train an encoder further, on labels", ("run",), True),
    "export": Stage("clustermim.stages.export:export", "write an encoder for timm or transformers", ("run",)),
    "show": Stage("clustermim.stages.show:show", "draw what the tokens of a tokenizer mean", ("tokenizer",)),
    "report": Stage("clustermim.reports.page:report", "one page to look at: tables, charts, tokens", ("folders",)),
    "study": Stage("clustermim.stages.study:study", "run a YAML list of stages, resumably", ("file",)),
    "run": Stage("clustermim.stages.study:study", "run a preset, from data to accuracy", ("file",)),
    "demo": Stage("clustermim.cli.demo:demo", "the whole path on embedded data, in a few minutes"),
    "completion": Stage("clustermim.cli.completion:completion", "the Tab key of bash and zsh", ("shell",)),
    "doctor": Stage("clustermim.cli.doctor:doctor", "versions, devices, threads, folders and extras"),
}

# The command that could come next, with options and the result of this one in braces.
FOLLOWING = {
    "advise": "pretrain --data {data} --patch-size {patch_size} --tokenizer {out}/{result.best} --out RUN",
    "pretrain": "probe {out} --data {data} --test-data …",
    "probe": "finetune {run} --data {data} --test-data {test_data} --out {run}-finetuned",
    "knn": "probe {run} --data {data} --test-data {test_data}",
    "finetune": "export {out} --to timm --out {out}-timm",
}

# Names of earlier versions and those of today: of commands and stages, and of options, keys and values.
OLD_STAGES = dict.fromkeys(("tcas", "promise", "kinship", "outlook"), "score")
OLD_STAGES["theory"] = "`python -m paper.audit` in a clone of the repository"
OLD_STAGES["results"] = "`python -m studies.document` in a clone of the repository"
OLD_NAMES = {
    "context": "image_mean_weight",
    "first_k": "first_ks",
    "mask_unit": "mask_patch_size",
    "tokens_once": "cache_tokens",
    "revive": "dead_code_threshold",
    "promise": "transferability",
    "outlook": "view_retrieval",
    "bag": "bag_accuracy",
    "recognised": "half_retrieval",
}


def hint(word: str, known: Iterable[str], old: Mapping[str, str] = OLD_NAMES) -> str:
    """The end of a message about an unknown word: its name of today, the nearest known one, or all of them.

    >>> hint("--mask-unit", ["--mask-patch-size"]), hint("--ot", ["--out"])
    ('; it is --mask-patch-size now', '; did you mean --out?')
    """
    new = old.get(word.removeprefix("--").replace("-", "_"))
    if new is None:
        return did_you_mean(word, known)
    return f"; it is {'--' + new.replace('_', '-') if word.startswith('--') else new} now"
