"""What a CI server gets of real sessions: the JSON document, GitHub's summary and annotations, the chat message."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from fake_recipe import WELL, write_recipe
from outcomes import faults
from sessions import Judge, Judged, Write

from pytest_llmbench.cli.main import main
from pytest_llmbench.report.document import PARTS

BF16, FP8 = "grok1_314b-25.05-gb200-bf16-128", "grok1_314b-25.05-gb200-fp8-128"
LOGS = "--llmb-logs={}".format


def written(path: Path) -> dict[str, Any]:
    """Return a document that its schema describes, without a number that is none."""
    found: dict[str, Any] = json.loads(path.read_bytes(), parse_constant=pytest.fail)
    assert faults(found) == []
    return found


def name_of(one: dict[str, Any]) -> tuple[str, str]:
    return one["suite"], one["id"]


@pytest.fixture
def documented(judged: Judge, tmp_path: Path) -> Any:
    """Run pytest with `--llmb-json`, and return what it said and the document."""

    def run(*arguments: object) -> tuple[Judged, dict[str, Any]]:
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


# --- the document -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_verdict_of_the_examples_is_in_the_document(documented: Any, examples: Path) -> None:
    session, found = documented(LOGS(examples))
    left = {"excerpt": None, "history": None}  # what is made for the reports alone, or made shorter there
    told = [
        {name: value for name, value in {**one, **left}.items() if name not in PARTS}
        for one in sorted(session.reports, key=name_of)
    ]
    assert [{**one, **left} for one in sorted(found["outcomes"], key=name_of)] == told
    assert any("lines" in one.get("excerpt", {}) for one in found["outcomes"])
    assert {one["kind"] for one in found["outcomes"]} == {"configuration", "stray", "check"}
    assert found["counts"]["green"] == {"IMPROVEMENT": 1, "PASS": 17}
    assert found["counts"]["red"] == {"REGRESSION": 1, "INVALID": 2, "INCONCLUSIVE": 1, "UNMATCHED": 1}
    assert (found["exit_code"], found["green"]) == (1, False)
    assert found["baselines"] == "82 configurations in 5 files"
    assert found["tolerances"] == ["5 % unless a baseline says otherwise"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--llmb-runs=each"], "NOT_COMPARABLE"),
        (["--llmb-record=own"], "RECORDED"),
        (["--llmb-selftest", "-k", "selftest or grok1_314b-25.05"], "selftest"),
        (["--llmb-certify"], "MISSING"),
    ],
)
def test_other_kinds_of_sessions_are_described_too(
    documented: Any, examples: Path, arguments: list[str], what: str
) -> None:
    _, found = documented(LOGS(examples), *arguments)
    assert what in {one.get(key) for one in found["outcomes"] for key in ("verdict", "check")}


@pytest.mark.slow
def test_against_two_baselines_the_other_verdict_is_there(documented: Any, generated: Write, tmp_path: Path) -> None:
    logs, own = LOGS(generated(BF16)), tmp_path / "own"
    documented(logs, f"--llmb-record={own}")
    _, found = documented(logs, f"--llmb-baselines={own}", "--llmb-against=both", "-k", BF16)
    assert [one["others"][0]["baseline"]["kind"] for one in found["outcomes"] if one["others"]] == ["recorded"]


@pytest.mark.slow
def test_what_a_user_s_own_test_made_of_a_verdict_is_there(
    documented: Any, generated: Write, pytester: pytest.Pytester
) -> None:
    path = pytester.makepyfile("def test_mine(llmb_measurement): assert False, 'too hot'")
    _, found = documented(LOGS(generated(BF16)), "-k", BF16, path)
    assert [(one["verdict"], one["overruled"]) for one in found["outcomes"]] == [("TEST_FAILED", "PASS")]


@pytest.mark.slow
def test_launched_jobs_are_in_the_document(documented: Any, pytester: pytest.Pytester) -> None:
    write_recipe(pytester.path, {"ok": WELL, "bad": "echo no such image >&2; exit 3"}, kind="local")
    session, found = documented("--llmb-launch", "-k", "fake")
    assert {one["id"]: one["verdict"] for one in found["outcomes"]} == session.verdicts
    assert all(one["jobs"][0]["state"] for one in found["outcomes"])
    assert {one["jobs"][0]["purpose"] for one in found["outcomes"]} == {"measure"}


def test_a_session_that_judged_nothing_is_red_in_the_document(documented: Any, tmp_path: Path) -> None:
    session, found = documented(LOGS(tmp_path), "-k", BF16)
    assert session.ret == pytest.ExitCode.TESTS_FAILED
    assert (found["exit_code"], found["green"], found["counts"]["green"]) == (1, False, {})


def test_a_selection_of_nothing_is_not_green(documented: Any, generated: Write) -> None:
    session, found = documented(LOGS(generated(BF16)), "-k", "nothing_has_this_name")
    assert session.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert (found["exit_code"], found["green"], found["outcomes"]) == (5, False, [])
    assert found["failures"][0].startswith("nothing was judged: no item was selected. Next: ")


def test_a_document_that_cannot_be_written_makes_the_session_red(
    pytester: pytest.Pytester, generated: Write, tmp_path: Path
) -> None:
    folder = generated(BF16)
    full = Path("/dev/full")
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", LOGS(folder), "-k", BF16, f"--llmb-json={full}")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "--llmb-json=/dev/full: the report was not written: No space left on device" in result.stdout.str()


def test_a_junit_report_that_was_not_written_is_told_in_the_document(
    documented: Any, generated: Write, tmp_path: Path
) -> None:
    _, found = documented(LOGS(generated(BF16)), "-k", BF16, "--llmb-junit=/dev/full")
    assert (found["exit_code"], found["green"]) == (1, False)
    assert found["failures"] == ["--llmb-junit=/dev/full: the report was not written: No space left on device"]


# --- GitHub -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("workers", [("-p", "no:xdist"), ("-n2",)])
def test_a_job_has_one_summary_and_one_annotation_of_each_red_item(
    pytester: pytest.Pytester, generated: Write, github: Path, workers: tuple[str, ...]
) -> None:
    generated(BF16, factor=1.3)
    folder = generated(FP8)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-q", LOGS(folder), *workers)
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
def test_it_can_be_switched_off(pytester: pytest.Pytester, generated: Write, github: Path) -> None:
    folder = generated(BF16, factor=1.3)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-q", LOGS(folder), "--llmb-github=off")
    assert not [line for line in result.outlines if line.startswith("::")]
    assert not github.exists()


@pytest.mark.slow
def test_elsewhere_nothing_of_it_is_done(
    pytester: pytest.Pytester, generated: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", LOGS(generated(BF16, factor=1.3)))
    assert not [line for line in result.outlines if line.startswith("::")]
    assert not (tmp_path / "summary.md").exists()


def test_a_summary_that_cannot_be_written_changes_no_verdict(
    pytester: pytest.Pytester, generated: Write, github: Path, tmp_path: Path
) -> None:
    github.mkdir()
    folder = generated(BF16)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", LOGS(folder), "-k", BF16)
    assert result.ret == pytest.ExitCode.OK
    told = "".join(result.stdout.str().split())
    assert f"GITHUB_STEP_SUMMARY={github}:thejobsummarywasnotwritten:Isadirectory" in told


@pytest.mark.slow
def test_an_empty_name_of_the_summary_is_none(
    pytester: pytest.Pytester, generated: Write, monkeypatch: pytest.MonkeyPatch, github: Path
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "")
    folder = generated(BF16, factor=1.3)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", LOGS(folder))
    assert len([line for line in result.outlines if line.startswith("::error")]) == 1


# --- the chat message -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_document_becomes_a_message(
    documented: Any, generated: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    documented(LOGS(generated(BF16, factor=1.3)), "-k", BF16)
    capsys.readouterr()
    assert main(["chat", str(tmp_path / "reports" / "llmb.json"), "--link", "https://ci/7"]) == 0
    first, second, link = capsys.readouterr().out.splitlines()
    assert first.startswith("llmbench RED, ")
    assert first.endswith(" UTC: 1 red: 1 REGRESSION")
    assert second == f"REGRESSION {BF16}: +30.0 % (9.522 s, expected 7.325 s, MFU 36.6 %)"
    assert link == "https://ci/7"
    assert main(["chat", "--format=slack", str(tmp_path / "reports" / "llmb.json")]) == 0
    assert json.loads(capsys.readouterr().out)["text"].startswith("llmbench RED, ")


def test_a_file_that_is_none_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", str(tmp_path / "llmb.json")]) == 2
    assert "expected a readable file that --llmb-json wrote" in capsys.readouterr().err


DAMAGES: tuple[dict[str, Any], ...] = (
    {"count": None},
    {"outcomes": [1]},
    {"outcomes": 7},
    {"exit_code": {}},
    {"failures": 3},
    {"started": []},
)


@pytest.mark.slow
def test_changed_document_is_refused_or_never_green(
    documented: Any, generated: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, document = documented(LOGS(generated(BF16, factor=1.3)), "-k", BF16)
    path = tmp_path / "changed.json"
    for damage in DAMAGES:
        path.write_text(json.dumps({**document, **damage}))
        capsys.readouterr()
        code = main(["chat", str(path)])
        printed = capsys.readouterr()
        if code:
            assert (code, printed.out) == (2, ""), damage
            assert printed.err.startswith(f"llmbench: {path}: changed since --llmb-json wrote it: "), damage
        assert "GREEN" not in printed.out, damage


# --- the terminal -----------------------------------------------------------------------------------------


def test_a_quiet_session_that_judged_nothing_says_why(pytester: pytest.Pytester, tmp_path: Path) -> None:
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-q", "--tb=no", LOGS(tmp_path), "-k", BF16)
    told = " ".join(" ".join(result.outlines).split())
    assert "nothing was judged: no valid run of the 1 selected configuration." in told
    assert "Next: give --llmb-logs the folder that holds the runs" in told
    assert "next: " not in told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "coloured"),
    [
        ({}, False),
        ({"PYTEST_ADDOPTS": "--color=yes"}, True),
        ({"PY_COLORS": "1"}, True),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        ({"FORCE_COLOR": "1"}, True),
    ],
)
def test_colours_are_those_of_pytest(
    pytester: pytest.Pytester,
    generated: Write,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    coloured: bool,
) -> None:
    for name in ("PY_COLORS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    folder = generated(BF16)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", LOGS(folder), "-k", BF16)
    start = next(number for number, line in enumerate(result.outlines) if line.startswith("verdict   "))
    line, count = result.outlines[start + 1 : start + 3]
    assert line.startswith(f"\x1b[32mPASS\x1b[0m           {BF16}" if coloured else f"PASS           {BF16}")
    assert count == ("\x1b[32m1 green: 1 PASS\x1b[0m" if coloured else "1 green: 1 PASS")


# --- the short summary of pytest --------------------------------------------------------------------------

HEAD = f"REGRESSION  {BF16} (slower-than-bound)"
OURS = f"FAILED pytest_llmbench/suite/test_performance.py::test_performance[{BF16}]"


@pytest.fixture
def in_ci(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Set what pytest takes for a sign of a CI, one at a time, and return whether there is one."""
    for name in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)
    if request.param:
        monkeypatch.setenv(request.param, "true")
    return bool(request.param)


