"""The pages of `llmbench site` as their readers have them: both themes, on a phone, without a script, as Jenkins serves
them, sorted and filtered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nightly import FP8, LAST
from remembered import ID

JENKINS = "sandbox; default-src 'none'; img-src 'self'; style-src 'self';"
"""https://www.jenkins.io/doc/book/system-administration/security/configuring-content-security-policy/"""

PAGES = ("index.html", f"configurations/{ID}.html", f"configurations/{FP8.id}.html", "compare")

Open = Callable[..., Any]
FindViolations = Callable[..., list[tuple[str, str]]]


@pytest.fixture
def opened(chromium: Any, site: Path) -> Iterator[Open]:
    """Open a page of the site in a context with these settings; anything on the console fails the test."""
    contexts, told = [], list[str]()

    def open_page(name: str = "index.html", **context: Any) -> Any:
        contexts.append(chromium.new_context(**context))
        page = contexts[-1].new_page()
        page.on("console", lambda message: told.append(message.text))
        page.on("pageerror", lambda error: told.append(str(error)))
        page.goto(locate(site, name).as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert told == []


def locate(site: Path, name: str) -> Path:
    return next((site / name).iterdir()) if name == "compare" else site / name


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing(opened: Open, find_violations: FindViolations, name: str) -> None:
    """The dark theme changes only colours."""
    page = opened(name, color_scheme="light", bypass_csp=True)  # the page's policy forbids the script of axe-core
    assert find_violations(page, least=20) == []
    page.emulate_media(color_scheme="dark")
    assert find_violations(page, least=0, rules=["color-contrast"]) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_phone_scrolls_the_tables_and_not_the_page(opened: Open, name: str) -> None:
    page = opened(name, viewport={"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.slow
def test_the_sum_of_all_changes_is_seen_on_a_phone_without_scrolling(opened: Open) -> None:
    page = opened(viewport={"width": 390, "height": 800})
    cell = page.locator("#table tbody tr td.number").first
    seen = cell.bounding_box()
    assert cell.inner_text() == "+8.0 %"
    assert seen["x"] + seen["width"] <= 390


@pytest.mark.slow
def test_all_is_there_without_a_script(opened: Open) -> None:
    page = opened(java_script_enabled=False)
    assert page.locator("#table tbody tr").count() == 4
    assert page.locator("#table tbody tr").first.locator("td.night").count() == 14
    assert page.locator("svg.strip").count() == 4
    assert not page.locator("#filter").is_visible()
    page.locator("#table tbody a", has_text=ID).first.click()
    assert page.locator("tbody tr[id]").count() == 30
    page.get_by_role("link", name="Compare it with the last one").click()
    assert page.get_by_text("B is slower").first.is_visible()
    page.get_by_role("link", name="All configurations").click()
    assert page.locator("#table tbody tr").count() == 4


@pytest.mark.slow
def test_a_red_night_opens_its_line(opened: Open) -> None:
    page = opened()
    page.get_by_role("link", name=f"{LAST.date()} REGRESSION").first.click()
    page.wait_for_url(f"**/{ID}.html#n{LAST.date()}")
    assert page.locator(":target").get_by_text("REGRESSION").is_visible()


@pytest.mark.slow
def test_it_reads_as_jenkins_serves_it(chromium: Any, site: Path) -> None:
    """Neither style nor script: drawings have their size, and every night its sign."""
    context = chromium.new_context()
    page = context.new_page()
    headers = {"Content-Security-Policy": JENKINS, "Content-Type": "text/html; charset=utf-8"}
    body = (site / "index.html").read_text(encoding="utf-8")
    page.route("http://ci.invalid/**", lambda route: route.fulfill(headers=headers, body=body))
    page.goto("http://ci.invalid/index.html")
    assert page.locator("body").evaluate("body => getComputedStyle(body).fontFamily") != "system-ui, sans-serif"
    box = page.locator("svg").first.bounding_box()
    assert (box["width"], box["height"]) == (220, 36)
    assert page.locator("#table tbody tr").first.locator("td").last.inner_text() == "\N{MULTIPLICATION X}"
    context.close()


@pytest.mark.slow
def test_the_grid_sorts_and_filters(opened: Open) -> None:
    page = opened()
    names = "#table tbody tr:visible > :nth-child(2)"
    assert page.locator(names).first.inner_text() == ID
    page.locator("#table thead").get_by_role("button", name="Step time").click()
    assert page.locator(names).first.inner_text() == FP8.id
    page.get_by_role("checkbox", name="green").uncheck()
    assert page.locator("#shown").inner_text() == "3 of 4 shown"
    page.get_by_label("Filter").fill("bf16")
    assert page.locator(names).all_inner_texts() == [ID]
    assert page.locator("thead button").count() == 6


@pytest.mark.slow
def test_the_page_of_a_configuration_has_one_wide_chart(opened: Open) -> None:
    page = opened(f"configurations/{ID}.html", viewport={"width": 1200, "height": 800})
    box = page.locator("svg").bounding_box()
    assert box["width"] > 900


@pytest.mark.slow
def test_a_script_of_a_message_does_not_run(opened: Open) -> None:
    page = opened(f"configurations/{FP8.id[:-3]}256.html")
    assert "owned" not in page.title()
    assert page.get_by_text("<script>document.title='owned'</script>").count() == 1
