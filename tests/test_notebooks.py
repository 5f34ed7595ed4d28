"""The notebooks of examples/ run as they stand, with smaller numbers in their first lines, and keep no outputs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

EXAMPLES = Path(__file__).parents[1] / "examples"
LARGEST = 60_000  # bytes

# Lines of the first code cell, and what they are in a test; a line that is not there is an error.
SMALLER = {
    "photographs": {
        "SIZE, PATCH = 64, 8": "SIZE, PATCH = 16, 4",
        "MINUTES, EPOCHS = 5, 100": "MINUTES, EPOCHS = 0, 1",
    },
    "judge_your_tokenizer": {'DATA = "cifar10"': 'DATA = "digits"', "PATCH = 4": "PATCH = 2"},
    "use_the_encoder_elsewhere": {"EPOCHS, SQUARES = 10, 1500": "EPOCHS, SQUARES = 1, 200"},
}
TIMM = f"import sys; sys.path.append({str(Path(__file__).parent)!r}); from timm_peer import import_timm; import_timm()"


def make_photos(folder: Path) -> None:
    """Squares of scikit-learn's two photographs, a class each."""
    random = np.random.default_rng(0)
    for name, photo in zip(("temple", "flower"), load_sample_images().images, strict=True):
        (folder / name).mkdir(parents=True)
        for number in range(320):
            row, column = random.integers(0, 395), random.integers(0, 608)
            Image.fromarray(photo[row : row + 32, column : column + 32]).save(folder / name / f"{number}.jpg")


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALLER)
def test_a_notebook_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbclient
    import nbformat

    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for line, smaller in SMALLER[name].items():
        assert line in cells[0].source
        cells[0].source = cells[0].source.replace(line, smaller)
    cells[0].source += f"\n{TIMM}" if "timm" in name or "elsewhere" in name else ""
    if name == "photographs":
        make_photos(tmp_path / "photos")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in cells for output in cell.outputs]
    shown = [output.data for output in outputs if output.output_type in ("execute_result", "display_data")]
    assert any("image/png" in data for data in shown)
    written = {path.name for path in tmp_path.iterdir()} - {"home"}
    assert written == {"photographs": {"photos"}, "use_the_encoder_elsewhere": {"exported"}}.get(name, set())


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_is_small_and_has_no_outputs(path: Path) -> None:
    assert path.stat().st_size < LARGEST
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None
