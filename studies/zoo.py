"""Every method with its command, and its result where a record has one: `python -m studies.zoo` makes docs/methods.md.

A result is taken from a record when the cell there has the same key: the same stage with the same complete options.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clustermim.files import write_atomic
from clustermim.parsing import option_word
from clustermim.stage_table import STAGES
from clustermim.studies.cells import Cell, expand
from clustermim.studies.description import StageEntry, Study, reference
from clustermim.studies.presets import open_study, presets

HERE = Path(__file__).parents[1]
PAGE = HERE / "docs" / "methods.md"
CURRENT = "cifar10-discretisation"  # the record that today's code and rules made
HEAD = """# The method zoo

Written by `python -m studies.zoo` from the presets of the package and the records under `results/`.

A preset is a method from data to accuracy, a short list of stages on CIFAR-10 at CPU size. One command runs it, and its
options give it other images:

```shell
clustermim run --list
clustermim run mae --data "folder:photos/train?size=64" --patch-size 8 --epochs 50
```

ClusterMIM White and Iterated ClusterMIM are ours, the others are the paper's or known methods. Those that were run,
with micro, 7 epochs, one seed:"""
CAVEAT = """**This table ranks nothing.** One seed each: differences below a point say nothing. Only the rows of
[cifar10-discretisation](results.md#cifar10-discretisation) were made with today's random views and masks; the others
are of earlier versions. U-MAE, SimMIM and the teachers of MaskFeat, PeCo and ClusterMIM MAE predict raw pixels. Minutes
are of all trainings and fits of a method, by the clock, on two cores that did other work too. A method without numbers
was not run as its preset has it: `clustermim-dino` and `clustermim-deit` need weights from the hub; tokens of a dVAE
and a VQGAN were measured in MAE's layout only ([results](results.md#cifar10-methods)). Fair controls with three seeds
are on the [front page](../README.md#what-tokens-buy)."""


def document(records: Path) -> str:
    """The whole page."""
    known = recorded(records)
    found = {name: open_study(name) for name in presets()}
    lines = ["| method | linear probe | class token | kNN | minutes | record |", "| --- " * 6 + "|"]
    for name, study in found.items():
        lines.append(f"| [{study.title}](#{name}) | {' | '.join(result(study, known))} |")
    sections = [section(name, study) for name, study in found.items()]
    return "\n\n".join([HEAD, "\n".join(lines), CAVEAT, *sections]) + "\n"


def recorded(records: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """The cells of all records, by their keys and the names of the records, today's first."""
    known: dict[str, dict[str, dict[str, Any]]] = {}
    for path in sorted(records.glob("*.json"), key=lambda path: (path.stem != CURRENT, path.stem != "cifar10-methods")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            known.setdefault(cell["key"], {})[path.stem] = cell
    return known


def result(study: Study, known: dict[str, dict[str, dict[str, Any]]]) -> list[str]:
    """Accuracies, minutes and the record they are from; dashes where none holds all of them."""
    cells = {cell.name: cell for cell in expand(study)}
    probe, knn = (known.get(cells[name].key, {}) for name in ("probe", "knn"))
    for record in probe:
        if record in knn:
            accuracies = probe[record]["results"]["avg"], probe[record]["results"]["cls"], knn[record]["results"]["avg"]
            shown = [f"{100 * found['accuracy']:.2f}" for found in accuracies]
            made = [known[cell.key][record] for cell in cells.values() if is_work(cell) and cell.key in known]
            minutes = sum(max(cell["seconds"], cell["results"].get("training_seconds", 0)) for cell in made) / 60
            return [*shown, f"{minutes:.0f}", f"[{record}](results.md#{record})"]
    return ["–"] * 5


def is_work(cell: Cell) -> bool:
    return cell.stage.startswith("fit") or cell.stage == "pretrain"


def section(name: str, study: Study) -> str:
    """One method: what it is, the command, and its parts as commands of their own."""
    parts = "\n".join(f"clustermim {' '.join(words(entry))}" for entry in study.stages)
    about = " ".join(study.about.split())
    commands = f"```shell\nclustermim run {name}\n```\n\nwhich is\n\n<!-- blocks: parsed -->\n```shell\n{parts}\n```"
    return f'<a id="{name}"></a>\n\n## {study.title}\n\n{about}\n\n{commands}'


def words(entry: StageEntry) -> Iterator[str]:
    """The words of a stage, with its run in a folder of its name."""
    yield entry.stage
    positional = STAGES[entry.stage].positional
    yield from (folder(entry.options[name]) for name in positional)
    for option, value in entry.options.items():
        for item in value if isinstance(value, list) else [value]:
            if option not in positional:
                yield f"{option_word(option)} {folder(item)}"
    if is_work(Cell(entry.name, entry.stage, {}, {}, {}, "")):
        yield f"--out runs/{entry.name}"


def folder(value: Any) -> str:
    """A value as the shell takes it, another stage by its folder."""
    if found := reference(value):
        return shlex.quote(f"runs/{found[0]}{found[1]}")
    return shlex.quote(str(value).lower() if isinstance(value, bool) else str(value))


if __name__ == "__main__":
    write_atomic(PAGE, document(HERE / "results").encode())
