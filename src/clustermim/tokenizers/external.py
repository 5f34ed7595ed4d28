"""Published tokenizers: the dVAE of DALL·E as transformers has it, VQGANs as diffusers has them, BEiT v2's VQ-KD."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from clustermim.data import open_source, to_float
from clustermim.errors import ConfigError, MissingExtraError, TokenizerError, did_you_mean, format_error
from clustermim.files import user_path
from clustermim.hub import fetch_model
from clustermim.patches import grid_size
from clustermim.reading import fits, open_regular, read_json
from clustermim.teachers.base import resize
from clustermim.tokenizers.base import Tokenizer
from clustermim.tokenizers.vqkd import build_vqkd, read_vqkd

DESCRIPTION = "config.json"
EPSILON = 0.1  # the dVAE's pixels keep this far from 0 and 1, where its logit-Laplace likelihood is infinite
REPEATED = ("num_groups", "num_blocks_per_group", "layers_per_block", "depth")  # settings that count blocks
LOOK = 4  # images that are encoded for real before anything is saved
PICKLED = (".bin", ".ckpt", ".pt", ".pth", ".pkl")

# Names of attention weights in older files, and in the models of today.
RENAMED = {".query.": ".to_q.", ".key.": ".to_k.", ".value.": ".to_v.", ".proj_attn.": ".to_out.0."}

Built = tuple[Any, int, int, int]  # a network, the size of its codebook, its channels, and pixels of its view to an id
Found = tuple[Path, dict[str, Any], dict[str, Tensor]]  # where it was read, a configuration, weights


class Library(NamedTuple):
    """Where a library keeps its network, how it is built, and how it is asked for ids."""

    package: str
    architecture: str  # the class that config.json must name
    weights: str  # the one file of weights that is read
    build: Callable[[Any, dict[str, Any]], Built]  # from its class and a configuration, with weights to be filled in
    encode: Callable[[Any, Tensor], Tensor]  # ids of a view (B, C, h, w) in [0, 1], in any shape
    read: Callable[[str, str], Found] | None = None  # its own way from a source and its name to what is there


def build_flava(network: Any, config: dict[str, Any]) -> Built:
    """The encoder of DALL·E's dVAE; it halves its view three times, whatever its configuration."""
    # Its sizes only: other keys may name code or kernels to fetch.
    names = ("num_groups", "input_channels", "num_blocks_per_group", "hidden_size", "vocab_size")
    model = network(network.config_class(**{key: config[key] for key in names if key in config}))
    return model, model.config.vocab_size, model.config.input_channels, 8


def encode_flava(model: Any, view: Tensor) -> Tensor:
    """Ids (B, h/8, w/8) of a view (B, C, h, w)."""
    return model.get_codebook_indices((1 - 2 * EPSILON) * view + EPSILON)  # type: ignore[no-any-return]


def build_vq(network: Any, config: dict[str, Any]) -> Built:
    """A VQGAN; each block of its encoder but the last halves the view."""
    names = inspect.signature(network.__init__).parameters
    model = network(**{key: value for key, value in config.items() if key in names})
    stride = 2 ** (len(model.config.down_block_types) - 1)
    return model, model.config.num_vq_embeddings, model.config.in_channels, stride


def encode_vq(model: Any, view: Tensor) -> Tensor:
    """Ids (B·h·w/stride²,) of a view (B, C, h, w)."""
    latents = model.encode(2 * view - 1).latents  # (B, D, h/stride, w/stride)
    return model.quantize(latents)[2][2]  # type: ignore[no-any-return]


LIBRARIES: dict[str, Library] = {
    "hf-flava": Library("transformers", "FlavaImageCodebook", "model.safetensors", build_flava, encode_flava),
    "diffusers-vq": Library("diffusers", "VQModel", "diffusion_pytorch_model.safetensors", build_vq, encode_vq),
    "vqkd": Library(
        "clustermim.tokenizers.vqkd", "PublishedVQKD", "", build_vqkd, lambda model, view: model(view), read_vqkd
    ),
}


