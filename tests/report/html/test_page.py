"""The page: whole, self-contained, the same for the same outcomes; and whatever a log
holds is text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.builders import NOW
from support.outcomes import missing, told, with_fields

from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.outcome_records import UnmatchedRun
from pytest_llmbench.report.advice import count_repeats_needed
from pytest_llmbench.report.describe_outcome import describe_unmatched_run
from pytest_llmbench.report.html import TEMPLATES, read_script, read_style, render
from pytest_llmbench.report.outcome_documents import (
    ConfigurationOutcome,
    OutcomeDocument,
    make_plain,
    restore_outcome,
)
from pytest_llmbench.report.terminal import list_next_steps
from pytest_llmbench.report.verdicts import sort_outcomes

VOID = {"meta", "input", "br", "img", "path", "line"}


class Parsed(HTMLParser):
    """A parsed page: elements with their attributes, and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.inside: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.inside.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.inside.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def words(self) -> str:
        """The text of all elements, with single spaces."""
        return " ".join(" ".join(self.texts).split())

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def page(outcomes: list[OutcomeDocument]) -> str:
    """The page of a session with all configurations."""
    return render(outcomes, NOW)


# --- whole ----------------------------------------------------------------------------


@pytest.mark.slow
def test_page_is_well_formed_and_links_resolve(page: str) -> None:
    parsed = Parsed(page)
    assert parsed.inside == []
    ids = [attributes["id"] for _, attributes in parsed.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [str(attributes["href"]) for attributes in parsed.of("a")]
    assert len(links) > 82
    assert {link[0] for link in links} == {"#"}
    assert {link[1:] for link in links} <= set(ids)
    named = [attributes["aria-labelledby"] for attributes in parsed.of("svg")]
    assert len(named) > 200
    assert set(named) <= set(ids)


def test_documented_configurations_without_a_run_are_one_line() -> None:
    documented = [
        with_fields(missing(f"absent-{number}"), own=False) for number in range(9)
    ]
    parsed = Parsed(
        render(
            [
                *documented,
                with_fields(told(), own=True),
                with_fields(missing("mine"), own=True),
            ],
            NOW,
        )
    )
    assert parsed.inside == []
    assert "9 documented configurations have no run" in parsed.words
    ids = {attributes["id"] for _, attributes in parsed.elements if "id" in attributes}
    assert "mine" in ids
    assert not [name for name in ids if str(name).startswith("absent")]
    assert {str(attributes["href"])[1:] for attributes in parsed.of("a")} <= ids


@pytest.mark.slow
def test_content_security_policy_of_the_page_allows_only_its_style_and_script(
    page: str,
) -> None:
    (policy,) = (
        meta["content"] for meta in Parsed(page).of("meta") if meta.get("http-equiv")
    )
    allowed = {}
    for tag in ("style", "script"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        allowed[tag] = base64.b64encode(
            hashlib.sha256(content.encode()).digest()
        ).decode()
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{allowed['style']}'; script-src 'sha256-{allowed['script']}'; "
        "base-uri 'none'"
    )
    assert [
        attributes for _, attributes in Parsed(page).elements if "style" in attributes
    ] == []


@pytest.mark.slow
def test_page_does_not_depend_on_outcome_order(
    outcomes: list[OutcomeDocument], page: str
) -> None:
    """xdist workers report in any order."""
    plain = json.loads(
        json.dumps(list(map(make_plain, outcomes[::-1])), allow_nan=False)
    )
    assert render(list(map(restore_outcome, plain)), NOW) == page


# --- what it says ---------------------------------------------------------------------


@pytest.mark.slow
def test_page_head_shows_counts_and_next_steps(page: str) -> None:
    text = Parsed(page).words
    assert "5 red 1 unclear 73 green 4 skipped" in text
    assert (
        "1 REGRESSION, 2 INVALID, 2 INCONCLUSIVE, 1 UNMATCHED, 1 IMPROVEMENT, 72 PASS, 4 MISSING"
        in text
    )
    assert (
        "slower-than-bound : grok1_314b-24.11-h100-bf16-8 judge older runs of it as well"
        in text
    )


def test_page_advice_equals_terminal_advice(
    outcomes: list[OutcomeDocument], page: str
) -> None:
    (told,) = re.findall('<ul class="next">.*?</ul>', page, re.DOTALL)
    reasons = re.findall("<strong>(.*?)</strong>", told)
    assert reasons == [
        "slower-than-bound",
        "diverged",
        "incomplete",
        "cannot-tell",
        "unmatched",
        "faster-than-baseline",
    ]
    advice = [
        re.sub("<[^>]*>", "", text)
        for text in re.findall('class="advice">(.*?)</span>', told)
    ]
    assert advice[0].endswith("record your own baseline with --llmb-record=DIR")
    assert "<code>--llmb-record=DIR</code>" in told
    said = " ".join(" ".join(list_next_steps(sort_outcomes(outcomes))).split())
    assert all(f": {text}" in said for text in advice[:2])
    unclear = next(
        outcome
        for outcome in outcomes
        if outcome.verdict == "INCONCLUSIVE" and outcome.status == "failed"
    )
    assert isinstance(unclear, ConfigurationOutcome)
    assert (
        f"a baseline from several runs; about {count_repeats_needed(unclear)} would decide"
        in told
    )


def test_failure_card_shows_all_details() -> None:
    text = Parsed(render([told("failed", seconds=8.4)], NOW)).words
    for part in (
        "✕ REGRESSION",
        "step time 8.400 s, +14.7 % against the baseline 7.325 s",
        "50 steps, 8.400 s to 8.400 s; window 11 to 44; baseline 7.325 s; limit 7.691 s.",
        "Next: judge older runs of it as well",
        "step time 8.400 s 7.325 s +14.7 %",
        "rule measured <= limit is not met",
        "log-x_1_0.out",
    ):
        assert part in text


def test_excerpt_marks_the_relevant_line() -> None:
    quoted = {
        "log": "a.out",
        "first_line": 9,
        "lines": ["before", "the & problem", "after"],
        "line": 10,
        "what": "",
    }
    page = render([told("failed", seconds=8.4, excerpt=quoted)], NOW)
    (marked,) = re.findall("<mark>(.*?)</mark>", page)
    assert re.sub("<[^>]*>", "", marked) == "&gt;    10  the &amp; problem"
    (pre,) = re.findall('<pre class="excerpt".*?</pre>', page, re.DOTALL)
    assert Parsed(pre).text.split("\n")[1:4] == [
        "      9  before",
        ">    10  the & problem",
        "     11  after",
    ]


def test_page_has_tables_for_attempts_jobs_changes_and_environment() -> None:
    change = {
        "started": "2025-11-01T03:00:00+00:00",
        "kind": "step",
        "stands": True,
        "night": 1,
        "difference": 0.031,
        "low": 0.02,
        "high": 0.04,
        "environment": {"driver": ["560", "570"]},
        "acknowledged": {"reason": "new driver", "by": "ops", "expires": "2026-01-01"},
        "text": "",
    }
    job = {
        "job_id": "12",
        "purpose": "measure",
        "attempt": 1,
        "repeat": 1,
        "state": "NODE_FAIL",
    }
    hours = {
        "estimated": 10.0,
        "used": 12.25,
        "requeued": 0.25,
        "exact": True,
        "lost": "failed",
    }
    job |= {
        "nodes": ["n1", "n2"],
        "step_seconds": None,
        "text": "",
        "started": NOW.isoformat(),
        "age": "3h",
    }
    job |= {"submission": "submitted", "ended_by": "others"}
    jobs = [{**job, "gpu_hours": hours, "files": ["out/profile.nsys-rep"]}]
    text = Parsed(
        render([told(jobs=jobs, changes=[change], environment={"nccl": "2.26"})], NOW)
    ).words
    assert (
        "2025-11-01 +3.1 % +2.0 % to +4.0 % driver: 560 to 570 acknowledged by ops until 2026-01-01: new dr"
        in text
    )
    gone = {**change, "stands": False, "acknowledged": None}
    assert (
        "driver: 560 to 570 reverted since"
        in Parsed(render([told(changes=[gone])], NOW)).words
    )
    assert (
        "12 measure n[1-2] 12.2, lost: failed, 0.25 lost: requeued job 12 on n[1-2]: NODE_FAIL"
        in text
    )
    assert "GPU-hours: 12.2 used; 12.2 of them lost: 12.0 failed, 0.25 requeued" in text
    assert "Files file out/profile.nsys-rep" in text
    assert "nccl 2.26" in text


def test_ids_with_special_characters_get_valid_anchors() -> None:
    strays = [
        describe_unmatched_run(
            UnmatchedRun(name, Reason.UNMATCHED, "", Path("/x")), Path("/")
        )
        for name in ("a b", "a/b", "é")
    ]
    parsed = Parsed(render(strays, NOW))
    ids = {attributes["id"] for attributes in parsed.of("article")}
    assert len(ids) == 3
    assert {str(link["href"])[1:] for link in parsed.of("a")} == {*ids, "verdicts"}


# --- changes and losses ---------------------------------------------------------------


def test_page_shows_sum_of_changes_and_newest_changes() -> None:
    changes = [
        {
            "kind": "step",
            "started": f"2026-01-{day}T00:00:00+00:00",
            "night": 0,
            "difference": by,
            "stands": stands,
        }
        | {
            "acknowledged": None,
            "environment": {},
            "low": 0.0,
            "high": 0.1,
            "text": f"change of the {day}th",
        }
        for day, by, stands in ((10, 0.10, True), (11, -0.05, False), (12, 0.02, True))
    ]
    page = render([told(changes=changes)], NOW)
    assert f'data-v="{1.1 * 0.95 * 1.02 - 1:.9g}">+6.6 %</td>' in page
    (head,) = re.findall('<ul class="changes">.*?</ul>', page, re.DOTALL)
    assert re.findall(r"change of the (\d+)th", head) == ["12", "10"]
    accepted = {
        **changes[0],
        "acknowledged": {"reason": "known", "by": "me", "expires": None},
    }
    assert '<ul class="changes">' not in render([told(changes=[accepted])], NOW)


def test_page_shows_the_loss_of_a_diverged_run(page: str) -> None:
    assert page.count("<strong>Loss</strong>") == 1
    assert re.search(r"not finite at \d+ steps?, first at step \d+", page)


# --- text is text ---------------------------------------------------------------------


@pytest.mark.slow
def test_page_loads_no_external_resources(page: str) -> None:
    parsed = Parsed(page)
    assert parsed.of("link") == parsed.of("img") == parsed.of("iframe") == []
    assert [
        attributes for _, attributes in parsed.elements if "src" in attributes
    ] == []
    assert "url(" not in page
    assert "@import" not in page


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    text=st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"),
        min_size=1,
        max_size=60,
    )
)
def test_page_escapes_all_texts(text: str) -> None:
    """Elements and their attributes are those of a harmless text, but for the anchors,
    which are made of ids."""
    quoted = {"log": text, "first_line": 1, "lines": [text], "line": 1, "what": ""}
    changed: dict[str, Any] = {
        "text": text,
        "context": text,
        "suite": text,
        "environment": {text: text},
        "excerpt": quoted,
    }
    notes = [{"code": "x", "text": text, "line": 0}]
    parsed = Parsed(render([told("failed", seconds=8.4, notes=notes, **changed)], NOW))
    harmless: dict[str, Any] = {
        "text": "x",
        "context": "x",
        "suite": "x",
        "environment": {"x": "x"},
    }
    other = Parsed(
        render(
            [
                told(
                    "failed",
                    seconds=8.4,
                    notes=notes,
                    **harmless,
                    excerpt={**quoted, "log": "x", "lines": ["x"]},
                )
            ],
            NOW,
        )
    )
    assert [tag for tag, _ in parsed.elements] == [tag for tag, _ in other.elements]
    assert parsed.of("div") == other.of("div")
    assert parsed.text.count(text) >= 5


