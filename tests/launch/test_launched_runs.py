"""Runs of launched jobs: found, quoted without secrets, and compared."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.builders import log, run, segment, steps
from support.job_specs import KEY, START, job, job_spec, running
from support.node_histories import KEYS, add_job, make_sessions, write_sessions
from support.planned_jobs import FACTS
from support.remembered import START as NIGHTS_START
from support.remembered import outcome
from support.written_logs import parse

from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.core.job_records import Blame, Job
from pytest_llmbench.core.judgement_records import DecisionRule
from pytest_llmbench.core.log_records import NO_QUOTE, Ending, EndingCode
from pytest_llmbench.core.run_records import Run
from pytest_llmbench.history.store import StoreLocation
from pytest_llmbench.launch.launched_runs import LaunchedRuns
from pytest_llmbench.launch.running_logs import RunningLogs
from pytest_llmbench.launch.schedulers.submission import OUTPUT
from pytest_llmbench.runs.measure.measurement import measure
from pytest_llmbench.session.catalog import load
from pytest_llmbench.session.collect_runs import ingest_job
from pytest_llmbench.session.settings import Settings


def make_runs(settings: Settings | None = None, **fields: Any) -> LaunchedRuns:
    settings = settings or Settings()
    return LaunchedRuns(
        settings,
        load(settings),
        "session",
        lambda _key: DecisionRule(),
        lambda: START,
        **fields,
    )


def launched(folder: Path, **spec: Any) -> Job:
    """Return a running job with its log in `folder` and these fields in its spec."""
    (folder / OUTPUT).touch()  # its submission time
    return job(
        folder, log_folder=folder, status=running(), spec=job_spec(folder, **spec)
    )


XID = "n7 kernel: NVRM: Xid (PCI:0000:0a:00): 79, pid=1, GPU has fallen off the bus. hf_secretvalue"


def test_driver_errors_and_node_checks_are_quoted_without_secrets(
    tmp_path: Path,
) -> None:
    runs = make_runs()
    secret = job_spec(
        tmp_path, environment=(("HF_TOKEN", "hf_secretvalue"),), secrets=("HF_TOKEN",)
    )
    ended = job(tmp_path, spec=secret, status=running("n6", "n7"))
    log = tmp_path / "log-x_1_0.out"
    log.write_text(f"step 1\n{XID}\n")
    quoted_run = run(parse(log.read_text()))
    quoted_run = replace(
        quoted_run,
        attempts=tuple(
            replace(
                attempt,
                files=replace(
                    attempt.files, folder_text=str(log.parent), log_name=log.name
                ),
            )
            for attempt in quoted_run.attempts
        ),
    )
    assert runs.list_failed_nodes(ended, quoted_run) == ("n7",)
    assert (
        runs.list_failed_nodes(replace(ended, status=running("n1")), quoted_run) == ()
    )
    assert runs.list_failed_nodes(ended, run()) == ()
    assert (
        runs.find_driver_errors(ended, quoted_run)
        == f"log-x_1_0.out:2: {XID.replace('hf_secretvalue', '***')}"
    )
    (tmp_path / f"llmbench-node-check-{ended.job_id}.out").write_text(
        "first\nhf_secretvalue\n\nFAIL\n"
    )
    assert runs.read_check(ended) == "first | *** | FAIL"
    assert runs.read_check(replace(ended, job_id="1")) == ""


LINE = (
    "Training epoch 0, iteration {0}/49 | lr: 1e-05 | global_batch_size: 128 | global_step: {0} |"
    " reduced_train_loss: 11.9 | train_step_timing in s: 2.5 | consumed_samples: 128\n"
)


WAITED = (
    "[rank3]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)\n"
)
RAISED = "Traceback (most recent call last):\n  File\nValueError: x\n"
ECC = RAISED.replace(
    "ValueError: x", "RuntimeError: CUDA error: uncorrectable ECC error encountered"
)


def read_ending(tmp_path: Path, ending: Ending | None) -> tuple[Blame, str]:
    """Return whom the end of a launched run blames, and the quoted text."""
    unfinished = run(log(segment(steps([7.3] * 30), finished=False), ending=ending))
    return make_runs().read_ending(job(tmp_path), unfinished)


@pytest.mark.parametrize(
    ("text", "blame", "words"),
    [
        (
            WAITED,
            Blame.INFRASTRUCTURE,
            "NCCL gave up waiting for a collective operation: ",
        ),
        (
            RAISED + WAITED,
            Blame.RUN,
            "a process died of an exception: ValueError: x (log-x_1_0.out:3); after that NCCL ",
        ),
        (
            WAITED + RAISED,
            Blame.INFRASTRUCTURE,
            "NCCL gave up waiting for a collective operation: ",
        ),
        (ECC + WAITED, Blame.INFRASTRUCTURE, "a GPU of the job failed: "),
        (
            "srun: error: n1: task 3: Killed\n" + WAITED,
            Blame.RUN,
            "a task of the job failed: ",
        ),
    ],
)
def test_nccl_timeout_after_an_exception_blames_the_run(
    tmp_path: Path, text: str, blame: Blame, words: str
) -> None:
    ending = read_ending(tmp_path, parse(text).ending)
    assert ending[0] is blame
    assert ending[1].startswith(words)


def test_nccl_timeout_followed_by_further_steps_blames_the_run(tmp_path: Path) -> None:
    warned = replace(
        parse(WAITED).ending or Ending(EndingCode.CUT, NO_QUOTE, 0), went_on=True
    )
    assert read_ending(tmp_path, warned)[0] is Blame.RUN


def test_empty_log_names_no_failure_cause(tmp_path: Path) -> None:
    assert read_ending(tmp_path, None) == (Blame.NONE, "log-x_1_0.out is empty")


STALLED = (
    LINE.format(0)
    + LINE.format(1)
    + "[rank3]:[E] hf_53cr3t: "
    + WAITED.partition(" ")[2]
)


def leave_run(tmp_path: Path, text: str, token: str) -> tuple[LaunchedRuns, Job, Run]:
    """Return the reader, a job with this token, and the run that the job left."""
    runs = make_runs()
    started = launched(
        tmp_path, environment=(("HF_TOKEN", token),), secrets=("HF_TOKEN",)
    )
    (tmp_path / f"log-nemo_fake_8b_8_{started.job_id}.out").write_text(text)
    left_run = runs.find_run(started)
    assert left_run is not None
    return runs, started, left_run


def test_each_run_of_an_allocation_has_its_log(tmp_path: Path) -> None:
    """The log is moved when its run ends, because the next run may write the same file."""
    runs = make_runs(
        facts={KEY.id: replace(FACTS, log="results/{dtype}/{gpus}/log-x_{job}.out")}
    )
    shared = tmp_path / "results" / "bf16" / "8"
    shared.mkdir(parents=True)
    log = shared / "log-nemo_fake_8b_8_4711.out"

    def run_in_allocation(number: int) -> Job:
        folder = tmp_path / "jobs" / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        for name in (OUTPUT, "slurm-4711.out"):
            (folder / name).touch()
        created = job(
            folder, number, job_id=f"4711-{number}", log_folder=folder, status=running()
        )
        return replace(
            created, spec=replace(created.spec, allocation=1, log_folders=(shared,))
        )

    for number in (1, 2):
        log.write_text(LINE.format(0) * number)
        run = runs.find_run(run_in_allocation(number))
        assert run is not None
        (attempt,) = run.attempts
        assert (
            attempt.files.log
            == tmp_path / "jobs" / str(number) / "results" / "bf16" / "8" / log.name
        )
        assert not log.exists()
    log.write_text(LINE.format(0))  # the run continues while the session is resumed
    second_run = runs.find_run(run_in_allocation(1))
    assert second_run is not None
    assert log.exists()


@pytest.mark.parametrize(
    ("token", "quote"),
    [
        ("***", "(not shown: may contain a secret) ("),
        ("hf_53cr3t", "[rank3]:[E] ***: Watchdog caught collective"),
    ],
    ids=["token unknown", "token known"],
)
def test_failure_cause_is_quoted_from_the_log_without_the_token(
    tmp_path: Path, token: str, quote: str
) -> None:
    """A session with an unknown token quotes nothing."""
    runs, ended, left_run = leave_run(tmp_path, STALLED, token)
    blame, text = runs.read_ending(ended, left_run)
    assert blame is Blame.INFRASTRUCTURE
    assert text.startswith(f"NCCL gave up waiting for a collective operation: {quote}")
    assert text.endswith(f"(log-nemo_fake_8b_8_{ended.job_id}.out:3, rank 3)")
    problems = " ".join(
        problem.text
        for problem in measure(left_run, runs.catalog.baselines[KEY][0], START).problems
    )
    assert quote in problems
    assert "53cr3t" not in text + problems


@pytest.mark.slow
@pytest.mark.parametrize(
    ("token", "quoted"),
    [("***", "(not shown: may contain a secret)"), ("hf_53cr3t", "use ***")],
)
def test_last_line_is_quoted_without_the_token(
    tmp_path: Path, token: str, quoted: str
) -> None:
    runs, ended, left_run = leave_run(tmp_path, "use hf_53cr3t\n", token)
    assert runs.read_ending(ended, left_run) == (
        Blame.NONE,
        f"the last line of log-nemo_fake_8b_8_{ended.job_id}.out: {quoted}",
    )


OWN = """\
schema: 1
kind: recipe
recipe: fake
release: "1"
title: A framework of our own
framework: Acorn
names: [fake]
dialect: regex
log:
  {find: " ms/step", pattern: 'it (?P<step>\\d+)/(?P<total>\\d+) (?P<seconds>[\\d.]+) ms/step', unit: ms, first_step: 1}
