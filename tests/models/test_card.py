"""The model card of an export: what the run says of itself, no path, and nothing that is not known."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from PIL import Image

import clustermim as cm
from clustermim.cli import main
from clustermim.models import load_encoder
from timm_peer import import_timm

DATA = "textures:?images=64&grid=4&patch=4&classes=2"
SHORT = ("--epochs", "1", "--batch-size", "32", "--device", "cpu")


def run(*words: str | Path) -> None:
    assert main([str(word) for word in words]) == 0


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pretrained run, its tokenizer with a score, and its accuracies."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLUSTERMIM_HOME", str(folder / "home"))
        run("fit", "kmeans", "--data", DATA, "--k", "6", "--patch-size", "4", "--out", folder / "km")
        run("score", folder / "km", "--data", DATA, "--permutations", "2")
        words = ("--patch-size", "4", "--tokenizer", folder / "km", *SHORT)
        run("pretrain", "--data", DATA, *words, "--out", folder / "run")
        run("probe", folder / "run", "--data", DATA, "--test-data", DATA)
        run("knn", folder / "run", "--data", DATA, "--test-data", DATA)
    return folder


def card(run: Path | cm.Encoder, folder: Path, **options: object) -> tuple[dict[str, object], str]:
    """What it says at its head to machines, and the text."""
    cm.export(run, "timm", folder, **options)
    text = (folder / "README.md").read_text()
    _, head, body = text.split("---\n", 2)
    return yaml.safe_load(head), body


def test_everything_is_from_the_run(trained: Path, tmp_path: Path) -> None:
    head, body = card(trained / "run", tmp_path / "out", license="cc-by-4.0")
    assert (head["license"], head["library_name"]) == ("cc-by-4.0", "timm")
    summary, probe = (json.loads((trained / "run" / part / "summary.json").read_text()) for part in (".", "probe"))
    assert f"| fingerprint of the images | {summary['data']['fingerprint']} |" in body
    assert f"| loss of the last epoch | {summary['results']['loss']:.4g} |" in body
    assert "| tokenizer | kmeans, space pixel, k 6 |" in body
    for pooling in ("avg", "cls"):
        assert f" {100 * probe['results'][pooling]['accuracy']:.2f} % |" in body
    (scored,) = (trained / "km").glob("score-*/summary.json")
    assert f"| transferability | {json.loads(scored.read_text())['results']['transferability']:.4f} (" in body
    assert str(trained) not in body
    assert "nan" not in body.lower()


def test_accuracies_of_other_weights_are_left_out(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "run", tmp_path / "run")
    for part in ("probe", "knn"):
        path = tmp_path / "run" / part / "summary.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "weights": "others"}))
    assert "What it reaches" not in card(tmp_path / "run", tmp_path / "out")[1]


def test_a_finetuned_run_tells_its_own(trained: Path, tmp_path: Path) -> None:
    words = ("--data", DATA, "--test-data", DATA, *SHORT, "--out", tmp_path / "tuned")
    run("finetune", trained / "run", *words)
    results = json.loads((tmp_path / "tuned" / "summary.json").read_text())["results"]
    body = card(tmp_path / "tuned", tmp_path / "out")[1]
    (line,) = [line for line in body.splitlines() if line.startswith("| fine-tuned |")]
    assert f" {100 * results['accuracy']:.2f} % |" in line


def test_a_folder_of_photographs_stays_unnamed(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    for number in range(8):
        Image.new("RGB", (8, 8), (30 * number, 0, 0)).save(tmp_path / "secret" / f"{number}.png")
    words = ("--target", "pixels", "--epochs", "1", "--batch-size", "4", "--device", "cpu", "--out", tmp_path / "run")
    run("pretrain", "--data", f"folder:{tmp_path / 'secret'}", *words)
    body = card(tmp_path / "run", tmp_path / "out")[1]
    assert "| images | 8 of 3×8×8 |" in body
    assert "secret" not in body


def test_an_encoder_in_memory_tells_its_size_only(tmp_path: Path) -> None:
    encoder = cm.pretrain(DATA, patch_size=4, epochs=0, device="cpu")
    head, body = card(encoder, tmp_path / "out")
    assert head["license"] == "other"
    assert f"{sum(weights.numel() for weights in encoder.parameters()):,} parameters" in body
    assert "How it was made" not in body


@pytest.mark.parametrize("damage", [{"results": {"loss": "low", "accuracy": [1]}}, {"versions": 3, "results": {}}])
def test_values_of_other_kinds(damage: dict[str, object], trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "run", tmp_path / "run")
    for part in (".", "probe"):
        path = tmp_path / "run" / part / "summary.json"
        results = {"avg": {"accuracy": "high", "interval": 3}, "cls": 5, **damage.get("results", {})}  # type: ignore[dict-item]
        path.write_text(json.dumps({**json.loads(path.read_text()), **damage, "results": results}))
    body = card(tmp_path / "run", tmp_path / "out")[1]
    assert "loss of the last epoch" not in body
    assert "| linear probe |" not in body


def test_the_lines_of_the_card_load_it(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_timm()
    for to in ("timm", "transformers"):
        cm.export(trained / "run", to, tmp_path / to)
        text = (tmp_path / to / "README.md").read_text().replace("PATH/OF/THIS/FOLDER", str(tmp_path / to))
        images = cm.open(DATA).read(range(2)).images / 255
        names = {"images": images, "picture": Image.new("RGB", (16, 16))}
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            exec(block, names)  # noqa: S102
            assert names["tokens"].shape[1:] == (17, 128)
    assert load_encoder(tmp_path / "timm").weights == load_encoder(trained / "run").weights
