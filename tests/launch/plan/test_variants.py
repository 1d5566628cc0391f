"""Reading the file of an A/B or a search, and installing its variants."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.job_specs import job_spec

from pytest_llmbench.core.commands import CommandOutput, run
from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.job_records import (
    Cluster,
    Command,
    InstalledRecipe,
    LaunchFacts,
)
from pytest_llmbench.core.trial_records import Variant
from pytest_llmbench.launch.file_lock import acquire_lock
from pytest_llmbench.launch.plan.planned_job import PlannedJob
from pytest_llmbench.launch.plan.variants import (
    Builds,
    install_variant,
    list_commits,
    read_builds,
    read_variants,
    refuse_ineffective,
    refuse_same,
)

FACTS = LaunchFacts(
    "grok1",
    "25.05",
    "sbatch",
    (Command("sbatch", "sbatch", "sbatch ./launch.sh"),),
    (("gb200", 4),),
    optional=(("RUN_CONF_IMAGE", "another image"),),
    forbidden=(("SLURM_MPI_TYPE", "breaks it"),),
    nccl_trace=(("ENABLE_NCCL_TRACE", "true"),),
)


def read(tmp_path: Path, *entries: str) -> tuple[Variant, ...]:
    path = tmp_path / "variants.yaml"
    path.write_text(
        "schema: 1\nvariants:\n" + "".join(f"  - {{{entry}}}\n" for entry in entries)
    )
    return read_variants(path).variants


def test_variant_is_read_with_all_its_keys(tmp_path: Path) -> None:
    variants = read(
        tmp_path,
        "name: good",
        "name: new, image: nvcr.io/x:2, environment: {B: '2', A: x}, arguments: [--cuda-graphs, full]",
        "name: mine, folder: recipe",
        "name: old, commit: v1.0~3",
    )
    assert variants == (
        Variant("good"),
        Variant(
            "new",
            "nvcr.io/x:2",
            environment=(("A", "x"), ("B", "2")),
            arguments=("--cuda-graphs", "full"),
        ),
        Variant("mine", folder=tmp_path / "recipe"),
        Variant("old", commit="v1.0~3"),
    )


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["name: good"], ":3: found a list, expected a list with at least 2 entries"),
        (
            ["name: good", "name: good, image: x"],
            ":4: found the duplicate name 'good' (first in line 3)",
        ),
        (
            ["name: a, image: x", "name: b, image: x"],
            ":4: found 'b' identical to 'a', expected a difference",
        ),
        (["name: a", "name: b, environment: {}"], "expected"),
        (
            ["name: a", "name: b, commit: x, folder: y"],
            ":4: found both `commit` and `folder`, expected one of them",
        ),
        (
            ["name: a", "name: b, commit: '--upload-pack=x'"],
            ":4: found '--upload-pack=x', expected a commit",
        ),
        (["name: a", "name: b, imgae: x"], ":4: found the unknown key 'imgae'"),
        (["name: a b", "name: b"], ":3: found 'a b', expected a short name"),
        (["name: a", "name: b, arguments: x"], ":4: "),
        (["name: a", "name: b, environment: {1A: x}"], ":4: "),
        (
            [f"name: v{number}, image: x{number}" for number in range(9)],
            ":3: found a list of 9, expected at most 8 entries",
        ),
        (["name: [a]", "image: 3"], ":3: "),
        (["name: a", 'name: b, folder: "~\\0x"'], ":4: "),
        (["name: a", 'name: b, image: "x\\0"'], ":4: "),
        (["name: a", 'name: b, arguments: ["\\0"]'], ":4: "),
    ],
)
def test_mistaken_variant_is_refused_with_its_line(
    tmp_path: Path, entries: Sequence[str], message: str
) -> None:
    with pytest.raises(LaunchError, match=r"variants\.yaml") as error:
        read(tmp_path, *entries)
    assert message in str(error.value)


def test_search_file_lists_variants_or_a_range_of_commits(tmp_path: Path) -> None:
    path = tmp_path / "builds.yaml"
    path.write_text(
        "schema: 1\nmost_runs: 60\nvariants:\n  - {name: a}\n  - {name: b, image: x}\n"
    )
    assert read_builds(path) == Builds((Variant("a"), Variant("b", "x")), most_runs=60)
    path.write_text("schema: 1\ncommits: v1.0~2..HEAD\n")
    assert read_builds(path) == Builds(commits="v1.0~2..HEAD")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ":1: expected either `variants` or `commits`"),
        (
            "commits: a..b\nvariants: [{name: a}, {name: b, image: x}]",
            "either `variants` or `commits`",
        ),
        ("commits: a...b", ":2: found 'a...b', expected two commits such as"),
        ("commits: --all..b", ":2: found '--all..b', expected two commits"),
        (
            "commits: a..b\nmost_runs: 7",
            ":3: found 7, expected a whole number from 8 to 10000",
        ),
    ],
)
def test_mistake_in_the_search_file_is_refused_with_its_line(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "builds.yaml"
    path.write_text(f"schema: 1\n{text}\n")
    with pytest.raises(LaunchError, match=r"builds\.yaml") as error:
        read_builds(path)
    assert message in str(error.value)


def test_variants_file_of_a_comparison_refuses_keys_of_a_search(tmp_path: Path) -> None:
    path = tmp_path / "variants.yaml"
    path.write_text(
        "schema: 1\nmost_runs: 60\nvariants:\n  - {name: a}\n  - {name: b, image: x}\n"
    )
    with pytest.raises(LaunchError, match="most_runs"):
        read_variants(path)


@pytest.mark.parametrize(
    ("line", "separate"),
    [("", False), ("allocation: shared\n", False), ("allocation: separate\n", True)],
)
def test_variants_file_may_require_separate_jobs(
    tmp_path: Path, line: str, separate: bool
) -> None:
    path = tmp_path / "variants.yaml"
    path.write_text(
        f"schema: 1\n{line}variants:\n  - {{name: a}}\n  - {{name: b, image: x}}\n"
    )
    for builds in (read_variants(path), read_builds(path)):
        assert (len(builds.variants), builds.separate) == (2, separate)


def test_unknown_allocation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "variants.yaml"
    path.write_text(
        "schema: 1\nallocation: common\nvariants:\n  - {name: a}\n  - {name: b, image: x}\n"
    )
    with pytest.raises(
        LaunchError, match=":2: found 'common', expected shared or separate"
    ):
        read_variants(path)


def test_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"none\.yaml"):
        read_variants(tmp_path / "none.yaml")


def install(
    tmp_path: Path,
    variant: Variant,
    facts: LaunchFacts = FACTS,
    *recipes: InstalledRecipe,
) -> InstalledRecipe:
    """Return the installed recipe of the variant."""
    job = PlannedJob(job_spec(tmp_path, via="sbatch"), facts)
    cluster = Cluster(installed=recipes)
    return install_variant(
        variant, job, cluster, journal=tmp_path / "journal", run=run
    ).installed[0]


def test_variant_overrides_the_installed_recipe(tmp_path: Path) -> None:
    there = InstalledRecipe(
        "grok1",
        "",
        tmp_path,
        "script",
        (("A", "old"), ("KEPT", "yes")),
        tmp_path / "venv",
    )
    variant = Variant(
        "new", image="img", environment=(("A", "new"),), folder=tmp_path / "mine"
    )
    arm = install(tmp_path, variant, FACTS, there)
    assert arm == replace(
        there,
        release="25.05",
        folder=tmp_path / "mine",
        environment=(("A", "new"), ("KEPT", "yes"), ("RUN_CONF_IMAGE", "img")),
    )
    assert (
        install(tmp_path, Variant("good"), FACTS, there).environment
        == there.environment
    )


@pytest.mark.parametrize(
    ("variant", "facts", "message"),
    [
        (
            Variant("a", environment=(("SLURM_MPI_TYPE", "x"),)),
            FACTS,
            "SLURM_MPI_TYPE may not be set",
        ),
        (
            Variant("a", environment=(("ENABLE_NCCL_TRACE", "x"),)),
            FACTS,
            "ENABLE_NCCL_TRACE may not be set",
        ),
        (
            Variant("a", image="x"),
            replace(FACTS, optional=()),
            "names no variable for an image",
        ),
        (Variant("a", commit="abc"), FACTS, "variant a: commit abc: git in "),
    ],
)
def test_impossible_variant_of_a_recipe_is_refused(
    tmp_path: Path, variant: Variant, facts: LaunchFacts, message: str
) -> None:
    with pytest.raises(LaunchError, match="variant a: ") as error:
        install(tmp_path, variant, facts)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("environment", "refused"),
    [
        ({"DTYPE": "fp8"}, "DTYPE"),
        ({"DTYPE": "bf16", "COLUMNS": "80"}, "COLUMNS"),
        ({"GONE": ""}, "GONE"),
        ({"DTYPE": "bf16", "EMPTY": "", "DATA": "${HOME}/data"}, ""),
        ({"PATH": "/opt/bin"}, ""),
        ({"PATH": "/elsewhere/bin"}, "PATH"),
    ],
)
def test_ineffective_variable_is_refused(
    tmp_path: Path, environment: dict[str, str], refused: str
) -> None:
    variant = Variant("b", environment=tuple(environment.items()))
    job = {
        "DTYPE": "bf16",
        "COLUMNS": "400",
        "EMPTY": "",
        "DATA": "/home/x/data",
        "PATH": "/venv/bin:/opt/bin",
    }
    spec = job_spec(tmp_path, environment=tuple(job.items()))
    if not refused:
        refuse_ineffective(variant, spec, {"HOME": "/home/x"})
        return
    with pytest.raises(LaunchError, match=f"variant b: {refused} has no effect: "):
        refuse_ineffective(variant, spec, {})


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"environment": (("B", "2"), ("A", "1"))}, True),
        ({"directory": "link"}, True),
        ({"environment": (("A", "1"),)}, False),
        ({"command": ("./launch.sh", "x")}, False),
        ({"directory": "other"}, False),
    ],
)
def test_variants_with_the_same_job_are_refused(
    tmp_path: Path, changes: dict[str, Any], same: bool
) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "link").symlink_to("recipe")
    first = job_spec(
        tmp_path / "recipe", environment=(("A", "1"), ("B", "2")), variant="a"
    )
    if "directory" in changes:
        changes = {"directory": tmp_path / changes["directory"]}
    jobs = [
        PlannedJob(first, FACTS),
        PlannedJob(replace(first, variant="b", **changes), FACTS),
    ]
    if not same:
        refuse_same(jobs)
        return
    with pytest.raises(
        LaunchError, match="variant b: its job is identical to that of a "
    ):
        refuse_same(jobs)


def answer(code: int, errors: str = "") -> Callable[..., CommandOutput]:
    """Return a runner with this result for all commands."""
    return lambda *_, **__: CommandOutput(code, "", errors)


def test_unknown_commit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="git has no such commit"):
        install_variant(
            Variant("a", commit="abc"),
            PlannedJob(job_spec(tmp_path), FACTS),
            Cluster(),
            journal=tmp_path,
            run=answer(0),
        )


def call_git(folder: Path, *words: str) -> None:
    done = run(
        ("git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *words),
        timeout=60,
    )
    assert done.code == 0, done


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Create three commits on the main line; the second merges a side commit."""

    git = partial(call_git, tmp_path)
    git("init", "-q", "-b", "main")
    git("commit", "-q", "--allow-empty", "-m", "good")
    git("checkout", "-q", "-b", "side")
    git("commit", "-q", "--allow-empty", "-m", "side")
    git("checkout", "-q", "main")
    git("merge", "-q", "--no-ff", "-m", "merge", "side")
    git("commit", "-q", "--allow-empty", "-m", "bad")
    return tmp_path


