"""The HTML report as readers use it: sorting, filters, links, keyboard and themes.

Also on a phone, without scripts, and under the content policy of Jenkins.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SLOW = "grok1_314b-24.11-h100-bf16-8"

JENKINS = "sandbox; default-src 'none'; img-src 'self'; style-src 'self';"
"""https://www.jenkins.io/doc/book/system-administration/security/configuring-content-security-policy/"""

Open = Callable[..., Any]
FindViolations = Callable[..., list[tuple[str, str]]]


@pytest.fixture
def opened(browse: Open, few: Path) -> Open:
    """Open a page at an anchor, in a context with these settings."""

    def open_page(anchor: str = "", path: Path = few, **context: Any) -> Any:
        return browse(f"{path.as_uri()}{anchor}", **context)

    return open_page


def column(page: Any, offset: int) -> list[str]:
    """Return the texts of a column of the verdict table, in its visible rows."""
    cells: list[str] = page.locator(
        f"#table tbody tr:visible > :nth-child({offset})"
    ).all_inner_texts()
    return cells


def sort(page: Any, name: str) -> None:
    page.locator("#table thead").get_by_role("button", name=name, exact=True).click()


@pytest.mark.slow
def test_table_sorts_numbers_and_unknown_values_last(
    opened: Open, report: Path
) -> None:
    page = opened(path=report)
    sort(page, "GPUs")
    assert (
        page.get_by_role("columnheader", name="GPUs").get_attribute("aria-sort")
        == "ascending"
    )
    *texts, unmatched = column(page, 8)
    assert unmatched == "-"
    sizes = [int(text) for text in texts]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (8, 2048)
    sort(page, "GPUs")
    assert [int(text) for text in column(page, 8)[:-1]] == sorted(sizes, reverse=True)
    sort(page, "Difference")
    assert set(column(page, 3)[-7:]) == {"-"}
    assert page.locator("th[aria-sort]").count() == 1


@pytest.mark.slow
def test_table_filters_by_words_and_colour(opened: Open, report: Path) -> None:
    page = opened(path=report)
    assert page.locator("#shown").inner_text() == "83 of 83 shown"
    page.get_by_label("Filter").fill("grok1 FP8")
    names = column(page, 2)
    assert 0 < len(names) < 83
    assert all("grok1" in name and "fp8" in name for name in names)
    assert page.locator("#shown").inner_text() == f"{len(names)} of 83 shown"
    cards = page.locator("section[aria-labelledby=configurations] details")
    assert cards.locator("visible=true").locator(".name").all_inner_texts() == names
    page.get_by_label("Filter").fill("")
    for colour in ("green", "skipped", "unclear"):
        page.get_by_label(colour).uncheck()
    assert len(column(page, 2)) == 5  # including the unmatched run
    page.get_by_label("Filter").fill("no such thing")
    assert page.locator("#shown").inner_text() == "0 of 83 shown"


@pytest.mark.slow
def test_table_link_opens_the_details_of_its_configuration(opened: Open) -> None:
    page = opened()
    card = page.locator("details", has=page.locator(f"[id='{SLOW}']"))
    assert not card.get_by_text("the limit is 25.23 s").first.is_visible()
    page.locator("#table").get_by_role("link", name=SLOW, exact=True).click()
    assert card.get_by_text("the limit is 25.23 s").first.is_visible()
    assert card.locator("svg").count() == 3
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"


@pytest.mark.slow
def test_keyboard_reaches_every_control(opened: Open) -> None:
    page = opened()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "To the verdicts"
    page.locator("#table thead button", has_text="GPUs").focus()
    page.keyboard.press("Enter")
    assert column(page, 8)[0] == "8"
    page.locator("details summary").first.focus()
    page.keyboard.press("Space")
    assert page.locator("section details").first.evaluate("card => card.open")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["few", "sides"])
def test_axe_finds_no_accessibility_violation(
    opened: Open, find_violations: FindViolations, few: Path, sides: Path, name: str
) -> None:
    """All details of one configuration of each verdict are open. The dark theme only
    changes colours."""
    path = {"few": few, "sides": sides}[name]
    page = opened(
        path=path, color_scheme="light", bypass_csp=True
    )  # the page's policy forbids the script of axe-core
    page.evaluate(
        "document.querySelectorAll('details').forEach((card) => { card.open = true })"
    )
    assert find_violations(page, least=20) == []
    page.emulate_media(color_scheme="dark")
    assert find_violations(page, least=0, rules=["color-contrast"]) == []


@pytest.mark.slow
def test_phone_scrolls_the_table_instead_of_the_page(opened: Open) -> None:
    page = opened(f"#{SLOW}", viewport={"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("document.querySelector('#table').scrollWidth") > 390
    seen = page.locator(
        "#table tbody tr td.number"
    ).first.bounding_box()  # the slowdown is visible without scrolling
    assert seen is not None
    assert seen["x"] + seen["width"] <= 390


@pytest.mark.slow
def test_report_is_readable_without_scripts(opened: Open) -> None:
    page = opened(f"#{SLOW}", java_script_enabled=False)
    assert page.locator("#table tbody tr").count() == 11
    assert page.get_by_text("the limit is 25.23 s").first.is_visible()
    assert not page.locator("#filter").is_visible()
    assert not page.locator("#theme").is_visible()


@pytest.mark.slow
def test_report_is_readable_under_jenkins_policy(chromium: Any, few: Path) -> None:
    """Without styles and scripts the charts are visible, and a link opens its
    configuration."""
    context = chromium.new_context()
    page = context.new_page()
    headers = {
        "Content-Security-Policy": JENKINS,
        "Content-Type": "text/html; charset=utf-8",
    }
    body = few.read_text(encoding="utf-8")
    page.route(
        "http://ci.invalid/**", lambda route: route.fulfill(headers=headers, body=body)
    )
    page.goto(f"http://ci.invalid/report.html#{SLOW}")
    assert (
        page.locator("body").evaluate("body => getComputedStyle(body).fontFamily")
        != "system-ui, sans-serif"
    )
    assert page.locator("#table tbody tr").count() == 11
    assert page.get_by_text("the limit is 25.23 s").first.is_visible()
    box = page.locator("svg").first.bounding_box()
    assert box is not None
    assert (box["width"], box["height"]) == (438, 228)
    context.close()


@pytest.mark.slow
def test_script_in_a_log_does_not_run(opened: Open, report: Path) -> None:
    page = opened(path=report)
    assert page.title().startswith("5 red, trend: 4 SLOWER, 1 unclear")
    assert page.get_by_text("<script>document.title='owned'</script>").count() > 5


@pytest.mark.slow
def test_comparison_page_sorts_and_opens_linked_row(opened: Open, sides: Path) -> None:
    page = opened(path=sides)
    assert column(page, 3)[0] == "+10.0 %"
    page.locator("#table thead button", has_text="Difference").click()
    assert column(page, 3)[0] == "-10.0 %"
    page.get_by_role("checkbox", name="red").uncheck()
    assert page.locator("#shown").inner_text() == "2 of 3 shown"
    card = page.locator("details").first
    assert not card.is_visible()
    page.locator("#table tbody").get_by_role("link").first.click()
    assert page.locator("details[open]").count() == 1
