"""From typed functions to a command line: jsonargparse, with dashes, near misses and one-line errors."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple, NoReturn

from jsonargparse import ArgumentParser

from clustermim.errors import ConfigError, did_you_mean


class Command(NamedTuple):
    """A function, by "module:name" so that it is imported only when called, and what it does in a few words."""

    target: str
    about: str
    positional: tuple[str, ...] = ()  # parameters written without their name

    def load(self) -> Callable[..., Any]:
        module, name = self.target.split(":")
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return function


Commands = dict[str, "Command | Commands"]


class Parser(ArgumentParser):
    """A parser that raises its errors and shows options with dashes."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise ConfigError(readable(message, [action.dest for action in self._actions]))

    def format_help(self, *args: Any, **kwargs: Any) -> str:
        text = super().format_help(*args, **kwargs)
        return re.sub(r"--(?!print_config)[a-z0-9]+(_[a-z0-9]+)+", lambda found: _dashed(found[0]), text)


def find(commands: Commands, words: Sequence[str]) -> tuple[list[str], Command | Commands, list[str]]:
    """Follow the words into the commands: the path, what it leads to, and the words that are left."""
    path: list[str] = []
    found: Command | Commands = commands
    rest = list(words)
    while isinstance(found, dict) and rest and not rest[0].startswith("-"):
        word = rest.pop(0)
        if word not in found:
            raise ConfigError(
                f"there is no command '{' '.join(['clustermim', *path, word])}'{did_you_mean(word, found)}"
            )
        path.append(word)
        found = found[word]
    return path, found, rest


def call(path: Sequence[str], command: Command, words: Sequence[str]) -> None:
    """Parse the words for a command's function and call it."""
    command.load()(**options_of(path, command, words))


def options_of(path: Sequence[str], command: Command, words: Sequence[str]) -> dict[str, Any]:
    """All options of a command's function, as the words give them."""
    function = command.load()
    parameters = inspect.signature(function, eval_str=True).parameters
    parser = Parser(prog=" ".join(["clustermim", *path]), allow_abbrev=False)
    parser.add_argument("--config", action="config", help="a YAML file with any of the options")
    for name in command.positional:
        about = re.search(rf"^ *{name}: (.*)$", function.__doc__ or "", re.MULTILINE)
        annotation = parameters[name].annotation
        # several words in a row, each as it stands
        kind: dict[str, Any] = {"type": str, "nargs": "+"} if "list[" in str(annotation) else {"type": annotation}
        parser.add_argument(name, **kind, help=about[1] if about else None)
    parser.add_function_arguments(function, skip=set(command.positional), fail_untyped=True)
    flags = {name for name, parameter in parameters.items() if parameter.annotation in (bool, bool | None)}
    lists = {name for name, parameter in parameters.items() if "list[" in str(parameter.annotation)}
    options = parser.parse_args(normalise(words, list(parameters), flags, lists)).as_dict()
    check_seed(options)
    return {name: options[name] for name in parameters}


def resolve(
    function: Callable[..., Any], options: dict[str, Any], where: str, skip: Iterable[str] = ()
) -> dict[str, Any]:
    """The options of a function with all its defaults, checked as on the command line; `where` begins an error."""
    try:
        resolved: dict[str, Any] = _options_of(function, frozenset(skip)).parse_object(options).as_dict()
        check_seed(resolved)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return resolved


def check_seed(options: dict[str, Any]) -> None:
    """Refuse a seed that no generator takes."""
    seed = options.get("seed")
    if isinstance(seed, int) and not 0 <= seed < 2**63:
        raise ConfigError(f"--seed {seed} is not in 0 … 2⁶³ − 1")


@cache
def _options_of(function: Callable[..., Any], skip: frozenset[str]) -> Parser:
    """A parser of a function's options, made once: a study asks for the same ones for every cell."""
    parser = Parser(allow_abbrev=False)
    parser.add_function_arguments(function, skip=set(skip), fail_untyped=True)
    return parser


def normalise(words: Sequence[str], names: Sequence[str], flags: Iterable[str], lists: Iterable[str] = ()) -> list[str]:
    """Options as jsonargparse knows them.

    `--patch-size` is `--patch_size`, a bare flag `--flag=true`, an item of a list (`--track wandb`) `--track+ wandb`.
    """
    known = [*names, "config", "print_config", "help"]
    result = []
    for place, word in enumerate(words):
        name, equals, value = word[2:].partition("=")
        name = name.replace("-", "_")
        if not word.startswith("--") or not name:
            result.append(word)
            continue
        if name not in known:
            raise ConfigError(f"there is no option {_option(name)}{did_you_mean('--' + name, map(_option, known))}")
        following = words[place + 1] if place + 1 < len(words) else ""
        if name in flags and not equals and following.lower() not in ("true", "false"):
            equals, value = "=", "true"
        if name in lists and not (value or following).startswith("["):
            name += "+"
        result.append(f"--{name}{equals}{value}")
    return result


def readable(message: str, names: Sequence[str]) -> str:
    """jsonargparse's message in one line, in the words of the command line."""
    text = " ".join(message.split())
    unknown = re.search(r"Option '([^']+)' is not accepted", text)
    if unknown:
        return (
            f"the configuration has no key {unknown[1]!r}{did_you_mean(unknown[1], [n for n in names if n != 'help'])}"
        )
    missing = re.search(r"the following arguments are required: (.*)", text)
    if missing:
        return f"missing: {missing[1]}; see --help"
    text = re.sub(r"Parser key \"([a-z_]+)\":", lambda found: _dashed(f"--{found[1]}:"), text)
    union = (
        r"Does not validate against any of the Union subtypes.*(Expected a typing\.Literal\[[^]]*\]).*Given value: (.*)"
    )
    text = re.sub(union, r"\1. Got value: \2", text)
    text = re.sub(r"Expected a <class '(\w+)'>\. Got value: (.*)", r"expected \1, got \2", text)
    return re.sub(r"Expected a typing\.Literal\[(.*?)\]\. Got value: (.*)", r"expected one of \1, got \2", text)


def overview(path: Sequence[str], commands: Commands) -> str:
    """What can follow these words, a line each."""
    lines = [f"usage: {' '.join(['clustermim', *path])} COMMAND [--option VALUE …]", ""]
    for name, command in commands.items():
        about = command.about if isinstance(command, Command) else " | ".join(command)
        lines.append(f"  {name:<12}{about}")
    return "\n".join([*lines, "", "Each command explains its options with --help."])


def _option(name: str) -> str:
    return _dashed(f"--{name}")


def _dashed(text: str) -> str:
    return text.replace("_", "-") if text != "--print_config" else text
