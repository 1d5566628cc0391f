"""`llmbench baselines`: list, show, check, compare, import and draft baseline files."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench.core.errors import BaselineError, SettingsError, did_you_mean
from pytest_llmbench.core.userfile import expand_home
from pytest_llmbench.tools.command_line import (
    WIDTH,
    Output,
    Subparsers,
    add_runs,
    read_recipes_in,
    redact_values,
    rename_flags,
    resolve_settings,
)

HANGING: Any = {
    "subsequent_indent": "  ",
    "break_on_hyphens": False,
    "break_long_words": False,
}
"""How a line of what was drafted goes on."""

if TYPE_CHECKING:
    from pytest_llmbench.core.baseline_records import Baseline
    from pytest_llmbench.session.described_run import StatedNames


def add(commands: Subparsers, add_import: Callable[[Subparsers], None]) -> None:
    """Declare `llmbench baselines`; another tool declares its action `import`."""
    parser = commands.add_parser(
        "baselines", help="List, show and check baseline files."
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="One line for each configuration.")
    listing.add_argument(
        "--recipe", metavar="NAME", default="", help="Only this recipe (default: all)."
    )
    showing = actions.add_parser(
        "show", help="Everything that is known of one configuration."
    )
    showing.add_argument(
        "id",
        metavar="CONFIG_ID",
        help="As `list` prints it, such as grok1_314b-25.05-gb200-bf16-128.",
    )
    diffing = actions.add_parser(
        "diff",
        help="What changed from one release, file or folder to another, and why.",
    )
    diffing.add_argument(
        "before",
        metavar="A",
        help="A release such as 24.11, a baseline file or a folder of them.",
    )
    diffing.add_argument(
        "after", metavar="B", help="The same: what A is compared with."
    )
    diffing.add_argument(
        "--format", choices=("text", "json"), default="text", help="Default: text."
    )
    for action in (listing, showing, diffing):
        action.add_argument(
            "--baselines",
            metavar="DIR",
            action="append",
            type=Path,
            default=[],
            help="Your own baseline files beside the shipped ones; can be given several times (default: none).",
        )
    linting = actions.add_parser(
        "lint", help="Compute every derived cell again, and check the errata."
    )
    linting.add_argument(
        "places",
        metavar="FILE|DIR",
        nargs="*",
        type=Path,
        help="Default: the shipped files.",
    )
    add_import(actions)
    _add_draft(actions)
    listing.set_defaults(command=_list)
    showing.set_defaults(command=_show)
    linting.set_defaults(command=_lint)
    diffing.set_defaults(command=_compare)


def _add_draft(actions: Subparsers) -> None:
    parser = actions.add_parser(
        "draft",
        help="Write a baseline file without values for runs that match no baseline.",
    )
    add_runs(parser)
    parser.add_argument(
        "-o", "--output", metavar="DIR", required=True, help="The folder of the files."
    )
    for flag, metavar, what in (
        ("--model", "NAME", "Their model"),
        ("--size", "SIZE", "Its size, such as 8b"),
        ("--dtype", "TYPE", "Their precision, such as bf16"),
        ("--gpus", "N", "Their number of GPUs"),
    ):
        parser.add_argument(
            flag,
            metavar=metavar,
            help=f"{what}, if nothing else states it (default: none).",
        )
    parser.set_defaults(command=_draft)


def _draft(arguments: argparse.Namespace) -> Output:
    from pytest_llmbench.baseline.draft_files import DraftFate, write_draft
    from pytest_llmbench.baseline.write import render_draft
    from pytest_llmbench.core.formatting import escape
    from pytest_llmbench.core.redaction import redact_text
    from pytest_llmbench.session.catalog import load
    from pytest_llmbench.session.collect_runs import ingest
    from pytest_llmbench.session.draft_baselines import add_recorded, draft_baselines

    stated = _read_names(arguments)
    with rename_flags():
        settings = resolve_settings(arguments, llmb_record=arguments.output)
        catalog = add_recorded(load(settings), Path(arguments.output))
    runs = ingest(settings, catalog, datetime.now(UTC)).runs
    drafts = draft_baselines(runs, settings, catalog, stated)
    written = []
    for path, of_file in drafts.group_by_file(Path(arguments.output)).items():
        remarks = [
            escape(redact_text(line)) for draft in of_file for line in draft.lines
        ]
        text = render_draft(path, [draft.recipe for draft in of_file], remarks)
        written.append(write_draft(path, text, force=False))
    lines = [
        line
        for text in drafts.lines
        for line in textwrap.wrap(escape(redact_text(text)), WIDTH, **HANGING)
    ]
    for file in written:
        kept = (
            "another file is there, and was kept; give another folder"
            if file.fate == DraftFate.KEPT
            else file.fate
        )
        lines.append(f"{file.path}: {kept}")
    whole = bool(written) and all(file.fate != DraftFate.KEPT for file in written)
    return Output(
        "\n".join(lines) or "no run that matches no baseline was found",
        0 if whole else 1,
    )


def _read_names(arguments: argparse.Namespace) -> StatedNames:
    """Return the names that were typed. Raises SettingsError."""
    from pytest_llmbench.core.option import parse_count
    from pytest_llmbench.session.described_run import StatedNames

    typed = {
        name: getattr(arguments, name) for name in ("model", "size", "dtype", "gpus")
    }
    names = {
        name: text.strip().lower() for name, text in typed.items() if text is not None
    }
    for name, text in names.items():
        if not text:
            raise SettingsError(
                f"--{name}= is empty: give a value, or leave the option out"
            )
    try:
        parse_count(names.get("gpus", "1"))
    except ValueError as error:
        raise SettingsError(f"--gpus={arguments.gpus}: {error}") from None
    return StatedNames(**names)


def _list(arguments: argparse.Namespace) -> Output:
    from pytest_llmbench.baseline.read import find_shipped_tables
    from pytest_llmbench.tools.baselines.baseline_pages import format_table

    recipes = read_recipes_in(arguments.baselines)
    names = sorted({recipe.name for recipe in recipes})
    wanted = arguments.recipe
    if wanted and wanted not in names:
        raise BaselineError(
            f"--recipe {wanted}: expected {', '.join(names)}{did_you_mean(wanted, names)}"
        )
    tables = find_shipped_tables()
    chosen = [
        each
        for each in recipes
        if each.name == wanted or not (wanted or each.path.is_relative_to(tables))
    ]
    left = {each.name for each in recipes} - {each.name for each in chosen}
    aside = (
        ""
        if wanted
        else f"besides, with --recipe: {', '.join(sorted(left))} (docs/reference/megatron-bridge.md)"
    )
    return Output(
        format_table([baseline for recipe in chosen for baseline in recipe.baselines]),
        0,
        aside,
    )


def _show(arguments: argparse.Namespace) -> Output:
    from pytest_llmbench.tools.baselines.baseline_pages import format_page

    recipes = read_recipes_in(arguments.baselines)
    pairs = [(recipe, baseline) for recipe in recipes for baseline in recipe.baselines]
    chosen = [
        (recipe, baseline)
        for recipe, baseline in pairs
        if baseline.key.id == arguments.id
    ]
    if not chosen:
        hint = did_you_mean(arguments.id, [baseline.key.id for _, baseline in pairs])
        raise BaselineError(
            f"no configuration {arguments.id!r}{hint}; `llmbench baselines list` has all of them"
        )
    return Output(
        "\n\n".join(format_page(recipe, baseline, WIDTH) for recipe, baseline in chosen)
    )


def _lint(arguments: argparse.Namespace) -> Output:
    from pytest_llmbench.baseline.lint import format_lint_page, lint_file
    from pytest_llmbench.baseline.read import (
        find_baseline_files,
        find_shipped_baselines,
        read_file,
        read_recipes,
    )

    paths = find_baseline_files(arguments.places or [find_shipped_baselines()])
    read_recipes(paths)
    reports = [lint_file(read_file(path)) for path in paths]
    return Output(
        format_lint_page(reports, WIDTH),
        code=1 if any(report.findings for report in reports) else 0,
    )


def _compare(arguments: argparse.Namespace) -> Output:
    import json

    from pytest_llmbench.tools.baselines.baseline_pages import (
        compare_baselines,
        format_differences,
        make_records,
    )

    before, after = (
        _read_side(side, arguments.baselines)
        for side in (arguments.before, arguments.after)
    )
    differences = compare_baselines(before, after)
    code = 1 if any(pair.is_change for pair in differences) else 0
    if arguments.format == "json":
        return Output(
            json.dumps(redact_values(make_records(differences)), indent=1),
            code,
            redacted=True,
        )
    return Output(
        format_differences(differences, arguments.before, arguments.after), code
    )


def _read_side(place: str, directories: Sequence[Path]) -> list[Baseline]:
    """Return the baselines of a file, of a folder, or of a release among the shipped
    and the user's."""
    from pytest_llmbench.baseline.read import read_recipes

    path = expand_home(place)
    if path.exists():
        return [
            baseline for recipe in read_recipes([path]) for baseline in recipe.baselines
        ]
    recipes = read_recipes_in(directories)
    releases = sorted({recipe.release for recipe in recipes})
    if place not in releases:
        expected = f"expected a file, a folder or a release among {', '.join(releases)}"
        raise BaselineError(
            f"{place}: no such file, {expected}{did_you_mean(place, releases)}"
        )
    return [
        baseline
        for recipe in recipes
        if recipe.release == place
        for baseline in recipe.baselines
    ]
