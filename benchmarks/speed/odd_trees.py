"""What odd trees and odd logs cost a session: CPU seconds and peak memory at a size and
at twice that size.

python -m benchmarks.speed.odd_trees [CASE ...] [--scale 1.0] [--folder DIR]

Prints a row of docs/explanation/performance.md for each case. Exit code 1 if a case of twice the
size takes more than RATIO times as long, or a session needs more than MEMORY.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

sys.path.extend(
    str(Path(__file__).resolve().parents[2] / name) for name in ("tests", "benchmarks")
)

from generator import lines, write_run
from generator.__main__ import shipped
from speed.environment import ENVIRONMENT

RATIO = 2.5
MEMORY = 1024  # MiB
LIMIT = 4 << 30  # bytes of address space that a session may ask for
SECONDS = 1200  # a session that takes longer is ended

START = datetime(2025, 6, 1, 2, tzinfo=UTC)
NAME = "log-account.pretrain_{}_0.out"

Case = Callable[[Path, int], None]
CASES: dict[str, tuple[int, Case]] = {}


def case(count: int) -> Callable[[Case], Case]:
    """Register a function that writes an input of a size. The function's name is the
    case's name, `count` its usual size."""

    def register(function: Case) -> Case:
        CASES[function.__name__.strip("_")] = (count, function)
        return function

    return register


# --- trees ----------------------------------------------------------------------------


@case(50_000)
def empty_logs_in_one_folder(folder: Path, count: int) -> None:
    """Write empty logs."""
    for number in range(count):
        (folder / NAME.format(1_000_000 + number)).touch()


@case(50_000)
def empty_logs_in_folders(folder: Path, count: int) -> None:
    """Write empty logs, each in a folder."""
    for number in range(count):
        place = folder / f"job_{number}"
        place.mkdir()
        (place / NAME.format(1_000_000 + number)).touch()


def _write_tar(archive: tarfile.TarFile, count: int) -> None:
    with archive:
        for number in range(count):
            archive.addfile(
                tarfile.TarInfo(f"runs/{NAME.format(1_000_000 + number)}"), io.BytesIO()
            )


@case(50_000)
def empty_logs_in_a_tar(folder: Path, count: int) -> None:
    """Write an archive of empty logs."""
    _write_tar(tarfile.open(folder / "runs.tar", "w"), count)  # noqa: SIM115


@case(50_000)
def empty_logs_in_a_tar_gz(folder: Path, count: int) -> None:
    """Write a compressed archive of empty logs."""
    _write_tar(tarfile.open(folder / "runs.tar.gz", "w:gz"), count)  # noqa: SIM115


@case(50_000)
def empty_logs_in_a_zip(folder: Path, count: int) -> None:
    """Write a zip of empty logs."""
    with zipfile.ZipFile(folder / "runs.zip", "w") as archive:
        for number in range(count):
            archive.writestr(f"runs/{NAME.format(1_000_000 + number)}", b"")


@case(15_000)
def files_that_are_no_logs(folder: Path, count: int) -> None:
    """Write files with the names of logs and a few other lines."""
    for number in range(count):
        (folder / f"job-{number}.out").write_text(f"hello\nfrom job {number}\nbye\n")


@case(15_000)
def files_under_unknown_names(folder: Path, count: int) -> None:
    """Write files with unknown names and a few lines."""
    for number in range(count):
        (folder / f"console{number}").write_text(f"hello\nfrom job {number}\nbye\n")


@case(15_000)
def logs_of_one_step(folder: Path, count: int) -> None:
    """Write logs with one step of an unknown configuration."""
    for number in range(count):
        text = _step(0, 1, 7.3 + number / 1e6)
        (folder / NAME.format(1_000_000 + number)).write_text(text)


@case(15_000)
def metadata_without_logs(folder: Path, count: int) -> None:
    """Write the metadata of jobs without logs."""
    for number in range(count):
        (folder / f"llmb-config_{1_000_000 + number}.yaml").write_text(
            f"job_info:\n  job_id: {1_000_000 + number}\nmodel_info:\n  model_size: 8b\n  dtype: bf16\n  gpus: 8\n"
        )