source: {document: our own notes}
peak_tflops: {h100: {bf16: "989"}}
models:
  8b:
    {formula: llama, hidden_size: 4096, attention_heads: 32, query_groups: 8, ffn_size: 14336, vocabulary_size: 128256}
configurations:
  - {size: 8b, gpu: h100, dtype: bf16, gpus: 8, sequence_length: 8192, layers: 32, gbs: 128}
"""


def make_custom_runs(folder: Path, **settings: Any) -> tuple[LaunchedRuns, Key]:
    """Return the runs and the configuration of a recipe with its own log definition."""
    (folder / "own.yaml").write_text(OWN)
    runs = make_runs(Settings(baselines=(folder / "own.yaml",), **settings))
    return runs, next(key for key in runs.catalog.baselines if key.recipe == "fake")


def write_custom_log(folder: Path, job_id: str, steps: int) -> None:
    lines = (f"it {step}/50 2500 ms/step\n" for step in range(1, steps + 1))
    (folder / f"log-fake_8b_8_{job_id}.out").write_text("".join(lines))


def test_log_is_read_in_the_dialect_of_its_baseline(tmp_path: Path) -> None:
    runs, key = make_custom_runs(tmp_path)
    folder = tmp_path / "logs"
    folder.mkdir()
    started = launched(folder, key=key)
    write_custom_log(folder, started.job_id, 7)
    assert RunningLogs(runs.catalog, lambda: START).read_last_step(started) == (
        7,
        50,
        2.5,
    )
    run = ingest_job([folder], started.job_id, key, runs.catalog, START, since=None)
    assert run is not None
    assert run.identity.key == key
    assert [attempt.log.dialect for attempt in run.attempts] == ["regex:fake-1"]
    assert run.attempts[0].log.segments[0].steps.seconds.tolist() == [2.5] * 7


def test_container_image_of_a_run_comes_from_its_job_or_launcher_metadata(
    tmp_path: Path,
) -> None:
    """A launcher's own record of the image takes precedence."""
    runs = make_runs()
    started = launched(tmp_path, environment=(("RUN_CONF_IMAGE", "/images/own.sqsh"),))
    (tmp_path / f"log-nemo_fake_8b_8_{started.job_id}.out").write_text(LINE.format(0))
    left_run = runs.find_run(started)
    assert left_run is not None
    assert left_run.found.environment == (("container", "/images/own.sqsh"),)
    record = f"job_info: {{job_id: '{started.job_id}'}}\ncontainer_info: {{images: [its.sqsh]}}\n"
    (tmp_path / f"llmb-config_{started.job_id}.yaml").write_text(record)
    left_run = runs.find_run(started)
    assert left_run is not None
    assert left_run.found.environment == (("container", "its.sqsh"),)


