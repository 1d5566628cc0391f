"""CI outputs of real sessions: JSON document, GitHub, chat message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support.outcomes import list_schema_errors
from support.sessions import Judge, JudgedSession, Write

from pytest_llmbench.cli.main import main

BF16, FP8 = "grok1_314b-25.05-gb200-bf16-128", "grok1_314b-25.05-gb200-fp8-128"
LOGS = "--llmb-logs={}".format


def written(path: Path) -> dict[str, Any]:
    """Return a document that its schema describes, without a number that is none."""
    document: dict[str, Any] = json.loads(path.read_bytes(), parse_constant=pytest.fail)
    assert list_schema_errors(document) == []
    return document


def name_of(outcome: dict[str, Any]) -> tuple[str, str]:
    return outcome["suite"], outcome["id"]


@pytest.fixture
def documented(judged: Judge, tmp_path: Path) -> Any:
    """Run pytest with `--llmb-json`; return its output and the document."""

    def run(*arguments: object) -> tuple[JudgedSession, dict[str, Any]]:
        path = tmp_path / "reports" / "llmb.json"
        session = judged(*map(str, arguments), f"--llmb-json={path}")
        return session, written(path)

    return run


@pytest.fixture
def github(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Pretend to be a job of GitHub Actions, and return the file of its summary."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    return tmp_path / "summary.md"


# --- the document ---------------------------------------------------------------------


@pytest.mark.slow
def test_json_document_contains_all_verdicts_of_the_examples(
    documented: Any, examples: Path
) -> None:
    session, document = documented(LOGS(examples))
    left = {
        "excerpt": None,
        "history": None,
    }  # what is made for the reports alone, or made shorter there
    told = [
        {
            name: value
            for name, value in {**report, **left}.items()
            if name not in ("context_begin", "remainder")
        }
        for report in sorted(session.reports, key=name_of)
    ]
    assert [
        {**outcome, **left} for outcome in sorted(document["outcomes"], key=name_of)
    ] == told
    assert any(
        "lines" in outcome.get("excerpt", {}) for outcome in document["outcomes"]
    )
    assert {outcome["kind"] for outcome in document["outcomes"]} == {
        "configuration",
        "stray",
        "check",
    }
    assert document["counts"]["green"] == {"IMPROVEMENT": 1, "PASS": 17}
    assert document["counts"]["red"] == {
        "REGRESSION": 1,
        "INVALID": 2,
        "INCONCLUSIVE": 1,
        "UNMATCHED": 1,
    }
    assert (document["exit_code"], document["green"]) == (1, False)
    assert document["baselines"] == "82 configurations in 5 files"
    assert document["tolerances"] == ["5 % unless a baseline file sets another"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--llmb-runs=each"], "NOT_COMPARABLE"),
        (["--llmb-record=own", "-k", "grok1_314b-25.05"], "RECORDED"),
        (["--llmb-selftest", "-k", "selftest or grok1_314b-25.05"], "selftest"),
    ],
    ids=["each-run", "recording", "selftest"],
)
def test_json_document_contains_each_kind_of_verdict_and_check(
    documented: Any, examples: Path, arguments: list[str], what: str
) -> None:
    _, document = documented(LOGS(examples), *arguments)
    assert what in {
        outcome.get(key)
        for outcome in document["outcomes"]
        for key in ("verdict", "check")
    }


@pytest.mark.slow
def test_session_with_an_empty_selection_fails(
    documented: Any, generated: Write
) -> None:
    session, document = documented(LOGS(generated(BF16)), "-k", "nothing_has_this_name")
    assert session.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert (document["exit_code"], document["green"], document["outcomes"]) == (
        5,
        False,
        [],
    )
    assert document["failures"][0].startswith(
        "nothing was judged: no item was selected. Next: "
    )


@pytest.mark.slow
def test_json_document_names_a_junit_report_that_was_not_written(
    documented: Any, generated: Write, tmp_path: Path
) -> None:
    _, document = documented(
        LOGS(generated(BF16)), "-k", BF16, "--llmb-junit=/dev/full"
    )
    assert (document["exit_code"], document["green"]) == (1, False)
    assert document["failures"] == [
        "--llmb-junit=/dev/full: the report was not written: No space left on device"
    ]


# --- GitHub ---------------------------------------------------------------------------


@pytest.mark.slow
def test_xdist_session_writes_one_ci_summary_and_annotates_each_failure(
    pytester: pytest.Pytester, generated: Write, github: Path
) -> None:
    generated(BF16, factor=1.3)
    folder = generated(FP8)
    result = pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", "-q", LOGS(folder), "-n1"
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    commands = [line for line in result.outlines if line.startswith("::")]
    assert [line.partition("::")[2].partition("::")[0] for line in commands] == [
        f"error title=REGRESSION {BF16} (slower-than-bound)"
    ]
    text = github.read_text(encoding="utf-8")
    assert text.count("### llmbench: red") == 1
    assert text.count("| REGRESSION |") == 1
    assert text.count("| PASS |") == 1


@pytest.mark.slow
@pytest.mark.parametrize("ci", ["true", ""], ids=["switched-off", "elsewhere"])
def test_no_github_output_outside_github_or_if_switched_off(
    pytester: pytest.Pytester,
    generated: Write,
    github: Path,
    monkeypatch: pytest.MonkeyPatch,
    ci: str,
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", ci)
    options = ("--llmb-github=off",) if ci else ()
    result = pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", LOGS(generated(BF16, factor=1.3)), *options
    )
    assert not [line for line in result.outlines if line.startswith("::")]
    assert not github.exists()


@pytest.mark.slow
def test_unwritable_job_summary_changes_no_verdict(
    pytester: pytest.Pytester, generated: Write, github: Path, tmp_path: Path
) -> None:
    github.mkdir()
    folder = generated(BF16)
    result = pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", LOGS(folder), "-k", BF16
    )
    assert result.ret == pytest.ExitCode.OK
    output = "".join(result.stdout.str().split())
    assert (
        f"GITHUB_STEP_SUMMARY={github}:thejobsummarywasnotwritten:Isadirectory"
        in output
    )


# --- the chat message -----------------------------------------------------------------


DAMAGES: tuple[dict[str, Any], ...] = (
    {"count": None},
    {"outcomes": [1]},
    {"outcomes": 7},
    {"exit_code": {}},
    {"failures": 3},
    {"started": []},
)


@pytest.mark.slow
def test_chat_message_from_a_damaged_json_document_never_says_green(
    documented: Any,
    generated: Write,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, document = documented(LOGS(generated(BF16, factor=1.3)), "-k", BF16)
    path = tmp_path / "reports" / "llmb.json"
    capsys.readouterr()
    assert main(["chat", str(path), "--link", "https://ci/7"]) == 0
    first, second, link = capsys.readouterr().out.splitlines()
    assert first.startswith("llmbench RED, ")
    assert first.endswith(" UTC: 1 red: 1 REGRESSION")
    assert (
        second == f"REGRESSION {BF16}: +30.0 % (9.522 s, expected 7.325 s, MFU 36.6 %)"
    )
    assert link == "https://ci/7"
    for damage in DAMAGES:
        path.write_text(json.dumps({**document, **damage}))
        code = main(["chat", str(path)])
        printed = capsys.readouterr()
        if code:
            assert (code, printed.out) == (2, ""), damage
            assert printed.err.startswith(
                f"llmbench: {path}: not as llmbench wrote it: "
            ), damage
        assert "GREEN" not in printed.out, damage


# --- the terminal ---------------------------------------------------------------------


@pytest.mark.slow
def test_verdict_summary_is_coloured_if_pytest_output_is_coloured(
    pytester: pytest.Pytester, generated: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("PY_COLORS", "1")
    result = pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", LOGS(generated(BF16)), "-k", BF16
    )
    start = next(
        number
        for number, line in enumerate(result.outlines)
        if line.startswith("verdict   ")
    )
    line, count = result.outlines[start + 1 : start + 3]
    assert line.startswith(f"\x1b[32mPASS\x1b[0m           {BF16}")
    assert count == "\x1b[32m1 green: 1 PASS\x1b[0m"


# --- the short summary of pytest ------------------------------------------------------

HEAD = f"REGRESSION  {BF16} (slower-than-bound)"
OURS = f"FAILED pytest_llmbench/suite/test_performance.py::test_performance[{BF16}]"


@pytest.fixture
def in_ci(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Set each CI variable of pytest in turn; return True if pytest detects a CI."""
    for name in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)
    if request.param:
        monkeypatch.setenv(request.param, "true")
    return bool(request.param)


