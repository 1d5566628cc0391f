"""A/Bs on a real Slurm: differences, nodes, allocations, interruptions and kills."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.clusters import Cluster
from support.fake_recipe import write_recipe
from support.gates import Gate
from support.outcomes import list_schema_errors

CASE = "fake_8b-24.11-h100-bf16-16"

NOISE = "1.002 0.999 1.001 0.998 1.003 0.997 1.000 1.001"
"""What the steps of the runs take, one after the other, of those of their variant: 0.2
% from run to run."""

RUNS = f"""\
echo "$SLURM_JOB_ID $SLURM_JOB_NODELIST $VARIANT" >> $STAGE_PATH/started
number=$(wc -l < $STAGE_PATH/started)
noise=$(echo "{NOISE} {NOISE}" | cut -d' ' -f$number)
steps $(awk "BEGIN {{ print $EACH * $noise }}")"""

AB = ("--llmb-launch", "--llmb-ab=variants.yaml", "--llmb-json=session.json")


@pytest.fixture
def gate(tmp_path: Path, cluster: Cluster) -> Iterator[Gate]:
    gate = Gate(tmp_path, cluster)
    yield gate
    gate.end()


Prepare = Callable[..., None]


@pytest.fixture
def prepare(gate: Gate) -> Prepare:
    """Write a recipe of two nodes, and variants with these step times."""

    def write(
        *seconds: float,
        before: str = "",
        after: str = "",
        allocation: str = "separate",
        **recipe: Any,
    ) -> None:
        commands = "\n".join(filter(None, (before, RUNS, after)))
        write_recipe(gate.folder, {"8b": commands}, **{"gpus": 16, **recipe})
        variants = [
            f'  - {{name: v{number}, environment: {{VARIANT: v{number}, EACH: "{each}"}}}}\n'
            for number, each in enumerate(seconds)
        ]
        head = f"schema: 1\nallocation: {allocation}\nvariants:\n"
        (gate.folder / "variants.yaml").write_text(head + "".join(variants))

    return write


def read_started(gate: Gate) -> list[list[str]]:
    """Return job id, nodes and variant of every started run, in order."""
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
@pytest.mark.parametrize(
    ("slower", "answer", "order"),
    [
        (1.05, r"v1 is slower than v0: \+5\.\d\d % \(97\.6 %: .*\), 2 pairs", "01 10"),
        (
            1.02,
            r"v1 is slower than v0: \+2\.\d\d % \(\S+ %: .*\), [34] pairs",
            "01 10 10",
        ),
        (
            1.01,
            r"v1 is slower than v0: \+(0\.[6-9]|1\.[0-4])\d % \(\S+ %: .*\), [34] pairs",
            "01 10 10",
        ),
        (0.95, r"v1 is faster than v0: -\d\.\d\d % \(97\.6 %: .*\), 2 pairs", "01 10"),
        (1.0, r"v1 is within 1 % of v0: \S+ % \(92\.8 %: .*\), 4 pairs", "01 10 10 01"),
    ],
)
def test_ab_test_measures_a_planted_slowdown_on_the_same_nodes(
    gate: Gate, prepare: Prepare, slower: float, answer: str, order: str
) -> None:
    """A slower variant fails; the runs follow the procedure's order, all on the same
    nodes."""
    prepare(1.0, slower)
    assert gate.run(*AB) == (1 if slower > 1 else 0), gate.output
    outcome, started = read_outcome(gate), read_started(gate)
    assert re.match(answer, outcome["text"]), outcome["text"]
    made = "".join(variant[1] for _, _, variant in started)
    assert made.startswith(order.replace(" ", ""))
    assert len({nodes for _, nodes, _ in started}) == 1
    assert started[0][1] in outcome["text"]
    assert (outcome["status"], outcome["reason"]) == (
        ("failed", "slower-variant") if slower > 1 else ("skipped", "not-judged")
    )
    (found,) = outcome["trials"]["answers"]
    assert found["estimate"]["difference"] == pytest.approx(slower - 1, abs=0.006)
    assert (
        found["estimate"]["low"]
        < found["estimate"]["difference"]
        < found["estimate"]["high"]
    )
    assert [job["step_seconds"] for job in outcome["jobs"]] == pytest.approx(
        [
            (slower if variant == "v1" else 1.0) * float(noise)
            for (_, _, variant), noise in zip(started, NOISE.split(), strict=False)
        ],
        rel=1e-4,
    )


@pytest.mark.slow
def test_three_compared_variants_share_the_reference_runs(
    gate: Gate, prepare: Prepare
) -> None:
    prepare(1.0, 1.1, 0.9)
    assert gate.run(*AB) == 1, gate.output
    text = read_outcome(gate)["text"]
    assert "v1 is slower than v0: +10." in text
    assert "v2 is faster than v0: -" in text
    assert [variant for _, _, variant in read_started(gate)] == [
        "v0",
        "v1",
        "v2",
        "v2",
        "v1",
        "v0",
    ]


@pytest.mark.slow
def test_runs_of_a_comparison_are_never_judged_as_runs_of_the_recipe(
    gate: Gate, prepare: Prepare
) -> None:
    """Neither in the history nor when their logs are read later."""
    prepare(1.0, 1.3)
    assert gate.run(*AB, "--llmb-history=h.db") == 1, gate.output
    assert (
        gate.run("--llmb-logs=stage", "--llmb-history=h.db", "--llmb-json=session.json")
        != 0
    ), gate.output
    outcome = read_outcome(gate)
    assert outcome["verdict"] in ("MISSING", "NOT_COMPARABLE")
    assert "A/B" in outcome["text"]


@pytest.mark.slow
def test_second_comparison_uses_the_noise_of_the_first(
    gate: Gate, prepare: Prepare
) -> None:
    prepare(1.0, 1.02)
    with_history = (*AB, "--llmb-history=h.db")
    assert gate.run(*with_history) == 1, gate.output
    first = read_outcome(gate)
    assert "noise from" not in first["text"]
    assert first["trials"]["earlier_noise"] is None
    assert first["trials"]["cluster"]
    (gate.folder / "stage" / "started").unlink()
    assert gate.run(*with_history) == 1, gate.output
    second = read_outcome(gate)
    degrees = round(first["trials"]["noise"]["degrees_of_freedom"])
    assert (
        f"pairs; noise from 1 earlier A/B ({degrees} degrees of freedom) (on n"
        in second["text"]
    )
    assert second["trials"]["earlier_noise"] == first["trials"]["noise"]
    assert (
        second["trials"]["answers"][0]["pairs"]
        <= first["trials"]["answers"][0]["pairs"]
    )


@pytest.mark.slow
def test_variant_that_does_not_run_is_reported(gate: Gate, prepare: Prepare) -> None:
    prepare(
        1.0,
        1.0,
        before='[ "$VARIANT" != v1 ] || { echo "RuntimeError: no such kernel"; exit 1; }',
    )
    assert gate.run(*AB) == 1, gate.output
    outcome = read_outcome(gate)
    assert outcome["text"].startswith("v1 does not run, so it was not compared with v0")
    assert (outcome["verdict"], outcome["reason"]) == ("INVALID", "nothing-left")


WAIT_IN_SECOND = "[ $(wc -l < $STAGE_PATH/started) != 2 ] || while [ ! -e $STAGE_PATH/go ]; do sleep 0.1; done"


def stop_in_second(gate: Gate, how: signal.Signals, number: int = 2) -> None:
    """Stop a session during its second run, or another one."""
    process = gate.start(*AB)
    gate.wait_for(
        lambda: (
            (gate.folder / "stage" / "started").exists()
            and len(read_started(gate)) == number
        )
    )
    process.send_signal(how)
    process.wait(timeout=180)


@pytest.mark.slow
def test_killed_ab_test_resumes_without_repeating_finished_runs(
    gate: Gate, prepare: Prepare
) -> None:
    """No run is repeated."""
    prepare(1.0, 1.05, after=WAIT_IN_SECOND)
    stop_in_second(gate, signal.SIGKILL)
    gate.go()
    assert gate.run("--llmb-resume", "--llmb-json=session.json") == 1, gate.output
    assert read_outcome(gate)["text"].startswith("v1 is slower than v0: +5")
    assert [variant for _, _, variant in read_started(gate)] == ["v0", "v1", "v1", "v0"]


@pytest.mark.slow
def test_runs_of_a_killed_comparison_are_never_judged(
    gate: Gate, prepare: Prepare, cluster: Cluster
) -> None:
    """Including the last run, which ended unobserved."""
    prepare(1.0, 1.05, after=WAIT_IN_SECOND)
    stop_in_second(gate, signal.SIGKILL)
    gate.go()
    gate.wait_for(lambda: not cluster.jobs())
    assert len(list((gate.folder / "stage").rglob("log-*.out"))) == 2
    assert gate.run("--llmb-logs=stage", "--llmb-json=session.json") != 0, gate.output
    outcome = read_outcome(gate)
    assert outcome["verdict"] in ("MISSING", "NOT_COMPARABLE"), outcome
    assert "A/B" in outcome["text"]
    assert gate.run("--llmb-resume", "--llmb-json=session.json") == 1, gate.output
    assert read_outcome(gate)["text"].startswith("v1 is slower than v0: +5")


@pytest.mark.slow
def test_interrupted_comparison_leaves_no_job_running(
    gate: Gate, prepare: Prepare, cluster: Cluster
) -> None:
    prepare(1.0, 1.05, after=WAIT_IN_SECOND)
    stop_in_second(gate, signal.SIGINT)
    gate.wait_for(lambda: not cluster.jobs())
    assert "1 job cancelled" in gate.plain
    assert len(read_started(gate)) == 2


@pytest.mark.slow
def test_changed_variants_are_refused_on_resume(
    gate: Gate, prepare: Prepare, cluster: Cluster
) -> None:
    prepare(1.0, 1.05, after=WAIT_IN_SECOND)
    stop_in_second(gate, signal.SIGKILL)
    gate.go()
    file = gate.folder / "variants.yaml"
    file.write_text(file.read_text().replace("1.05", "1.06"))
    assert gate.run("--llmb-resume") == 4, gate.output
    assert (
        "variants.yaml: the variants differ from those with which session" in gate.plain
    )
    gate.wait_for(lambda: not cluster.jobs())


@pytest.mark.slow
def test_commit_is_checked_out_in_the_journal_folder(
    gate: Gate, prepare: Prepare
) -> None:
    """Each variant runs the script of its commit; the recipe's folder is unchanged."""
    prepare(1.0, 1.0)
    recipe = gate.folder / "recipe"

    def git(*words: str) -> str:
        process = subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words],
            cwd=recipe,
            capture_output=True,
            text=True,
            check=True,
        )
        return process.stdout.strip()

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "good")
    script = recipe / "launch.sh"
    slow = script.read_text().replace("$EACH *", "1.05 * $EACH *")
    script.write_text(slow)
    git("commit", "-qam", "slow")
    good, bad = git("rev-parse", "HEAD~1"), git("rev-parse", "HEAD")
    (gate.folder / "variants.yaml").write_text(
        "schema: 1\nvariants:\n"
        f'  - {{name: good, commit: {good}, environment: {{VARIANT: v0, EACH: "1.0"}}}}\n'
        f'  - {{name: bad, commit: HEAD, environment: {{VARIANT: v1, EACH: "1.0"}}}}\n'
    )
    assert gate.run(*AB) == 1, gate.output
    assert read_outcome(gate)["text"].startswith("bad is slower than good: +5")
    checkouts = (gate.folder / ".llmbench" / "checkouts").iterdir()
    assert {path.name for path in checkouts if path.is_dir()} == {good, bad}
    assert script.read_text() == slow


