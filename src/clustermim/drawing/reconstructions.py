"""What a pretrained model predicts of a few images, or a learned tokenizer keeps: `reconstructions.png` of a run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from clustermim.data import Batch, Source, to_float
from clustermim.data.statistics import ChannelStats
from clustermim.drawing.colors import enlarge, paler, token_colors, token_palette
from clustermim.drawing.gallery import from_centers
from clustermim.drawing.page import PICTURE, Page, Rows, page_size, to_png, to_rgb, write_out
from clustermim.models.masking import Mask, draw_from
from clustermim.models.mim import MaskedModel
from clustermim.patches import grid_size, patchify, unpatchify
from clustermim.pretraining import MaskedCollator, masked_values, model_inputs, token_accuracy
from clustermim.progress import log_info
from clustermim.runs import Run
from clustermim.targets import MultiTokenTarget, PixelTarget, Target, TokenTarget
from clustermim.tokenizers import KMeansTokenizer
from clustermim.tokenizers.learned import LearnedTokenizer

IMAGES = 8
SEED = 0  # not the run's own: runs of different seeds show the same images behind the same masks
HIDDEN = 150  # grey of a patch that was masked
CONTRAST = "Each predicted patch is drawn with the mean and contrast of the true one: the model predicts neither."


@dataclass(frozen=True)
class Reconstruction:
    """A few images, what is to be predicted of their patches, and what a model predicts."""

    images: Tensor  # (M, C, H, W) float32 in [0, 1]
    grid: tuple[int, int]  # rows and columns of patches
    mask: Mask
    truth: Tensor  # (M, N) or (M, N, T) ids, or (M, N, dim) values
    prediction: Tensor  # (M, m, dim) float32, of the masked patches

    @property
    def hidden(self) -> Tensor:
        """(M, N), True where a patch is masked."""
        everywhere = torch.zeros(self.truth.shape[:2], dtype=torch.bool, device=self.truth.device)
        asked, shown = self.mask.masked, self.mask.shown
        return everywhere.scatter_(1, asked, torch.ones_like(asked, dtype=torch.bool) if shown is None else ~shown)

    @property
    def completed(self) -> Tensor:
        """The truth at visible patches and the prediction at masked ones: (M, N) ids or (M, N, dim) values."""
        values = self.prediction.argmax(-1) if self.truth.ndim == 2 else self.prediction  # (M, m) or (M, m, dim)
        places = self.mask.masked.reshape(*self.mask.masked.shape, *[1] * (values.ndim - 2))
        found = self.truth.scatter(1, places.expand_as(values), values.to(self.truth.dtype))
        return found if self.mask.shown is None else torch.where(self.hidden, found, self.truth)

    def on_grid(self, values: Tensor) -> NDArray[Any]:
        """Values (M, N) of patches to (M, rows, columns)."""
        return np.asarray(values.reshape(-1, *self.grid).cpu())


def write_reconstructions(
    run: Run, net: MaskedModel, target: Target, source: Source, stats: ChannelStats, views: MaskedCollator
) -> None:
    """Write the picture into a run folder; nothing else changes, and no global random state."""
    if (batch := read_some(source, least=2 if views.layout == "mixmae" else 1)) is not None:
        mask = views.mask(draw_from(torch.Generator().manual_seed(SEED), len(batch.images)))
        batch = batch.first(len(mask.keep))  # an image without a partner is left out
        seen = reconstruct(net, target, batch, stats, mask)
        title = f"{target.kind} target, {run.config['epochs']} epochs: {quality(target, seen)}"
        _write(run, lambda: draw_reconstruction(target, source, batch, seen, title), "encoder")


def write_tokenizer_reconstructions(
    run: Run, tokenizer: LearnedTokenizer, source: Source, found: Mapping[str, float]
) -> None:
    """Draw images above their reconstructions, if there are any, and tokens; write the picture into a run folder."""
    if (batch := read_some(source)) is not None:
        images = to_float(batch.images)  # (M, C, H, W)
        grid = grid_size(images.shape[2], images.shape[3], tokenizer.patch_size)
        ids = tokenizer(images.to(tokenizer.autoencoder.mean.device)).reshape(-1, *grid)  # (M, rows, columns)
        drawn = {} if tokenizer.decode is None else {"reconstruction": rgb_of(tokenizer.decode(ids))}
        rows = {"image": rgb_of(images), **drawn, "tokens": token_palette(tokenizer)[ids.cpu().numpy()]}
        psnr = f"PSNR {found['psnr']:.2f} dB, " if drawn else ""
        title = (
            f"{tokenizer.kind}, {tokenizer.vocab_size:,} tokens: {psnr}"
            f"{found['usage']:.1%} of tokens in use, perplexity {found['perplexity']:,.1f}"
        )
        shown = f"   {len(images)} of {len(source):,} images, patches of {tokenizer.patch_size} pixels"
        _write(run, lambda: Page(source, len(images), title, shown).images(rows).finish(), "tokenizer")


def read_some(source: Source, least: int = 1) -> Batch | None:
    """A few images, evenly spread over the source, which may be sorted by class; None if too few can be read."""
    batch = source.read(np.linspace(0, len(source) - 1, min(IMAGES, len(source))).astype(np.int64))
    if len(batch.images) < least:
        log_info(f"{len(batch.images) or 'none'} of the {IMAGES} images for {PICTURE} can be read: it is left out")
        return None
    return batch


def _write(run: Run, draw: Callable[[], Figure], made: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*missing from font")  # drawn as a box
        write_out(run.folder / PICTURE, to_png(draw()), f"the {made} is there, and --resume completes the run")


def rgb_of(images: Tensor) -> NDArray[np.uint8]:
    """Pictures (M, H, W, 3) of images (M, C, H, W) in [0, 1]."""
    return to_rgb(images.mul(255).round().to(torch.uint8).cpu().numpy())


@torch.no_grad()
def reconstruct(net: MaskedModel, target: Target, batch: Batch, stats: ChannelStats, mask: Mask) -> Reconstruction:
    """What the model predicts of images behind a mask."""
    device = next(net.parameters()).device
    images, mask = to_float(batch.images).to(device), mask.to(device)
    truth = target(images, None if batch.labels is None else batch.labels.to(device))
    was_training = net.training
    net.eval()  # stochastic depth would draw from the global generator
    prediction = net(model_inputs(images, truth, stats, mask), mask).float()
    net.train(was_training)
    grid = grid_size(images.shape[2], images.shape[3], target.patch_size)
    return Reconstruction(images, grid, mask, truth, prediction)


def quality(target: Target, seen: Reconstruction) -> str:
    """How good the predictions of the masked patches are, for the title."""
    values = masked_values(seen.truth, seen.mask)
    loss = f"loss {float(target.loss(seen.prediction, values)):.3g} on the masked patches shown"
    if values.ndim > 2:
        return loss
    return f"{float(token_accuracy(seen.prediction, values)):.1%} of tokens right, {loss}"


def draw_reconstruction(target: Target, source: Source, batch: Batch, seen: Reconstruction, title: str) -> Figure:
    """The picture: title, a column for each image, notes."""
    rows, notes = rows_of(target, seen)
    share = float(seen.hidden.float().mean())
    shown = f"   {len(batch.images)} of {len(source):,} images, not augmented, {share:.0%} of patches masked"
    names = None if batch.labels is None else [source.class_names[label] for label in batch.labels.tolist()]
    return Page(source, len(batch.images), title, shown).images(rows, names).finish(notes)


def rows_of(target: Target, seen: Reconstruction) -> tuple[Rows, list[str]]:
    """The rows of the picture by name, and what needs to be said of them."""
    image = rgb_of(seen.images)
    hidden = enlarge(seen.on_grid(seen.hidden), target.patch_size)
    rows: Rows = {"image": image, "visible": np.where(hidden[..., None], np.uint8(HIDDEN), image)}
    if isinstance(target, MultiTokenTarget):
        first = replace(seen, truth=seen.truth[..., 0], prediction=seen.prediction[..., : target.sizes[0]])
        more, notes = _token_rows(target.first(), first)
        notes = ["Tokens are those of the first tokenizer.", *notes]
    elif isinstance(target, PixelTarget):
        more, notes = {"prediction": rgb_of(predicted_pixels(target, seen))}, [CONTRAST] if target.normalize else []
    elif seen.truth.ndim == 2:
        more, notes = _token_rows(target, seen)
    else:
        more, notes = _value_rows(seen, {"hog": "HOG"}.get(target.kind, target.kind))
    return {**rows, **more}, notes


def predicted_pixels(target: PixelTarget, seen: Reconstruction) -> Tensor:
    """Images (M, C, H, W) in [0, 1]: visible patches as they are, masked ones as predicted."""
    pixels = target.to_pixels(seen.completed, seen.images)  # (M, N, p·p·C)
    pixels = torch.where(seen.hidden[..., None], pixels, patchify(seen.images, target.patch_size))
    return unpatchify(pixels, seen.grid, target.channels)


def _value_rows(seen: Reconstruction, name: str) -> tuple[Rows, list[str]]:
    """The leading principal components of all values shown as colours: of features, of HOG, of anything."""
    hidden = seen.on_grid(seen.hidden)[..., None]
    true, predicted = (
        component_colors(seen.truth, values).reshape(-1, *seen.grid, 3) for values in (seen.truth, seen.completed)
    )
    rows: Rows = {f"true {name}": true, f"predicted {name}": np.where(hidden, predicted, paler(predicted))}
    notes = [f"Red, green and blue are the first three principal components of the true {name} shown."]
    return rows, [*notes, "Visible patches are pale in the prediction."]


def component_colors(truth: Tensor, values: Tensor) -> NDArray[np.uint8]:
    """A colour (M, N, 3) for each of values (M, N, D): its place along the three main directions of a truth (M, N, D).

    Grey is the mean of the truth; two standard deviations away from it are as far as colours go.
    """
    given = truth.flatten(0, 1).double().cpu()  # (M·N, D)
    mean = given.mean(0)
    variances, axes = torch.linalg.eigh((given - mean).T @ (given - mean) / len(given))  # (D,), (D, D), rising
    variances, axes = variances[-3:].flip(0), axes[:, -3:].flip(1)  # (≤ 3,), (D, ≤ 3)
    far = 2 * variances.clamp(min=1e-12).sqrt()
    place = (values.double().cpu() - mean) @ axes / far  # (M, N, ≤ 3), most in [−1, 1]
    light = F.pad(0.5 + 0.5 * place, (0, 3 - place.shape[2]), value=0.5).clamp(0, 1)  # (M, N, 3)
    colors: NDArray[np.uint8] = light.mul(255).round().to(torch.uint8).numpy()
    return colors


def _token_rows(target: Target, seen: Reconstruction) -> tuple[Rows, list[str]]:
    """Maps of the true and the predicted tokens, and both put together from centres when there are any."""
    side = max(3, page_size(*seen.images.shape[2:])[0] // seen.grid[0])
    hidden, true, predicted = (seen.on_grid(x) for x in (seen.hidden, seen.truth, seen.completed))
    tokenizer = target.tokenizer if isinstance(target, TokenTarget) else None
    palette = token_colors(np.arange(target.dim)) if tokenizer is None else token_palette(tokenizer)
    colors = palette[predicted]
    colors = enlarge(np.where(hidden[..., None], colors, paler(colors)), side)
    middle = np.abs(np.arange(side) - (side - 1) / 2) <= side / 8
    colors[enlarge(true != predicted, side) & np.tile(np.outer(middle, middle), seen.grid)] = 0
    rows: Rows = {"true tokens": enlarge(palette[true], side), "predicted tokens": colors}
    centers = tokenizer.center_patches() if tokenizer else None
    if centers is not None:
        rows["true centres"] = rgb_of(from_centers(centers, seen.truth, seen.grid))
        rows["predicted centres"] = rgb_of(from_centers(centers, seen.completed, seen.grid))
    notes = ["A dot marks a token that is wrong; tokens of visible patches are pale in the prediction."]
    if isinstance(tokenizer, KMeansTokenizer) and tokenizer.space == "pixel-norm":
        notes.append("The centres have no brightness or contrast: they are drawn around mid-grey.")
    return rows, notes
