"""Kill commands at every call that writes, and look at what is left; a process that forks and computes nothing.

    python crashing.py FOLDER [POINTS]

Each command runs once to count its calls: files opened for writing, writes (a killed one is half done), fsync, rename,
exchange, mkdir, unlink, rmdir and truncate. Then it is killed at each of them, or at POINTS of them chosen at random.
After a kill the old state or the new one must be there, and the same command afterwards must give the new one and leave
nothing hidden behind. Prints one JSON object: the points of each command, and of each what was lost.
"""

from __future__ import annotations

import builtins
import io
import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import lightning_fabric  # noqa: F401 - what children would import one by one
import torch

sys.path.insert(0, str(Path(__file__).parent / "data"))

from cifar_toys import FACTS, TRUE

from clustermim import exchange
from clustermim.cli import main
from clustermim.data.cifar import load_split
from clustermim.data.download import install
from clustermim.drawing import reconstructions  # noqa: F401 - likewise
from clustermim.models import load_encoder
from clustermim.stages import evaluate, export, fit, pretrain, score  # noqa: F401 - likewise
from clustermim.tokenizers import load_tokenizer
from clustermim.training import Settings, schedule

IMAGES = "textures:?images=48&grid=2&patch=4"
TRAINING = ["--epochs", "1", "--batch-size", "16", "--device", "cpu"]
EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Calls:
    """Counts calls that write, and kills this process at one of them."""

    def __init__(self, stop: int | None) -> None:
        self.count, self.stop = 0, stop

    def note(self, before: Callable[[], Any] = lambda: None) -> None:
        self.count += 1
        if self.count == self.stop:
            before()
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        """From now on every call counts, whoever makes it: audit hooks see names, and writes are seen by files."""
        sys.addaudithook(self.hear)
        opens, sync, swap = io.open, os.fsync, exchange.exchange
        builtins.open = io.open = lambda *given, **named: Counted.wrap(self, opens(*given, **named))  # type: ignore[assignment]
        os.fsync = lambda descriptor: (self.note(), sync(descriptor))[1]  # type: ignore[assignment]
        exchange.exchange = lambda one, other: (self.note(), swap(one, other))[1]

    def hear(self, event: str, given: tuple[Any, ...]) -> None:
        if event in EVENTS or (event == "open" and isinstance(given[2], int) and given[2] & WRITING):
            self.note()


