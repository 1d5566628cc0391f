"""Resuming an A/B or a search: changed variants and scripts are refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace
from support.job_specs import KEY, job_spec
from support.planned_jobs import FACTS

from pytest_llmbench.core.commands import run
from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.job_records import PreflightCheck, Purpose
from pytest_llmbench.launch.launch_settings import LaunchSettings
from pytest_llmbench.launch.plan.planned_job import PlannedJob
from pytest_llmbench.launch.plan.planner import Host, Plan, Planner
from pytest_llmbench.launch.plan.trial_plans import (
    digest_scripts,
    digest_variants,
    refuse_changed,
)
from pytest_llmbench.launch.plan.variants import find_without_script

AB = LaunchSettings(ab="variants.yaml")
SEARCH = LaunchSettings(bisect="variants.yaml")

Variants = dict[str, list[PlannedJob]]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "launch.sh"
    path.write_text("steps 1.0\n")
    return path


@pytest.fixture
def variants(script: Path) -> Variants:
    first = job_spec(
        script.parent, command=("sbatch", "-N", "2", "./launch.sh"), variant="a"
    )
    return {
        KEY.id: [
            PlannedJob(replace(first, variant=name, environment=(("A", name),)), FACTS)
            for name in "ab"
        ]
    }


def record(variants: Variants) -> dict[str, Any]:
    return {"variants": digest_variants(variants), "scripts": digest_scripts(variants)}


def test_resumed_search_accepts_a_script_that_is_unchanged_or_was_not_recorded(
    variants: Variants, script: Path
) -> None:
    """An earlier version recorded no script, or the script was missing."""
    recorded = record(variants)
    refuse_changed(variants, recorded, AB, "1")
    script.unlink()
    without_script = record(variants)
    script.write_text("steps 1.1\n")
    refuse_changed(variants, without_script, AB, "1")
    del recorded["scripts"]
    refuse_changed(variants, recorded, AB, "1")


@pytest.mark.parametrize(
    "change",
    [lambda script: script.write_text("steps 1.1\n"), Path.unlink],
    ids=["changed", "gone"],
)
def test_resuming_refuses_a_launch_script_changed_since_the_session_began(
    variants: Variants, script: Path, change: Callable[[Path], object]
) -> None:
    recorded = record(variants)
    change(script)
    with pytest.raises(
        LaunchError, match=r"/launch\.sh: the script changed since session 1 began"
    ):
        refuse_changed(variants, recorded, AB, "1")


def test_launch_script_of_a_job_with_a_build_is_not_compared(
    variants: Variants,
) -> None:
    built = {
        KEY.id: [
            PlannedJob(replace(job.spec, build=("make",)), FACTS)
            for job in variants[KEY.id]
        ]
    }
    assert digest_scripts(built) == {}


def test_variants_may_change_in_a_search_only(variants: Variants) -> None:
    recorded, fewer = record(variants), {KEY.id: variants[KEY.id][:1]}
    refuse_changed(fewer, recorded, SEARCH, "1")
    with pytest.raises(
        LaunchError,
        match=r"variants\.yaml: the variants differ from those with which session 1 began$",
    ):
        refuse_changed(fewer, recorded, AB, "1")


def test_resuming_refuses_a_different_build_under_the_same_variant_name(
    variants: Variants,
) -> None:
    recorded = record(variants)
    first, second = variants[KEY.id]
    other = PlannedJob(replace(second.spec, environment=(("A", "c"),)), FACTS)
    with pytest.raises(LaunchError, match=r"session 1 began: b$"):
        refuse_changed({KEY.id: [first, other]}, recorded, SEARCH, "1")


def commit_jobs(checkouts: Path, purpose: Purpose, missing: int) -> list[PlannedJob]:
    """Return the jobs of three commits, one of them without a script."""
    jobs = []
    for number in range(3):
        folder = checkouts / str(number)
        folder.mkdir(parents=True)
        if number != missing:
            (folder / "launch.sh").touch()
        spec = job_spec(
            folder,
            command=("sbatch", "./launch.sh"),
            purpose=purpose,
            variant=str(number),
        )
        jobs.append(PlannedJob(spec, FACTS))
    return jobs


@pytest.mark.parametrize(
    ("folder", "purpose", "missing", "skipped"),
    [
        ("checkouts", Purpose.BISECT, 1, ["1"]),
        ("checkouts", Purpose.BISECT, 0, []),
        ("checkouts", Purpose.BISECT, 2, []),
        ("checkouts", Purpose.COMPARE_VARIANTS, 1, []),
        ("elsewhere", Purpose.BISECT, 1, []),
    ],
    ids=[
        "between the ends",
        "the good end",
        "the bad end",
        "an A/B",
        "a folder that somebody names",
    ],
)
def test_search_skips_a_commit_without_launch_script_between_good_and_bad_commit(
    tmp_path: Path, folder: str, purpose: Purpose, missing: int, skipped: list[str]
) -> None:
    jobs = commit_jobs(tmp_path / folder, purpose, missing)
    assert [
        job.spec.variant for job in find_without_script({KEY.id: jobs}, tmp_path)
    ] == skipped


def test_commit_without_launch_script_is_printed_but_no_preflight_problem(
    tmp_path: Path,
) -> None:
    printed: list[str] = []
    host = Host(
        lambda: datetime.now(UTC), lambda _: None, run, {}, printed.append, tmp_path
    )
    jobs = commit_jobs(tmp_path / "checkouts", Purpose.BISECT, 1)
    planner = Planner(SEARCH, "", cast("Any", None), host, [KEY])
    problems = planner.find_problems(
        Plan((jobs[0],), {}, 1.0, 1.0, variants={KEY.id: tuple(jobs)})
    )
    assert not [
        problem for problem in problems if problem.check is PreflightCheck.SCRIPT
    ]
    (line,) = (line for line in printed if "has no script" in line)
    assert line.split()[:5] == ["1", "has", "no", "script", "in"]
