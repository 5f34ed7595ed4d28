"""A user's own tokenizer: the documented example on the command line, and one clear line for every broken promise."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import clustermim as cm
from clustermim.cli import main
from clustermim.data import open_source, to_float
from clustermim.errors import TokenizerError
from clustermim.tokenizers import ModuleTokenizer, load_tokenizer

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_tokenizer.py"
OWN = "module:own_tokenizer:make"
DATA = "textures:?images=80&grid=3x4&patch=4"


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder of its own, whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("own_tokenizer", "theirs"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "own_tokenizer.py").write_bytes(EXAMPLE.read_bytes())
    return tmp_path


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that a failing command ends with."""
    assert main(list(words)) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.startswith("error: ") for line in lines].count(True) == 1
    return lines[-1]


def wrapped(function: Callable[[Tensor], object], **attributes: object) -> ModuleTokenizer:
    class Own:
        def __call__(self, images: Tensor) -> object:
            return function(images)

    made = Own()
    for name, value in ({"vocab_size": 5, "patch_size": 4} | attributes).items():
        if value is not None:
            setattr(made, name, value)
    return ModuleTokenizer("module:theirs:make", made)


def test_a_network_does_not_change_by_being_asked() -> None:
    class Net(torch.nn.Module):
        vocab_size, patch_size = 5, 4

        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.BatchNorm2d(3)

        def forward(self, images: Tensor) -> Tensor:
            return self.norm(images).mean(1)[:, ::4, ::4].mul(2).long().clamp(0, 4)

    tokenizer, images = ModuleTokenizer("module:theirs:make", Net()), torch.rand(8, 3, 8, 8)
    assert torch.equal(tokenizer(images)[:2], tokenizer(images[:2]))
    assert not any(weights.requires_grad for weights in tokenizer.parameters())


def test_the_example_gives_brightness() -> None:
    tokenizer = load_tokenizer(OWN)
    images = torch.zeros(2, 3, 8, 12)
    images[1, :, :4, 4:8] = 0.5
    images[1, :, 4:, 8:] = 1.0
    ids = tokenizer(images)
    assert ids.tolist() == [[0] * 6, [0, 8, 0, 0, 0, 15]]
    assert ids.dtype == torch.int64
    assert (tokenizer.vocab_size, tokenizer.patch_size, tokenizer.channels_) == (16, 4, 3)


