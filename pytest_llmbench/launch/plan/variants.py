"""Variants of a recipe for --llmb-ab and --llmb-bisect: reading and installing them."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from pytest_llmbench.core.commands import Runner
from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.job_records import (
    Cluster,
    InstalledRecipe,
    JobSpec,
    LaunchFacts,
    Purpose,
)
from pytest_llmbench.core.trial_records import Variant
from pytest_llmbench.core.userfile import expand_home
from pytest_llmbench.core.yamlfile import (
    Fields,
    Items,
    Names,
    Number,
    Report,
    Spec,
    Text,
    YamlMapping,
    read_document,
    read_entry,
)
from pytest_llmbench.launch.file_lock import acquire_lock
from pytest_llmbench.launch.plan.cluster_file import fill_references
from pytest_llmbench.launch.plan.fit import find_installed
from pytest_llmbench.launch.plan.job_spec import IMAGE
from pytest_llmbench.launch.plan.planned_job import PlannedJob, find_script
from pytest_llmbench.launch.plan.purpose import list_switches

MOST_VARIANTS = 8  # of an A/B

MOST_BUILDS = 512  # of a search

# range of `most_runs`, the cap of a search: the end builds alone may need eight runs
RANGE_OF_MOST_RUNS = (8, 10_000)

# the values of `allocation`; the first is the default
SHARED, SEPARATE = ALLOCATIONS = ("shared", "separate")

CHECKOUTS = "checkouts"
"""Folder in the journal's folder that contains the checkouts of commits."""

GIT_SECONDS = 600.0  # for a checkout on a slow file system

_VARIABLE = Text("the name of an environment variable", r"(?a:[A-Za-z_][A-Za-z0-9_]*)")
# a commit as git accepts it: v1.0, HEAD~3, main@{1}, a1b2c3d
_COMMIT = r"(?a:[A-Za-z0-9][A-Za-z0-9_./@^~{}-]*)"
_VARIANT = Fields(
    {
        "name": Text(
            "a short name such as good", r"(?a:[A-Za-z0-9][A-Za-z0-9_.+-]{0,49})"
        )
    },
    {
        "image": Text("a container image", r"[^\s\0]+"),
        "commit": Text("a commit of the repository of the recipe", _COMMIT),
        "folder": Text("the folder of the recipe", r"[^\0]+"),
        "environment": Names(Text("a value", r".*"), _VARIABLE),
        "arguments": Items(Text("one word for the launcher", r"[^\0]+")),
    },
)


class Builds(Struct, frozen=True):
    """The content of a variants file: its variants, and the settings of their runs."""

    variants: tuple[Variant, ...] = ()  # in the order of the file
    # a range GOOD..BAD of commits of the recipe's folder, instead of `variants`
    commits: str = ""
    build: tuple[str, ...] = ()  # the build command, run in the checkout of a commit
    most_runs: int | None = None  # None: derived from the number of builds
    separate: bool = False  # True if each run is to be a separate job


def read_variants(path: Path) -> Builds:
    """Read the variants of an A/B from a file of --llmb-ab.

    Raises LaunchError, with the line, if a variant is invalid or there are too many.
    """
    keys: dict[str, Spec] = {"variants": Items(_VARIANT, least=2, most=MOST_VARIANTS)}
    return _make_builds(_read_variants_file(path, required=keys, optional={}), path)


def read_builds(path: Path) -> Builds:
    """Read the file of a search.

    Raises LaunchError, with the line, if the file is invalid.
    """
    keys: dict[str, Spec] = {
        "variants": Items(_VARIANT, least=2, most=MOST_BUILDS),
        "commits": Text(
            "two commits such as v1.0..HEAD", rf"{_COMMIT}(?<!\.)\.\.{_COMMIT}"
        ),
        "build": Items(Text("one word of a command", r"[^\0]+")),
        "most_runs": Number(*RANGE_OF_MOST_RUNS, whole=True),
    }
    return _make_builds(_read_variants_file(path, required={}, optional=keys), path)


def _read_variants_file(
    path: Path, *, required: Mapping[str, Spec], optional: Mapping[str, Spec]
) -> YamlMapping:
    """Read a file of variants with these keys, besides `schema` and `allocation`.

    Raises LaunchError, with the line, if the file is invalid.
    """
    root = read_document(path, what="file of variants", raises=LaunchError)
    allocation = Text("shared or separate", choices=ALLOCATIONS)
    fields = Fields(
        {"schema": Number(1, 1, whole=True), **required},
        {"allocation": allocation, **optional},
    )
    return read_entry(
        path, root, fields, check=_check_variants_file, raises=LaunchError
    )


