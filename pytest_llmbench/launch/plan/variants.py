"""Variants of a recipe (--llmb-ab, --llmb-bisect): what names them, and how each takes
the place of what is there."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

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

MOST_ARMS = 8  # of one A/B

MOST_BUILDS = 512  # of one search

MOST_RUNS = (8, 10_000)  # as the cap of a search: the ends alone may take eight
ALLOCATIONS = (
    "shared",
    "separate",
)  # whether all runs share one, where they can: the first unless the file says so

CHECKOUTS = "checkouts"
"""The folder of the journal in which commits are checked out."""

GIT_SECONDS = 600.0  # for a checkout on a slow file system

_VARIABLE = Text("the name of an environment variable", r"(?a:[A-Za-z_][A-Za-z0-9_]*)")
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


@dataclass(frozen=True, slots=True)
class Builds:
    """What is compared or searched, and how."""

    variants: tuple[Variant, ...] = ()  # in their order
    commits: str = (
        ""  # in their place: those of the recipe's folder between two, GOOD..BAD
    )
    build: tuple[str, ...] = ()  # the command that builds in the checkout of a commit
    most_runs: int | None = None  # None: as many as their number asks for
    separate: bool = False  # whether each run is to be a job of its own


def read_variants(path: Path) -> Builds:
    """Return the arms that the file of an A/B describes, in its order; LaunchError,
    with the line, for what is none, and for too many."""
    return _make_builds(
        _read(path, {"variants": Items(_VARIANT, least=2, most=MOST_ARMS)}, {}), path
    )


def read_builds(path: Path) -> Builds:
    """Return what the file of a search describes; LaunchError, with the line, for what
    is none."""
    keys: dict[str, Spec] = {
        "variants": Items(_VARIANT, least=2, most=MOST_BUILDS),
        "commits": Text(
            "two commits such as v1.0..HEAD", rf"{_COMMIT}(?<!\.)\.\.{_COMMIT}"
        ),
        "build": Items(Text("one word of a command", r"[^\0]+")),
        "most_runs": Number(*MOST_RUNS, whole=True),
    }
    return _make_builds(_read(path, {}, keys), path)


def _read(
    path: Path, required: Mapping[str, Spec], optional: Mapping[str, Spec]
) -> YamlMapping:
    root = read_document(path, what="file of variants", raises=LaunchError)
    allocation = Text("shared or separate", choices=ALLOCATIONS)
    fields = Fields(
        {"schema": Number(1, 1, whole=True), **required},
        {"allocation": allocation, **optional},
    )
    return read_entry(path, root, fields, check=_check, raises=LaunchError)


def _make_builds(entry: YamlMapping, path: Path) -> Builds:
    return Builds(
        variants=tuple(
            _make_variant(each, path.absolute().parent)
            for each in entry.get("variants") or ()
        ),
        commits=entry.get("commits") or "",
        build=tuple(entry.get("build") or ()),
        most_runs=entry.get("most_runs"),
        separate=entry.get("allocation") == ALLOCATIONS[1],
    )


def _check(entry: YamlMapping, report: Report) -> None:
    if ("variants" in entry.lines) == ("commits" in entry.lines):
        report(entry.line, "expected `variants` or `commits`, and not both")
    if "build" in entry.lines and "commits" not in entry.lines:
        report(
            entry.lines["build"], "found a command that builds, which is for `commits`"
        )
    variants = entry.get("variants") or ()
    seen: dict[str, int] = {}
    settings: dict[str, str] = {}
    for each in variants:
        name = each["name"]
        if name in seen:
            report(
                each.line,
                f"found the name {name!r} again (first in line {seen[name]}), expected another one",
            )
        seen.setdefault(name, each.line)
        if "commit" in each.lines and "folder" in each.lines:
            report(
                each.lines["commit"],
                "found a commit beside a folder, expected one of them",
            )
        plain = [
            (key, each[key])
            for key in sorted(each.lines.keys() - {"name", "environment"})
        ]
        what = repr((plain, _list_environment(each)))
        if what in settings:
            report(
                each.line,
                f"found {name!r} the same as {settings[what]!r}, expected something that differs",
            )
        settings.setdefault(what, name)


def _list_environment(entry: YamlMapping) -> list[tuple[str, str]]:
    """Return the variables of an arm, in order of their names."""
    environment = entry.get("environment")
    return (
        sorted((name, str(value)) for name, value in environment.values.items())
        if environment
        else []
    )


def _make_variant(entry: YamlMapping, home: Path) -> Variant:
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
    """Return a cluster on which a recipe is installed as a variant has it; a commit is
    checked out below the folder of the `journal`. Raises LaunchError for what the
    recipe cannot be given."""
    spec, facts, key = job.spec, job.facts, job.spec.key
    installed = find_installed(key, cluster) or InstalledRecipe(key.recipe, key.release)
    environment = dict(installed.environment) | dict(variant.environment)
    switches = {
        **dict.fromkeys(name for name, _ in facts.forbidden),
        **list_switches(facts),
    }
    if refused := next(
        (name for name, _ in variant.environment if name in switches), ""
    ):
        raise LaunchError(
            f"variant {variant.name}: {refused} may not be set: forbidden, or of another purpose"
        )
    if variant.image:
        _require_image(variant, spec, facts)
        environment[IMAGE] = variant.image
    folder = variant.folder or installed.folder
    if variant.commit:
        folder = _check_out(variant, installed.folder or spec.directory, journal, run)
    arm = replace(
        installed,
        recipe=key.recipe,
        release=key.release,
        folder=folder,
        environment=tuple(environment.items()),
    )
    return replace(cluster, installed=(arm, *cluster.installed))


def refuse_ineffective(
    variant: Variant, spec: JobSpec, caller: Mapping[str, str]
) -> None:
    """Refuse a variable of a variant that its job has with another value or not at all,
    since the launcher, the configuration or a virtual environment sets it: the variant
    would be compared with itself."""
    environment = dict(spec.environment)
    for name, text in variant.environment:
        value, actual = (
            fill_references(text, caller, f"variant {variant.name}: {name}"),
            environment.get(name, ""),
        )
        is_extended = name == "PATH" and actual.endswith(
            f"{os.pathsep}{value}"
        )  # by a virtual environment
        if not (name in environment and actual == value) and not is_extended:
            raise LaunchError(
                f"variant {variant.name}: {name} changes nothing: the launcher or the configuration sets it for "
                f"{spec.case_id}; take it out"
            )


def refuse_same(jobs: Sequence[PlannedJob]) -> None:
    """Refuse two variants of which the same job is made, as of two names of one commit:
    nothing can be told of them."""
    names: dict[object, str] = {}
    for spec in (job.spec for job in jobs):
        job = (
            os.path.realpath(spec.directory),
            spec.command,
            frozenset(spec.environment),
            spec.build,
        )
        if job in names:
            raise LaunchError(
                f"variant {spec.variant}: its job is the same as that of {names[job]} ({spec.case_id}): expected "
                "something that differs"
            )
        names[job] = spec.variant


def _require_image(variant: Variant, spec: JobSpec, facts: LaunchFacts) -> None:
    documented = {name for name, _ in (*facts.required, *facts.optional)}
    commands = (
        command.command for command in facts.commands if command.via == spec.via
    )
    if IMAGE not in documented and not any(
        "{image}" in command for command in commands
    ):
        raise LaunchError(
            f"variant {variant.name}: image: the document of {facts.recipe} {facts.release} names no variable for an "
            "image: give the one that its launch.sh reads below `environment`"
        )


def find_checkout(folder: Path, journal: Path) -> Path:
    """Return the checkout that a folder lies in."""
    checkouts = journal.absolute() / CHECKOUTS
    return checkouts / folder.relative_to(checkouts).parts[0]


def find_without_script(
    variants: Mapping[str, Sequence[PlannedJob]], journal: Path
) -> list[PlannedJob]:
    """Return the jobs of a search, but for its ends, whose commit has no script to run:
    a build that does not run."""
    checkouts = journal.absolute() / CHECKOUTS
    between = (
        job
        for jobs in variants.values()
        for job in jobs[1:-1]
        if job.spec.purpose is Purpose.BISECT
    )
    scripts = ((job, find_script(job)) for job in between)
    return [
        job
        for job, file in scripts
        if file and file.is_relative_to(checkouts) and not os.path.isfile(file)
    ]


def list_commits(text: str, folder: Path, run: Runner) -> tuple[Variant, ...]:
    """Return a variant for each commit of a range GOOD..BAD, the good end first, those
    that were merged left out: along the first parents, as `git log --first-parent`.
    Raises LaunchError."""
    good, dots, bad = text.partition("..")
    if not (
        dots and re.fullmatch(_COMMIT, good) and re.fullmatch(_COMMIT, bad)
    ) or bad.startswith("."):
        raise LaunchError(f"git:{text}: expected two commits such as git:v1.0..HEAD")
    call = partial(_call_git, f"git:{text}", folder, run)
    first, last = (
        call("rev-parse", "--verify", "--end-of-options", f"{end}^{{commit}}")
        for end in (good, bad)
    )
    listed = call(
        "rev-list",
        "--reverse",
        "--first-parent",
        f"--max-count={MOST_BUILDS}",
        f"{first}..{last}",
    ).split()
    if not listed or listed[-1] != last or call("rev-parse", f"{listed[0]}^") != first:
        raise LaunchError(
            f"git:{text}: expected up to {MOST_BUILDS - 1} commits between the good end and the bad one, along the "
            "first parents of the bad one"
        )
    return tuple(Variant(commit[:12], commit=commit) for commit in (first, *listed))


def _call_git(what: str, folder: Path, run: Runner, *words: str) -> str:
    """Return what git prints in a folder. LaunchError, which begins with `what`, where
    it fails."""
    done = run(("git", "-C", str(folder), *words), timeout=GIT_SECONDS)
    if done.code:
        lines = (done.err or done.out).strip().splitlines() or [
            f"exit code {done.code}"
        ]
        why = next(
            (line for line in lines if line.startswith("fatal:")), lines[-1]
        )  # hints may follow it
        raise LaunchError(f"{what}: git in {folder}: {why}")
    return done.out.strip()


def _check_out(variant: Variant, folder: Path, journal: Path, run: Runner) -> Path:
    """Return the recipe's folder in a checkout of a commit, which is made where there
    is none yet."""
    call = partial(
        _call_git, f"variant {variant.name}: commit {variant.commit}", folder, run
    )
    commit = call(
        "rev-parse", "--verify", "--end-of-options", f"{variant.commit}^{{commit}}"
    )
    if not re.fullmatch(r"[0-9a-f]{40,64}", commit):
        raise LaunchError(
            f"variant {variant.name}: commit {variant.commit}: git knows no such commit in {folder}"
        )
    below = call("rev-parse", "--show-prefix")
    checkout = journal.absolute() / CHECKOUTS / commit
    _make_checkout(checkout, call)
    _require_unchanged(
        checkout,
        partial(
            _call_git, f"variant {variant.name}: commit {variant.commit}", checkout, run
        ),
    )
    return checkout / below if below else checkout


def _make_checkout(checkout: Path, call: Callable[..., str]) -> None:
    """Check a commit out where that was not done to its end. A file beside it says so
    until it is: whoever is killed before leaves it there. LaunchError, also where
    another session is at it."""
    part = checkout.with_name(f"{checkout.name}.part")
    if _is_whole(checkout, part):
        return
    try:
        checkout.parent.mkdir(parents=True, exist_ok=True)
        lock = acquire_lock(checkout.with_name(f"{checkout.name}.lock"))
        if lock is None:
            raise LaunchError(
                f"{checkout}: another session checks it out: start again when that is done"
            )
        try:
            if not _is_whole(checkout, part):
                _check_out_anew(checkout, part, call)
        finally:
            os.close(lock)
    except OSError as error:
        raise LaunchError(
            f"{error.filename or checkout}: {error.strerror}: no commit can be checked out"
        ) from None


def _is_whole(checkout: Path, part: Path) -> bool:
    return (checkout / ".git").is_file() and not part.exists()


def _check_out_anew(checkout: Path, part: Path, call: Callable[..., str]) -> None:
    if part.exists() and checkout.exists():
        shutil.rmtree(checkout)
    elif checkout.exists():  # none that was made here: it is not ours to remove
        raise LaunchError(f"{checkout} is there, and no checkout of git: remove it")
    part.touch()
    # twice: also where git knows a folder there that is gone, and where it locked it,
    # as it does until it is done
    call(
        "worktree",
        "add",
        "--force",
        "--force",
        "--detach",
        str(checkout),
        checkout.name,
    )
    part.unlink()


def _require_unchanged(checkout: Path, call: Callable[..., str]) -> None:
    """Refuse a checkout that is not its commit any more; what a build adds to it is no
    change of the commit."""
    changed = call("status", "--porcelain", "--untracked-files=no").splitlines()
    what = f"{changed[0].split(maxsplit=1)[-1]} was changed" if changed else ""
    if call("rev-parse", "HEAD") != checkout.name:
        what = "another commit is checked out"
    if what:
        raise LaunchError(
            f"{checkout}: {what} in it: its runs are not those of the commit; remove the folder (rm -rf)"
        )
