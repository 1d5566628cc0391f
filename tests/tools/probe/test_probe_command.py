"""`llmbench probe`: its exit codes, and a real `git bisect run`."""

from __future__ import annotations

import math
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import chdir
from functools import partial
from pathlib import Path

import pytest
from support.titan_runs import write_run

from pytest_llmbench.cli.main import main
from pytest_llmbench.core.trial_records import ProbeOutcome
from pytest_llmbench.tools.probe import probe_command as command
from pytest_llmbench.tools.probe.probe_decision import PrintedError, decide_probe

GOOD, SLOW = 2.0, 2.1
TESTS = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _change_to_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write_runs(folder: str, seconds: float, first_day: int, runs: int = 2) -> None:
    for number in range(1, runs + 1):
        write_run(
            Path(folder),
            first_day + number - 1,
            name=f"run_{number}/train.log",
            seconds=seconds,
        )


@pytest.fixture
def ends() -> list[str]:
    write_runs("good", GOOD, 1)
    write_runs("bad", SLOW, 3)
    return ["probe", "--good", "good", "--bad", "bad"]


def make_runs(tmp_path: Path, seconds: str = "2.0", end: str = "") -> list[str]:
    """Build a command that makes a run on a new day, then executes `end`."""
    script = tmp_path / "make.py"
    script.write_text(
        "import os, pathlib, sys\n"
        f"sys.path.insert(0, {str(TESTS)!r})\n"
        "from support.titan_runs import write_run\n"
        "folder = pathlib.Path(os.environ['LLMBENCH_RUN'])\n"
        "day = 4 + int(folder.name.removeprefix('run_'))\n"
        f"write_run(folder, day, name='train.log', seconds={seconds})\n{end}\n"
    )
    return ["--runs", "candidates", "--", sys.executable, str(script)]


# --- existing runs --------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "code"), [(GOOD, 0), (1.9, 0), (SLOW, 1), (2.3, 1)]
)
def test_probe_calls_a_build_slower_beyond_the_midpoint_of_good_and_bad(
    ends: list[str], seconds: float, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    write_runs("new", seconds, 5)
    assert main([*ends, "new"]) == code
    out = capsys.readouterr().out
    assert out.startswith("probe: slower" if code else "probe: not slower")
    assert "valid runs of the build: 2" in out
    assert max(map(len, out.splitlines())) < 80


@pytest.mark.slow
def test_build_halfway_between_good_and_bad_is_inconclusive(ends: list[str]) -> None:
    write_runs("new", 2.0495, 5)
    assert main([*ends, "new"]) == 125


@pytest.mark.slow
def test_invalid_runs_are_listed_as_no_data(
    ends: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    write_runs("new", SLOW, 5)
    for log in Path("new").rglob("*.log"):
        log.write_text("".join(log.read_text().splitlines(keepends=True)[:20]))
    assert main([*ends, "new"]) == 125
    assert capsys.readouterr().out.count("no data: new/") == 2


@pytest.mark.slow
def test_search_stops_if_good_and_bad_build_are_equally_fast(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_runs("good", GOOD, 1)
    write_runs("bad", GOOD, 3)
    write_runs("new", SLOW, 5)
    assert main(["probe", "--good", "good", "--bad", "bad", "new"]) == 128
    assert "nothing to search" in capsys.readouterr().out


# --- runs made by a command -----------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "code"), [("2.0", 0), ("2.1", 1)])
def test_probe_starts_one_run_if_one_run_decides(
    ends: list[str], tmp_path: Path, seconds: str, code: int
) -> None:
    assert main([*ends, *make_runs(tmp_path, seconds)]) == code
    assert [path.name for path in Path("candidates/1").iterdir()] == ["run_1"]
    assert main([*ends, *make_runs(tmp_path, seconds)]) == code
    assert Path("candidates/2/run_1/train.log").exists()


@pytest.mark.slow
def test_build_is_inconclusive_after_four_runs(ends: list[str], tmp_path: Path) -> None:
    assert main([*ends, *make_runs(tmp_path, "2.0495")]) == 125
    assert len(list(Path("candidates/1").iterdir())) == 4


@pytest.mark.slow
def test_exit_code_of_the_launch_command_is_ignored_after_a_valid_run(
    ends: list[str], tmp_path: Path
) -> None:
    """A pytest session that launches the run exits with 1 on a regression."""
    assert main([*ends, *make_runs(tmp_path, "2.0", "sys.exit(1)")]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("end", ["", "; exit 1"])
def test_run_that_duplicates_an_earlier_run_makes_the_build_inconclusive(
    ends: list[str], capsys: pytest.CaptureFixture[str], end: str
) -> None:
    write_runs("middle", 2.0495, 5, runs=1)
    assert (
        main(
            [
                *ends,
                "--runs",
                "candidates",
                "--",
                "sh",
                "-c",
                f'cp middle/run_1/train.log "$LLMBENCH_RUN"{end}',
            ]
        )
        == 125
    )
    out = capsys.readouterr().out
    assert out.startswith("probe: inconclusive")
    assert "does not run" not in out
    assert "valid runs of the build: 1" in out
    assert (
        out.count("no data: new/")
        == out.count("copied: a copy of")
        == (1 if end else 2)
    )


@pytest.mark.slow
def test_placeholder_in_the_command_is_replaced_by_the_run_folder(
    ends: list[str],
) -> None:
    Path("copy.sh").write_text('test "$1" = "$LLMBENCH_RUN" && exit 7; exit 200\n')
    assert (
        main([*ends, "--runs", "new runs", "--", "sh", "copy.sh", "{LLMBENCH_RUN}"])
        == 125
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("exit 1", 125),  # a build that does not compile
        ("exit 125", 125),
        ("true", 125),  # twice without a run
        ("exit 128", 128),
        ("kill -9 $$", 128),
    ],
)
def test_exit_code_of_the_launch_command_decides_if_it_produced_no_run(
    ends: list[str], script: str, code: int
) -> None:
    assert main([*ends, "--runs", "candidates", "--", "sh", "-c", script]) == code


@pytest.mark.slow
def test_missing_command_stops_the_search(
    ends: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*ends, "--runs", "candidates", "--", "no-such-command"]) == 128
    assert "no-such-command cannot be started: No such file" in capsys.readouterr().err


# --- mistakes -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["probe"],
        ["probe", "--good", "good", "--bad", "bad"],
        ["probe", "--good", "good", "--bad", "bad", "--oops", "new"],
        ["probe", "--good", "good", "--bad", "nowhere", "new"],
        ["probe", "--good", "good", "--bad", "bad", "new", "newer"],
        ["probe", "--good", "good", "--bad", "empty", "new"],
        ["probe", "--good", "good", "--bad", "bad", "--configuration", "other", "new"],
    ],
    ids=" ".join,
)
def test_usage_error_never_marks_a_bad_build(words: list[str], ends: list[str]) -> None:
    write_runs("new", GOOD, 5)
    Path("empty").mkdir()
    assert main(words) == 129


