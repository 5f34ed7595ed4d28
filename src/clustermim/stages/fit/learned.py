"""`clustermim fit dvae`, `fit fsq`, `fit lfq` and `fit random-projection`: tokens without a search for the nearest."""

from __future__ import annotations

import math
from typing import Any

from clustermim.data import Source
from clustermim.progress import log_info
from clustermim.runs import Run
from clustermim.stages.fit.folder import fit_into
from clustermim.stages.fit.learning import learn
from clustermim.stages.fit.options import autoencoder, options_of
from clustermim.stages.fit.usage import measure_use, warn_unused
from clustermim.tokenizers.learned import RandomProjectionTokenizer
from clustermim.tokenizers.quantizers import nearest_levels


@options_of(autoencoder)
def fit_dvae(
    code_dim: int = 32,
    temperature: float = 1 / 16,
    kl_weight: float = 0.001,
    kl_warmup: float = 0.1,
    **shared: Any,
) -> None:
    """Train a discrete VAE by Gumbel-softmax, the recipe of DALL·E's tokenizer.

    Args:
        code_dim: width of the features that logits are made of, and of the vectors that stand for tokens.
        temperature: of the Gumbel-softmax at the end of training; it starts at 1.
        kl_weight: of the divergence of a patch's tokens from a uniform distribution, in nats.
        kl_warmup: share of the training in which this weight rises from 0.
    """
    own = {"code_dim": code_dim, "temperature": temperature, "kl_weight": kl_weight, "kl_warmup": kl_warmup}
    learn("dvae", shared | own, own)


@options_of(autoencoder)
def fit_fsq(**shared: Any) -> None:
    """Train an autoencoder whose few features are rounded to levels (FSQ): a codebook that cannot collapse.

    Args:
        k: size of the codebook; the nearest product of levels is taken.
    """
    levels = nearest_levels(max(shared["k"], 2))
    log_info(
        f"fsq: {math.prod(levels)} tokens = {' × '.join(map(str, levels))} levels, the nearest to --k {shared['k']}"
    )
    learn("fsq", shared)


@options_of(autoencoder)
def fit_lfq(entropy_weight: float = 0.1, commitment: float = 0.25, **shared: Any) -> None:
    """Train an autoencoder whose features' signs are the bits of tokens (lookup-free quantization).

    Args:
        k: size of the codebook, a power of two.
        entropy_weight: of the loss that makes each token sure and all tokens equally frequent.
        commitment: weight of the loss that keeps features near ±1.
    """
    own = {"entropy_weight": entropy_weight, "commitment": commitment}
    learn("lfq", shared | own, own)


def fit_random_projection(
    data: str,
    out: str,
    k: int = 512,
    patch_size: int = 16,
    code_dim: int = 16,
    seed: int = 0,
    overwrite: bool = False,
) -> None:
    """Draw a random projection and random directions, the quantizer of BEST-RQ: nothing is trained.

    Args:
        data: where the images are; their number of channels is used, and how often each token occurs is counted.
        out: the run folder to write.
        k: size of the codebook.
        patch_size: side of a patch in pixels.
        code_dim: width of the projection.
        seed: another seed gives another tokenizer.
        overwrite: replace a complete run in `out`.
    """
    tokenizer = RandomProjectionTokenizer(k, patch_size, code_dim, seed)

    def fit(source: Source, run: Run) -> dict[str, Any]:
        use = measure_use(tokenizer.fit(source), source)
        warn_unused(use, "a larger --code-dim, or a smaller --k")
        return use

    fit_into(tokenizer, fit, data, out, overwrite)
