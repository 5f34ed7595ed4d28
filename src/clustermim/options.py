"""Options that several functions share: a dataclass each, and functions that take their fields one by one.

    @dataclass(frozen=True)
    class Schedule:
        '''How long to train.

        Args:
            epochs: passes over the data.
        '''
        epochs: int = 20

    @flat
    def pretrain(source, schedule: Schedule = Schedule(epochs=7)) -> Encoder: ...

    pretrain(images, epochs=3)                     # a field
    pretrain(images, schedule=Schedule(epochs=3))  # the whole

The command line, studies and `help(pretrain)` see the fields, with the defaults of the function's own default value.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from functools import wraps
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from clustermim.errors import ConfigError, did_you_mean

R = TypeVar("R")


def flat(function: Callable[..., R]) -> Callable[..., R]:
    """Let parameters whose default is a dataclass be given field by field; signature and docstring show the fields."""
    own = inspect.signature(function, eval_str=True)
    called = function.__qualname__.removesuffix(".__init__") if function.__name__ == "__init__" else function.__name__
    groups = {name: p.default for name, p in own.parameters.items() if is_dataclass(p.default)}
    homes = {field.name: name for name, group in groups.items() for field in fields(group)}

    @wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        for name, value in given.items():
            if name not in own.parameters and name not in homes:
                known = [n for n in (*own.parameters, *homes) if n not in groups]
                raise ConfigError(f"{called} has no option {name!r}{did_you_mean(name, known)}")
            if name in choices and value not in choices[name]:
                few = ", ".join(str(choice) for choice in choices[name] if choice is not None)
                raise ConfigError(f"{called}: {name} is one of {few}, not {value!r}")
        parts = {name: given.pop(name) for name in list(given) if name in homes}
        bound = own.bind(*args, **given)
        bound.apply_defaults()
        for name in groups:
            changes = {field: value for field, value in parts.items() if homes[field] == name}
            if changes:
                bound.arguments[name] = replace(bound.arguments[name], **changes)
        return function(*bound.args, **bound.kwargs)

    shown = _parameters(own, groups)
    choices = {parameter.name: found for parameter in shown if (found := _choices(parameter.annotation))}
    call.__signature__ = own.replace(parameters=shown)  # type: ignore[attr-defined]
    call.__doc__ = _documentation(function, groups)
    del call.__wrapped__  # whose parameters are not the fields
    return call


def flattened(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with the fields of dataclasses in their place, as a run folder's configuration holds them."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        found |= asdict(value) if is_dataclass(value) and not isinstance(value, type) else {name: value}
    return found


def _choices(annotation: Any) -> tuple[Any, ...]:
    """The values of a Literal, with None where that is one of them too; of any other type, none."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    if not all(get_origin(part) is Literal or part is type(None) for part in parts):
        return ()
    return tuple(value for part in parts for value in get_args(part) or (None,))


def _parameters(own: inspect.Signature, groups: Mapping[str, Any]) -> list[inspect.Parameter]:
    """Positional parameters first, then all others by keyword, fields in the place of their dataclass."""
    found: list[inspect.Parameter] = []
    for name, parameter in own.parameters.items():
        if name not in groups:
            found.append(parameter)
            continue
        types = inspect.get_annotations(type(groups[name]), eval_str=True)
        found += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=getattr(groups[name], field.name),
                annotation=types[field.name],
            )
            for field in fields(groups[name])
        ]
    return sorted(found, key=lambda parameter: parameter.kind)


def _documentation(function: Callable[..., Any], groups: Mapping[str, Any]) -> str:
    """The docstring with a line for every field; the function's own line about a field comes before the dataclass's."""
    about = (function.__doc__ or "").partition("    Args:\n")[0]
    own = describe_arguments(function)
    lines = {name: text for group in groups.values() for name, text in describe_arguments(group).items()}
    lines = {name: text for name, text in own.items() if name not in groups} | {
        name: text for name, text in lines.items() if name not in own
    }
    entries = [f"        {name}: {text}" for name, text in lines.items()]
    return "\n".join([about.rstrip(), "", "    Args:", *entries, "    "])


def describe_arguments(documented: Any) -> dict[str, str]:
    """What a docstring says of each argument, on one line."""
    rest = (inspect.getdoc(documented) or "").partition("Args:\n")[2]
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", rest, re.MULTILINE)
    return {name: " ".join(about.split()) for name, about in found}