# --- style sheets and scripts ---------------------------------------------------------


def test_style_sheets_are_joined_without_needless_space(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a.css").write_text(
        "\nth, td > b { margin: 0 .1rem;\n  color: red; }\n.x :hover { }\n"
    )
    (tmp_path / "b.css").write_text('i::after { content: "\\2195" / ""; }\n')
    monkeypatch.setattr("pytest_llmbench.report.html.TEMPLATES", tmp_path)
    assert read_style("a.css", "b.css") == (
        'th,td>b{margin:0 .1rem;color:red}.x :hover{}i::after{content:"\\2195" / ""}'
    )


def test_scripts_are_joined_without_comments_and_indentation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a.js").write_text('// a\n{\n\n  f("x  y");  // b\n  // c\n}\n')
    (tmp_path / "b.js").write_text('g("https://h");\n')
    monkeypatch.setattr("pytest_llmbench.report.html.TEMPLATES", tmp_path)
    assert read_script("a.js", "b.js") == '{\nf("x  y");\n}\ng("https://h");'


def test_style_sheets_survive_shortening() -> None:
    for path in TEMPLATES.glob("*.css"):
        sheet = path.read_text(encoding="utf-8")
        assert "/*" not in sheet
        for text in re.findall(r'"([^"]*)"', sheet):
            assert not re.search(r"[{};:,>]|\s\s", text)
