"""What the installed plugin costs a session that does not use it: `pytest --collect-only` of an empty project.

python -m benchmarks.idle [--pairs 30]
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from environment import ENVIRONMENT

LIMIT_MILLISECONDS = 5.0

WITHOUT = ("-p", "no:pytest_llmbench")
COMMAND = (sys.executable, "-m", "pytest", "--collect-only", "--quiet", "-p", "no:cacheprovider")
NO_TESTS = 5
"""How pytest ends where there is nothing to collect."""


def milliseconds(folder: str, *more: str) -> float:
    """Return the CPU time of one session, its children included; RuntimeError where it did not end as it has to."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)  # os.times() counts in hundredths of a second
    ended = subprocess.run([*COMMAND, *more], cwd=folder, env=ENVIRONMENT, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode != NO_TESTS:
        raise RuntimeError(ended.stdout.decode() + ended.stderr.decode())
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def main() -> int:
    """Print medians of sessions that alternate; exit code 1 where the plugin costs more than the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=30)
    pairs = parser.parse_args().pairs
    with tempfile.TemporaryDirectory() as folder:
        milliseconds(folder)  # compiles what is not compiled yet
        times = [(milliseconds(folder, *WITHOUT), milliseconds(folder)) for _ in range(pairs)]
    without, idle = (statistics.median(column) for column in zip(*times, strict=True))
    cost = statistics.median(second - first for first, second in times)
    print("| pytest --collect-only, empty project | CPU ms, median |")
    print("|---|---|")
    print(f"| without the plugin | {without:.1f} |")
    print(f"| with it, idle | {idle:.1f} |")
    print(f"\nthe plugin: {cost:.1f} ms (median of {pairs} pairs), ratio {idle / without:.3f}")
    return 0 if cost < LIMIT_MILLISECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
