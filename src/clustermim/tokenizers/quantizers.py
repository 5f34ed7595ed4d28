"""From the features of patches to tokens and back: the quantizers of learned tokenizers, all with one interface.

    quantizer(features, progress)   in training: values for the decoder, ids, and losses that are its own
    quantizer.assign(features)      ids alone, and how clearly each was decided
    quantizer.lookup(ids)           the values that ids stand for

Features and values are (B, width, h, w), ids (B, h, w). `progress` is the share of the training that is done.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clustermim.distributed import all_reduce_sum, broadcast, rank, world_size
from clustermim.errors import ConfigError
from clustermim.options import flat
from clustermim.tokenizers.base import check_sizes


class Quantized(NamedTuple):
    """What a training step gets of a quantizer."""

    values: Tensor  # (B, width, h, w), with a gradient to the features
    ids: Tensor  # (B, h, w) int64
    losses: dict[str, Tensor]  # to be added to the loss as they are


class VectorQuantizer(nn.Module):
    """The nearest of k vectors, which follow the features as moving averages (VQ-VAE).

    Args:
        code_dim: width of the codebook's vectors.
        cosine: compare directions only.
        decay: of the moving averages that the codebook consists of, a step.
        dead_code_threshold: a token used less than this share of an even use starts anew at a random patch; 0 is never.
        commitment: weight of the loss that keeps features near their vectors.
    """

    @flat
    def __init__(
        self,
        k: int,
        code_dim: int = 32,
        cosine: bool = False,
        decay: float = 0.99,
        dead_code_threshold: float = 0.1,
        commitment: float = 0.25,
    ) -> None:
        super().__init__()
        check_sizes(
            k=(k, 2), code_dim=(code_dim, 1), dead_code_threshold=(dead_code_threshold, 0), commitment=(commitment, 0)
        )
        if not 0 <= decay < 1:
            raise ConfigError(f"--decay {decay:g} is not in 0 ≤ … < 1")
        self.vocab_size, self.width, self.cosine = k, code_dim, cosine
        self.dead_code_threshold, self.commitment = dead_code_threshold, commitment
        from vector_quantize_pytorch import VectorQuantize  # slow to import

        own: dict[str, Any] = {"decay": decay, "use_cosine_sim": cosine, "threshold_ema_dead_code": dead_code_threshold}
        # not its own way over several ranks, by which they would learn something else than one
        self.inner: Any = VectorQuantize(
            code_dim, k, kmeans_init=True, accept_image_fmap=True, sync_codebook=False, **own
        )
        book = self.inner._codebook
        book.all_reduce_fn, book.replace_sample_fn = _add_up, self._sample

    def forward(self, features: Tensor, progress: float) -> Quantized:
        book, self.patches = self.inner._codebook, features[0, 0].numel()
        even = features[:, 0].numel() * world_size() / self.vocab_size  # features a vector, were all used alike
        book.threshold_ema_dead_code = self.dead_code_threshold * even
        book.reset_cluster_size = even  # a revived vector has time to find its place before it can die again
        values, ids, loss = self.inner(features)
        return Quantized(values, ids, {"commitment": self.commitment * loss})

    def _sample(self, vectors: Tensor, count: int) -> Tensor:
        """So many of the vectors (1, n, D) of all ranks, (1, count, D): the same for any number of ranks."""
        ranks, own = world_size(), vectors[0]
        total = len(own) * ranks
        drawn = torch.randperm(total)[:count] if count <= total else torch.randint(total, (count,))
        chosen = broadcast(drawn.to(own.device))  # the first rank's; of a batch, rank r has images r, r + ranks, …
        image, patch = chosen // self.patches, chosen % self.patches
        mine = image % ranks == rank()
        found = own.new_zeros(count, own.shape[1])
        found[mine] = own[(image // ranks * self.patches + patch)[mine]]
        return all_reduce_sum(found)[None]

    def assign(self, features: Tensor) -> tuple[Tensor, Tensor]:
        x = features.movedim(1, -1)  # (B, h, w, D)
        x = F.normalize(x, dim=-1) if self.cosine else x
        book = self.inner.codebook.to(x.dtype)
        norms = book.square().sum(1)  # (k,)
        best = (2 * x @ book.t() - norms).topk(2, dim=-1)  # nearest is largest 2⟨x, c⟩ − ‖c‖²
        return best.indices[..., 0], _gap(best.values, x.square().sum(-1) + norms.max())

    def lookup(self, ids: Tensor) -> Tensor:
        return self.inner.get_codes_from_indices(ids)  # type: ignore[no-any-return]  # (B, D, h, w)


class DirectionQuantizer(VectorQuantizer):
    """The nearest of k directions, as VQ-KD has them: features and vectors are brought to length 1.

    Args:
        code_dim: width of the codebook's vectors.
        decay: of the moving averages that the codebook consists of, a step.
        dead_code_threshold: a token used less than this share of an even use starts anew at a random patch; 0 is never.
        commitment: weight of the loss that keeps features near their vectors.
    """

    @flat
    def __init__(
        self,
        k: int,
        code_dim: int = 32,
        decay: float = 0.99,
        dead_code_threshold: float = 0.1,
        commitment: float = 1.0,
    ) -> None:
        super().__init__(k, code_dim, True, decay, dead_code_threshold, commitment)


class GumbelQuantizer(nn.Module):
    """Features give logits of k tokens; training mixes token vectors by Gumbel-softmax (the dVAE of DALL·E).

    The mixture becomes sharper as the temperature falls; a term draws the logits towards a uniform distribution. The
    first features set the first weights, as soft k-means: logits −D·‖x − c‖² / 2v of centres c with a spread of v. So
    all tokens are in use from the start.

    Args:
        code_dim: width of the features that logits are made of, and of the vectors that stand for tokens.
        temperature: of the Gumbel-softmax at the end of training; it starts at 1.
        kl_weight: of the divergence of a patch's tokens from a uniform distribution, in nats.
        kl_warmup: share of the training in which this weight rises from 0.
    """

    started: Tensor

    @flat
    def __init__(
        self, k: int, code_dim: int = 32, temperature: float = 1 / 16, kl_weight: float = 0.001, kl_warmup: float = 0.1
    ) -> None:
        super().__init__()
        check_sizes(k=(k, 2), code_dim=(code_dim, 1))
        if not 0 < temperature <= 1:
            raise ConfigError(f"--temperature {temperature} is not above 0 and at most 1, where it starts")
        self.vocab_size, self.width = k, code_dim
        self.temperature, self.kl_weight, self.kl_warmup = temperature, kl_weight, kl_warmup
        self.logits = nn.Linear(code_dim, k)
        self.codebook = nn.Parameter(torch.randn(k, code_dim))
        self.register_buffer("started", torch.tensor(False))

    def forward(self, features: Tensor, progress: float) -> Quantized:
        x = features.movedim(1, -1).float()  # (B, h, w, D)
        if not self.started:
            self._start(x.detach().flatten(0, 2))
        logits = self.logits(x)  # (B, h, w, k)
        mixture = F.gumbel_softmax(logits, anneal(progress, 1.0, self.temperature, 1.0))
        values = (mixture @ self.codebook).movedim(-1, 1)  # (B, D, h, w)
        shares = logits.log_softmax(-1)
        divergence = (shares.exp() * shares).sum(-1).mean() + math.log(self.vocab_size)
        weight = anneal(progress, 0.0, self.kl_weight, self.kl_warmup)
        return Quantized(values, logits.argmax(-1), {"kl": weight * divergence})

    @torch.no_grad()
    def _start(self, vectors: Tensor) -> None:
        """Logits and token vectors from the k-means of features (n, D)."""
        from vector_quantize_pytorch.vector_quantize_pytorch import kmeans  # slow to import

        centers = kmeans(vectors[None], self.vocab_size)[0][0]  # (k, D)
        variance = torch.cdist(vectors, centers).amin(1).square().mean().clamp(min=1e-6)
        sharpness = vectors.shape[1] / (2 * variance)
        self.codebook.copy_(centers)
        self.logits.weight.copy_(2 * sharpness * centers)
        self.logits.bias.copy_(-sharpness * centers.square().sum(1))
        self.started.fill_(True)

    def assign(self, features: Tensor) -> tuple[Tensor, Tensor]:
        x = features.movedim(1, -1)  # (B, h, w, D)
        logits = F.linear(x, self.logits.weight.to(x.dtype), self.logits.bias.to(x.dtype))  # (B, h, w, k)
        best = logits.topk(2, dim=-1)
        return best.indices[..., 0], _gap(best.values, logits.abs().amax(-1))

    def lookup(self, ids: Tensor) -> Tensor:
        return self.codebook[ids].movedim(-1, 1)


class ScalarQuantizer(nn.Module):
    """Each of a few features is rounded to one of a few levels (FSQ): a codebook that cannot collapse.

    There are as many tokens as the product of levels that is nearest to k.
    """

    @flat
    def __init__(self, k: int) -> None:
        super().__init__()
        check_sizes(k=(k, 2))
        self.levels = nearest_levels(k)
        self.vocab_size, self.width = math.prod(self.levels), len(self.levels)
        from vector_quantize_pytorch import FSQ  # slow to import

        with torch.device("cpu"):  # it counts its codebook, which has no memory of its own, also on the meta device
            self.inner: Any = FSQ(list(self.levels))

    def forward(self, features: Tensor, progress: float) -> Quantized:
        values, ids = self.inner(features)
        return Quantized(values, ids.long(), {})

    def assign(self, features: Tensor) -> tuple[Tensor, Tensor]:
        x = features.movedim(1, -1)  # (B, h, w, D)
        levels = torch.tensor(self.levels, device=x.device)
        half = ((levels - 1) * (1 + 1e-3) / 2).to(x.dtype)
        offset = torch.where(levels % 2 == 0, 0.5, 0.0).to(x.dtype)
        bounded = torch.tanh(x + torch.atanh(offset / half)) * half - offset
        steps = bounded.round()  # −⌊L/2⌋ … ⌈L/2⌉ − 1
        base = torch.tensor([math.prod(self.levels[:place]) for place in range(len(self.levels))], device=x.device)
        ids = ((steps.long() + levels // 2) * base).sum(-1)
        return ids, (0.5 - (bounded - steps).abs()).amin(-1) / half.amax()

    def lookup(self, ids: Tensor) -> Tensor:
        return self.inner.indices_to_codes(ids)  # type: ignore[no-any-return]  # (B, D, h, w)


class SignQuantizer(nn.Module):
    """The signs of log₂ k features are the bits of the token (LFQ).

    Args:
        entropy_weight: of the loss that makes each token sure and all tokens equally frequent.
        commitment: weight of the loss that keeps features near ±1.
    """

    @flat
    def __init__(self, k: int, entropy_weight: float = 0.1, commitment: float = 0.25) -> None:
        super().__init__()
        check_sizes(k=(k, 2))
        if k & (k - 1):
            near = 2 ** round(math.log2(k))
            raise ConfigError(f"--k {k} is not a power of two, and lfq writes a token in bits: take {near}")
        self.vocab_size, self.width = k, k.bit_length() - 1
        from vector_quantize_pytorch import LFQ  # slow to import

        self.inner: Any = LFQ(codebook_size=k, entropy_loss_weight=entropy_weight, commitment_loss_weight=commitment)

    def forward(self, features: Tensor, progress: float) -> Quantized:
        values, ids, loss = self.inner(features, inv_temperature=SIGN_SHARPNESS)
        return Quantized(values, ids.long(), {"entropy": loss})

    def assign(self, features: Tensor) -> tuple[Tensor, Tensor]:
        x = features.movedim(1, -1)  # (B, h, w, bits)
        ids = ((x > 0) * self.inner.mask).sum(-1)
        return ids, x.abs().amin(-1) / x.abs().amax(-1).clamp(min=1e-30)

    def lookup(self, ids: Tensor) -> Tensor:
        return self.inner.indices_to_codes(ids)  # type: ignore[no-any-return]  # (B, bits, h, w)


Quantizer = VectorQuantizer | GumbelQuantizer | ScalarQuantizer | SignQuantizer

QUANTIZERS: dict[str, type[Quantizer]] = {
    "vq": VectorQuantizer,
    "vqgan": VectorQuantizer,
    "peco": VectorQuantizer,
    "vqkd": DirectionQuantizer,
    "dvae": GumbelQuantizer,
    "fsq": ScalarQuantizer,
    "lfq": SignQuantizer,
}

LEVELS = range(3, 9)  # of one feature of FSQ; its authors advise five and more, which fewer features give
SIGN_SHARPNESS = 1.0  # of the soft bits in the entropy of LFQ; at larger ones most features get no gradient of it


def anneal(progress: float, start: float, end: float, share: float) -> float:
    """From `start` to `end` along half a cosine, over the first `share` of the training, and `end` after it.

    >>> [round(anneal(p, 1.0, 0.0, 0.5), 3) for p in (0.0, 0.25, 0.5, 1.0)]
    [1.0, 0.5, 0.0, 0.0]
    """
    way = min(1.0, progress / share) if share > 0 else 1.0
    return end + (start - end) * (1 + math.cos(math.pi * way)) / 2


def nearest_levels(k: int) -> tuple[int, ...]:
    """Levels whose product is nearest to k in ratio; of equally near ones the fewest, largest first.

    >>> nearest_levels(512), nearest_levels(1000)
    ((8, 8, 8), (8, 5, 5, 5))
    """
    longest = 1 + math.ceil(math.log(k, max(LEVELS)))
    choices = (c for n in range(1, longest + 1) for c in itertools.combinations_with_replacement(LEVELS[::-1], n))
    return min(choices, key=lambda levels: (round(abs(math.log(math.prod(levels) / k)), 9), len(levels)))


def _add_up(tensor: Tensor) -> None:
    tensor.copy_(all_reduce_sum(tensor))


def _gap(best: Tensor, scale: Tensor) -> Tensor:
    """How far the best of two scores (…, 2) is ahead, as a share of the size (…) of the numbers they are made of."""
    return (best[..., 0] - best[..., 1]) / scale.clamp(min=1e-30)
