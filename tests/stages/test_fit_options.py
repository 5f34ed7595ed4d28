"""Options that stages share: each stage has them with their defaults and docs."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from clustermim.errors import ConfigError
from clustermim.stages import fit

STAGES = [getattr(fit, name) for name in dir(fit) if name.startswith("fit_") and name != "fit_into"]


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.__name__)
def test_every_option_of_a_stage_is_explained(stage: Any) -> None:
    doc = stage.__doc__ or ""
    assert list(inspect.signature(stage).parameters)[:2] == ["data", "out"]
    assert all(f"        {name}: " in doc for name in inspect.signature(stage).parameters)


def test_stages_have_their_own_options_and_the_shared_ones() -> None:
    names = {stage.__name__: set(inspect.signature(stage).parameters) for stage in STAGES}
    assert names["fit_vqgan"] - names["fit_vq"] == {
        "teacher", "perceptual_weight", "discriminator_weight", "discriminator_start",
    }  # fmt: skip
    assert names["fit_peco"] - names["fit_vq"] == {"teacher", "perceptual_weight"}
    assert names["fit_vq"] - names["fit_fsq"] == {"code_dim", "cosine", "decay", "dead_code_threshold", "commitment"}
    defaults = {name: option.default for name, option in inspect.signature(fit.fit_lfq).parameters.items()}
    assert (defaults["k"], defaults["epochs"], defaults["batch_size"], defaults["base_lr"]) == (512, 3, 64, 4e-3)
    assert (defaults["augment"], defaults["entropy_weight"], defaults["clip"]) == ("pad-crop", 0.1, 1.0)


def test_an_unknown_option_is_named(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match=r"fit_kmeans has no option 'whitten'; did you mean whiten\?"):
        fit.fit_kmeans("digits", str(tmp_path), whitten=3)