def short_summary(result: pytest.RunResult) -> list[str]:
    """Return what stands between the title of the short summary and the last line, that counts."""
    lines = result.outlines
    title = next(number for number, line in enumerate(lines) if "short test summary info" in line)
    return lines[title + 1 : -1]


FORMS: list[tuple[str, ...]] = [(), ("-q",), ("--tb=no",), ("-q", "--tb=no"), ("-vv",), ("--tb=line",)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("in_ci", "arguments"), [*product(["", "CI"], FORMS), ("BUILD_NUMBER", ())], indirect=["in_ci"]
)
def test_the_short_summary_has_one_line_of_each_failure(
    pytester: pytest.Pytester, generated: Write, in_ci: bool, arguments: tuple[str, ...]
) -> None:
    given = ["-p", "no:cacheprovider", LOGS(generated(BF16, factor=1.3)), "-k", BF16]
    result = pytester.runpytest_inprocess(*given, *arguments, "--junitxml=junit.xml")
    whole = in_ci or arguments == ("-vv",)
    assert short_summary(result) == [f"{OURS} - Failed: {HEAD}" if whole else OURS]
    sections = "--tb=no" not in arguments
    assert any(line.startswith("next: judge older runs") for line in result.outlines) == sections
    case = ElementTree.parse(pytester.path / "junit.xml").find(".//failure/..")  # noqa: S314 (written by pytest here)
    assert case is not None
    failure = case.find("failure")
    assert failure is not None
    assert "next: judge older runs" in str(failure.text)
    assert f"{HEAD}\n9.522 s is +30.0 %" in str(failure.get("message"))  # pytest itself leaves out what follows


