"""A stranger's files run no code: names of it count where the user typed them, or said that the files are trusted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import clustermim as cm
from clustermim import factories
from clustermim.cli import main
from clustermim.errors import ConfigError, TokenizerError, UserError
from clustermim.tokenizers import KMeansTokenizer, load_tokenizer
from clustermim.tokenizers.token_encoder import TokenEncoder
from forging import forge_teacher

DATA = "textures:?images=40&grid=4&patch=4"
NAME = "module:stranger:make"
CODE = """
from pathlib import Path
Path("it-ran").touch()
def make():
    Path("it-ran").touch()
    return lambda images: images[:, :, ::4, ::4]
"""
FEATURES: dict[str, Any] = {"k": 4, "patch_size": 4, "space": "features"}


@pytest.fixture(autouse=True)
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with code that leaves a trace, whose name nobody typed yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(factories, "_typed", set())
    monkeypatch.delitem(sys.modules, "stranger", raising=False)
    monkeypatch.delenv(factories.TRUST, raising=False)
    (tmp_path / "stranger.py").write_text(CODE)
    return tmp_path


def ran() -> bool:
    return Path("it-ran").exists()


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that a failing command ends with; nothing ran."""
    capsys.readouterr()
    assert main(list(words)) == 2
    assert not ran()
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    return line


