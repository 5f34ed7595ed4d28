"""`clustermim fit external`: a published tokenizer, copied into a folder of its own and tried on the data."""

from __future__ import annotations

from typing import Any

from clustermim.data import Source
from clustermim.errors import ConfigError
from clustermim.runs import Run
from clustermim.stages.fit.folder import fit_into
from clustermim.stages.fit.usage import measure_use, warn_unused
from clustermim.tokenizers import ExternalTokenizer

BATCH = 32  # images; some networks take gigabytes for more
REMEDY = "images like those the tokenizer was trained on, larger ones, or a larger --patch-size"


def fit_external(
    data: str,
    out: str,
    source: str,
    patch_size: int = 16,
    max_images: int = 2000,
    seed: int = 0,
    overwrite: bool = False,
) -> None:
    """Take a published tokenizer: its weights are copied, and its use of the codebook is measured on the data.

    Args:
        data: where the images are; labels are not needed.
        out: the run folder to write.
        source: `hf-flava:NAME` (the dVAE of DALL·E) or `diffusers-vq:NAME` (a VQGAN): a name of the hub or a folder.
        patch_size: side of a patch in pixels; images are resized so that each patch gets one id.
        max_images: images to measure usage and perplexity on, drawn at random.
        seed: of that choice.
        overwrite: replace a complete run in `out`.
    """
    if max_images < 1:
        raise ConfigError(f"--max-images {max_images} is too small: 1 at least")
    tokenizer = ExternalTokenizer(source, patch_size)

    def fit(images: Source, run: Run) -> dict[str, Any]:
        use = measure_use(tokenizer.fit(images), images, max_images, seed, BATCH)
        warn_unused(use, REMEDY)
        return use

    fit_into(tokenizer, fit, data, out, overwrite, max_images=max_images, seed=seed)
