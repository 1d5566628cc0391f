"""The output of submission commands, as real launchers printed it on a real Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from support.job_specs import job

from pytest_llmbench.launch.schedulers.slurm.sbatch import (
    find_remedy,
    is_refused,
    read_llmb_run,
    read_sbatch,
    read_script,
    require_single,
)
from pytest_llmbench.launch.schedulers.submission import (
    Submission,
    SubmitError,
    describe_doubt,
    describe_refusal,
    read_pattern,
)

OUTPUT = Path("/scratch/submit.out")
LONG = (
    "/lustre/llmb/workloads/pretrain_grok1/experiments/pretrain_grok1_314b_bf16_gpus128/"
    + "d" * 90
    + "/task"
)
BLOCK = """\
────────── Entering Experiment x with id: x_1795213664566197936 ──────────
[03:00:01] Launching job train for experiment x

Experiment Status for x_1795213664566197936

Task 0: train
- Status: SUBMITTED
- Executor: SlurmExecutor on @localhost
- Job id: 3530909
- Local Directory: {folder}

"""
LAUNCHED = """\
LAUNCHED: pretrain_grok1_314b             dtype=bf16   scale=16     profile=False   proxy=False  jobid=2
JobID: 2, Workdir: /lustre/llmb/workloads/pretrain_grok1/task
"""
SUBMITTED = (
    "SUBMITTED: pretrain_x_8b                  dtype=fp8    scale=8      profile=False   proxy=False  "
    "jobid=3 workdir=/lustre/llmb/1795213837\n"
)


def wrapped(path: str, first: int) -> str:
    """Wrap a path as a terminal of 80 columns does, with `first` columns left in its
    first line."""
    remaining_lines = [
        path[offset : offset + 80] for offset in range(first, len(path), 80)
    ]
    return "\n".join([path[:first], *remaining_lines])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Submitted batch job 4711\n", [Submission("4711")]),
        (
            "sbatch: warning: x\nSubmitted batch job 4711 on cluster a\n",
            [Submission("4711")],
        ),
        ("Submitted batch job 1\nSubmitted batch job 1\n", [Submission("1")]),
        (
            "Submitted batch job 1\nSubmitted batch job 2\n",
            [Submission("1"), Submission("2")],
        ),
        ("sbatch: error: Batch job submission failed: Invalid account\n", []),
        ("", []),
    ],
)
def test_sbatch_output_is_parsed(text: str, expected: list[Submission]) -> None:
    assert read_sbatch(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BLOCK.format(folder="/lustre/x"), [Submission("3530909", Path("/lustre/x"))]),
        (BLOCK.format(folder=wrapped(LONG, 61)), [Submission("3530909", Path(LONG))]),
        (
            BLOCK.format(folder="\n" + wrapped(LONG, 80)),
            [Submission("3530909", Path(LONG))],
        ),
        (BLOCK.format(folder=LONG), [Submission("3530909", Path(LONG))]),
        (
            BLOCK.format(folder="/lustre/x").replace("\n\n", "\nDone\n"),
            [Submission("3530909", Path("/lustre/x"))],
        ),
        (
            BLOCK.replace("- ", "\x1b[1;32m- \x1b[0m").format(folder="/lustre/x"),
            [Submission("3530909", Path("/lustre/x"))],
        ),
        (BLOCK.format(folder="None"), [Submission("3530909")]),
        (
            "Submitted batch job 9\n" + BLOCK.format(folder="/lustre/x"),
            [Submission("3530909", Path("/lustre/x"))],
        ),
        (
            BLOCK.format(folder="/a") + BLOCK.format(folder="/b").replace("909", "910"),
            2,
        ),
        ("Submitted batch job 9\n", [Submission("9")]),
        ("RuntimeError: sbatch: error: Invalid account\n", []),
    ],
)
def test_output_of_submitting_script_is_parsed(
    text: str, expected: list[Submission] | int
) -> None:
    submissions = read_script(text)
    assert (len(submissions) if isinstance(expected, int) else submissions) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            LAUNCHED,
            [Submission("2", Path("/lustre/llmb/workloads/pretrain_grok1/task"))],
        ),
        (SUBMITTED, [Submission("3", Path("/lustre/llmb/1795213837"))]),
        (SUBMITTED.partition(" workdir")[0], [Submission("3")]),
        ("SUBMITTED: x  dtype=fp8  env={'A': 'b c'} jobid=4", [Submission("4")]),
        (
            BLOCK.format(folder="/cut/o")
            + LAUNCHED.replace("=2", "=3530909").replace(" 2,", " 3530909,"),
            1,
        ),
        (BLOCK.format(folder="/lustre/x"), [Submission("3530909", Path("/lustre/x"))]),
        ("ERROR: validation failed\n", []),
    ],
)
def test_llmb_run_output_is_parsed(text: str, expected: list[Submission] | int) -> None:
    submissions = read_llmb_run(text)
    assert (len(submissions) if isinstance(expected, int) else submissions) == expected


def test_job_id_and_folder_are_read_with_a_custom_pattern() -> None:
    pattern = r"^queued as (?P<job>\S+)(?: in (?P<folder>.+))?$"
    assert read_pattern(pattern, "hello\nqueued as 12 in /data/x\n") == [
        Submission("12", Path("/data/x"))
    ]
    assert read_pattern(pattern, "queued as 12\n") == [Submission("12")]
    assert read_pattern(pattern, "Submitted batch job 12\n") == []
    assert read_pattern(r"id=(?P<job>\d+)", "id=7") == [Submission("7")]


def test_submission_that_prints_two_job_ids_is_uncertain() -> None:
    submitted_job = job(Path("/scratch"))
    assert require_single([], submitted_job, OUTPUT) is None
    assert require_single([Submission("7")], submitted_job, OUTPUT) == Submission("7")
    with pytest.raises(
        SubmitError, match=r"2 job ids \(7, 8\), expected one.*scancel 7 8"
    ) as caught:
        require_single([Submission("7"), Submission("8")], submitted_job, OUTPUT)
    assert caught.value.uncertain


@pytest.mark.parametrize("name", ["train-x8f2", "411_1", "7;rm", "", "१"])
def test_printed_job_id_of_another_job_makes_the_submission_uncertain(
    name: str,
) -> None:
    with pytest.raises(SubmitError, match="expected a number as Slurm has") as caught:
        require_single([Submission(name)], job(Path("/scratch")), OUTPUT)
    assert caught.value.uncertain


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "sbatch: error: Batch job submission failed: Invalid account or account/partition combination",
            "`account`",
        ),
        ("sbatch: error: invalid partition specified: gpux", "`partition`"),
        ("RuntimeError: GPUs not found", "gres: gpu:8"),
        ("a container was started without GPU resources", "gres: gpu:8"),
        ("sbatch: error: Invalid generic resource (gres) specification", "`gres`"),
        (
            "sbatch: error: Batch job submission failed: Node count specification invalid",
            "sinfo",
        ),
        (
            "sbatch: error: Batch job submission failed: Requested time limit is invalid",
            "time_limit",
        ),
        ("ModuleNotFoundError: No module named 'nemo_run'", "not installed"),
        ("no idea", "--llmb-dry-run"),
    ],
)
def test_refusal_contains_a_remedy(text: str, expected: str) -> None:
    assert expected in find_remedy(text)
    message = describe_refusal(
        job(Path("/scratch")), 1, f"first line\n{text}\n", OUTPUT, find_remedy(text)
    )
    assert all(
        fragment in message
        for fragment in (
            text,
            expected,
            "exit code 1",
            str(OUTPUT),
            "grok1_314b-25.05-gb200-bf16-128",
        )
    )


def test_refusal_shows_the_last_printable_lines() -> None:
    text = (
        "\n".join(f"line {number}" for number in range(100))
        + "\n\x1b]0;title\x07bad\x07\n"
    )
    message = describe_refusal(job(Path("/scratch")), None, text, OUTPUT, "try again")
    assert "line 99" in message
    assert "line 90" not in message
    assert "did not end in time" in message
    assert message.isprintable()  # one line, as in reports


def test_output_with_unknown_secrets_is_not_shown() -> None:
    spec = replace(
        job(Path("/scratch")).spec,
        environment=(("HF_TOKEN", "***"),),
        secrets=("HF_TOKEN",),
    )
    message = describe_refusal(
        job(Path("/scratch"), spec=spec), 1, "+ export HF_TOKEN=hf_secret\n", OUTPUT, ""
    )
    assert "hf_secret" not in message
    assert "may contain a secret" in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "ERROR: ERROR: pretrain_x_8b  dtype=fp8  scale=8  profile=False  launch failed with return code 1\n",
            True,
        ),
        (
            "ERROR: ERROR: pretrain_x_8b  dtype=fp8  venv error: Invalid virtual environment: python3 executable",
            True,
        ),
        ("ERROR: venv_path not found in config for workload pretrain_x\n", True),
        ("sbatch: error: Batch job submission failed: Invalid account\n", True),
        (
            "ERROR: ERROR: pretrain_x_8b  output parsing failed: No Task headers found in output\n",
            False,
        ),
        ("done\n", False),
    ],
)
def test_known_launcher_error_counts_as_a_refused_submission(
    text: str, expected: bool
) -> None:
    assert is_refused(text) is expected


def test_uncertain_submission_shows_the_inquiry_command() -> None:
    doubtful = job(Path("/scratch"))
    assert "It said" not in describe_doubt(doubtful, OUTPUT, "squeue --me")
    assert "printed: line 1 | line 2. See" in describe_doubt(
        doubtful, OUTPUT, "squeue", text="line 1\nline 2\n"
    )
    assert "`squeue --me` (its comment is x);" in describe_doubt(
        doubtful, OUTPUT, "squeue --me", mark=" (its comment is x)"
    )
