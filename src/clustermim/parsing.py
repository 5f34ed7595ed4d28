"""From typed functions to a command line: jsonargparse, with dashes, near misses and one-line errors."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from textwrap import fill
from typing import Any, NoReturn

from jsonargparse import ArgumentParser

from clustermim.errors import ConfigError
from clustermim.files import user_path
from clustermim.options import describe_arguments
from clustermim.reading import check_shape, read_yaml
from clustermim.stage_table import OLD_NAMES, OLD_STAGES, Stage, hint


class Parser(ArgumentParser):
    """A parser that raises its errors and shows options with dashes."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise ConfigError(readable(message, [action.dest for action in self._actions]))

    def format_help(self, *args: Any, **kwargs: Any) -> str:
        text = super().format_help(*args, **kwargs)
        return re.sub(r"--(?!print_config)[a-z0-9]+(_[a-z0-9]+)+", lambda found: option_word(found[0][2:]), text)


def find(stages: Mapping[str, Stage], words: Sequence[str]) -> tuple[str, Stage | None, list[str]]:
    """The name that the words begin with, its stage (None of a group of stages, such as `fit`), and the other words."""
    name, rest = "", list(words)
    while name not in stages and rest and not rest[0].startswith("-"):
        known = {other[len(name) :].split()[0]: None for other in stages if not name or other.startswith(f"{name} ")}
        if rest[0] not in known:
            path = f"clustermim {name} {rest[0]}".replace("  ", " ")
            raise ConfigError(f"there is no command '{path}'{hint(rest[0], known, OLD_STAGES)}")
        name = f"{name} {rest.pop(0)}".strip()
    return name, stages.get(name), rest


def options_of(name: str, stage: Stage, words: Sequence[str]) -> dict[str, Any]:
    """All options of a stage, as the words give them; with `json` of one that returns a result."""
    function = stage.load()
    parser = make_parser(function, stage.positional, prog=f"clustermim {name}")
    parameters = inspect.signature(function, eval_str=True).parameters
    flags = {name for name, parameter in parameters.items() if parameter.annotation in (bool, bool | None)}
    lists = {name for name, parameter in parameters.items() if "list[" in str(parameter.annotation)}
    names = [action.dest for action in parser._actions if action.dest in (*parameters, "json")]
    normal = normalise(words, names, {*flags, "json"}, lists)
    check_config(normal)
    options = parser.parse_args(normal).as_dict()
    check_seed(options)
    return {name: options[name] for name in names}


def check_config(words: Sequence[str]) -> None:
    """Refuse a file of --config that is no YAML of names and values, before the library reads it, unbounded."""
    for word, following in itertools.pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        if name == "--config":
            path = user_path(value if equals else following)
            try:
                check_shape(found := read_yaml(path), {str: object}, str(path))
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or error
                raise ConfigError(f"--config {path} cannot be read, or is not YAML: {reason}") from error
            if "config" in found:
                raise ConfigError(f"--config {path} names another configuration: put its options here instead")


@cache
def make_parser(
    function: Callable[..., Any], positional: tuple[str, ...] = (), skip: tuple[str, ...] = (), prog: str = ""
) -> Parser:
    """A parser of a function's parameters, explained as in its docstring; with `prog`, that of a command."""
    about = describe_arguments(function)
    text = re.split(r"\n(?:Args:|>>> )", inspect.getdoc(function) or "")[0]  # without an example
    parser = Parser(prog=prog, allow_abbrev=False, description=" ".join(text.split()))
    if prog:
        parser.add_argument("--config", action="config", help="a YAML file with any of the options")
    signature = inspect.signature(function, eval_str=True)
    for name, parameter in signature.parameters.items():
        if name in skip:
            continue
        kind: dict[str, Any] = {"type": parameter.annotation, "help": about.get(name)}
        if parameter.default is not parameter.empty:
            kind["default"] = parameter.default
        if name not in positional:
            parser.add_argument(f"--{name}", required="default" not in kind, **kind)
        elif "list[" in str(parameter.annotation):  # several words in a row, each as it stands
            parser.add_argument(name, **kind | {"type": str, "nargs": "+"})
        else:
            parser.add_argument(name, **kind | ({"nargs": "?"} if "default" in kind else {}))
    if prog and signature.return_annotation is not None:
        parser.add_argument("--json", type=bool, default=False, help="print one JSON object instead of a table")
    return parser


def resolve(
    function: Callable[..., Any], options: dict[str, Any], where: str, skip: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The options of a function with all its defaults, checked as on the command line; `where` begins an error."""
    try:
        resolved: dict[str, Any] = make_parser(function, skip=skip).parse_object(options).as_dict()
        check_seed(resolved)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return resolved


def check_seed(options: dict[str, Any]) -> None:
    """Refuse a seed that no generator takes."""
    seed = options.get("seed")
    if isinstance(seed, int) and not 0 <= seed < 2**63:
        raise ConfigError(f"--seed {seed} is not in 0 … 2⁶³ − 1")


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
            shown = option_word(name)
            raise ConfigError(f"there is no option {shown}{hint(shown, map(option_word, known))}")
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
    of_study = re.search(r"Spaces not allowed in keys|Parser key \"table\":.*Got value: {", text)
    if of_study or (unknown and unknown[1] in ("title", "stages")):
        return "the configuration is a study: give its file without --config, or its name, as in clustermim run mae"
    if unknown:
        return f"the configuration has no key {unknown[1]!r}{hint(unknown[1], [n for n in names if n != 'help'])}"
    missing = re.search(r"the following arguments are required: (.*)", text)
    if missing:
        return f"missing: {missing[1]}; see --help"
    text = re.sub(r"Parser key \"([a-z_]+)\":", lambda found: f"{option_word(found[1])}:", text)
    union = (
        r"Does not validate against any of the Union subtypes.*(Expected a typing\.Literal\[[^]]*\]).*Given value: (.*)"
    )
    text = re.sub(union, r"\1. Got value: \2", text)
    text = re.sub(r"Expected a <class '(\w+)'>\. Got value: (.*)", r"expected \1, got \2", text)
    text = re.sub(r"Expected a typing\.Literal\[(.*?)\]\. Got value: (.*)", r"expected one of \1, got \2", text)
    new = OLD_NAMES.get(text.rpartition(", got ")[2])
    return f"{text}; it is {new} now" if new else text


def overview(stages: Mapping[str, Stage], group: str = "") -> str:
    """What can follow the word of a group, or the program's name, a line each."""
    lines: dict[str, list[str]] = {}
    for name, stage in stages.items():
        if not group or name.startswith(f"{group} "):
            word, _, rest = name.removeprefix(group).strip().partition(" ")
            lines.setdefault(word, []).append(rest or stage.about)
    width = max(map(len, lines)) + 2
    texts = [f"  {word:<{max(width, 12)}}{' | '.join(about)}" for word, about in lines.items()]
    usage = f"usage: clustermim {group + ' ' if group else ''}COMMAND [--option VALUE …]"
    end = (
        "Each command explains its options with --help. All take --debug, --trust-code (see SECURITY.md), and "
        "--verify: read every file of the images anew, whatever its date."
    )
    return "\n".join([usage, "", *texts, "", fill(end, 100)])


def option_word(name: str) -> str:
    """A parameter as the command line has it."""
    return f"--{name}" if name == "print_config" else f"--{name.replace('_', '-')}"
