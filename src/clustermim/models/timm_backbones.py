"""Networks of timm as backbones: `timm:vit_tiny_patch16_224`, `timm:resnet18`, `timm:convnext_atto?depths=1,1,2,1`.

timm is imported where such a name is used and nowhere else. A name is one of its list, so that nothing is fetched but
what `load_published` asks for. What follows the question mark are sizes, whole numbers, and no other argument of timm.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clustermim.data.spec import parse_options
from clustermim.errors import ConfigError, DataError, MissingExtraError, did_you_mean, format_error
from clustermim.models.backbones import BACKBONES, Backbone, Positions
from clustermim.models.vit import SIZES
from clustermim.patches import grid_size, select

OPTIONS = ("embed_dim", "depth", "depths", "num_heads", "dims", "layers", "channels", "window_size", "reg_tokens")
MOST_BLOCKS = 100  # of one network, so that a stranger's description takes no time to build
PLAIN = ("vision_transformer", "deit")  # modules of timm whose networks are plain ViTs, of any patch size


class TimmBackbone(Backbone):
    """A network of timm, without its classifier.

    Attributes:
        name: of the network in timm.
        arguments: what timm makes it with.
    """

    net: Any

    def __init__(
        self, net: nn.Module, name: str, arguments: dict[str, Any], image_size: tuple[int, int], patch_size: int
    ) -> None:
        super().__init__()
        self.net, self.name, self.arguments = net, name, arguments
        self.image_size, self.patch_size, self.channels = image_size, patch_size, arguments["in_chans"]
        self.position_kind = "learned"
        self.coupled = any(map(_is_coupled, net.modules()))

    def finish(self) -> None:
        """Try it on an image: its width, and the weights that features do not need, which then are not trained."""
        self.eval()
        with torch.enable_grad():
            tokens = self(torch.zeros(1, self.channels, *self.image_size))
            self.width = tokens.shape[2]
            trained = [weight for weight in self.parameters() if weight.requires_grad]
            gradients = torch.autograd.grad(tokens.sum(), trained, allow_unused=True)
        for weight, gradient in zip(trained, gradients, strict=True):
            weight.requires_grad_(gradient is not None)
        self.decoder = next(
            (size.decoder for size in SIZES.values() if size.width >= self.width), SIZES["huge"].decoder
        )
        self.train()

    def check_images(self, images: Tensor) -> None:
        """Refuse images of another shape."""
        if images.shape[1:] != (self.channels, *self.image_size):
            given, wanted = "×".join(map(str, images.shape[1:])), (self.channels, *self.image_size)
            raise DataError(f"the images are {given}, and the encoder was made for {'×'.join(map(str, wanted))}")

    def load_published(self) -> None:
        with _refused(f"the published weights of timm:{self.name} cannot be had"):
            published = import_timm(self.name).create_model(self.name, pretrained=True, **self.arguments)
            self.net.load_state_dict(published.state_dict())

    def exported(self) -> tuple[dict[str, Tensor], int]:
        """Weights as timm loads them, and the classes of their classifier.

        Some networks, as Swin, take weights without a classifier for those of an old format and rename them: they get
        one of zeros for one class, which timm leaves out when it loads them for any other number.
        """
        weights, known = self.net.state_dict(), sys.modules[type(self.net).__module__]
        convert = getattr(known, "checkpoint_filter_fn", None)
        if convert is None or convert(dict(weights), self.net).keys() == weights.keys():
            return weights, 0
        place: str = self.net.pretrained_cfg["classifier"]
        head = {f"{place}.weight": torch.zeros(1, int(self.net.num_features)), f"{place}.bias": torch.zeros(1)}
        return {**weights, **head}, 1


class TimmViT(TimmBackbone):
    """A plain ViT of timm, in every layout but `mixmae`. Its registers are seen by its blocks only."""

    def __init__(self, net: Any, *rest: Any) -> None:
        super().__init__(net, *rest)
        self.depth, self.has_class_token = len(net.blocks), bool(net.has_class_token)
        self.prefix = int(net.num_prefix_tokens)
        self.finish()

    def forward(self, images: Tensor, keep: Tensor | None = None) -> Tensor:
        x = self.embed(images)  # (B, P+N, D)
        if keep is not None:
            x = self.choose(x, keep)  # (B, P+n, D)
        return self.tokens(self.net.norm(self.net.blocks(x)))

    def embed(self, images: Tensor, keep: Tensor | None = None, mask_token: Tensor | None = None) -> Tensor:
        """What the first block receives, (B, P+N, D); with `keep` (B, n) all other patches are the mask token."""
        self.check_images(images)
        x = self.net.patch_embed(images)  # (B, N, D)
        if keep is not None and mask_token is not None:
            seen = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device).scatter(1, keep, True)
            x = torch.where(seen[..., None], x, mask_token)
        embedded: Tensor = self.net.norm_pre(self.net._pos_embed(x))
        return embedded

    def choose(self, x: Tensor, patches: Tensor) -> Tensor:
        """The prefix and some `patches` (B, n) of tokens (B, P+N, D): (B, P+n, D)."""
        return torch.cat([x[:, : self.prefix], select(x[:, self.prefix :], patches)], dim=1)

    def tokens(self, x: Tensor) -> Tensor:
        """Tokens (B, P+n, D) with one for the image before the patches, (B, 1+n, D)."""
        patches = x[:, self.prefix :]
        first = x[:, :1] if self.has_class_token else patches.mean(dim=1, keepdim=True)
        return torch.cat([first, patches], dim=1)

    def encode_masked(self, images: Tensor, keep: Tensor, masked: Tensor, mask_token: Tensor) -> Tensor:
        x = self.choose(self.embed(images, keep, mask_token), torch.cat([keep, masked], dim=1))  # (B, P+n+m, D)
        out: Tensor = self.net.norm(self.net.blocks(x))[:, -masked.shape[1] :]  # (B, m, D)
        return out

    def tokens_of_layer(self, images: Tensor, layer: int) -> Tensor:
        return self.tokens(self.net.blocks[:layer](self.embed(images)))

    def load_resized(self, old: Backbone) -> None:
        """Take the weights of a ViT like this one; on another grid of patches its positions are interpolated."""
        assert isinstance(old, TimmViT)
        weights, positions = old.state_dict(), old.net.pos_embed
        if positions is not None and old.grid != self.grid:
            from timm.layers import resample_abs_pos_embed

            prefix = 0 if self.net.no_embed_class else self.prefix
            resized = resample_abs_pos_embed(positions.detach(), list(self.grid), list(old.grid), prefix)
            weights["net.pos_embed"] = resized
        self.load_state_dict(weights)


class TimmFeatures(TimmBackbone):
    """Any other network of timm: the maps of its stages, brought to the grid of patches and side by side.

    Of stages with the same stride the last is taken, and of these all whose stride is a patch or more; the finer ones
    are too local to say more at the patch grid. There is no class token: the token of the image is the mean.
    """

    has_class_token, whole_images = False, True

    def __init__(self, net: Any, *rest: Any) -> None:
        super().__init__(net, *rest)
        deepest = {info["reduction"]: place for place, info in enumerate(net.feature_info)}
        self.stages = [place for stride, place in deepest.items() if stride >= self.patch_size]
        self.stages = self.stages or [len(net.feature_info) - 1]
        self.with_norm = True
        try:
            self.finish()
        except AssertionError:  # some, as Hiera, give maps without the last norm only
            self.with_norm = False
            self.finish()

    def forward(self, images: Tensor, keep: Tensor | None = None) -> Tensor:
        if keep is not None:
            raise ConfigError(f"timm:{self.name} sees whole images only: pretrain it with --layout blank")
        self.check_images(images)
        options = {"norm": self.with_norm, "output_fmt": "NCHW", "intermediates_only": True}
        maps = self.net.forward_intermediates(images, indices=self.stages, **options)
        patches = torch.cat([to_grid(one, self.grid) for one in maps], dim=1)  # (B, D, rows, columns)
        patches = patches.flatten(2).transpose(1, 2)  # (B, N, D)
        return torch.cat([patches.mean(dim=1, keepdim=True), patches], dim=1)  # (B, 1+N, D)


def to_grid(features: Tensor, grid: tuple[int, int]) -> Tensor:
    """Maps (B, D, h, w) to (B, D, rows, columns), bilinear; averaged where they shrink."""
    if features.shape[2:] == grid:
        return features
    shrinks = features.shape[2] > grid[0] or features.shape[3] > grid[1]
    return F.interpolate(features, grid, mode="bilinear", align_corners=False, antialias=shrinks)


def open_timm(
    rest: str,
    image_size: tuple[int, int],
    patch_size: int,
    channels: int,
    *,
    positions: Positions = "sincos",
    drop_path: float = 0.0,
) -> TimmBackbone:
    """The network that `NAME` or `NAME?option=value&…` names; it has the positions that are its own."""
    grid_size(*image_size, patch_size)  # refuses what does not divide
    name, _, tail = rest.partition("?")
    timm, sizes = import_timm(name), parse_sizes(f"timm:{rest}", tail)
    check_name(timm, name)
    is_plain = timm.models.model_entrypoint(name.partition(".")[0]).__module__.rpartition(".")[2] in PLAIN
    arguments: dict[str, Any] = {"in_chans": channels, "num_classes": 0, **sizes}
    if is_plain:
        arguments |= {"img_size": image_size, "patch_size": patch_size, "dynamic_img_size": False}
    shape = "×".join(map(str, (channels, *image_size)))
    with _refused(f"timm:{rest} cannot be made for images of {shape} in patches of {patch_size}"):
        net, arguments = _create(timm, name, arguments, image_size, drop_path)
        if is_plain:
            return TimmViT(net, name, arguments, image_size, patch_size)
        if not hasattr(net, "forward_intermediates") or not getattr(net, "feature_info", None):
            raise ConfigError(f"timm:{name} gives no maps of its stages, which every network here is asked for")
        return TimmFeatures(net, name, arguments, image_size, patch_size)


def _create(
    timm: Any, name: str, arguments: dict[str, Any], image_size: tuple[int, int], drop_path: float
) -> tuple[nn.Module, dict[str, Any]]:
    """The network and its arguments, the size of images among them where it has one."""
    sized, rate = {"img_size": image_size}, {"drop_path_rate": drop_path}
    for more in ({**sized, **rate}, rate, sized, {}):
        try:
            net = timm.create_model(name, pretrained=False, **arguments, **more)
        except TypeError as error:
            # what is unknown is left out, but for a drop path that was asked for
            if not any(f"'{key}'" in str(error) for key in more) or (drop_path and "'drop_path_rate'" in str(error)):
                raise
        else:
            return net, {**arguments, **(sized if "img_size" in more else {})}
    raise AssertionError("a network takes no arguments at all")


def import_timm(name: str) -> Any:
    """timm, for a network of this name."""
    try:
        import timm
    except ImportError as error:
        raise MissingExtraError(f"timm:{name}", "timm") from error
    except RuntimeError as error:  # torchvision was built for another torch
        raise ConfigError(f"timm:{name}: timm cannot be imported ({format_error(error)})") from error
    return timm


def check_name(timm: Any, name: str) -> None:
    """Refuse what is not in timm's list: also names of models that lie elsewhere, which it would fetch."""
    base, dot, _ = name.partition(".")
    known = timm.list_models()
    if base not in known:
        near = difflib.get_close_matches(base.lower(), known, 3)
        hint = f"; did you mean {', '.join(near)}?" if near else "; timm.list_models() gives all"
        raise ConfigError(f"timm has no model {base!r}{hint}")
    if dot and name not in (tagged := timm.list_models(f"{base}.*", pretrained=True)):
        raise ConfigError(f"timm has no weights {name!r}{did_you_mean(name, tagged) if tagged else ''}")


