"""Discrete visual tokenizers for masked image modelling: fit one, score it before any training, pretrain on it.

    import clustermim as cm

    train, test = cm.open("cifar10/train"), cm.open("cifar10/test")
    tokenizer = cm.KMeansTokenizer(k=500, patch_size=4, space="pixel-white").fit(train)
    print(cm.score(tokenizer, test))
    encoder = cm.pretrain(train, target=tokenizer, epochs=7)
    print(cm.linear_probe(encoder, train, test))
    cm.show(tokenizer, test)

Every name of `__all__` is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clustermim.data import from_arrays
    from clustermim.data import open_source as open
    from clustermim.drawing.tokens import show
    from clustermim.evaluation import finetune, knn, linear_probe, segment
    from clustermim.factories import trust_code
    from clustermim.models.export import export
    from clustermim.pretraining import pretrain
    from clustermim.reports.page import report
    from clustermim.scores import score
    from clustermim.selection import advise, iterate
    from clustermim.studies import run_study
    from clustermim.teachers import open_teacher
    from clustermim.tokenizers import (
        ExternalTokenizer,
        KMeansTokenizer,
        LabelTokenizer,
        LearnedTokenizer,
        RandomProjectionTokenizer,
        RandomTokenizer,
        load_tokenizer,
    )
    from clustermim.tokenizers.token_encoder import load_encoder
    from clustermim.training import Schedule

__version__ = "0.2.0"

__all__ = [
    "ExternalTokenizer", "KMeansTokenizer", "LabelTokenizer", "LearnedTokenizer", "RandomProjectionTokenizer",
    "RandomTokenizer", "Schedule", "advise", "export", "finetune", "from_arrays", "iterate", "knn", "linear_probe",
    "load_encoder", "load_tokenizer", "open", "open_teacher", "pretrain", "report", "run_study", "score", "segment",
    "show", "trust_code",
]  # fmt: skip

_MODULES = {
    "data": ("from_arrays", "open"),
    "drawing.tokens": ("show",),
    "evaluation": ("finetune", "knn", "linear_probe", "segment"),
    "factories": ("trust_code",),
    "models.export": ("export",),
    "pretraining": ("pretrain",),
    "reports.page": ("report",),
    "scores": ("score",),
    "selection": ("advise", "iterate"),
    "studies": ("run_study",),
    "teachers": ("open_teacher",),
    "tokenizers.token_encoder": ("load_encoder",),
    "training": ("Schedule",),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'clustermim' has no attribute {name!r}")
    module = next((module for module, names in _MODULES.items() if name in names), "tokenizers")
    found = getattr(import_module(f"clustermim.{module}"), "open_source" if name == "open" else name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