@case(15_000)
def small_json_csv_yaml(folder: Path, count: int) -> None:
    """Write small files of three kinds that are not logs."""
    for number in range(count):
        end, text = (
            ("json", '{"a": 1}\n'),
            ("csv", "step,loss\n1,2.0\n"),
            ("yaml", "a: 1\n"),
        )[number % 3]
        (folder / f"file-{number}.{end}").write_text(text)


@case(15_000)
def metrics_of_one_step(folder: Path, count: int) -> None:
    """Write tables of metrics with one step, each in a folder."""
    for number in range(count):
        place = folder / f"version_{number}"
        place.mkdir()
        (place / "metrics.csv").write_text(
            f"step,loss,step_time\n1,{2 + number / 1e6},7.3\n"
        )


@case(15_000)
def errors_without_logs(folder: Path, count: int) -> None:
    """Write standard errors without the logs of their jobs."""
    for number in range(count):
        (folder / f"job_{number}.err").write_text(
            "srun: error: node-0001: task 0: Exited with exit code 1\n"
        )


@case(15_000)
def hard_links_to_one_log(folder: Path, count: int) -> None:
    """Write hard links to one log."""
    first = folder / NAME.format(999_999)
    first.write_text(_step(0, 1, 7.3))
    for number in range(min(count, 60_000)):
        os.link(first, folder / NAME.format(1_000_000 + number))


@case(15_000)
def copies_of_one_log(folder: Path, count: int) -> None:
    """Write copies of one log."""
    for number in range(count):
        (folder / NAME.format(1_000_000 + number)).write_text(
            "".join(_step(n, 50, 7.3 + n / 100) for n in range(50))
        )


def _write_runs(folder: Path, count: int, **options: object) -> None:
    baselines = [one for one in shipped().values() if one.dialect == "nemo2"]
    for number in range(count):
        started = START + timedelta(minutes=13 * number)
        write_run(
            folder,
            baselines[0],
            started=started,
            job_id=str(1_000_000 + number),
            factor=1 + 0.003 * ((number * 7919) % 13 - 6) / 6,
            **options,
        )


@case(2_500)
def runs_of_one_configuration(folder: Path, count: int) -> None:
    """Write runs of one configuration in the folders of its recipe."""
    _write_runs(folder, count)


def _write_short_runs(folder: Path, count: int, model: str) -> None:
    """Write runs with two steps, each in a folder of its own; `model` may contain the
    number of the run."""
    for number in range(count):
        place = (
            folder
            / f"pretrain_{model.format(number)}_bf16_gpus8_{1_750_000_000 + 600 * number}"
        )
        place.mkdir()
        text = _step(0, 2, 7.3 + number / 1e6) + _step(1, 2, 7.2 + number / 1e6)
        (place / NAME.format(1_000_000 + number)).write_text(text)


@case(15_000)
def short_runs_of_one_configuration(folder: Path, count: int) -> None:
    """Write runs with two steps of one configuration."""
    _write_short_runs(folder, count, "llama3.1_8b")


@case(15_000)
def runs_of_unknown_models(folder: Path, count: int) -> None:
    """Write runs of two steps, each of another model without a baseline."""
    _write_short_runs(folder, count, "model{}_7b")


# --- logs -----------------------------------------------------------------------------


def _step(step: int, steps: int, seconds: float) -> str:
    values = {
        "lr": 1.5e-7,
        "global_batch_size": 128,
        "global_step": step,
        "reduced_train_loss": 12.0 - step / 1e6,
        "train_step_timing in s": seconds,
        "TFLOPS_per_GPU": 811.2,
        "consumed_samples": (step + 1) * 128,
    }
    return lines.nemo2_line(step, steps, values) + "\n"


