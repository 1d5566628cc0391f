"""Cost of a year of history for a daily session: all documented configurations, 365
days.

    python -m benchmarks.speed.history [--configurations 343] [--nights 365]
        [--times 3] [--against COMMIT] [--url postgresql://...]

More configurations than the documented ones are renamed copies of these. Every session
with history begins with the same store of a file; a server keeps all sessions. With
--against, the sessions of other commits are measured too, in the same rounds.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import NamedTuple

sys.path.extend(
    str(Path(__file__).resolve().parents[2] / name)
    for name in ("tests", "benchmarks", "benchmarks/equivalence")
)

from generator import write_run
from generator.__main__ import shipped
from source_trees import OURS, ROOT, prepare_trees
from speed.fleet import describe_run, store_session, write_baselines
from speed.ingest import Measured, Rounds, format_ratios, in_turns, measured, session

from pytest_llmbench.core.baseline_records import Baseline
from pytest_llmbench.history.queries import read_stored_runs
from pytest_llmbench.history.session_record import VerdictRecord
from pytest_llmbench.history.store import StoreLocation, locate_store, refuse_damaged

START = datetime(2025, 1, 1, 2, tzinfo=UTC)
EMPTY, REPORTS = "an empty session", f"{OURS}, with a page and a JSON document"

EMPTY_SESSIONS = 3.1
"""A session with a year of history may last so much longer than one without, in
sessions of pytest that collect nothing: half a second where these take 0.16."""

METRICS = (
    "step_time_seconds",
    "step_time_mean_seconds",
    "step_time_trimmed_mean_seconds",
    "step_time_cv",
    "tokens_per_second",
    "tokens_per_second_per_gpu",
    "mfu",
    "tflops_per_gpu",
    "days_to_1t_tokens",
    "peak_memory_bytes",
)
TOLD = {
    "container": "nvcr.io/nvidia/nemo:25.04.01",
    "driver": "570.86.15",
    "cuda": "12.8.1.012",
    "nccl": "2.25.1+cuda12.8",
    "pytorch": "2.7.0a0+7c8ec84dab.nv25.03",
    "nemo": "2.3.0",
    "megatron": "0.12.0",
    "transformer_engine": "2.2.0",
    "python": "3.12.3",
}


def outcome(baseline: Baseline, night: int, random: Random) -> VerdictRecord:
    """Build the verdict on one day's run, with all fields of a real one."""
    key, seconds = baseline.key, baseline.step_seconds * (1 + random.gauss(0, 0.003))
    names = ("id", "recipe", "size", "release", "gpu", "dtype", "gpus")
    return describe_run(
        {name: getattr(key, name) for name in names},
        night,
        START + timedelta(days=night),
        random,
        text="7.325 s is 0.0 % against 7.325 s (-0.6 to +0.6 %); the bound is 7.691 s",
        run_seconds=seconds,
        step_time_seconds=seconds * 1.01,
        expected_seconds=baseline.step_seconds,
        log_difference=0.001,
        bound_seconds=baseline.step_seconds * 1.05,
        window=baseline.window._asdict(),
        baseline=str(baseline.kind),
        metrics={name: [seconds * 1.01, seconds / 300] for name in METRICS},
        step_seconds=[seconds * (1 + random.gauss(0, 0.005)) for _ in range(34)],
        environment=TOLD,
    )


def fill(
    place: StoreLocation, nights: int, baselines: Sequence[Baseline]
) -> Iterator[float]:
    """Store `nights` daily sessions of these configurations, and yield the CPU seconds
    of each."""
    random = Random(1)
    for day in range(nights):
        verdicts = [outcome(baseline, day, random) for baseline in baselines]
        identifier = uuid.UUID(int=random.getrandbits(128)).hex
        started = START + timedelta(days=day, hours=4)
        yield store_session(place, identifier, started, verdicts)


class Sessions(NamedTuple):
    """Daily sessions over the runs in a folder."""

    folder: Path
    place: StoreLocation
    options: tuple[str, ...]

    def judging(self, tree: Path, *more: str) -> Callable[[], Measured]:
        """Return the command that judges the runs with the package of a tree."""
        logs = f"--llmb-logs={self.folder}/runs"
        return partial(self._run, tree, logs, *self.options, *more)

    def with_history(self, tree: Path, *more: str) -> Callable[[], Measured]:
        """Return the command of a session with history."""
        option = f"--llmb-history={self.place.url or self.place.file}"
        run = self.judging(tree, option, *more)

        def restore_and_run() -> Measured:
            if self.place.file:
                shutil.copy(f"{self.place.file}.filled", self.place.file)
            return run()

        return restore_and_run

    def _run(self, tree: Path, *arguments: str) -> Measured:
        # The logs are in the cache, as those of earlier nights.
        cache = f"XDG_CACHE_HOME={self.folder}/cache{tree}"
        pytest = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
        return measured(["env", cache, *pytest, *arguments], tree)


