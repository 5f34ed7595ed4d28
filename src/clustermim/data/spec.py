"""Parse the text that names a source: NAME[:PATH][/SPLIT][?key=value&…].

    cifar10/test     textures:test?classes=3&noise=0.05     folder:images/train?size=64&limit=5000

Sources that lie in a file or folder take everything between the colon and the question mark as their path;
the built-in ones take a split there (`digits/test` and `digits:test` mean the same), `train` when absent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn
from urllib.parse import quote, unquote

from clustermim.errors import DataError, did_you_mean
from clustermim.files import user_path

SPLITS = ("train", "test")
COMMON_OPTIONS = ("limit", "size", "channels")

# The options of each source besides the common ones.
PATH_SCHEMES: dict[str, tuple[str, ...]] = {
    "folder": ("on_bad_image",),
    "npz": ("layout",),
    "parquet": ("image", "label", "on_bad_image"),
    "hf": ("split", "config", "revision", "image", "label", "on_bad_image"),
    "wds": ("image", "label", "on_bad_image"),
}
SPLIT_SCHEMES: dict[str, tuple[str, ...]] = {
    "cifar10": (),
    "cifar100": ("labels",),
    "digits": (),
    "textures": ("classes", "points", "shared", "grid", "patch", "images", "noise", "jitter", "seed"),
}
SCHEMES = {**PATH_SCHEMES, **SPLIT_SCHEMES}

_HEAD = re.compile(r"([A-Za-z][A-Za-z0-9_]*)(?:([:/])(.*))?", re.DOTALL)


@dataclass(frozen=True)
class Spec:
    """A parsed source text. `path` is empty for built-in sources, `split` for those with a path."""

    scheme: str
    path: str = ""
    split: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The text that parses to this."""
        place = f":{self.path}" if self.scheme in PATH_SCHEMES else f"/{self.split}"
        options = "&".join(f"{key}={quote(value, safe='/,:')}" for key, value in self.options.items())
        return f"{self.scheme}{place}{'?' if options else ''}{options}"

    def integer(self, name: str, default: int, minimum: int = 1) -> int:
        """The whole number an option gives."""
        text = self.options.get(name, str(default))
        if not re.fullmatch(r"-?\d{1,18}", text, re.ASCII) or int(text) < minimum:
            self.refuse(name, f"a whole number of at least {minimum}")
        return int(text)

    def number(self, name: str, default: float, minimum: float = 0.0) -> float:
        """The finite number an option gives."""
        try:
            value = float(self.options.get(name, default))
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < minimum:
            self.refuse(name, f"a number of at least {minimum:g}")
        return value

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        """The word an option gives."""
        value = self.options.get(name, default)
        if value not in choices:
            self.refuse(name, " or ".join(choices))
        return value

    def pair(self, name: str, default: tuple[int, int]) -> tuple[int, int]:
        """Height and width from `64` or `48x80`."""
        if name not in self.options:
            return default
        match = re.fullmatch(r"(\d{1,9})(?:x(\d{1,9}))?", self.options[name], re.ASCII)
        height, width = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if min(height, width) < 1:
            self.refuse(name, "one side or HEIGHTxWIDTH, each at least 1, such as 64 or 48x80")
        return height, width

    @property
    def limit(self) -> int | None:
        """How many images are wanted, None for all."""
        return self.integer("limit", 1) if "limit" in self.options else None

    @property
    def size(self) -> tuple[int, int] | None:
        """The (height, width) that images are brought to, None for as stored."""
        return self.pair("size", (1, 1)) if "size" in self.options else None

    @property
    def channels(self) -> int | None:
        """The number of channels that images are brought to, None for as stored."""
        if "channels" not in self.options:
            return None
        if self.scheme == "textures":  # drawn, not converted: any number will do
            return self.integer("channels", 3)
        return int(self.choice("channels", ("1", "3"), "3"))

    @property
    def skips_bad_images(self) -> bool:
        """Whether unreadable images are left out instead of ending the run."""
        return self.choice("on_bad_image", ("error", "skip"), "error") == "skip"

    def refuse(self, name: str, wanted: str) -> NoReturn:
        """Say that an option has a wrong value."""
        raise DataError(f"{self.text}: option {name}={self.options.get(name)} must be {wanted}")


def parse_spec(text: str) -> Spec:
    """The parsed text, its scheme, option names and common options checked."""
    head, _, tail = text.partition("?")
    match = _HEAD.fullmatch(head)
    if match is None or match[1] not in SCHEMES:
        raise DataError(_unknown_scheme(text, head, match[1] if match else head))
    scheme, mark, place = match[1], match[2], match[3] or ""
    if scheme in PATH_SCHEMES:
        if mark != ":" or not place:
            raise DataError(f"{text}: {scheme} needs a path after a colon, {scheme}:PATH")
        spec = Spec(scheme, path=place, options=_parse_options(text, tail, scheme))
    else:
        split = place or "train"
        if split not in SPLITS:
            raise DataError(f"{text}: {scheme} has no split {split!r}{did_you_mean(split, SPLITS)}")
        spec = Spec(scheme, split=split, options=_parse_options(text, tail, scheme))
    _ = spec.limit, spec.size, spec.channels, spec.skips_bad_images  # each refuses a bad value
    return spec


def _parse_options(text: str, tail: str, scheme: str) -> dict[str, str]:
    allowed = (*SCHEMES[scheme], *COMMON_OPTIONS)
    options: dict[str, str] = {}
    for item in filter(None, tail.split("&")):
        key, _, value = item.partition("=")
        if key not in allowed:
            raise DataError(f"{text}: {scheme} has no option {key!r}{did_you_mean(key, allowed)}")
        if key in options:
            raise DataError(f"{text}: option {key} is given twice")
        if not value:
            raise DataError(f"{text}: option {key} has no value, write {key}=VALUE")
        options[key] = unquote(value)
    return options


def _unknown_scheme(text: str, head: str, name: str) -> str:
    path = user_path(head)
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except (OSError, ValueError):  # too long, or characters that no path has
        is_folder = is_file = False
    if head and is_folder:
        return f"{text} is a folder without the name of its kind: did you mean folder:{text}?"
    if head and is_file:
        kind = {".npz": "npz", ".parquet": "parquet", ".tar": "wds"}.get(path.suffix.lower())
        return f"{text} is a file without the name of its kind" + (
            f": did you mean {kind}:{text}?" if kind else f"; a source is one of {', '.join(SCHEMES)}"
        )
    return f"{text}: there is no source named {name!r}{did_you_mean(name, SCHEMES)}"
