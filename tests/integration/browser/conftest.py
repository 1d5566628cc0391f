"""The HTML report in Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.compared_sides import make_result
from support.full_session import HOSTILE, NOW
from support.full_session import make_session_outcomes as make_outcomes
from support.monthly_history import FP8, fill_history, make_outcome, store_session

from pytest_llmbench.history.store import StoreLocation

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def absent(text: str) -> None:
    """Skip the test, or fail it under LLMB_REQUIRE_BROWSER."""
    if os.environ.get("LLMB_REQUIRE_BROWSER"):
        pytest.fail(text)
    pytest.skip(text)


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the reports of a full nightly session, and of a few of its
    configurations."""
    from pytest_llmbench.comparison.comparison_document import describe
    from pytest_llmbench.comparison.comparison_page import render_sides
    from pytest_llmbench.report.html import render

    folder = tmp_path_factory.mktemp("night")
    outcomes = make_outcomes(folder)
    (folder / "report.html").write_text(render(outcomes, NOW))
    checks = [outcome for outcome in outcomes if outcome.kind != "configuration"]
    (folder / "few.html").write_text(
        render([*outcomes[:9], outcomes[81], *checks[:3], *checks[-3:]], NOW)
    )
    (folder / "sides.html").write_text(
        render_sides(describe(make_result(0.9, 1.0, 1.1), NOW, strict=False), NOW)
    )
    return folder


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of a history: one slow configuration, one good, one of each other
    colour."""
    from pytest_llmbench.cli import main as cli

    folder = tmp_path_factory.mktemp("site")
    location = StoreLocation("history.db", folder / "history.db")
    fill_history(location)
    unclear = replace(FP8, gpus=256)
    other = make_outcome(
        0,
        6.0,
        unclear,
        verdict="INCONCLUSIVE",
        status="passed",
        reason="cannot-tell",
        text=HOSTILE,
    )
    store_session(location, 0, other, make_outcome(0, None, replace(FP8, gpus=512)))
    assert (
        cli.main(["site", "--history", f"{location.file}", "-o", f"{folder}/pages"])
        == 0
    )
    return folder / "pages"


@pytest.fixture
def report(reports: Path) -> Path:
    """The report of a full nightly session."""
    return reports / "report.html"


@pytest.fixture
def few(reports: Path) -> Path:
    """The report of one configuration of each verdict."""
    return reports / "few.html"


@pytest.fixture
def sides(reports: Path) -> Path:
    """The page of a comparison of two sides."""
    return reports / "sides.html"


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A running browser; without one the test is skipped, or fails under
    LLMB_REQUIRE_BROWSER."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        absent("there is no chromium: apt-get install chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        absent(f"{error}: pip install --group browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox"]
        )  # CI runs as root
        yield browser
        browser.close()


@pytest.fixture
def browse(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Open a URL in a context with these settings; any console output fails the test."""
    contexts, messages = [], list[str]()

    def open_page(url: str, **context: Any) -> Any:
        contexts.append(chromium.new_context(**context))
        page = contexts[-1].new_page()
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert messages == []


@pytest.fixture(scope="session")
def find_violations() -> Callable[..., list[tuple[str, str]]]:
    """Return a function that lists the violations that axe-core finds.

    A violation is a rule and the first element that breaks it. More than `least` rules
    must pass, as proof that axe-core checked the page. `rules` restricts the rules.
    """
    from axe_playwright_python.sync_playwright import Axe

    def find(
        page: Any, *, least: int, rules: list[str] | None = None
    ) -> list[tuple[str, str]]:
        options: dict[str, Any] = {"resultTypes": ["violations"]}
        if rules:
            options["runOnly"] = rules
        response = Axe().run(page, options=options).response
        assert len(response["passes"]) > least
        return [
            (rule["id"], rule["nodes"][0]["html"]) for rule in response["violations"]
        ]

    return find