# --- all runs in one allocation -------------------------------------------------------


def wait_in(number: int) -> str:
    """Return a command that waits in the run with this number."""
    return WAIT_IN_SECOND.replace("!= 2", f"!= {number}")


def list_variants(gate: Gate) -> str:
    """Return the variants of all started runs in order, such as `01 10`, separated by
    job."""
    runs: dict[str, str] = {}
    for job, _, variant in read_started(gate):
        runs[job] = runs.get(job, "") + variant[1]
    return " ".join(runs.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slower", "answer", "order"),
    [
        (
            1.05,
            r"v1 is slower than v0: \+[45]\.\d\d % \(97\.6 %: .*\), 2 pairs \(on n\S+, in 1 allocation\)",
            "010110",
        ),
        (
            1.0,
            r"v1 is within 1 % of v0: \S+ % \(92\.8 %: .*\), 4 pairs \(on n\S+, in 1 allocation\)",
            "0101101001",
        ),
    ],
)
def test_comparison_runs_in_one_allocation(
    gate: Gate, prepare: Prepare, slower: float, answer: str, order: str
) -> None:
    """It is Slurm's only job; the first run of each variant is a warm-up, and the plan
    is printed."""
    prepare(
        1.0,
        slower,
        before="squeue --noheader --format=%A >> $STAGE_PATH/queue",
        allocation="shared",
    )
    assert gate.run(*AB) == (1 if slower > 1 else 0), gate.output
    outcome = read_outcome(gate)
    assert re.match(answer, outcome["text"]), outcome["text"]
    assert list_variants(gate) == order
    ids = {job for job, _, _ in read_started(gate)}
    assert set((gate.folder / "stage" / "queue").read_text().split()) == ids
    assert (
        outcome["trials"]["allocations"],
        outcome["trials"]["separate_because"],
    ) == (1, None)
    assert [job["text"] for job in outcome["jobs"][:3]] == [
        "v0, to warm up",
        "v1, to warm up",
        "v0",
    ]
    assert outcome["jobs"][-1]["purpose"] == "allocation"
    assert outcome["gpu_hours"]["used"] == outcome["jobs"][-1]["gpu_hours"]["used"] > 0
    runs = "all runs share one allocation: 2 nodes for at most 1:53:00, 30.1 GPU-hours; 10 runs, 2 of them to warm up"
    assert runs in gate.plain
    assert not list((gate.folder / "stage" / "results").rglob("*.out"))


