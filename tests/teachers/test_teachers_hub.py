"""Teachers of transformers: its own hidden states, in the order of the patches, and what bad input gets."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from clustermim.errors import MissingExtraError, TeacherError
from clustermim.teachers import Teacher, open_teacher
from clustermim.teachers.hub import HubTeacher

SHAPE: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 16,
    "patch_size": 4,
}
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
SETTINGS = {"size": {"height": 16, "width": 16}, "image_mean": MEAN, "image_std": STD}

# The tokens before the patches, by the name of the model.
PREFIXES = {"ViT": 1, "Dinov2": 1, "Dinov2WithRegisters": 5, "ViTMAE": 1, "DeiT": 2, "CLIPVision": 1, "Beit": 1}


def make(name: str, folder: Path, settings: dict[str, Any] | None = SETTINGS, **options: Any) -> Any:
    """A small model with random numbers everywhere, also in the positions, and its files in a folder."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**(SHAPE | options))
    model = getattr(transformers, f"{name}Model")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    model.save_pretrained(folder)
    if settings is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return model


def normalized(images: Tensor) -> Tensor:
    return (images - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


def hidden(model: Any, images: Tensor, layer: int | None, prefix: int, **options: Any) -> Tensor:
    """The library's own patch tokens (B, N, D); those of MAE, which it shuffles, put back in order."""
    if hasattr(model.config, "mask_ratio"):
        model.config.mask_ratio = 0.0
    with torch.no_grad():
        found = model(pixel_values=normalized(images), output_hidden_states=True, **options)
    tokens: Tensor = (found.last_hidden_state if layer is None else found.hidden_states[layer])[:, prefix:]
    if "ids_restore" in found:
        tokens = tokens.gather(1, found.ids_restore[:, :, None].expand(-1, -1, tokens.shape[2]))
    return tokens


def ask(teacher: Teacher, images: Tensor, grid: tuple[int, int] = (4, 4)) -> Tensor:
    features: Tensor = teacher(images, grid)
    return features


@pytest.mark.parametrize("name", ["ViT", "Dinov2", "Dinov2WithRegisters", "ViTMAE", "DeiT"])
def test_the_librarys_own_hidden_states(name: str, tmp_path: Path) -> None:
    model, images = make(name, tmp_path), torch.rand(3, 3, 16, 16)
    for layer, option in ((None, ""), (1, "?layer=1"), (2, "?layer=-1"), (0, "?layer=0")):
        teacher = open_teacher(f"hf:{tmp_path}{option}")
        theirs = hidden(model, images, layer, PREFIXES[name])
        torch.testing.assert_close(ask(teacher, images), theirs, rtol=1e-5, atol=1e-5)
    assert (teacher.dim, teacher.channels, teacher.has_position) == (16, 3, True)
    assert not any(parameter.requires_grad for parameter in teacher.parameters())


@pytest.mark.parametrize("name", ["ViT", "Dinov2", "ViTMAE"])
def test_another_size_interpolates_the_positions(name: str, tmp_path: Path) -> None:
    model, images = make(name, tmp_path), torch.rand(2, 3, 16, 16)
    larger = F.interpolate(images, (24, 16), mode="bicubic", antialias=True).clamp(0, 1)
    options = {} if name == "Dinov2" else {"interpolate_pos_encoding": True}
    theirs = hidden(model, larger, None, 1, **options)
    torch.testing.assert_close(
        ask(open_teacher(f"hf:{tmp_path}?size=24x16"), images, (6, 4)), theirs, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    ("name", "options"), [("CLIPVision", {}), ("Beit", {"use_relative_position_bias": True}), ("Beit", {})]
)
def test_clip_and_beit(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    model, images = make(name, tmp_path, **options), torch.rand(2, 3, 16, 16)
    theirs = hidden(model, images, None, PREFIXES[name])
    torch.testing.assert_close(ask(open_teacher(f"hf:{tmp_path}"), images), theirs, rtol=1e-5, atol=1e-5)
    assert ask(open_teacher(f"hf:{tmp_path}?size=24"), images, (2, 3)).shape == (2, 6, 16)


def test_the_image_tower_of_clip(tmp_path: Path) -> None:
    text = {"vocab_size": 20, "max_position_embeddings": 8, **{k: v for k, v in SHAPE.items() if "size" not in k}}
    config = transformers.CLIPConfig(
        text_config={**text, "hidden_size": 16, "intermediate_size": 32}, vision_config=SHAPE, projection_dim=8
    )
    model = transformers.CLIPModel(config).eval()
    model.save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(SETTINGS))
    images = torch.rand(2, 3, 16, 16)
    theirs = hidden(model.vision_model, images, None, 1)
    torch.testing.assert_close(ask(open_teacher(f"hf:{tmp_path}"), images), theirs, rtol=1e-5, atol=1e-5)


def test_a_convolutional_model_gives_its_map(tmp_path: Path) -> None:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", downsample_in_first_stage=False
    )
    transformers.ResNetModel(config).save_pretrained(tmp_path)
    teacher = open_teacher(f"hf:{tmp_path}?size=32")
    assert not teacher.has_position
    assert ask(teacher, torch.rand(2, 3, 16, 16), (2, 2)).shape == (2, 4, 16)


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ({"size": {"shortest_edge": 20}, "crop_size": {"height": 12, "width": 8}}, (12, 8)),
        ({"size": {"shortest_edge": 20}, "crop_size": {"height": 12, "width": 8}, "do_center_crop": False}, (20, 20)),
        ({"size": 24}, (24, 24)),
        ({}, (16, 16)),
    ],
)
def test_its_own_preprocessing(settings: dict[str, Any], size: tuple[int, int], tmp_path: Path) -> None:
    make("ViT", tmp_path, settings | {"do_normalize": False})
    teacher: Any = open_teacher(f"hf:{tmp_path}")
    assert teacher.size == size
    assert teacher.mean.flatten().tolist() == [0, 0, 0]
    assert teacher.std.flatten().tolist() == [1, 1, 1]