class ExternalTokenizer(Tokenizer):
    """Ids of a published network, which sees each image at the size that gives one id a patch.

    The weights are copied when it is saved: loading needs the library, but neither the hub nor the folder they came
    from.

    Args:
        source: `hf-flava:NAME` or `diffusers-vq:NAME`, a name of the hub or a folder that the library saved; or
            `vqkd:FILE.safetensors`, the weights of a VQ-KD of BEiT v2.
        patch_size: side of a patch in pixels; any, since the image is resized for the network.
    """

    kind = "external"
    model_: nn.Module
    network_: dict[str, Any]  # its own configuration

    def __init__(self, source: str, patch_size: int = 16) -> None:
        super().__init__()
        self.source, self.patch_size = source, patch_size

    def tensors(self) -> dict[str, Tensor]:
        return dict(self.model_.state_dict())

    def check_saved(self, fitted: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        network = fitted["network"]
        if any(fits(network.get(name), int) and network[name] > len(tensors) for name in REPEATED):
            raise ValueError("its network has more blocks than there are weights")
        self._take(parse_source(self.source)[0], network, tensors)
        if (self.vocab_size, self.channels_) != (fitted["vocab_size"], fitted["channels"]):
            raise ValueError("its sizes are not those of its network")

    def restore(self, fitted: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        library, _ = parse_source(self.source)
        return self._take(library, fitted["network"], tensors)

    def fit(self, source: object) -> Self:
        """Nothing is learned: read the network, and see that it takes these images."""
        images = open_source(source)
        grid_size(*images.shape[1:], self.patch_size)
        library, _ = parse_source(self.source)
        place, config, tensors = read_source(self.source)
        try:
            self._take(library, config, tensors)
        except ValueError as error:
            raise TokenizerError(f"{place} does not hold a whole {library.architecture}: {error}") from error
        self(to_float(images.read(range(min(LOOK, len(images)))).images))
        return self

    def ids(self, images: Tensor, labels: Tensor | None) -> Tensor:
        rows, columns = grid_size(images.shape[2], images.shape[3], self.patch_size)
        # Bicubic: the nearest that torch has on every device to the Lanczos filter of BEiT and FLAVA.
        view = resize(images.float(), (self.stride_ * rows, self.stride_ * columns))
        # On a CPU the rounding of a convolution depends on the batch, and a near tie would with it: one at a time.
        parts = view.chunk(max(1, len(view)) if view.device.type == "cpu" else 1)
        library, _ = parse_source(self.source)
        return torch.cat([library.encode(self.model_, part).reshape(len(part), rows * columns) for part in parts])

    def _take(self, library: Library, config: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        """Build the network and fill in its weights; ValueError where they do not belong together."""
        try:
            network = getattr(importlib.import_module(library.package), library.architecture)
        except ImportError:
            raise MissingExtraError(f"the tokenizer {self.source.partition(':')[0]}", "hf") from None
        try:
            model, *sizes = library.build(network, config)
            model.load_state_dict(tensors)
        except Exception as error:  # whatever the libraries raise on a size that cannot be, and torch on other weights
            raise ValueError(f"configuration and weights do not fit ({format_error(error)})") from error
        self.model_, self.network_ = model.eval().requires_grad_(False), config
        self.vocab_size, self.channels_, self.stride_ = sizes
        return self


def parse_source(text: str) -> tuple[Library, str]:
    """The library and the name that a source stands for."""
    prefix, _, name = text.partition(":")
    if prefix not in LIBRARIES or not name:
        known = ", ".join(f"{name}:{'FILE' if library.read else 'NAME'}" for name, library in LIBRARIES.items())
        hint = did_you_mean(prefix, LIBRARIES) if prefix not in LIBRARIES else "; the name or folder is missing"
        raise ConfigError(f"--source {text} is not one of {known}{hint}")
    return LIBRARIES[prefix], name


def read_source(source: str) -> Found:
    """Where a source was found, the configuration of its network, and its weights."""
    library, name = parse_source(source)
    if library.read is not None:
        return library.read(source, name)
    folder = find_folder(source, name, library)
    return folder, *read_published(folder, library)


def find_folder(source: str, name: str, library: Library) -> Path:
    """The folder of that name, or that of a model of the hub."""
    folder = user_path(name)
    if folder.is_dir():
        return folder
    parts = name.split("/")
    inside = "/".join(parts[2:])  # a pipeline keeps its VQGAN in a folder of its own
    files = [f"{inside}/{file}" if inside else file for file in (DESCRIPTION, library.weights)]
    bring = f"bring {DESCRIPTION} and {library.weights} in a folder and name it: {source.partition(':')[0]}:FOLDER"
    return fetch_model(source, "/".join(parts[:2]), files, (), TokenizerError, bring) / inside


def read_published(folder: Path, library: Library) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Configuration and weights of a folder in the library's own format; safetensors only."""
    try:
        config = read_json(folder / DESCRIPTION)
    except (OSError, ValueError) as error:
        raise TokenizerError(
            f"{folder} cannot be read: {DESCRIPTION} is missing or not JSON ({error}); "
            f"it needs {DESCRIPTION} and {library.weights}, as save_pretrained writes them"
        ) from error
    found = (config.get("architectures") or config.get("_class_name")) if isinstance(config, dict) else None
    names = found if isinstance(found, list) else [found or "no known network"]
    if library.architecture not in names:
        raise TokenizerError(
            f"{folder} holds {', '.join(map(str, names))}, and this source is for {library.architecture}: "
            f"name another folder, or another source ({', '.join(LIBRARIES)})"
        )
    path = folder / library.weights
    if not path.is_file():
        pickled = sorted(file.name for file in folder.iterdir() if file.suffix in PICKLED)
        why = f"only pickled weights ({pickled[0]}), which are never read" if pickled else f"no {library.weights}"
        raise TokenizerError(
            f"{folder} has {why}: save the model again with save_pretrained, which writes {library.weights}"
        )
    try:
        open_regular(path).close()
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise TokenizerError(f"{path} is damaged or not a safetensors file ({error}): copy it anew") from error
    sizes = {key: value for key, value in config.items() if not key.startswith("_")}  # not where it once lay
    for old, new in RENAMED.items():
        weights = {name.replace(old, new) if ".attentions." in name else name: weights[name] for name in weights}
    return sizes, weights
