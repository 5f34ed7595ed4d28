"""Were predictions committed before results? `python -m studies.preregistered` asks git, and says so for each of them.

Of every results/predictions/NAME.json it checks, over all commits that lead to HEAD:

- its hash is right, and no commit and no edit since has another content of it;
- when it was added, no record held a result that it predicts;
- it was there before results/NAME.json: in a parent of the commit that added these, and in every commit that has them.

Who rewrites a history can cheat; who has an older clone, or the date of a push, can see it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clustermim.errors import UserError
from clustermim.studies.comparison import read_checked

HERE = Path(__file__).parents[1]
MISSING = "missing"


def check(root: Path) -> dict[str, list[str]]:
    """What is wrong with each prediction of a repository, by its name; nothing where all is well."""
    if _git(root, "rev-parse", "--is-shallow-repository").strip() == "true":
        raise UserError("this clone has not all commits: get them with `git fetch --unshallow`")
    paths = sorted((root / "results" / "predictions").glob("*.json"))
    return {path.stem: list(problems(root, path)) for path in paths}


def problems(root: Path, path: Path) -> Iterator[str]:
    """What is wrong with one prediction, in sentences."""
    try:
        record = read_checked(path)
    except UserError as error:
        yield str(error)
        return
    name = path.relative_to(root).as_posix()
    parents = {commit: before for commit, *before in map(str.split, _lines(root, "rev-list", "--parents", "HEAD"))}
    predicted, given = contents(root, parents, name), contents(root, parents, f"results/{path.name}")
    (now,) = _lines(root, "hash-object", "--", name)
    if now not in predicted.values():
        yield f"{name} is not committed, or was changed since" if predicted else f"{name} is not committed"
        return
    if changed := [commit for commit, blob in predicted.items() if blob != now]:
        yield f"{name} has another content in commit {changed[-1][:12]}"
    for commit in first(predicted, parents):
        yield from known_results(root, commit, record)
    for commit in first(given, parents):
        if not any(before in predicted for before in parents[commit]):
            yield f"results/{path.name} came with commit {commit[:12]}, and no commit before it has {name}"
    if without := [commit for commit in given if commit not in predicted]:
        yield f"commit {without[0][:12]} has results/{path.name} without {name}"


def contents(root: Path, commits: dict[str, list[str]], name: str) -> dict[str, str]:
    """The hash of a file's content in each commit that has it, newest first."""
    asked = "".join(f"{commit}:{name}\n" for commit in commits)
    answers = _git(root, "cat-file", "--batch-check=%(objectname)", stdin=asked).splitlines()
    found = zip(commits, answers, strict=True)
    return {commit: answer for commit, answer in found if not answer.endswith(MISSING)}


def first(having: dict[str, str], parents: dict[str, list[str]]) -> list[str]:
    """The commits that have a file, and no parent that has it: they added it."""
    return [commit for commit in having if not any(before in having for before in parents[commit])]


def known_results(root: Path, commit: str, record: dict[str, Any]) -> Iterator[str]:
    """A record of a commit that holds a cell which was only to be predicted, if there is one."""
    keys = [word for key in record["cells"] for word in ("-e", f'"{key}"')]
    records = ("results/*.json", ":(exclude)results/predictions")
    found = _git(root, "grep", "-l", "-F", *keys, commit, "--", *records, fine=(0, 1)).splitlines()
    if found:
        yield f"commit {commit[:12]}, which added the prediction, has results of it in {found[0].partition(':')[2]}"


def _lines(root: Path, *words: str) -> list[str]:
    return _git(root, *words).splitlines()


def _git(root: Path, *words: str, stdin: str = "", fine: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run(["git", "-C", str(root), *words], input=stdin, capture_output=True, text=True, check=False)
    if done.returncode not in fine:
        raise UserError(f"git {words[0]} in {root}: {' '.join(done.stderr.split())}")
    return done.stdout


def main(root: Path = HERE) -> int:
    """Print what was found; 1 where something is wrong."""
    found = check(root)
    for name, wrong in found.items():
        print("\n".join(f"{name}: {text}" for text in wrong) or f"{name}: predicted before its results")
    if not found:
        print(f"{root / 'results' / 'predictions'} holds no predictions")
    return int(any(found.values()))


if __name__ == "__main__":
    try:
        sys.exit(main(*map(Path, sys.argv[1:])))
    except UserError as error:
        sys.exit(f"error: {error}")