@pytest.mark.slow
def test_failed_slurm_step_in_a_shared_allocation_invalidates_only_its_own_run(
    gate: Gate, prepare: Prepare
) -> None:
    """Also if its script succeeds and an earlier run left a step; later runs are not
    blamed."""
    steps = """\
[ $(wc -l < $STAGE_PATH/started) != 1 ] || { srun --overlap -N1 -n1 sleep 300 & sleep 1; }
srun -N2 -n2 sh -c 'echo $SLURMD_NODENAME >> $STAGE_PATH/steps'
[ $(wc -l < $STAGE_PATH/started) != 2 ] || srun -N2 -n2 false || true"""
    prepare(1.0, 1.1, after=steps, allocation="shared")
    assert gate.run(*AB) == 1, gate.output
    outcome = read_outcome(gate)
    assert outcome["text"].startswith("v1 is slower than v0: +10.")
    assert "a step of it failed with exit code 1" in outcome["jobs"][1]["text"]
    assert list_variants(gate) == "0110110"
    assert (
        sorted((gate.folder / "stage" / "steps").read_text().split())
        == ["n1"] * 7 + ["n2"] * 7
    )


@pytest.mark.slow
def test_exhausted_gpu_hours_end_the_allocation(gate: Gate, prepare: Prepare) -> None:
    """The runs take longer than estimated, because start-up counts, too."""
    prepare(1.0, 1.05, after="sleep 2", allocation="shared")
    file = gate.folder / "baselines" / "fake.yaml"
    file.write_text(file.read_text().replace('step_time: "1.00"', 'step_time: "0.01"'))
    assert gate.run(*AB, "--llmb-gpu-hours=0.03") == 1, gate.output
    outcome = read_outcome(gate)
    assert outcome["text"].startswith(
        "the A/B is incomplete: a further run was not started"
    )
    assert "of the 0.03 allowed are used" in gate.plain
    assert 1 <= len(read_started(gate)) <= 3
    assert {job for job, _, _ in read_started(gate)} == {outcome["jobs"][-1]["job_id"]}


