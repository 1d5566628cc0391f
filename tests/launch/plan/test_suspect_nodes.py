"""Choosing the suspect nodes of the history that a launch confirms first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.job_specs import job_spec
from support.node_histories import KEYS, make_sessions, write_sessions
from support.planned_jobs import FACTS

from pytest_llmbench.core.job_records import JobSpec, Purpose
from pytest_llmbench.history.store import StoreLocation
from pytest_llmbench.launch.launch_settings import LaunchSettings
from pytest_llmbench.launch.plan.planned_job import PlannedJob
from pytest_llmbench.launch.plan.suspect_nodes import (
    SuspectNodes,
    find_suspect_nodes,
    restore_suspects,
    select_suspects,
)
from pytest_llmbench.session.catalog import Catalog
from pytest_llmbench.session.settings import Settings

SPECS = tuple(
    job_spec(
        Path("/recipe"),
        case_id=key.id,
        key=key,
        via="sbatch",
        nodes=8,
        gpus=64,
        gpu_hours=hours,
    )
    for key, hours in zip(KEYS, (20.0, 10.0), strict=True)
)


def find(
    history: StoreLocation | None,
    specs: Sequence[JobSpec] = SPECS,
    *,
    record: Path | None = None,
    **launch: Any,
) -> tuple[tuple[SuspectNodes, ...], str]:
    """Return the suspects to confirm, and the printed lines."""
    printed: list[str] = []
    settings = Settings(history=history, record=record)
    jobs = [PlannedJob(spec, FACTS) for spec in specs]
    suspects = find_suspect_nodes(
        jobs, LaunchSettings(**launch), settings, Catalog((), {}), printed.append
    )
    return suspects, " ".join(" ".join(printed).split())


@pytest.mark.slow
def test_cheapest_slow_configuration_confirms_the_node(history: StoreLocation) -> None:
    (suspects,), text = find(history)
    assert (suspects.case, suspects.nodes) == (KEYS[1].id, ("n07",))
    assert len(suspects.others) == 7
    assert "n07" not in suspects.others
    assert text.startswith("llmbench: by the history n07 is slow: +10.0 %")
    assert text.endswith(f"one run of {KEYS[1].id} there comes first")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"repeats": 1}, "--llmb-repeats=1 allows one run of each configuration"),
        ({"submit_only": True}, "--llmb-submit-only does not wait for runs"),
        (
            {"record": Path("recorded")},
            "a session that records baselines does not confirm nodes",
        ),
    ],
)
def test_suspect_node_is_reported_unconfirmed_if_options_forbid_a_confirmation_run(
    history: StoreLocation, options: dict[str, Any], reason: str
) -> None:
    suspects, text = find(history, **options)
    assert suspects == ()
    assert text.endswith(f"not confirmed: {reason}")


@pytest.mark.slow
def test_suspect_node_is_reported_unconfirmed_if_no_selected_configuration_suits(
    history: StoreLocation,
) -> None:
    other = replace(SPECS[0], case_id="another")
    for specs in ([other], [replace(spec, nodes=40) for spec in SPECS]):
        suspects, text = find(history, specs)
        assert suspects == ()
        assert "not confirmed: no selected configuration that was slow there" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"exclude": ("n[05-08]",)},
        {"scheduler_options": ("--nodelist=n01",)},
        {"via": "local"},
    ],
)
def test_node_that_selected_jobs_cannot_use_is_not_suspected(
    history: StoreLocation, fields: dict[str, Any]
) -> None:
    assert find(history, [replace(spec, **fields) for spec in SPECS]) == ((), "")


def test_excluded_nodes_are_not_used_to_complete_a_confirmation_run(
    history: StoreLocation,
) -> None:
    before = find(history)[0][0].others
    (suspects,), _ = find(
        history, [replace(spec, exclude=before[:1]) for spec in SPECS]
    )
    assert not {"n07", before[0]} & set(suspects.others)


@pytest.mark.slow
def test_no_node_is_suspected_without_slow_runs_in_the_history(
    history: StoreLocation, tmp_path: Path
) -> None:
    assert find(None) == ((), "")
    assert find(history, purpose=Purpose.PROFILE) == ((), "")
    sound = StoreLocation(
        "s.db", write_sessions(tmp_path / "s.db", make_sessions({}, days=10))
    )
    assert find(sound) == ((), "")


def test_unreadable_history_is_reported(tmp_path: Path) -> None:
    (tmp_path / "h.db").write_text("no database")
    suspects, text = find(StoreLocation("h.db", tmp_path / "h.db"))
    assert suspects == ()
    assert "h.db" in text


def test_collect_session_restores_only_suspect_nodes_with_a_confirmation_run() -> None:
    records = [{"case": KEYS[0].id, "nodes": ["n7"], "others": ["n8"], "text": "slow"}]
    suspects = restore_suspects(records)
    assert suspects == (SuspectNodes(KEYS[0].id, ("n7",), ("n8",), "slow"),)
    jobs = [PlannedJob(spec, FACTS) for spec in SPECS]
    assert select_suspects(suspects, jobs, None) == suspects
    assert select_suspects(suspects, jobs[1:], None) == ()
    assert select_suspects(suspects, jobs, [SPECS[0]]) == ()
    assert (
        select_suspects(
            suspects, jobs, [replace(SPECS[0], purpose=Purpose.CONFIRM_NODES)]
        )
        == suspects
    )
    wrong: tuple[Any, ...] = ([{}], ["x"], [None])
    for record in wrong:
        with pytest.raises((LookupError, TypeError)):
            restore_suspects(record)