def test_without_a_processor_imagenets_numbers_are_used_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make("ViT", tmp_path, settings=None)
    teacher: Any = open_teacher(f"hf:{tmp_path}")
    assert teacher.mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])
    assert "has no preprocessor_config.json" in capsys.readouterr().err


def test_the_fingerprint_is_that_of_the_weights(tmp_path: Path) -> None:
    model = make("ViT", tmp_path / "a")
    transformers.ViTModel(model.config, add_pooling_layer=False).save_pretrained(
        tmp_path / "b"
    )  # a pooler is made anew
    first, second = open_teacher(f"hf:{tmp_path / 'b'}"), open_teacher(f"hf:{tmp_path / 'b'}")
    assert first.version() == second.version() != open_teacher(f"hf:{tmp_path / 'a'}").version()


def test_an_image_has_the_same_features_in_any_batch(tmp_path: Path) -> None:
    make("ViT", tmp_path)
    teacher, images = open_teacher(f"hf:{tmp_path}"), torch.rand(21, 3, 16, 16)
    one_by_one = torch.cat([ask(teacher, image[None]) for image in images])
    assert torch.equal(ask(teacher, images), one_by_one)
    assert ask(teacher, images[:0]).shape == (0, 16, 16)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("?layer=3", r"option layer=3 must be 0 … 2, or −1 … −3 from the end"),
        ("?layer=two", "option layer=two must be a whole number"),
        ("?size=0", "option size=0 must be one side or HEIGHTxWIDTH"),
        ("?size=2", "smaller than its patches"),
        ("?lair=2", r"hf has no option 'lair'; did you mean layer\?"),
        ("?layer=1&layer=2", "option layer is given twice"),
    ],
)
def test_bad_options(option: str, message: str, tmp_path: Path) -> None:
    make("ViT", tmp_path)
    with pytest.raises(TeacherError, match=message):
        open_teacher(f"hf:{tmp_path}{option}")


def test_images_of_other_channels(tmp_path: Path) -> None:
    make("ViT", tmp_path)
    with pytest.raises(TeacherError, match=r"takes 3-channel images, these have 1: add \?channels=3"):
        ask(open_teacher(f"hf:{tmp_path}"), torch.rand(1, 1, 16, 16))


