"""A report about a stranger's runs opens nothing but what it was given: no folder, no link, no request elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from toy_runs import TEXTURES, fit, measured, pretrained

from clustermim.cli import main
from clustermim.data.spec import is_builtin
from clustermim.drawing.page import PICTURE
from clustermim.errors import RunError
from clustermim.reports import explorer, records
from clustermim.reports.collect import collect
from clustermim.reports.page import Report, report
from clustermim.tokenizers import KMeansTokenizer
from clustermim.tokenizers.base import outside_teacher
from forging import forge_teacher


def named(folder: Path, spec: str) -> Path:
    """A tokenizer whose summary and configuration name other images."""
    fit(folder)
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "data": {"spec": spec}}))
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace(TEXTURES, spec))
    return folder


def page_of(folder: Path, **options: Any) -> tuple[Report, str]:
    page = folder.parent / "page.html"
    return report(folder, page, overwrite=True, **options), page.read_text(encoding="utf-8")


@pytest.fixture
def private(tmp_path: Path, encode: Callable[..., bytes], noise: Callable[..., Any]) -> Path:
    """A folder of pictures beside the runs."""
    folder = tmp_path / "private"
    folder.mkdir()
    for number in range(12):
        (folder / f"{number}.png").write_bytes(encode(noise(8, 12, 3, seed=number)))
    return folder


@pytest.mark.parametrize(
    "spec", ["folder:{}", "{}", "folder:{}?size=8x12", "hf:somebody/images", "wds:http://a.b/c.tar"]
)
def test_images_that_only_a_run_names_are_not_opened(
    spec: str, tmp_path: Path, private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec.format(private)
    named(tmp_path / "runs" / "km", spec)
    asked: list[str] = []
    original = explorer.open_source
    monkeypatch.setattr(explorer, "open_source", lambda text: asked.append(text) or original(text))
    made, page = page_of(tmp_path / "runs")
    assert asked == []
    (line,) = made.left_out
    assert f"its files name the images {spec}, which were not opened" in line
    assert "name images with --data, or add --trust-runs" in line
    assert "which were not opened" in page
    assert '"sheet"' not in page
    report(tmp_path / "runs", tmp_path / "b.html", data=TEXTURES)
    assert asked == [TEXTURES]
    assert '"sheet"' in (tmp_path / "b.html").read_text(encoding="utf-8")


def test_ones_own_runs_are_shown_on_request(tmp_path: Path, private: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named(tmp_path / "runs" / "km", f"folder:{private}")
    words = ["report", str(tmp_path / "runs"), "--out", str(tmp_path / "r.html")]
    assert main(words) == 0
    assert "left out: the tokens of km are not shown" in " ".join(capsys.readouterr().out.split())
    assert main([*words, "--overwrite", "--trust-runs"]) == 0
    assert "left out" not in capsys.readouterr().out
    assert '"sheet"' in (tmp_path / "r.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("teacher", ["hf:somebody/vit", "hf:{}", "run:{}", "{}", ["hf:somebody/vit"]])
def test_teachers_that_only_a_run_names_are_not_opened(
    teacher: Any, tmp_path: Path, private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = teacher.format(private) if isinstance(teacher, str) else teacher
    folder, loaded = forge_teacher(tmp_path / "runs" / "km", TEXTURES, teacher), []
    forge_teacher(tmp_path / "runs" / "plain", TEXTURES, "hog:")
    original = explorer.load_tokenizer
    monkeypatch.setattr(explorer, "load_tokenizer", lambda place: loaded.append(place.name) or original(place))
    made, _ = page_of(tmp_path / "runs", data=TEXTURES)
    assert loaded == ["plain"]
    assert outside_teacher(folder) == teacher
    assert any(
        f"its files name the teacher {teacher}, which was not opened: add --trust-runs" in t for t in made.left_out
    )
    page_of(tmp_path / "runs", data=TEXTURES, trust_runs=True)
    assert loaded == ["plain", "km", "plain"]


def test_a_tokenizer_that_carries_its_teacher_is_shown(tmp_path: Path) -> None:
    tokenizer = KMeansTokenizer(4, 4, "features", teacher="random:micro?image=16x24&patch=4").fit(TEXTURES)
    tokenizer.save(tmp_path / "runs" / "km")
    assert outside_teacher(tmp_path / "runs" / "km") is None
    forge_teacher(tmp_path / "runs" / "moved", TEXTURES, "run:/elsewhere")
    assert outside_teacher(tmp_path / "runs" / "moved") == "run:/elsewhere"
    made, _ = page_of(tmp_path / "runs", data=TEXTURES)
    assert len(made.left_out) == 1


@pytest.mark.parametrize("text", ["digits", "digits/test?limit=3", "cifar10/train", "cifar100:test", TEXTURES])
def test_built_in_images(text: str) -> None:
    assert is_builtin(text)


@pytest.mark.parametrize(
    "text", ["", ".", "/", "~", "folder:x", "npz:digits", "hf:cifar10", "./digits", "digit", "a\nb"]
)
def test_other_images(text: str) -> None:
    assert not is_builtin(text)


FILES = ("summary.json", "config.yaml", "metrics.jsonl", "tokenizer.json", "tokenizer.safetensors", PICTURE)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_a_link_elsewhere_is_not_read(name: str, tmp_path: Path) -> None:
    fit(tmp_path / "runs" / "good")
    of = tmp_path / "runs" / "linked"
    (pretrained if name in (PICTURE, "metrics.jsonl") else fit)(of)
    secret = tmp_path / "secret"
    if name == PICTURE:
        Image.new("RGB", (40, 30), "red").save(secret, "PNG")
    else:
        (of / name).rename(secret)
    (of / name).symlink_to(secret)
    made, page = page_of(tmp_path / "runs")
    (line,) = made.left_out
    assert f"{of / name} is a link out of the folders that were named: name the folder it leads to as well" in line
    assert (made.tokenizers, made.encoders) == (1, 0)
    assert "data:image/png" not in page
    assert "<img" not in page
    with pytest.raises(RunError, match="is a link out of the folders"):
        report(of, tmp_path / "other.html")


def test_a_folder_that_is_a_link_elsewhere_is_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit(tmp_path / "runs" / "good")
    fit(tmp_path / "elsewhere" / "km")
    (tmp_path / "runs" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "runs" / "good" / "score-theirs").symlink_to(tmp_path / "elsewhere" / "km")
    listed: list[Path] = []
    original = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda self: listed.append(self.resolve()) or original(self))
    runs, left_out = collect([str(tmp_path / "runs")])
    assert not any(place.is_relative_to(tmp_path / "elsewhere") for place in listed)
    assert [run.folder.name for run in runs] == ["good"]
    assert [line.partition(" is a link out")[0] for line in left_out] == [
        str(tmp_path / "runs" / "good" / "score-theirs"),
        str(tmp_path / "runs" / "linked"),
    ]


def test_links_inside_and_between_named_folders_are_followed(tmp_path: Path) -> None:
    fit(tmp_path / "runs" / "km")
    fit(tmp_path / "elsewhere" / "far")
    (tmp_path / "runs" / "latest").symlink_to("km")
    (tmp_path / "runs" / "linked").symlink_to(tmp_path / "elsewhere" / "far")
    (tmp_path / "named").symlink_to(tmp_path / "runs")
    (tmp_path / "runs" / "km" / "loop").symlink_to("loop")
    runs, left_out = collect([str(tmp_path / "named"), str(tmp_path / "elsewhere")])
    assert sorted(run.folder.resolve().name for run in runs) == ["far", "km"]
    assert left_out == []
    assert "is a link out" in collect([str(tmp_path / "named")])[1][0]


def test_a_path_that_a_run_names_is_only_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = pretrained(tmp_path / "runs" / "mae")
    measured(tmp_path / "runs" / "probe", "/net/somewhere/mae")
    monkeypatch.chdir(tmp_path)
    measured(tmp_path / "runs" / "knn", "runs/../runs/mae", "knn")
    found, _ = collect(["runs"])
    touched: list[str] = []
    original = Path.resolve
    monkeypatch.setattr(Path, "resolve", lambda self, **more: touched.append(str(self)) or original(self, **more))
    (record,) = records.make_records(found).pretrained
    assert record.found.folder.resolve() == run
    assert {"probe avg", "knn avg"} <= set(record.accuracies)  # by its name alone, and by its path
    assert not any("somewhere" in text for text in touched)
