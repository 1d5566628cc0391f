"""`llmbench compare`, run on realistic logs and stored histories."""

from __future__ import annotations

import json
import re
import shutil
from datetime import UTC, datetime, timedelta
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from generator import write_run
from generator.__main__ import shipped
from jsonschema import Draft202012Validator, FormatChecker
from support.remembered import document, nights, outcome
from support.titan_runs import write_run as write_titan_run
from support.written_archives import archive

from pytest_llmbench.cli.main import main
from pytest_llmbench.history.record import write
from pytest_llmbench.history.store import StoreLocation

BASELINES = shipped()
LLAMA = "llama3.1_8b-25.04-h100-bf16-16"
FP8 = "llama3.1_8b-25.04-h100-fp8-16"
GROK = "grok1_314b-25.05-gb200-bf16-128"
START = datetime(2025, 11, 1, 2, tzinfo=UTC)
WOBBLE = (0.0, 0.002, -0.002, 0.001)
SCHEMA = Draft202012Validator(
    json.loads(
        resources.files("pytest_llmbench.report")
        .joinpath("comparison.schema.json")
        .read_text("utf-8")
    ),
    format_checker=FormatChecker(),
)
SAFE = re.compile(r"[\x20-\x7e\n]*")


@pytest.fixture(autouse=True)
def _change_to_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LLMB_HISTORY", raising=False)


def write_side(
    root: str,
    factor: float = 1.0,
    *,
    first: int = 0,
    runs: int = 4,
    name: str = LLAMA,
    **more: Any,
) -> None:
    """Write one run per day to a folder."""
    for day in range(runs):
        options = {
            "factor": factor * (1 + WOBBLE[day % 4]),
            "job_id": f"{1000 + first + day}",
            **more,
        }
        write_run(
            Path(root),
            BASELINES[name],
            started=START + timedelta(days=first + day),
            **options,
        )


