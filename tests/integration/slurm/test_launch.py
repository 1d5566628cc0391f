"""Whole sessions on a real Slurm.

After each, no job is left or submitted twice, and the verdicts are right.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from support.clusters import Cluster
from support.fake_recipe import WELL, write_recipe
from support.gates import Gate

WAIT = "while [ ! -e $STAGE_PATH/go ]; do sleep 0.1; done"
"""A job that runs until the test lets it go on."""

COUNTED = "echo $SLURM_JOB_ID >> $STAGE_PATH/started"


@pytest.fixture
def gate(tmp_path: Path, cluster: Cluster) -> Iterator[Gate]:
    gate = Gate(tmp_path, cluster)
    yield gate
    gate.end()


LAUNCH = ("--llmb-launch", "--junitxml=junit.xml", "--llmb-json=session.json")


@pytest.mark.slow
def test_each_way_in_which_a_launched_job_ends_gives_its_own_verdict(
    gate: Gate,
) -> None:
    behaviours = {
        "ok": WELL,
        "exit1": "steps 1.0 0 20; echo 'RuntimeError: no such layer'; exit 1",
        "segv": "steps 1.0 0 20; kill -SEGV $$",
        "step": f"srun --ntasks=1 false || true; {WELL}",
        "half": "steps 1.0 0 20",
        "nolog": "rm -rf $STAGE_PATH/results/24.11/$DTYPE/$MODEL_SIZE",
    }
    write_recipe(gate.folder, behaviours)
    assert gate.run(*LAUNCH) == 1, gate.output
    assert gate.outcomes == {
        "ok": "PASS within-tolerance",
        "exit1": "INVALID job-failed",
        "segv": "INVALID job-failed",
        "step": "INVALID failed-step",
        "half": "INVALID incomplete",
        "nolog": "INVALID no-steps",
    }, gate.output
    assert "no such layer" in gate.output


@pytest.mark.slow
def test_slow_software_needs_two_runs_on_different_nodes(gate: Gate) -> None:
    write_recipe(gate.folder, {"slow": f"{COUNTED}; steps 1.2"})
    assert gate.run(*LAUNCH) == 1
    assert gate.outcomes == {"slow": "REGRESSION slower-than-bound"}, gate.output
    assert len(gate.submitted()) == 2
    assert "slow on different nodes (1.200 s on n2; 1.200 s on n1)" in " ".join(
        gate.output.split()
    )


@pytest.mark.slow
def test_slow_node_is_distinguished_from_slow_software(gate: Gate) -> None:
    slow = f"{COUNTED}; if [ $SLURM_JOB_NODELIST = n1 ]; then steps 1.3; else steps 1.0; fi"
    write_recipe(gate.folder, {"node": slow})
    assert gate.run(*LAUNCH) == 1
    assert "REGRESSION" not in gate.outcomes["node"], gate.output
    assert len(gate.submitted()) == 4  # the last job confirms that n1 is slow
    assert "the node n1 is slow each time" in " ".join(gate.output.split()), gate.output
    assert "--llmb-exclude=n1" in gate.output
    assert "exclude the nodes" in gate.output


@pytest.mark.slow
def test_node_check_of_a_slow_node_is_reported_with_slurms_drain_reason(
    gate: Gate,
) -> None:
    slow = "echo 'NVRM: Xid (PCI:0a): 63'; if [ $SLURM_JOB_NODELIST = n1 ]; then steps 1.3; else steps 1.0; fi"
    write_recipe(gate.folder, {"node": slow})
    check = "echo bandwidth of $SLURM_JOB_NODELIST; scontrol update NodeName=n1 State=DRAIN Reason=nvlink; exit 3"
    try:
        assert gate.run(*LAUNCH, f"--llmb-node-checks={check}") == 1
    finally:
        gate.cluster.ask("scontrol", "update", "NodeName=n1", "State=RESUME")
    told = " ".join(gate.output.split())
    assert "the node n1 is slow each time" in told, gate.output
    assert "exit code 3; it printed: bandwidth of n1" in told, gate.output
    assert "sinfo -R: n1: nvlink (" in told, gate.output
    assert ".out:1: NVRM: Xid (PCI:0a): 63" in told, gate.output


@pytest.mark.slow
def test_exclusion_of_a_node_that_was_slow_once_is_not_suggested(gate: Gate) -> None:
    once = f"{COUNTED}; if [ $(wc -l <$STAGE_PATH/started) = 1 ]; then steps 1.3; else steps 1.0; fi"
    write_recipe(gate.folder, {"node": once})
    assert gate.run(*LAUNCH) == 1
    assert "slow and fast on the same nodes" in " ".join(gate.output.split()), (
        gate.output
    )
    assert "--llmb-exclude" not in gate.output


@pytest.mark.slow
def test_repeat_runs_on_the_same_nodes_if_it_needs_the_whole_cluster(
    gate: Gate,
) -> None:
    write_recipe(gate.folder, {"slow": f"{COUNTED}; steps 1.2"}, gpus=32)
    assert gate.run(*LAUNCH) == 1
    assert gate.outcomes == {"slow": "REGRESSION slower-than-bound"}, gate.output
    assert len(gate.submitted()) == 2
    assert (
        "slow each time, each time with n[1-4]: the software or these nodes are slow"
        in " ".join(gate.output.split())
    )


@pytest.mark.slow
def test_recipe_with_a_submitting_script_is_launched_and_judged(gate: Gate) -> None:
    write_recipe(gate.folder, {"ok": f"{COUNTED}; {WELL}"}, kind="script")
    assert gate.run(*LAUNCH) == 0, gate.output
    assert gate.outcomes == {"ok": "PASS within-tolerance"}
    assert len(gate.submitted()) == 1


def running(gate: Gate) -> str:
    """Wait until the only job runs, and return its id."""
    gate.wait_for(gate.submitted)
    return gate.submitted()[0]


@pytest.mark.slow
def test_run_at_its_time_limit_fails(gate: Gate) -> None:
    write_recipe(gate.folder, {"long": f"{COUNTED}; steps 1.0 0 20; sleep 600"})
    process = gate.start(*LAUNCH)
    job = running(gate)
    gate.cluster.end_in_time(job)
    assert process.wait(timeout=180) == 1
    assert gate.outcomes == {"long": "INVALID incomplete"}, gate.output
    assert "time limit" in gate.output.lower()


@pytest.mark.slow
def test_run_is_invalid_if_its_job_is_cancelled_with_scancel(gate: Gate) -> None:
    write_recipe(gate.folder, {"long": f"{COUNTED}; steps 1.0 0 20; sleep 600"})
    process = gate.start(*LAUNCH)
    gate.cluster.run("scancel", running(gate))
    assert process.wait(timeout=180) == 1
    assert gate.outcomes == {"long": "INVALID cancelled"}, gate.output
    assert len(gate.submitted()) == 1


@pytest.mark.slow
def test_requeued_job_is_awaited(gate: Gate) -> None:
    commands = f"{COUNTED}; if [ ${{SLURM_RESTART_COUNT:-0}} = 0 ]; then steps 1.0 0 20; sleep 600; fi; {WELL}"
    write_recipe(gate.folder, {"again": commands})
    process = gate.start(*LAUNCH)
    job = running(gate)
    time.sleep(1.1)  # Slurm counts whole seconds
    gate.cluster.run("scontrol", "requeue", job)
    gate.wait_for(lambda: gate.cluster.state(job) == "PENDING")
    time.sleep(2)  # Slurm fails a job that restarts in the same second
    gate.cluster.ask(
        "scontrol", "update", f"JobId={job}", "StartTime=now"
    )  # Slurm delays it by two minutes
    gate.cluster.ask("scontrol", "release", job)
    assert process.wait(timeout=180) == 0, gate.output
    assert gate.outcomes == {"again": "PASS within-tolerance"}
    assert gate.submitted() == [job, job]
    hours = gate.gpu_hours
    assert (
        0 < hours["lost"]["requeued"] <= hours["used"]
    )  # the second start may take less than a second
    assert (hours["lost"]["failed"], hours["unknown_jobs"]) == (0, [])
    assert f"job {job} was requeued and starts again" in gate.plain, gate.output


@pytest.mark.slow
def test_job_with_lost_node_is_retried_and_reported(
    gate: Gate,
) -> None:
    write_recipe(
        gate.folder,
        {
            "ok": f"{COUNTED}; [ $SLURM_JOB_NODELIST != n1 ] || sleep 300; sleep 1.1; {WELL}"
        },
        directives="#SBATCH --no-requeue\n",
    )
    process = gate.start(*LAUNCH)
    first = running(gate)
    time.sleep(1.1)  # Slurm counts whole seconds
    gate.cluster.run("scontrol", "update", "NodeName=n1", "State=DOWN", "Reason=test")
    try:
        assert process.wait(timeout=180) == 0, gate.output
    finally:
        gate.cluster.ask(
            "scontrol", "update", "NodeName=n1", "State=RESUME"
        )  # the node may be back already
    assert gate.outcomes == {"ok": "PASS within-tolerance"}
    assert len(gate.submitted()) == 2
    assert f"2 attempts: job {first} on n1: NODE_FAIL" in " ".join(gate.output.split())
    hours = gate.gpu_hours
    assert 0 < hours["lost"]["failed"] < hours["used"]
    assert hours["lost"]["requeued"] == 0


STALL = "--llmb-stall-limit=0.15m"
"""A job that hangs is reported after 9 s, and cancelled after 18."""

HANGS = f"{COUNTED}; steps 1.0 0 4; sleep 300"


def find_nodes(gate: Gate, jobs: Sequence[str]) -> list[str]:
    """Return the node of each job."""
    shown = (gate.cluster.run("scontrol", "show", "job", job) for job in jobs)
    return [re.findall(r"\bNodeList=(n\d+)", text)[0] for text in shown]


@pytest.mark.slow
def test_hanging_jobs_are_retried_while_slow_ones_continue(gate: Gate) -> None:
    """One job hangs on each node, one is slow, and one prints its first step late."""
    here = "echo $SLURM_JOB_ID >> $STAGE_PATH/started-$MODEL_SIZE"
    slow = "for number in $(seq 0 49); do steps 1.0 $number $number; sleep 0.1; done"
    write_recipe(
        gate.folder,
        {
            "hangs": HANGS,
            "slow": slow,
            "late": f"{here}; {WAIT}; {WELL}",
        },
    )
    process = gate.start(*LAUNCH, STALL)
    started = gate.folder / "stage"
    gate.wait_for((started / "started-late").exists)
    [late] = (started / "started-late").read_text().split()
    gate.wait_for(lambda: f"job {late} stalled on " in gate.plain)
    gate.go()
    assert process.wait(timeout=180) == 1, gate.output
    assert gate.outcomes == {
        "hangs": "INVALID hung",
        "slow": "PASS within-tolerance",
        "late": "PASS within-tolerance",
    }, gate.output
    assert gate.cluster.jobs() == []
    assert "stalls: warn after 0.15 min, cancel after 0.3 min" in gate.plain
    jobs = gate.submitted()
    nodes = find_nodes(gate, jobs)
    assert len(jobs) == 2
    assert nodes[0] != nodes[1]
    for job, node in zip(jobs, nodes, strict=True):
        assert f"job {job} stalled on {node}" in gate.plain
        assert re.search(
            rf"job {job} on {node}: it stalled for \d+ s after step 5/50",
            gate.plain,
        )
    assert "give it more time" not in gate.plain
    assert "py-spy" in gate.plain


@pytest.mark.slow
def test_pass_of_a_retried_job_notes_the_node_on_which_it_hung(
    gate: Gate,
) -> None:
    write_recipe(
        gate.folder,
        {"node": f"{COUNTED}; [ $SLURM_JOB_NODELIST != n1 ] || sleep 300; {WELL}"},
    )
    assert gate.run(*LAUNCH, STALL) == 0, gate.output
    first, _ = gate.submitted()
    assert gate.outcomes == {"node": "PASS within-tolerance"}
    assert f"2 attempts: job {first} on n1: CANCELLED (it stalled" in gate.plain


def read_journal(gate: Gate, question: str) -> str:
    """Return the rows of a query of the journal; empty while it is incomplete."""
    try:
        with closing(
            sqlite3.connect(f"file:{gate.folder}/.llmbench/launch.db?mode=ro", uri=True)
        ) as journal:
            return "".join(str(row[0]) for row in journal.execute(question))
    except sqlite3.OperationalError:
        return ""


@pytest.mark.slow
def test_job_that_stalled_until_its_time_limit_is_a_hang_after_resuming(
    gate: Gate,
) -> None:
    write_recipe(gate.folder, {"hangs": HANGS})
    process = gate.start(*LAUNCH, STALL)
    first = running(gate)
    gate.wait_for(lambda: f"job {first} stalled" in gate.plain)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    gate.cluster.end_in_time(first)
    assert gate.run("--llmb-resume", "--junitxml=junit.xml", STALL) == 1, gate.output
    assert gate.outcomes == {"hangs": "INVALID hung"}
    assert len(gate.submitted()) == 2
    assert re.search(
        rf"job {first} on n\d: it stalled for \d+ s after step 5/50 \(.*?\), until its time limit",
        gate.plain,
    )
    assert gate.cluster.jobs() == []


@pytest.mark.slow
def test_job_pending_for_resources_is_awaited(gate: Gate) -> None:
    write_recipe(gate.folder, {"ok": WELL})
    blocker = gate.cluster.submit("sleep 300", "-N4", "--exclusive")
    gate.cluster.wait(blocker, "RUNNING")
    process = gate.start(*LAUNCH)
    gate.wait_for(
        lambda: (
            "pending" in gate.output
            and ("Resources" in gate.output or "Priority" in gate.output)
        )
    )
    gate.cluster.run("scancel", blocker)
    assert process.wait(timeout=180) == 0, gate.output
    assert gate.outcomes == {"ok": "PASS within-tolerance"}


@pytest.mark.slow
def test_job_pending_forever_is_cancelled_and_reported(gate: Gate) -> None:
    failed = gate.cluster.submit("exit 1")
    gate.cluster.wait(failed, "FAILED")
    write_recipe(
        gate.folder, {"ok": WELL}, directives=f"#SBATCH --dependency=afterok:{failed}\n"
    )
    assert gate.run(*LAUNCH) == 1
    assert gate.outcomes == {"ok": "INVALID never-started"}, gate.output
    assert "DependencyNeverSatisfied" in gate.output


@pytest.mark.slow
def test_temporarily_missing_controller_is_awaited(gate: Gate) -> None:
    write_recipe(gate.folder, {"ok": f"{COUNTED}; {WAIT}; {WELL}"})
    process = gate.start(*LAUNCH)
    running(gate)
    gate.cluster.stop_controller()
    try:
        gate.wait_for(lambda: "not answer" in gate.output)
        gate.go()
    finally:
        gate.cluster.start_controller()
    assert process.wait(timeout=180) == 0, gate.output
    assert gate.outcomes == {"ok": "PASS within-tolerance"}
    assert len(gate.submitted()) == 1


@pytest.mark.slow
def test_killed_session_resumes_without_duplicate_submission(gate: Gate) -> None:
    write_recipe(
        gate.folder,
        {"one": f"{COUNTED}; {WAIT}; {WELL}", "two": f"{COUNTED}; {WAIT}; {WELL}"},
    )
    process = gate.start(*LAUNCH)
    gate.wait_for(lambda: len(gate.submitted()) == 2)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    gate.go()
    assert gate.run("--llmb-resume", "--junitxml=junit.xml") == 0, gate.output
    assert gate.outcomes == {
        "one": "PASS within-tolerance",
        "two": "PASS within-tolerance",
    }
    assert len(gate.submitted()) == 2


@pytest.mark.slow
def test_resumed_session_counts_earlier_gpu_hours(gate: Gate) -> None:
    write_recipe(
        gate.folder,
        {"one": f"{COUNTED}; sleep 2; {WELL}", "two": f"{COUNTED}; {WAIT}; {WELL}"},
    )
    process = gate.start(*LAUNCH)
    gate.wait_for(lambda: "ended COMPLETED" in gate.output)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    gate.go()
    assert (
        gate.run("--llmb-resume", "--junitxml=junit.xml", "--llmb-json=session.json")
        == 0
    ), gate.output
    assert re.search(
        r"[0-9.]+ GPU-hours were used before the interruption", gate.output
    ), gate.output
    assert gate.gpu_hours["used"] >= 2 * 8 / 3600


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.1, 0.2, 0.4])
def test_session_killed_anytime_submits_jobs_once(gate: Gate, delay: float) -> None:
    sizes = [f"s{number}" for number in range(6)]
    write_recipe(gate.folder, dict.fromkeys(sizes, f"{COUNTED}; {WAIT}; {WELL}"))
    process = gate.start(*LAUNCH)
    gate.wait_for(lambda: read_journal(gate, "select id from session"))
    time.sleep(delay)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, gate.output
    gate.go()
    assert gate.run("--llmb-resume", "--junitxml=junit.xml") == 0, gate.output
    assert gate.outcomes == dict.fromkeys(sizes, "PASS within-tolerance")
    assert len(gate.submitted()) == len(sizes)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_session_cancels_exactly_its_jobs(
    gate: Gate, number: signal.Signals
) -> None:
    other = gate.cluster.submit("sleep 300")
    write_recipe(
        gate.folder, {"one": f"{COUNTED}; sleep 300", "two": f"{COUNTED}; sleep 300"}
    )
    process = gate.start(*LAUNCH)
    gate.wait_for(lambda: len(gate.submitted()) == 2)
    process.send_signal(number)
    assert process.wait(timeout=180) == 2, gate.output
    assert gate.cluster.jobs() == [other]
    assert re.search(
        r"2 jobs cancelled, [0-9.]+ GPU-hours used", " ".join(gate.output.split())
    )
    gate.cluster.run("scancel", other)
    gate.wait_for(lambda: not gate.cluster.jobs())


@pytest.mark.slow
def test_resumed_session_judges_the_jobs_that_an_interrupted_one_kept_running(
    gate: Gate,
) -> None:
    write_recipe(gate.folder, {"one": f"{COUNTED}; {WAIT}; {WELL}"})
    process = gate.start(*LAUNCH, "--llmb-keep-jobs")
    job = running(gate)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=180) == 2
    assert gate.cluster.jobs() == [job]
    gate.go()
    assert gate.run("--llmb-resume", "--junitxml=junit.xml") == 0, gate.output
    assert gate.outcomes == {"one": "PASS within-tolerance"}
    assert gate.submitted() == [job]


@pytest.mark.slow
def test_resumed_session_cancels_the_jobs_kept_by_the_earlier_session_if_stopped(
    gate: Gate,
) -> None:
    other = gate.cluster.submit("sleep 300")
    write_recipe(gate.folder, {"one": f"{COUNTED}; sleep 300"})
    process = gate.start(*LAUNCH, "--llmb-keep-jobs")
    job = running(gate)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=180) == 2
    assert f"may still run: job {job}" in gate.plain
    stop = "import os, signal\n\ndef {}: os.kill(os.getpid(), signal.SIGTERM)\n"
    hook = gate.folder / "conftest.py"
    hook.write_text(stop.format("pytest_collection_finish(session)"))
    assert gate.run("--llmb-resume") == 2
    assert (
        f"was resumed; may still run: job {job}; cancel with `scancel {job}`"
        in gate.plain
    )
    assert len(gate.cluster.jobs()) == 2
    hook.unlink()
    process = gate.start("--llmb-resume")
    gate.wait_for(lambda: "resuming session" in gate.output)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=180) == 2
    assert "1 job cancelled" in gate.plain
    assert gate.cluster.jobs() == [other]
    gate.cluster.run("scancel", other)
    gate.wait_for(lambda: not gate.cluster.jobs())


@pytest.mark.slow
def test_jobs_of_a_submit_only_session_are_judged_by_a_collect_session(
    gate: Gate,
) -> None:
    write_recipe(
        gate.folder, {"one": f"{COUNTED}; {WELL}", "slow": f"{COUNTED}; steps 1.2"}
    )
    assert gate.run("--llmb-submit-only") == 0, gate.output
    gate.wait_for(lambda: len(gate.submitted()) == 2)
    assert (
        gate.run("--llmb-collect", "--junitxml=junit.xml", "--llmb-json=session.json")
        == 1
    ), gate.output
    assert gate.outcomes == {
        "one": "PASS within-tolerance",
        "slow": "INCONCLUSIVE unconfirmed",
    }
    assert len(gate.submitted()) == 2  # collecting starts nothing
    assert sum(gate.gpu_hours["lost"].values()) == 0
    assert gate.gpu_hours["limit"] is None
    assert gate.output.count("GPU-hours of steps") == 1


WAITED = 'steps 1.0 0 20; echo "[rank3]: Watchdog caught collective operation timeout: $HF_TOKEN"; srun --ntasks=1 false'
"""A job that dies as NCCL gives up, and prints its token."""


@pytest.mark.slow
def test_jobs_are_collected_from_another_folder_without_the_secret_hf_token(
    gate: Gate, tmp_path: Path
) -> None:
    close = f"{COUNTED}; steps 1.045"
    write_recipe(
        gate.folder, {"one": f"{COUNTED}; {WELL}", "close": close, "waited": WAITED}
    )
    cluster = gate.folder / "cluster.yaml"
    cluster.write_text(
        cluster.read_text().replace(
            "environment: {", 'environment: {HF_TOKEN: "${HF_TOKEN}", '
        )
    )
    elsewhere = Gate(tmp_path / "morning", gate.cluster)
    elsewhere.folder.mkdir()
    os.environ["HF_TOKEN"] = "hf_53cr3t"
    try:
        assert gate.run("--llmb-submit-only") == 0, gate.output
        start = gate.output.index("pytest -k fake --llmb-collect")
        collect = shlex.split(
            gate.output[start : gate.output.index("\n\n", start)].replace("\\\n", "")
        )[1:]
        del os.environ["HF_TOKEN"]
        assert elsewhere.run("--llmb-collect", "-q") == 4
        assert f"    --llmb-journal={gate.folder}/.llmbench" in elsewhere.output
        reports = ("--junitxml=junit.xml", "--llmb-json=a.json", "--llmb-html=a.html")
        assert elsewhere.run(*collect, *reports) == 1, elsewhere.output
        assert elsewhere.outcomes == {
            "one": "PASS within-tolerance",
            "close": "INCONCLUSIVE cannot-tell",
            "waited": "INVALID job-failed",
        }
        for name in ("out.txt", "junit.xml", "a.json", "a.html"):
            text = (elsewhere.folder / name).read_text()
            assert "NCCL gave up" in " ".join(text.split()), name
            assert "hf_53cr3t" not in text
        assert "exit code 1" in elsewhere.output
        [outcome] = [
            outcome
            for outcome in json.loads((elsewhere.folder / "a.json").read_text())[
                "outcomes"
            ]
            if "close" in outcome["id"]
        ]
        repeated_command = shlex.split(outcome["resume"]["command"])[1:]
        assert outcome["resume"]["secrets"] == ["HF_TOKEN"]
        os.environ["HF_TOKEN"] = "hf_53cr3t"
        assert elsewhere.run(*repeated_command) == 1, elsewhere.output
    finally:
        os.environ.pop("HF_TOKEN", None)
    made = len(gate.submitted())
    assert made > 2, "what cannot tell was repeated"
    jobs = [
        outcome["jobs"]
        for outcome in json.loads((elsewhere.folder / "a.json").read_text())["outcomes"]
        if "close" in outcome["id"]
    ]
    assert len(jobs[0]) == made - 1


@pytest.mark.slow
def test_finished_launch_session_is_judged_again_if_named_by_an_option(
    gate: Gate,
) -> None:
    """The report may be lost although the session is finished."""
    write_recipe(gate.folder, {"one": f"{COUNTED}; {WELL}"})
    assert gate.run(*LAUNCH) == 0, gate.output
    [session] = [path.name for path in (gate.folder / ".llmbench" / "jobs").iterdir()]
    (gate.folder / "junit.xml").unlink()
    assert gate.run("--llmb-collect", "--junitxml=junit.xml") == 4
    assert gate.run("--llmb-resume", f"--llmb-session={session}") == 0, (
        gate.output
    )  # nothing is due
    assert (
        gate.run("--llmb-collect", f"--llmb-session={session}", "--junitxml=junit.xml")
        == 0
    ), gate.output
    assert gate.outcomes == {"one": "PASS within-tolerance"}
    assert len(gate.submitted()) == 1


@pytest.mark.slow
def test_stopping_one_of_two_sessions_in_a_folder_cancels_only_its_jobs(
    gate: Gate,
) -> None:
    write_recipe(gate.folder, {"one": f"{COUNTED}; {WAIT}; {WELL}"})
    first = gate.start("--llmb-launch", "--junitxml=first.xml")
    gate.wait_for(lambda: len(gate.submitted()) == 1)
    second = gate.start("--llmb-launch", "--junitxml=second.xml")
    gate.wait_for(lambda: len(gate.submitted()) == 2)
    assert gate.run("--llmb-resume") == 4  # both are alive
    first.send_signal(signal.SIGTERM)
    assert first.wait(timeout=180) == 2
    assert len(gate.cluster.jobs()) == 1
    gate.go()
    assert second.wait(timeout=180) == 0, gate.output


@pytest.mark.slow
def test_shell_commands_in_an_environment_value_are_not_executed(gate: Gate) -> None:
    hostile = """a b"c'd; touch $STAGE_PATH/hurt $(touch $STAGE_PATH/hurt) `touch $STAGE_PATH/hurt`\\nnext"""
    write_recipe(gate.folder, {"ok": f'printf %s "$MINE" > $STAGE_PATH/value; {WELL}'})
    cluster = gate.folder / "cluster.yaml"
    escaped = hostile.replace("\\n", "\n").replace("\n", "\\n").replace('"', '\\"')
    cluster.write_text(
        cluster.read_text().replace(
            "environment: {", f'environment: {{MINE: "{escaped}", '
        )
    )
    assert gate.run(*LAUNCH) == 0, gate.output
    stage = gate.folder / "stage"
    assert not (stage / "hurt").exists()
    assert (stage / "value").read_text().startswith("a b\"c'd; touch $")
    assert (stage / "value").read_text().endswith("\nnext")


