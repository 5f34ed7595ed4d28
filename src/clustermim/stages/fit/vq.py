"""`clustermim fit vq`, `fit vqgan` and `fit peco`: tokens are the nearest vectors of a codebook."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from clustermim.errors import ConfigError
from clustermim.progress import log_info
from clustermim.stages.fit.learning import AuxiliaryLosses, learn
from clustermim.stages.fit.options import autoencoder, codebook, options_of, perceptual

QUANTIZER = ("code_dim", "cosine", "decay", "dead_code_threshold", "commitment")


@options_of(autoencoder, codebook)
def fit_vq(**shared: Any) -> None:
    """Train a VQ-VAE: tokens are the nearest vectors to what an encoder makes of patches."""
    learn("vq", shared, QUANTIZER)


@options_of(autoencoder, codebook, perceptual)
def fit_vqgan(discriminator_weight: float = 0.1, discriminator_start: float = 0.5, **shared: Any) -> None:
    """Train a VQGAN: a VQ-VAE whose reconstructions should also look real to a discriminator.

    Args:
        discriminator_weight: of the adversarial loss, beside the ratio of gradients that balances it.
        discriminator_start: share of the training after which the discriminator takes part.
    """
    extras = AuxiliaryLosses(shared["perceptual_weight"], discriminator_weight, discriminator_start)
    if not shared["teacher"]:
        log_info("vqgan: without --teacher there is no perceptual loss; no VGG or LPIPS weights are shipped")
    learn("vqgan", shared | asdict(extras), QUANTIZER, shared["teacher"] or (), extras)


@options_of(autoencoder, codebook, perceptual)
def fit_peco(**shared: Any) -> None:
    """Train PeCo's tokenizer: a VQ-VAE that keeps what several layers of a teacher see."""
    if not shared["teacher"]:
        raise ConfigError("fit peco needs --teacher, such as run:FOLDER?layer=4, once for each layer to keep")
    learn("peco", shared, QUANTIZER, shared["teacher"], AuxiliaryLosses(shared["perceptual_weight"]))