def show_ratios(rounds: Rounds, name: str) -> None:
    """Print the cost of sessions with history, in sessions without."""
    pairs = list(zip(rounds[f"{name}, history"], rounds[name], strict=True))
    cpu = format_ratios([one.cpu / other.cpu for one, other in pairs])
    seconds = format_ratios([one.seconds / other.seconds for one, other in pairs])
    print(f"| a session with history, in sessions without, {name}: CPU | {cpu} |")
    print(f"| the same: time | {seconds} |")


def main() -> int:
    """Print a table. Exit code 1 if the history costs more than allowed."""
    parser = argparse.ArgumentParser(description=__doc__)
    documented = len(shipped())
    parser.add_argument("--configurations", type=int, default=documented)
    parser.add_argument("--nights", type=int, default=365)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--url", default="history.db")
    parser.add_argument(
        "--against",
        metavar="COMMIT",
        action="append",
        default=[],
        help="a commit to measure too (repeatable)",
    )
    options = parser.parse_args()
    if options.configurations < documented:
        parser.error(f"--configurations: at least {documented}, all documented ones")
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as other:
        folder, trees = Path(name), prepare_trees(options.against, Path(other))
        baselines = write_baselines(folder / "baselines", options.configurations)
        for position, baseline in enumerate(baselines):
            started = START + timedelta(days=options.nights, minutes=position)
            job_id = str(2_000_000 + position)
            write_run(folder / "runs", baseline, started=started, job_id=job_id)
        place = locate_store(options.url, folder)
        writing = list(fill(place, options.nights, baselines))
        size = place.file.stat().st_size if place.file else 0
        begin = time.process_time()
        found = read_stored_runs(place, [baseline.key.id for baseline in baselines])
        reading = time.process_time() - begin
        begin = time.process_time()
        refuse_damaged(place)
        checking = time.process_time() - begin
        if place.file:
            place.file.rename(f"{place.file}.filled")
        more = (f"--llmb-baselines={folder}/baselines",)
        sessions = Sessions(folder, place, more if len(baselines) > documented else ())
        reports = ("--llmb-html=page.html", "--llmb-json=session.json")
        contenders = {
            EMPTY: session(),
            REPORTS: sessions.judging(ROOT, *reports),
            f"{REPORTS}, history": sessions.with_history(ROOT, *reports),
        }
        for title, tree in trees.items():
            sessions.judging(tree)()  # fills the cache
            contenders[title] = sessions.judging(tree)
            contenders[f"{title}, history"] = sessions.with_history(tree)
        rounds = in_turns(contenders, options.times)
    print(
        f"| {options.nights} nights, {len(found)} configurations, {sum(map(len, found.values()))} runs | |"
    )
    print("|---|---|")
    print(f"| size of the store | {size / 1e6:.0f} MB |")
    print(
        f"| storing a night, first and last | {writing[0] * 1000:.0f} and {writing[-1] * 1000:.0f} ms CPU |"
    )
    print(f"| reading the nights | {reading:.2f} s CPU |")
    print(f"| looking at all pages | {checking:.2f} s CPU |")
    cpu = {title: median(one.cpu for one in column) for title, column in rounds.items()}
    print(f"| an empty session | {cpu[EMPTY]:.2f} s CPU |")
    for title in (REPORTS, *trees):
        print(
            f"| a session without and with history, {title} | {cpu[title]:.2f} and {cpu[f'{title}, history']:.2f} s CPU |"
        )
        show_ratios(rounds, title)
    costs = [
        (judging.seconds - plain.seconds) / empty.seconds
        for judging, plain, empty in zip(
            rounds[f"{OURS}, history"], rounds[OURS], rounds[EMPTY], strict=True
        )
    ]
    print(
        f"| how much longer one with history takes, in empty sessions | {' '.join(f'{cost:.2f}' for cost in costs)} |"
    )
    if len(baselines) > documented:
        return 0
    print(f"| their median, at most {EMPTY_SESSIONS} | {median(costs):.2f} |")
    return 0 if median(costs) <= EMPTY_SESSIONS else 1


if __name__ == "__main__":
    sys.exit(main())
