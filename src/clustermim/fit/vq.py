"""`clustermim fit vq`, `fit vqgan` and `fit peco`: tokens are the nearest vectors of a codebook."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from clustermim.errors import ConfigError
from clustermim.fit.learning import Extras, learn
from clustermim.fit.options import autoencoder, codebook, options_of, perceptual
from clustermim.progress import say

QUANTIZER = ("code_dim", "cosine", "decay", "revive", "commitment")


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
    extras = Extras(shared["perceptual_weight"], discriminator_weight, discriminator_start)
    if not shared["teacher"]:
        say("vqgan: without --teacher there is no perceptual loss; no VGG or LPIPS weights are shipped")
    learn("vqgan", shared | asdict(extras), QUANTIZER, shared["teacher"] or (), extras)


@options_of(autoencoder, codebook, perceptual)
def fit_peco(**shared: Any) -> None:
    """Train PeCo's tokenizer: a VQ-VAE that keeps what several layers of a teacher see."""
    if not shared["teacher"]:
        raise ConfigError("fit peco needs --teacher, such as run:FOLDER?layer=4, once for each layer to keep")
    learn("peco", shared, QUANTIZER, shared["teacher"], Extras(shared["perceptual_weight"]))
