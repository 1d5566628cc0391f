"""The plan shows every job as it would be submitted, without secrets."""

from __future__ import annotations

import subprocess
from pathlib import Path

from msgspec.structs import replace
from support.planned_jobs import plan_job

from pytest_llmbench.core.job_records import Purpose
from pytest_llmbench.launch.plan.planned_job import PlannedJob
from pytest_llmbench.launch.preflight.dry_run import (
    Reruns,
    format_budget,
    format_command,
    format_plan,
)
from pytest_llmbench.launch.preflight.problems import LaunchProblem


def at(job: PlannedJob, environment: dict[str, str]) -> PlannedJob:
    """Return a job with a fixed folder in place of the test's folder."""
    spec = replace(
        job.spec, directory=Path("/recipe"), environment=tuple(environment.items())
    )
    return replace(job, spec=spec)


def test_plan_shows_every_job(tmp_path: Path) -> None:
    command = ("sbatch", "-A", "my account", "-N", "1", "./launch.sh")
    shared = {"DTYPE": "bf16", "HF_TOKEN": "hf_1234"}
    first = at(
        plan_job(tmp_path, 8, via="sbatch", command=command),
        {**shared, "A": "x", "B": "y"},
    )
    second = at(
        plan_job(tmp_path, 16, via="sbatch", command=command), {**shared, "A": "z"}
    )
    problem = LaunchProblem("no container image", "run setup", ("a", "b"))
    assert format_plan([first, second], [problem], limit=50, reruns=Reruns(3)) == (
        "llama3.1_8b-25.04-h100-bf16-8  (sbatch)\n"
        "  1 node, 8 GPUs, 1.60 GPU-hours\n"
        "  cd /recipe\n"
        "  sbatch -A 'my account' -N 1 ./launch.sh\n"
        "    A=x\n"
        "    B=y\n"
        "    DTYPE=bf16\n"
        "    HF_TOKEN=***\n"
        "\n"
        "llama3.1_8b-25.04-h100-bf16-16  (sbatch)\n"
        "  2 nodes, 16 GPUs, 3.20 GPU-hours\n"
        "  cd /recipe\n"
        "  sbatch -A 'my account' -N 1 ./launch.sh\n"
        "    same environment as the job above, except:\n"
        "    A=z\n"
        "    without B\n"
        "\n"
        "2 jobs, 4.8 GPU-hours of steps; limit 50\n"
        "at most 19.2 GPU-hours: 3 runs of each configuration, 1 run on slow nodes\n"
        "Nothing was submitted.\n"
        "\n"
        "1 problem to solve before the launch:\n"
        " 1. no container image\n"
        "      2 configurations: a, b\n"
        "      do: run setup"
    )


def test_plan_shows_no_secret(tmp_path: Path) -> None:
    """Neither in its variable, another variable, a quoted argument, nor a folder."""
    secret = "s3cret value"
    spec = replace(
        plan_job(tmp_path).spec,
        command=("./launch.sh", f"--token={secret}", secret),
        directory=Path(f"/home/{secret}"),
        environment=(
            ("HF_TOKEN", secret),
            ("URL", f"https://u:{secret}@host"),
            ("PATH", "/bin"),
        ),
    )
    text = format_plan([replace(plan_job(tmp_path), spec=spec)], [])
    assert "s3cret" not in text
    assert "HF_TOKEN=***" in text
    assert "'--token=***' ***" in text


def test_shown_command_can_be_pasted(tmp_path: Path) -> None:
    words = (
        "plain",
        "two words",
        "$(touch x)",
        "a;b",
        "quote'd",
        "line\nfeed",
        "back\\slash\ttab",
        "\x1b[31m",
        "é",
        "",
    )
    spec = replace(
        plan_job(tmp_path).spec, command=("printf", "%s|", *words), secrets=()
    )
    line = format_command(spec)
    assert "\n" not in line
    assert "\x1b" not in line
    process = subprocess.run(
        ["bash", "-c", line],
        cwd=tmp_path,
        capture_output=True,
        check=True,
        env={"LC_ALL": "C.UTF-8"},
    )
    assert process.stdout.decode() == "".join(f"{word}|" for word in words)
    assert not (tmp_path / "x").exists()


