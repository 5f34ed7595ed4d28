"""Mutations of every artifact: what reads it may refuse it with a UserError, and may do nothing else.

make fuzz                                   10,000 mutations of all kinds
python tests/fuzzing.py --kinds study --count 500 --seed 3
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from artifacts import ARTIFACTS, DATA, Artifact
from clustermim.data import open_source
from clustermim.errors import UserError

SECONDS, BYTES = 5, 1_000_000_000  # that a reader may take
SPECIAL = 0.03  # share of mutations that put something else in the place of the file
CODE = "this"  # a module that only a name in a file would import
DEEP = json.loads("[" * 200 + "]" * 200)
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 1.5, -0.0, 10**9, 2**31, 2**63, 10**30, 1e308, float("nan"), float("inf"), "", " ",
    "a", "0", "1e9", "\0", "\ud800", "ünïcode ✓", "x" * 5000, "../..", "/dev/zero", "@tokens", "~nobody/x", [], {},
    [[]],
    [0], [1, 2, 3], ["a"], [None], {"a": 1}, {"": {}}, DEEP, f"module:{CODE}:s", "2001-01-01", "micro", "huge",
]  # fmt: skip
SPECS = [
    DATA, "digits/test?limit=4", "cifar10/train", "folder:/nowhere", "npz:x.npz", "wds:a{0..3}.tar",
    "wds:{a,b}{0..9}.tar", "hf:a/b", "parquet:x", "textures:test?classes=3&noise=0.05",
    "digits?size=4x6&channels=3&subset=validation",
]  # fmt: skip
WORDS = [
    "?", "&", "=", ":", "/", "{", "}", "..", ",", "%00", "%ff", "\0", "ü", "é" * 300, "-1", "0", "1e9", "999999999999",
    "nan", "{0..1000000000}", "{0..9}" * 30, "{a,b}" * 1500, "limit=0", "size=100000", "images=1000000000",
    "grid=100000", "patch=100000", "~x",
]  # fmt: skip
FOREIGN = [b"\xff\xfe", b"\0", b"NaN", b"[" * 100_000, b"{", b'"', b"&a *a", b"9" * 5000]


class Hang(BaseException):
    """A reader that took too long; nothing catches it."""


@dataclass
class Failure:
    """A mutation, and what came of it."""

    kind: str
    seed: int
    what: str
    trace: str

    def __str__(self) -> str:
        return f"{self.kind}, seed {self.seed}, {self.what}:\n{self.trace}"


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value inside of one."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def mutate_values(value: Any, draw: random.Random) -> Any:
    """Another value, key or kind somewhere inside."""
    path = draw.choice(list(places(value)))
    if not path:
        return draw.choice(VALUES)
    inside = value
    for key in path[:-1]:
        inside = inside[key]
    way = draw.randrange(6)
    if way == 0:
        del inside[path[-1]]
    elif way == 1 and isinstance(inside, dict):
        inside[draw.choice(["format", "x", "", "seed", str(path[-1]).upper(), "config"])] = inside.pop(path[-1])
    elif way == 2 and isinstance(inside, list):
        inside += [inside[path[-1]]] * draw.choice([1, 2, 500])
    elif way == 3 and isinstance(inside[path[-1]], int | float):
        inside[path[-1]] *= draw.choice([-1, 2, 10, 1000, 10**6, 10**12])
    else:
        inside[path[-1]] = draw.choice(VALUES)
    return value


def mutate_bytes(data: bytes, draw: random.Random) -> bytes:
    """Flipped, cut, doubled or foreign bytes."""
    start = draw.randrange(len(data) + 1)
    end = min(len(data), start + draw.choice([1, 4, 40, 4000]))
    ways: list[Callable[[], bytes]] = [
        lambda: data[:start],
        lambda: data[:start] + data[end:],
        lambda: data[:end] + data[start:],
        lambda: data[:start] + bytes(byte ^ 1 << draw.randrange(8) for byte in data[start:end]) + data[end:],
        lambda: data[:start] + draw.randbytes(8) + data[end:],
        lambda: data[:start] + draw.choice(FOREIGN) + data[start:],
        lambda: data + data,
    ]  # fmt: skip
    return draw.choice(ways)()


def mutate_header(data: bytes, draw: random.Random) -> bytes:
    """A safetensors file whose header says something else, or whose numbers are others."""
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), bytearray(data[8 + length :])
    names = [name for name in header if name != "__metadata__"]
    way = draw.randrange(6)
    if way == 0 and body:  # numbers: NaN, infinite, huge
        at = draw.randrange(len(body)) // 4 * 4
        body[at : at + 4] = draw.choice([b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\xff\xff\x7f\x7f"])[: len(body) - at]
    elif way == 1 and names:  # the same numbers in another shape
        own = header[draw.choice(names)]
        own["shape"] = draw.choice([own["shape"][::-1], [*own["shape"], 1], [1, *own["shape"]], own["shape"][:1]])
    elif way == 2 and names:  # of another type, as long
        own = header[draw.choice(names)]
        own["dtype"] = {"F32": "I32", "I64": "F64", "U8": "I8"}.get(own["dtype"], "F8_E4M3")
    elif way == 3 and names:
        own = header[draw.choice(names)]
        own["shape"] = draw.choice([[10**9, 10**9], [0, 10**18], [10**9], [-1], [2**63]])
    elif way == 4 and names:
        header[draw.choice(["x", "model.x", "space.means", ""])] = header.pop(draw.choice(names))
    else:
        header = mutate_values(header, draw)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(body)


def mutate_text(data: bytes, name: str, draw: random.Random) -> bytes:
    """The values of a JSON or YAML file changed; of lines, one of them."""
    if name.endswith(".jsonl"):
        lines = data.splitlines()
        place = draw.randrange(len(lines))
        lines[place] = json.dumps(mutate_values(json.loads(lines[place]), draw)).encode()
        return b"\n".join(lines) + b"\n"
    if name.endswith(".yaml"):
        return yaml.safe_dump(mutate_values(yaml.safe_load(data), draw), sort_keys=False).encode(
            "utf-8", "surrogatepass"
        )
    return json.dumps(mutate_values(json.loads(data), draw)).encode()


def replace_file(path: Path, draw: random.Random) -> None:
    """Something else in the place of a file."""
    path.unlink()
    way = draw.randrange(6)
    if way == 0:
        os.mkfifo(path)
    elif way == 1:
        path.symlink_to("/dev/zero")
    elif way == 2:
        path.mkdir()
    elif way == 3:
        path.symlink_to(path)
    elif way == 4:
        with path.open("wb") as file:
            file.truncate(10**11)  # that take no place on the disk


def mutate_file(folder: Path, artifact: Artifact, draw: random.Random) -> str:
    """Change one file of an artifact; which one."""
    name = draw.choice(artifact.files)
    path = folder / name
    if draw.random() < SPECIAL:
        replace_file(path, draw)
        return name
    data = path.read_bytes()
    structured = draw.random() < 0.75
    if structured and name.endswith(".safetensors"):
        data = mutate_header(data, draw)
    elif structured and not name.endswith(".npz"):
        data = mutate_text(data, name, draw)
    else:
        data = mutate_bytes(data, draw)
    path.write_bytes(data)
    if draw.random() < 0.8:
        with suppress(Exception):  # what has no checksum any more
            artifact.seal(folder)
    return name


def mutate_spec(draw: random.Random) -> str:
    """A text that names no source, or an odd one."""
    text = draw.choice(SPECS)
    for _ in range(draw.choice([1, 1, 2, 3])):
        at, to = sorted(draw.randrange(len(text) + 1) for _ in range(2))
        text = text[:at] + draw.choice(["", *WORDS]) + text[draw.choice([at, to]) :]
    return text


def read_spec(text: str) -> None:
    source = open_source(text)
    source.read(range(min(2, len(source))))


@contextmanager
def bounded() -> Iterator[None]:
    """Little memory and time inside."""
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + BYTES, hard))

    def hang(*_: object) -> None:
        raise Hang

    handler = signal.signal(signal.SIGALRM, hang)
    signal.alarm(SECONDS)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))


def attempt(kind: str, seed: int, what: str, read: Callable[[], object]) -> Failure | str:
    """How one mutation ended: `read`, `refused`, or a failure."""
    try:
        with bounded():
            read()
    except UserError as error:
        if "\n" in (text := str(error)) and len(text.splitlines()) > 3:
            return Failure(kind, seed, what, f"many lines: {text[:500]}")
        return "refused"
    except BaseException:
        return Failure(kind, seed, what, traceback.format_exc(limit=-6))
    return "read"


def fuzz(kinds: list[str], count: int, seed: int, seconds: float) -> tuple[Counter[str], list[Failure]]:
    """So many mutations, each kind in turn, until the time is over."""
    ended, failures, start = Counter[str](), list[Failure](), time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        os.environ |= {"CLUSTERMIM_HOME": f"{place}/home", "HF_HUB_OFFLINE": "1"}
        for kind in kinds:
            if kind in ARTIFACTS:
                (Path(place) / kind).mkdir()
                with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                    ARTIFACTS[kind].make(Path(place) / kind)
        folder = Path(place) / "mutated"
        for number in range(seed, seed + count):
            kind, draw = kinds[number % len(kinds)], random.Random(number)
            if time.monotonic() - start > seconds:
                break
            if kind == "spec":
                text = mutate_spec(draw)
                result = attempt(kind, number, repr(text[:200]), lambda text=text: read_spec(text))
            else:
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(Path(place) / kind, folder)
                what = mutate_file(folder, ARTIFACTS[kind], draw)
                result = attempt(kind, number, what, lambda kind=kind: ARTIFACTS[kind].read(folder))
            ended["failed" if isinstance(result, Failure) else result] += 1
            failures += [result] if isinstance(result, Failure) else []
    if CODE in sys.modules:
        failures.append(Failure("code", seed, CODE, "code that a file names was run"))
    return ended, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="*", default=[*ARTIFACTS, "spec"])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3600)
    given = parser.parse_args()
    start = time.monotonic()
    ended, failures = fuzz(given.kinds, given.count, given.seed, given.seconds)
    for failure in {failure.trace: failure for failure in failures}.values():
        print(failure)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{sum(ended.values()):,} mutations in {time.monotonic() - start:.0f} s, peak {peak:.2f} GB: {dict(ended)}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
