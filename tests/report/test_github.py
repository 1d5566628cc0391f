"""GitHub's job summary and annotations: escaping, limits and order."""

from __future__ import annotations

import html
import re
from pathlib import Path

import cmarkgfm
import pytest
from cmarkgfm.cmark import Options
from hypothesis import given, settings
from hypothesis import strategies as st
from support.outcomes import (
    check,
    incomplete,
    inconclusive,
    missing,
    slow,
    stray,
    told,
    with_fields,
)

from pytest_llmbench.report.document import SessionEnding
from pytest_llmbench.report.explain import explain
from pytest_llmbench.report.notifications import (
    MOST_BYTES,
    append_job_summary,
    list_workflow_commands,
    render_job_summary,
)
from pytest_llmbench.report.terminal import render_summary

RED = SessionEnding(1)
HOSTILE = "a|b `c` <script>*d*_e_ [f](http://g) ![h](i) ~~j~~ $k$ &amp; \\| #l\n\n| m | n |\n```\r\n# o @p"


def rendered(markdown: str) -> str:
    """Render Markdown with GitHub's own renderer."""
    return str(
        cmarkgfm.github_flavored_markdown_to_html(
            markdown, options=Options.CMARK_OPT_UNSAFE
        )
    )


def rows(markdown: str) -> list[list[str]]:
    """Return the cell texts of all tables."""
    match = re.findall(r"<tr>(.*?)</tr>", rendered(markdown), re.DOTALL)
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in match]
    return [[html.unescape(cell) for cell in row] for row in cells if row]


# --- the job summary ------------------------------------------------------------------


def test_job_summary_lists_failures_then_inconclusive_then_passed() -> None:
    markdown = render_job_summary(
        [told(), missing(), inconclusive(), stray(), slow(), check()], RED
    )
    assert [row[:2] for row in rows(markdown)] == [
        ["REGRESSION", "slow"],
        ["UNMATCHED", "run_7"],
        ["INCONCLUSIVE", "doubtful"],
        ["PASS", told().id],
    ]
    assert re.findall(
        "^### (.*)|^#### (.*)|<summary>(.*)</summary>", markdown, re.MULTILINE
    ) == [
        ("llmbench: red", "", ""),
        ("", "2 red", ""),
        ("", "1 inconclusive", ""),
        ("", "", "1 passed"),
    ]
    red = rows(markdown)[0]
    assert red[2:4] == ["8.790 s", "+20.0 %"]
    assert red[4] == "39.7"
    assert red[5].endswith("(log-x_1_0.out)")
    assert red[6].startswith("judge older runs of it as well")
    assert "2 green: 1 INCONCLUSIVE, 1 PASS; 2 red" in html.unescape(rendered(markdown))


def test_job_summary_begins_with_reason_for_missing_verdicts() -> None:
    absent = [
        missing(f"absent-{number}", "failed", ("nothing was judged: no log",))
        for number in range(12)
    ]
    assert (
        html.unescape(render_job_summary(absent, RED)).splitlines()[2]
        == "nothing was judged: no log"
    )
    assert (
        list_workflow_commands(absent, ())[0]
        == "::error title=llmbench::nothing was judged: no log"
    )


def test_job_summary_escapes_markup() -> None:
    described = slow(HOSTILE, text=HOSTILE, log=HOSTILE)
    markdown = render_job_summary([described], SessionEnding(1, [HOSTILE]))
    ((verdict, identifier, _, _, _, why, _),) = rows(markdown)
    seen = " ".join(HOSTILE.split())
    assert (verdict, identifier) == ("REGRESSION", seen)
    assert why == f"{seen} ({seen})"
    tags = set(re.findall(r"<(\w+)", rendered(markdown)))
    assert tags <= {"h3", "h4", "p", "table", "thead", "tbody", "tr", "th", "td"}