def test_gpu_hours_are_summed_per_recipe_release(tmp_path: Path) -> None:
    first = plan_job(tmp_path, 8)
    other = replace(
        first,
        facts=replace(first.facts, release="25.05"),
        spec=replace(first.spec, gpu_hours=0.0),
    )
    assert format_budget([first, other]) == [
        "llama3.1 25.04: 1 job, 1.6 GPU-hours of steps",
        "llama3.1 25.05: 1 job of unknown duration",
        "2 jobs, 1.6 GPU-hours of steps and 1 job of unknown duration",
    ]
    assert format_budget([]) == ["0 jobs, 0.0 GPU-hours of steps"]


def test_exceeded_budget_shows_the_remedy(tmp_path: Path) -> None:
    words = " ".join(format_budget([plan_job(tmp_path, 8)], limit=1)).split()
    expected = "over the limit: select fewer with -k or -m, or allow them: --llmb-gpu-hours=2, or `gpu_hours: 2`"
    assert expected in " ".join(words)
    assert "more than allowed" not in " ".join(
        format_budget([plan_job(tmp_path, 8)], limit=2)
    )


def test_upper_bound_of_gpu_hours_adds_repeats_to_measured_jobs_only(
    tmp_path: Path,
) -> None:
    profile = plan_job(tmp_path, 8, purpose=Purpose.PROFILE)
    assert format_budget([profile], reruns=Reruns(3)) == [
        "1 job, 1.6 GPU-hours of steps"
    ]
    assert "1.60 GPU-hours, profile: not judged for speed" in format_plan([profile], [])


def test_upper_bound_of_gpu_hours_counts_requested_repeats_once(tmp_path: Path) -> None:
    measured = plan_job(tmp_path, 8)
    hours = measured.spec.gpu_hours
    expected = [
        f"2 jobs, {2 * hours:.1f} GPU-hours of steps; limit 3",
        "over the limit: ",
    ]
    lines = format_budget([measured], 3, Reruns(3), {measured.spec.case_id: 2})
    assert [
        line[: len(start)] for line, start in zip(lines, expected, strict=False)
    ] == expected
    assert (
        lines[-2]
        == f"at most {4 * hours:.1f} GPU-hours: 3 runs of each configuration, 1 run on slow nodes"
    )
    everything = format_budget([measured], None, Reruns(3), {measured.spec.case_id: 3})
    assert everything[0] == f"3 jobs, {3 * hours:.1f} GPU-hours of steps"


def test_upper_bound_of_gpu_hours_includes_repeats_and_retries(tmp_path: Path) -> None:
    measured, profile = (
        plan_job(tmp_path, 8),
        plan_job(tmp_path, 8, purpose=Purpose.PROFILE),
    )
    hours = measured.spec.gpu_hours
    assert format_budget([measured, profile], 10, Reruns(3, 1))[1:] == [
        f"at most {hours * 11:.1f} GPU-hours: 3 runs of each configuration, 2 starts of each run, 1\n"
        "retry after a stall, 1 run on slow nodes",
        "jobs beyond the limit of 10 GPU-hours are not started",
    ]
    assert format_budget([profile], 100, Reruns(3, 1))[1:] == [
        f"at most {hours * 3:.1f} GPU-hours: 2 starts of each job, 1 retry after a stall"
    ]
    assert len(format_budget([measured], 100)) == 1


def test_upper_bound_of_gpu_hours_includes_profiles_and_node_checks(
    tmp_path: Path,
) -> None:
    measured = plan_job(tmp_path, 4, nodes=1, gpus_per_node=8)
    hours = measured.spec.gpu_hours
    once = format_budget([measured], None, Reruns(profile_hours=0.5, node_checks=True))
    assert once[1:] == [
        f"at most {hours + 0.5:.1f} GPU-hours: 1 profile of each configuration"
    ]
    thrice = format_budget(
        [measured], None, Reruns(3, profile_hours=0.5, node_checks=True)
    )
    assert " ".join(thrice[1:]).replace(
        "\n", " "
    ) == (  # the nodes of two slow runs, for a quarter of an hour
        f"at most {hours * 4 + 0.5 + 2 * 8 / 4:.1f} GPU-hours: 3 runs of each configuration, 1 run on slow nodes, node checks, "
        "1 profile of each configuration"
    )
