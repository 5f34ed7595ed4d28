"""Presets: their options are real ones, they go from data to accuracy, and take other values of options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import ViTConfig, ViTModel

from clustermim.cli import main
from clustermim.errors import ConfigError
from clustermim.runs import read_summary
from clustermim.studies import expand, read_study, run_study
from clustermim.studies.presets import FOLDER, open_study, override

CONFIGS = sorted(FOLDER.glob("*.yaml"))
NAMES = {
    *("mae", "maskfeat-hog", "maskfeat-features", "beit-dvae", "beit-vqgan", "peco", "clustermim-pixel"),
    *("clustermim-dino", "clustermim-mae", "clustermim-deit", "simmim", "u-mae", "dbot", "iterated"),
    *("clustermim-white", "clustermim-online", "mixmae", "mage", "beit-v2"),
}
RATIOS = {"simmim": 0.6, "mixmae": 0.5, "mage": 0.55, "beit-dvae": 0.4, "beit-vqgan": 0.4}  # of the methods themselves
RATIOS["beit-v2"] = RATIOS["beit-dvae"]
SMALL = "textures:?images=32&grid=8&patch=4"
ONE_STEP = {"epochs": 1, "batch_size": 32}
LEARNED = {"k": 8, "width": 8, **ONE_STEP}
FEW = {"fit kmeans": {"k": 6}, "fit dvae": LEARNED, "fit vqgan": LEARNED, "fit peco": LEARNED, "fit vqkd": LEARNED}


def test_all_methods_are_there() -> None:
    assert {path.stem for path in CONFIGS} == NAMES


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_settings_of_the_paper(path: Path) -> None:
    """Every option exists; what the paper gives is kept where nothing in the method itself says otherwise."""
    cells = expand(read_study(path))
    method = next(cell for cell in cells if cell.name == "method")
    assert method.options["weight_decay"] == 0.05
    assert method.options["mask_ratio"] == RATIOS.get(path.stem, 0.75)
    fits = [cell.options for cell in cells if cell.stage == "fit kmeans"]
    if path.stem == "clustermim-pixel":
        assert [fit["k"] for fit in fits] == [50]
    elif path.stem.startswith("clustermim") and path.stem not in ("clustermim-white", "clustermim-online"):
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
    assert main(["run", str(small), "--out", str(tmp_path / "runs")]) == 0
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
        options |= FEW.get(stage["stage"], ONE_STEP if "epochs" in options else {})
    return method


@pytest.mark.parametrize("words", [[], ["--list"], ["mae", "--list"]])
def test_the_list_has_a_line_for_each(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == sorted(NAMES)
    assert all(len(line) > 40 for line in lines)


def options(name: str, **changes: Any) -> dict[str, dict[str, Any]]:
    return {cell.name: cell.options for cell in expand(override(open_study(name), **changes))}


def test_other_values_of_options() -> None:
    plain, found = options("beit-dvae"), options("beit-dvae", data="a", test_data="b", epochs=9, seed=3, model="tiny")
    assert found["method"]["epochs"] == 9
    assert found["tokens"]["epochs"] == plain["tokens"]["epochs"]  # the preset gives those of pretraining only
    assert {name: found[name]["seed"] for name in ("tokens", "method", "probe")} == dict.fromkeys(
        ("tokens", "method", "probe"), 3
    )
    assert [(found[name].get("data"), found[name].get("test_data")) for name in found] == [
        ("a", None), ("b", None), ("a", None), ("a", "b"), ("a", "b")
    ]  # fmt: skip
    assert (plain["method"]["model"], found["method"]["model"]) == ("micro", "tiny")
    assert options("beit-dvae", epochs=None) == plain


def test_own_images_without_test_images_are_pretrained_on_only() -> None:
    study = override(open_study("clustermim-pixel"), data="a")
    assert [entry.name for entry in study.stages] == ["tokens", "score", "method"]
    assert {entry.options["data"] for entry in study.stages} == {"a"}
    assert study.table == {}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["maee"], "there is no preset 'maee'; did you mean mae?"),
        (["nowhere/x.yaml"], "there is no study nowhere/x.yaml"),
        (["mae", "--epoch", "3"], "there is no option --epoch; did you mean --epochs?"),
        (["mae", "--data", "digits/train", "--model", "big"], "there is no model 'big'"),
        (["--config", str(FOLDER / "mae.yaml")], "is a study: give its file without --config, or its name"),
    ],
)
def test_wrong_words(words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *words, "--out", str(tmp_path / "runs")]) == 2
    assert message in capsys.readouterr().err


def test_an_option_that_no_stage_has() -> None:
    with pytest.raises(ConfigError, match="no stage of mae has the option 'mask_ration'; did you mean mask_ratio"):
        override(open_study("mae"), mask_ration=0.5)
    with pytest.raises(ConfigError, match="'mask_unit'; it is mask_patch_size now"):
        run_study("mae", mask_unit=2)
    with pytest.raises(ConfigError, match="a preset or a YAML file, not a int"):
        run_study(3)  # type: ignore[arg-type]


def test_a_study_on_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run_study("mae", data=SMALL, test_data=SMALL, epochs=1, batch_size=32)
    assert repr(result) == "<StudyResult mae: 3 of 3 cells>"
    (row,) = result.table().rows
    assert row[0] == "MAE"
    probe = next(cell["results"]["avg"]["accuracy"] for cell in result.to_dict()["cells"] if cell["name"] == "probe")
    assert row[1] == f"{100 * probe:.2f}"
    assert row[1] in result.markdown()
    assert "kNN" in str(result)
    assert "<table>" in result._repr_html_()
    assert len(list(Path("runs").iterdir())) == 3
