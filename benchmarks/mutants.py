"""Mutation testing: count the small faults of the package that the tests detect.

    # which mutants: a fixed, stratified random sample of 300, seed 1
    python -m benchmarks.mutants sample -o mutants.jsonl
    # which tests run which lines; takes as long as the tests
    python -m benchmarks.mutants lines -o lines.json
    python -m benchmarks.mutants run mutants.jsonl lines.json -o results.jsonl
    # exit code 1 if a killed mutant survives now
    python -m benchmarks.mutants compare before.jsonl after.jsonl

Needs cosmic-ray, whose operators make the mutants, and coverage: `pip install --group
mutation`. `run` works on copies of the checkout, one for each processor. It tries each
mutant with the tests that run its line, those of its own package first, until one fails
or `--seconds` are over.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
ENVIRONMENT = Path(sys.prefix)
STRATA = (
    "judge",
    "measure",
    "logs",
    "runs/discover/discovery",
    "session/outcomes.py",
    "launch/policies",
    "launch/run_engine.py",
    "history",
)
SWAPS = "Add_Sub Sub_Add Mul_Div Div_Mul FloorDiv_Mul Mod_Mul Pow_Mul BitAnd_BitOr BitOr_BitAnd"
COMPARISONS = "Lt_LtE Lt_GtE LtE_Lt LtE_Gt Gt_GtE Gt_LtE GtE_Gt GtE_Lt Eq_NotEq NotEq_Eq Is_IsNot IsNot_Is"
OPERATORS = (
    *(f"ReplaceBinaryOperator_{swap}" for swap in SWAPS.split()),
    *(f"ReplaceComparisonOperator_{swap}" for swap in COMPARISONS.split()),
    "ReplaceUnaryOperator_Delete_Not",
    "ReplaceUnaryOperator_Delete_USub",
    "AddNot",
    "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "ReplaceBreakWithContinue",
    "ReplaceContinueWithBreak",
    "ExceptionReplacer",
    "NumberReplacer",
    "ZeroIterationForLoop",
)
"""Operators of cosmic-ray; not those that only change types or decorators."""

Key = tuple[str, str, int]
KILLED, SURVIVED, UNCOVERED = "killed", "survived", "uncovered"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mutant; `path` is relative to the package, `line` the first line that differs
    from the original."""

    path: str
    operator: str
    occurrence: int
    line: int
    change: str

    @property
    def key(self) -> Key:
        """Identifies a mutant as long as its module does not change."""
        return self.path, self.operator, self.occurrence


# Sample


def make_source(text: str, operator: str, occurrence: int) -> str | None:
    """Return the mutated source, or None if the operator has no such occurrence."""
    from cosmic_ray.mutating import MutationVisitor
    from cosmic_ray.plugins import get_operator

    changed: str | None = MutationVisitor.mutate_code(
        text, get_operator(f"core/{operator}")(), occurrence
    )
    return changed


