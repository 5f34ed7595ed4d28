"""Hostile and damaged text is refused in one line: it neither hangs, nor fills the memory, nor ends in a traceback."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import yaml
from safetensors.torch import save_file

from clustermim.cli import main
from clustermim.errors import ConfigError
from clustermim.models import load_encoder
from clustermim.reading import MOST_DEPTH, Whole, check_shape, fits, parse_json, parse_yaml, read_bytes, read_json
from clustermim.runs import read_summary
from clustermim.studies import expand, read_study
from clustermim.tokenizers import RandomTokenizer, load_tokenizer
from clustermim.weights import check_like, read_header

DATA = "textures:?images=16&grid=2&patch=4"
BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 100_000, "nests too deeply"),
        ("[" * 100 + "]" * 100, "nests too deeply"),
        ('{"a": NaN}', "nan is no number"),
        ("[1e999]", "inf is no number"),
        ('"\\ud800"', "characters that no text has"),
        ('{"\\u0000": 1}', "characters that no text has"),
        ("1" * 30, "more than 20 digits"),
        ("9" * 10_000, "digits"),
        (b"\xff{}", "decode"),
        ("", "Expecting value"),
    ],
)
def test_json_that_is_refused(text: str | bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_json(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (BOMB, "more than 100,000 values"),
        ("a: &a [*a]", r"\*a stands for nothing, or is inside"),
        ("[" * 100_000, "nests too deeply"),
        ("{a: " * 100_000, "nests too deeply"),
        ("a: 2001-01-01", "is a date: put it in quotes"),
        ("a: 2001-99-99", "month must be"),
        ("on: 1", "True is no text, and keys are"),
        ("a: !!python/object:os.system x", "could not determine a constructor"),
        ("a: !!timestamp x", ""),
        ("a: !!binary eA==", "is a bytes"),
        ("a: !!set {x}", "is a set"),
        ("a: [", ""),
        ("a: 1\n---\nb: 1", "expected a single document"),
    ],
)
def test_yaml_that_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        parse_yaml(text)
    assert len(str(caught.value).splitlines()) == 1


def test_what_people_write_is_read() -> None:
    assert parse_yaml("a: &x [1, 2]\nb: *x\nc: {<<: {d: ü}}") == {"a": [1, 2], "b": [1, 2], "c": {"d": "ü"}}
    assert parse_yaml("") is None
    assert parse_json("[NaN]", finite=False) != parse_json("[1]")
    nested = "[" * (MOST_DEPTH - 1) + "]" * (MOST_DEPTH - 1)
    assert parse_json(nested) == parse_yaml(nested)


def put_pipe(path: Path) -> None:
    os.mkfifo(path)


def put_link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def put_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10**11)


def put_bomb(path: Path) -> None:
    path.write_text(BOMB)


PLACED = [put_pipe, put_link, Path.mkdir, put_sparse, put_bomb]


@pytest.mark.parametrize("put", PLACED)
def test_what_is_no_small_file_is_refused(put: Callable[[Path], None], tmp_path: Path) -> None:
    put(tmp_path / "x.json")
    with pytest.raises((OSError, ValueError)):
        read_json(tmp_path / "x.json")
    if put is not put_bomb:
        with pytest.raises(OSError, match=r"not a file|100,000,000,000 bytes, and 5 are the most"):
            read_bytes(tmp_path / "x.json", 5)


@pytest.mark.parametrize("put", PLACED)
@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("study.yaml", ["study", "study.yaml", "--dry-run"]),
        ("options.yaml", ["fit", "kmeans", "--config", "options.yaml", "--data", DATA, "--out", "out"]),
        ("options.yaml", ["fit", "kmeans", "--config=options.yaml", "--data", DATA, "--out", "out"]),
        ("results/a.json", ["study", "mae", "--records", "results", "--dry-run"]),
        ("km/tokenizer.json", ["score", "km", "--data", DATA]),
        ("km/tokenizer.safetensors", ["score", "km", "--data", DATA]),
        ("km/tokenizer.json", ["report", "km", "--out", "page.html"]),
        ("km/config.yaml", ["report", "km", "--out", "page.html"]),
        ("km/encoder.json", ["knn", "km", "--data", DATA, "--test-data", DATA]),
        ("km/encoder.safetensors", ["knn", "km", "--data", DATA, "--test-data", DATA]),
        ("km/config.json", ["fit", "peco", "--teacher", "hf:km", "--data", DATA, "--patch-size", "4", "--out", "out"]),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, list) else None,
)
def test_no_command_waits_for_what_is_no_file(
    put: Callable[[Path], None],
    file: str,
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    RandomTokenizer(4, 4).fit(DATA).save("km")
    Path("results").mkdir()
    for name in ("km/encoder.json", "km/model.safetensors", "km/encoder.safetensors"):
        Path(name).write_text("{}")
    Path(file).unlink(missing_ok=True)
    put(Path(file))
    assert main(words) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(line) < 500


def write_study(folder: Path, *stages: dict[str, Any]) -> Path:
    (folder / "study.yaml").write_text(yaml.safe_dump({"stages": list(stages)}))
    return folder / "study.yaml"


def test_large_grids_are_refused_by_their_count(tmp_path: Path) -> None:
    many = list(range(300))
    entry = {
        "name": "a",
        "stage": "fit random",
        "options": {"data": DATA},
        "grid": {"k": many, "seed": many, "patch_size": many},
    }
    with pytest.raises(ConfigError, match=r"a stands for 27,000,000 cells, and 10,000 are the most"):
        expand(read_study(write_study(tmp_path, entry)))


def test_cells_that_meet_again_and_again_are_found_once(tmp_path: Path) -> None:
    options = {"data": DATA, "patch_size": 4}
    stages = [
        {"name": "a0", "stage": "pretrain", "options": options},
        {"name": "b0", "stage": "pretrain", "options": options | {"seed": 1}},
    ]
    for level in range(1, 40):  # 2^40 ways lead to the last
        needed = {"init_from": f"@a{level - 1}", "teacher": f"@b{level - 1}", "target": "features"}
        stages += [
            {"name": f"{n}{level}", "stage": "pretrain", "options": options | needed | {"seed": s}}
            for s, n in enumerate("ab")
        ]
    cells = expand(read_study(write_study(tmp_path, *stages)))
    assert len(cells) == 80
    places = {cell.name: place for place, cell in enumerate(cells)}
    assert all(places[other.name] < places[cell.name] for cell in cells for other in cell.needs())


def test_a_header_is_compared_before_memory_is_taken(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2, 3)}, tmp_path / "a.safetensors")
    found = read_header(tmp_path / "a.safetensors")
    assert (found["a"].shape, found["a"].device.type) == ((2, 3), "meta")
    check_like(found, {"a": torch.zeros(2, 3, dtype=torch.float64)})
    for expected in (
        {},
        {"a": torch.zeros(3, 2)},
        {"a": torch.zeros(2, 3).long()},
        {"a": torch.zeros(2, 3), "b": torch.zeros(1)},
    ):
        with pytest.raises(ValueError, match="in the file"):
            check_like(found, expected)


def write_header(path: Path, shape: list[int], dtype: str = "F32", size: int = 0) -> None:
    """A file that says it has such a tensor, and has so many bytes that take no place."""
    text = json.dumps({"a": {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(path, 8 + len(text) + size)


@pytest.mark.parametrize("shape", [[10**9, 10**9], [0, 10**18], [-1], [2**63], [10**9]])
def test_shapes_that_cannot_be(shape: list[int], tmp_path: Path) -> None:
    write_header(tmp_path / "a.safetensors", shape)
    try:
        assert not read_header(tmp_path / "a.safetensors")["a"].numel()
    except ValueError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017


def test_huge_weights_are_refused_before_they_are_read(tmp_path: Path) -> None:
    RandomTokenizer(4, 4).fit(DATA).save(tmp_path)
    write_header(tmp_path / "encoder.safetensors", [10**9, 10], size=4 * 10**10)  # 40 GB that take no place
    sizes = {"image_size": [8, 8], "patch_size": 4, "channels": 3, "mean": [0.5] * 3, "std": [0.5] * 3}
    for model in ("micro", "huge", "tokens:1000000000:huge"):
        record = {"model": model, **sizes, "positions": "sincos", "weights_sha256": "x"}
        (tmp_path / "encoder.json").write_text(json.dumps(record))
        with pytest.raises(Exception, match=r"in the file and .* by its description"):
            load_encoder(tmp_path)
    assert load_tokenizer(tmp_path).vocab_size == 4


def test_shapes_of_values() -> None:
    shape = Whole({"a": int, "b": [{"c": range(1, 4), str: object}], str: object})
    check_shape({"a": 1, "b": [{"c": 3}], "d": None}, shape, "x")
    for value, reason in (
        ([], "x: expected keys"),
        ({"a": 1}, "x is damaged or of another version: it has no b"),
        ({"a": True, "b": []}, "x, a: True is not of the kind int"),
        ({"a": 1, "b": [{"c": 4}]}, r"x, b, c: 4 is not of the kind 1 … 3"),
        ({"a": 1, "b": {}}, "x, b: expected a list"),
    ):
        with pytest.raises(ConfigError, match=reason):
            check_shape(value, shape, "x")
    assert [fits(1, float), fits(1.0, int), fits(True, int), fits(None, int | None)] == [True, False, False, True]
    assert [fits("a", Literal["a"]), fits(1, Literal[True]), fits(["a"], list[int])] == [True, False, False]


def test_a_summary_of_other_kinds(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"stage": "fit", "data": []}')
    with pytest.raises(Exception, match=r"summary.json, data: expected keys with values"):
        read_summary(tmp_path)
