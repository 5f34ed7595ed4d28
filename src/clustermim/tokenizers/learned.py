"""Tokenizers that are learned: an autoencoder with a quantizer in its middle, and BEST-RQ's random projection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from clustermim.data import channel_stats, open_source, to_float
from clustermim.errors import TokenizerError
from clustermim.patches import grid_size, patchify
from clustermim.tokenizers.autoencoder import Autoencoder
from clustermim.tokenizers.base import Tokenizer, check_sizes
from clustermim.tokenizers.quantizers import QUANTIZERS, Quantizer

CLEAR = 5e-6  # an id decided by less, relative to the numbers compared, is decided again in float64
SCORES = 2**24  # numbers to hold at a time while ids are found
FIRST_IMAGES, FIRST_PATCHES = 256, 4  # that the first codebook is made of: images, and patches for each token


class LearnedTokenizer(Tokenizer):
    """Ids of what an encoder makes of each patch and its surroundings; a decoder makes images of ids.

    `fit` makes networks that are not trained yet; the stages `clustermim fit vq`, `fit dvae`, … train them.

    Args:
        kind: vq, vqgan, peco, dvae, fsq or lfq.
        k: size of the codebook; fsq has the nearest size that is a product of levels.
        patch_size: side of a patch in pixels.
        width: channels inside encoder and decoder.
        depth: residual blocks in each of them.
        quantizer: options of the quantizer, as `quantizers.py` names them.
        seed: of the first weights.
    """

    autoencoder: Autoencoder
    quantizer: Quantizer

    def __init__(
        self,
        kind: str,
        k: int,
        patch_size: int,
        width: int = 64,
        depth: int = 2,
        quantizer: dict[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_sizes(width=(width, 1), depth=(depth, 0), patch_size=(patch_size, 1))
        self.kind, self.k, self.patch_size = kind, k, patch_size
        self.width, self.depth, self.seed = width, depth, seed
        self.options = dict(quantizer or {})
        self.vocab_size = QUANTIZERS[kind](k, **self.options).vocab_size  # refuses what it cannot be

    def config(self) -> dict[str, Any]:
        names = ("kind", "k", "patch_size", "width", "depth", "seed")
        return {**{name: getattr(self, name) for name in names}, "quantizer": self.options}

    def restore(self, fitted: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        self._build(fitted["channels"], [0.0] * fitted["channels"], [1.0] * fitted["channels"])
        try:
            self.load_state_dict(tensors)
        except RuntimeError as error:
            raise ValueError(str(error)) from error
        return self

    def fit(self, source: object) -> Self:
        """Make networks for images like these: random weights, and a codebook of the features that they give."""
        images = open_source(source)
        rows, columns = grid_size(*images.shape[1:], self.patch_size)
        count = max(FIRST_IMAGES, -(-FIRST_PATCHES * self.vocab_size // (rows * columns)))
        first = images.read(images.shuffle(self.seed)[:count])
        if len(first.images) * rows * columns < self.vocab_size:
            patches = len(first.images) * rows * columns
            raise TokenizerError(f"--k {self.k} is more than the {patches} patches of {images.spec}: lower it")
        with seeded(self.seed), torch.no_grad():
            self._build(images.shape[0], *channel_stats(images))
            self.quantizer(self.autoencoder(to_float(first.images)), 0.0)  # k-means, where there is a codebook
        return self

    def _build(self, channels: int, mean: Sequence[float], std: Sequence[float]) -> None:
        self.quantizer = QUANTIZERS[self.kind](self.k, **self.options)
        size = (self.width, self.depth, self.quantizer.features, self.quantizer.values)
        self.autoencoder = Autoencoder(channels, self.patch_size, *size, mean, std)
        self.channels_ = channels

    def ids(self, images: Tensor, labels: Tensor | None) -> Tensor:
        """Ids (B, N); where rounding could decide, those of an image are found again in float64."""
        rows, columns = grid_size(images.shape[2], images.shape[3], self.patch_size)
        some = max(1, SCORES // (rows * columns * self.vocab_size))
        return torch.cat([self._ids(part) for part in in_parts(images, some)])

    def _ids(self, images: Tensor) -> Tensor:
        ids, clear = self.quantizer.assign(self.autoencoder(images.float()))  # (B, h, w)
        doubtful = (clear < CLEAR).flatten(1).any(1)  # (B,)
        if images.device.type != "mps" and bool(doubtful.any()):  # mps has no float64
            exact = {name: tensor.double() for name, tensor in self.autoencoder.state_dict().items()}
            features = functional_call(self.autoencoder, exact, (images[doubtful].double(),))
            ids[doubtful] = self.quantizer.assign(features)[0]
        return ids.flatten(1)  # (B, N)

    @torch.no_grad()
    def decode(self, ids: Tensor) -> Tensor:
        """Images (B, C, H, W) in [0, 1] of ids (B, rows, columns)."""
        return self.autoencoder.decode(self.quantizer.lookup(ids)).clamp(0, 1)

    def center_patches(self) -> Tensor:
        """Each token as a picture (vocab_size, C, p, p): the middle of an image that consists of it alone."""
        p, side = self.patch_size, 2 * self.depth + 1  # as far as the decoder sees
        device = self.autoencoder.mean.device
        pictures = []
        for some in in_parts(torch.arange(self.vocab_size, device=device), 256):
            alike = self.decode(some[:, None, None].expand(-1, side, side))  # (n, C, side·p, side·p)
            middle = slice(self.depth * p, (self.depth + 1) * p)
            pictures.append(alike[:, :, middle, middle])
        return torch.cat(pictures)


class RandomProjectionTokenizer(Tokenizer):
    """The nearest of k random directions to a random projection of a normalised patch (BEST-RQ): nothing is learned.

    Args:
        k: size of the codebook.
        patch_size: side of a patch in pixels.
        code_dim: width of the projection.
        seed: another seed gives another projection and other directions.
    """

    kind = "random-projection"
    projection_: Tensor  # (p·p·C, code_dim)
    codebook_: Tensor  # (k, code_dim), of length 1

    def __init__(self, k: int, patch_size: int, code_dim: int = 16, seed: int = 0) -> None:
        super().__init__()
        check_sizes(k=(k, 1), patch_size=(patch_size, 1), code_dim=(code_dim, 1))
        self.k = self.vocab_size = k
        self.patch_size, self.code_dim, self.seed = patch_size, code_dim, seed

    def restore(self, fitted: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        self._take(fitted["channels"], tensors["projection"], tensors["codebook"])
        return self

    def fit(self, source: object) -> Self:
        """Draw the projection and the directions."""
        from vector_quantize_pytorch import RandomProjectionQuantizer  # slow to import

        images = open_source(source)
        grid_size(*images.shape[1:], self.patch_size)
        width = self.patch_size**2 * images.shape[0]
        with seeded(self.seed):
            drawn = RandomProjectionQuantizer(dim=width, codebook_size=self.k, codebook_dim=self.code_dim)
        self._take(images.shape[0], drawn.rand_projs[0], drawn.vq.codebook[0])
        return self

    def _take(self, channels: int, projection: Tensor, codebook: Tensor) -> None:
        shapes = (tuple(projection.shape), tuple(codebook.shape))
        if shapes != ((self.patch_size**2 * channels, self.code_dim), (self.k, self.code_dim)):
            raise ValueError(f"its projection and codebook have shapes {shapes}")
        self.register_buffer("projection_", projection)
        self.register_buffer("codebook_", codebook)
        self.channels_ = channels

    def ids(self, images: Tensor, labels: Tensor | None) -> Tensor:
        patches = patchify(images, self.patch_size)  # (B, N, d)
        some = max(1, SCORES // (patches.shape[1] * self.k))
        return torch.cat([self._ids(part) for part in in_parts(patches, some)])

    def _ids(self, patches: Tensor) -> Tensor:
        exact = torch.float32 if patches.device.type == "mps" else torch.float64  # so that no batch rounds differently
        x = F.layer_norm(patches.to(exact), patches.shape[-1:]) @ self.projection_.to(exact)  # (B, N, code_dim)
        return (x @ self.codebook_.to(exact).t()).argmax(-1)


def in_parts(rows: Tensor, size: int) -> Iterator[Tensor]:
    """So many rows at a time; one part at least, were it empty."""
    return (rows[start : start + size] for start in range(0, max(len(rows), 1), size))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers of a seed inside, and those that were due afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
