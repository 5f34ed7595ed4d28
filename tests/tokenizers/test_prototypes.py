"""The toy model's tokenizers on textures: exact tokens, and scores that meet the closed forms."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from clustermim.cli import main
from clustermim.data import open_source
from clustermim.data.source import to_float
from clustermim.data.textures import TextureSource
from clustermim.errors import ConfigError, DataError
from clustermim.runs import read_summary
from clustermim.scores import score
from clustermim.theory.toy import tok_class, tok_cross
from clustermim.tokenizers import PrototypeTokenizer
from clustermim.tokenizers.reference import Partition

SPEC = "textures:?classes=3&points=8&shared=2&grid=4x4&patch=8&images=600"


@pytest.mark.parametrize("partition", get_args(Partition))
def test_tokens_are_those_of_the_prototypes(partition: Partition) -> None:
    source = open_source(SPEC)
    assert isinstance(source, TextureSource)
    tokenizer = PrototypeTokenizer(partition, tokens=2).fit(source)
    prototypes = source.patch_ids(range(50))  # (50, 16)
    found = tokenizer(to_float(source.read(range(50)).images)).numpy()
    expected = {"class": tok_class(source.incidence), "cross": tok_cross(source.incidence, 2)}
    if partition in expected:
        assert np.array_equal(found, expected[partition][prototypes])
    elif partition == "prototype":
        assert np.array_equal(found, prototypes)
    else:  # patches have one token where the same classes share their prototypes
        patterns = np.unique(source.incidence, axis=0, return_inverse=True)[1][prototypes]
        assert len({*zip(found.ravel().tolist(), patterns.ravel().tolist(), strict=True)}) == tokenizer.vocab_size == 6


@pytest.mark.parametrize("partition", get_args(Partition))
def test_scores_meet_the_closed_forms(partition: Partition) -> None:
    source = open_source(SPEC)
    tokenizer = PrototypeTokenizer(partition, tokens=2).fit(source)
    found, exact = score(tokenizer, source, permutations=1).to_dict(), tokenizer.results()
    assert found["alpha"] == pytest.approx(exact["alpha"], abs=0.01)
    assert found["sum_sq"] == pytest.approx(exact["sum_sq"], abs=0.05)


def test_closed_forms_of_the_theory() -> None:
    """γ = θ, θ² and 0 of identity, class-wise and cross-class tokens; Σλ² = 1 + (s−1)γ², α = (s−1)(1−γ)/s."""
    source, s, theta = open_source(SPEC), 3, 1 - 3 * (2 / 8) / 2
    for partition, gamma in (("prototype", theta), ("pattern", theta), ("class", theta**2), ("cross", 0.0)):
        exact = PrototypeTokenizer(partition, tokens=2).fit(source).results()  # type: ignore[arg-type]
        assert exact["sum_sq"] == pytest.approx(1 + (s - 1) * gamma**2, abs=1e-12)
        assert exact["alpha"] == pytest.approx((s - 1) * (1 - gamma) / s, abs=1e-12)


def test_stage_writes_the_closed_forms(tmp_path: Path) -> None:
    out = str(tmp_path / "class")
    assert main(["fit", "toy", "--data", SPEC, "--partition", "class", "--out", out]) == 0
    results = read_summary(tmp_path / "class")["results"]
    assert results["vocab_size"] == 3
    assert results["alpha"] == pytest.approx(2 * (1 - 0.625**2) / 3)


def test_refusals() -> None:
    with pytest.raises(DataError, match=r"digits.*no known prototypes.*textures:"):
        PrototypeTokenizer().fit(open_source("digits"))
    with pytest.raises(DataError, match="no known prototypes"):  # resized, so that patches are no prototypes any more
        PrototypeTokenizer().fit(open_source(SPEC + "&size=64"))
    with pytest.raises(ConfigError, match="between 1 and"):
        PrototypeTokenizer("cross", tokens=99).fit(open_source(SPEC))