class Counted:
    """A file whose writes count."""

    def __init__(self, calls: Calls, file: Any) -> None:
        self.calls, self.file = calls, file

    @staticmethod
    def wrap(calls: Calls, file: Any) -> Any:
        return Counted(calls, file) if file.writable() and file.name != os.devnull else file

    def write(self, data: Any) -> Any:
        self.calls.note(lambda: (self.file.write(data[: len(data) // 2]), self.file.flush()))
        return self.file.write(data)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> Counted:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


class Command(NamedTuple):
    """What is killed, in a folder that holds `tokenizer`, `encoder`, and perhaps an older result."""

    run: Callable[[Path], int]
    out: str  # what it writes, in the folder
    load: Callable[[Path], Any]  # raises where the result is not whole; what it gives tells the old from the new
    file: str  # of the result, which tells the old from the new where `load` gives no bytes
    old: Callable[[Path], int] | None = None  # makes what it replaces


def words(*given: str) -> Callable[[Path], int]:
    """A command line; @NAME is a path in the folder."""
    return lambda folder: main([f"{folder}/{word[1:]}" if word.startswith("@") else word for word in given])


def get(folder: Path) -> int:
    install(FACTS, folder, {"mirror": lambda facts, scratch: dict(TRUE)}, force=True)
    return 0


def load_data(folder: Path) -> None:
    for split in FACTS.splits:
        load_split(FACTS, folder, split)


def load_summary(folder: Path) -> None:
    json.loads((folder / "summary.json").read_bytes())


def study(size: int) -> Callable[[Path], int]:
    """A study of two cells, and its record."""

    def run(folder: Path) -> int:
        options = {"data": IMAGES, "k": size, "patch_size": 4}
        cells = {"name": "tokens", "stage": "fit random", "options": options}
        scored = {"name": "score", "stage": "score", "options": {"tokenizer": "@tokens", "data": IMAGES}}
        (folder / "study.yaml").write_text(json.dumps({"stages": [cells, scored]}))
        (folder / "record").mkdir(exist_ok=True)
        given = ["study", "@study.yaml", "--out", "@cells", "--results", "@record/record.json"]
        return words(*given)(folder)

    return run


def load_record(folder: Path) -> bytes:
    """The scores of a study's record; times are not the same twice."""
    cells = json.loads((folder / "record.json").read_bytes())["cells"]
    return repr([(cell["key"], cell["results"].get("transferability")) for cell in cells]).encode()


FIT = ["fit", "random", "--data", IMAGES, "--k", "8", "--patch-size", "4", "--out", "@tokens"]
SCORE = ["score", "@tokenizer", "--data", IMAGES, "--out", "@score"]
PRETRAIN = ["pretrain", "--data", IMAGES, "--tokenizer", "@tokenizer", *TRAINING, "--out", "@run"]
FINETUNE = ["finetune", "@encoder", "--data", IMAGES, "--test-data", IMAGES, *TRAINING, "--out", "@tuned"]
EXPORT = ["export", "@encoder", "--to", "timm", "--out", "@timm"]
TOKENS, ENCODER = "tokenizer.json", "encoder.safetensors"
COMMANDS = {
    "fit": Command(words(*FIT), "tokens", load_tokenizer, TOKENS),
    "fit --overwrite": Command(
        words(*FIT, "--overwrite"), "tokens", load_tokenizer, TOKENS, words(*FIT, "--seed", "1")
    ),
    "score": Command(
        words(*SCORE, "--overwrite"), "score", load_summary, "config.yaml", words(*SCORE, "--permutations", "2")
    ),
    "pretrain": Command(words(*PRETRAIN, "--resume"), "run", load_encoder, ENCODER),
    "pretrain --overwrite": Command(
        words(*PRETRAIN, "--overwrite"), "run", load_encoder, ENCODER, words(*PRETRAIN, "--seed", "1")
    ),
    "finetune": Command(words(*FINETUNE, "--resume"), "tuned", load_encoder, ENCODER),
    "finetune --overwrite": Command(
        words(*FINETUNE, "--overwrite"), "tuned", load_encoder, ENCODER, words(*FINETUNE, "--seed", "1")
    ),
    "export": Command(
        words(*EXPORT, "--overwrite"),
        "timm",
        load_encoder,
        "config.json",
        words(*EXPORT[:3], "transformers", *EXPORT[4:]),
    ),
    "study": Command(study(8), "record", load_record, "record.json", study(4)),
    "data get": Command(get, "toy", load_data, "train_images.npy", get),
}


def start(run: Callable[[Path], int], folder: Path, stop: int | None = None) -> tuple[int, int]:
    """Run something in a child that is killed at a call; its status, and how many calls there were."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        code, calls = 1, Calls(stop)
        try:
            os.environ["CLUSTERMIM_HOME"] = str(folder / "home")
            torch.set_num_threads(1)
            schedule.Settings = partial(Settings, checkpoint_seconds=0.0)  # type: ignore[attr-defined]
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115
            sys.stderr = open(folder.parent / "said", "a")  # noqa: SIM115
            calls.watch()
            code = run(folder)
        finally:
            sys.stderr.flush()
            os.write(writer, str(calls.count).encode())
            os._exit(code)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as pipe:
        return status, int(pipe.read() or 0)


def look(command: Command, folder: Path) -> bytes | None:
    """What a complete result is; None where there is none."""
    if not (folder / command.out / command.file).exists() or not complete(folder / command.out):
        return None
    found = command.load(folder / command.out)
    return found if isinstance(found, bytes) else (folder / command.out / command.file).read_bytes()


def complete(out: Path) -> bool:
    return out.name in ("toy", "record", "timm") or (out / "summary.json").exists()


def fault(command: Command, folder: Path, old: bytes | None, new: bytes) -> str:
    """What is wrong after a kill; nothing if the old or the new is there, and the command gives the new one."""
    try:
        if look(command, folder) not in (old, new):
            return "neither the old nor the new is there"
    except Exception as error:
        return f"what is there is damaged: {error}"
    done = old is None and look(command, folder) == new  # then it refuses, rightly
    status, _ = start(command.run, folder)
    if os.waitstatus_to_exitcode(status) != (2 if done else 0):
        return f"the same command ended with {os.waitstatus_to_exitcode(status)}"
    if look(command, folder) != new:
        return "the same command did not give the new one"
    if (
        command.out == "record"
    ):  # of a file outside of runs, what a kill left is deleted after an hour, with the next write
        return ""
    hidden = [*folder.glob(".*"), *(folder / command.out).rglob(".*")]
    return f"{hidden[0].name} was left behind" if hidden else ""


def crash(name: str, base: Path, points: int, chosen: random.Random) -> tuple[int, list[str]]:
    """Kill a command at its calls; how many, and what was lost."""
    command, template, folder = COMMANDS[name], base / "template", base / "work"
    shutil.copytree(base / "inputs", template)
    if command.old is not None:
        assert start(command.old, template)[0] == 0, name
    old = look(command, template)
    shutil.copytree(template, folder)
    status, calls = start(command.run, folder)
    new = look(command, folder)
    assert status == 0, name
    assert new is not None, name
    assert old != new or name == "data get", name
    faults = []
    stops = range(1, calls + 1)
    for stop in sorted(chosen.sample(stops, min(points, calls))) if points else stops:
        shutil.rmtree(folder)
        shutil.copytree(template, folder)
        status, _ = start(command.run, folder, stop)
        wrong = fault(command, folder, old, new)
        if os.waitstatus_to_exitcode(status) not in (-signal.SIGKILL, 0):
            wrong = f"it ended by itself with {os.waitstatus_to_exitcode(status)}"
        faults += [f"{name}, killed at call {stop} of {calls}: {wrong}"] if wrong else []
    for place in (template, folder):
        shutil.rmtree(place)
    return min(points or calls, calls), faults


if __name__ == "__main__":
    base, points = Path(sys.argv[1]).absolute(), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    inputs = base / "inputs"
    inputs.mkdir(parents=True)
    prepared = [[*FIT[:-1], "@tokenizer"], [*PRETRAIN[:-1], "@encoder"]]
    for given in prepared:
        assert start(words(*given), inputs)[0] == 0, (base / "said").read_text()
    chosen, found, lost = random.Random(0), dict[str, int](), list[str]()
    for name in COMMANDS:
        found[name], faults = crash(name, base, points, chosen)
        lost += faults
        print(f"{name}: {found[name]} kills, {len(faults)} lost", file=sys.stderr, flush=True)
    print(json.dumps({"points": found, "total": sum(found.values()), "lost": lost}, indent=1))
    sys.exit(bool(lost))
