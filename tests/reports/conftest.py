"""Images of any shape for the tests of reports, and a page of everything in a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, sync_playwright
from toy_runs import everything
from visiting import Visit

from browser import find_browser, missing, required
from clustermim.reports.page import report


@pytest.fixture
def npz(tmp_path: Path, noise: Callable[..., Any]) -> Callable[..., str]:
    """A function that saves random images of a shape (n, C, H, W), and gives the text that opens them."""

    def write(*shape: int, name: str = "images", **arrays: Any) -> str:
        np.savez(tmp_path / f"{name}.npz", images=noise(*shape), **arrays)
        return f"npz:{tmp_path}/{name}.npz?layout=nchw"

    return write


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = find_browser()
    if path is None and required():
        pytest.fail(missing())
    if path is None:
        pytest.skip(missing())
    with sync_playwright() as playwright:
        # A sandbox needs rights that root in a container has not; the page is our own.
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page about everything, written once."""
    folder = everything(tmp_path_factory.mktemp("runs") / "all")
    page = folder.parent / "report.html"
    report([str(folder)], str(page), trust_runs=True)
    return page.as_uri()


@pytest.fixture
def visit(browser: Browser, address: str) -> Iterator[Visit]:
    visit = Visit(browser, address, viewport={"width": 1200, "height": 900}, color_scheme="light")
    yield visit
    visit.context.close()
    assert visit.said == []  # neither an error nor an alert, whatever the names say
    assert [url for url in visit.asked if not url.startswith(("data:", "blob:"))] == [address]