@pytest.mark.slow
def test_variant_that_does_not_run_ends_the_allocation(
    gate: Gate, prepare: Prepare
) -> None:
    broken = '[ "$VARIANT" != v1 ] || { echo "RuntimeError: no such kernel"; exit 1; }'
    prepare(1.0, 1.0, after=broken, allocation="shared")
    assert gate.run(*AB) == 1, gate.output
    assert read_outcome(gate)["text"].startswith(
        "v1 does not run, so it was not compared with v0"
    )
    assert list_variants(gate) == "011"


@pytest.mark.slow
def test_interrupted_comparison_leaves_no_allocation(
    gate: Gate, prepare: Prepare, cluster: Cluster
) -> None:
    prepare(1.0, 1.05, after=wait_in(3), allocation="shared")
    stop_in_second(gate, signal.SIGINT, 3)
    gate.wait_for(lambda: not cluster.jobs())
    assert "1 job cancelled" in gate.plain
    assert list_variants(gate) == "010"


@pytest.mark.slow
def test_killed_comparison_resumes_in_its_allocation(
    gate: Gate, prepare: Prepare
) -> None:
    """No run is repeated."""
    prepare(1.0, 1.05, after=wait_in(4), allocation="shared")
    stop_in_second(gate, signal.SIGKILL, 4)
    gate.go()
    assert gate.run("--llmb-resume", "--llmb-json=session.json") == 1, gate.output
    assert re.match(r"v1 is slower than v0: \+[45]", read_outcome(gate)["text"])
    assert list_variants(gate) == "010110"


