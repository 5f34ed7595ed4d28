"""The theory against numbers that were computed in exact arithmetic, outside this package."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graph_toys import augmentation
from scipy.sparse import csr_matrix

from clustermim import theory
from paper.closed import (
    CONVENTIONS,
    convention_alpha,
    toy_closed,
    toy_closed_exact,
    toy_joint,
    toy_spectrum,
    toy_weights,
)
from paper.exact import exact_graph, exact_toy
from paper.partitions import check_theorem

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())
TOLERANCE = 1e-12


def of_kind(kind: str) -> pytest.MarkDecorator:
    chosen = [vector for vector in VECTORS if vector["kind"] == kind]
    assert chosen
    return pytest.mark.parametrize("vector", chosen, ids=[vector["id"] for vector in chosen])


def close(expected: dict[str, Any]) -> Any:
    return pytest.approx(expected["value"], abs=TOLERANCE, rel=0)


def tokenizer(Z: Any, name: str, tok: list[int]) -> list[int]:
    makers = {
        "mae": theory.tok_identity,
        "class": theory.tok_class,
        "cross": lambda Z: theory.tok_cross(Z, max(tok) + 1),
        "single": lambda Z: theory.tok_cross(Z, 1),
    }
    return makers[name](Z).tolist() if name in makers else tok


@of_kind("toy")
def test_toy(vector: dict[str, Any]) -> None:
    given, expected = vector["input"], vector["expected"]
    n, m, s, tok = given["n"], given["m"], given["s"], given["tok"]
    Z = theory.toy_incidence(n, m, s)
    M = toy_joint(Z)
    assert tokenizer(Z, given["tokenizer"], tok) == tok
    assert theory.sum_sq(M, tok) == close(expected["sum_sq"])
    assert theory.toy_sum_sq(Z, tok) == close(expected["sum_sq"])
    assert float(np.sum(theory.spectrum(M, tok) ** 2)) == close(expected["sum_sq"])
    assert float(np.sum(toy_spectrum(Z, tok) ** 2)) == close(expected["sum_sq"])
    for convention in CONVENTIONS:
        assert convention_alpha(Z, tok, convention) == close(expected[f"alpha_{convention}"])
    assert theory.toy_alpha(Z, tok) == close(expected["alpha_latent"])
    bound = theory.toy_sum_sq(Z, tok) + 2.5 * convention_alpha(Z, tok, "excl")
    assert bound == close(expected["B_excl_c3_5/2"])
    if "w_intra_00" in expected:
        weights, A = toy_weights(Z, tok), augmentation(M, tok)
        for value in (weights[0, 0], A[0, 0]):
            assert value == close(expected["w_intra_00"])
        for value in (weights[0, 1], A[0, n - (s - 1) * m]):
            assert value == close(expected["w_inter_01"])


@of_kind("toy")
def test_toy_closed_forms_and_brute_force(vector: dict[str, Any]) -> None:
    given, expected = vector["input"], vector["expected"]
    sizes = given["n"], given["m"], given["s"]
    toy = exact_toy(*sizes)
    assert toy.graph(given["tok"]).sum_sq() == Fraction(expected["sum_sq"]["exact"])
    for convention in CONVENTIONS:
        assert toy.alpha(given["tok"], convention) == Fraction(expected[f"alpha_{convention}"]["exact"])
    if given["tokenizer"] == "custom":
        return
    exact = toy_closed_exact(*sizes, given["tokenizer"])
    for name in ("sum_sq", *(f"alpha_{convention}" for convention in CONVENTIONS)):
        assert getattr(exact, name) == Fraction(expected[name]["exact"])
        assert getattr(toy_closed(*sizes, given["tokenizer"]), name) == close(expected[name])
    if "w_intra_00" in expected:
        assert exact.intra == Fraction(expected["w_intra_00"]["exact"])
        assert exact.inter == Fraction(expected["w_inter_01"]["exact"])


@pytest.mark.parametrize("form", [np.array, csr_matrix, list], ids=["numpy", "sparse", "list"])
@of_kind("graph")
def test_graph(vector: dict[str, Any], form: Any) -> None:
    given, expected = vector["input"], vector["expected"]
    M, tok = form(given["weights"]), given["tok"]
    assert theory.sum_sq(M, tok) == close(expected["sum_sq"])
    assert theory.alpha_hard(M, tok, given["y1"]) == close(expected["alpha"])
    A = augmentation(M, tok)
    assert A[0, 0] == close(expected["A_00"])
    assert A[0, 1] == close(expected["A_01"])
    assert A[0].sum() == close(expected["degree_0"])
    assert exact_graph(given["weights"], tok).sum_sq() == Fraction(expected["sum_sq"]["exact"])


@pytest.mark.parametrize("ratio", ["1", "5/2", "8"])
@of_kind("theorem1")
def test_theorem(vector: dict[str, Any], ratio: str) -> None:
    given, expected = vector["input"], vector["expected"]
    report = check_theorem(given["weights"], given["y1"], given["y2"], float(Fraction(ratio)))
    assert report.admissible
    assert report.partitions == expected["partitions"]
    assert report.labels.sum_sq == close(expected["label_sum_sq"])
    assert report.necessary == close(expected["necessary_ratio"])
    assert report.sufficient == close(expected["sufficient_ratio"])
    assert report.optimal[0] == close(expected["r_star"])
    assert report.best.bound == close(expected[f"min_r={ratio}"])
    assert report.minimisers == expected[f"n_minimisers_r={ratio}"]
    assert list(report.best.tok) == expected[f"first_minimiser_r={ratio}"]
    assert report.labels_optimal == expected[f"label_is_minimiser_r={ratio}"]
