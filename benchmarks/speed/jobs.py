"""The jobs whose instructions are counted: each is work that a user waits for.

A job has two functions. `prepare` writes its input into an empty folder and is not
counted. `run` does the work in a new process; only the code inside `with counting:` is
counted. It returns a short text that states what was done. If the text differs from the
recorded one, the gate fails, so that no job gets faster by doing less. Imports of the
package are counted only in `idle` and `import`, and compiling its patterns is not counted
in jobs that read or find runs: they would dominate every other job.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import pkgutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from unittest import mock

START = datetime(2026, 3, 2, 1, tzinfo=UTC)

PLUGIN = ("-p", "pytest_llmbench.plugin")
"""Other plugins that are installed are not loaded: `PYTEST_DISABLE_PLUGIN_AUTOLOAD` is
set."""

Counting = AbstractContextManager[object]
Run = Callable[[Path, Counting], str]


@dataclass(frozen=True, slots=True)
class Job:
    """One job. The instructions of `base`, which does the same without the plugin, are
    subtracted."""

    what: str
    prepare: Callable[[Path], None]
    run: Run
    base: Run | None = None


LIBRARIES = (
    *(
        "pytest",
        "numpy",
        "yaml",
        "pytest_llmbench.logs.sources.zstd",
        "jinja2",
        "sqlalchemy.dialects.sqlite",
    ),
    *("hyperscan", "ahocorasick_rs", "sqlite3", "xml.etree.ElementTree"),
)


def load_libraries() -> None:
    """Import the libraries that sessions and commands use."""
    for name in LIBRARIES:
        importlib.import_module(name)


def load_package(*folders: str) -> None:
    """Import all modules of these folders of the package (by default all but its test
    suite), and the libraries."""
    import pytest_llmbench

    load_libraries()
    for module in pkgutil.walk_packages(pytest_llmbench.__path__, "pytest_llmbench."):
        folder = module.name.split(".")[1]
        if folder in folders or (not folders and folder != "suite"):
            importlib.import_module(module.name)


def compile_patterns() -> None:
    """Compile the patterns of the imported modules, which are compiled on their first
    use."""
    from pytest_llmbench.core.patterns import LazyPattern

    for item in gc.get_objects():
        if isinstance(item, LazyPattern):
            _ = item.groups


def run_pytest(folder: Path, counting: Counting, *arguments: str) -> str:
    """Count a pytest session. Returns its exit code and its last line without the time."""
    import pytest

    os.chdir(folder)
    printed = io.StringIO()
    with counting, contextlib.redirect_stdout(printed):
        code = pytest.main(["-q", "-p", "no:cacheprovider", *arguments])
    last = next(
        (line for line in reversed(printed.getvalue().splitlines()) if line.strip()), ""
    )
    return f"exit code {int(code)}, {last.strip('= ').partition(' in ')[0]}"


def run_llmbench(folder: Path, counting: Counting, *arguments: str) -> str:
    """Count an `llmbench` command. Returns its exit code."""
    os.chdir(folder)
    with counting, contextlib.redirect_stdout(io.StringIO()):
        from pytest_llmbench.cli.main import main

        code = main(arguments)
    return f"exit code {code}"


def write_runs(
    folder: Path, count: int, *, first: int = 0, factor: float = 1.0
) -> None:
    """Write `count` generated runs into `folder`: all shipped configurations in turn,
    one day after the other.

    `first` is the number of the first run, from which its job id and day follow;
    `factor` slows all of them down.
    """
    from generator import write_run
    from generator.__main__ import shipped

    baselines = list(shipped().values())
    for number in range(first, first + count):
        day, position = divmod(number, len(baselines))
        write_run(
            folder,
            baselines[position],
            started=START + timedelta(days=day, minutes=position),
            job_id=str(1_000_000 + number),
            factor=factor * (1 + 0.003 * ((number * 7919) % 13 - 6) / 6),
        )


# Sessions


def collect_with_plugin(folder: Path, counting: Counting) -> str:
    """Collect an empty project with the plugin loaded and idle."""
    return _collect(folder, counting, *PLUGIN)


def collect_without_plugin(folder: Path, counting: Counting) -> str:
    """Collect an empty project with another, empty plugin."""
    return _collect(folder, counting, "-p", "speed.empty_plugin")


def _collect(folder: Path, counting: Counting, *plugin: str) -> str:
    # The cost of a garbage collection depends on what else is installed, and pytest's
    # plugin `unraisableexception` collects twice.
    gc.disable()
    plugins = ("-p", "no:unraisableexception", *plugin)
    # The rest of a session takes seven times the job and varies with the environment: the
    # first one of a process imports pytest's own plugins, and all look at the installed
    # packages.
    with mock.patch("importlib.metadata.distributions", return_value=()):
        run_pytest(folder, contextlib.nullcontext(), "--collect-only")
        return run_pytest(folder, counting, *plugins, "--collect-only")


def write_documented_runs(folder: Path) -> None:
    """Write one run of each of the first 22 documented configurations."""
    write_runs(folder / "runs", 22)


def judge_documented_runs(folder: Path, counting: Counting) -> str:
    """Find, read and judge 22 runs, as a session of a new day does."""
    load_package()
    return run_pytest(folder, counting, *PLUGIN, "--llmb-logs=runs", "--llmb-no-cache")


def import_package(folder: Path, counting: Counting) -> str:
    """Import the modules that read runs and baselines."""
    del folder
    load_libraries()
    with counting:
        load_package("core", "baseline", "logs", "runs")
    return "imported"


def write_judged(folder: Path) -> None:
    """Write the JSON document of a session of 82 runs."""
    write_runs(folder / "runs", 82)
    run_pytest(
        folder, contextlib.nullcontext(), "--llmb-logs=runs", "--llmb-json=session.json"
    )


def render_page(folder: Path, counting: Counting) -> str:
    """Render the HTML page of 82 runs."""
    from pytest_llmbench.report.document import read
    from pytest_llmbench.report.html import render

    document = read(folder / "session.json")
    render([], START)
    with counting:
        page = render(document.outcomes, START)
    return f"{len(page) // 100_000} x 100 kB of page"


def write_history(folder: Path, days: int = 365) -> None:
    """Write a history of 5 configurations and `days` days."""
    from generator.__main__ import shipped
    from speed.history import fill

    from pytest_llmbench.history.store import locate_store

    for _ in fill(
        locate_store("history.db", folder), days, list(shipped().values())[:5]
    ):
        pass


def read_history(folder: Path, counting: Counting) -> str:
    """Check the history and read its runs, as a session does.

    A session checks in a thread, whose instruction count would vary.
    """
    from generator.__main__ import shipped

    from pytest_llmbench.history.queries import read_stored_runs
    from pytest_llmbench.history.store import locate_store, refuse_damaged

    load_libraries()
    place, names = locate_store("history.db", folder), list(shipped())[:5]
    with counting:
        refuse_damaged(place)
        stored = read_stored_runs(place, names)
    return f"{sum(map(len, stored.values()))} runs"


def write_site_history(folder: Path) -> None:
    """Write a history of 5 configurations and 90 days."""
    write_history(folder, 90)


def write_site(folder: Path, counting: Counting) -> str:
    """Run `llmbench site` over the history."""
    load_package()
    done = run_llmbench(
        folder, counting, "site", "--history", "history.db", "-o", "site"
    )
    return f"{done}, {sum(1 for _ in (folder / 'site').rglob('*.html'))} pages"


def write_export(folder: Path, counting: Counting) -> str:
    """Run `llmbench history export` over the history, as CSV."""
    load_package()
    done = run_llmbench(
        folder, counting, "history", "export", "--history", "history.db", "-o", "h.csv"
    )
    with (folder / "h.csv").open() as lines:
        return f"{done}, {sum(1 for _ in lines)} lines"


# Logs

STEPS = 2_000


def format_step(dialect: str, step: int, seconds: float, moment: datetime) -> str:
    """Return the line that a framework prints after step `step` (from 0); `moment` is
    the end of the step."""
    from generator import lines

    loss = 12.0 - 8.0 * step / STEPS
    values = {
        "reduced_train_loss": loss,
        "global_step": float(step),
        "consumed_samples": (step + 1) * 512.0,
        "train_step_timing in s": seconds,
    }
    match dialect:
        case "nemo1":
            return lines.nemo1_bar(
                step + 1, STEPS, step * 7.3, (STEPS - step) * 7.3, values
            )
        case "nemo2":
            return lines.nemo2_line(step, STEPS, values)
        case "megatron":
            return lines.megatron_line(
                moment, step + 1, STEPS, seconds, batch=128, tflops=611.9, loss=loss
            )
        case "maxtext":
            return lines.maxtext_line(
                step,
                seconds,
                tflops=460.48,
                tokens_per_second=1035.97,
                total_weights=524288,
                loss=loss,
            )
        case "torchtitan":
            return lines.torchtitan_line(
                moment, step + 1, loss=loss, tokens_per_second=5110.0, tflops=299.8
            )
        case _:
            return lines.mlperf_step(step, seconds, loss, 512)


def write_log(dialect: str) -> Callable[[Path], None]:
    """Return the function that writes a log of 2,000 steps, with a line of another
    module after each."""

    def prepare(folder: Path) -> None:
        random, moment = Random(dialect), START
        with (folder / "training.log").open("w", encoding="utf-8") as log:
            for step in range(STEPS):
                seconds = random.uniform(7.2, 7.4)
                moment += timedelta(seconds=seconds)
                log.write(format_step(dialect, step, seconds, moment) + "\n")
                log.write(
                    f"{moment:%Y-%m-%d %H:%M:%S} another module wrote {random.randrange(10**9)}\n"
                )

    return prepare


def load_parser() -> None:
    """Parse one line: this imports what the parser imports at its first use."""
    from pytest_llmbench.logs.log_reader import parse_blocks

    parse_blocks([format_step("nemo2", 0, 1.5, START).encode()])
    compile_patterns()


def read_training_log(folder: Path, counting: Counting) -> str:
    """Read `training.log` as any session does."""
    from pytest_llmbench.logs.log_reader import read_log

    load_parser()
    with counting:
        log = read_log(folder / "training.log")
    return f"{sum(len(segment.steps) for segment in log.segments)} steps"


BLOCK = 1 << 20


def write_large_log(folder: Path) -> None:
    """Write one log of 32 MB with 50 steps."""
    from speed import ingest_logs

    ingest_logs.large(folder / "training.log", 32_000_000)


def read_large_log(folder: Path, counting: Counting) -> str:
    """Read a large log in one thread: waiting threads would execute a varying number of
    instructions."""
    from pytest_llmbench.logs.log_reader import parse_blocks

    load_parser()
    with (folder / "training.log").open("rb") as file, counting:
        log = parse_blocks(iter(lambda: file.read(BLOCK), b""))
    return f"{sum(len(segment.steps) for segment in log.segments)} steps"


def write_trace(folder: Path) -> None:
    """Write an NCCL trace of 8 MB."""
    from speed import ingest_logs

    ingest_logs.trace(folder / "trace.log", 8_000_000)


def analyse_trace(folder: Path, counting: Counting) -> str:
    """Run `llmbench nccl` on the trace."""
    load_package()
    return run_llmbench(folder, counting, "nccl", "trace.log")


# Many runs


def write_many_runs(folder: Path) -> None:
    """Write 500 runs."""
    write_runs(folder / "runs", 500)


def find_many_runs(folder: Path, counting: Counting) -> str:
    """Find 500 runs, reading no more of their logs than finding needs."""
    from pytest_llmbench.logs.sources.stores import Stores
    from pytest_llmbench.runs.discover.discovery import find_runs

    compile_patterns()
    with counting:
        runs = find_runs([folder / "runs"], Stores()).runs
    return f"{len(runs)} runs"


def judge_many_runs(folder: Path, counting: Counting) -> str:
    """Judge each of 500 runs that were found, read and measured before."""
    from pytest_llmbench.session import evaluate
    from pytest_llmbench.session.catalog import load
    from pytest_llmbench.session.collect_runs import ingest
    from pytest_llmbench.session.settings import Settings

    settings = Settings(logs=(folder / "runs",), runs="each")
    catalog, now = load(settings), START + timedelta(days=20)
    measured = evaluate.measure_runs(ingest(settings, catalog, now).runs, catalog, now)
    with counting:
        judged = evaluate.judge_measured(measured, settings, catalog, now)
    return f"{len(judged.by_id)} configurations"


def write_two_sides(folder: Path) -> None:
    """Write 6 runs, and 6 others that are 1 % slower."""
    write_runs(folder / "a", 6)
    write_runs(folder / "b", 6, first=82, factor=1.01)


def compare_sides(folder: Path, counting: Counting) -> str:
    """Run `llmbench compare` on two folders of 6 runs."""
    load_package()
    compile_patterns()
    return run_llmbench(folder, counting, "compare", "a", "b")


JOBS: dict[str, Job] = {
    "idle": Job(
        "the plugin, installed and not used",
        lambda _: None,
        collect_with_plugin,
        base=collect_without_plugin,
    ),
    "import": Job(
        "importing what reads runs and baselines", lambda _: None, import_package
    ),
    "session": Job(
        "a session of 22 runs", write_documented_runs, judge_documented_runs
    ),
    "page": Job("the HTML page of 82 runs", write_judged, render_page),
    "history": Job("a year of history", write_history, read_history),
    "export": Job("`llmbench history export` of a year", write_history, write_export),
    "site": Job("`llmbench site` of 90 days", write_site_history, write_site),
    **{
        f"read-{dialect}": Job(
            f"reading 2,000 steps of {dialect}", write_log(dialect), read_training_log
        )
        for dialect in ("nemo1", "nemo2", "megatron", "maxtext", "torchtitan", "mlperf")
    },
    "read-large": Job("reading 32 MB with 50 steps", write_large_log, read_large_log),
    "nccl": Job("`llmbench nccl` of 8 MB", write_trace, analyse_trace),
    "find": Job("finding 500 runs", write_many_runs, find_many_runs),
    "judge": Job("judging 500 runs", write_many_runs, judge_many_runs),
    "compare": Job(
        "`llmbench compare` of 6 runs and 6", write_two_sides, compare_sides
    ),
}
