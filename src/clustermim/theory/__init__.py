"""The paper's theory, exact and corrected: mask graphs and tokenizers, the toy model, Theorem 1.

Functions take numpy arrays (weights also as scipy.sparse) and return floats or arrays. `tok` is one token id a target,
`Z` the points × classes incidence of the toy model, r = c2/c1 the ratio of the bound's two constants.
"""

from clustermim.theory.graphs import (
    alpha_hard,
    alpha_soft,
    augmentation,
    bound,
    class_mass,
    spectrum,
    sum_sq,
    token_joint,
    token_matrix,
)
from clustermim.theory.theorem import (
    TheoremReport,
    check_theorem,
    class_prior,
    critical_ratio,
    necessary_ratio,
    partition_terms,
    restricted_growth,
    set_partitions,
    sufficient_ratio,
    winning_interval,
)
from clustermim.theory.toy import (
    class_gram,
    tok_class,
    tok_cross,
    tok_identity,
    tok_pattern,
    token_counts,
    toy_alpha,
    toy_closed,
    toy_closed_exact,
    toy_incidence,
    toy_joint,
    toy_spectrum,
    toy_sum_sq,
    toy_weights,
)

__all__ = [
    "TheoremReport", "alpha_hard", "alpha_soft", "augmentation", "bound", "check_theorem", "class_gram",
    "class_mass", "class_prior", "critical_ratio", "necessary_ratio", "partition_terms", "restricted_growth",
    "set_partitions", "spectrum", "sufficient_ratio", "sum_sq", "tok_class", "tok_cross", "tok_identity",
    "tok_pattern", "token_counts", "token_joint", "token_matrix", "toy_alpha", "toy_closed", "toy_closed_exact",
    "toy_incidence", "toy_joint", "toy_spectrum", "toy_sum_sq", "toy_weights", "winning_interval",
]  # fmt: skip