def normalise(source: str) -> str:
    """Return the syntax tree as text, without annotations and kinds of parameters.

    Modules with equal trees behave the same.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if hasattr(node, name):
                setattr(node, name, None)
        if isinstance(
            node, ast.arguments
        ):  # cosmic-ray takes the `*` of a signature for a product
            node.args = [*node.posonlyargs, *node.args, *node.kwonlyargs]
            node.posonlyargs, node.kwonlyargs = [], []
    return ast.dump(tree)


def list_mutations(text: str) -> list[tuple[str, int]]:
    """Return each operator that can change this source, with the numbers of its
    occurrences."""
    from cosmic_ray.ast import Visitor, get_ast
    from cosmic_ray.plugins import get_operator

    nodes: list[object] = []

    class Collector(Visitor):  # type: ignore[misc]
        """Visits nodes in the order in which cosmic-ray numbers occurrences."""

        def visit(self, node: object) -> object:
            nodes.append(node)
            return node

    Collector().walk(get_ast(text))
    found: list[tuple[str, int]] = []
    for name in OPERATORS:
        operator = get_operator(f"core/{name}")()
        places = sum(1 for node in nodes for _ in operator.mutation_positions(node))
        found.extend((name, occurrence) for occurrence in range(places))
    return found


def make_mutant(
    module: Path, package: Path, operator: str, occurrence: int
) -> Mutant | None:
    """Return a mutant, or None if it is not valid Python or is equivalent to the
    original."""
    text = module.read_text(encoding="utf-8")
    changed = make_source(text, operator, occurrence)
    try:
        if changed is None or normalise(changed) == normalise(text):
            return None
    except SyntaxError:  # `not` before an assignment expression
        return None
    pairs = enumerate(
        zip(text.splitlines(), changed.splitlines(), strict=False), start=1
    )
    line, old, new = next(
        (number, old, new) for number, (old, new) in pairs if old != new
    )
    return Mutant(
        module.relative_to(package).as_posix(),
        operator,
        occurrence,
        line,
        f"{old.strip()} -> {new.strip()}",
    )


def draw_sample(package: Path, size: int, seed: int) -> list[Mutant]:
    """Draw the same number of mutants from each stratum.

    Draws a module by its size, then an operator, then an occurrence.
    """
    random = Random(seed)
    sample: dict[Key, Mutant] = {}
    of_module: dict[Path, list[tuple[str, int]]] = {}
    for position, stratum in enumerate(STRATA, start=1):
        place = package / stratum
        modules = sorted(place.rglob("*.py")) if place.is_dir() else [place]
        weights = [module.stat().st_size for module in modules]
        while len(sample) < size * position // len(STRATA):
            (module,) = random.choices(modules, weights)
            if module not in of_module:
                of_module[module] = list_mutations(module.read_text(encoding="utf-8"))
            if not of_module[module]:
                continue
            operator = random.choice(
                sorted({operator for operator, _ in of_module[module]})
            )
            drawn = random.choice(
                [pair for pair in of_module[module] if pair[0] == operator]
            )
            if mutant := make_mutant(module, package, *drawn):
                sample[mutant.key] = mutant
    return list(sample.values())


# Which tests run which lines


class LineRecorder:
    """A pytest plugin that records the lines which each test runs in this process, and
    how long it takes."""

    def __init__(self, folder: Path, package: Path) -> None:
        import coverage

        places = [
            f"{package / stratum}{'' if stratum.endswith('.py') else '/*'}"
            for stratum in STRATA
        ]
        self._file = folder / f"{os.getpid()}.coverage"
        self._coverage = coverage.Coverage(
            data_file=str(self._file), include=places, config_file=False
        )
        self._coverage.set_option(
            "run:disable_warnings", ["no-data-collected"]
        )  # by the process that runs no test
        self._seconds: dict[str, float] = {}
        self._config: object = None

    def pytest_configure(self, config: object) -> None:
        """Start recording in the outermost session only."""
        if self._config is None:
            self._config = config
            self._coverage.start()

    def pytest_collectstart(self, collector: object) -> None:
        """Attribute lines that run while a test file is imported to the file."""
        if getattr(collector, "config", None) is self._config:
            self._coverage.switch_context(getattr(collector, "nodeid", ""))

    def pytest_runtest_protocol(self, item: object) -> None:
        """Attribute the following lines to this test."""
        if getattr(item, "config", None) is self._config:
            self._coverage.switch_context(getattr(item, "nodeid", ""))

    def pytest_runtest_logreport(self, report: object) -> None:
        """Add up the time of a test."""
        name = getattr(report, "nodeid", "")
        self._seconds[name] = self._seconds.get(name, 0.0) + getattr(
            report, "duration", 0.0
        )

    def pytest_unconfigure(self, config: object) -> None:
        """Write the recorded lines."""
        if config is self._config:
            self._coverage.stop()
            self._coverage.save()
            self._file.with_suffix(".json").write_text(json.dumps(self._seconds))


def record_lines(arguments: Sequence[str]) -> dict[str, Any]:
    """Run the tests and return, for each module, the tests that run each line; and the
    seconds of each test."""
    import coverage

    package = CHECKOUT / "pytest_llmbench"
    seconds: dict[str, float] = {}
    tests: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "llmb_line_recorder.py").write_text(
            f"import sys\nfrom pathlib import Path\nsys.path.insert(0, {str(CHECKOUT)!r})\n"
            "from benchmarks.mutants import LineRecorder\n"
            f"recorder = LineRecorder(Path({name!r}), Path({str(package)!r}))\n"
            "def pytest_configure(config):\n"
            "    if not config.pluginmanager.is_registered(recorder):\n"
            "        config.pluginmanager.register(recorder)\n"
        )
        path = f"{name}:{os.environ.get('PYTHONPATH', '')}"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "llmb_line_recorder",
        ]
        subprocess.run(
            [*command, *arguments],
            cwd=CHECKOUT,
            env=os.environ | {"PYTHONPATH": path},
            check=False,
        )
        for file in folder.glob("*.json"):
            for test, duration in json.loads(file.read_text()).items():
                seconds[test] = max(duration, seconds.get(test, 0.0))
        for file in folder.glob("*.coverage"):
            data = coverage.CoverageData(basename=str(file))
            data.read()
            for module in data.measured_files():
                of_module = tests[Path(module).relative_to(package).as_posix()]
                for line, contexts in data.contexts_by_lineno(module).items():
                    of_module[line].update(contexts)
    names = sorted(seconds)
    of_file: dict[str, list[str]] = defaultdict(list)
    for test in names:
        of_file[test.partition("::")[0]].append(test)
    number = {test: position for position, test in enumerate(names)}
    return {
        "tests": [[test, round(seconds[test], 3)] for test in names],
        "lines": {
            module: {
                line: sorted(
                    number[test]
                    for test in list_tests(found, of_file)
                    if test in number
                )
                for line, found in lines.items()
            }
            for module, lines in tests.items()
        },
    }


def list_tests(
    contexts: Collection[str], of_file: Mapping[str, Sequence[str]]
) -> set[str]:
    """Return the tests that run a line, or whose file runs it while it is imported.

    Empty if the line runs only during imports: any test file may import the module
    first.
    """
    tests = {context for context in contexts if "::" in context}
    return (
        tests.union(*(of_file.get(context, ()) for context in contexts))
        if tests
        else tests
    )


def choose_tests(
    mutant: Mutant, recorded: Mapping[str, Any], budget: float
) -> list[str]:
    """Return the tests that run the mutant's line: those nearest to its module, then
    the quickest, within `budget`.

    A line that runs only when its module is imported has the tests of the whole module.
    """
    tests: list[tuple[str, float]] = recorded["tests"]
    of_module: dict[str, list[int]] = recorded["lines"].get(mutant.path, {})
    folder = f"tests/{mutant.path.split('/')[0]}/"
    positions = of_module.get(str(mutant.line)) or sorted(
        set(chain.from_iterable(of_module.values()))
    )
    found = [tests[position] for position in positions]
    found.sort(key=lambda test: (not test[0].startswith(folder), test[1]))
    chosen: list[str] = []
    total = 0.0
    for name, seconds in found:
        total += seconds
        if total > budget and chosen:
            break
        chosen.append(name)
    return chosen


# Trying mutants


def copy_checkout(folder: Path) -> Path:
    """Copy the checkout with its environment (as hard links), and link the shared logs
    beside it."""
    copy = folder / "main"
    subprocess.run(
        ["git", "clone", "--quiet", "--shared", str(CHECKOUT), str(copy)], check=True
    )
    shutil.copytree(
        CHECKOUT,
        copy,
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__"),
    )
    shutil.copytree(ENVIRONMENT, copy / ".venv", symlinks=True, copy_function=os.link)
    (editable,) = copy.glob(".venv/lib/*/site-packages/*_pytest_llmbench.pth")
    editable.unlink()
    editable.write_text(f"{copy}\n")
    if (CHECKOUT.parent / "shared").exists():
        (folder / "shared").symlink_to(CHECKOUT.parent / "shared")
    return copy


def try_mutant(
    mutant: Mutant, checkout: Path, tests: Sequence[str], seconds: float
) -> str:
    """Return True if `tests` fail with the mutant. A time-out counts as a failure: the
    mutant hangs."""
    if not tests:
        return UNCOVERED
    module = checkout / "pytest_llmbench" / mutant.path
    original = module.read_text(encoding="utf-8")
    changed = make_source(original, mutant.operator, mutant.occurrence)
    assert changed is not None, f"{mutant} does not fit this version of the package"  # noqa: S101
    module.write_text(changed, encoding="utf-8")
    python = str(checkout / ".venv" / "bin" / "python")
    command = [
        python,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
    ]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    arguments = checkout.parent / "tests.txt"
    arguments.write_text("\n".join(tests))
    process = subprocess.Popen(
        [*command, f"@{arguments}"],
        cwd=checkout,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return SURVIVED if process.wait(timeout=seconds) == 0 else KILLED
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return KILLED
    finally:
        module.write_text(original, encoding="utf-8")


def try_all(
    mutants: Sequence[Mutant], recorded: Mapping[str, Any], output: Path, seconds: float
) -> None:
    """Try all mutants that are not in `output` yet, and append the results."""
    known = (
        {get_key(row) for row in read_rows(output)} if output.exists() else set[Key]()
    )
    with tempfile.TemporaryDirectory() as name:
        checkouts: SimpleQueue[Path] = SimpleQueue()
        processors = sorted(os.sched_getaffinity(0))
        for processor in processors:
            folder = Path(name, str(processor))
            folder.mkdir()
            checkouts.put(copy_checkout(folder))

        def try_one(mutant: Mutant) -> dict[str, Any]:
            tests, checkout = choose_tests(mutant, recorded, seconds), checkouts.get()
            begin = time.monotonic()
            try:
                outcome = try_mutant(mutant, checkout, tests, 3 * seconds)
            finally:
                checkouts.put(checkout)
            taken = round(time.monotonic() - begin, 1)
            return {"outcome": outcome, "tests": len(tests), "seconds": taken} | asdict(
                mutant
            )

        rest = [mutant for mutant in mutants if mutant.key not in known]
        with ThreadPoolExecutor(len(processors)) as pool, output.open("a") as file:
            for row in pool.map(try_one, rest):
                file.write(json.dumps(row) + "\n")
                file.flush()


def get_key(row: Mapping[str, Any]) -> Key:
    """Return the mutant's key in a row of results."""
    return row["path"], row["operator"], row["occurrence"]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def compare(before: Path, after: Path) -> int:
    """Print the results of the mutants. Exit code 1 if a mutant survives that was
    killed before."""
    outcomes = [
        {get_key(row): row for row in read_rows(path)} for path in (before, after)
    ]
    for name, rows in zip(("before", "after"), outcomes, strict=True):
        print(f"{name}: {dict(Counter(str(row['outcome']) for row in rows.values()))}")
    lost = [
        row
        for key, row in outcomes[1].items()
        if row["outcome"] != KILLED
        and outcomes[0].get(key, {}).get("outcome") == KILLED
    ]
    for row in lost:
        print(
            f"killed before, {row['outcome']} now: {row['path']}:{row['line']} {row['operator']}: {row['change']}"
        )
    return 1 if lost else 0


