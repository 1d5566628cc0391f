"""Launches with a suspect node in the history, on a real Slurm.

The node is confirmed before the first job, or not excluded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from support.clusters import Cluster
from support.fake_recipe import write_recipe
from support.gates import Gate
from support.node_histories import add_job, write_sessions
from support.outcomes import list_schema_errors
from support.remembered import outcome

from pytest_llmbench.core.baseline_records import Key

KEY = Key("fake", "8b", "24.11", "h100", "bf16", 16)
NIGHTS = 30
SLOW = "n2"
"""Slurm gives a job of two nodes n1 and n2 where nothing keeps it from them."""

STARTED = "echo $SLURM_JOB_ID >> $STAGE_PATH/started"
SLOW_THERE = f"case ,$(scontrol show hostnames | tr '\\n' ,) in *,{SLOW},*) steps 1.1 ;; *) steps 1.0 ;; esac"
RED_NODE = 1
"""The exit code where nothing is red but `test_slow_node`, since the history names a
node."""

WAIT = "while [ ! -e $STAGE_PATH/go ]; do sleep 0.1; done"

LAUNCH = (
    "--llmb-launch",
    "--llmb-history=h.db",
    "--llmb-junit=junit.xml",
    "--llmb-json=session.json",
)


@pytest.fixture
def gate(tmp_path: Path, cluster: Cluster) -> Iterator[Gate]:
    gate = Gate(tmp_path, cluster)
    write_sessions(tmp_path / "h.db", make_nights())
    yield gate
    gate.end()


def make_nights() -> Iterator[tuple[datetime, list[dict[str, Any]]]]:
    """Yield thirty daily jobs on two of four nodes; every sixth includes a 10 % slower
    node."""
    draw = np.random.default_rng(1)
    tonight = datetime.now(UTC).replace(microsecond=0)
    for day in range(NIGHTS):
        others = draw.permutation(["n1", "n3", "n4"])[:2].tolist()
        nodes = {SLOW, others[0]} if day % 6 == 1 else set(others)
        start = tonight - timedelta(days=NIGHTS - day)
        seconds = (1.1 if SLOW in nodes else 1.0) * math.exp(
            0.004 * draw.standard_normal()
        )
        described = outcome(
            seconds,
            day,
            key=KEY,
            job=f"{9000 + day}",
            logs=f"{day:x}-0aff",
            started=start,
        )
        yield start + timedelta(minutes=5), [add_job(described, nodes, seconds)]


def read_outcome(gate: Gate) -> dict[str, Any]:
    """Return the outcome in the JSON document; JUnit and the terminal contain its node
    texts."""
    document = json.loads((gate.folder / "session.json").read_text())
    assert list_schema_errors(document) == []
    (described,) = (each for each in document["outcomes"] if each["id"] == KEY.id)
    root = ElementTree.parse(gate.folder / "junit.xml")  # noqa: S314 (our own file)
    case = next(
        case for case in root.iter("testcase") if KEY.id in str(case.get("name"))
    )
    assert f"node_finding: {described['nodes']}" in str(case.findtext("system-out"))
    assert " ".join(described["nodes"].split()) in gate.plain
    return dict(described)


def list_nodes(described: dict[str, Any], purpose: str) -> list[list[str]]:
    return [job["nodes"] for job in described["jobs"] if job["purpose"] == purpose]


@pytest.mark.slow
def test_suspect_node_is_confirmed_then_excluded(
    gate: Gate,
) -> None:
    write_recipe(gate.folder, {"8b": f"{STARTED}; {SLOW_THERE}"}, gpus=16)
    assert gate.run(*LAUNCH) == RED_NODE, gate.output
    described = read_outcome(gate)
    assert described["verdict"] == "PASS"
    (confirmed,), (measured,) = (
        list_nodes(described, "node-confirmation"),
        list_nodes(described, "measure"),
    )
    assert SLOW in confirmed
    assert SLOW not in measured
    assert described["slow_nodes"] == [SLOW]
    assert "by the history n2 is slow: +1" in described["nodes"]
    assert (
        f"in job {gate.submitted()[0]} on these nodes: excluded from all following jobs"
        in described["nodes"]
    )
    assert "the node n2 is slow each time" in described["nodes"]
    assert f"one run of {KEY.id} there comes first" in gate.plain


@pytest.mark.slow
def test_unconfirmed_suspect_node_is_not_excluded(
    gate: Gate,
) -> None:
    write_recipe(gate.folder, {"8b": f"{STARTED}; steps 1.0"}, gpus=16)
    assert gate.run(*LAUNCH) == RED_NODE, gate.output
    described = read_outcome(gate)
    (confirmed,), (measured,) = (
        list_nodes(described, "node-confirmation"),
        list_nodes(described, "measure"),
    )
    assert SLOW in confirmed
    assert measured == ["n1", "n2"]
    assert described["slow_nodes"] == []
    assert "but fast" in gate.plain
    assert (
        f"in job {gate.submitted()[0]} on these nodes: not confirmed, not excluded"
        in described["nodes"]
    )


@pytest.mark.slow
def test_no_node_is_suspected_if_all_nodes_are_slow(gate: Gate) -> None:
    write_recipe(gate.folder, {"8b": f"{STARTED}; steps 1.1"}, gpus=16)
    assert gate.run(*LAUNCH) == 1, gate.output
    described = read_outcome(gate)
    assert described["verdict"] == "REGRESSION"
    assert described["slow_nodes"] == []
    assert "the software or the whole cluster is slow" in described["nodes"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "said"),
    [
        (
            "--llmb-repeats=1",
            "not confirmed: --llmb-repeats=1 allows one run of each configuration",
        ),
        (
            "--llmb-gpu-hours=0.3",
            "not confirmed: 1 run takes 0.22 GPU-hours, but",
        ),
    ],
)
def test_suspect_node_is_only_reported_if_options_allow_no_confirmation_run(
    gate: Gate, option: str, said: str
) -> None:
    write_recipe(gate.folder, {"8b": f"{STARTED}; steps 1.0"}, gpus=16)
    assert gate.run(*LAUNCH, option) == RED_NODE, gate.output
    assert len(gate.submitted()) == 1
    assert "by the history n2 is slow" in gate.plain
    assert said in gate.plain


@pytest.mark.slow
def test_session_killed_during_confirmation_resumes_it(gate: Gate) -> None:
    write_recipe(gate.folder, {"8b": f"{STARTED}; {WAIT}; {SLOW_THERE}"}, gpus=16)
    process = gate.start(*LAUNCH)
    gate.wait_for(gate.submitted)
    process.kill()
    process.wait()
    gate.go()
    assert gate.run("--llmb-resume", *LAUNCH[1:]) == RED_NODE, gate.output
    described = read_outcome(gate)
    assert len(gate.submitted()) == 2
    assert described["slow_nodes"] == [SLOW]
    assert all(SLOW not in nodes for nodes in list_nodes(described, "measure"))
