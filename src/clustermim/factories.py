"""`module:package.module:factory`: a user's own code, imported and called where they ask for it by name.

Such a name counts where the user typed it: on the command line, or as an argument in Python. Files hold names too,
those of saved tokenizers, studies and configurations, and may be a stranger's: whoever reads one asks `check_names`.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any

from clustermim.errors import UserError, format_error

PREFIX = "module:"
TRUST = "CLUSTERMIM_TRUST_CODE"  # 1 in the environment: files may name code

_NAME = re.compile(PREFIX + r"[^\s,\]'\"]*")
_typed: set[str] = set()  # names that the user gave in this process
_trusted: ContextVar[bool] = ContextVar("trusted", default=False)


@contextmanager
def trust_code() -> Iterator[None]:
    """While the block lasts, files may name code to import, `module:package.module:factory`, as with `--trust-code`.

    >>> import clustermim as cm
    >>> cm.KMeansTokenizer(k=4, patch_size=4, space="features", teacher="hog:?channels=1").fit("digits").save("own")
    >>> with cm.trust_code():
    ...     cm.load_tokenizer("own").vocab_size
    4
    """
    before = _trusted.set(True)
    try:
        yield
    finally:
        _trusted.reset(before)


def note_typed(*values: object) -> None:
    """Remember names that the user gave; files may hold them too."""
    _typed.update(name for value in values if isinstance(value, str) for name in _NAME.findall(value))


def check_names(values: object, where: object, error: type[UserError]) -> None:
    """Refuse names of code among values that a file holds, at any depth, unless the user typed them or trusts it."""
    if isinstance(values, Mapping):
        values = list(values.values())
    if isinstance(values, list | tuple | set):
        for value in values:
            check_names(value, where, error)
        return
    trusted = _trusted.get() or os.environ.get(TRUST) == "1"
    if isinstance(values, str) and values.startswith(PREFIX) and values not in _typed and not trusted:
        remedy = "add --trust-code if you trust who wrote it; in Python, `with clustermim.trust_code():`"
        raise error(f"{where} names code to run, {values}, and was not trusted: {remedy}")


def call_factory(spec: str, error: type[UserError], wanted: str) -> tuple[Callable[..., Any], bytes]:
    """What the factory that a text names makes, a callable, and the code of its module, which may lie in this folder.

    `wanted` says, in an error, what the callable should be.
    """
    note_typed(spec)
    name, _, attribute = spec.removeprefix(PREFIX).partition(":")
    if not name or not attribute:
        raise error(f"{spec} is not of the form {PREFIX}package.module:factory")
    module = _import(spec, name, error)
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise error(f"{spec}: the module {name} has no function {attribute}")
    try:
        made = factory()
    except Exception as problem:  # whatever the user's code raises
        raise error(f"{spec}: {attribute}() failed: {format_error(problem)}; --debug shows where") from problem
    if not callable(made):
        raise error(f"{spec}: {attribute}() gave a {type(made).__name__}, not {wanted}")
    return made, Path(module.__file__).read_bytes() if module.__file__ else b""


def _import(spec: str, name: str, error: type[UserError]) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last: a file here must not replace an installed package
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as problem:  # whatever runs when a module is imported
        raise error(
            f"{spec}: the module {name} cannot be imported ({format_error(problem)}); "
            "install it, or start in its folder"
        ) from problem