def main() -> int:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    sample = commands.add_parser("sample", help="Draw mutants.")
    sample.add_argument("--count", type=int, default=300)
    sample.add_argument("--seed", type=int, default=1)
    lines = commands.add_parser(
        "lines",
        help="Record which tests run which lines; further arguments go to pytest.",
    )
    run = commands.add_parser("run", help="Try mutants.")
    run.add_argument("mutants", type=Path)
    run.add_argument("lines", type=Path)
    run.add_argument(
        "--seconds",
        type=float,
        default=60.0,
        help="Tests of a mutant take so long without it.",
    )
    for command in (sample, lines, run):
        command.add_argument("-o", "--output", type=Path, required=True)
    against = commands.add_parser("compare", help="Compare two results.")
    against.add_argument("before", type=Path)
    against.add_argument("after", type=Path)
    options, more = parser.parse_known_args()
    if more and options.command != "lines":
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    match options.command:
        case "sample":
            mutants = draw_sample(
                CHECKOUT / "pytest_llmbench", options.count, options.seed
            )
            options.output.write_text(
                "".join(json.dumps(asdict(mutant)) + "\n" for mutant in mutants)
            )
        case "lines":
            options.output.write_text(json.dumps(record_lines(more)))
        case "run":
            mutants = [Mutant(**row) for row in read_rows(options.mutants)]
            try_all(
                mutants,
                json.loads(options.lines.read_text()),
                options.output,
                options.seconds,
            )
        case "compare":
            return compare(options.before, options.after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
