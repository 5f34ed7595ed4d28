"""What is built to be installed: a wheel with the whole package and nothing else, and the archive it is built from."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest

from clustermim import __version__

HERE = Path(__file__).parents[1]
PACKAGE = HERE / "src" / "clustermim"
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, 'build_' + sys.argv[1])(sys.argv[2])"
FILES = ("pyproject.toml", "README.md", "LICENSE")


def build(kind: str, folder: Path, out: Path) -> Path:
    """Build a wheel or an sdist of a folder, with what is installed here."""
    done = subprocess.run([sys.executable, "-c", BUILD, kind, str(out)], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (made,) = out.iterdir()
    return made


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tarfile.TarFile]:
    """The source archive of a clean copy of the repository."""
    copy, out = tmp_path_factory.mktemp("copy") / "clustermim", tmp_path_factory.mktemp("sdist")
    copytree(PACKAGE, copy / "src" / "clustermim", ignore=ignore_patterns("__pycache__"))
    copytree(HERE / "tests" / "cli", copy / "tests", ignore=ignore_patterns("__pycache__"))
    for name in FILES:
        (copy / name).write_bytes((HERE / name).read_bytes())
    with tarfile.open(build("sdist", copy, out)) as archive:
        yield archive


def test_the_wheel_of_the_source_archive_has_the_whole_package(sdist: tarfile.TarFile, tmp_path: Path) -> None:
    root = f"clustermim-{__version__}"
    names = set(sdist.getnames())
    assert {f"{root}/{name}" for name in FILES} <= names
    sdist.extractall(tmp_path, filter="data")
    (tmp_path / "out").mkdir()
    with zipfile.ZipFile(build("wheel", tmp_path / root, tmp_path / "out")) as wheel:
        packed = {name for name in wheel.namelist() if not name.startswith(f"{root}.dist-info/")}
        assert f"{root}.dist-info/licenses/LICENSE" in wheel.namelist()
        assert b"clustermim = clustermim.cli:main" in wheel.read(f"{root}.dist-info/entry_points.txt")
    files = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*") if path.is_file()]
    assert packed == {f"clustermim/{path.as_posix()}" for path in files if "__pycache__" not in path.parts}
