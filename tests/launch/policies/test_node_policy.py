"""The confirmation of suspect nodes, and the texts about jobs on them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.run_histories import (
    BROKEN,
    CRASHED,
    REFUSED,
    SPEC,
    WELL,
    describe_step,
    ended,
    make_history,
)

from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.job_records import JobEnd, JobSpec, JobStatus, Phase, Purpose
from pytest_llmbench.core.statements import NodeCause, NodeFinding
from pytest_llmbench.launch.policies.node_policy import (
    NodePolicy,
    describe_check,
    describe_confirmation,
    list_doubtful,
    next_runs,
)
from pytest_llmbench.launch.policies.run_history import Confirmation, NextRuns

SUSPECT = NodeFinding(suspects=("n1",), again=("n1", "n9"))
SLOW = NodeFinding(NodeCause.SLOW_NODES, exclude=("n1",), again=("n1", "n9"))
CHECK = replace(SPEC, purpose=Purpose.CHECK_NODES)
NOTHING = [Reason.PURPOSE_DONE.value, ""]
CONFIRM = "node-confirmation 2, attempt 1"


@pytest.mark.parametrize(
    ("finding", "spec", "check", "expected"),
    [
        (None, SPEC, CHECK, NOTHING),
        (NodeFinding(), SPEC, CHECK, NOTHING),
        (SUSPECT, SPEC, None, [CONFIRM]),
        (SUSPECT, SPEC, CHECK, [CONFIRM, "node-check 2, attempt 1"]),
        (SUSPECT, replace(SPEC, nodes=3), None, ["wait"]),
        (SLOW, SPEC, CHECK, ["node-check 2, attempt 1"]),
    ],
    ids=[
        "no verdict",
        "sound",
        "suspect",
        "with a check",
        "too few nodes",
        "slow twice",
    ],
)
def test_suspect_nodes_get_a_confirmation_run_and_optionally_a_node_check(
    finding: NodeFinding | None,
    spec: JobSpec,
    check: JobSpec | None,
    expected: list[str],
) -> None:
    """A node that was slow twice needs no confirmation."""
    history = make_history(ended(spec=spec), spec=spec, finding=finding)
    assert describe_step(next_runs(history, NodePolicy(2, check))) == expected


def test_confirmation_run_replaces_the_requested_node_list() -> None:
    spec = replace(SPEC, scheduler_options=("--qos=high", "--nodelist=n[1-9]"))
    history = make_history(ended(), spec=spec, finding=SUSPECT, excluded=("n7",))
    step = next_runs(history, NodePolicy())
    assert isinstance(step, NextRuns)
    (run,) = step.runs
    assert run.spec.scheduler_options == ("--qos=high", "--nodelist=n1,n9")
    assert run.spec.exclude == ("n7",)


@pytest.mark.parametrize(
    ("end", "confirmation", "notes"),
    [
        (CRASHED, None, ("n7 is slow", "not confirmed: exit code 1")),
        (
            WELL,
            Confirmation(True, "+9 %"),
            ("n7 is slow", "+9 %: excluded from all following jobs"),
        ),
        (
            WELL,
            Confirmation(False, "+0 %"),
            ("n7 is slow", "+0 %: not confirmed, not excluded"),
        ),
        (WELL, None, ()),
    ],
    ids=["crashed", "slow again", "fast", "not compared with a history"],
)
def test_note_states_whether_a_confirmation_run_was_slow_again(
    end: JobEnd, confirmation: Confirmation | None, notes: tuple[str, ...]
) -> None:
    job = replace(ended(1, end), confirmation=confirmation)
    assert describe_confirmation(job, "n7 is slow") == notes


TIMEOUT = JobStatus(Phase.ENDED, "TIMEOUT", nodes=("n1",))


@pytest.mark.parametrize(
    ("end", "fields", "note"),
    [
        (WELL, {}, "node check on n1 (job 1.1): exit code 0; it printed: FAIL"),
        (CRASHED, {}, "node check on n1 (job 1.1): exit code 1; it printed: FAIL"),
        (
            CRASHED,
            {"status": TIMEOUT},
            "node check on n1 (job 1.1): it did not end within 15 minutes; it printed: FAIL",
        ),
        (CRASHED, REFUSED, "node check: not submitted: no nodes; it printed: FAIL"),
    ],
    ids=["done", "failed", "hung", "refused"],
)
def test_node_check_note_states_its_outcome_and_printed_text(
    end: JobEnd, fields: dict[str, Any], note: str
) -> None:
    assert describe_check(ended(1, end, spec=CHECK, **fields), "FAIL") == note


def test_doubtful_nodes_are_suspects_and_those_with_infrastructure_failures() -> None:
    history = make_history(ended(3, BROKEN), ended(4, CRASHED), finding=SUSPECT)
    assert list_doubtful(history) == {"n1", "n3"}
