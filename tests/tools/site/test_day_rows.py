"""The rows of the table of days."""

from __future__ import annotations

from datetime import UTC, datetime
from html.parser import HTMLParser

from pytest_llmbench.core.baseline_records import Window
from pytest_llmbench.history.stored_verdicts import StoredVerdict
from pytest_llmbench.tools.site.site_page import _DayRows


class Cells(HTMLParser):
    """Collects the text of each cell, and the names of all elements."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        if tag in ("td", "th"):
            self.texts.append("")

    def handle_data(self, data: str) -> None:
        self.texts[-1] += data


def test_cells_of_a_day_are_escaped() -> None:
    started = datetime(2026, 3, 1, tzinfo=UTC)
    verdict = StoredVerdict(
        id=1,
        configuration="a",
        run=1,
        started=started,
        judged=started,
        day=started.date(),
        session="<s>",
        verdict="PASS",
        reason='"&<b>',
        status="passed",
        counts=True,
        run_seconds=7.4,
        step_seconds=7.4,
        expected_seconds=7.4,
        log_difference=0.0,
        mfu=0.41,
        mfu_logged=True,
        window=Window(11, 44, "mean"),
        baseline="recorded",
        tolerance="5 %",
        job_id="<script>",
        nodes=("<n1>",),
        environment={},
    )
    cells = Cells()
    cells.feed(_DayRows().make_rows([verdict], ["green"]))
    cells.close()
    assert cells.names == {"tr", "th", "td", "b", "i"}
    assert cells.texts == [
        "2026-03-01",
        "\N{CHECK MARK} PASS",
        "7.400 s",
        "0.0 %",
        "41.0*",
        '"&<b>',
        "<script>",
        "<n1>",
        "<s>",
    ]
