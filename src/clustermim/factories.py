"""`module:package.module:factory`: a user's own code, imported and called where they ask for it by name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from clustermim.errors import UserError, format_error

PREFIX = "module:"


def call_factory(spec: str, error: type[UserError], wanted: str) -> tuple[Callable[..., Any], bytes]:
    """What the factory that a text names makes, a callable, and the code of its module, which may lie in this folder.

    `wanted` says, in an error, what the callable should be.
    """
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
