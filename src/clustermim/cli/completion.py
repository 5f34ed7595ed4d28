"""`clustermim completion`: commands, options and their values for the Tab key of a shell."""

from __future__ import annotations

import json
import re
from typing import Literal

from clustermim.cli.help import FILE
from clustermim.stage_table import STAGES

ALWAYS = ("--help", "--debug", "--trust-code", "--verify")
CHOICES = re.compile(r"Literal\[([^]]*)\]")
ZSH = "autoload -U +X bashcompinit && bashcompinit\n"
SCRIPT = """\
_clustermim_words() {{
    case "$1" in
{cases}
    esac
}}
_clustermim() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" command="" found place
    for ((place = 1; place < COMP_CWORD; place++)); do
        case "${{COMP_WORDS[place]}}" in -*) break ;; esac
        case " $(_clustermim_words "$command") " in
            *" ${{COMP_WORDS[place]}} "*) command="${{command:+$command }}${{COMP_WORDS[place]}}" ;;
            *) break ;;
        esac
    done
    found=$(_clustermim_words "$command")
    case "$word/$before" in
        -*) ;;
        */--*) found=$(_clustermim_words "$command $before") ;;
        *) case "$found" in --*) found="" ;; esac ;;
    esac
    COMPREPLY=($(compgen -W "$found" -- "$word"))
}}
complete -o default -F _clustermim clustermim
"""


def completion(shell: Literal["bash", "zsh"]) -> None:
    """Print what completes commands, options and values in a shell. File names complete everywhere else.

    For bash: `clustermim completion bash > ~/.local/share/bash-completion/completions/clustermim`. For zsh:
    `clustermim completion zsh > ~/.clustermim.zsh`, and `source ~/.clustermim.zsh` in ~/.zshrc.

    Args:
        shell: bash or zsh.
    """
    print(make_script(shell), end="")


def make_script(shell: str) -> str:
    """The script of a shell, from the table of stages and the explanations of commands."""
    cases = [f'        "{given}") echo "{" ".join(words)}" ;;' for given, words in find_words().items()]
    return (ZSH if shell == "zsh" else "") + SCRIPT.format(cases="\n".join(cases))


def find_words() -> dict[str, list[str]]:
    """What may follow: after some words of a command, its next; after all, its options; after an option, its values."""
    texts: dict[str, str] = json.loads(FILE.read_text(encoding="utf-8"))
    found: dict[str, list[str]] = {}
    for name in STAGES:
        words = name.split()
        for place, word in enumerate(words):
            known = found.setdefault(" ".join(words[:place]), [])
            known += [word] * (word not in known)
        entries = re.split(r"\n  (?=-)", texts[name].partition("\noptions:")[2])[1:]
        options = {entry.split()[0]: CHOICES.search(" ".join(entry.split())) for entry in entries}
        found[name] = [*(option for option in options if option.startswith("--")), *ALWAYS]
        for option, choices in options.items():
            if choices is not None:
                found[f"{name} {option}"] = re.findall(r"'([^']*)'", choices[1])
    return found
