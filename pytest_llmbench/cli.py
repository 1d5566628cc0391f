"""The command `llmbench`: look at baselines, at the runs in a folder, and at NCCL traces."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pytest_llmbench import __version__
from pytest_llmbench.errors import BaselineError, LlmbenchError, SettingsError, did_you_mean

if TYPE_CHECKING:
    from pytest_llmbench.baseline.lint import Arithmetic
    from pytest_llmbench.models import Recipe, Window
    from pytest_llmbench.settings import Settings

WIDTH = 79


class Output(NamedTuple):
    """What a subcommand prints, also to standard error (`aside`), and its exit code: 1 where something is wrong."""

    text: str
    code: int = 0
    aside: str = ""


Command = Callable[[argparse.Namespace], Output]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 good, 1 lint findings, 2 input that cannot be used."""
    arguments = _parser().parse_args(argv)
    command: Command = arguments.command
    try:
        output = command(arguments)
        _print(output.text)
        if output.aside:
            print(output.aside, file=sys.stderr)
    except LlmbenchError as error:
        print(f"llmbench: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        _discard_output()
        print(f"llmbench: the output cannot be written: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("llmbench: interrupted", file=sys.stderr)
        return 130
    return output.code


def _print(text: str) -> None:
    """Print, and be quiet when the reader (`| head`) has gone."""
    try:
        print(text.encode(sys.stdout.encoding or "utf-8", "backslashreplace").decode(sys.stdout.encoding or "utf-8"))
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()


def _discard_output() -> None:
    """Python flushes standard output again at exit, and would print the error there."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="llmbench", description="Look at baselines and runs of LLM training benchmarks."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_baselines(commands)
    _add_summary(commands)
    _add_replay(commands)
    _add_nccl(commands)
    _add_setup(commands)
    return parser


# --- llmbench baselines -----------------------------------------------------------------------------------


def _add_baselines(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("baselines", help="List, show and check baseline files.")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="One line for each configuration.")
    listing.add_argument("--recipe", metavar="NAME", default="", help="Only this recipe (default: all).")
    showing = actions.add_parser("show", help="Everything that is known of one configuration.")
    showing.add_argument(
        "id", metavar="CONFIG_ID", help="As `list` prints it, such as grok1_314b-25.05-gb200-bf16-128."
    )
    for action in (listing, showing):
        action.add_argument(
            "--baselines",
            metavar="DIR",
            action="append",
            type=Path,
            default=[],
            help="Your own baseline files beside the shipped ones; can be given several times (default: none).",
        )
    linting = actions.add_parser("lint", help="Compute every derived cell again, and check the errata.")
    linting.add_argument("places", metavar="FILE|DIR", nargs="*", type=Path, help="Default: the shipped files.")
    listing.set_defaults(command=_list)
    showing.set_defaults(command=_show)
    linting.set_defaults(command=_lint)


def _recipes(directories: Sequence[Path]) -> tuple[Recipe, ...]:
    from pytest_llmbench.baseline.locate import shipped_baselines
    from pytest_llmbench.baseline.read import read_recipes

    return read_recipes([shipped_baselines(), *directories])


def _list(arguments: argparse.Namespace) -> Output:
    from pytest_llmbench.baseline.describe import table

    recipes = _recipes(arguments.baselines)
    names = sorted({recipe.name for recipe in recipes})
    wanted = arguments.recipe
    if wanted and wanted not in names:
        raise BaselineError(f"--recipe {wanted}: expected {', '.join(names)}{did_you_mean(wanted, names)}")
    chosen = [recipe for recipe in recipes if wanted in ("", recipe.name)]
    return Output(table([baseline for recipe in chosen for baseline in recipe.baselines]))


def _show(arguments: argparse.Namespace) -> Output:
    from pytest_llmbench.baseline.describe import page

    recipes = _recipes(arguments.baselines)
    pairs = [(recipe, baseline) for recipe in recipes for baseline in recipe.baselines]
    chosen = [(recipe, baseline) for recipe, baseline in pairs if baseline.key.id == arguments.id]
    if not chosen:
        hint = did_you_mean(arguments.id, [baseline.key.id for _, baseline in pairs])
        raise BaselineError(f"no configuration {arguments.id!r}{hint}; `llmbench baselines list` has all of them")
    return Output("\n\n".join(page(recipe, baseline, _arithmetic(), WIDTH) for recipe, baseline in chosen))


def _lint(arguments: argparse.Namespace) -> Output:
    from pytest_llmbench.baseline.describe import lint_page
    from pytest_llmbench.baseline.lint import lint_file
    from pytest_llmbench.baseline.locate import shipped_baselines
    from pytest_llmbench.baseline.read import baseline_files, read_file, read_recipes

    paths = baseline_files(arguments.places or [shipped_baselines()])
    read_recipes(paths)
    reports = [lint_file(read_file(path), _arithmetic()) for path in paths]
    return Output(lint_page(reports, WIDTH), code=1 if any(report.findings for report in reports) else 0)


def _arithmetic() -> Arithmetic:
    from pytest_llmbench.baseline.lint import Arithmetic
    from pytest_llmbench.measure import derive, flops

    return Arithmetic(
        tokens_per_second=derive.tokens_per_second,
        model_flops_utilization=derive.model_flops_utilization,
        tflops_per_gpu=derive.tflops_per_gpu,
        days_to_1t_tokens=derive.days_to_1t_tokens,
        model_flops=flops.model_flops,
        terms=flops.terms,
    )


# --- llmbench summary -------------------------------------------------------------------------------------


def _add_summary(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "summary", help="One line for each run: status, step time and TFLOP/s over the window."
    )
    _add_runs(parser)
    parser.add_argument("--format", choices=("table", "csv", "json"), default="table", help="Default: table.")
    parser.add_argument(
        "--window", metavar="FIRST-LAST", type=_window, help="Steps that count (default: the baseline's, else 11-44)."
    )
    parser.set_defaults(command=_summary)


def _add_runs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("logs", metavar="LOGS", nargs="+", help="Files or folders with runs.")
    for flag, metavar in (("--baselines", "DIR"), ("--release", "RELEASE"), ("--gpu", "TYPE")):
        parser.add_argument(flag, metavar=metavar, help=f"As pytest's --llmb-{flag[2:]} (default: none).")


def _window(text: str) -> Window:
    from pytest_llmbench.models import Window

    first, dash, last = text.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected two step numbers such as 11-44")
    return Window(int(first), int(last))


def _summary(arguments: argparse.Namespace) -> Output:
    from pytest_llmbench.catalogue import load
    from pytest_llmbench.ingest import ingest
    from pytest_llmbench.overview import as_text, rows, skipped, table

    with _own_flags():
        settings = _settings(arguments)
        catalogue = load(settings)
    ingested = ingest(settings, catalogue, datetime.now(UTC))
    found = rows(ingested, catalogue, arguments.window)
    code, aside = 0 if found else 1, skipped(ingested.ignored)
    if arguments.format == "csv":
        return Output(table(found).to_csv(index=False).rstrip("\n"), code, aside)
    if arguments.format == "json":
        return Output(table(found).to_json(orient="records", date_format="iso", indent=2), code, aside)
    return Output(as_text(found), code, aside)


def _settings(arguments: argparse.Namespace, **others: object) -> Settings:
    """Return the settings that say which runs are read, and others by the name of pytest's option."""
    from pytest_llmbench.settings import resolve

    values = {
        "llmb_logs": arguments.logs,
        "llmb_baselines": [arguments.baselines] if arguments.baselines else None,
        "llmb_release": arguments.release,
        "llmb_gpu": arguments.gpu,
    }
    return resolve({**values, **others}, Path.cwd())


@contextmanager
def _own_flags() -> Iterator[None]:
    """Name options in messages as this command does: --release, not --llmb-release."""
    try:
        yield
    except SettingsError as error:
        raise SettingsError(str(error).replace("--llmb-logs=", "LOGS ").replace("--llmb-", "--")) from None


# --- llmbench replay --------------------------------------------------------------------------------------

WHAT_IF = (
    "--llmb-tolerance",
    "--llmb-inconclusive",
    "--llmb-improvement",
    "--llmb-against",
    "--llmb-baseline-release",
    "--llmb-max-age",
    "--llmb-repeat-window",
    "--llmb-assumed-cv",
    "--llmb-certify",
)
"""The options of pytest that change a verdict and not which runs are read."""


def _add_replay(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from pytest_llmbench.options import OPTIONS, destination

    parser = commands.add_parser(
        "replay", help="What if: judge the same runs under other settings, and list the verdicts that change."
    )
    _add_runs(parser)
    for option in OPTIONS:
        if option.flag in WHAT_IF:
            takes = {"action": "store_true", "default": None} if option.is_flag else {"metavar": option.metavar}
            flag = option.flag.replace("--llmb-", "--")
            parser.add_argument(flag, dest=destination(option.flag), help=option.help, **takes)
    parser.set_defaults(command=_replay)


def _replay(arguments: argparse.Namespace) -> Output:
    from pytest_llmbench.options import destination
    from pytest_llmbench.replay import as_text, replay

    given = {name: getattr(arguments, name) for name in map(destination, WHAT_IF)}
    changed = {name: value for name, value in given.items() if value is not None}
    if "" in changed.values():
        raise SettingsError("an option is empty: give it a value, or leave it out")
    if not changed:
        flags = ", ".join(flag.replace("--llmb-", "--") for flag in WHAT_IF)
        raise SettingsError(f"nothing to change: give one of {flags}")
    with _own_flags():
        told = replay(_settings(arguments), _settings(arguments, **changed), datetime.now(UTC))
    return Output(as_text(told), code=0 if told.judged else 1)


# --- llmbench nccl ----------------------------------------------------------------------------------------


def _add_nccl(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "nccl", help="What an NCCL trace says in sum: operations, volume, sizes, ranks; what changed since another one."
    )
    parser.add_argument(
        "logs", metavar="LOG", nargs="+", help="The files of one trace, a folder or archive of them, or - ; all count."
    )
    parser.add_argument(
        "--against", metavar="LOG|FILE", help="Tell what changed since this trace, a log or what --save wrote."
    )
    parser.add_argument(
        "--save", metavar="FILE", type=Path, help="Write what the trace says, to keep beside a recorded baseline."
    )
    parser.add_argument("--format", choices=("text", "json"), default="text", help="Default: text.")
    parser.set_defaults(command=_nccl)


def _nccl(arguments: argparse.Namespace) -> Output:
    import json

    from pytest_llmbench.nccl import changes, saved, text
    from pytest_llmbench.option_values import readable

    with _own_flags():
        paths = [readable("--llmb-logs", given, Path.cwd()) for given in arguments.logs]
        against = arguments.against and readable("--llmb-against", arguments.against, Path.cwd())
    trace = saved.read(paths)
    other = saved.read([against]) if against else None
    if arguments.save:
        saved.save(trace, arguments.save)
    found = changes.compare(trace, other) if other else None
    code = 1 if found and found.changes else 0
    if arguments.format == "json":
        return Output(json.dumps(saved.document(trace, found), indent=1), code)
    return Output(text.changes(found, trace, other) if found and other else text.page(trace), code)


# --- llmbench setup ---------------------------------------------------------------------------------------


def _add_setup(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("setup", help="Run a recipe's own setup step, and wait for it.")
    parser.add_argument("recipe", metavar="RECIPE", help="As `baselines list` names it, such as grok1.")
    parser.add_argument("--release", metavar="RELEASE", default="", help="Default: the one that is installed.")
    parser.add_argument(
        "--cluster", metavar="FILE", type=Path, help="As pytest's --llmb-cluster (default: cluster.yaml here)."
    )
    parser.add_argument(
        "--folder", metavar="DIR", type=Path, help="Where the recipe's setup.sh lies (default: the cluster file's)."
    )
    parser.add_argument(
        "--baselines", metavar="DIR", action="append", type=Path, default=[], help="As in `baselines list`."
    )
    parser.add_argument("--dry-run", action="store_true", help="Print what would run, and run nothing.")
    parser.set_defaults(command=_setup)


def _setup(arguments: argparse.Namespace) -> Output:
    from pytest_llmbench.setting_up import Asked, set_up

    asked = Asked(arguments.recipe, arguments.release, arguments.cluster, arguments.folder, arguments.dry_run)
    text, is_good = set_up(asked, _recipes(arguments.baselines), Path.cwd(), os.environ, _print)
    return Output(text, code=0 if is_good else 1)


if __name__ == "__main__":
    sys.exit(main())
