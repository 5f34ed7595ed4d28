"""The paper's theory, exact and corrected: mask graphs and tokenizers, the toy model, Theorem 1.

Functions take numpy arrays (weights also as scipy.sparse) and return floats or arrays. `tok` is one token id a target,
`Z` the points × classes incidence of the toy model, r = c2/c1 the ratio of the bound's two constants.
"""

from clustermim.theory.graphs import alpha_hard, bound, class_mass, spectrum, sum_sq, token_joint, token_matrix
from clustermim.theory.theorem import necessary_ratio, sufficient_ratio, winning_interval
from clustermim.theory.toy import tok_class, tok_cross, tok_identity, tok_pattern, toy_alpha, toy_incidence, toy_sum_sq

__all__ = ["alpha_hard", "bound", "class_mass", "necessary_ratio", "spectrum", "sufficient_ratio"]
__all__ += ["sum_sq", "tok_class", "tok_cross", "tok_identity", "tok_pattern", "token_joint", "token_matrix"]
__all__ += ["toy_alpha", "toy_incidence", "toy_sum_sq", "winning_interval"]
