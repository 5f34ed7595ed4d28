"""The exceptions a user can cause. The command line shows each as one line and exits with code 2.

A message says what is wrong, where, and what to do about it, in one line.
"""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can mend."""


class ConfigError(UserError):
    """An option or a key of a configuration file has no acceptable value."""


class DataError(UserError):
    """A data source is missing, empty, damaged or does not fit what it is used for."""


class TokenizerError(UserError):
    """A tokenizer cannot be fitted, saved or loaded, or does not fit the images it is given."""


class TeacherError(UserError):
    """A teacher is not there, cannot be read, or does not fit the images or the grid it is used for."""


class RunError(UserError):
    """A run folder cannot be written, or what it holds is not what was asked for."""


class WriteError(RunError):
    """The file `path` cannot be written; `reason` is what the system says."""

    def __init__(self, path: object, reason: str, advice: str = "free some space, or choose another place") -> None:
        super().__init__(f"cannot write {path}: {reason}; {advice}")
        self.path, self.reason = path, reason


class BusyError(RunError):
    """Another process is at work in a run folder."""


class MissingExtraError(UserError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional dependency: pip install 'clustermim[{extra}]'")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown word: the nearest known one, or all of them.

    >>> did_you_mean("kk", ["k", "out"])
    '; did you mean k?'
    """
    known = list(known)
    close = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else f"; there are: {', '.join(known)}"


def format_error(problem: BaseException) -> str:
    """An exception of somebody else's code in one line."""
    return f"{type(problem).__name__}: {' '.join(str(problem).split())[:200]}"