def _make_builds(entry: YamlMapping, path: Path) -> Builds:
    """Convert the content of a variants file. `path` is the file."""
    home = path.absolute().parent
    variants = entry.get("variants") or ()
    return Builds(
        variants=tuple(_make_variant(variant, home) for variant in variants),
        commits=entry.get("commits") or "",
        build=tuple(entry.get("build") or ()),
        most_runs=entry.get("most_runs"),
        separate=entry.get("allocation") == SEPARATE,
    )


def _check_variants_file(entry: YamlMapping, report: Report) -> None:
    """Report contradicting keys, repeated names and identical variants of a file."""
    # `variants` or `commits`; `build` belongs to `commits`
    has_variants, has_commits = "variants" in entry.lines, "commits" in entry.lines
    if has_variants == has_commits:
        report(entry.line, "expected either `variants` or `commits`")
    if "build" in entry.lines and not has_commits:
        report(
            entry.lines["build"],
            "found a build command without `commits`, expected `commits`",
        )
    variants = entry.get("variants") or ()
    first_lines: dict[str, int] = {}  # the line of each name
    name_by_settings: dict[str, str] = {}
    for variant in variants:
        # the name must be new
        name = variant["name"]
        if name in first_lines:
            report(
                variant.line,
                f"found the duplicate name {name!r} (first in line {first_lines[name]}), expected unique names",
            )
        first_lines.setdefault(name, variant.line)
        # the recipe comes from a commit or from a folder
        if "commit" in variant.lines and "folder" in variant.lines:
            report(
                variant.lines["commit"],
                "found both `commit` and `folder`, expected one of them",
            )
        # no earlier variant may have the same settings
        keys = sorted(variant.lines.keys() - {"name", "environment"})
        pairs = [(key, variant[key]) for key in keys]
        settings = repr((pairs, _list_environment(variant)))
        if settings in name_by_settings:
            report(
                variant.line,
                f"found {name!r} identical to {name_by_settings[settings]!r}, expected a difference",
            )
        name_by_settings.setdefault(settings, name)


def _list_environment(entry: YamlMapping) -> list[tuple[str, str]]:
    """Return the variables of a variant, sorted by name."""
    environment = entry.get("environment")
    if not environment:
        return []
    return sorted((name, str(value)) for name, value in environment.values.items())


def _make_variant(entry: YamlMapping, home: Path) -> Variant:
    """Convert a variant of a file; a relative folder is resolved against `home`."""
    folder = entry.get("folder")
    return Variant(
        name=entry["name"],
        image=entry.get("image") or "",
        commit=entry.get("commit") or "",
        folder=home / expand_home(folder) if folder else None,
        environment=tuple(_list_environment(entry)),
        arguments=tuple(entry.get("arguments") or ()),
    )


def install_variant(
    variant: Variant, job: PlannedJob, cluster: Cluster, *, journal: Path, run: Runner
) -> Cluster:
    """Return the cluster with a variant installed as the recipe of a job.

    A commit is checked out under the folder of the `journal`. Raises LaunchError if the
    recipe does not support a setting of the variant.
    """
    spec, facts, key = job.spec, job.facts, job.spec.key
    installed = find_installed(key, cluster) or InstalledRecipe(key.recipe, key.release)
    environment = dict(installed.environment) | dict(variant.environment)
    forbidden = {name for name, _ in facts.forbidden}
    refused = forbidden.union(list_switches(facts))
    for name, _ in variant.environment:
        if name in refused:
            raise LaunchError(
                f"variant {variant.name}: {name} may not be set: the recipe forbids it, or it belongs to another purpose"
            )
    if variant.image:
        _require_image(variant, spec, facts)
        environment[IMAGE] = variant.image
    folder = variant.folder or installed.folder
    if variant.commit:
        folder = _check_out(variant, installed.folder or spec.directory, journal, run)
    installed_variant = replace(
        installed,
        recipe=key.recipe,
        release=key.release,
        folder=folder,
        environment=tuple(environment.items()),
    )
    # find_installed uses the first match
    return replace(cluster, installed=(installed_variant, *cluster.installed))