def _write_log(folder: Path, body: Iterator[str]) -> None:
    """Write a run of a documented configuration with more lines in the middle of its
    log."""
    baseline = next(one for one in shipped().values() if one.dialect == "nemo2")
    path = write_run(folder, baseline)
    first, *others = path.read_text().split("Training epoch 0, iteration 25/")
    with path.open("w") as file:
        file.write(first)
        file.writelines(f"{line}\n" for line in body)
        file.write(
            "".join(f"Training epoch 0, iteration 25/{other}" for other in others)
        )


def _moment(number: int) -> str:
    return f"{START + timedelta(seconds=number):%Y-%m-%d %H:%M:%S}"


LINES: dict[str, Callable[[int], str]] = {
    "empty_lines": lambda n: "",
    "steps_without_a_number": lambda n: "Training epoch 0, iteration x/49 | lr: 1.5e-07 | global_step: x",
    "steps_cut_off": lambda n: f"Training epoch 0, iteration {n}/49 | lr: 1.5e-07 | global_s",
    "steps_of_nan_seconds": lambda n: f"Training epoch 0, iteration {n}/9999999 | lr: 1.5e-07 | "
    f"global_step: {n} | train_step_timing in s: nan",
    "steps_of_one_number": lambda n: _step(25, 50, 7.3)[:-1],
    "steps_that_count_down": lambda n: _step(10**7 - n, 10**7 + 1, 7.3)[:-1],
    "steps_that_jump": lambda n: _step(n * 7919 % 10**7, 10**7, 7.3)[:-1],
    "steps_in_order": lambda n: _step(n, 10**7, 7.3)[:-1],
    "tracebacks": lambda n: "Traceback (most recent call last):\n"
    f'  File "train.py", line {n}, in <module>\n    main()\nRuntimeError: fault {n}',
    "tracebacks_without_an_end": lambda n: "Traceback (most recent call last):",
    "tracebacks_of_ranks": lambda n: f"{n}: Traceback (most recent call last):",
    "gpu_out_of_memory": lambda n: f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {n} MiB.",
    "nccl_timeouts": lambda n: f"[rank{n}]:[E ProcessGroupNCCL.cpp:607] [Rank {n}] Watchdog caught collective "
    f"operation timeout: WorkNCCL(SeqNum={n}, OpType=ALLREDUCE) ran for 600031 milliseconds before timing out.",
    "srun_errors": lambda n: f"srun: error: node-{n % 9999:04d}: task {n}: Exited with exit code 1",
    "cancelled": lambda n: f"slurmstepd: error: *** STEP {n}.0 ON node-0001 CANCELLED AT 2025-06-01T02:00:00 ***",
    "checkpoint_saves": lambda n: lines.checkpoint_save(START, n, 1.75e9 + n, 1.5),
    "checkpoint_loads": lambda n: lines.checkpoint_load(START, 1.75e9 + n, 1.5),
    "restarts": lambda n: f"restart_count={n}",
    "process_starts": lambda n: "`Trainer.fit` stopped: `max_steps=50` reached.\nCopying Trainer's 'max_steps' (50)",
    "attempts": lambda n: "\n".join(
        (
            f"restart_count={n}",
            lines.checkpoint_load(START, 1.75e9 + n, 1.5),
            "|   tensor_model_parallel_size: 8",
            _step(n % 40, 50, 7.3)[:-1],
            _step(n % 40 + 1, 50, 7.2)[:-1],
            f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {n} MiB.",
        )
    ),
    "settings": lambda n: f"|   tensor_model_parallel_size: {n}",
    "node_names": lambda n: f"node-{n}:{n}:{n} [0] NCCL INFO NCCL version 2.27.3+cuda12.9",
    "nccl_channels": lambda n: f"node-{n % 99}:{n}:{n} [0] NCCL INFO Channel {n % 64:02}/0 : {n}[0] -> {n + 1}[0] "
    "[send] via NET/IB/0/GDRDMA",
    "clocks_back_and_forth": lambda n: f"[{_moment(n * 7919 % 10**6)}] INFO: a line",
    "json_lines": lambda n: json.dumps({"step": n, "loss": 2.0, "time": n}),
    "mlperf_records": lambda n: lines.mlperf_step(n, 7.3, 2.0, 128),
}  # fmt: skip