@pytest.mark.slow
def test_collecting_submits_no_job_for_configurations_not_submitted_before(
    gate: Gate,
) -> None:
    """Neither a wider selection nor a forgotten option adds a job; collecting needs no
    secret."""
    write_recipe(
        gate.folder, {"one": f"{COUNTED}; {WAIT}; {WELL}", "two": f"{COUNTED}; {WELL}"}
    )
    cluster = gate.folder / "cluster.yaml"
    cluster.write_text(
        cluster.read_text().replace(
            "environment: {", 'environment: {MINE: "${SECRET_OF_MINE}", '
        )
    )
    os.environ["SECRET_OF_MINE"] = "s3cr3t"
    try:
        assert (
            gate.run("--llmb-submit-only", "-k", "fake_one", "--llmb-repeats=1") == 0
        ), gate.output
    finally:
        del os.environ["SECRET_OF_MINE"]
    gate.go()
    assert gate.run("--llmb-collect", "--junitxml=junit.xml") == 0, gate.output
    assert gate.outcomes == {
        "one": "PASS within-tolerance",
        "two": "MISSING not-launched",
    }
    assert len(gate.submitted()) == 1
    assert "s3cr3t" not in gate.output


@pytest.mark.slow
def test_session_stays_unfinished_until_its_unsubmitted_jobs_have_run(
    gate: Gate,
) -> None:
    write_recipe(
        gate.folder, {"one": f"{COUNTED}; {WELL}", "bad": f"{COUNTED}; exit 1"}
    )
    assert gate.run("--llmb-submit-only", "--llmb-max-jobs=1") == 1, (
        "there was no room for the other"
    )
    assert gate.run("--llmb-collect", "--junitxml=junit.xml") == 1, gate.output
    assert "not-submitted" in str(gate.outcomes), gate.output
    assert gate.run("--llmb-resume", "-k", "fake_one") == 0
    assert "is not finished" in gate.output
    assert gate.run("--llmb-resume", "--junitxml=junit.xml") == 1, gate.output
    assert gate.outcomes == {
        "one": "PASS within-tolerance",
        "bad": "INVALID job-failed",
    }
    assert len(gate.submitted()) == 2