def test_files_that_are_not_there_or_not_right(tmp_path: Path) -> None:
    with pytest.raises(TeacherError, match=r"no model of transformers in .*: bring config.json, preproc.*model.safet"):
        open_teacher(f"hf:{tmp_path}")
    make("ViT", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    (tmp_path / "preprocessor_config.json").write_text("{")
    with pytest.raises(TeacherError, match=r"preprocessor_config.json cannot be used .*: copy it anew"):
        open_teacher(f"hf:{tmp_path}")
    save_file({"other": torch.zeros(2)}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(TeacherError, match=r"do not belong to its config.json: .* is missing"):
        open_teacher(f"hf:{tmp_path}")
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(TeacherError, match="cannot be read"):
        open_teacher(f"hf:{tmp_path}")
    (tmp_path / "model.safetensors").unlink()
    torch.save(weights, tmp_path / "pytorch_model.bin")
    with pytest.raises(TeacherError, match="only pickled weights, which are never read"):
        open_teacher(f"hf:{tmp_path}")


def change(folder: Path, **keys: object) -> None:
    """Give a model's config.json other keys."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


def test_code_that_a_model_names_is_not_run(tmp_path: Path) -> None:
    make("ViT", tmp_path)
    expected = open_teacher(f"hf:{tmp_path}").version()
    (tmp_path / "theirs.py").write_text("from pathlib import Path\nPath(__file__).with_name('it-ran').touch()\n")
    own = {"AutoConfig": "theirs.Config", "AutoModel": "theirs.Model"}
    change(tmp_path, auto_map=own, attn_implementation="kernels-community/flash-attn")
    assert open_teacher(f"hf:{tmp_path}").version() == expected  # the library's own code, and no kernel of the hub
    change(tmp_path, model_type="theirs")
    with pytest.raises(TeacherError, match="cannot be read"):
        open_teacher(f"hf:{tmp_path}")
    assert not (tmp_path / "it-ran").exists()


@pytest.mark.parametrize("name", ["weights.bin", "../model.safetensors", "/tmp/model.safetensors", 3])
def test_an_index_names_safetensors_of_its_folder_only(name: object, tmp_path: Path) -> None:
    make("ViT", tmp_path / "vit")
    weights = load_file(tmp_path / "vit" / "model.safetensors")
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    torch.save(weights, tmp_path / "vit" / "weights.bin")
    (tmp_path / "vit" / "model.safetensors").rename(tmp_path / "vit" / "model-1.safetensors")
    index = tmp_path / "vit" / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(weights, "model-1.safetensors")}))
    assert open_teacher(f"hf:{tmp_path}/vit").dim == 16
    index.write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(weights, name)}))
    with pytest.raises(TeacherError, match="only safetensors beside it are read"):
        open_teacher(f"hf:{tmp_path}/vit")
    index.write_text("[]")
    with pytest.raises(TeacherError, match=r"index.json cannot be used .*: copy it anew"):
        open_teacher(f"hf:{tmp_path}/vit")
    (tmp_path / "vit" / "adapter_config.json").touch()
    with pytest.raises(TeacherError, match="holds an adapter, which is not read"):
        open_teacher(f"hf:{tmp_path}/vit")


def test_a_model_of_text_is_no_teacher(tmp_path: Path) -> None:
    config = transformers.BertConfig(vocab_size=20, **{k: v for k, v in SHAPE.items() if k not in ("patch_size",)})
    transformers.BertModel(config).save_pretrained(tmp_path)
    with pytest.raises(TeacherError, match="cannot be run on images"):
        open_teacher(f"hf:{tmp_path}")


def test_offline_it_says_what_to_bring(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*words: Any, **options: Any) -> None:
        assert options.get("local_files_only") or "timeout" in options  # never a long attempt first
        raise OSError("no network\nhere")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", fail)
    with pytest.raises(TeacherError, match=r"OSError: no network here.*bring config.json.*use hf:FOLDER") as caught:
        open_teacher("hf:facebook/dino-vits16")
    assert "\n" not in str(caught.value)
    with pytest.raises(TeacherError, match="no such folder, nor is it a name of the hub"):
        open_teacher("hf:/no/such/folder")


def test_a_name_is_first_looked_for_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make("ViT", tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **options: str(tmp_path))
    assert open_teacher("hf:somebody/vit").dim == 16


def test_a_cache_without_the_normalisation_is_completed_where_there_is_a_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cached", "hub"):
        make("ViT", tmp_path / name)
    (tmp_path / "cached" / "preprocessor_config.json").unlink(missing_ok=True)
    settings = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.5, 0.5]}
    (tmp_path / "hub" / "preprocessor_config.json").write_text(json.dumps(settings))

    def download(name: str, local_files_only: bool = False, **options: Any) -> str:
        return str(tmp_path / ("cached" if local_files_only else "hub"))

    def offline(*words: Any, **options: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *words, **options: None)
    whole = open_teacher("hf:somebody/vit")
    assert isinstance(whole, HubTeacher)
    assert whole.mean.flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", offline)
    alone = open_teacher("hf:somebody/vit")
    assert isinstance(alone, HubTeacher)
    assert alone.mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])


def test_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"clustermim\[hf\]"):
        open_teacher("hf:facebook/dino-vits16")
