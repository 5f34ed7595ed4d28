"""What tokens tell of their image without any label: kinship.

Patches of one image share its class, so tokens that know the class know of each other. So do tokens that only say where
in the image they are, which is trivial to predict: that part is taken away.
"""

from __future__ import annotations

import math

import numpy as np

from clustermim.count_tables import Floats, Input, as_counts
from clustermim.scores.codebook import entropy


def patch_mi(first: Input, second: Input, positions: Input) -> float:
    """(I(S; S') − I of places alone) / H(S), of the tokens S and S' of two patches of an image: 0 … 1.

    first, second: (l, l) counts of pairs of patches of one image, from two halves of the images. positions: (N, l)
    counts of tokens at each place. Tokens that are independent given their places have kinship 0, tokens that are
    the class have 1.

    >>> patch_mi([[4, 0], [0, 4]], [[4, 0], [0, 4]], [[2, 2], [2, 2]])
    1.0
    >>> patch_mi([[2, 2], [2, 2]], [[2, 2], [2, 2]], [[2, 2], [2, 2]])
    0.0
    """
    return without_places(*shared_information(first, second), positions)


def without_places(information: float, diversity: float, positions: Input) -> float:
    """Kinship from I(S; S') and H(S), and from tokens at each place (N, l)."""
    places = mutual_information(by_places(as_counts(positions, "the table of places", 2)))
    return (information - places) / diversity if diversity > 0 else 0.0  # one token tells nothing


def patch_mi_beyond(pairs: Input, *negatives: Input) -> float:
    """(I of pairs − mean I of strangers) / H, of the tokens of two patches: 0 … 1, and NaN where there is no pair.

    pairs: (l, l) counts of pairs of patches that belong to one image. strangers: the same, of equally many pairs from
    different images at the same places: what these tell is no kinship.

    >>> patch_mi_beyond([[4, 0], [0, 4]], [[2, 2], [2, 2]])
    1.0
    """
    if not np.asarray(pairs).any():
        return math.nan
    table = as_counts(pairs, "the table of pairs", 2)
    others = [mutual_information(as_counts(one, "the table of strangers", 2)) for one in negatives]
    diversity = entropy(table.sum(axis=0))
    return (mutual_information(table) - sum(others) / len(others)) / diversity if diversity > 0 else 0.0


def shared_information(first: Input, second: Input) -> tuple[float, float]:
    """I(S; S') and H(S) in nats of pairs of patches; 2·I(all) − mean of I(halves) removes the bias of rare pairs.

    first, second: (l, l) counts from two halves of the images.
    """
    halves = [as_counts(half, "the co-occurrence table", 2) for half in (first, second)]
    pairs = halves[0] + halves[1]
    parts = [mutual_information(half) for half in halves]
    return 2 * mutual_information(pairs) - sum(parts) / 2, entropy(pairs.sum(axis=0))


def mutual_information(table: Floats) -> float:
    """I(row; column) in nats of the distribution proportional to a table of counts."""
    return entropy(table.sum(axis=0)) + entropy(table.sum(axis=1)) - entropy(table.ravel())


def by_places(positions: Floats) -> Floats:
    """Pairs of tokens at two different places, (l, l), were tokens independent given the place: Σ_{i≠j} P_i P_jᵀ.

    positions: (N, l) counts of tokens at each place.
    """
    shares = positions / positions.sum(axis=1, keepdims=True)  # (N, l)
    total = shares.sum(axis=0)
    table: Floats = np.outer(total, total) - shares.T @ shares
    return np.clip(table, 0, None)
