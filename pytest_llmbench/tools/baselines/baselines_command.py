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
    add_log_arguments,
    read_shipped_and_custom_recipes,
    redact_values,
    rename_flags,
    resolve_settings,
)

HANGING: Any = {
    "subsequent_indent": "  ",
    "break_on_hyphens": False,
    "break_long_words": False,
}
"""Options for `textwrap.wrap`: continuation lines are indented, words stay whole."""

if TYPE_CHECKING:
    from pytest_llmbench.core.baseline_records import Baseline
    from pytest_llmbench.session.described_run import StatedNames


def add(commands: Subparsers, add_import: Callable[[Subparsers], None]) -> None:
    """Add the parser of `llmbench baselines`; `add_import` adds its action `import`."""
    parser = commands.add_parser(
        "baselines", help="List, show, compare, check, import and draft baseline files."
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    listing = actions.add_parser(
        "list", help="List the configurations, one line for each."
    )
    listing.add_argument(
        "--recipe",
        metavar="NAME",
        default="",
        help="List only the configurations of this recipe (default: all).",
    )
    showing = actions.add_parser(
        "show", help="Print the complete baseline of one configuration."
    )
    showing.add_argument(
        "id",
        metavar="CONFIG_ID",
        help="The configuration id as `list` prints it, such as grok1_314b-25.05-gb200-bf16-128.",
    )
    diffing = actions.add_parser(
        "diff",
        help="List the changes from one release, file or folder to another, and why the MFU changed.",
    )
    diffing.add_argument(
        "before",
        metavar="A",
        help="The old side: a release such as 24.11, a baseline file, or a folder of baseline files.",
    )
    diffing.add_argument("after", metavar="B", help="The new side, as A.")
    diffing.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        help="Output format (default: text).",
    )
    for action in (listing, showing, diffing):
        action.add_argument(
            "--baselines",
            metavar="DIR",
            action="append",
            type=Path,
            default=[],
            help="Folder of baseline files, added to the shipped files; may be repeated (default: none).",
        )
    linting = actions.add_parser(
        "lint", help="Recompute every derived value and check the errata."
    )
    linting.add_argument(
        "paths",
        metavar="FILE|DIR",
        nargs="*",
        type=Path,
        help="Baseline files or folders to check (default: the shipped files).",
    )
    add_import(actions)
    _add_draft(actions)
    listing.set_defaults(command=_list)
    showing.set_defaults(command=_show)
    linting.set_defaults(command=_lint)
    diffing.set_defaults(command=_compare)


def _add_draft(actions: Subparsers) -> None:
    """Add the parser of `llmbench baselines draft`."""
    parser = actions.add_parser(
        "draft",
        help="Write baseline files without values for runs that match no baseline.",
    )
    add_log_arguments(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        required=True,
        help="Write the baseline files to this folder.",
    )
    for flag, metavar, meaning in (
        ("--model", "NAME", "Model of the runs"),
        ("--size", "SIZE", "Size of the model, such as 8b"),
        ("--dtype", "TYPE", "Precision of the runs, such as bf16"),
        ("--gpus", "N", "Number of GPUs of the runs"),
    ):
        parser.add_argument(
            flag,
            metavar=metavar,
            help=f"{meaning}, if the runs do not state it (default: none).",
        )
    parser.set_defaults(command=_draft)


def _draft(arguments: argparse.Namespace) -> Output:
    """Write one draft file for each recipe, and print the drafts and the files.

    The exit code is 1 if nothing was written or an existing file was kept.
    """
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
    for path, file_drafts in drafts.group_by_file(Path(arguments.output)).items():
        # The remarks become comments in the file.
        remarks: list[str] = []
        for draft in file_drafts:
            remarks += [escape(redact_text(line)) for line in draft.lines]
        text = render_draft(path, [draft.recipe for draft in file_drafts], remarks)
        written.append(write_draft(path, text, force=False))
    lines: list[str] = []
    for line in drafts.lines:
        lines += textwrap.wrap(escape(redact_text(line)), WIDTH, **HANGING)
    for file in written:
        fate: str = file.fate
        if file.fate == DraftFate.KEPT:
            fate = "another file exists and was kept; give another folder"
        lines.append(f"{file.path}: {fate}")
    is_any_kept = any(file.fate == DraftFate.KEPT for file in written)
    is_complete = bool(written) and not is_any_kept
    return Output(
        "\n".join(lines) or "nothing to draft: found no run without a baseline",
        0 if is_complete else 1,
    )


