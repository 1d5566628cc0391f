"""`llmbench summary`, run on the examples and on written logs."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tarfile
from contextlib import chdir
from pathlib import Path

import pytest

from pytest_llmbench.cli.main import main

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "experiments"
CLEAN = Path(
    "experiments/pretrain_llama3.1_8b_bf16_8/pretrain_llama3.1_8b_bf16_8_1747036800/pretrain_llama3.1_8b_bf16_8",
    "log-benchmark-benchmark.pretrain_llama3.1_8b_bf16_8_1530003_0.out",
)
WORKLOADS = str(EXAMPLES / "workloads")


FACTS = (
    *(
        "framework",
        "dialect",
        "recipe",
        "size",
        "release",
        "gpu",
        "dtype",
        "gpus",
        "global_batch_size",
    ),
    *(
        "micro_batch_size",
        "sequence_length",
        "total_steps",
        "tp",
        "pp",
        "cp",
        "ep",
        "etp",
        "dp",
        "vp",
        "fsdp",
    ),
)


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, str]]:
    assert main(["summary", *arguments, "--format", "csv"]) == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


@pytest.mark.slow
def test_each_run_has_status_mean_and_deviation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    by_job = {row["job_id"]: row for row in rows(capsys, str(EXAMPLES))}
    assert len(by_job) == 38
    expected = {
        "1640021": "Success",
        "1640026": "Diverged",
        "1388120": "Incomplete",
        "1640040": "Profiled",
        "1640041": "Traced",
        "1530018": "Checkpoint load",
        "2210007": "Success",
    }
    assert {job: by_job[job]["status"] for job in expected} == expected
    clean = by_job["1640021"]
    assert clean["configuration"] == "grok1_314b-25.05-gb200-bf16-128"
    assert {by_job[job]["launcher"] for job in ("1640021", "1388120", "2210007")} == {
        *("nemo-run", "sbatch", "configured-sbatch"),
    }
    assert float(clean["time_mean_s"]) == pytest.approx(7.325, rel=1e-4)
    assert 0 < float(clean["time_std_s"]) < 0.1
    assert float(clean["tflops_per_gpu_mean"]) == pytest.approx(1202.3, abs=0.5)
    assert [
        (by_job[job]["window"], by_job[job]["window_from"])
        for job in ("1640021", "2210007", "1388120")
    ] == [
        *(("11-44", "baseline"), ("11-44", "default"), ("14-27", "last-half")),
    ]
    assert (by_job["1388120"]["reason"], clean["reason"]) == ("incomplete", "")
    assert "27 of 50" in by_job["1388120"]["because"]
    assert main(["summary", str(EXAMPLES), "--format", "json"]) == 0
    documents = {row["job_id"]: row for row in json.loads(capsys.readouterr().out)}
    assert documents["1530003"]["tflops_per_gpu_mean"] is None
    assert documents["1640021"]["started"].startswith("2025-07-21")


@pytest.mark.slow
def test_summary_row_contains_the_facts_that_a_baseline_file_needs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An unmatched run has the facts of its names and its log."""
    by_job = {row["job_id"]: row for row in rows(capsys, str(EXAMPLES))}
    assert {
        name: by_job["1640021"][name] for name in by_job["1640021"] if name in FACTS
    } == {
        "framework": "NeMo-Run",
        "dialect": "nemo2",
        "recipe": "grok1",
        "size": "314b",
        "release": "25.05",
        "gpu": "gb200",
        "dtype": "bf16",
        "gpus": "128",
        "global_batch_size": "256",
        "micro_batch_size": "1",
        "sequence_length": "8192",
        "total_steps": "50",
        "tp": "4",
        "pp": "1",
        "cp": "1",
        "ep": "8",
        "etp": "4",
        "dp": "32",
        "vp": "1",
        "fsdp": "",
    }
    unmatched = by_job["2210007"]
    assert {
        name: unmatched[name] for name in ("configuration", *FACTS[:4], *FACTS[9:11])
    } == {
        "configuration": "",
        "framework": "nemo2",
        "dialect": "nemo2",
        "recipe": "grok1",
        "size": "314b",
        "micro_batch_size": "",
        "sequence_length": "",
    }


@pytest.mark.slow
def test_table_lists_newest_runs_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", WORKLOADS]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["Run", "Job", "Status"]
    assert lines[1].split() == [
        "pretrain_grok1_314b_fp8_gpus128/1782972000/2210007",
        "2210007",
        "Success",
        "5.298",
        "0.026",
        "1662.21",
        "8.13",
        "11-44",
        "50",
        "128",
        "256",
        "nemo2",
    ]
    traced = "8.140 0.492 1084.33 64.30 2-4 (last half) 5 512 1024 NeMo-Run"
    assert " ".join(lines[4].split()).endswith(f" Traced {traced}")


