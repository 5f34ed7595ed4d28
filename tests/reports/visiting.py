"""An open page of a report, for the tests in a browser."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Browser, Page


class Visit:
    """An open page, and what it said and asked for."""

    def __init__(self, browser: Browser, address: str, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page: Page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.set_default_timeout(60_000)  # a busy machine must not fail a test
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: self.said.append(dialog.message))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(address)

    def column(self, section: str, place: int) -> list[str]:
        """The first line of each cell of a column."""
        cells = self.page.locator(f"#{section} tbody tr > :nth-child({place})").all_inner_texts()
        return [cell.split("\n")[0] for cell in cells]

    def pressed(self) -> str | None:
        return self.page.locator('#tokens [aria-pressed="true"]').get_attribute("data-token")