DIES_WHEN_SUBMITTED = """
import os, signal
from pytest_llmbench.launch.jobs.progress import Progress
Progress.report_submitted = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
"""
"""The session is killed once its first job is submitted."""


@pytest.mark.slow
def test_interrupted_submission_resumes_without_duplicates(gate: Gate) -> None:
    sizes = [f"s{number}" for number in range(4)]
    write_recipe(gate.folder, dict.fromkeys(sizes, f"{COUNTED}; {WELL}"))
    conftest = gate.folder / "conftest.py"
    conftest.write_text(DIES_WHEN_SUBMITTED)
    assert gate.run("--llmb-submit-only") == -signal.SIGKILL, gate.output
    conftest.unlink()
    for _ in range(2):
        assert gate.run("--llmb-resume", "--llmb-submit-only") == 0, gate.output
    assert gate.run("--llmb-collect") == 0, gate.output
    assert len(gate.submitted()) == len(sizes)


@pytest.mark.slow
def test_second_stop_signal_does_not_interrupt_cancelling_the_jobs(gate: Gate) -> None:
    """timeout(1) sends the signal to the process and to its group."""
    write_recipe(
        gate.folder, {"one": f"{COUNTED}; sleep 300", "two": f"{COUNTED}; sleep 300"}
    )
    process = gate.start(*LAUNCH)
    gate.wait_for(lambda: len(gate.submitted()) == 2)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=180) == 2
    assert "2 jobs cancelled" in gate.output
    gate.wait_for(lambda: not gate.cluster.jobs())


@pytest.mark.slow
def test_failed_session_lists_its_running_jobs(gate: Gate) -> None:
    write_recipe(gate.folder, {"one": f"{COUNTED}; {WAIT}; {WELL}"})
    process = gate.start(*LAUNCH)
    job = running(gate)
    (gate.folder / ".llmbench" / "launch.db").write_bytes(b"no database" * 1000)
    gate.go()
    assert process.wait(timeout=180) == 4, gate.output
    assert f"scancel {job}" in gate.output
    gate.wait_for(lambda: not gate.cluster.jobs())


@pytest.mark.slow
def test_older_log_with_same_job_id_is_ignored(gate: Gate) -> None:
    write_recipe(gate.folder, {"old": f"{WELL}; touch -d '2 days ago' $folder/log*"})
    assert gate.run(*LAUNCH) == 1
    assert gate.outcomes == {"old": "INVALID no-steps"}, gate.output