def parse_sizes(text: str, tail: str) -> dict[str, Any]:
    """Sizes of a network, `embed_dim=48&depths=1,1`: whole numbers or rows of them."""
    sizes: dict[str, Any] = {}
    for key, value in parse_options(text, tail, ConfigError).items():
        if key not in OPTIONS:
            raise ConfigError(f"{text}: a network has no size {key!r}{did_you_mean(key, OPTIONS)}")
        numbers = [int(part) for part in value.split(",")] if re.fullmatch(r"\d{1,4}(,\d{1,4}){0,15}", value) else []
        if not numbers:
            raise ConfigError(f"{text}: {key}={value} must be whole numbers, such as 2 or 2,2,6,2")
        if key in ("depth", "depths", "layers") and sum(numbers) > MOST_BLOCKS:
            raise ConfigError(f"{text}: {key}={value} makes {sum(numbers):,} blocks: {MOST_BLOCKS} at most")
        sizes[key] = numbers[0] if "," not in value else tuple(numbers)
    return sizes


@contextmanager
def _refused(what: str) -> Iterator[None]:
    """Whatever timm raises, in one line."""
    try:
        yield
    except (ConfigError, DataError):
        raise
    except Exception as error:  # each network has its own way to refuse a size
        raise ConfigError(f"{what}: {format_error(error)}") from error


def _is_coupled(module: nn.Module) -> bool:
    """Whether a layer computes an image by others of its batch, or draws random numbers."""
    batch = isinstance(module, nn.modules.batchnorm._BatchNorm)
    return batch or bool(getattr(module, "drop_prob", 0)) or (isinstance(module, nn.Dropout) and module.p > 0)


BACKBONES["timm"] = open_timm