def test_failure_of_git_is_reported_with_its_reason(tmp_path: Path) -> None:
    failing = answer(128, "Preparing\nfatal: no room\nuse 'add -f'\n")
    with pytest.raises(LaunchError, match=r"git:a\.\.b: git in .*: fatal: no room$"):
        list_commits("a..b", tmp_path, failing)


@pytest.fixture
def check_out(repository: Path) -> Callable[[], Path]:
    """Check out a commit that adds a file to the recipe, and return the folder."""
    (repository / "launch.sh").write_text("steps 1.0\n")
    (repository / ".gitignore").write_text("journal\n")
    call_git(repository, "add", "launch.sh", ".gitignore")
    call_git(repository, "commit", "-q", "-m", "recipe")
    recipe = InstalledRecipe("grok1", "", repository)

    def make() -> Path:
        folder = install(repository, Variant("a", commit="HEAD"), FACTS, recipe).folder
        assert folder
        return folder

    return make


@pytest.mark.slow
def test_checkout_is_kept_with_its_build_until_removed(
    check_out: Callable[[], Path],
) -> None:
    checkout = check_out()
    assert (checkout / "launch.sh").read_text() == "steps 1.0\n"
    (checkout / "built").touch()
    assert check_out() == checkout
    assert (checkout / "built").exists()
    shutil.rmtree(checkout)
    assert check_out() == checkout
    assert (checkout / "launch.sh").exists()