def compare(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """Run the command and return its output, which must be printable and 79 wide."""
    assert main(["compare", *words]) == code
    out = capsys.readouterr().out
    assert SAFE.fullmatch(out)
    assert max(map(len, out.splitlines())) < 80
    return out


def compare_as_json(
    capsys: pytest.CaptureFixture[str], *words: str, code: int = 0
) -> dict[str, Any]:
    compare(capsys, *words, "--json=out.json", code=code)
    loaded: dict[str, Any] = json.loads(Path("out.json").read_text())
    SCHEMA.validate(loaded)
    assert loaded["exit_code"] == code
    return loaded


# --- answers --------------------------------------------------------------------------


@pytest.mark.slow
def test_compare_calls_equally_fast_groups_of_runs_alike(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_side("a")
    write_side("b", first=10)
    out = compare(capsys, "a", "b")
    assert out.startswith(
        "B relative to A: difference of step times, 95 % interval, alike within 1 %\nA  a: 4 runs of"
    )
    assert re.search(
        rf"^alike +0\.00 %  \(-0\.\d\d to \+0\.\d\d %\) +{LLAMA}$", out, re.MULTILINE
    )
    assert "nothing known differs but the days" in out
    assert "started   A 2025-11-01 to 2025-11-04; B 2025-11-11 to 2025-11-14" in out
    assert (
        "unknown   commit (A and B), container (A and B), driver (A and B), nodes (A"
        in out
    )
    assert out.endswith("\n\n1 configuration compared: 1 alike\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factor", "answer", "code"),
    [(1.05, "slower", 1), (0.95, "faster", 0), (1.006, "slower", 1)],
)
def test_compare_answers_slower_or_faster_if_the_step_times_differ(
    capsys: pytest.CaptureFixture[str], factor: float, answer: str, code: int
) -> None:
    write_side("a")
    write_side("b", factor, first=10)
    (comparison,) = compare_as_json(capsys, "a", "b", code=code)["comparisons"]
    assert comparison["answer"] == answer
    assert comparison["low"] < factor - 1 < comparison["high"]
    assert comparison["difference"] == pytest.approx(factor - 1, abs=2e-4)
    assert comparison["within_margin"] is (factor == 1.006)
    assert comparison["runs"] == comparison["groups"] == [4, 4]


@pytest.mark.slow
def test_comparing_one_run_with_one_run_is_inconclusive_with_assumed_noise(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_side("a", runs=1)
    write_side("b", 1.02, first=10, runs=1)
    out = compare(capsys, "a", "b")
    assert out.splitlines()[0].startswith("the noise from run to run is assumed (1 %)")
    assert "cannot tell" in out
    flat = " ".join(out.split())
    power = "a difference of 5.4 % would have been shown, four times out of five; one of 1 % would be with 15 more runs"
    assert f"{power} a side, on other days or nodes" in flat
    assert (
        "the nodes are unknown and may cause the difference; to be sure, run both side by side on the same nodes"
        in flat
    )
    assert compare(capsys, "a", "b", "--strict", code=4) == out


@pytest.mark.slow
def test_compare_accepts_logs_and_archives_as_sides(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_side("a", runs=1)
    write_side("b", 1.1, first=10, runs=1)
    logs = [
        next(
            path
            for path in sorted(Path(side).rglob("*"))
            if path.is_file() and "log-" in path.name
        )
        for side in "ab"
    ]
    assert f"slower        +10.0 %  (+5.8 to +14.4 %)      {LLAMA}" in compare(
        capsys, *map(str, logs), code=1
    )
    members = [
        (str(path.relative_to("b")), path.read_bytes())
        for path in sorted(Path("b").rglob("*"))
        if path.is_file()
    ]
    Path("b.tar").write_bytes(archive(members))
    shutil.rmtree("b")
    assert "1 slower" in compare(capsys, "a", "b.tar", code=1)


@pytest.mark.slow
def test_margin_option_sets_the_largest_difference_called_alike(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_side("a")
    write_side("b", first=10)
    (comparison,) = compare_as_json(capsys, "a", "b", "--margin=0.1%")["comparisons"]
    assert comparison["answer"] == "cannot-tell"
    assert comparison["runs_needed"][0] > 0


# --- what is not compared -------------------------------------------------------------


@pytest.mark.slow
def test_unmatched_configuration_is_listed_and_fails_if_strict(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Another precision is another configuration."""
    write_side("a")
    write_side("a", name=FP8, first=20)
    write_side("b", first=10)
    out = compare(capsys, "a", "b")
    assert f"{FP8}: only in A: B has no run" in out
    assert "1 configuration compared: 1 alike; 1 not compared" in out
    compare(capsys, "a", "b", "--strict", code=4)


@pytest.mark.slow
def test_diverged_run_is_listed_as_no_data(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_side("a")
    write_side("b", first=10, runs=3)
    write_side("b", 2.0, first=13, runs=1)
    log = next(path for path in Path("b").rglob("log-*1013*") if path.is_file())
    log.write_text(
        re.sub(r"reduced_train_loss: \S+", "reduced_train_loss: nan", log.read_text())
    )
    result = compare_as_json(capsys, "a", "b")
    assert [
        (run["side"], run["reason"], run["configuration"]) for run in result["no_data"]
    ] == [("B", "diverged", LLAMA)]
    assert result["comparisons"][0]["runs"] == [4, 3]
    assert result["comparisons"][0]["answer"] == "alike"
    assert "B/" in compare(capsys, "a", "b").partition("no data:")[2]


@pytest.mark.slow
def test_compare_prints_why_a_path_contains_no_usable_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_side("b")
    shutil.make_archive("night", "zip", "b")
    Path("notes.log").write_text("to do\n")
    Path("empty").mkdir()
    for side, reason in (
        (
            "night.zip",
            "night.zip is a zip archive, which is not supported: unpack it and give its folder",
        ),
        (
            "notes.log",
            "no training step in a supported format (docs/reference/dialects.md), and not named like a job log",
        ),
    ):
        assert reason in " ".join(compare(capsys, side, "b", code=3).split())
    empty = compare(capsys, "empty", "b", code=3)
    assert "nothing to compare: A without any usable run" in empty
    assert "no data:" not in empty


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("a gone", "B=gone does not exist"),
        ("a b/../a", "A and B are the same"),
        ("a b --margin=5", "--margin=5: found '5', that is 500 %"),
        (
            "a b --margin=0.5",
            "--margin=0.5: found '0.5', expected a percentage such as 1% or 0.5%",
        ),
        ("a b --history=", "--history= is empty"),
        ("a b --release=25.50", "--release=25.50: no baseline has this value"),
        (
            "a b --json=a/out.log",
            "/a/out.log: the file is in a folder of LOGS and would be read as a log",
        ),
        (
            "a b --json=x.txt",
            "/x.txt: an existing file of another kind (expected: JSON document of llmbench) is not replaced",
        ),
        (
            "a 2025-11-01",
            "B 2025-11-01: needs a history: give --history=URL, or set LLMB_HISTORY",
        ),
        ("a 2025-11-01 --history=gone.db", "--history: gone.db: no such file"),
    ],
)
def test_invalid_input_is_refused(
    capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    write_side("a", runs=1)
    write_side("b", first=10, runs=1)
    Path("x.txt").write_text("mine")
    assert main(["compare", *words.split()]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
    assert Path("x.txt").read_text() == "mine"
    assert not Path("gone.db").exists()


# --- runs without a baseline ----------------------------------------------------------


@pytest.mark.slow
def test_logs_without_baseline_are_compared_if_facts_match(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_titan_run(Path(), 1, name="old.log")
    write_titan_run(Path(), 5, name="new.log", seconds=2.2)
    (comparison,) = compare_as_json(capsys, "old.log", "new.log", code=1)["comparisons"]
    assert comparison["configuration"].startswith("oak_14b-own-h100")
    assert [fact["name"] for fact in comparison["differs"]] == ["started"]
    write_titan_run(Path(), 6, name="large.log", seconds=2.2, mbs=8, gbs=64)
    assert "2 not compared" in compare(capsys, "old.log", "large.log", code=3)
    for name, size in (("small.log", 32), ("wide.log", 64)):
        write_titan_run(
            Path(), 7, name=name, more=f" num_attention_heads ..... {size}\n"
        )
    assert "2 not compared" in compare(capsys, "small.log", "wide.log", code=3)


# --- a history ------------------------------------------------------------------------


@pytest.fixture
def history(tmp_path: Path) -> str:
    """A history with one run per day of November 2025, the last ten 5 % slower."""
    seconds = [
        7.33 * (1.05 if day >= 20 else 1) * (1 + WOBBLE[day % 4]) for day in range(30)
    ]
    write(StoreLocation("h.db", tmp_path / "h.db"), document(*nights(seconds)))
    return "--history=h.db"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (
            "2025-11-01 2025-12-01..9999-12-31",
            3,
            "nothing to compare: B without any usable run",
        ),
        ("2025-11-01 2025-11-31", 2, "B 2025-11-31: no such day"),
        (
            "2025-11-02..2025-11-01 2025-11-05",
            2,
            "the last day is before the first",
        ),
        (
            "2025-11-01 20251101-0000-0123456789ab",
            2,
            "no session 20251101-0000-0123456789ab with a run",
        ),
        (
            "2025-11-01..2025-11-05 2025-11-05",
            3,
            "both sides contain it, so it cannot show a difference",
        ),
    ],
)
def test_invalid_days_and_sessions_are_refused(
    capsys: pytest.CaptureFixture[str],
    history: str,
    words: str,
    code: int,
    message: str,
) -> None:
    assert main(["compare", *words.split(), history]) == code
    captured = capsys.readouterr()
    assert message in " ".join((captured.out if code == 3 else captured.err).split())


@pytest.mark.slow
def test_session_ids_of_history_show_are_accepted_as_sides(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store = StoreLocation("h.db", tmp_path / "h.db")
    ids = ("20251101-0300-0123456789ab", "20251105-0300-0123456789ab")
    write(store, document(outcome(7.33, 0), identifier=ids[0]))
    write(store, document(outcome(8.33, 4), identifier=ids[1]))
    assert main(["history", "show", GROK, "--history=h.db"]) == 0
    assert f"session {ids[1]}" in capsys.readouterr().out
    assert "1 slower" in compare(capsys, *ids, "--history=h.db", code=1)


@pytest.mark.slow
def test_stored_nodes_and_environment_are_compared(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store = StoreLocation("h.db", tmp_path / "h.db")
    for day, (nodes, container) in enumerate(
        ((["n1", "n2"], "nemo:1"), (["n1", "n2"], "nemo:2"))
    ):
        content = outcome(7.33 + day, day)
        content["jobs"] = [{"nodes": nodes}]
        content["environment"] = {
            "container": container,
            "driver": "570",
            "commit": "abc",
        }
        write(store, document(content))
    (comparison,) = compare_as_json(
        capsys, "2025-11-01", "2025-11-02", "--history=h.db", code=1
    )["comparisons"]
    assert comparison["same_nodes"] is True
    assert comparison["differs"][0] == {
        "name": "container",
        "a": "nemo:1",
        "b": "nemo:2",
    }
    assert comparison["candidate"] == "container"
    out = compare(capsys, "2025-11-01", "2025-11-02", "--history=h.db", code=1)
    assert (
        "differs   container: nemo:1 -> nemo:2\n  candidate container is the only known difference"
        in out
    )
    assert "because" not in out


# --- files ----------------------------------------------------------------------------


@pytest.mark.slow
def test_page_and_json_document_are_written_and_replaced(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_side("a")
    write_side("b", 1.05, first=10)
    compare(capsys, "a", "b", "--html=out.html", "--json=out.json", code=1)
    page = Path("out.html").read_text()
    assert "default-src &#39;none&#39;" in page
    assert not re.search(r"https?://", page)
    assert "B is slower" in page
    assert page.count("<svg") == 1
    assert LLAMA in page
    before = json.loads(Path("out.json").read_text())
    assert before["kind"] == "comparison"
    compare(
        capsys, "a", "b", "--html=out.html", "--json=out.json", code=1
    )  # earlier documents are replaced


@pytest.mark.slow
def test_answer_is_printed_if_its_file_is_unwritable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_side("a", runs=1)
    write_side("b", first=10, runs=1)

    def refuse(path: Path, target: Path) -> None:
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(Path, "replace", refuse)
    assert main(["compare", "a", "b", "--json=out.json"]) == 2
    captured = capsys.readouterr()
    assert "1 configuration compared" in captured.out
    assert captured.err.startswith("llmbench: cannot write the comparison: ")
    assert "No space left on device" in captured.err
    assert not Path("out.json").exists()


@pytest.mark.slow
def test_reports_contain_no_secrets_or_control_characters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "s3cret-value-1234")
    more = (
        "[titan] 2026-05-01 10:00:02,500 - root - INFO - torch version .................... 2.8.0\n"
        "pyxis: importing docker image: registry/s3cret-value-1234/nemo:1\n"
    )
    write_titan_run(Path("a-s3cret-value-1234"), 1, more=more)
    write_titan_run(Path("b\x1b[31m"), 5, more=more.replace("nemo:1", "nemo:2"))
    for folder in ("a-s3cret-value-1234", "b\x1b[31m"):
        log = next(Path(folder).rglob("*.log"))
        (log.parent / "broken.log.gz").write_bytes(b"\x1f\x8b\x08broken")
    out = compare(
        capsys, "a-s3cret-value-1234", "b\x1b[31m", "--json=out.json", "--html=out.html"
    )
    for text in (out, Path("out.json").read_text(), Path("out.html").read_text()):
        assert "s3cret" not in text
        assert "\x1b" not in text
    assert "nemo:2" in Path("out.json").read_text()
