from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustermim.data.opening import open_source
from clustermim.data.spec import OPENERS, Spec, parse_spec
from clustermim.errors import DataError, UserError


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("cifar10", Spec("cifar10", split="train")),
        ("cifar10/test", Spec("cifar10", split="test")),
        ("digits:test", Spec("digits", split="test")),
        ("textures:", Spec("textures", split="train")),
        ("textures/test", Spec("textures", split="test")),
        (
            "textures:test?classes=3&noise=0.05",
            Spec("textures", split="test", options={"classes": "3", "noise": "0.05"}),
        ),
        ("folder:a/train?size=48x80", Spec("folder", path="a/train", options={"size": "48x80"})),
        ("folder:/a b/ö&=%20:x", Spec("folder", path="/a b/ö&=%20:x")),
        ("wds:shard-{000..009}*.tar", Spec("wds", path="shard-{000..009}*.tar")),
        ("hf:owner/name?split=test", Spec("hf", path="owner/name", options={"split": "test"})),
        ("parquet:p?image=my%20image", Spec("parquet", path="p", options={"image": "my image"})),
        ("npz:x.npz?", Spec("npz", path="x.npz")),
    ],
)
def test_parses(text: str, spec: Spec) -> None:
    assert parse_spec(text) == spec
    assert parse_spec(spec.text) == spec


@settings(deadline=None)
@given(
    path=st.text(st.characters(exclude_characters="?", exclude_categories=["Cs"]), min_size=1),
    column=st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    limit=st.integers(1, 10**9),
)
def test_text_round_trip(path: str, column: str, limit: int) -> None:
    spec = Spec("parquet", path=path, options={"image": column, "limit": str(limit)})
    assert parse_spec(spec.text) == spec
    assert parse_spec(spec.text).limit == limit


def test_common_options() -> None:
    spec = parse_spec("folder:x?size=48x80&channels=1&limit=7&on_bad_image=skip")
    assert (spec.size, spec.channels, spec.limit, spec.skips_bad_images) == ((48, 80), 1, 7, True)
    spec = parse_spec("folder:x")
    assert (spec.size, spec.channels, spec.limit, spec.skips_bad_images) == (None, None, None, False)
    assert parse_spec("textures:?channels=5").channels == 5


def test_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        parse_spec("digits").scheme = "npz"  # type: ignore[misc]


def test_every_scheme_has_an_opener() -> None:
    for opener in OPENERS.values():
        assert isinstance(opener.function, str)
        module, name = opener.function.split(":")
        assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("cifar", ["'cifar'", "did you mean cifar10?"]),
        ("flder:x", ["did you mean folder?"]),
        ("", ["no source named", "digits"]),
        ("zzzz", ["no source named 'zzzz'", "textures"]),
        ("folder:x?sise=3", ["'sise'", "did you mean size?"]),
        ("digits?layout=nchw", ["digits has no option 'layout'", "limit"]),
        ("folder:x?limit=abc", ["limit=abc", "whole number of at least 1"]),
        ("folder:x?limit=0", ["limit=0", "at least 1"]),
        ("folder:x?limit=1.5", ["limit=1.5"]),
        ("folder:x?limit=²", ["limit="]),
        ("folder:x?size=0", ["size=0", "at least 1"]),
        ("folder:x?size=4x", ["size=4x", "48x80"]),
        ("folder:x?size=4x0", ["size=4x0"]),
        ("folder:x?channels=2", ["channels=2", "1 or 3"]),
        ("folder:x?on_bad_image=ignore", ["on_bad_image=ignore", "error or skip"]),
        ("folder:x?size=4&size=5", ["size is given twice"]),
        ("folder:x?size", ["size has no value"]),
        ("folder:", ["folder needs a path", "folder:PATH"]),
        ("folder", ["folder:PATH"]),
        ("folder/x", ["folder:PATH"]),
        ("digits/val", ["no split 'val'", "train, test"]),
        ("digits/tst", ["did you mean test?"]),
    ],
)
def test_refuses(text: str, parts: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        parse_spec(text)
    assert all(part in str(caught.value) for part in parts), caught.value
    assert "\n" not in str(caught.value)


def test_bare_paths_get_the_name_of_their_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").mkdir()
    (tmp_path / "a.npz").touch()
    (tmp_path / "a.xyz").touch()
    for text, spec in [
        (str(tmp_path), f"folder:{tmp_path}"),
        ("images?size=3", "folder:images?size=3"),
        ("a.npz", "npz:a.npz"),
    ]:
        assert parse_spec(text) == parse_spec(spec)
    with pytest.raises(DataError, match="one of folder, npz"):
        parse_spec("./a.xyz")


def test_typed_options() -> None:
    spec = parse_spec("textures:?noise=0.5&grid=4x6&seed=0")
    assert spec.number("noise", 0.1) == 0.5
    assert spec.number("jitter", 0.1) == 0.1
    assert spec.pair("grid", (1, 1)) == (4, 6)
    assert spec.integer("seed", 3, minimum=0) == 0
    for text in ("nan", "inf", "-1", "x"):
        with pytest.raises(DataError, match="noise="):
            parse_spec(f"textures:?noise={text}").number("noise", 0.1)


@pytest.mark.parametrize(
    "text",
    [
        "folder:~no-such-user/x",
        "npz:~no-such-user/x.npz",
        "parquet:~no-such-user",
        "wds:~no-such-user/a.tar",
        "~no-such-user",
    ],
)
def test_a_home_that_nobody_has(text: str) -> None:
    with pytest.raises(UserError, match="there is no user no-such-user; your own home folder is ~/"):
        open_source(text)