def short_summary(result: pytest.RunResult) -> list[str]:
    """Return the lines of the short summary."""
    lines = result.outlines
    title = next(
        number for number, line in enumerate(lines) if "short test summary info" in line
    )
    return lines[title + 1 : -1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("in_ci", "arguments"),
    [
        ("", ()),
        ("", ("-q", "--tb=no")),
        ("", ("-vv",)),
        ("CI", ()),
        ("BUILD_NUMBER", ()),
    ],
    ids=["plain", "quiet", "verbose", "CI", "BUILD_NUMBER"],
    indirect=["in_ci"],
)
def test_short_summary_has_one_line_for_each_failure(
    pytester: pytest.Pytester, generated: Write, in_ci: bool, arguments: tuple[str, ...]
) -> None:
    options = ["-p", "no:cacheprovider", LOGS(generated(BF16, factor=1.3)), "-k", BF16]
    result = pytester.runpytest_inprocess(*options, *arguments, "--junitxml=junit.xml")
    whole = in_ci or arguments == ("-vv",)
    assert short_summary(result) == [f"{OURS} - Failed: {HEAD}" if whole else OURS]
    sections = "--tb=no" not in arguments
    assert (
        any(line.startswith("next: judge older runs") for line in result.outlines)
        == sections
    )
    case = ElementTree.parse(pytester.path / "junit.xml").find(".//failure/..")  # noqa: S314 (written by pytest here)
    assert case is not None
    failure = case.find("failure")
    assert failure is not None
    assert "next: judge older runs" in str(failure.text)
    assert f"{HEAD}\nstep time 9.522 s, +30.0 %" in str(
        failure.get("message")
    )  # pytest itself leaves out what follows


