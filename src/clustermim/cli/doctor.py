"""`clustermim doctor`: what this installation has, for a bug report or a first look."""

from __future__ import annotations

import os
import platform
from importlib import metadata, util

import torch

from clustermim import __version__
from clustermim.data.cache import cache_folder
from clustermim.data.spec import OPENERS
from clustermim.provenance import git_commit
from clustermim.runs import to_json

EXTRAS = {
    "hf": ("transformers", "diffusers", "datasets", "pyarrow"),
    "webdataset": ("webdataset",),
    "faiss": ("faiss",),
    "timm": ("timm",),
    "tracking": ("tensorboard", "wandb"),
}
PACKAGES = (
    "torch",
    "lightning-fabric",
    "torchmetrics",
    "jsonargparse",
    "numpy",
    "scikit-learn",
    "Pillow",
    "simplejpeg",
)


def doctor(json: bool = False) -> None:
    """Show versions, devices, threads, the cache folder and which extras are present.

    Args:
        json: print one JSON object instead.
    """
    found = diagnosis()
    if json:
        print(to_json(found, indent=2))
        return
    for name, value in found.items():
        items = value.items() if isinstance(value, dict) else [("", value)]
        for key, item in items:
            print(f"{name + ('.' + key if key else ''):<28} {item}")


def diagnosis() -> dict[str, object]:
    """The same as a dict."""
    cache = cache_folder()
    existing = next(folder for folder in (cache, *cache.absolute().parents) if folder.exists())
    return {
        "clustermim": __version__,
        "git_commit": git_commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "devices": devices(),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "cache": str(cache),
        "cache_writable": os.access(existing, os.W_OK),
        "data": [name for name in OPENERS if (cache / name).is_dir()],
        "extras": {name: _present(modules) for name, modules in EXTRAS.items()},
    }


def devices() -> list[str]:
    """What torch can compute on."""
    cuda = [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    return ["cpu", *cuda, *(["mps"] if torch.backends.mps.is_available() else [])]


def _present(modules: tuple[str, ...]) -> str:
    """Whether the modules of an extra are installed; nothing is imported, since some fail on import."""
    missing = [name for name in modules if util.find_spec(name) is None]
    return "present" if not missing else f"missing {', '.join(missing)}"
