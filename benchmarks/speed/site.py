"""Time to open the page of a fleet in Chromium: 343 configurations by 365 days.

    python -m benchmarks.speed.site [--configurations 343] [--nights 365] [--keep DIR]

Compared with a page of one line.
"""

from __future__ import annotations

import argparse
import math
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from playwright.sync_api import sync_playwright
from speed.fleet import describe_run, store_session

from pytest_llmbench.cli import main as cli
from pytest_llmbench.history.session_record import VerdictRecord
from pytest_llmbench.history.store import StoreLocation

SECONDS = 2.0
"""The page opens in less."""

VERDICTS = (
    ("PASS", "passed"),
    ("REGRESSION", "failed"),
    ("INVALID", "failed"),
    ("INCONCLUSIVE", "passed"),
)
WEIGHTS = (94, 2, 1, 3)
KEY = {
    "recipe": "model",
    "size": "8b",
    "release": "25.11",
    "gpu": "gb200",
    "dtype": "fp8",
    "gpus": 8,
}


def _describe_run(
    name: str, night: int, began: datetime, seconds: float, random: Random
) -> VerdictRecord:
    """Build the verdict on one day's run, which may fail."""
    (verdict, status) = random.choices(VERDICTS, WEIGHTS)[0]
    counts = verdict != "INVALID"
    value = (
        seconds
        * (1 + random.gauss(0, 0.004))
        * (1.08 if verdict == "REGRESSION" else 1)
    )
    reasons = {
        "PASS": "within-tolerance",
        "REGRESSION": "slower-than-bound",
        "INVALID": "diverged",
    }
    return describe_run(
        {"id": name, **KEY},
        night,
        began,
        random,
        status=status,
        verdict=verdict,
        reason=reasons.get(verdict, "cannot-tell"),
        text=f"{value:.3f} s against {seconds:.3f} s; the bound is {seconds * 1.05:.3f} s",
        counts=counts,
        run_seconds=value if counts else None,
        step_time_seconds=value,
        expected_seconds=seconds,
        log_difference=math.log(value / seconds) if counts else None,
        bound_seconds=seconds * 1.05,
        window={"first": 11, "last": 44, "statistic": "mean"},
        baseline="recorded",
        metrics={
            "step_time_seconds": [value, None],
            "mfu": [0.41 * seconds / value, None],
        },
        step_seconds=[value] * 34,
        environment={
            "driver": "570.86.15" if night < 200 else "580.1",
            "nccl": "2.26.2",
            "container": "nemo:25.04",
        },
    )


def fill(place: StoreLocation, configurations: int, nights: int) -> None:
    """Store that many days of that many configurations. Every fifth becomes slower on
    some day."""
    random, last = (
        Random(1),
        datetime.now(UTC).replace(hour=2, minute=0, second=0, microsecond=0),
    )
    fleet = [
        (
            f"model{number:03}_8b-25.11-gb200-fp8-{8 << number % 8}",
            random.uniform(1, 12),
        )
        for number in range(configurations)
    ]
    moves = {
        name: (random.randrange(nights), random.choice((-0.03, 0.02, 0.04)))
        for name, _ in fleet[::5]
    }
    for day in range(nights):
        began = last - timedelta(days=nights - 1 - day)
        verdicts = []
        for name, seconds in fleet:
            on, by = moves.get(name, (nights, 0.0))
            moved_seconds = seconds * (1 + by * (day >= on))
            verdicts.append(_describe_run(name, day, began, moved_seconds, random))
        store_session(
            place,
            f"{began:%Y%m%d-%H%M}-{uuid.UUID(int=day).hex[-12:]}",
            began + timedelta(hours=3),
            verdicts,
        )


def measure_opening(pages: dict[str, Path], times: int) -> dict[str, list[float]]:
    """Return the seconds from the request to the first complete rendering of each page.

    Pages alternate, each in a new browser context.
    """
    program = next(
        filter(
            None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
        )
    )
    taken: dict[str, list[float]] = {name: [] for name in pages}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox"]
        )
        for _ in range(times):
            for name, path in pages.items():
                page = browser.new_context(
                    viewport={"width": 1600, "height": 1000}
                ).new_page()
                begin = time.perf_counter()
                page.goto(path.as_uri(), wait_until="load")
                # Two frames later the picture of the whole page is on the screen.
                page.evaluate(
                    "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
                )
                taken[name].append(time.perf_counter() - begin)
                page.context.close()
        browser.close()
    return taken


def _list_rows(taken: dict[str, list[float]]) -> Iterator[str]:
    for name, seconds in taken.items():
        yield f"| {name} | {statistics.median(seconds):.2f} | {max(seconds):.2f} |"


def main() -> int:
    """Print a table. Exit code 1 if the page of the fleet takes two seconds or more."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--configurations", type=int, default=343)
    parser.add_argument("--nights", type=int, default=365)
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument(
        "--keep", type=Path, help="A folder that keeps the history and the pages."
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = options.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        place = StoreLocation("history.db", folder / "history.db")
        if not (folder / "history.db").exists():
            fill(place, options.configurations, options.nights)
        begin = time.process_time()
        code = cli.main(
            [
                "site",
                "--history",
                str(folder / "history.db"),
                "-o",
                str(folder / "site"),
            ]
        )
        making = time.process_time() - begin
        if code:
            return code
        index = folder / "site" / "index.html"
        detail = next(iter(sorted((folder / "site" / "configurations").iterdir())))
        (folder / "empty.html").write_text(
            "<!DOCTYPE html><title>one line</title><p>one line"
        )
        pages = {
            "one line": folder / "empty.html",
            "a configuration": detail,
            "the fleet": index,
        }
        taken = measure_opening(pages, options.times)
        files = [path.stat().st_size for path in (folder / "site").rglob("*.html")]
        print(
            f"{len(files)} pages, {sum(files) / 1e6:.0f} MB, made in {making:.1f} s CPU"
        )
        print(
            f"first page: {index.stat().st_size / 1e6:.2f} MB, {options.configurations * options.nights:,} nights"
        )
    print("| page | opens in s, median | slowest |\n|---|---|---|")
    print("\n".join(_list_rows(taken)))
    fleet, one_line = (
        statistics.median(taken[name]) for name in ("the fleet", "one line")
    )
    print(f"the fleet beside one line: x {fleet / one_line:.1f}")
    return 0 if fleet < SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