@pytest.mark.slow
def test_checkout_interrupted_by_a_kill_is_repeated(
    check_out: Callable[[], Path], repository: Path
) -> None:
    """Also if git left its lock, as it does when it is killed."""
    checkout = check_out()
    (checkout / "launch.sh").unlink()
    (checkout / "junk").touch()
    checkout.with_name(f"{checkout.name}.part").touch()
    (repository / ".git" / "worktrees" / checkout.name / "locked").write_text(
        "initializing\n"
    )
    assert check_out() == checkout
    assert sorted(path.name for path in checkout.iterdir()) == [
        ".git",
        ".gitignore",
        "launch.sh",
    ]
    assert not checkout.with_name(f"{checkout.name}.part").exists()


@pytest.mark.slow
def test_failed_checkout_is_made_again(
    check_out: Callable[[], Path], repository: Path
) -> None:
    hook = repository / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nrm launch.sh; exit 3\n")
    hook.chmod(0o755)
    with pytest.raises(LaunchError, match="variant a: commit HEAD: git in "):
        check_out()
    hook.unlink()
    assert (check_out() / "launch.sh").exists()


@pytest.mark.slow
def test_changed_checkout_is_refused(check_out: Callable[[], Path]) -> None:
    checkout = check_out()
    (checkout / "launch.sh").write_text("steps 1.05\n")
    with pytest.raises(
        LaunchError, match=r"launch\.sh was changed: .*; remove the folder"
    ):
        check_out()
    call_git(checkout, "checkout", "-qf", "HEAD~1")
    with pytest.raises(LaunchError, match="another commit is checked out"):
        check_out()