@pytest.mark.slow
def test_launched_run_is_not_counted_twice(tmp_path: Path) -> None:
    """Its log is in the folder with the earlier runs."""
    runs, key = make_custom_runs(tmp_path, logs=(tmp_path,), release="1", gpu="h100")
    folder = tmp_path / "results" / "1" / "bf16" / "8b" / "8"
    folder.mkdir(parents=True)
    started = launched(folder, key=key)
    for job_id in (started.job_id, "9999"):
        write_custom_log(folder, job_id, 50)
    left_run = runs.find_run(started)
    assert left_run is not None
    ((_, (evidence,)),) = runs.gather_results(
        {key: runs.judge(key, [left_run])}
    ).by_id.values()
    assert [measurement.run.found.job_id for measurement in evidence.measurements] == [
        started.job_id,
        "9999",
    ]
    assert evidence.measurements[0].run is left_run


@pytest.mark.slow
def test_suspect_node_confirmation_is_unchanged_if_its_run_is_already_stored(
    tmp_path: Path,
) -> None:
    """A session resumed after its end is already in the history."""
    key, nodes = KEYS[0], [f"n{number:02}" for number in range(7, 15)]
    started, seconds = NIGHTS_START + timedelta(days=30), 7.4 * 1.1
    spec = job_spec(tmp_path, case_id=key.id, key=key, nodes=8)
    node_job = job(tmp_path, spec=spec, status=running(*nodes, started=started))
    node_run = run(log(segment(steps([seconds] * 50))), key=key)
    document = outcome(
        seconds, 30, key=key, job=node_job.job_id, logs="30-0aff", started=started
    )
    past_sessions = list(make_sessions({7: 0.1}))
    stored = (started + timedelta(minutes=5), [add_job(document, set(nodes), seconds)])
    texts = []
    for name, sessions in (
        ("before.db", past_sessions),
        ("after.db", [*past_sessions, stored]),
    ):
        location = StoreLocation(name, write_sessions(tmp_path / name, iter(sessions)))
        confirmation = make_runs(Settings(history=location)).judge_suspect(
            node_job, node_run, ["n07"]
        )
        texts.append((confirmation.confirmed, confirmation.text))
    assert texts == [(True, "+10.0 % in job 4711 on these nodes")] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("times", "confirmed", "text"),
    [
        ([7.4 * 1.1] * 50, True, "+10.0 % in job 4711 on these nodes"),
        ([7.4] * 50, False, "0.0 % in job 4711 on these nodes"),
        (
            [7.4] * 5,
            False,
            "job 4711 on these nodes: 34 of the steps 11 to 44 are missing: 11, 12, 13, 14, 15 and 29 more",
        ),
    ],
    ids=["slow again", "fast", "incomplete"],
)
def test_run_on_suspect_node_is_compared_with_history(
    tmp_path: Path,
    history: StoreLocation,
    times: list[float],
    confirmed: bool,
    text: str,
) -> None:
    key, nodes = KEYS[0], [f"n{number:02}" for number in range(7, 15)]
    status = running(*nodes, started=NIGHTS_START + timedelta(days=30))
    node_job = job(
        tmp_path,
        spec=job_spec(tmp_path, case_id=key.id, key=key, nodes=8),
        status=status,
    )
    node_run = run(log(segment(steps(times))), key=key)
    confirmation = make_runs(Settings(history=history)).judge_suspect(
        node_job, node_run, ["n07"]
    )
    assert (confirmation.confirmed, confirmation.text) == (confirmed, text)
    assert confirmation.step_seconds == (
        pytest.approx(times[0]) if len(times) == 50 else None
    )