@pytest.mark.slow
def test_internal_error_never_marks_a_bad_build(
    ends: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(answer: object) -> str:
        raise RuntimeError("a fault")

    write_runs("new", SLOW, 5)
    monkeypatch.setattr(command, "_describe", fail)
    assert main([*ends, "new"]) == 128
    assert "RuntimeError: a fault" in capsys.readouterr().err


@pytest.mark.slow
def test_probe_requires_the_configuration_option_if_builds_ran_several_configurations(
    ends: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, seconds in (("good", GOOD), ("bad", SLOW), ("new", GOOD)):
        write_run(
            Path(folder), 7, name="long/run_7/train.log", seconds=seconds, mbs=8, gbs=64
        )
    write_runs("new", GOOD, 5)
    assert main([*ends, "new"]) == 129
    message = capsys.readouterr().err
    assert "give --configuration=ID" in message
    name = next(word.strip(",") for word in message.split() if "gbs32" in word)
    assert main([*ends, "--configuration", name, "new"]) == 0


# --- the decision ---------------------------------------------------------------------


def test_single_run_halfway_between_good_and_bad_build_is_inconclusive() -> None:
    good, bad = [0.0, 0.004], [0.1, 0.104]
    assert decide_probe(good, bad, [0.1])[0] is ProbeOutcome.SLOWER
    assert decide_probe(good, bad, [0.0])[0] is ProbeOutcome.NOT_SLOWER
    assert decide_probe(good, bad, [0.055])[0] is ProbeOutcome.CANNOT_TELL
    assert decide_probe(good, good, [0.5])[0] is ProbeOutcome.ENDS_ALIKE
    assert decide_probe(bad, good, [0.0])[0] is ProbeOutcome.ENDS_ALIKE


def test_coarsely_rounded_step_times_make_a_probe_inconclusive() -> None:
    good, bad = [math.log(24.0)] * 6, [math.log(24.2)] * 6
    errors = (PrintedError(0.0, 0.05 / 24),) * 3
    assert decide_probe(good, [math.log(24.1)] * 6, good)[0] is ProbeOutcome.NOT_SLOWER
    assert (
        decide_probe(good, [math.log(24.1)] * 6, good, errors)[0]
        is ProbeOutcome.ENDS_ALIKE
    )
    outcome, estimate = decide_probe(good, bad, good, errors)
    assert outcome is ProbeOutcome.CANNOT_TELL
    assert estimate.high - estimate.low == pytest.approx(4 * 0.05 / 24, rel=0.05)
    assert (
        decide_probe(good, [math.log(24.3)] * 6, good, errors)[0]
        is ProbeOutcome.NOT_SLOWER
    )


def test_step_time_noise_within_a_run_makes_a_probe_inconclusive() -> None:
    good, bad = [0.0, 0.0001, 0.0002], [0.03, 0.0301, 0.0302]
    assert decide_probe(good, bad, good)[0] is ProbeOutcome.NOT_SLOWER
    noisy = (PrintedError(0.006), PrintedError(0.006), PrintedError(0.006))
    assert decide_probe(good, bad, good, noisy)[0] is ProbeOutcome.CANNOT_TELL


def test_one_run_per_build_is_judged_with_an_assumed_noise() -> None:
    outcome, estimate = decide_probe([0.0], [math.log(1.2)], [math.log(1.2)])
    assert outcome is ProbeOutcome.SLOWER
    assert not estimate.noise.measured


# --- git ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
@pytest.mark.parametrize(("slow", "candidates"), [(6, {6}), (5, {4, 5})])
def test_git_bisect_run_finds_the_planted_commit(
    ends: list[str], tmp_path: Path, slow: int, candidates: set[int]
) -> None:
    """Of seven commits, the fourth does not build, and a later one is 5 % slower.

    If the slow commit follows the broken one, git names both as candidates.
    """
    program = tmp_path / "program"
    program.mkdir()
    environment = {
        **{
            name: value
            for name, value in os.environ.items()
            if not name.startswith("GIT_")
        },
        **{
            f"GIT_{role}_{field}": "a@b.c"
            for role in ("AUTHOR", "COMMITTER")
            for field in ("NAME", "EMAIL")
        },
        "GIT_CONFIG_GLOBAL": os.devnull,
    }

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["git", *words],
            cwd=program,
            env=environment,
            text=True,
            capture_output=True,
            check=False,
        )

    git("init", "-q")
    for number in range(1, 8):
        source = (
            "broken("
            if number == 4
            else f"echo {SLOW if number >= slow else GOOD}  # {number}"
        )
        (program / "program.sh").write_text(source)
        git("add", "program.sh")
        git("commit", "-qm", f"commit {number}")
    numbers = {
        git("rev-parse", f"HEAD~{7 - number}").stdout.strip(): number
        for number in range(1, 8)
    }
    assert len(numbers) == 7
    for seconds in (
        GOOD,
        SLOW,
    ):  # written in this process, because starting Python for each run is slow
        for number in range(1, 5):
            write_run(
                tmp_path / "made" / str(seconds),
                4 + number,
                name=f"run_{number}/train.log",
                seconds=seconds,
            )
    script = 'cp "$0/$(sh program.sh)/${LLMBENCH_RUN##*/}/train.log" "$LLMBENCH_RUN"'
    words = [
        "--runs",
        str(tmp_path / "candidates"),
        "--",
        "sh",
        "-c",
        f"set -e; {script}",
        str(tmp_path / "made"),
    ]
    options = ["--good", str(tmp_path / "good"), "--bad", str(tmp_path / "bad")]
    git("bisect", "start", "HEAD", "HEAD~6")
    output = tmp_path / "output"
    code = answer_bisect(
        tmp_path,
        partial(main, ["probe", *options, *words]),
        program,
        environment,
        output,
    )
    # "abc... is the first bad commit", or one line per candidate
    lines = [
        line.partition(" is the first bad commit")[0]
        for line in output.read_text().splitlines()
    ]
    assert {numbers[line] for line in lines if line in numbers} == candidates
    assert code == (0 if len(candidates) == 1 else 2)


def answer_bisect(
    folder: Path,
    command: Callable[[], int],
    program: Path,
    environment: Mapping[str, str],
    output: Path,
) -> int:
    """Run `git bisect run`, answering each build with `command` in this process.

    Returns the exit code of git.
    """
    requests, answers = folder / "asks", folder / "answers"
    for fifo in (requests, answers):
        os.mkfifo(fifo)
    requesting, answering = (os.open(fifo, os.O_RDWR) for fifo in (requests, answers))
    script = 'echo >"$0"; read -r code <"$1"; exit "$code"'
    bisect = ["git", "bisect", "run", "sh", "-c", script, str(requests), str(answers)]
    with (
        output.open("w") as printed,
        subprocess.Popen(
            bisect, cwd=program, env=environment, stdout=printed, stderr=printed
        ) as process,
    ):
        try:
            while process.poll() is None:
                if select.select([requesting], [], [], 0.02)[0]:
                    os.read(requesting, 1)
                    with chdir(program):
                        os.write(answering, f"{command()}\n".encode())
        finally:
            process.kill()
            os.close(requesting)
            os.close(answering)
    return process.returncode
