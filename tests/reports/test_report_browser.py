"""The report in a real browser: it renders in silence, sorts, explores, and fits a phone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page
from visiting import Visit

from browser import find_browser


def test_renders_every_part(visit: Visit) -> None:
    page = visit.page
    assert page.locator("#encoders tbody tr").count() == 6
    assert page.locator("#tokenizers tbody tr").count() == 5
    assert page.locator("figure.choice:visible").count() == 1
    assert page.locator("figure.choice:visible .point").count() == 4
    assert page.locator("#tokens .tile").count() > 0
    assert page.locator("#token .nearest .tile").count() > 0
    page.select_option('select[data-choice="score"]', "alpha")
    page.select_option('select[data-choice="measure"]', "knn avg")
    assert page.locator("figure.choice:visible").get_attribute("data-score") == "alpha"
    assert page.locator("figure.choice:visible").get_attribute("data-measure") == "knn avg"


CHART = {"x": "x", "y": "y", "label": "toy", "lines": [], "band": []}
DRAW = "chart => { const svg = drawChart(chart); document.querySelector('main').prepend(svg); return svg; }"


def draw(page: Page, points: list[tuple[float, float]], groups: list[str]) -> Any:
    """A chart of points in the page."""
    marks = [{"x": x, "y": y, "title": group, "group": group} for (x, y), group in zip(points, groups, strict=True)]
    return page.evaluate_handle(DRAW, {**CHART, "points": marks})


@pytest.mark.parametrize("seed", range(8))
def test_labels_do_not_collide(visit: Visit, seed: int) -> None:
    points = np.random.default_rng(seed).random((12, 2)).tolist()
    chart = draw(visit.page, points, [f"tokenizer {i}" for i in range(12)])
    boxes = chart.evaluate(
        """svg => [".label", "circle"].map(name => [...svg.querySelectorAll(name)].map(one => {
            const { x, y, width, height } = one.getBBox(); return [x, y + 1, x + width, y + height - 1]; }))"""
    )
    labels, circles = boxes
    assert len(labels) > 3
    assert len(circles) == 12
    for i, (left, top, right, bottom) in enumerate(labels):
        for other in [*labels[:i], *circles]:
            assert right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top


def test_points_of_one_group_share_a_label(visit: Visit) -> None:
    chart = draw(visit.page, [(0, 0.2), (1, 0.5), (2, 0.8)], ["same"] * 3)
    assert chart.evaluate("svg => [...svg.querySelectorAll('.label')].map(one => one.textContent)") == ["same"]


@pytest.mark.parametrize("values", [[5.0], [0.0, 0.0], [0.011, 0.012], [-3.0, 900.0], [1e-7, 2e-7], [-1.0, -0.25]])
def test_ticks_are_round_inside_and_increasing(visit: Visit, values: list[float]) -> None:
    chart = draw(visit.page, [(value, 0) for value in values], [""] * len(values))
    ticks, circles = (
        chart.evaluate(
            f"svg => [...svg.querySelectorAll('{name}')].map(one => [one.getAttribute('{at}'), one.textContent])"
        )
        for name, at in (('.tick[text-anchor="middle"]', "x"), ("circle", "cx"))
    )
    places, texts = [float(place) for place, _ in ticks], [text.replace("−", "-").replace(",", "") for _, text in ticks]
    assert 1 <= len(ticks) <= 12
    assert places == sorted(places)
    assert len(set(texts)) == len(texts)
    steps = np.diff([float(text) for text in texts])
    assert np.allclose(steps, steps[0] if len(steps) else 0)
    assert all(62 < float(place) < 466 for place, _ in circles)


def test_sorts_by_click_and_by_key(visit: Visit) -> None:
    page = visit.page
    heading = page.locator("#encoders thead th").nth(2)
    heading.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    values = visit.column("encoders", 3)
    numbers = [float(value) for value in values if value != "–"]
    assert numbers == sorted(numbers, reverse=True)
    assert len(numbers) == 4
    assert values[4:] == ["–", "–"]  # what is missing stays last
    heading.get_by_role("button").press("Enter")
    assert heading.get_attribute("aria-sort") == "ascending"
    assert visit.column("encoders", 3) == [*reversed(values[:4]), "–", "–"]
    name = page.locator("#tokenizers thead th").first
    name.get_by_role("button").click()
    assert name.get_attribute("aria-sort") == "ascending"
    assert visit.column("tokenizers", 1)[1:] == ["kmeans-4", "kmeans-6", "kmeans-9", "kmeans-12"]


def test_the_answer_is_in_the_first_screen(browser: Browser, address: str) -> None:
    for width, height in ((1400, 900), (390, 844)):
        visit = Visit(browser, address, viewport={"width": width, "height": height})
        for part in ("#answer h1", "#answer .lead"):
            box = visit.page.locator(part).bounding_box()
            assert box is not None
            assert box["y"] + box["height"] < height
        assert visit.page.locator("#answer h1").inner_text() == "Predict the tokens of kmeans-12"
        assert visit.page.evaluate("document.documentElement.scrollWidth") == width
        visit.context.close()


def test_curves_are_chosen_by_quantity(visit: Visit) -> None:
    page = visit.page
    options = page.locator('select[data-choice="curves"] option').all_inner_texts()
    assert options == ["loss, by step"]
    assert page.locator("#training .choice:visible .curve").count() == 6
    button = page.locator("#training .legend button").first
    button.click()
    assert page.locator(f'.curve.on[data-run="{button.get_attribute("data-run")}"]').count() == 1


def test_maps_have_the_colours_of_their_tokens(visit: Visit) -> None:
    page = visit.page
    found = page.locator(".map canvas").first.evaluate(
        "canvas => [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data]"
    )
    shown = page.evaluate("JSON.parse(document.querySelector('script.tokenizer-data').textContent)")
    expected = [[*bytes.fromhex(shown["colors"][str(token)]), 255] for token in shown["ids"][0]]
    assert np.array_equal(np.reshape(found, (-1, 4)), expected)
    page.locator(".map").nth(2).click(position={"x": 3, "y": 3})
    assert visit.pressed() == str(shown["ids"][2][0])


def test_explores_tokens_and_patches(visit: Visit) -> None:
    page = visit.page
    page.select_option("#tokenizer", label="kmeans-9")
    tile = page.locator("#tokens .tile").nth(2)
    token = tile.get_attribute("data-token")
    tile.click()
    assert visit.pressed() == token
    assert page.locator("#token h3").inner_text() == f"Token {token}"
    assert page.locator("#token .histogram dt").count() == 4
    shares = [float(text.split()[0]) for text in page.locator("#token .histogram .number").all_inner_texts()]
    assert sum(shares) == pytest.approx(100, abs=2.5)
    framed = [
        path or "" for path in page.locator(".picture .frame").evaluate_all("all => all.map(p => p.getAttribute('d'))")
    ]
    assert sum(bool(path) for path in framed) == int(page.locator("#token .about p").inner_text().split()[-5])
    # The upper left patch of the third image, and then its token's frame is there.
    picture = page.locator(".picture").nth(2)
    picture.click(position={"x": 3, "y": 3})
    chosen = visit.pressed()
    assert page.locator("#token h3").inner_text() == f"Token {chosen}"
    assert (picture.locator(".frame").get_attribute("d") or "").startswith("M0 0h1")


def test_nasty_names_are_shown_as_they_are(visit: Visit) -> None:
    page = visit.page
    names = page.locator("#tokenizer option").all_inner_texts()
    page.select_option("#tokenizer", index=next(i for i, name in enumerate(names) if "onerror" in name))
    shown = page.locator("#token .histogram dt").all_inner_texts()
    assert "</script><script>alert(1)</script>" in shown
    assert "\"double\" & 'single'" in shown


def test_works_by_keyboard(visit: Visit) -> None:
    page = visit.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.locator('#tokens [tabindex="0"]').focus()
    first = visit.pressed()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    second = visit.pressed()
    assert second != first
    assert page.locator("#token h3").inner_text() == f"Token {second}"
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    assert visit.pressed() == first
    picture = page.locator(".picture").first
    picture.focus()
    for key in ("ArrowDown", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    assert "M1 1h1" in (picture.locator(".frame").get_attribute("d") or "")
    assert page.locator("#said").inner_text().startswith(f"Token {visit.pressed()},")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_the_theme_follows_the_system_until_it_is_chosen(visit: Visit) -> None:
    page = visit.page

    def paper() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    light = paper()
    page.emulate_media(color_scheme="dark")
    dark = paper()
    assert dark != light
    page.get_by_role("button", name="Use the light theme").click()
    assert paper() == light
    page.emulate_media(color_scheme="light")
    page.get_by_role("button", name="Use the dark theme").click()
    assert paper() == dark
    page.reload()
    assert paper() == dark
    visit.asked = visit.asked[:1]  # the page itself, again


def test_fits_a_phone(browser: Browser, address: str) -> None:
    visit = Visit(browser, address, viewport={"width": 375, "height": 740}, has_touch=True, is_mobile=True)
    page = visit.page
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    assert page.evaluate("document.body.scrollWidth") == 375
    table = "document.querySelector('#tokenizers .table')"
    assert page.evaluate(f"{table}.scrollWidth > {table}.clientWidth")  # it scrolls inside its frame
    page.locator("#tokens .tile").nth(1).tap()
    assert page.locator("#token h3").inner_text() == f"Token {visit.pressed()}"
    assert visit.said == []
    visit.context.close()


def test_a_browser_is_looked_for_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("browser.own_browser", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_browser() is None
    for name in ("google-chrome", "chromium"):
        (tmp_path / name).touch(mode=0o755)
        assert find_browser() == str(tmp_path / name)
