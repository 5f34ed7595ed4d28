"""Every stage on one rank or several, in the processes of one torchrun: `torchrun … stages_on_ranks.py FOLDER`."""

from __future__ import annotations

import json
import os
import shutil
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from clustermim.cli import main
from clustermim.distributed import barrier, process_group, rank

DATA = "textures:?images=193&grid=4&patch=4&noise=0.1"  # an odd number: the ranks get unequal shares
TEST = "textures:?images=99&grid=4&patch=4&noise=0.1&seed=1"
IMAGES = f"--data {DATA} --patch-size 4"
SHORT = "--epochs 2 --batch-size 64 --device cpu"
LABELLED = f"--data {DATA} --test-data {TEST}"
LONGER = "--data textures:?images=640&grid=4&patch=4&noise=0.1 --patch-size 4 --epochs 5 --batch-size 64 --tokenizer km"

STAGES = {
    "kmeans": f"fit kmeans {IMAGES} --k 8 --out km",
    "white": f"fit kmeans {IMAGES} --k 8 --space pixel-white --whiten 8 --out white",
    "vq": f"fit vq {IMAGES} {SHORT} --k 8 --width 8 --out vq",
    "vqgan": f"fit vqgan {IMAGES} {SHORT} --k 8 --width 8 --out vqgan",
    "vqkd": f"fit vqkd {IMAGES} {SHORT} --k 8 --width 8 --teacher hog: --out vqkd",
    "tokenize": f"tokenize km --data {DATA} --out ids.npy",
    "score": f"score km --data {DATA} --json",
    "pretrain": f"pretrain {LONGER} --out run",
    "mixmae": f"pretrain {IMAGES} {SHORT} --target pixels --layout mixmae --mask-ratio 0.5 --out mixmae",
    "online": f"pretrain {IMAGES} {SHORT} --target online --prototypes 8 --queue-images 48 --out online",
    "probe": f"probe run {LABELLED} --json",
    "mae probe": f"probe run {LABELLED} --protocol mae --epochs 2 --batch-size 64 --json --out mae-probe",
    "knn": f"knn run {LABELLED} --k 5 --json",
    "finetune": f"finetune run {LABELLED} {SHORT} --json --out tuned",
    "advise": "advise --data textures:?images=520&grid=4&patch=4 --patch-size 4 --budget 0 --out advice --json",
    "iterate": f"iterate {IMAGES} {SHORT} --first-ks [6] --layers [4] --ks [4] --rounds 2 --out rounds",
    "fsdp": f"pretrain {LONGER} --strategy fsdp --out fsdp",
    "unbroken": f"pretrain {IMAGES} {SHORT} --tokenizer km --out unbroken",
    "pause": f"pretrain {IMAGES} {SHORT} --tokenizer km --stop-after 1 --out paused",
    "resume": f"pretrain {IMAGES} {SHORT} --tokenizer km --resume true --out resumed",  # what one rank began
    "fsdp, pause": f"pretrain {IMAGES} {SHORT} --tokenizer km --strategy fsdp --stop-after 1 --out fsdp-paused",
    "fsdp, resume": f"pretrain {IMAGES} {SHORT} --tokenizer km --strategy fsdp --resume true --out fsdp-resumed",
}


def run_all() -> None:
    """Each stage in turn; what the first rank prints is kept."""
    for name, words in STAGES.items():
        if name.endswith("resume") and rank() == 0:
            shutil.copytree("../1/paused", words.rpartition(" ")[2])
        barrier()
        try:
            with redirect_stdout(StringIO()) as printed:
                code = main(words.split())
        except SystemExit as stop:
            code = stop.code
        if code:
            sys.exit(f"{name}: {code}")  # or the other ranks would wait for this one
        if rank() == 0:
            Path(f"{name}.json").write_text(json.dumps(printed.getvalue()))


if __name__ == "__main__":
    os.makedirs(sys.argv[1], exist_ok=True)
    os.chdir(sys.argv[1])
    with process_group():
        run_all()
