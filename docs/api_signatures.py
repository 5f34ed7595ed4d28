"""For the page of the Python interface: options one by one, and examples as code.

Signature and docstring of a function of `options.flat` are made when it is imported; a reader of its source alone sees
dataclasses. And what follows >>> is fenced, since Markdown takes it for a quotation.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*?(?=\n\n|\Z)", re.M | re.S)


class CallSignatures(griffe.Extension):
    """What a user calls, as it is called."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        if any(str(decorator.value) == "flat" for decorator in func.decorators):
            made = griffe.dynamic_import(func.path)
            func.parameters = griffe.Parameters(*map(parameter, inspect.signature(made).parameters.values()))
            func.docstring = griffe.Docstring(inspect.getdoc(made) or "", parent=func)
        self.on_class(cls=func)

    def on_class(self, *, cls: griffe.Object, **_: Any) -> None:
        if cls.docstring:
            cls.docstring.value = EXAMPLE.sub("```pycon\n\\g<0>\n```", inspect.cleandoc(cls.docstring.value))


def parameter(found: inspect.Parameter) -> griffe.Parameter:
    """A parameter as griffe has it."""
    annotation = None if found.annotation is found.empty else inspect.formatannotation(found.annotation)
    default = None if found.default is found.empty else repr(found.default)
    kind = griffe.ParameterKind(found.kind.description)
    return griffe.Parameter(found.name, annotation=annotation, kind=kind, default=default)