def refuse_ineffective(
    variant: Variant, spec: JobSpec, caller: Mapping[str, str]
) -> None:
    """Refuse a variable of a variant that does not reach its job.

    The launcher, the configuration or a virtual environment may override or drop the
    variable; the variant would be compared with itself. Raises LaunchError.
    """
    environment = dict(spec.environment)
    for name, text in variant.environment:
        value = fill_references(text, caller, f"variant {variant.name}: {name}")
        actual = environment.get(name)
        if actual == value:
            continue
        # a virtual environment prepends its folder to PATH
        suffix = f"{os.pathsep}{value}"
        is_extended = name == "PATH" and actual and actual.endswith(suffix)
        if not is_extended:
            raise LaunchError(
                f"variant {variant.name}: {name} has no effect: the launcher or the configuration sets it for "
                f"{spec.case_id}; remove it"
            )


def refuse_same(jobs: Sequence[PlannedJob]) -> None:
    """Refuse two variants that yield the same job, such as two names of one commit.

    Raises LaunchError.
    """
    variant_by_content: dict[object, str] = {}
    for job in jobs:
        spec = job.spec
        content = (
            os.path.realpath(spec.directory),
            spec.command,
            frozenset(spec.environment),
            spec.build,
        )
        if content in variant_by_content:
            raise LaunchError(
                f"variant {spec.variant}: its job is identical to that of {variant_by_content[content]} ({spec.case_id}): expected "
                "a difference"
            )
        variant_by_content[content] = spec.variant


def _require_image(variant: Variant, spec: JobSpec, facts: LaunchFacts) -> None:
    """Raise LaunchError if the recipe has no variable for the image of a variant."""
    documented_variables = {name for name, _ in (*facts.required, *facts.optional)}
    is_in_command = any(
        "{image}" in command.command
        for command in facts.commands
        if command.via == spec.via
    )
    if IMAGE not in documented_variables and not is_in_command:
        raise LaunchError(
            f"variant {variant.name}: image: the document of {facts.recipe} {facts.release} names no variable for an "
            "image: under `environment`, set the variable from which its launch.sh reads the image"
        )


def find_checkout(folder: Path, journal: Path) -> Path:
    """Find the checkout that contains a folder; `journal` is the journal's folder."""
    checkouts = journal.absolute() / CHECKOUTS
    (commit, *_) = folder.relative_to(checkouts).parts
    return checkouts / commit


def find_without_script(
    variants: Mapping[str, Sequence[PlannedJob]], journal: Path
) -> list[PlannedJob]:
    """Find the builds of a search whose commit does not contain the script to run.

    A search skips such a build like a failed one. Omits the end builds, which a search
    cannot skip. Empty for an A/B. `journal` is the journal's folder.
    """
    checkouts = journal.absolute() / CHECKOUTS
    without_script = []
    for jobs in variants.values():
        inner_jobs = jobs[1:-1]
        for job in inner_jobs:
            script = find_script(job)
            if job.spec.purpose is not Purpose.BISECT or script is None:
                continue
            if script.is_relative_to(checkouts) and not os.path.isfile(script):
                without_script.append(job)
    return without_script


def list_commits(text: str, folder: Path, run: Runner) -> tuple[Variant, ...]:
    """List the commits of a range GOOD..BAD as variants, starting with GOOD.

    Follows first parents only, like `git log --first-parent`. Raises LaunchError.
    """
    good, dots, bad = text.partition("..")
    # of GOOD...BAD, another kind of range, the second commit begins with a dot
    are_commits = re.fullmatch(_COMMIT, good) and re.fullmatch(_COMMIT, bad)
    if not dots or not are_commits:
        raise LaunchError(f"git:{text}: expected two commits such as git:v1.0..HEAD")
    call_git = partial(_call_git, f"git:{text}", folder, run)
    first, last = (
        call_git("rev-parse", "--verify", "--end-of-options", f"{end}^{{commit}}")
        for end in (good, bad)
    )
    after_first = call_git(
        "rev-list",
        "--reverse",
        "--first-parent",
        f"--max-count={MOST_BUILDS}",
        f"{first}..{last}",
    ).split()
    # empty if GOOD is not before BAD; does not begin directly after GOOD if the range
    # has too many commits, or if GOOD is not on the line of first parents
    if (
        not after_first
        or after_first[-1] != last
        or call_git("rev-parse", f"{after_first[0]}^") != first
    ):
        raise LaunchError(
            f"git:{text}: expected up to {MOST_BUILDS - 1} commits from the good to the bad commit, following "
            "the first parents of the bad commit"
        )
    commits = (first, *after_first)
    return tuple(Variant(name=commit[:12], commit=commit) for commit in commits)


