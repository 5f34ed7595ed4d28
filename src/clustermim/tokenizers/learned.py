"""Tokenizers that are learned: networks with a quantizer in their middle, and BEST-RQ's random projection."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from clustermim.data import Source, channel_stats, open_source, to_float
from clustermim.data.augment import Augment
from clustermim.distributed import by_itself, rank
from clustermim.errors import ConfigError, TokenizerError, did_you_mean
from clustermim.options import flat
from clustermim.patches import grid_size, patchify
from clustermim.progress import log_info
from clustermim.tokenizers.base import Tokenizer, check_sizes
from clustermim.tokenizers.learning import SCHEDULE, Autoencoder, AuxiliaryLosses, Learner, LearningTask, open_teachers
from clustermim.tokenizers.quantizers import QUANTIZERS, Quantizer, nearest_levels
from clustermim.tokenizers.usage import measure_use
from clustermim.tokenizers.vqkd import PatchTransformer
from clustermim.training import Out, RunOptions, Schedule, fit, run_opener
from clustermim.weights import check_like, check_tensor

MOST_DEPTH = 200  # blocks; the deepest published ones have a tenth
CLEAR = 5e-6  # an id decided by less, relative to the numbers compared, is decided again in float64
SCORES = 2**24  # numbers to hold at a time while ids are found
FIRST_IMAGES, FIRST_PATCHES = 256, 4  # that the first codebook is made of: images, and patches for each token


class LearnedTokenizer(Tokenizer):
    """Ids of what an encoder makes of each patch and its surroundings; a decoder makes images of ids.

    That of vqkd (BEiT v2) predicts the features of a teacher instead, and stays behind when it is fitted.

    Args:
        kind: vq, vqgan, peco, vqkd, dvae, fsq or lfq.
        k: size of the codebook; a power of two for lfq, and for fsq the nearest product of levels is taken.
        patch_size: side of a patch in pixels; there is one token a patch.
        width: channels inside encoder and decoder.
        depth: residual blocks in each of them, which look at neighbouring patches; for vqkd blocks of a ViT, and one in
            its decoder.
        quantizer: options of the quantizer, as `quantizers.py` names them.
        seed: the same seed, data and machine give the same tokenizer on a CPU.

    >>> LearnedTokenizer("fsq", k=64, patch_size=4).fit("digits/train", epochs=1).vocab_size
    64
    """

    autoencoder: Autoencoder | PatchTransformer
    quantizer: Quantizer
    history: list[dict[str, Any]]  # the metrics of the training, step by step; not saved
    usage_: float  # share of tokens that occur in the images it was measured on
    perplexity_: float  # how many evenly used tokens would be as diverse
    psnr_: float  # peak signal-to-noise ratio of reconstructions, in decibels, where there are any
    measured_images_: int
    measured_patches_: int
    grid_: list[int]  # of vqkd: rows and columns of the images it was fitted on

    def __init__(
        self,
        kind: str = "vq",
        k: int = 512,
        patch_size: int = 16,
        width: int = 64,
        depth: int = 2,
        quantizer: dict[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if kind not in QUANTIZERS:
            raise ConfigError(f"there is no learned tokenizer {kind!r}{did_you_mean(kind, QUANTIZERS)}")
        check_sizes(width=(width, 1), depth=(depth, 0), patch_size=(patch_size, 1))
        if depth > MOST_DEPTH:
            raise ConfigError(f"--depth {depth} is too much: {MOST_DEPTH} at most")
        self.kind, self.k, self.patch_size = kind, k, patch_size
        self.width, self.depth, self.seed = width, depth, seed
        self.options = dict(quantizer or {})
        self.vocab_size = QUANTIZERS[kind](k, **self.options).vocab_size  # refuses what it cannot be

    def config(self) -> dict[str, Any]:
        names = ("kind", "k", "patch_size", "width", "depth", "seed")
        return {**{name: getattr(self, name) for name in names}, "quantizer": self.options}

    def check_saved(self, fitted: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self._build(fitted["channels"], fitted.get("grid", ()))
        check_like(tensors, self.state_dict())

    def restore(self, fitted: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        super().restore(fitted, {})
        self._build(self.channels_, fitted.get("grid", ()))
        self.load_state_dict(tensors)
        return self

    def results(self) -> dict[str, Any]:
        names = ("usage", "perplexity", "measured_images", "measured_patches", "psnr")
        return super().results() | {name: getattr(self, f"{name}_") for name in names if hasattr(self, f"{name}_")}

    @flat
    def fit(
        self,
        source: object,
        out: Out = None,
        *,
        augment: Augment = "pad-crop",
        losses: AuxiliaryLosses = AuxiliaryLosses(),
        schedule: Schedule = SCHEDULE,
        options: RunOptions = RunOptions(),
    ) -> Self:
        """Train the tokenizer; what was measured is in `usage_`, `perplexity_`, `psnr_` and `history`.

        Args:
            source: the images, as `clustermim.open` takes them.
            out: a run folder to write, which `resume` can continue; without it nothing is written.
            augment: shifts by an eighth with mirrored borders, random resized crop, or none; all but none also flip.
        """
        images, self.seed = open_source(source), schedule.seed or self.seed
        schedule = replace(schedule, seed=self.seed)
        config = {"data": images.spec, **self.config(), "augment": augment, **asdict(losses), **asdict(schedule)}
        with run_opener(out, f"fit {self.kind}", config, options) as opener:
            task = LearningTask(self._learner(images, losses), images, augment)
            result = fit(task, schedule, opener, options=options)
            self.history = result.history
            for name, value in measure_use(self, images).items():
                setattr(self, f"{name}_", value)
            self.cpu()
            if opener and rank() == 0:
                self.save(opener().folder)
            if opener:
                opener().summary = {"results": {**self.results(), **result.summary()}, "data": images.describe()}
        return self

    def _learner(self, images: Source, losses: AuxiliaryLosses) -> Learner:
        """The tokenizer with what trains it."""
        if self.kind == "peco" and not losses.teacher:
            raise ConfigError("fit peco needs --teacher, such as run:FOLDER?layer=4, once for each layer to keep")
        if self.kind == "vqgan" and not losses.teacher:
            log_info("vqgan: without --teacher there is no perceptual loss; no VGG or LPIPS weights are shipped")
        if self.kind == "fsq":
            levels = " × ".join(map(str, nearest_levels(self.k)))
            log_info(f"fsq: {self.vocab_size} tokens = {levels} levels, the nearest to --k {self.k}")
        with seeded(self.seed):  # the discriminator's first weights; the loop seeds what comes after
            teachers = open_teachers(losses.teacher or (), images.shape)
            if self.kind == "vqkd" and len(teachers) != 1:
                what = "whose features it predicts, such as run:FOLDER?layer=4 or hog:"
                raise ConfigError(f"fit vqkd needs one --teacher, {what}")
            return Learner(self.initialize(images), 1, losses, teachers)

    def initialize(self, images: Source) -> Self:
        """Make networks for images like these: random weights, and a codebook of the features that they give."""
        rows, columns = grid_size(*images.shape[1:], self.patch_size)
        count = max(FIRST_IMAGES, -(-FIRST_PATCHES * self.vocab_size // (rows * columns)))
        first = images.read(images.shuffle(self.seed)[:count])
        if (patches := len(first.images) * rows * columns) < self.vocab_size:
            raise TokenizerError(f"--k {self.k} is more than the {patches} patches of {images.spec}: lower it")
        with seeded(self.seed), by_itself(), torch.no_grad():
            mean, std = (torch.tensor(values)[:, None, None] for values in channel_stats(images))  # (C, 1, 1)
            self._build(images.shape[0], (rows, columns))
            self.autoencoder.mean, self.autoencoder.std = mean, std.clamp(min=1e-3)  # a constant channel has none
            self.quantizer(self.autoencoder(to_float(first.images)), 0.0)  # k-means, where there is a codebook
        return self

    def _build(self, channels: int, grid: Sequence[int]) -> None:
        self.quantizer = QUANTIZERS[self.kind](self.k, **self.options)
        sizes = self.patch_size, self.width, self.depth, self.quantizer.width
        if self.kind == "vqkd":
            self.grid_ = [rows, columns] = list(grid)
            self.autoencoder = PatchTransformer(channels, (rows * self.patch_size, columns * self.patch_size), *sizes)
        else:
            self.autoencoder = Autoencoder(channels, *sizes)
        self.channels_ = channels

    def ids(self, images: Tensor, labels: Tensor | None) -> Tensor:
        """Ids (B, N); on a CPU, where rounding could decide, those of an image are found again in float64."""
        rows, columns = grid_size(images.shape[2], images.shape[3], self.patch_size)
        some = max(1, SCORES // (rows * columns * self.vocab_size))
        return torch.cat([self._ids(part) for part in torch.split(images, some)])

    def _ids(self, images: Tensor) -> Tensor:
        ids, clear = self.quantizer.assign(self.autoencoder(images.float()))  # (B, h, w)
        doubtful = (clear < CLEAR).flatten(1).any(1)  # (B,)
        if images.device.type == "cpu" and bool(doubtful.any()):  # a GPU would have to wait for the answer
            exact = {name: tensor.double() for name, tensor in self.autoencoder.state_dict().items()}
            features = functional_call(self.autoencoder, exact, (images[doubtful].double(),))
            ids[doubtful] = self.quantizer.assign(features)[0]
        return ids.flatten(1)  # (B, N)

    @property
    def decode(self) -> Callable[[Tensor], Tensor] | None:
        """A function from ids (B, rows, columns) to images (B, C, H, W) in [0, 1]; None of vqkd, which knows none."""
        return self._decode if isinstance(self.autoencoder, Autoencoder) else None

    @torch.no_grad()
    def _decode(self, ids: Tensor) -> Tensor:
        assert isinstance(self.autoencoder, Autoencoder)
        return self.autoencoder.decode(self.quantizer.lookup(ids)).clamp(0, 1)

    def center_patches(self) -> Tensor | None:
        """Each token as a picture (vocab_size, C, p, p): the middle of an image that consists of it alone."""
        if self.decode is None:
            return None
        p, side = self.patch_size, 2 * self.depth + 1  # as far as the decoder sees
        device = self.autoencoder.mean.device
        pictures = []
        for some in torch.split(torch.arange(self.vocab_size, device=device), 256):
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

    >>> RandomProjectionTokenizer(k=32, patch_size=4).fit("digits/train").vocab_size
    32
    """

    kind = "random-projection"
    projection_: Tensor  # (p·p·C, code_dim)
    codebook_: Tensor  # (k, code_dim), of length 1

    def __init__(self, k: int = 512, patch_size: int = 16, code_dim: int = 16, seed: int = 0) -> None:
        super().__init__()
        check_sizes(k=(k, 1), patch_size=(patch_size, 1), code_dim=(code_dim, 1))
        self.k = self.vocab_size = k
        self.patch_size, self.code_dim, self.seed = patch_size, code_dim, seed

    def fit(self, source: object) -> Self:
        """Draw the projection and the directions."""
        from vector_quantize_pytorch import RandomProjectionQuantizer  # slow to import

        images = open_source(source)
        grid_size(*images.shape[1:], self.patch_size)
        width = self.patch_size**2 * images.shape[0]
        with seeded(self.seed):
            drawn = RandomProjectionQuantizer(dim=width, codebook_size=self.k, codebook_dim=self.code_dim)
        self.register_buffer("projection_", drawn.rand_projs[0])
        self.register_buffer("codebook_", drawn.vq.codebook[0])
        self.channels_ = images.shape[0]
        return self

    def check_saved(self, fitted: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        check_tensor(tensors, "projection", self.patch_size**2 * fitted["channels"], self.code_dim)
        check_tensor(tensors, "codebook", self.k, self.code_dim)

    def center_vectors(self) -> Tensor:
        return self.codebook_

    def ids(self, images: Tensor, labels: Tensor | None) -> Tensor:
        patches = patchify(images, self.patch_size)  # (B, N, d)
        exact = torch.float32 if patches.device.type == "mps" else torch.float64  # so that no batch rounds differently
        found = []
        for part in torch.split(patches, max(1, SCORES // (patches.shape[1] * self.k))):
            x = F.layer_norm(part.to(exact), part.shape[-1:]) @ self.projection_.to(exact)  # (B, N, code_dim)
            found.append((x @ self.codebook_.to(exact).t()).argmax(-1))
        return torch.cat(found)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers of a seed inside, and those that were due afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