@pytest.mark.slow
def test_killed_comparison_resumes_in_a_new_allocation(
    gate: Gate, prepare: Prepare, cluster: Cluster
) -> None:
    """Ended runs count; the new allocation warms up again, on the same nodes."""
    prepare(1.0, 1.05, after=wait_in(5), allocation="shared")
    stop_in_second(gate, signal.SIGKILL, 5)
    cluster.cancel_all()
    gate.go()
    assert gate.run("--llmb-resume", "--llmb-json=session.json") == 1, gate.output
    outcome = read_outcome(gate)
    assert re.match(
        r"v1 is slower than v0: \+[45].*in 2 allocations\)", outcome["text"]
    ), outcome["text"]
    assert list_variants(gate) == "01011 0101"
    assert len({nodes for _, nodes, _ in read_started(gate)}) == 1


@pytest.mark.slow
def test_ab_test_repeats_the_run_in_progress_if_its_allocation_is_cancelled(
    gate: Gate, prepare: Prepare, cluster: Cluster
) -> None:
    """The run is no failure of its variant, and is repeated in a new allocation."""
    prepare(1.0, 1.05, after=wait_in(3), allocation="shared")
    process = gate.start(*AB)
    gate.wait_for(
        lambda: (
            (gate.folder / "stage" / "started").exists()
            and len(read_started(gate)) == 3
        )
    )
    (job,) = cluster.jobs()
    cluster.run("scancel", job)
    cluster.wait(job, "CANCELLED")
    gate.go()
    assert process.wait(timeout=180) == 1, gate.output
    outcome = read_outcome(gate)
    assert re.match(r"v1 is slower than v0: \+[45]", outcome["text"]), outcome["text"]
    assert list_variants(gate) == "010 011010"
    assert "the allocation of the run ended: CANCELLED" in outcome["jobs"][2]["text"]