@pytest.mark.slow
def test_folder_that_is_no_git_checkout_is_refused_and_not_removed(
    check_out: Callable[[], Path],
) -> None:
    checkout = check_out()
    (checkout / ".git").unlink()
    for _ in range(2):
        with pytest.raises(
            LaunchError, match="exists, but is not a git checkout: remove it"
        ):
            check_out()
    assert (checkout / "launch.sh").exists()


@pytest.mark.slow
def test_checkout_by_another_session_is_refused(check_out: Callable[[], Path]) -> None:
    checkout = check_out()
    checkout.with_name(f"{checkout.name}.part").touch()
    lock = acquire_lock(checkout.with_name(f"{checkout.name}.lock"))
    assert lock
    with pytest.raises(
        LaunchError, match="another session is checking out this commit"
    ):
        check_out()
    os.close(lock)
    assert check_out() == checkout


@pytest.mark.slow
def test_search_lists_the_first_parent_commits_of_a_range(repository: Path) -> None:
    variants = list_commits("HEAD~2..main", repository, run)
    subjects = [
        run(
            ("git", "-C", str(repository), "log", "-1", "--format=%s", variant.commit),
            timeout=60,
        ).out.strip()
        for variant in variants
    ]
    assert subjects == ["good", "merge", "bad"]
    assert [variant.name for variant in variants] == [
        variant.commit[:12] for variant in variants
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("main", "expected two commits"),
        ("--all..main", "expected two commits"),
        ("main..main", "expected up to 511 commits from"),
        ("side..main", "expected up to 511 commits from"),
        ("none..main", "git:none..main: git in "),
    ],
)
def test_impossible_range_of_commits_is_refused(
    repository: Path, text: str, message: str
) -> None:
    with pytest.raises(LaunchError) as error:
        list_commits(text, repository, run)
    assert message in str(error.value)