def _read_names(arguments: argparse.Namespace) -> StatedNames:
    """Return the typed model, size, precision and GPU count. Raises SettingsError."""
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
        # Raises ValueError for an invalid number; `1` stands for an omitted option.
        parse_count(names.get("gpus", "1"))
    except ValueError as error:
        raise SettingsError(f"--gpus={arguments.gpus}: {error}") from None
    return StatedNames(**names)


def _list(arguments: argparse.Namespace) -> Output:
    """List all configurations, or those of --recipe.

    Without --recipe, the imported tables are left out, and standard error names them.
    """
    from pytest_llmbench.baseline.read import find_shipped_tables
    from pytest_llmbench.tools.baselines.baseline_pages import format_table

    recipes = read_shipped_and_custom_recipes(arguments.baselines)
    names = sorted({recipe.name for recipe in recipes})
    name = arguments.recipe
    if name and name not in names:
        raise BaselineError(
            f"--recipe {name}: expected {', '.join(names)}{did_you_mean(name, names)}"
        )
    imported = find_shipped_tables()
    hint = ""
    if name:
        listed = [recipe for recipe in recipes if recipe.name == name]
    else:
        listed = [
            recipe for recipe in recipes if not recipe.path.is_relative_to(imported)
        ]
        hidden_names = set(names) - {recipe.name for recipe in listed}
        hint = f"not listed, use --recipe: {', '.join(sorted(hidden_names))} (docs/reference/megatron-bridge.md)"
    baselines = [baseline for recipe in listed for baseline in recipe.baselines]
    return Output(format_table(baselines), stderr=hint)


def _show(arguments: argparse.Namespace) -> Output:
    """Run `llmbench baselines show`."""
    from pytest_llmbench.tools.baselines.baseline_pages import format_page

    recipes = read_shipped_and_custom_recipes(arguments.baselines)
    ids: list[str] = []
    pages: list[str] = []
    for recipe in recipes:
        for baseline in recipe.baselines:
            ids.append(baseline.key.id)
            if baseline.key.id == arguments.id:
                pages.append(format_page(recipe, baseline, WIDTH))
    if not pages:
        hint = did_you_mean(arguments.id, ids)
        raise BaselineError(
            f"no configuration {arguments.id!r}{hint}; run `llmbench baselines list` for all ids"
        )
    return Output("\n\n".join(pages))


def _lint(arguments: argparse.Namespace) -> Output:
    """Run `llmbench baselines lint`. The exit code is 1 if there are findings."""
    from pytest_llmbench.baseline.lint import format_lint_page, lint_file
    from pytest_llmbench.baseline.read import (
        find_baseline_files,
        find_shipped_baselines,
        read_file,
        read_recipes,
    )

    paths = find_baseline_files(arguments.paths or [find_shipped_baselines()])
    read_recipes(paths)  # raises BaselineError if a file is invalid
    reports = [lint_file(read_file(path)) for path in paths]
    return Output(
        format_lint_page(reports, WIDTH),
        code=1 if any(report.findings for report in reports) else 0,
    )


def _compare(arguments: argparse.Namespace) -> Output:
    """Run `llmbench baselines diff`. The exit code is 1 if anything changed."""
    import json

    from pytest_llmbench.tools.baselines.baseline_pages import (
        compare_baselines,
        format_differences,
        make_records,
    )

    before = _read_side(arguments.before, arguments.baselines)
    after = _read_side(arguments.after, arguments.baselines)
    differences = compare_baselines(before, after)
    code = 1 if any(pair.has_changed for pair in differences) else 0
    if arguments.format == "json":
        return Output(
            json.dumps(redact_values(make_records(differences)), indent=1),
            code,
            redacted=True,
        )
    return Output(
        format_differences(differences, arguments.before, arguments.after), code
    )


def _read_side(name: str, directories: Sequence[Path]) -> list[Baseline]:
    """Read the baselines of a file, a folder, or a release.

    A release is looked up in the shipped files and in `directories`. Raises
    BaselineError if `name` is neither a path nor a release.
    """
    from pytest_llmbench.baseline.read import read_recipes

    path = expand_home(name)
    if path.exists():
        return [
            baseline for recipe in read_recipes([path]) for baseline in recipe.baselines
        ]
    recipes = read_shipped_and_custom_recipes(directories)
    releases = sorted({recipe.release for recipe in recipes})
    if name not in releases:
        expected = f"expected a file, a folder or a release among {', '.join(releases)}"
        raise BaselineError(
            f"{name}: no such file; {expected}{did_you_mean(name, releases)}"
        )
    return [
        baseline
        for recipe in recipes
        if recipe.release == name
        for baseline in recipe.baselines
    ]