@pytest.mark.slow
@pytest.mark.parametrize(
    ("in_ci", "workers"),
    [("", ("-n1",)), ("CI", ())],
    ids=["worker", "CI"],
    indirect=["in_ci"],
)
def test_junitxml_keeps_the_complete_message(
    pytester: pytest.Pytester, generated: Write, in_ci: bool, workers: tuple[str, ...]
) -> None:
    pytester.makeconftest("""
        def pytest_runtest_logreport(report):
            if report.failed:
                with open(f"{report.when}.txt", "w") as file:
                    file.write(f"{report.longreprtext}\\n{report.longrepr.reprcrash.message}")
    """)
    folder = generated(BF16, factor=1.3)
    result = pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", LOGS(folder), "-k", BF16, *workers
    )
    kept = (pytester.path / "call.txt").read_text(encoding="utf-8")
    assert kept.count(HEAD) == kept.count("next: judge older runs") == 2
    assert short_summary(result) == [f"{OURS} - Failed: {HEAD}" if in_ci else OURS]


@pytest.mark.slow
def test_summary_shortens_only_llmbench_messages_in_custom_tests(
    pytester: pytest.Pytester, generated: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    path = pytester.makepyfile(
        test_own="""
        import pytest
        def test_in_setup(llmb_measurement): pass
        def test_message(llmb_verdict): pytest.fail(llmb_verdict.message)
        def test_assertion(llmb_verdict): assert not llmb_verdict.failed, llmb_verdict.message
        def test_words(llmb_verdict): pytest.fail("too slow\\nby far")
        def test_one_of_our_words(llmb_verdict): pytest.fail("INVALID")
        class Odd(Exception):
            def __str__(self): raise ValueError
        def test_odd(llmb_verdict): raise Odd
        """
    )
    folder = generated(BF16, ending="time-limit")
    result = pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", LOGS(folder), "-k", BF16, path
    )
    head = f"INVALID  {BF16} (incomplete)"
    assert short_summary(result) == [
        f"FAILED test_own.py::test_message[{BF16}] - Failed: {head}",
        f"FAILED test_own.py::test_assertion[{BF16}] - AssertionError: {head}",
        f"FAILED test_own.py::test_words[{BF16}] - Failed: too slow",
        "by far",
        f"FAILED test_own.py::test_one_of_our_words[{BF16}] - Failed: INVALID",
        f"FAILED test_own.py::test_odd[{BF16}] - test_own.Odd: <exception str() failed>",
        f"ERROR test_own.py::test_in_setup[{BF16}] - Failed: {head}",
    ]


@pytest.mark.slow
def test_custom_test_message_of_a_missing_verdict_stays_in_the_short_summary(
    pytester: pytest.Pytester, generated: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    path = pytester.makepyfile(
        test_own="""
        def test_skipped(llmb_verdict): assert llmb_verdict.judgement.verdict == "PASS", llmb_verdict.message
        """
    )
    folder = generated(BF16)
    key = BF16.replace("-128", "-256")
    result = pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", LOGS(folder), "-k", f"{key} or {BF16}", path
    )
    (line, *_) = short_summary(result)
    assert (
        line
        == f"FAILED test_own.py::test_skipped[{key}] - AssertionError: MISSING (no-run): no run of this configuration"
    )
