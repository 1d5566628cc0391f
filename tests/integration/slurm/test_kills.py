"""Sessions on a real Slurm, killed at random times and resumed, under every policy.

No job is submitted twice, and no run counts twice. `LLMB_KILLS=N` tries N random
sequences of kills for each policy instead of one.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.clusters import Cluster
from support.fake_recipe import write_recipe
from support.gates import Gate
from support.node_histories import add_job, write_sessions
from support.outcomes import list_schema_errors
from support.remembered import outcome

from pytest_llmbench.core.baseline_records import Key

SEEDS = range(int(os.environ.get("LLMB_KILLS", "1")))

KILLS = 6
"""How often a session is killed at most: one that ends before is not killed again."""

LONGEST = (0.5, 2.5)
"""The most seconds from the start of a session to its kill: of the first, the others."""

NIGHTS = 30
SLOW = "n2"

STARTED = "echo $SLURM_JOB_ID ${VARIANT:-$MODEL_SIZE} >> $STAGE_PATH/started"

# 0.2 % noise, equal for the Nth run however often its session was killed
NOISE = "2 -1 1 -3 3 -2 0 1 -1 2 -2 3 0 -1 1 -3 2 0 1 -2 3 -1 0 2 -3 1 -1 0 2 -2 1 0"
RUN = f"""\
{STARTED}
number=$(wc -l < $STAGE_PATH/started)
noise=$(echo "{NOISE}" | cut -d' ' -f$number)
sleep 0.3
steps $(awk "BEGIN {{ print ${{EACH:-1}} * (1 + $noise / 1000) }}")"""


@dataclass(frozen=True)
class JournalRow:
    """A job in the journal."""

    case: str
    purpose: str
    attempt: int
    repeat: int
    job_id: str
    allocation: int


@pytest.fixture
def gate(tmp_path: Path, cluster: Cluster) -> Iterator[Gate]:
    gate = Gate(tmp_path, cluster)
    yield gate
    gate.end()


# --- launches -------------------------------------------------------------------------


def write_variants(folder: Path, seconds: dict[str, float], allocation: str) -> None:
    rows = [
        f'  - {{name: {name}, environment: {{VARIANT: {name}, EACH: "{each:.4f}"}}}}\n'
        for name, each in seconds.items()
    ]
    head = f"schema: 1\nallocation: {allocation}\nvariants:\n"
    (folder / "variants.yaml").write_text(head + "".join(rows))


def prepare_repeats(folder: Path) -> list[str]:
    write_recipe(
        folder,
        {
            "ok": f"{STARTED}; sleep 1; steps 1.0",
            "slow": f"{STARTED}; sleep 1; steps 1.1",
            "even": f"{STARTED}; sleep 1; steps 1.0",
        },
    )
    return []


def prepare_ab(folder: Path, allocation: str) -> list[str]:
    write_recipe(folder, {"8b": RUN}, gpus=16)
    write_variants(folder, {"v0": 1.0, "v1": 1.02}, allocation)
    return ["--llmb-ab=variants.yaml"]


def prepare_search(folder: Path, allocation: str) -> list[str]:
    write_recipe(folder, {"8b": RUN}, gpus=16)
    seconds = {f"b{number}": 1.05 if number >= 5 else 1.0 for number in range(8)}
    write_variants(folder, seconds, allocation)
    return ["--llmb-bisect=variants.yaml"]


def prepare_nodes(folder: Path) -> list[str]:
    """Write a recipe, and a history with a suspect node that is slow again."""
    slow = f"case ,$(scontrol show hostnames | tr '\\n' ,) in *,{SLOW},*) steps 1.1 ;; *) steps 1.0 ;; esac"
    write_recipe(folder, {"8b": f"{STARTED}; sleep 1; {slow}"}, gpus=16)
    write_sessions(folder / "h.db", make_nights())
    return ["--llmb-history=h.db"]


def make_nights() -> Iterator[tuple[datetime, list[dict[str, Any]]]]:
    """Yield daily jobs on two of four nodes, every sixth with the slow node."""
    draw = np.random.default_rng(1)
    key = Key("fake", "8b", "24.11", "h100", "bf16", 16)
    now = datetime.now(UTC).replace(microsecond=0)
    for day in range(NIGHTS):
        others = draw.permutation(["n1", "n3", "n4"])[:2].tolist()
        nodes = {SLOW, others[0]} if day % 6 == 1 else set(others)
        start = now - timedelta(days=NIGHTS - day)
        seconds = (1.1 if SLOW in nodes else 1.0) * math.exp(
            0.004 * draw.standard_normal()
        )
        described = outcome(
            seconds,
            day,
            key=key,
            job=f"{9000 + day}",
            logs=f"{day:x}-0aff",
            started=start,
        )
        yield start + timedelta(minutes=5), [add_job(described, nodes, seconds)]


# --- checks ---------------------------------------------------------------------------


def check_repeats(outcomes: list[dict[str, Any]], job_ids: list[str]) -> None:
    verdicts = {each["id"].split("-")[0]: each["verdict"] for each in outcomes}
    assert verdicts == {
        "fake_ok": "PASS",
        "fake_slow": "REGRESSION",
        "fake_even": "PASS",
    }
    assert Counter(job_ids) == {"ok": 1, "slow": 2, "even": 1}


def check_ab(
    outcomes: list[dict[str, Any]], job_ids: list[str], *warm_ups: str
) -> None:
    (described,) = outcomes
    text = described["text"]
    pairs = re.search(r"v1 is slower than v0: \+2\.\d\d % .*, ([34]) pairs", text)
    assert pairs, text
    order = ["v0", "v1", "v1", "v0", "v1", "v0", "v0", "v1"][: 2 * int(pairs[1])]
    assert job_ids == [*warm_ups, *order]


def check_search(
    outcomes: list[dict[str, Any]], job_ids: list[str], *warm_ups: str
) -> None:
    (described,) = outcomes
    assert described["text"].startswith("first slow: b5: +"), described["text"]
    counted = job_ids[len(warm_ups) :]
    assert job_ids[: len(warm_ups)] == list(warm_ups)
    assert counted[:4] == ["b0", "b7", "b7", "b0"]
    assert described["trials"]["search"]["runs"] == len(counted)


def check_nodes(outcomes: list[dict[str, Any]], job_ids: list[str]) -> None:
    (described,) = outcomes
    assert described["slow_nodes"] == [SLOW]
    assert described["verdict"] == "PASS"
    purposes = [job["purpose"] for job in described["jobs"]]
    assert sorted(purposes) == ["measure", "node-confirmation"]
    assert len(job_ids) == 2


def check_warm_ab(outcomes: list[dict[str, Any]], job_ids: list[str]) -> None:
    check_ab(outcomes, job_ids, "v0", "v1")


def check_warm_search(outcomes: list[dict[str, Any]], job_ids: list[str]) -> None:
    check_search(outcomes, job_ids, "b0", "b7")


Prepare = Callable[[Path], list[str]]
Check = Callable[[list[dict[str, Any]], list[str]], None]

POLICIES: dict[str, tuple[Prepare, Check]] = {
    "repeats": (prepare_repeats, check_repeats),
    "ab": (lambda folder: prepare_ab(folder, "separate"), check_ab),
    "ab-shared": (lambda folder: prepare_ab(folder, "shared"), check_warm_ab),
    "search": (lambda folder: prepare_search(folder, "separate"), check_search),
    "search-shared": (
        lambda folder: prepare_search(folder, "shared"),
        check_warm_search,
    ),
    "nodes": (prepare_nodes, check_nodes),
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("policy", POLICIES)
def test_killed_session_submits_and_counts_jobs_once(
    gate: Gate,
    cluster: Cluster,
    policy: str,
    seed: int,
) -> None:
    prepare, check = POLICIES[policy]
    options = [*prepare(gate.folder), "--llmb-json=session.json"]
    blocker = cluster.submit("true")
    cluster.wait(blocker, "COMPLETED")
    draw = random.Random(f"{policy} {seed}")  # noqa: S311 (no secret)
    session, kills = kill_often(gate, options, draw)
    assert kills
    resume = ("--llmb-resume", f"--llmb-session={session}")
    assert gate.run(*resume, *pick_resumed(options)) in (0, 1), gate.output

    rows = read_journal(gate.folder)
    identities = [(row.case, row.purpose, row.attempt, row.repeat) for row in rows]
    assert len(set(identities)) == len(identities)
    own = [row.job_id for row in rows if not row.allocation]
    gate.wait_for(lambda: set(own) <= set(list_accounted(cluster, int(blocker))))
    assert sorted(own, key=int) == list_accounted(cluster, int(blocker))
    started = [
        line.split()
        for line in (gate.folder / "stage" / "started").read_text().splitlines()
    ]
    runs = [row for row in rows if row.purpose != "allocation"]
    assert Counter(job for job, _ in started) == Counter(
        row.job_id.partition("-")[0] for row in runs
    )
    outcomes = read_outcomes(gate.folder)
    reported = [job["job_id"] for each in outcomes for job in each["jobs"]]
    assert Counter(reported) == Counter(row.job_id for row in rows)
    check(outcomes, [name for _, name in started])
    assert cluster.jobs() == []


def kill_often(
    gate: Gate, options: list[str], draw: random.Random
) -> tuple[str, list[float]]:
    """Kill a session and its resumed sessions at random times.

    Returns the session id and the seconds after which each was killed.
    """
    process = gate.start("--llmb-launch", *options)
    gate.wait_for(lambda: read_session(gate.folder))
    session, kills = read_session(gate.folder), list[float]()
    for number in range(KILLS):
        seconds = round(draw.uniform(0, LONGEST[number > 0]), 2)
        time.sleep(seconds)
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:  # it has ended
            break
        process.wait()
        kills.append(seconds)
        resume = ("--llmb-resume", f"--llmb-session={session}")
        process = gate.start(*resume, *pick_resumed(options))
    process.wait(timeout=180)
    return session, kills


def pick_resumed(options: list[str]) -> list[str]:
    """Return the options of a resumed session; the journal has the others."""
    return [
        option
        for option in options
        if option.startswith(("--llmb-json", "--llmb-hist"))
    ]


def read_session(folder: Path) -> str:
    """Return the session id in the journal, or ""."""
    rows = query(folder, "SELECT id FROM session")
    return str(rows[0][0]) if rows else ""


def read_journal(folder: Path) -> list[JournalRow]:
    """Return the submitted jobs."""
    rows = query(folder, "SELECT spec, attempt, repeat, job_id FROM job")
    described = [(json.loads(spec), *others) for spec, *others in rows]
    return [
        JournalRow(
            spec["case_id"],
            spec["purpose"],
            attempt,
            repeat,
            job_id,
            spec["allocation"],
        )
        for spec, attempt, repeat, job_id in described
        if job_id
    ]


def query(folder: Path, question: str) -> list[tuple[Any, ...]]:
    file = folder / ".llmbench" / "launch.db"
    try:
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as journal:
            return journal.execute(question).fetchall()
    except sqlite3.OperationalError:  # it is not complete yet
        return []


def list_accounted(cluster: Cluster, after: int) -> list[str]:
    """Return the ids of jobs in accounting after this one."""
    shown = cluster.run(
        "sacct", "-X", "--noheader", "--parsable2", "--format=JobIDRaw"
    ).split()
    return sorted({number for number in shown if int(number) > after}, key=int)


def read_outcomes(folder: Path) -> list[dict[str, Any]]:
    """Return the outcomes that have jobs."""
    document = json.loads((folder / "session.json").read_text())
    assert list_schema_errors(document) == []
    return [each for each in document["outcomes"] if each.get("jobs")]