@pytest.mark.parametrize(
    "words",
    [
        ["score", "{}", "--data", DATA],
        ["show", "{}", "--data", DATA, "--out", "tokens.png"],
        ["tokenize", "{}", "--data", DATA, "--out", "ids.npy"],
        ["pretrain", "--tokenizer", "{}", "--data", DATA, "--epochs", "1", "--out", "run"],
        ["pretrain", "--target", "vectors", "--tokenizer", "{}", "--data", DATA, "--epochs", "1", "--out", "run"],
        ["report", "{}", "--data", DATA, "--out", "report.html"],
    ],
    ids=lambda words: words[0],
)
def test_no_command_runs_what_a_tokenizers_file_names(
    words: list[str], stranger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = forge_teacher(stranger / "theirs", DATA, NAME)
    line = refusal(capsys, *(word.format(folder) for word in words))
    assert f"theirs/tokenizer.json names code to run, {NAME}" in line
    assert "add --trust-code if you trust who wrote it" in line
    assert not Path("run").exists()


def test_names_are_found_at_any_depth(stranger: Path) -> None:
    for teacher in ([NAME], {"teacher": ["hog:", 3, None, [NAME]]}):
        with pytest.raises(TokenizerError, match="names code to run, module:stranger:make"):
            load_tokenizer(forge_teacher(stranger / "theirs", DATA, teacher))


def test_an_encoder_that_reads_tokens_runs_no_code(stranger: Path) -> None:
    tokenizer = KMeansTokenizer(**FEATURES, teacher="hog:").fit(DATA)
    encoder = cm.pretrain(DATA, tokenizer, layout="mage", epochs=1, batch_size=40, device="cpu")
    assert isinstance(encoder, TokenEncoder)
    encoder.save(stranger / "mage")
    forge_teacher(stranger / "mage" / "tokenizer", DATA, NAME)
    words = ["--data", DATA, "--test-data", DATA]
    for command in ("probe", "knn"):
        assert main([command, "mage", *words]) == 2
    with pytest.raises(TokenizerError, match="names code to run"):
        cm.load_encoder("mage")
    assert not ran()


def fit_study(stranger: Path, teacher: object = NAME) -> str:
    options = {"data": DATA, **FEATURES, "teacher": teacher}
    (stranger / "theirs.yaml").write_text(yaml.safe_dump({"stages": [
        {"name": "plain", "stage": "fit random", "options": {"data": DATA, "k": 4, "patch_size": 4}},
        {"name": "tokens", "stage": "fit kmeans", "options": options},
        {"name": "score", "stage": "score", "options": {"tokenizer": "@tokens", "data": DATA}},
    ]}))  # fmt: skip
    return "theirs.yaml"


def test_a_study_runs_no_code_by_itself(stranger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = fit_study(stranger)
    line = refusal(capsys, "study", study)
    assert f"the study's tokens names code to run, {NAME}" in line
    assert not Path("runs").exists()  # it is found before anything is run
    assert main(["study", study, "--dry-run"]) == 0  # which shows the name
    assert NAME in capsys.readouterr().out
    assert main(["study", study, "--only", "plain"]) == 0
    with pytest.raises(ConfigError, match="names code to run"):
        cm.run_study(study)
    assert not ran()


def test_a_trusted_study_runs_from_end_to_end(stranger: Path) -> None:
    study = fit_study(stranger)
    assert main(["study", study, "--trust-code"]) == 0  # also what the tokenizers that it made name
    assert ran()
    assert len(list(Path("runs").glob("score-*/summary.json"))) == 1
    assert main(["study", study]) == 0  # complete: there is nothing to run


def test_an_argument_of_a_study_is_typed(stranger: Path) -> None:
    cm.run_study(fit_study(stranger, "hog:"), "runs", only="tokens", teacher=NAME)
    assert ran()


def test_a_configuration_runs_no_code(stranger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (stranger / "theirs.yaml").write_text(yaml.safe_dump({"tokenizer": NAME, "target": "tokens"}))
    pretrain = ["pretrain", "--config", "theirs.yaml", "--data", DATA, "--epochs", "1", "--out", "run"]
    assert f"the file of --config names code to run, {NAME}" in refusal(capsys, *pretrain)
    (stranger / "theirs.yaml").write_text(yaml.safe_dump({"teacher": [NAME]}))
    peco = ["fit", "peco", "--config", "theirs.yaml", "--data", DATA, "--out", "run"]
    assert f"names code to run, {NAME}" in refusal(capsys, *peco)
    fit = ["fit", "kmeans", "--k", "4", "--patch-size", "4", "--space", "features", "--data", DATA, "--out", "km"]
    (stranger / "theirs.yaml").write_text(yaml.safe_dump({"teacher": NAME}))
    assert "names code" in refusal(capsys, *fit, "--config", "theirs.yaml")
    assert main([*fit, "--config", "theirs.yaml", "--trust-code"]) == 0
    assert ran()


def test_what_was_typed_counts(stranger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit = ["fit", "kmeans", "--k", "4", "--patch-size", "4", "--space", "features", "--data", DATA]
    assert main([*fit, "--teacher", NAME, "--out", "own"]) == 0
    assert load_tokenizer("own").vocab_size == 4  # the same name, typed in this process
    monkeypatch.setattr(factories, "_typed", set())
    with pytest.raises(TokenizerError, match="names code to run"):
        load_tokenizer("own")
    with cm.trust_code():
        assert load_tokenizer("own").vocab_size == 4
    monkeypatch.setattr(factories, "_typed", set())
    score = ["score", "own", "--data", DATA]
    assert main(score) == 2
    assert main([*score, "--trust-code"]) == 0
    monkeypatch.setattr(factories, "_typed", set())
    assert main(score) == 2  # trust ends with its command
    monkeypatch.setenv(factories.TRUST, "1")
    assert main(score) == 0
    assert main([*fit, f"--teacher={NAME}", "--out", "again"]) == 0


def test_a_typed_name_allows_no_other(stranger: Path) -> None:
    factories.note_typed("module:stranger:make2", "[module:stranger:a, module:stranger:b]", 3)
    for name in ("module:stranger:a", "module:stranger:b", "module:stranger:make2", "folder:x"):
        factories.check_names({"teacher": [name]}, "a file", UserError)
    for name in (NAME, "module:stranger:", "module:"):
        for values in (name, {"teacher": name}, [{name}]):
            with pytest.raises(UserError, match="a file names code to run"):
                factories.check_names(values, "a file", UserError)


def test_trust_is_given_back_when_a_block_fails() -> None:
    with pytest.raises(ValueError, match="stop"), cm.trust_code():
        raise ValueError("stop")
    with pytest.raises(UserError, match="a file names code"):
        factories.check_names([NAME], "a file", UserError)
    assert torch.is_tensor(cm.open_teacher(NAME)(torch.rand(1, 3, 8, 8), (2, 2)))  # an argument counts
