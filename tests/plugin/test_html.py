"""--llmb-html in complete sessions: content, writing process, write errors."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from shutil import make_archive

import pytest
from support.fake_recipe import write_recipe
from support.sessions import Write

pytestmark = pytest.mark.wheel

SELECTED = "8b and (fp8 or bf16-8)"


def session(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", *arguments)


def page(pytester: pytest.Pytester, name: str = "report.html") -> str:
    return (pytester.path / name).read_text(encoding="utf-8")


def words(text: str) -> str:
    return " ".join(re.sub("<[^>]*>", " ", text).split())


@pytest.mark.slow
def test_html_page_shows_verdicts_and_the_command_without_its_secrets(
    pytester: pytest.Pytester, examples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The foot holds the command, without its secrets."""
    monkeypatch.setenv("CI_COMMIT_SHA", "abc1234")
    monkeypatch.setenv("HF_TOKEN", "hf_Correct4Horse8Battery2Staple")
    arguments = ("-k", SELECTED, "--llmb-html=out/report.html", "--llmb-tolerance=4%")
    secret = ("-o", "cache_dir=hf_Correct4Horse8Battery2Staple")
    result = session(pytester, f"--llmb-logs={examples}", *arguments, *secret)
    result.stdout.fnmatch_lines(["HTML report: out/report.html"])
    html = page(pytester, "out/report.html")
    text = words(html)
    assert "1 red" in text
    assert "step time 10.05 s, +6.0 % against the baseline 9.480 s" in text
    assert re.search(
        r"Step times 50 steps, [\d.]+ s to [\d.]+ s; window 11 to 44;", text
    )
    assert "Weak scaling" in text
    foot = words(html.partition("<footer>")[2].partition("</footer>")[0])
    assert re.search(r"command pytest .*--llmb-html=out/report.html", foot)
    assert "version pytest-llmbench" in foot
    assert "baselines 82 configurations in 5 files" in foot
    assert "tolerance 4 % (" in foot
    assert "commit abc1234" in foot
    assert foot.endswith("exit code 1")
    assert "Correct4Horse" not in html


@pytest.mark.slow
def test_html_page_shows_unmatched_runs_as_skipped_in_list_mode(
    pytester: pytest.Pytester, examples: Path
) -> None:
    session(
        pytester,
        f"--llmb-logs={examples}",
        "--llmb-html=report.html",
        "--llmb-unmatched=list",
    )
    rows = re.findall(r'<tr data-colour="(\w+)" class="stray">.*?</tr>', page(pytester))
    assert set(rows) == {"skipped"}


@pytest.mark.slow
def test_workers_and_one_process_write_the_same_page(
    pytester: pytest.Pytester, examples: Path
) -> None:
    pytest.importorskip("xdist")
    for name, workers in (("one.html", "-n0"), ("two.html", "-n1")):
        result = session(
            pytester,
            f"--llmb-logs={examples}",
            "-k",
            SELECTED,
            f"--llmb-html={name}",
            workers,
        )
        result.stdout.fnmatch_lines([f"HTML report: {name}"])
    pages = [page(pytester, name) for name in ("one.html", "two.html")]
    one, two = (re.sub(r"\d\d:\d\d UTC|<dt>command</dt>.*", "", text) for text in pages)
    assert one == two


@pytest.mark.slow
def test_page_quotes_logs_from_an_archive(
    pytester: pytest.Pytester, generated: Write, tmp_path: Path
) -> None:
    generated("grok1_314b-25.05-gb200-bf16-128", ending="diverged", cut=20)
    folder = generated("grok1_314b-25.05-gb200-fp8-128", factor=1.3)
    given = make_archive(str(tmp_path / "night"), "gztar", folder)
    session(
        pytester,
        f"--llmb-logs={given}",
        "-k",
        "gb200-bf16-128 or gb200-fp8-128",
        "--llmb-html=report.html",
    )
    shown = re.findall('<pre class="excerpt".*?</pre>', page(pytester), re.DOTALL)
    marked = [
        words(mark)
        for excerpt in shown
        for mark in re.findall("<mark>.*?</mark>", excerpt, re.DOTALL)
    ]
    assert len(marked) == 2
    assert any("reduced_train_loss: nan" in line for line in marked)
    assert any(
        re.search(r"global_step: 11 \|.* train_step_timing in s: ", line)
        for line in marked
    )
    assert "around step 11, the first of the window" in words(page(pytester))


@pytest.mark.slow
def test_unwritable_page_changes_no_verdict(
    pytester: pytest.Pytester, examples: Path
) -> None:
    pytester.makeconftest(
        "import pathlib, shutil\n"
        "def pytest_collection_finish():\n"
        # with the page that says that the session has not ended
        "    shutil.rmtree('out')\n"
        "    pathlib.Path('out').write_text('now a file')\n"
    )
    result = session(
        pytester,
        f"--llmb-logs={examples}",
        "-k",
        "8b-25.04-h100-fp8-16",
        "--llmb-html=out/report.html",
        "--llmb-junit=junit.xml",
    )
    result.stdout.fnmatch_lines(["PASS *", "JUnit report: junit.xml", "--llmb-html=*"])
    assert "the report was not written: File exists" in " ".join(
        result.stdout.str().split()
    )
    assert (
        result.parseoutcomes()["passed"] == 3
    )  # with its scaling, and that something was judged
    assert result.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.slow
def test_page_quotes_a_launched_log_without_its_secrets(
    pytester: pytest.Pytester,
) -> None:
    """The journal keeps no secret: the session that only collects cannot mask it, and
    quotes no log."""
    said = "steps 1.0 0 30; echo the token is $HF_TOKEN; echo then it ended; exit 1"
    write_recipe(pytester.path, {"ok": said}, kind="local")
    cluster = pytester.path / "cluster.yaml"
    cluster.write_text(
        cluster.read_text().replace(
            "environment: {", "environment: {HF_TOKEN: hf_53cr3t, "
        )
    )
    session(
        pytester,
        "-k",
        "fake",
        "--llmb-launch",
        "--llmb-retries=0",
        "--llmb-repeats=1",
        "--llmb-html=launched.html",
    )
    launched = page(pytester, "launched.html")
    assert "hf_53cr3t" not in launched
    assert "the token is ***" in launched
    assert "then it ended" in launched
    [name] = [path.name for path in (pytester.path / ".llmbench" / "jobs").iterdir()]
    done = session(
        pytester,
        "-k",
        "fake",
        "--llmb-collect",
        f"--llmb-session={name}",
        "--llmb-html=report.html",
    )
    assert "hf_53cr3t" not in done.stdout.str()
    assert "1 INVALID" in words(page(pytester))
    assert "hf_53cr3t" not in page(pytester)
    assert 'class="excerpt"' not in page(pytester)


def test_missing_jinja_names_the_extra(
    pytester: pytest.Pytester, examples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    result = session(pytester, f"--llmb-logs={examples}", "--llmb-html=report.html")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [
            "*--llmb-html=*report.html needs the package jinja2*pytest-llmbench[[]html[]]*"
        ]
    )
