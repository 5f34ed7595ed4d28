"""The command line: the table of stages, and how a command ends."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from typing import Any

from clustermim import __version__
from clustermim.errors import ConfigError, UserError
from clustermim.factories import check_names, note_typed, trust_code
from clustermim.parsing import find, options_of, overview
from clustermim.stage_table import FOLLOWING, STAGES, Stage

FLAGS = ("--debug", "--trust-code", "--verify")  # of all commands


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; whatever the user can mend is one line on stderr and exit code 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug, trust, verify = (flag in words for flag in FLAGS)
    for name in ("SIGTERM", "SIGHUP"):  # unwinds, so that nothing half-written stays; nohup ignores the second
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        with trust_code() if trust else nullcontext(), _verified() if verify else nullcontext():
            run([word for word in words if word not in FLAGS])
    except UserError as error:
        if debug:
            raise
        return fail(str(error))
    except BrokenPipeError:  # the reader of our output, such as `head`, has enough
        sys.stderr.close()
        return 0
    except OSError as error:
        if debug or error.errno is None:
            raise
        return fail(f"{error.filename or 'input or output'}: {error.strerror}")
    except KeyboardInterrupt:
        if debug:
            raise
        print("interrupted; nothing half-written was left", file=sys.stderr)
        return 130
    return 0


def _verified() -> AbstractContextManager[None]:
    from clustermim.data.cache import verify_files  # numpy and torch, which help needs not

    return verify_files()


def run(words: list[str]) -> None:
    """Find the command and call it."""
    if words and words[0] == "--version":
        print(f"clustermim {__version__}")
        return
    name, stage, rest = find(STAGES, words)
    if stage is not None and not {"-h", "--help"}.isdisjoint(rest):
        from clustermim.cli.help import read_help  # here, for `python -m clustermim.cli.help`

        print(read_help(name), end="")
    elif stage is not None:
        note_typed(*rest)
        options = options_of(name, stage, rest)
        check_names(options, "the file of --config", ConfigError)  # what was not typed is from there
        call(name, stage, options)
    elif not rest or rest[0] in ("-h", "--help"):
        print(overview(STAGES, name))
    else:
        raise ConfigError(f"{rest[0]} must come after a command; see clustermim --help")


def call(name: str, stage: Stage, options: dict[str, Any]) -> None:
    """Call a stage, together with other ranks under torchrun, and print what it returns and what could follow."""
    from clustermim.distributed import process_group, rank  # imports torch, which help needs not
    from clustermim.progress import log_info
    from clustermim.runs import to_json

    json, stdout = options.pop("json", False), sys.stdout
    with process_group(), redirect_stdout(sys.stderr) if json else nullcontext():
        if "device" in options:  # refused before anything is read
            from clustermim.training.devices import find_device

            find_device(options["device"])
        if options.get("data"):
            log_info(f"{name}: opening {options['data']}")  # what follows may be silent for seconds
        result = stage.load()(**options)
        if json and result is None and rank() == 0:
            raise ConfigError("these options give no result to print: leave out --json")
        if result is not None and rank() == 0:
            print(to_json(result.to_dict()) if json else result, file=stdout)
        if name in FOLLOWING and rank() == 0 and not json:
            quoted = {option: shlex.quote(str(value)) for option, value in options.items()}
            print("next: clustermim", FOLLOWING[name].format(result=result, **quoted))


def fail(message: str) -> int:
    """One line, whatever the message holds."""
    print("error: " + " ".join(message.split()), file=sys.stderr)
    return 2