ATTEMPTS = ("attempts", "steps_that_count_down")
"""Each line or two of them is an attempt, of which a log may have 50,000."""


def _register_lines() -> None:
    for name, line in LINES.items():

        def write(folder: Path, count: int, line: Callable[[int], str] = line) -> None:
            _write_log(folder, map(line, range(count)))

        CASES[name] = (20_000 if name in ATTEMPTS else 250_000, write)


_register_lines()


@case(250_000)
def steps_in_a_table(folder: Path, count: int) -> None:
    """Write a table of metrics with this number of steps."""
    with (folder / "metrics.csv").open("w") as file:
        file.write("step,loss,step_time\n")
        file.writelines(f"{n},{2 + n / 1e6},7.3{n % 10}\n" for n in range(1, count + 1))


@case(250_000)
def steps_in_json_lines(folder: Path, count: int) -> None:
    """Write metrics as lines of JSON with this number of steps."""
    with (folder / "metrics.jsonl").open("w") as file:
        file.writelines(
            f'{{"step": {n}, "loss": {2 + n / 1e6}, "step_time": 7.3{n % 10}}}\n'
            for n in range(1, count)
        )


@case(250_000_000)
def one_long_line(folder: Path, count: int) -> None:
    """Write a log with a line of this number of bytes."""
    _write_log(folder, iter(["x" * count]))


# --- measuring ------------------------------------------------------------------------


def measure(
    tree: Path, work: Path, arguments: list[str]
) -> tuple[float, float, int, str]:
    """Run a session. Returns CPU seconds, peak MiB, its exit code and its output."""
    work.mkdir(exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-q",
        f"--llmb-logs={tree}",
        *arguments,
    ]
    command = [
        "bash",
        "-c",
        'ulimit -v "$0" && exec "$@"',
        str(LIMIT // 1024),
        *command,
    ]
    environment = {**ENVIRONMENT, "XDG_CACHE_HOME": str(work / "cache")}
    with (work / "output").open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=work,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        timer = threading.Timer(SECONDS, process.kill)
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        timer.cancel()
    code = os.waitstatus_to_exitcode(status)
    process.returncode = code  # it was waited for
    return (
        usage.ru_utime + usage.ru_stime,
        usage.ru_maxrss / 1024,
        code,
        str(work / "output"),
    )


def main() -> int:
    """Measure the cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    unknown = set(options.cases) - set(CASES)
    if unknown:
        parser.error(
            f"unknown: {', '.join(sorted(unknown))}; there are: {' '.join(CASES)}"
        )
    work = options.folder or Path(tempfile.mkdtemp())
    bad = 0
    print(
        "| input | size | CPU s | peak MiB | twice the size: CPU s | peak MiB | ratio |",
        flush=True,
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    for name in options.cases or CASES:
        count, write = CASES[name]
        count = int(count * options.scale)
        rows = []
        for size in (count, 2 * count):
            home = work / f"{name}-{size}"
            shutil.rmtree(home, ignore_errors=True)
            (home / "tree").mkdir(parents=True)
            write(home / "tree", size)
            more = [
                f"--llmb-json={home}/r.json",
                f"--llmb-html={home}/r.html",
                f"--junitxml={home}/r.xml",
            ]
            rows.append(measure(home / "tree", home / "work", more))
            sizes = {p.name: p.stat().st_size // 1024 for p in home.glob("r.*")}
            sizes["out"] = os.path.getsize(rows[-1][3]) // 1024
            print(
                f"    {name} {size}: exit {rows[-1][2]}, KiB {sizes}",
                file=sys.stderr,
                flush=True,
            )
            shutil.rmtree(home / "tree")
        ratio = rows[1][0] / rows[0][0]
        print(
            f"| {name.replace('_', ' ')} | {count:,} | {rows[0][0]:.1f} | {rows[0][1]:.0f} | {rows[1][0]:.1f} | "
            f"{rows[1][1]:.0f} | {ratio:.2f} |",
            flush=True,
        )
        bad += ratio > RATIO or rows[1][1] > MEMORY
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
