"""Every method under configs/: its options are real ones, and it goes from data to accuracy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import ViTConfig, ViTModel

from clustermim.cli import main
from clustermim.runs import read_summary
from clustermim.studies import expand, read_study

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
NAMES = {
    *("mae", "maskfeat-hog", "maskfeat-features", "beit-dvae", "beit-vqgan", "peco", "clustermim-pixel"),
    *("clustermim-dino", "clustermim-mae", "clustermim-deit", "simmim", "u-mae", "dbot", "iterated"),
    "clustermim-white",
}
SMALL = "textures:?images=32&grid=8&patch=4"
ONE_STEP = {"epochs": 1, "batch_size": 32}
LEARNED = {"k": 8, "width": 8, **ONE_STEP}
FEW = {"fit kmeans": {"k": 6}, "fit dvae": LEARNED, "fit vqgan": LEARNED, "fit peco": LEARNED}


def test_all_methods_are_there() -> None:
    assert {path.stem for path in CONFIGS} == NAMES


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_settings_of_the_paper(path: Path) -> None:
    """Every option exists; what the paper gives is kept where nothing in the method itself says otherwise."""
    cells = expand(read_study(path))
    method = next(cell for cell in cells if cell.name == "method")
    assert method.options["weight_decay"] == 0.05
    assert method.options["mask_ratio"] == (0.6 if path.stem == "simmim" else 0.75)
    fits = [cell.options for cell in cells if cell.stage == "fit kmeans"]
    if path.stem == "clustermim-pixel":
        assert [fit["k"] for fit in fits] == [50]
    elif path.stem.startswith("clustermim") and path.stem != "clustermim-white":
        assert [(fit["k"], fit["space"]) for fit in fits] == [(100, "features")]


@pytest.fixture(scope="module")
def hub_teacher(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small ViT in the format of the hub."""
    folder = tmp_path_factory.mktemp("vit")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    ViTModel(ViTConfig(image_size=32, patch_size=8, **sizes)).save_pretrained(folder)
    return f"hf:{folder}"


@pytest.mark.slow
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_from_data_to_accuracy(path: Path, hub_teacher: str, tmp_path: Path) -> None:
    small = tmp_path / path.name
    small.write_text(yaml.safe_dump(smaller(yaml.safe_load(path.read_text()), hub_teacher)))
    assert main(["run", "--config", str(small), "--out", str(tmp_path / "runs")]) == 0
    summaries = [read_summary(folder) for folder in (tmp_path / "runs").iterdir()]
    stages = {summary["stage"].split()[0]: summary for summary in summaries}
    assert {"pretrain", "probe", "knn"} <= set(stages)
    assert stages["pretrain"]["results"]["steps"] == 1
    assert 0 <= stages["probe"]["results"]["avg"]["accuracy"] <= 1


def smaller(method: dict[str, Any], hub_teacher: str) -> dict[str, Any]:
    """The same method on 32 small images for one step; what would come from the hub lies in a folder."""
    method["parts"]["recipe"] |= {"data": SMALL, **ONE_STEP}
    method["parts"]["measure"] = {"data": SMALL, "test_data": SMALL}
    for stage in method["stages"]:
        options = stage["options"]
        if "data" in options:
            options["data"] = SMALL
        if str(options.get("teacher")).startswith("hf:"):
            options["teacher"] = hub_teacher
        options |= FEW.get(stage["stage"], {})
    return method
