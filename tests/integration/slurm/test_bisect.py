"""Searches over builds on a real Slurm: no, one or two changes, broken builds, and
kills."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.clusters import Cluster
from support.fake_recipe import write_recipe
from support.gates import Gate
from support.outcomes import list_schema_errors

CASE = "fake_8b-24.11-h100-bf16-16"

BUILDS = 32

NOISE = (
    2,
    -1,
    1,
    -3,
    3,
    -2,
    0,
    1,
    -1,
    2,
    -2,
    3,
    0,
    -1,
    1,
    -3,
    2,
    0,
    1,
    -2,
    3,
    -1,
    0,
    2,
    -3,
    1,
    -1,
    0,
    2,
    -2,
    1,
    0,
)
"""Thousandths by which the steps of the runs differ, one run after the other: 0.2 %
from run to run."""

RUNS = f"""\
echo "$SLURM_JOB_ID $SLURM_JOB_NODELIST $BUILD" >> $STAGE_PATH/started
number=$(wc -l < $STAGE_PATH/started)
noise=$(echo "{" ".join(map(str, NOISE * 2))}" | cut -d' ' -f$number)
[ "$EACH" != none ] || {{ echo "ImportError: no such symbol"; exit 1; }}
steps $(awk "BEGIN {{ print $EACH * (1 + $noise / 1000) }}")"""

SEARCH = ("--llmb-launch", "--llmb-bisect=builds.yaml", "--llmb-json=session.json")

Prepare = Callable[..., None]


@pytest.fixture
def gate(tmp_path: Path, cluster: Cluster) -> Iterator[Gate]:
    gate = Gate(tmp_path, cluster)
    yield gate
    gate.end()


@pytest.fixture
def prepare(gate: Gate) -> Prepare:
    """Write a recipe of two nodes, and builds that become slower or do not run."""

    def write(
        changes: Mapping[int, float],
        *broken: int,
        after: str = "",
        allocation: str = "separate",
    ) -> None:
        write_recipe(
            gate.folder, {"8b": "\n".join(filter(None, (RUNS, after)))}, gpus=16
        )
        lines = [f"schema: 1\nallocation: {allocation}\nvariants:\n"]
        for number in range(BUILDS):
            seconds = 1.0
            for first, size in changes.items():
                seconds *= 1 + size if number >= first else 1
            each = "none" if number in broken else f"{seconds:.6f}"
            lines.append(
                f'  - {{name: b{number:02}, environment: {{BUILD: b{number:02}, EACH: "{each}"}}}}\n'
            )
        (gate.folder / "builds.yaml").write_text("".join(lines))

    return write


def read_started(gate: Gate) -> list[list[str]]:
    """Return job id, nodes and build of every started run, in order."""
    return [
        line.split()
        for line in (gate.folder / "stage" / "started").read_text().splitlines()
    ]


def read_outcome(gate: Gate) -> dict[str, Any]:
    document = json.loads((gate.folder / "session.json").read_text())
    assert list_schema_errors(document) == []
    (outcome,) = (outcome for outcome in document["outcomes"] if outcome["id"] == CASE)
    return dict(outcome)


@pytest.mark.slow
def test_bisection_locates_the_first_slow_build_and_estimates_its_slowdown(
    gate: Gate, prepare: Prepare
) -> None:
    """Needs fewer runs than three per build of a binary search; the cost is printed
    first."""
    prepare({19: 0.02})
    assert gate.run(*SEARCH) == 0, gate.output
    outcome, started = read_outcome(gate), read_started(gate)
    assert re.match(
        r"first slow: b19: \+(1\.[6-9]|2\.[0-4])\d % \(95 %: .*\), 9\d(\.\d)? % sure, ",
        outcome["text"],
    )
    assert (outcome["status"], outcome["reason"]) == ("skipped", "not-judged")
    (change,) = outcome["trials"]["search"]["changes"]
    assert (change["first"], change["last"], outcome["trials"]["search"]["runs"]) == (
        "b19",
        "b19",
        len(started),
    )
    assert f"{len(started)} runs (on " in outcome["text"]
    assert len(started) <= 4 + 3 * 5
    assert len({nodes for _, nodes, _ in started}) == 1
    assert [build for _, _, build in started[:4]] == ["b00", "b31", "b31", "b00"]
    assert "36 jobs, 8.0 GPU-hours of steps" in gate.plain


@pytest.mark.slow
def test_bisection_fails_if_first_and_last_build_are_equally_fast(
    gate: Gate, prepare: Prepare
) -> None:
    prepare({})
    assert gate.run(*SEARCH) == 1, gate.output
    outcome = read_outcome(gate)
    assert outcome["text"].startswith(
        "no change between b00 and b31, so there is nothing to search (92.8 %: "
    )
    assert (outcome["status"], outcome["reason"]) == (
        "failed",
        "no-change-between-ends",
    )
    assert len(read_started(gate)) == 8


@pytest.mark.slow
def test_bisection_locates_two_slow_builds_in_one_range(
    gate: Gate, prepare: Prepare
) -> None:
    prepare({8: 0.04, 22: 0.05})
    assert gate.run(*SEARCH) == 0, gate.output
    text = read_outcome(gate)["text"]
    assert re.match(
        r"first slow: b08: \+[345]\.\d\d % .*; first slow: b22: \+[456]\.\d\d % ", text
    ), text


@pytest.mark.slow
def test_builds_that_do_not_run_are_skipped(gate: Gate, prepare: Prepare) -> None:
    """Each is tried once; next to the first slow build they make the answer a range."""
    prepare({19: 0.05}, 15, 16, 18)
    assert gate.run(*SEARCH) == 0, gate.output
    outcome, builds = read_outcome(gate), [build for _, _, build in read_started(gate)]
    assert outcome["text"].startswith("first slow: one of b18 to b19: +"), outcome[
        "text"
    ]
    assert "do not run: " in outcome["text"]
    assert all(builds.count(broken) <= 1 for broken in ("b15", "b16", "b18"))


@pytest.mark.slow
def test_killed_bisection_resumes_without_repeating_its_first_runs(
    gate: Gate, prepare: Prepare
) -> None:
    wait = "[ $(wc -l < $STAGE_PATH/started) != 6 ] || while [ ! -e $STAGE_PATH/go ]; do sleep 0.1; done"
    prepare({19: 0.02}, after=wait)
    process = gate.start(*SEARCH)
    gate.wait_for(
        lambda: (
            (gate.folder / "stage" / "started").exists()
            and len(read_started(gate)) == 6
        )
    )
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=180)
    gate.go()
    assert gate.run("--llmb-resume", "--llmb-json=session.json") == 0, gate.output
    text, builds = (
        read_outcome(gate)["text"],
        [build for _, _, build in read_started(gate)],
    )
    assert text.startswith("first slow: b19: "), text
    assert f"{len(builds)} runs (on " in text
    assert builds[:4] == ["b00", "b31", "b31", "b00"]


@pytest.mark.slow
def test_bisection_resumed_with_a_higher_run_limit_narrows_its_range(
    gate: Gate, prepare: Prepare
) -> None:
    """All runs are kept; the new cost is printed, and refused if it exceeds the limit."""
    prepare({19: 0.02})
    file = gate.folder / "builds.yaml"
    plain = file.read_text()

    def allow(runs: int) -> None:
        file.write_text(plain.replace("schema: 1", f"schema: 1\nmost_runs: {runs}"))

    allow(9)
    assert gate.run(*SEARCH) == 1, gate.output
    before, outcome = read_started(gate), read_outcome(gate)
    assert (len(before), outcome["reason"], outcome["trials"]["search"]["runs"]) == (
        9,
        "range",
        9,
    )
    assert "9 jobs, 2.0 GPU-hours of steps" in gate.plain
    (lock,) = (gate.folder / ".llmbench" / "sessions").iterdir()
    resume = (
        "--llmb-resume",
        f"--llmb-session={lock.stem}",
        "--llmb-json=session.json",
    )
    allow(9999)
    assert gate.run(*resume) == 4, gate.output
    assert "9999 runs" in gate.plain
    assert len(read_started(gate)) == 9
    allow(40)
    assert gate.run(*resume) == 0, gate.output
    outcome, started = read_outcome(gate), read_started(gate)
    assert "40 jobs, 8.9 GPU-hours of steps" in gate.plain
    assert outcome["text"].startswith("first slow: b19: +"), outcome["text"]
    assert started[:9] == before
    assert outcome["trials"]["search"]["runs"] == len(started)
    assert len({nodes for _, nodes, _ in started}) == 1


@pytest.fixture
def commit(gate: Gate, prepare: Prepare) -> Callable[[int, str], list[str]]:
    """Write a recipe with the step time that its build writes, and commits with these
    build lines."""

    def git(*words: str) -> str:
        line = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        process = subprocess.run(
            line, cwd=gate.folder / "recipe", capture_output=True, text=True, check=True
        )
        return process.stdout.strip()

    def write(commits: int, build: str) -> list[str]:
        prepare({})
        script = gate.folder / "recipe" / "launch.sh"
        script.write_text(
            script.read_text().replace("$BUILD", "x").replace("$EACH", "$(cat seconds)")
        )
        git("init", "-q")
        for number in range(commits):
            (gate.folder / "recipe" / "build.sh").write_text(
                f"number={number}\n{build}\n"
            )
            git("add", ".")
            git("commit", "-qm", f"commit {number}")
        (gate.folder / "builds.yaml").write_text(
            f"schema: 1\ncommits: HEAD~{commits - 1}..HEAD\nbuild: [sh, build.sh, $(touch injected)]\n"
        )
        return git("rev-list", "--reverse", "HEAD").split()

    return write


NOTE_BUILD = """\
echo $number >> $STAGE_PATH/built
[ $number != 2 ] || { echo "no rule to make target"; exit 2; }
[ $number -ge 4 ] && echo 1.05 > seconds || echo 1.0 > seconds"""


@pytest.mark.slow
def test_each_commit_is_built_once_before_its_first_run(
    gate: Gate, commit: Callable[[int, str], list[str]]
) -> None:
    """A commit that cannot be built is skipped; the dry run shows the command without
    running it."""
    commits = commit(7, NOTE_BUILD)
    built = gate.folder / "stage" / "built"
    assert (
        gate.run("--llmb-launch", "--llmb-bisect=builds.yaml", "--llmb-dry-run") == 0
    ), gate.output
    assert "&& sh build.sh '$(touch injected)')" in gate.plain
    assert not built.exists()
    assert gate.run(*SEARCH) == 0, gate.output
    outcome = read_outcome(gate)
    assert outcome["text"].startswith(f"first slow: {commits[4][:12]}: +"), outcome[
        "text"
    ]
    numbers = built.read_text().split()
    assert numbers[:2] == ["0", "6"]
    assert len(numbers) == len(set(numbers))
    assert outcome["trials"]["search"]["do_not_run"] == (
        [commits[2][:12]] if "2" in numbers else []
    )
    assert not list(gate.folder.rglob("injected"))
    before = len(read_started(gate))
    assert gate.run(*SEARCH) == 0, gate.output
    assert len(read_started(gate)) == 2 * before
    assert [number for number in built.read_text().split() if number != "2"] == [
        number for number in numbers if number != "2"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_bisection_stopped_during_a_compilation_completes_it_on_resume(
    gate: Gate, commit: Callable[[int, str], list[str]], how: signal.Signals
) -> None:
    """After SIGKILL the build continues and is awaited; an interrupted build is
    repeated. Neither fails."""
    commit(
        3,
        "echo $number >> $STAGE_PATH/built\n"
        "[ $(wc -l < $STAGE_PATH/built) != 2 ] || while [ ! -e $STAGE_PATH/go ]; do sleep 0.1; done\n"
        "[ $number -ge 1 ] && echo 1.05 > seconds || echo 1.0 > seconds",
    )
    built = gate.folder / "stage" / "built"
    process = gate.start(*SEARCH)
    gate.wait_for(lambda: built.exists() and len(built.read_text().split()) == 2)
    process.send_signal(how)
    process.wait(timeout=180)
    gate.go()
    (lock,) = (gate.folder / ".llmbench" / "sessions").iterdir()
    session = f"--llmb-session={lock.stem}"
    assert (
        how is signal.SIGKILL
        or "To resume it, run pytest -p no:cacheprovider -k fake" in gate.plain
    )
    assert gate.run("--llmb-resume", session, "--llmb-json=session.json") == 0, (
        gate.output
    )
    outcome = read_outcome(gate)
    assert outcome["text"].startswith("first slow: "), outcome["text"]
    assert "do not run" not in outcome["text"]
    assert built.read_text().split()[:3] == (
        ["0", "2", "1"] if how is signal.SIGKILL else ["0", "2", "2"]
    )


@pytest.mark.slow
def test_search_runs_in_one_allocation(gate: Gate, prepare: Prepare) -> None:
    """A killed search resumes in the same allocation, which begins with a warm-up of
    each end."""
    wait = "[ $(wc -l < $STAGE_PATH/started) != 8 ] || while [ ! -e $STAGE_PATH/go ]; do sleep 0.1; done"
    prepare({19: 0.02}, 15, 16, 18, after=wait, allocation="shared")
    process = gate.start(*SEARCH)
    gate.wait_for(
        lambda: (
            (gate.folder / "stage" / "started").exists()
            and len(read_started(gate)) == 8
        )
    )
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=180)
    gate.go()
    assert gate.run("--llmb-resume", "--llmb-json=session.json") == 0, gate.output
    outcome, started = read_outcome(gate), read_started(gate)
    assert outcome["text"].startswith("first slow: one of b18 to b19: +"), outcome[
        "text"
    ]
    assert outcome["text"].endswith(", in 1 allocation)")
    assert len({job for job, _, _ in started}) == 1
    assert [build for _, _, build in started[:6]] == [
        "b00",
        "b31",
        "b00",
        "b31",
        "b31",
        "b00",
    ]
    assert "38 runs, 2 of them to warm up" in gate.plain


@pytest.mark.slow
def test_bisection_of_a_git_range_finds_the_first_slow_commit(
    gate: Gate, prepare: Prepare
) -> None:
    """Each run uses the script of its commit."""
    prepare({})
    recipe = gate.folder / "recipe"

    def git(*words: str) -> str:
        line = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(
            line, cwd=recipe, capture_output=True, text=True, check=True
        ).stdout.strip()

    git("init", "-q")
    script = recipe / "launch.sh"
    plain = script.read_text().replace("$BUILD", "x").replace("$EACH", "1.0")
    for number in range(7):
        factor = "1.05 * " if number >= 4 else ""
        script.write_text(
            f"{plain.replace('print 1.0', f'print {factor}1.0')}# {number}\n"
        )
        git("add", ".")
        git("commit", "-qm", f"commit {number}")
    first_slow = git("rev-parse", "HEAD~2")
    assert (
        gate.run(
            "--llmb-launch",
            "--llmb-bisect=git:HEAD~6..HEAD",
            "--llmb-json=session.json",
        )
        == 0
    ), gate.output
    text = read_outcome(gate)["text"]
    assert text.startswith(f"first slow: {first_slow[:12]}: +"), text
    assert gate.run("--llmb-launch", "--llmb-bisect=git:HEAD..HEAD~3") == 4, gate.output
    assert "git:HEAD..HEAD~3: expected up to 511 commits" in gate.plain
