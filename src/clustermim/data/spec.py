"""The text that names a source, NAME[:PATH][/SPLIT][?key=value&…], and the table of who opens it.

    cifar10/test     textures:test?classes=3&noise=0.05     folder:images/train?size=64&limit=5000

Sources that lie in a file or folder take everything between the colon and the question mark as their path;
the built-in ones take a split there (`digits/test` and `digits:test` mean the same), `train` when absent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple, NoReturn
from urllib.parse import quote, unquote

from clustermim.data.source import Source
from clustermim.errors import DataError, UserError, did_you_mean
from clustermim.files import user_path

SPLITS = ("train", "test")
SUBSETS = ("train", "validation")
COMMON_OPTIONS = ("subset", "limit", "size", "channels")


class Opener(NamedTuple):
    """Who opens a kind of source: a function (Spec) → Source, or "module:function", imported when needed."""

    function: str | Callable[[Spec], Source]
    options: tuple[str, ...] = ()  # besides the common ones
    splits: bool = False  # named NAME/SPLIT instead of NAME:PATH


OPENERS = {
    "folder": Opener("clustermim.data.folder:open_folder", ("masks", "on_bad_image")),
    "npz": Opener("clustermim.data.arrays:open_npz", ("layout",)),
    "parquet": Opener("clustermim.data.tables:open_parquet", ("image", "label", "on_bad_image")),
    "hf": Opener("clustermim.data.tables:open_hf", ("split", "config", "revision", "image", "label", "on_bad_image")),
    "wds": Opener("clustermim.data.shards:open_wds", ("image", "label", "on_bad_image")),
    "cifar10": Opener("clustermim.data.cifar:open_cifar", splits=True),
    "cifar100": Opener("clustermim.data.cifar:open_cifar", ("labels",), splits=True),
    "digits": Opener("clustermim.data.arrays:open_digits", splits=True),
    "textures": Opener(
        "clustermim.data.textures:TextureSource",
        ("classes", "points", "shared", "grid", "patch", "images", "noise", "jitter", "seed"),
        splits=True,
    ),
}
_KIND_OF_SUFFIX = {".npz": "npz", ".parquet": "parquet", ".tar": "wds"}
_HEAD = re.compile(r"([A-Za-z][A-Za-z0-9_]*)(?:([:/])(.*))?", re.DOTALL)


class OptionReader:
    """The options of a parsed text as values of their types; a bad one raises `error`."""

    error: ClassVar[type[UserError]] = DataError
    text: str
    scheme: str
    options: Mapping[str, str]

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

    def refuse(self, name: str, wanted: str) -> NoReturn:
        """Say that an option has a wrong value."""
        raise self.error(f"{self.text}: option {name}={self.options.get(name)} must be {wanted}")

    def check_names(self, allowed: Sequence[str]) -> None:
        """Refuse an option that is not among these."""
        for name in self.options:
            if name not in allowed:
                hint = did_you_mean(name, allowed) if allowed else "; it has none"
                raise self.error(f"{self.text}: {self.scheme} has no option {name!r}{hint}")


@dataclass(frozen=True)
class Spec(OptionReader):
    """A parsed source text. `path` is empty for built-in sources, `split` for those with a path."""

    scheme: str
    path: str = ""
    split: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    text: str = field(init=False)  # that parses to this

    def __post_init__(self) -> None:
        place = f"/{self.split}" if self.split else f":{self.path}"
        object.__setattr__(self, "text", f"{self.scheme}{place}{'?' if self.options else ''}{self.query}")

    @property
    def query(self) -> str:
        """The options as text."""
        return "&".join(f"{key}={quote(value, safe='/,:')}" for key, value in self.options.items())

    @property
    def limit(self) -> int | None:
        """How many images are wanted, None for all."""
        return self.integer("limit", 1) if "limit" in self.options else None

    @property
    def subset(self) -> str | None:
        """`validation` is a fixed random tenth, to choose settings on, and `train` the rest; None for all."""
        return self.choice("subset", SUBSETS, "train") if "subset" in self.options else None

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

    def check(self, own: Sequence[str]) -> Spec:
        """Itself, if it has no options but its own and the common ones, and the values of these fit."""
        self.check_names((*own, *COMMON_OPTIONS))
        _ = self.subset, self.limit, self.size, self.channels, self.skips_bad_images  # each refuses a bad value
        return self


def parse_spec(text: str | Path, more: Mapping[str, str] | None = None) -> Spec:
    """The parsed text or path, with more options; scheme, option names and common options are checked."""
    head, _, tail = (str(text), "", "") if isinstance(text, Path) else text.partition("?")
    match = _HEAD.fullmatch(head)
    scheme, mark, place = (match[1], match[2], match[3] or "") if match else (head, "", "")
    if isinstance(text, Path) or scheme not in OPENERS:
        scheme, mark, place = _kind_of_path(text, head, scheme), ":", head
    opener, options = OPENERS[scheme], {**parse_options(str(text), tail, DataError), **(more or {})}
    if opener.splits:
        if (split := place or "train") not in SPLITS:
            raise DataError(f"{text}: {scheme} has no split {split!r}{did_you_mean(split, SPLITS)}")
        return Spec(scheme, split=split, options=options).check(opener.options)
    if mark != ":" or not place:
        raise DataError(f"{text}: {scheme} needs a path after a colon, {scheme}:PATH")
    return Spec(scheme, path=place, options=options).check(opener.options)


def is_builtin(text: str) -> bool:
    """Whether a text names images of the package or of its cache: no path, and no network."""
    match = _HEAD.fullmatch(text.partition("?")[0])
    return match is not None and match[1] in OPENERS and OPENERS[match[1]].splits


def parse_options(text: str, tail: str, error: type[UserError]) -> dict[str, str]:
    """The options key=value&… at the end of a text."""
    options: dict[str, str] = {}
    for item in filter(None, tail.split("&")):
        key, _, value = item.partition("=")
        if key in options:
            raise error(f"{text}: option {key} is given twice")
        if not value:
            raise error(f"{text}: option {key} has no value, write {key}=VALUE")
        options[key] = unquote(value)
    return options


def _kind_of_path(text: str | Path, head: str, name: str) -> str:
    """The kind of source that a path without one is."""
    if name in ("arrays", "dataset"):
        raise DataError(f"{text}: made of objects in memory, which a text cannot name; give the objects again")
    path = user_path(head)
    try:
        is_folder, is_file = bool(head) and path.is_dir(), path.is_file()
    except (OSError, ValueError):  # too long, or characters that no path has
        is_folder = is_file = False
    if is_folder or (is_file and path.suffix.lower() in _KIND_OF_SUFFIX):
        return "folder" if is_folder else _KIND_OF_SUFFIX[path.suffix.lower()]
    if is_file:
        raise DataError(f"{text} is a file of an unknown kind; a source is one of {', '.join(OPENERS)}")
    if isinstance(text, Path):
        raise DataError(f"{text}: there is no such folder or file")
    raise DataError(f"{text}: there is no source named {name!r}{did_you_mean(name, OPENERS)}")
