"""Networks of timm: every layout they are for, saved and loaded, exported, and refused in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from clustermim.errors import ConfigError, DataError, RunError, UserError
from clustermim.evaluation import knn
from clustermim.evaluation.finetuning import finetune
from clustermim.models import build_backbone, load_encoder, make_model
from clustermim.models.export import export
from clustermim.models.masking import Mask, mask_from_noise
from clustermim.models.timm_backbones import TimmFeatures, TimmViT, parse_sizes
from clustermim.patches import unpatchify
from clustermim.pretraining import pretrain
from clustermim.teachers import open_teacher
from timm_peer import import_timm

DATA = "textures:?images=16&grid=4&patch=8"  # 32×32
VIT = "timm:vit_tiny_patch16_224?embed_dim=48&depth=2&num_heads=3"
REGISTERS = VIT + "&reg_tokens=2"
NO_CLASS = "timm:vit_base_patch16_siglip_224?embed_dim=48&depth=2&num_heads=3"
RESNET = "timm:resnet10t?layers=1,1,1,1&channels=16,16,32,32"
CONVNEXT = "timm:convnext_atto?depths=1,1,1,1&dims=16,16,32,32"
SWIN = "timm:swin_tiny_patch4_window7_224?embed_dim=24&depths=1,1,1,1&num_heads=2,2,2,2&window_size=4"
VITS, FEATURES = (VIT, REGISTERS, NO_CLASS), (RESNET, CONVNEXT, SWIN)
LAYOUTS = [(name, layout) for name in VITS for layout in ("mae", "beit", "blank")]
LAYOUTS += [(name, "blank") for name in (*FEATURES, "micro")]
TRAINED: dict[str, Any] = {"patch_size": 8, "epochs": 1, "batch_size": 16, "device": "cpu"}


@pytest.fixture(autouse=True)
def timm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """timm, importable by its name."""
    module = import_timm()
    monkeypatch.setitem(sys.modules, "timm", module)
    return module


def build(name: str, size: tuple[int, int] = (32, 32), patch_size: int = 8, channels: int = 3) -> Any:
    torch.manual_seed(0)
    return build_backbone(name, size, patch_size, channels)


def draw_mask(patches: int, batch: int = 2) -> Mask:
    return mask_from_noise(torch.rand(batch, patches, generator=torch.Generator().manual_seed(1)), 0.5)


@pytest.mark.parametrize("name", [*VITS, *FEATURES])
def test_tokens_of_other_sizes_and_channels(name: str) -> None:
    for size, patch_size, channels in (((32, 32), 8, 3), ((32, 64), 16, 1), ((64, 32), 4, 5)):
        backbone = build(name, size, patch_size, channels).eval()
        tokens = backbone(torch.randn(2, channels, *size))
        assert tokens.shape == (2, 1 + size[0] * size[1] // patch_size**2, backbone.width)
        if not backbone.has_class_token:
            torch.testing.assert_close(tokens[:, 0], tokens[:, 1:].mean(1))
        with pytest.raises(DataError, match=rf"^the images are {channels}×8×8, and the encoder was made for"):
            backbone(torch.randn(2, channels, 8, 8))
    assert isinstance(backbone, TimmViT if name in VITS else TimmFeatures)
    assert backbone.has_class_token == (name in (VIT, REGISTERS))


def test_a_vit_is_timms_own(timm: Any) -> None:
    """Its tokens are those of `forward_features`, registers left out."""
    for name, prefix in ((VIT, 1), (REGISTERS, 3)):
        backbone, images = build(name).eval(), torch.randn(2, 3, 32, 32)
        whole = backbone.net.forward_features(images)
        expected = torch.cat([whole[:, :1], whole[:, prefix:]], dim=1)
        torch.testing.assert_close(backbone(images), expected)
        every = torch.arange(16).expand(2, -1)
        torch.testing.assert_close(backbone(images, every), expected)
        torch.testing.assert_close(backbone.tokens_of_layer(images, 2), backbone.tokens(blocks_alone(backbone, images)))


def blocks_alone(backbone: Any, images: Tensor) -> Tensor:
    net = backbone.net
    found: Tensor = net.blocks(net.norm_pre(net._pos_embed(net.patch_embed(images))))
    return found


def test_beit_of_a_vit_shows_mask_tokens() -> None:
    """With the mask token equal to what a patch embeds to, nothing is hidden: the tokens of the whole image."""
    backbone, images = build(VIT).eval(), torch.zeros(2, 3, 32, 32)  # all patches embed to the bias
    mask, token = draw_mask(16), backbone.net.patch_embed(images)[:1, :1]
    found = backbone.encode_masked(images, mask.keep, mask.masked, token)
    expected = backbone(images)[:, 1:].take_along_dim(mask.masked[..., None], 1)
    torch.testing.assert_close(found, expected)


def test_features_are_the_maps_of_stages() -> None:
    backbone = build(RESNET, patch_size=8).eval()
    images = torch.randn(2, 3, 32, 32)
    maps = backbone.net.forward_intermediates(images, intermediates_only=True)
    assert backbone.stages == [2, 3, 4]  # strides 8, 16 and 32
    coarse = [nn.functional.interpolate(one, (4, 4), mode="bilinear") for one in maps[3:]]
    expected = torch.cat([maps[2], *coarse], dim=1).flatten(2).transpose(1, 2)
    torch.testing.assert_close(backbone(images)[:, 1:], expected)
    assert build(VIT.replace("vit_tiny_patch16_224", "beit_base_patch16_224"), (32, 32), 16).stages == [1]
    assert build("timm:hiera_tiny_224?embed_dim=24", (64, 64)).stages == [1, 2, 3]  # it refuses the last norm
    assert build(RESNET, (64, 64), 64).stages == [4]  # none is as coarse: the last


@pytest.mark.parametrize(("name", "layout"), LAYOUTS)
def test_masked_pixels_are_invisible(name: str, layout: Any) -> None:
    """Whatever the masked pixels are, the predictions are the same; the visible ones matter."""
    backbone = build(name)
    model = make_model(layout, backbone, 5).eval()
    mask, patches = draw_mask(16), torch.randn(2, 16, 192)
    other = patches.scatter(1, mask.masked[..., None].expand(-1, -1, 192), 7.0 * torch.randn(2, 16, 192))
    shown = patches.scatter(1, mask.keep[..., None].expand(-1, -1, 192), torch.randn(2, 16, 192))
    a, b, c = (model(unpatchify(x, (4, 4), 3), mask) for x in (patches, other, shown))
    assert a.shape == (2, 8, 5)
    assert torch.equal(a, b)
    assert not torch.allclose(a, c)
    if layout != "mae":
        with pytest.raises(ConfigError, match=f"--decoder-width .*{layout} has no decoder"):
            make_model(layout, backbone, 5, decoder_width=32)


@pytest.mark.parametrize(("name", "layout"), LAYOUTS)
def test_steps_change_every_weight_that_features_need(name: str, layout: Any) -> None:
    before = pretrain(DATA, model=name, layout=layout, **TRAINED | {"epochs": 0})
    # the first step leaves what is behind a branch that starts at zero
    encoder = pretrain(DATA, model=name, layout=layout, warmup_epochs=0, **TRAINED | {"epochs": 2})
    assert encoder.history[-1]["step"] == 2
    assert encoder.history[-1]["loss"] > 0
    old = dict(before.named_parameters())
    same = {n for n, p in encoder.named_parameters() if p.requires_grad and torch.equal(p, old[n])}
    assert not {n for n in same if not n.endswith(("bias", "relative_position_bias_table"))}, same
    assert all(torch.equal(p, old[n]) for n, p in encoder.named_parameters() if not p.requires_grad)


@pytest.mark.parametrize("name", [VIT, NO_CLASS, *FEATURES])
def test_saved_loaded_measured_exported(name: str, tmp_path: Path, timm: Any) -> None:
    layout: Any = "mae" if name in VITS else "blank"
    encoder = pretrain(DATA, model=name, layout=layout, out=tmp_path / "run", **TRAINED)
    again, images = load_encoder(tmp_path / "run"), torch.rand(2, 3, 32, 32)
    assert torch.equal(again(images), encoder(images))
    assert again.weights == encoder.weights
    found = knn(again, DATA, DATA, k=3)
    assert list(found.to_dict()) == (["avg", "cls"] if again.has_class_token else ["avg"])
    assert [row[0] for row in found.table().rows] == [f"{p}{w}" for w in ("", ", whitened") for p in found.to_dict()]
    teacher = open_teacher(f"run:{tmp_path / 'run'}")
    torch.testing.assert_close(teacher(images, again.grid), again(images)[:, 1:])

    export(again, "timm", tmp_path / "timm")
    theirs = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True).eval()
    wanted = {key.removeprefix("net."): value for key, value in again.backbone.state_dict().items()}
    surplus = load_file(tmp_path / "timm" / "model.safetensors").keys() - theirs.state_dict().keys()
    assert surplus == ({"head.fc.weight", "head.fc.bias"} if name == SWIN else set())
    assert theirs.state_dict().keys() == wanted.keys()
    assert all(torch.equal(value, wanted[key]) for key, value in theirs.state_dict().items())
    assert timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True, num_classes=4)(images).shape == (2, 4)
    with pytest.raises(ConfigError, match="cannot be exported to transformers: only the ViT"):
        export(again, "transformers", tmp_path / "hf")


@pytest.mark.parametrize("name", [VIT, RESNET])
def test_fine_tuned_on_another_size(name: str) -> None:
    encoder = pretrain(DATA, model=name, layout="blank", **TRAINED | {"epochs": 0})
    options: dict[str, Any] = {"epochs": 1, "batch_size": 8, "device": "cpu", "randaugment_ops": 0}
    if name == VIT:
        found = finetune(encoder, DATA + "&size=48", DATA + "&size=48", **options)
        assert found.encoder.image_size == (48, 48)
    else:
        found = finetune(encoder, DATA, DATA, **options)
        with pytest.raises(ConfigError, match="--layer-decay is for ViTs"):
            finetune(encoder, DATA, DATA, layer_decay=0.5, **options)
        with pytest.raises(ConfigError, match="--pooling cls needs a class token"):
            finetune(encoder, DATA, DATA, pooling="cls", **options)
    assert 0 <= found.accuracy <= 1


def test_positions_of_another_size_are_timms() -> None:
    small, large = build(REGISTERS, (32, 32)), build(REGISTERS, (32, 48))
    large.load_resized(small)
    small.net.set_input_size((32, 48))
    assert torch.equal(large.net.pos_embed, small.net.pos_embed)


def test_resume_is_exact_with_batch_norm(tmp_path: Path) -> None:
    from clustermim.training import Stopped

    options: dict[str, Any] = {**TRAINED, "model": RESNET, "layout": "blank", "epochs": 2, "batch_size": 8}
    whole = pretrain(DATA, out=tmp_path / "whole", **options)
    with pytest.raises(Stopped):
        pretrain(DATA, out=tmp_path / "parts", stop_after=1, **options)
    pretrain(DATA, out=tmp_path / "parts", resume=True, **options)
    assert any("running_mean" in key for key in whole.state_dict())
    assert int(whole.backbone.net.bn1.num_batches_tracked) == 4
    for name in ("encoder.safetensors", "decoder.safetensors", "checkpoint.safetensors"):
        one, two = (load_file(tmp_path / run / name) for run in ("whole", "parts"))
        assert one.keys() == two.keys()
        assert all(torch.equal(one[key], two[key]) for key in one)


def test_a_step_with_batch_norm_stays_whole() -> None:
    from clustermim.data import open_source
    from clustermim.pretraining import Architecture, Masking, Objective, make_task
    from clustermim.targets import TargetOptions

    for name, parts in ((RESNET, 1), (CONVNEXT, 2), (SWIN, 2)):
        architecture = Architecture(model=name, patch_size=8, layout="blank")
        task = make_task(open_source(DATA), "pixels", architecture, Masking(), TargetOptions(), Objective())
        batch = task.collator(open_source(DATA).read(range(16)), lambda count: torch.rand(16, count))
        assert len(task.split(batch, 2)) == parts


REFUSED = {
    "timm:resnet18x": "timm has no model 'resnet18x'; did you mean resnet18",
    "timm:hf-hub:someone/model": "timm has no model 'hf-hub:someone/model'",
    "timm:local-dir:folder": "timm has no model 'local-dir:folder'",
    "timm:": "timm has no model ''; timm.list_models",
    "timm:resnet18.nothing": "timm has no weights 'resnet18.nothing'",
    "timm:resnet18?checkpoint_path=x": "a network has no size 'checkpoint_path'",
    "timm:resnet18?embed_dim=48": "cannot be made for images of 3×32×32",
    "timm:vit_tiny_patch16_224?embed_dim=50": "cannot be made for images of 3×32×32",
    "timm:vit_tiny_patch16_224?depth=9999": "depth=9999 makes 9,999 blocks: 100 at most",
    "timm:resnet18?layers=50,50,1,1": "makes 102 blocks",
    "timm:vit_tiny_patch16_224?depth=two": "must be whole numbers",
    "timm:dla46_c": "gives no maps of its stages",
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_names_and_sizes(name: str) -> None:
    with pytest.raises(ConfigError) as found:
        build(name)
    assert REFUSED[name] in str(found.value)
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 400


def test_layouts_that_a_network_is_not_for() -> None:
    for layout in ("mae", "beit", "mixmae"):
        with pytest.raises(ConfigError, match=f"--layout {layout} is for ViTs"):
            pretrain(DATA, model=CONVNEXT, layout=layout, **TRAINED)
    with pytest.raises(ConfigError, match="--layout blank"):
        build(CONVNEXT)(torch.zeros(1, 3, 32, 32), torch.zeros(1, 4, dtype=torch.long))
    with pytest.raises(ConfigError, match="--checkpoint-activations is for the ViT"):
        pretrain(DATA, model=VIT, checkpoint_activations=True, **TRAINED)
    with pytest.raises(DataError, match="do not divide into patches of 7"):
        build(VIT, patch_size=7)


def test_published_weights_only_when_asked(timm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    create, asked = timm.create_model, list[bool]()

    def watch(name: str, pretrained: bool = False, **options: Any) -> Any:
        asked.append(pretrained)
        net = create(name, **options)
        if pretrained:  # stands for a download
            nn.init.constant_(net.norm.weight, 3.0)
        return net

    monkeypatch.setattr(timm, "create_model", watch)
    start: dict[str, Any] = {**TRAINED, "epochs": 0, "model": VIT}
    plain = pretrain(DATA, **start)
    assert asked == [False]
    published = pretrain(DATA, init_from="published", **start)
    assert asked == [False, False, True]
    assert float(plain.backbone.net.norm.weight.detach().mean()) == 1.0  # type: ignore[union-attr]
    assert float(published.backbone.net.norm.weight.detach().mean()) == 3.0  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="--init-from published is for networks of timm: ViT has none"):
        pretrain(DATA, init_from="published", **start | {"model": "micro"})

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("No pretrained weights exist\nfor it")

    backbone = build(VIT)
    monkeypatch.setattr(timm, "create_model", fail)
    with pytest.raises(ConfigError, match="the published weights of timm:vit_tiny_patch16_224 cannot be had: Run"):
        backbone.load_published()


def test_a_changed_description_is_refused(tmp_path: Path) -> None:
    pretrain(DATA, model=CONVNEXT, layout="blank", **TRAINED | {"epochs": 0}).save(tmp_path)
    place = tmp_path / "encoder.json"
    record = json.loads(place.read_text())
    for model in ("timm:convnext_atto", "timm:convnext_at", "timm:hf-hub:someone/model", "timm:"):
        place.write_text(json.dumps({**record, "model": model}))
        with pytest.raises(UserError) as found:
            load_encoder(tmp_path)
        assert isinstance(found.value, ConfigError | RunError)


def test_sizes() -> None:
    assert parse_sizes("x", "depth=2&depths=1,2&dims=16") == {"depth": 2, "depths": (1, 2), "dims": 16}
    assert parse_sizes("x", "") == {}


def test_timm_is_imported_where_it_is_named_and_nowhere_else(tmp_path: Path) -> None:
    code = (
        "import sys, clustermim.pretraining\n"
        "print({'timm', 'torchvision'} & set(sys.modules))\n"
        "sys.modules['timm'] = None\n"
        "from clustermim.cli import main\n"
        f"words = ['--data', '{DATA}', '--target', 'pixels', '--model', 'timm:resnet18', '--out', 'x']\n"
        "sys.exit(main(['pretrain', *words]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == "set()"
    assert done.returncode == 2
    assert "timm:resnet18 needs an optional dependency: pip install 'clustermim[timm]'" in done.stderr
    assert not (tmp_path / "x").exists()
