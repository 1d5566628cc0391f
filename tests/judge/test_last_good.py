"""The last good run before a failed run, and the differences between the two."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from support.builders import BASELINE, NOW, evidence, log, measurement, run, segment

from pytest_llmbench.core.codes import Reason, Verdict
from pytest_llmbench.core.judgement_records import (
    ComparedFacts,
    ComparedNodes,
    Evidence,
    LastGoodRun,
    RunSource,
)
from pytest_llmbench.core.log_records import StatedField, Statement
from pytest_llmbench.core.run_records import (
    Hint,
    Measurement,
    Problem,
    StoredDetails,
    StoredRun,
)
from pytest_llmbench.judge.decide import judge
from pytest_llmbench.judge.last_good import add_stored, find_last_good, list_settings
from pytest_llmbench.report.wording import phrase_all

DIVERGED = Problem(Reason.DIVERGED, "the loss is NaN")
SLOW = 8.2
RED = measurement(SLOW, run=run(started=NOW, job_id="99"))
EVEN = "no single step stands out"


def make_run(seconds: float = 7.3, ago: float = 1, **fields: Any) -> Measurement:
    """Make a run on disk, `ago` days before NOW."""
    fields_found = {
        "started": NOW - timedelta(days=ago),
        "job_id": f"{ago:g}",
        **fields.pop("found", {}),
    }
    return measurement(
        seconds, run=run(fields.pop("log", log(segment())), **fields_found), **fields
    )


def make_stored(seconds: float = 7.3, ago: float = 1, **fields: Any) -> StoredRun:
    made: dict[str, Any] = {
        "environment": {},
        "valid": True,
        "verdict": "PASS",
        "status": "passed",
        **fields,
    }
    return StoredRun(
        NOW - timedelta(days=ago),
        f"{ago:g}",
        "f",
        BASELINE.window,
        statistic_seconds=seconds,
        **made,
    )


def find(known: Evidence, *past: StoredRun) -> LastGoodRun | None:
    return find_last_good(judge(known), known, past)


def test_last_good_run_is_the_newest_run_within_its_limit() -> None:
    """In the history as well as on disk."""
    slow = [make_run(8.2, 1), make_run(8.2, 2)]
    for good, source in (
        (make_run(7.3, 3), RunSource.FOLDER),
        (make_stored(7.3, 3), RunSource.HISTORY),
    ):
        runs = [good] if isinstance(good, Measurement) else []
        known = evidence(
            RED,
            *slow,
            *runs,
            make_run(7.2, 4),
            stored_runs=() if runs else (make_stored(7.2, 5), good),
        )
        last = find(known)
        assert last is not None
        assert (last.started, last.job_id, last.source) == (
            NOW - timedelta(days=3),
            "3",
            source,
        )
        assert (last.verdict, last.seconds, last.days) == ("PASS", 7.3, 3)
        assert last.slower == pytest.approx(8.2 / 7.3 - 1)


@pytest.mark.parametrize(
    "others",
    [
        pytest.param([make_run(8.2)], id="no good run"),
        pytest.param([make_run(found={"launch": "l"})], id="same launch"),
        pytest.param([make_run(problems=(DIVERGED,))], id="with a problem"),
        pytest.param([make_stored(valid=False)], id="not valid"),
        pytest.param([make_stored(ago=0)], id="at the same time"),
        pytest.param([make_run(ago=-1)], id="newer in the folder"),
    ],
)
def test_invalid_slow_or_same_launch_run_is_no_last_good_run(others: list[Any]) -> None:
    runs = [other for other in others if isinstance(other, Measurement)]
    known = evidence(
        RED,
        *runs,
        stored_runs=tuple(other for other in others if isinstance(other, StoredRun)),
    )
    assert find_last_good(judge(evidence(RED)), known) is None


def test_last_good_run_skips_a_run_with_a_failed_verdict() -> None:
    known = evidence(RED, make_run(ago=1), make_run(ago=2))
    failed = [make_stored(ago=ago, status="failed", valid=False) for ago in (1, 2)]
    assert find(known, *failed) is None
    last = find(known, failed[0])
    assert last is not None
    assert last.job_id == "2"


@pytest.mark.parametrize(
    ("name", "then", "now"),
    [
        ("environment", (("device", "NVIDIA H100"),), (("device", "NVIDIA B200"),)),
        (
            "hints",
            (Hint("gpus_per_node", "8", "x"),),
            (Hint("gpus_per_node", "4", "x"),),
        ),
    ],
)
def test_run_on_other_machines_is_no_last_good_run(
    name: str, then: Any, now: Any
) -> None:
    failed = measurement(SLOW, run=run(started=NOW, **{name: now}))
    assert find(evidence(failed, make_run(found={name: then}))) is None
    assert find(evidence(failed, make_run(found={name: now}))) is not None
    assert find(evidence(failed, make_run())) is not None


def test_launched_job_without_a_log_has_a_last_good_run() -> None:
    jobless = replace(judge(evidence(RED)), measurement=None, verdict=Verdict.INVALID)
    last = find_last_good(jobless, evidence(make_run()))
    assert last is not None
    assert (last.job_id, last.slower, last.steps) == ("1", None, None)


# --- differences ----------------------------------------------------------------------


def test_software_version_stated_by_one_of_two_runs_is_not_compared() -> None:
    now = (("container", "nemo:25.09"), ("nccl", "2.26"), ("pytorch", "2.8"))
    then = {"container": "nemo:25.07", "nccl": "2.26", "driver": "570"}
    failed = measurement(SLOW, run=run(started=NOW, environment=now))
    expected = ComparedFacts(("nccl",), (("container", "nemo:25.07", "nemo:25.09"),))
    for known in (
        evidence(failed, make_run(found={"environment": tuple(then.items())})),
        evidence(failed, stored_runs=(make_stored(environment=then),)),
    ):
        last = find(known)
        assert last is not None
        assert last.software == expected


def test_settings_are_read_from_file_name_metadata_and_log() -> None:
    statements = (
        Statement(StatedField.LAYOUT, "tensor_model_parallel_size: 4", 3),
        Statement(StatedField.MICRO_BATCH, "2", 4),
        Statement(StatedField.NAMED, "pretrain_x_1763", 5),
    )
    measured = replace(segment(), stated=statements)
    hints = (
        Hint("pp", "8", "name"),
        Hint("gpus", "64", "name"),
        Hint("vp", "1", "name"),
        Hint("vp", "2", "file"),
    )
    settings = list_settings(
        make_run(log=log(measured), found={"hints": hints, "launcher": "NeMo-Run"})
    )
    settings.pop("global batch size", None)
    assert settings == {
        "launcher": "NeMo-Run",
        "micro batch size": "2",
        "pp": "8",
        "tensor model parallel size": "4",
    }


@pytest.mark.parametrize("known", [(make_run(),), ()], ids=["folder", "history"])
def test_last_good_run_gets_nodes_launcher_and_step_times_from_history(
    known: tuple[Measurement, ...],
) -> None:
    last = find(evidence(RED, *known, stored_runs=() if known else (make_stored(),)))
    assert last is not None
    spiked = (7.3,) * 20 + (14.6,) + (7.3,) * 13
    details = StoredDetails("torchrun", ("n1", "n2"), spiked, ())
    added = add_stored(last, details, RED, ("n2", "n3"))
    assert added.nodes == ComparedNodes(("n1", "n2"), ("n2", "n3"))
    if known:  # the folder has provided the other facts
        assert replace(added, nodes=None) == last
        return
    assert added.settings.differs == (("launcher", "torchrun", "sbatch"),)
    assert added.steps is not None
    assert tuple(map(phrase_all, added.steps)) == (
        "one spike: step 31 took 2 x the median",
        EVEN,
    )
    unknown = add_stored(last, StoredDetails("", (), spiked[:-1], ()), RED, ("n2",))
    assert (unknown.nodes, unknown.settings, unknown.steps) == (
        None,
        ComparedFacts(),
        None,
    )
