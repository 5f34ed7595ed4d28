"""Run folders are found where they lie, and what cannot be reported is told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from toy_runs import fit, measured, pretrained, score

from clustermim.data import open_source
from clustermim.errors import RunError
from clustermim.reports.collect import collect
from clustermim.tokenizers import KMeansTokenizer


def names(*folders: Path) -> list[str]:
    return sorted(run.folder.name for run in collect([str(folder) for folder in folders])[0])


def test_finds_runs_below_and_inside_runs(tmp_path: Path) -> None:
    run = pretrained(tmp_path / "all" / "study" / "run")
    measured(run / "probe", run)
    pretrained(tmp_path / "all" / "study" / "deep" / "far")
    assert names(tmp_path / "all") == ["probe", "run"]  # two levels down, and inside a run one more
    assert names(tmp_path / "all" / "study") == ["far", "probe", "run"]
    assert names(run) == ["probe", "run"]
    assert names(run, tmp_path / "all", run / "probe" / "..") == ["probe", "run"]  # each once


def test_a_tokenizer_saved_by_itself_counts(tmp_path: Path) -> None:
    source = open_source("textures:?images=40&grid=4x6&patch=4")
    KMeansTokenizer(5, 4, iterations=2).fit(source).save(tmp_path)
    (run,) = collect([str(tmp_path)])[0]
    assert run.stage == "fit kmeans"
    assert run.results["vocab_size"] == 5
    assert run.data is None


def test_unfinished_work_is_hidden_or_told(tmp_path: Path) -> None:
    pretrained(tmp_path / "good")
    shutil.copytree(tmp_path / "good", tmp_path / ".good.partial-1")
    (pretrained(tmp_path / "stopped") / "summary.json").unlink()
    found, left_out = collect([str(tmp_path)])
    assert [run.folder.name for run in found] == ["good"]
    (line,) = left_out
    assert "stopped is incomplete: summary.json is not there" in line
    with pytest.raises(RunError, match=r"nothing to report .* incomplete"):
        collect([str(tmp_path / "stopped")])


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("summary.json", "{", "summary.json cannot be read"),
        ("summary.json", "[]", "summary.json is of another version"),
        ("summary.json", '{"accuracy": 1}', "of another version or no summary"),
        ("summary.json", '{"stage": "pretrain", "results": 3}', "of another version or no summary"),
        ("config.yaml", "a: [", "config.yaml cannot be read"),
        ("config.yaml", "- 1", "config.yaml is of another version"),
        ("tokenizer.json", "{", "tokenizer.json cannot be read"),
        ("tokenizer.json", '{"format": 99}', "not a tokenizer of format 1"),
    ],
)
def test_another_version_is_refused(tmp_path: Path, file: str, content: str, expected: str) -> None:
    run = pretrained(tmp_path / "run")
    (run / file).write_text(content)
    with pytest.raises(RunError, match=expected):
        collect([str(run)])
    pretrained(tmp_path / "good")
    assert len(collect([str(tmp_path)])[1]) == 1  # beside a good one it is only left out


def test_a_missing_configuration_is_told(tmp_path: Path) -> None:
    (pretrained(tmp_path / "run") / "config.yaml").unlink()
    with pytest.raises(RunError, match=r"incomplete: config\.yaml is not there"):
        collect([str(tmp_path / "run")])


def test_nothing_there(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(RunError, match="there is no run folder in"):
        collect([str(tmp_path)])
    for name in ("notes.txt", "absent"):
        with pytest.raises(RunError, match="is not a folder"):
            collect([str(tmp_path / name)])


def test_a_tokenizer_knows_its_size_and_data(tmp_path: Path) -> None:
    score(fit(tmp_path / "km", 6))
    fitted, scored = collect([str(tmp_path)])[0]
    assert fitted.results["vocab_size"] == 6
    assert fitted.data == scored.data == json.loads((tmp_path / "km" / "summary.json").read_text())["data"]["spec"]
