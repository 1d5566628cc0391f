"""The pages of `llmbench site` in both themes, on a phone, and without scripts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.monthly_history import FP8, LAST
from support.remembered import ID

PAGES = (
    "index.html",
    f"configurations/{ID}.html",
    f"configurations/{FP8.id}.html",
    "compare",
)

Open = Callable[..., Any]
FindViolations = Callable[..., list[tuple[str, str]]]


@pytest.fixture
def opened(browse: Open, site: Path) -> Open:
    """Open a page of the site in a context with these settings."""

    def open_page(name: str = "index.html", **context: Any) -> Any:
        return browse(locate(site, name).as_uri(), **context)

    return open_page


def locate(site: Path, name: str) -> Path:
    return next((site / name).iterdir()) if name == "compare" else site / name


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_no_accessibility_violation(
    opened: Open, find_violations: FindViolations, name: str
) -> None:
    """The dark theme only changes colours."""
    page = opened(
        name, color_scheme="light", bypass_csp=True
    )  # the page's policy forbids the script of axe-core
    assert find_violations(page, least=20) == []
    page.emulate_media(color_scheme="dark")
    assert find_violations(page, least=0, rules=["color-contrast"]) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_phone_scrolls_tables_instead_of_the_page(opened: Open, name: str) -> None:
    page = opened(name, viewport={"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.slow
def test_page_is_complete_without_scripts(opened: Open) -> None:
    page = opened(java_script_enabled=False)
    assert page.locator("#table tbody tr").count() == 4
    assert page.locator("#table tbody tr").first.locator("td.night").count() == 14
    assert page.locator("svg.strip").count() == 4
    assert not page.locator("#filter").is_visible()
    page.locator("#table tbody a", has_text=ID).first.click()
    assert page.locator("tbody tr[id]").count() == 30
    page.get_by_role("link", name="Compare it with the newest run").click()
    assert page.get_by_text("B is slower").first.is_visible()
    page.get_by_role("link", name="All configurations").click()
    assert page.locator("#table tbody tr").count() == 4


@pytest.mark.slow
def test_click_on_a_failed_day_opens_its_table_row(opened: Open) -> None:
    page = opened()
    page.get_by_role("link", name=f"{LAST.date()} REGRESSION").first.click()
    page.wait_for_url(f"**/{ID}.html#n{LAST.date()}")
    assert page.locator(":target").get_by_text("REGRESSION").is_visible()