@pytest.mark.slow
@pytest.mark.parametrize("in_ci", ["", "CI"], indirect=True)
@pytest.mark.parametrize("workers", [(), ("-n1",)])
def test_pytest_s_own_report_keeps_the_whole_message(
    pytester: pytest.Pytester, generated: Write, in_ci: bool, workers: tuple[str, ...]
) -> None:
    pytester.makeconftest("""
        def pytest_runtest_logreport(report):
            if report.failed:
                with open(f"{report.when}.txt", "w") as file:
                    file.write(f"{report.longreprtext}\\n{report.longrepr.reprcrash.message}")
    """)
    folder = generated(BF16, factor=1.3)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", LOGS(folder), "-k", BF16, *workers)
    kept = (pytester.path / "call.txt").read_text(encoding="utf-8")
    assert kept.count(HEAD) == kept.count("next: judge older runs") == 2
    assert short_summary(result) == [f"{OURS} - Failed: {HEAD}" if in_ci else OURS]


@pytest.mark.slow
def test_the_message_in_a_user_s_own_test_has_one_line_too_and_his_own_words_stay_whole(
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
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", LOGS(folder), "-k", BF16, path)
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


def test_what_a_test_of_another_verdict_says_with_our_message_stays(
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
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", LOGS(folder), "-k", f"{key} or {BF16}", path)
    (line, *_) = short_summary(result)
    assert (
        line
        == f"FAILED test_own.py::test_skipped[{key}] - AssertionError: MISSING (no-run): no run of this configuration"
    )
