"""`clustermim fit kmeans`."""

from __future__ import annotations

from typing import Any

from clustermim.data import Source
from clustermim.options import flat
from clustermim.runs import Run, check_not_inside
from clustermim.stages.fit.folder import fit_into
from clustermim.tokenizers import KMeansTokenizer
from clustermim.tokenizers.kmeans import KMeansOptions, SpaceName
from clustermim.training import Device


@flat
def fit_kmeans(
    data: str,
    out: str,
    k: int = 50,
    patch_size: int = 16,
    space: SpaceName = "pixel",
    options: KMeansOptions = KMeansOptions(),
    cache_features: bool = False,
    device: Device | None = None,
    overwrite: bool = False,
) -> None:
    """Fit a k-means tokenizer, the one of ClusterMIM, on the patches of a data source.

    Args:
        data: where the images are: `folder:PATH`, `cifar10/train`, `textures:`, …
        out: the run folder to write.
        k: number of clusters, the size of the codebook.
        patch_size: side of a patch in pixels.
        space: cluster raw pixels; patches normalised to zero mean and unit variance; windows around them, normalised
            and whitened, so that edges and textures count as much as colours; or features of a teacher.
        cache_features: keep the teacher's features in the cache folder, for a fit with another k.
        device: where the teacher computes; by default the fastest that is there.
        overwrite: replace a complete run in `out`.
    """
    check_not_inside(options.teacher, out, "the teacher")
    tokenizer = KMeansTokenizer(k, patch_size, space, options=options)

    def fit(source: Source, run: Run) -> dict[str, Any]:
        return tokenizer.fit(source, device=device, cache_features=cache_features, log=run.log).results()

    fit_into(tokenizer, fit, data, out, overwrite)