@pytest.mark.slow
def test_job_summary_fits_and_counts_omitted_rows() -> None:
    regression = slow(text="語" * 300)
    many = [with_fields(regression, id=f"slow-{number:05d}") for number in range(2000)]
    markdown = render_job_summary(many, RED)
    assert MOST_BYTES - 5_000 < len(markdown.encode()) <= MOST_BYTES
    *shown, last = rows(markdown)
    assert [row[1] for row in shown] == [
        f"slow-{number:05d}" for number in range(len(shown))
    ]
    assert last[1] == f"{2000 - len(shown)} more"


def test_job_summary_is_appended_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    path.write_text("# before\n")
    append_job_summary(path, [told()], SessionEnding(0))
    assert (
        path.read_text()
        == f"# before\n{render_job_summary([told()], SessionEnding(0))}"
    )
    path.write_text("x" * (MOST_BYTES - 10))
    append_job_summary(path, [slow()], RED)
    assert path.stat().st_size == MOST_BYTES - 10


# --- annotations ----------------------------------------------------------------------


def decoded(command: str) -> tuple[str, str, str]:
    """Decode a workflow command into level, title and message."""
    match = re.fullmatch(r"::(error|warning) title=([^,:\n]*)::([^\r\n]*)", command)
    assert match, command
    texts = [match[2].replace("%3A", ":").replace("%2C", ","), match[3]]
    title, message = (
        text.replace("%0A", "\n").replace("%0D", "\r").replace("%25", "%")
        for text in texts
    )
    return match[1], title, message


def test_failures_are_errors_and_inconclusive_items_warnings() -> None:
    found = [
        decoded(command)
        for command in list_workflow_commands(
            [told(), inconclusive(), stray(), incomplete(), missing(), check()], []
        )
    ]
    assert [(level, title) for level, title, _ in found] == [
        ("error", "INVALID killed (incomplete)"),
        ("error", "UNMATCHED run_7"),
        ("warning", "INCONCLUSIVE doubtful (cannot-tell)"),
    ]
    assert found[0][2].splitlines() == [
        "stopped after step 27 of 50; the log shows no cause",
        "log: log-x_1_0.out:127",
        "next: run it again: a run counts only if it reached its last step",
    ]


def test_session_failure_is_an_error_annotation() -> None:
    assert list_workflow_commands([], ["nothing was judged: x"]) == [
        "::error title=llmbench::nothing was judged: x"
    ]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.text(st.characters(codec="utf-8") | st.sampled_from("::%,\r\n=A0D"), max_size=40)
)
def test_annotation_is_one_command_for_any_log_text(text: str) -> None:
    (command,) = list_workflow_commands([slow(f"x{text}", text=f"a{text}")], [])
    level, title, message = decoded(command)
    assert level == "error"
    assert title == " ".join(f"REGRESSION  x{text} (slower-than-bound)".split())
    assert message.startswith(f"a{text}\nlog: log-x_1_0.out\nnext: ")


@pytest.mark.parametrize(
    ("number", "shown", "rest"),
    [(10, 10, ""), (11, 9, "2 more are red: see the job summary")],
)
def test_annotations_beyond_ten_are_counted(number: int, shown: int, rest: str) -> None:
    found = [
        decoded(command)
        for command in list_workflow_commands(
            [slow(f"{n:02d}") for n in range(number)], []
        )
    ]
    assert (
        len([title for _, title, _ in found if title.startswith("REGRESSION")]) == shown
    )
    assert len(found) <= 10
    assert (found[-1][2] if rest else "") == rest


@pytest.mark.parametrize(
    "command", ["::stop-commands::x", "::error title=PASS::owned", "##[error]owned"]
)
def test_log_text_is_never_a_workflow_command(command: str) -> None:
    """The runner executes lines that begin with `::`, also after spaces."""
    text = f"its log ends with {'x' * 56} {command} and {command}"
    described = with_fields(incomplete(), text=text, log=f"runs {command}/log.out")
    lines = [
        *explain(described, short=False).splitlines(),
        *render_summary([described], [text]),
    ]
    assert sum("owned" in line or "stop-commands" in line for line in lines) > 4
    assert not [
        line for line in lines if line.lstrip().startswith("::") or "##[" in line
    ]
    assert max(map(len, lines)) <= 80
