"""The face of the library: the lines of its docstring run as they stand, in a script and in a notebook."""

from __future__ import annotations

import doctest
import inspect
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import clustermim as cm

HERE = Path(__file__).parents[1]
LINES = textwrap.dedent((cm.__doc__ or "").partition("import clustermim as cm")[2].partition("Every name")[0])
SCRIPT = "import clustermim as cm\n" + textwrap.dedent(LINES).replace("    ", "").replace("cifar10/", "digits/")


def run(words: list[str], folder: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CLUSTERMIM_HOME": str(cache), "OMP_NUM_THREADS": "1"}
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)


def test_the_lines_of_the_docstring_leave_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    assert SCRIPT.count("cm.") == 7
    done = run([sys.executable, "-c", SCRIPT], folder, tmp_path / "cache")
    assert done.returncode == 0, done.stderr
    assert "transferability" in done.stdout
    assert "linear probe" in done.stdout
    assert list(folder.iterdir()) == []


def test_the_readme_has_the_same_lines() -> None:
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    for line in LINES.strip().splitlines():
        assert line.strip() in readme


def test_the_notebook_runs(tmp_path: Path) -> None:
    import nbclient
    import nbformat

    notebook = nbformat.read(HERE / "examples" / "quickstart.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    shown = [output.data for output in outputs if output.output_type in ("execute_result", "display_data")]
    assert any("<table>" in data.get("text/html", "") for data in shown)  # a result
    assert any("image/png" in data for data in shown)  # a figure
    assert [path.name for path in tmp_path.iterdir() if path.name != "home"] == []  # the cache of the tests


def test_importing_imports_nothing_heavy() -> None:
    code = "import sys, clustermim; print(sorted({'torch', 'numpy', 'PIL'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.mark.parametrize("name", cm.__all__)
def test_every_name_is_there_and_documented(name: str) -> None:
    found = getattr(cm, name)
    assert name in dir(cm)
    assert inspect.getdoc(found)


# A published tokenizer needs its files, and a schedule is a part of other examples.
EXAMPLES = [name for name in cm.__all__ if name not in ("ExternalTokenizer", "Schedule")]


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_of_the_docstrings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = getattr(cm, name)
    names = {**vars(sys.modules[found.__module__]), "cm": cm}
    test = doctest.DocTestParser().get_doctest(inspect.getdoc(found) or "", names, name, None, None)
    assert test.examples, f"{name} has no example"
    assert doctest.DocTestRunner().run(test).failed == 0


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'pretain'"):
        cm.pretain  # noqa: B018