@pytest.mark.slow
def test_window_option_selects_the_steps(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = (
        row
        for row in rows(capsys, WORKLOADS, "--window", "0-0")
        if row["job_id"] == "1640021"
    )
    assert float(row["time_mean_s"]) > 8
    assert (row["status"], row["window"], row["window_from"]) == (
        "Success",
        "0-0",
        "option",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("nowhere", 2, "LOGS nowhere does not exist"),
        (f"{WORKLOADS} --gpu h10", 2, "--gpu=h10: no baseline has this value"),
        (f"{WORKLOADS} --window 44-11", 2, "expected two step numbers such as 11-44"),
        ("empty", 1, "no training run found\n"),
    ],
)
def test_invalid_input_prints_one_message(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    words: str,
    code: int,
    message: str,
) -> None:
    (tmp_path / "empty").mkdir()
    with chdir(tmp_path):
        try:
            ended = main(["summary", *words.split()])
        except SystemExit as stopped:  # raised by argparse
            ended = int(stopped.code or 0)
    assert ended == code
    assert message in "".join(capsys.readouterr())


@pytest.mark.parametrize(("growth", "drift"), [(0.005, ": drift: +14."), (0.0, "")])
def test_drift_over_the_window_is_printed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, growth: float, drift: str
) -> None:
    step = (
        " [2026-03-02 10:00:01] iteration {:8d}/      60 | consumed samples:          512 | elapsed time per iteration "
        "(ms): {:.1f} | learning rate: 1.000E-05 | global batch size:   512 | lm loss: 9.000000E+00 | "
        "loss scale: 1.0 | grad norm: 0.5 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    )
    lines = (
        step.format(number, 1000 * (1 + growth * number)) for number in range(1, 61)
    )
    (tmp_path / "slurm-7.out").write_text("".join(lines))
    assert main(["summary", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert drift in text
    assert (": drift:" in text) is bool(drift)


@pytest.mark.slow
def test_skipped_files_are_listed_on_stderr(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_archive(tmp_path / "outer.tar", "inner.tar")
    for form in ("table", "csv", "json"):
        assert main(["summary", str(tmp_path), "--format", form]) == 1
        captured = capsys.readouterr()
        assert "skipped" not in captured.out
        assert captured.err.startswith(
            "1 file skipped:\n  inner.tar: an archive in an archive is not opened"
        )


@pytest.mark.slow
def test_summary_lists_the_earlier_attempts_of_a_requeued_job(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (log,) = EXAMPLES.rglob("log-*_1640021_0.out")
    text = log.read_text()
    (tmp_path / log.name).write_text(text[: text.index("global_step: 13")])
    (tmp_path / log.name.replace("_0.out", "_1.out")).write_text(text)
    (row,) = rows(capsys, str(tmp_path))
    assert (row["status"], row["attempts"]) == (
        "Success",
        "1 stopped after step 12; 2 finished, judged",
    )
    assert main(["summary", str(tmp_path)]) == 0
    assert capsys.readouterr().out.endswith(
        ": attempt 1 stopped after step 12; 2 finished, judged\n"
    )


@pytest.mark.slow
def test_unreadable_log_has_status_unreadable(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    name = "log-x_llama3.1_8b_bf16_8_1_0.out"
    Path(tmp_path, name).write_bytes(gzip.compress(b"step " * 99)[:-4] + b"....")
    (row,) = rows(capsys, str(tmp_path))
    assert row["status"].startswith("Unreadable: the gzip data of ")
    assert (row["reason"], row["because"]) == (
        "unreadable",
        row["status"].removeprefix("Unreadable: "),
    )
    for attempt in (0, 1):
        text = (
            EXAMPLES.joinpath(CLEAN).read_bytes()
            if attempt == 0
            else b"\x1f\x8b no gzip"
        )
        Path(tmp_path, f"log-x_llama3.1_8b_bf16_8_1_{attempt}.out").write_bytes(text)
    (row,) = rows(capsys, str(tmp_path))
    assert row["status"].startswith(
        "Unreadable: the later attempt 1 cannot be read: the gzip data of "
    )


def write_archive(path: Path, *names: str) -> None:
    with tarfile.open(path, "w") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name))