def _call_git(prefix: str, folder: Path, run: Runner, *words: str) -> str:
    """Run git in a folder and return its output.

    Raises LaunchError, starting with `prefix`, if git fails.
    """
    output = run(("git", "-C", str(folder), *words), timeout=GIT_SECONDS)
    if output.code:
        reason = f"exit code {output.code}"
        lines = (output.err or output.out).strip().splitlines()
        if lines:
            errors = [line for line in lines if line.startswith("fatal:")]
            # git may print hints after the error
            reason = errors[0] if errors else lines[-1]
        raise LaunchError(f"{prefix}: git in {folder}: {reason}")
    return output.out.strip()


def _check_out(variant: Variant, folder: Path, journal: Path, run: Runner) -> Path:
    """Return the recipe's folder in the checkout of a commit.

    Checks the commit out if necessary. Raises LaunchError.
    """
    prefix = f"variant {variant.name}: commit {variant.commit}"
    call_git = partial(_call_git, prefix, folder, run)
    commit = call_git(
        "rev-parse", "--verify", "--end-of-options", f"{variant.commit}^{{commit}}"
    )
    if not re.fullmatch(r"[0-9a-f]{40,64}", commit):
        raise LaunchError(f"{prefix}: git has no such commit in {folder}")
    subfolder = call_git(
        "rev-parse", "--show-prefix"
    )  # "" at the top of the repository
    checkout = journal.absolute() / CHECKOUTS / commit
    _make_checkout(checkout, call_git)
    _require_unchanged(checkout, partial(_call_git, prefix, checkout, run))
    return checkout / subfolder if subfolder else checkout


def _make_checkout(checkout: Path, call_git: Callable[..., str]) -> None:
    """Check a commit out unless a complete checkout exists.

    A `.part` file next to the checkout marks it as incomplete; it remains if the
    process is killed. Raises LaunchError, also if another session is checking the
    commit out.
    """
    marker = checkout.with_name(f"{checkout.name}.part")
    if _is_complete(checkout, marker):
        return
    try:
        checkout.parent.mkdir(parents=True, exist_ok=True)
        lock = acquire_lock(checkout.with_name(f"{checkout.name}.lock"))
        if lock is None:
            raise LaunchError(
                f"{checkout}: another session is checking out this commit: retry when that is done"
            )
        try:
            # another session may have finished it before this one got the lock
            if not _is_complete(checkout, marker):
                _check_out_anew(checkout, marker, call_git)
        finally:
            os.close(lock)
    except OSError as error:
        raise LaunchError(
            f"{error.filename or checkout}: {error.strerror}: cannot check out the commit"
        ) from None


def _is_complete(checkout: Path, marker: Path) -> bool:
    """True if a checkout exists and git has finished it."""
    return (checkout / ".git").is_file() and not marker.exists()


def _check_out_anew(checkout: Path, marker: Path, call_git: Callable[..., str]) -> None:
    """Check out a commit into a new folder.

    `marker` exists while git works, so that an interrupted checkout is made again.
    Raises LaunchError if a folder of other origin is in the way.
    """
    if marker.exists() and checkout.exists():
        shutil.rmtree(checkout)
    elif checkout.exists():  # not created here, so do not remove it
        raise LaunchError(f"{checkout} exists, but is not a git checkout: remove it")
    marker.touch()
    # --force twice: overrides a registered worktree whose folder is gone, and the lock
    # that git keeps while it checks out
    call_git(
        "worktree",
        "add",
        "--force",
        "--force",
        "--detach",
        str(checkout),
        checkout.name,
    )
    marker.unlink()


def _require_unchanged(checkout: Path, call_git: Callable[..., str]) -> None:
    """Refuse a checkout whose tracked files or commit have changed.

    Untracked files, such as those of a build, are allowed. Raises LaunchError.
    """
    change = ""
    changed = call_git("status", "--porcelain", "--untracked-files=no").splitlines()
    if changed:  # such as `M launch.sh`
        path = changed[0].split(maxsplit=1)[-1]
        change = f"{path} was changed"
    if call_git("rev-parse", "HEAD") != checkout.name:
        change = "another commit is checked out"
    if change:
        raise LaunchError(
            f"{checkout}: {change}: its runs would not be those of the commit; remove the folder (rm -rf)"
        )