@pytest.fixture
def failing_node(cluster: Cluster) -> Iterator[str]:
    yield "n2"
    cluster.ask(
        "scontrol", "update", "NodeName=n2", "State=RESUME"
    )  # refused where it is back already


def lose_node(cluster: Cluster, job: str) -> None:
    cluster.run("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test")
    cluster.wait(job, "NODE_FAIL")


@pytest.mark.slow
@pytest.mark.usefixtures("failing_node")
@pytest.mark.parametrize(
    ("end", "state"), [(Cluster.end_in_time, "TIMEOUT"), (lose_node, "NODE_FAIL")]
)
def test_ab_test_repeats_the_run_in_progress_if_its_allocation_times_out(
    gate: Gate, prepare: Prepare, end: Callable[[Cluster, str], None], state: str
) -> None:
    """At the time limit of all runs, which blames no single run, or after a node
    failure."""
    prepare(1.0, 1.05, after=wait_in(4), allocation="shared")
    process = gate.start(*AB)
    gate.wait_for(
        lambda: (
            (gate.folder / "stage" / "started").exists()
            and len(read_started(gate)) == 4
        )
    )
    (job,) = gate.cluster.jobs()
    end(gate.cluster, job)
    gate.go()
    assert process.wait(timeout=180) == 1, gate.output
    outcome = read_outcome(gate)
    assert re.match(
        r"v1 is slower than v0: \+[45].*in 2 allocations\)", outcome["text"]
    ), outcome["text"]
    assert list_variants(gate) == "0101 01110"
    assert len({nodes for _, nodes, _ in read_started(gate)}) == 1
    assert f"the allocation of the run ended: {state}" in outcome["jobs"][3]["text"]
    assert outcome["jobs"][3]["step_seconds"] is None


@pytest.mark.slow
def test_ab_test_is_invalid_if_its_nodes_stay_unavailable(
    gate: Gate, prepare: Prepare, cluster: Cluster, failing_node: str
) -> None:
    """They are awaited for a while, because they may come back."""
    prepare(1.0, 1.05, after=wait_in(4), allocation="shared")
    gate.gone_seconds = 2.0
    process = gate.start(*AB)
    gate.wait_for(
        lambda: (
            (gate.folder / "stage" / "started").exists()
            and len(read_started(gate)) == 4
        )
    )
    (job,) = cluster.jobs()
    cluster.run(
        "scontrol", "update", f"NodeName={failing_node}", "State=DRAIN", "Reason=test"
    )
    cluster.run("scancel", job)
    gate.go()
    assert process.wait(timeout=180) == 1, gate.output
    outcome = read_outcome(gate)
    assert outcome["verdict"] == "INVALID"
    assert re.search(
        r"two jobs in a row were lost .* UnavailableNodes:n2: its nodes are down",
        outcome["text"],
    )
    assert "wait until their nodes are back" in gate.plain
    assert list_variants(gate) == "0101"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("partition", "launcher", "why"),
    [
        (
            "partition: short\n",
            "sbatch",
            "1:53:00 for all runs exceed the limit 0:10:00 of partition short",
        ),
        ("", "script", "its launcher submits jobs itself"),
    ],
)
def test_dry_run_explains_why_runs_of_an_ab_test_share_no_allocation(
    gate: Gate, prepare: Prepare, partition: str, launcher: str, why: str
) -> None:
    prepare(1.0, 1.05, allocation="shared", cluster=partition, gpus=8)
    assert gate.run(*AB, "--llmb-dry-run", f"--llmb-launcher={launcher}") == 0, (
        gate.output
    )
    assert f"each run is a separate job, on the nodes of the first: {why}" in gate.plain