def test_tcas_of_the_example(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", OWN, "--data", DATA, "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["vocab_size"] == 16
    assert scores["patches"] == 80 * 12
    (written,) = workplace.glob("module-own-tokenizer-make/score-*/summary.json")
    assert json.loads(written.read_text())["results"] == scores
    assert main(["score", OWN, "--data", DATA]) == 0  # replaced, as in the folder of a fitted tokenizer
    assert main(["score", OWN, "--data", DATA, "--out", "elsewhere"]) == 0
    assert (workplace / "elsewhere" / "summary.json").exists()


def test_tokenize_and_show_the_example(workplace: Path) -> None:
    assert main(["tokenize", OWN, "--data", DATA, "--out", "ids.npy"]) == 0
    ids = np.load("ids.npy")
    assert ids.shape == (80, 12)
    images = open_source(DATA).read(range(80)).images.float() / 255
    assert (torch.from_numpy(ids) == load_tokenizer(OWN)(images)).all()
    assert main(["show", OWN, "--data", DATA, "--tokens", "4", "--images", "2", "--out", "tokens.png"]) == 0
    assert (workplace / "tokens.png").stat().st_size > 1000


def test_pretrain_a_step_on_the_example(workplace: Path) -> None:
    words = ["pretrain", "--data", DATA, "--tokenizer", OWN, "--patch-size", "4", "--out", "run", "--device", "cpu"]
    assert main([*words, "--batch-size", "80", "--epochs", "1"]) == 0
    lines = [json.loads(line) for line in (workplace / "run" / "metrics.jsonl").read_text().splitlines()]
    assert any(0 < line.get("loss", 0) < 10 for line in lines)
    assert f"tokenizer: {OWN}" in (workplace / "run" / "config.yaml").read_text()


def test_it_cannot_be_saved(workplace: Path) -> None:
    before = set(workplace.iterdir())
    with pytest.raises(TokenizerError, match="module:own_tokenizer:make is code, not data, and cannot be saved"):
        load_tokenizer(OWN).save(workplace)
    assert set(workplace.iterdir()) == before


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("module:", "module: is not of the form module:package.module:factory"),
        ("module:own_tokenizer", "module:own_tokenizer is not of the form"),
        ("module:not_there_at_all:make", "not_there_at_all cannot be imported (ModuleNotFoundError: No module named"),
        ("module:own_tokenizer:mak", "the module own_tokenizer has no function mak"),
        ("module:.own_tokenizer:make", ".own_tokenizer cannot be imported (TypeError"),
    ],
)
def test_what_is_not_there(spec: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refusal(capsys, "score", spec, "--data", DATA)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def make(:", "the module theirs cannot be imported (SyntaxError"),
        ("raise SystemExit('no GPU')", "the module theirs cannot be imported (SystemExit: no GPU)"),
        ("def make():\n  raise OSError('no\\nweights')", "make() failed: OSError: no weights; --debug shows where"),
        ("def make(size): ...", "make() failed: TypeError"),
        ("def make(): ...", "make() gave a NoneType, not a callable from images to ids"),
        ("def make(): return len", "its vocab_size is None, not a whole number of 1 or more"),
    ],
)
def test_what_a_module_gets_wrong(code: str, message: str, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (workplace / "theirs.py").write_text(code)
    assert message in refusal(capsys, "score", "module:theirs:make", "--data", DATA)


@pytest.mark.parametrize("value", [0, -1, 2.0, "8", True])
@pytest.mark.parametrize("name", ["vocab_size", "patch_size", "channels"])
def test_what_the_callable_says_of_itself(name: str, value: object) -> None:
    with pytest.raises(TokenizerError, match=f"module:theirs:make: its {name} is {value!r}, not a whole number of 1"):
        wrapped(lambda images: images, **{name: value})


@pytest.mark.parametrize("name", ["vocab_size", "patch_size"])
def test_what_the_callable_must_say(name: str) -> None:
    with pytest.raises(TokenizerError, match=f"its {name} is None, not a whole number"):
        wrapped(lambda images: images, **{name: None})


@given(
    shape=st.lists(st.integers(1, 7), max_size=4).map(tuple),
    kind=st.sampled_from([torch.uint8, torch.int32, torch.int64, torch.float32, torch.bool]),
    low=st.integers(0, 3),
    high=st.integers(0, 6),
)
def test_ids_pass_exactly_when_they_keep_the_promise(
    shape: tuple[int, ...], kind: torch.dtype, low: int, high: int
) -> None:
    """2 images of 2×3 patches and 5 tokens: anything else comes back as an error that names what came."""
    answer = torch.full(shape, low).flatten()
    answer[-1] = high
    answer = answer.reshape(shape).to(kind)
    tokenizer = wrapped(lambda images: answer)
    fits = shape in ((2, 6), (2, 2, 3))
    if fits and not kind.is_floating_point and kind != torch.bool and high < 5:
        assert torch.equal(tokenizer(torch.rand(2, 3, 8, 12)), answer.reshape(2, 6).long())
        return
    with pytest.raises(TokenizerError, match=r"module:theirs:make gave ids (of shape|of type|in)") as caught:
        tokenizer(torch.rand(2, 3, 8, 12))
    assert (f"of shape {shape}, not (2, 6) or (2, 2, 3)" in str(caught.value)) == (not fits)


def test_both_shapes_of_ids_and_their_bounds() -> None:
    for shape in ((2, 6), (2, 2, 3)):
        ids = torch.arange(12).remainder(5).reshape(shape)
        assert (
            wrapped(lambda images, ids=ids: ids)(torch.rand(2, 3, 8, 12)).flatten().tolist() == ids.flatten().tolist()
        )
    for wrong, found in ((-1, r"-1 … 0"), (5, r"0 … 5")):
        ids = torch.zeros(2, 6, dtype=torch.long)
        ids[1, 3] = wrong
        with pytest.raises(TokenizerError, match=f"gave ids in {found}, not in 0 … 4, as its vocab_size of 5 says"):
            wrapped(lambda images, ids=ids: ids)(torch.rand(2, 3, 8, 12))
    with pytest.raises(TokenizerError, match=r"gave a list, not a tensor of ids of shape \(2, 6\)"):
        wrapped(lambda images: [[0] * 6] * 2)(torch.rand(2, 3, 8, 12))


def test_a_callable_that_fails_and_other_channels(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TokenizerError, match=r"failed on images of shape \(2, 3, 8, 12\): ZeroDivisionError.*--debug"):
        wrapped(lambda images: 1 // 0)(torch.rand(2, 3, 8, 12))
    with pytest.raises(TokenizerError, match=r"1-channel images, these have 3: add \?channels=1"):
        wrapped(lambda images: images, channels=1)(torch.rand(2, 3, 8, 12))
    words = ("pretrain", "--data", DATA, "--tokenizer", OWN, "--patch-size", "2", "--out", "run")
    assert "is for patches of 4 pixels and 3 channels" in refusal(capsys, *words)


def test_an_object_of_ones_own_needs_no_file() -> None:
    """A notebook has no module to name: the callable itself is scored, drawn and predicted."""

    class Bright:
        vocab_size, patch_size = 4, 4

        def __call__(self, images: Tensor) -> Tensor:
            return (torch.nn.functional.avg_pool2d(images.mean(1), 4) * 4).long().clamp(max=3)

    own, source = Bright(), open_source(DATA)
    loaded, images = load_tokenizer(own), to_float(source.read(range(5)).images)
    assert torch.equal(loaded(images), own(images).flatten(1))
    assert "Bright" in repr(loaded)
    assert cm.score(own, source, scores=["alpha"]).values == cm.score(loaded, source, scores=["alpha"]).values
    encoder = cm.pretrain(source, own, epochs=1, batch_size=40, device="cpu")
    assert "accuracy" in encoder.history[-1]
    with pytest.raises(TokenizerError, match="is code, not data, and cannot be saved"):
        loaded.save("here")
