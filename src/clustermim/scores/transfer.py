"""Known scores of features with labels: of tokens as the labels of another task, and of bags of tokens as features.

Features are those of `ranks.py`, along their principal axes; none of these scores depends on the axes.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np

from clustermim.count_tables import Floats, Input, Ints, as_table
from clustermim.errors import DataError
from clustermim.scores.codebook import entropy
from clustermim.scores.collect import Tokens
from clustermim.scores.ranks import energies

SMALL = 1e-5  # that the authors of LogME add to what they divide by
STEPS = 1000  # of LogME's iteration at most
SMALLEST = 1e-4  # variance, in the code of GBC's authors
GAUSSIAN = 64  # principal axes that GBC looks at
ENERGY = 0.8  # share of the variance that NLEEP keeps
COMPONENTS = 5  # of NLEEP's mixture, for each class


def labels_of(tokens: Tokens) -> Ints:
    """Classes of the sampled images, (B,), numbered among those that occur."""
    present, labels = np.unique(tokens.classes_of(tokens.sample[1].numpy()), return_inverse=True)
    if len(present) < 2:
        raise DataError("the images are of one class only")
    return labels


def leep(R: Input) -> float:
    """LEEP (Nguyen et al. 2020) of patches whose token is the label of the source task, and whose image has the class.

    R: (l1, l2) counts. The mean over patches of ln Σ_z P(class | z)·θ_z, with θ = 1 for the patch's token: it is
    −H(class | token), and 0 where tokens determine the class.

    >>> leep([[3, 0], [0, 2], [0, 1]])
    0.0
    """
    table = as_table(R)
    return min(0.0, entropy(table.sum(axis=1)) - entropy(table.ravel()))


def soft_leep(shares: Floats, labels: Ints) -> float:
    """LEEP of images with probabilities (n, v) of source labels: mean of ln Σ_z P(class | z)·θ_z."""
    joint = np.array([shares[labels == label].sum(0) for label in range(labels.max() + 1)])  # (C, v)
    totals = joint.sum(0)
    given = np.divide(joint, totals, out=np.zeros_like(joint), where=totals > 0)
    return float(np.mean(np.log(np.einsum("nv,nv->n", shares, given[labels]))))


def nleep(axes: Floats, labels: Ints) -> float:
    """NLEEP (Li et al. 2021): LEEP, where the source labels are the components of a mixture of Gaussians.

    axes: of centred features; the leading ones with 80 % of the variance are kept. Five components for each class, with
    diagonal covariances, which a few thousand images suffice for.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    values = energies(axes)
    kept = int(np.searchsorted(np.cumsum(values) / values.sum(), ENERGY)) + 1
    count = min(COMPONENTS * (int(labels.max()) + 1), len(axes))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different images than components
        mixture = GaussianMixture(count, covariance_type="diag", random_state=0).fit(axes[:, :kept])
    return soft_leep(mixture.predict_proba(axes[:, :kept]), labels)


def logme(axes: Floats, labels: Ints) -> float:
    """LogME (You et al. 2021): the largest log evidence for each image of a linear model, a mean over the classes.

    axes: of features F that are not centred. For each class y is 1 or 0, w ~ N(0, 1/α), y ~ N(Fw, 1/β), and
    ln p(y | F, α, β)/n is maximised over α and β by the authors' iteration. Where features fit all labels exactly there
    is no maximum, and the small number in it decides.
    """
    values, classes = energies(axes), np.eye(labels.max() + 1)[labels]  # (r,), (n, C)
    along = (axes.T @ classes) ** 2 / values[:, None]  # (r, C)
    rest = np.maximum(classes.sum(0) - along.sum(0), 0)
    return float(np.mean([_evidence(values, *one, len(axes)) for one in zip(along.T, rest, strict=True)]))


def _evidence(values: Floats, along: Floats, rest: float, n: int) -> float:
    """The largest ln p(y | F, α, β)/n, of the parts of ‖y‖² along each axis (r,) and of what no axis reaches."""
    ratio, before = 1.0, math.inf  # α/β
    for _ in range(STEPS):
        used = float(np.sum(values / (values + ratio)))  # γ
        weights = float(np.sum(values * along / (values + ratio) ** 2))  # ‖m‖²
        error = float(np.sum(along * (ratio / (values + ratio)) ** 2)) + rest  # ‖Fm − y‖²
        alpha, beta = used / (weights + SMALL), (n - used) / (error + SMALL)
        if abs(ratio - before) <= 1e-6 * ratio:
            break
        before, ratio = ratio, alpha / beta
    volumes = len(values) * math.log(alpha) - float(np.log(alpha + beta * values).sum())
    return (volumes + n * math.log(beta / (2 * math.pi)) - beta * error - alpha * weights) / (2 * n)


def h_score(axes: Floats, labels: Ints) -> float:
    """H-score (Bao et al. 2019): tr(cov(f)⁺ cov(E[f | class])), with the pseudo-inverse and no shrinkage.

    axes: of centred features. C − 1 at most. With as many directions as images it is that, whatever they show.
    """
    sums = np.array([axes[labels == label].sum(0) for label in range(labels.max() + 1)])  # (C, r)
    return float(np.sum(sums**2 / np.bincount(labels)[:, None] / energies(axes)))


def gbc(axes: Floats, labels: Ints) -> float:
    """GBC (Pándy et al. 2022): −Σ over pairs of classes of exp(−D), D = ‖μ−μ'‖²/(8s) + d/2·ln(s/√(vv')), s = (v+v')/2.

    The Bhattacharyya coefficient of Gaussians N(μ, v·1), spherical ones, of the first 64 principal axes of
    centred features. Both orders of a pair count. Variances are 10⁻⁴ at least, as in the authors' code.
    """
    axes = axes[:, :GAUSSIAN]
    groups = [axes[labels == label] for label in range(labels.max() + 1)]
    means = np.array([group.mean(0) for group in groups])  # (C, d)
    variances = np.array([np.maximum(group.var(0), SMALLEST).mean() for group in groups])  # (C,)
    squares = np.einsum("ij,ij->i", means, means)
    distances = np.maximum(squares[:, None] + squares - 2 * means @ means.T, 0)  # (C, C)
    middle = (variances[:, None] + variances) / 2
    volumes = np.log(middle) - np.log(variances[:, None] * variances) / 2
    overlap = np.exp(-distances / (8 * middle) - axes.shape[1] / 2 * volumes)
    return float(np.trace(overlap) - overlap.sum())


def logistic_accuracy(axes: Floats, labels: Ints, parts: Sequence[slice]) -> float:
    """The share of images that logistic regression gives their class, a mean over classes, as `bag_accuracy` is.

    axes: of centred features. Each part of the images is classified by what was learned of all others, with
    scikit-learn's default penalty.
    """
    from sklearn.linear_model import LogisticRegression

    right = []
    for part in parts:
        known = np.ones(len(labels), dtype=bool)
        known[part] = False
        if len(np.unique(labels[known])) < 2:
            raise DataError("all images but those of one part are of one class")
        model = LogisticRegression(max_iter=1000).fit(axes[known], labels[known])
        hits = model.predict(axes[part]) == labels[part]
        right.append(np.mean([hits[labels[part] == label].mean() for label in np.unique(labels[part])]))
    return float(np.mean(right))
