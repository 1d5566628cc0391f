"""Preflight reports each problem once, and no problem for a working job."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.fake_schedulers import make_slurm_schedulers
from support.planned_jobs import FACTS, FakePython, machine, plan_job, program

from pytest_llmbench.core.commands import CommandOutput
from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.job_records import Cluster, PreflightCheck, Purpose
from pytest_llmbench.launch.plan.planned_job import PlannedJob
from pytest_llmbench.launch.preflight.launch_checks import (
    check_launch,
    is_required_version,
)
from pytest_llmbench.launch.preflight.problems import (
    LaunchProblem,
    LocalMachine,
    describe_problems,
)
from pytest_llmbench.launch.schedulers.slurm.client import Partition


def part(
    name: str = "batch",
    nodes: int = 4,
    gpus: int = 8,
    limit: float | None = None,
    up: bool = True,
) -> Partition:
    return Partition(name, nodes, gpus, limit, up)


class FakeSlurm:
    """A cluster with one partition by default, which counts its queries."""

    def __init__(
        self,
        *partitions: Partition,
        accounts: tuple[str, ...] | None = ("research",),
        away: bool = False,
    ) -> None:
        self.partitions, self.known, self.away = partitions or (part(),), accounts, away
        self.asked = 0

    def list_partitions(self) -> tuple[Partition, ...]:
        """Return the partitions."""
        self.asked += 1
        if self.away:
            raise LaunchError("sinfo: error: no host\nsinfo: fatal: no configuration")
        return self.partitions

    def list_accounts(self) -> tuple[str, ...] | None:
        """Return the accounts."""
        return self.known


CLUSTER = Cluster(partition="batch", account="research")


def find_problems(
    job: PlannedJob, slurm: FakeSlurm | None = None, on: LocalMachine | None = None
) -> list[str]:
    problems = check_launch(
        [job], CLUSTER, make_slurm_schedulers(slurm or FakeSlurm()), on or machine()
    )
    assert all(
        problem.cases == (job.spec.case_id,) or "(" in problem.cases[0]
        for problem in problems
    )
    return [f"{problem.text} | {problem.remedy}" for problem in problems]


def test_complete_job_has_no_problem(tmp_path: Path) -> None:
    assert find_problems(plan_job(tmp_path)) == []
    facts = replace(
        FACTS,
        required=(),
        forbidden=(),
        image="",
        needs_token=False,
        python="",
        virtual_environment=False,
    )
    undemanding = plan_job(
        tmp_path,
        facts=facts,
        via="local",
        environment={"HF_TOKEN": "", "LLMB_INSTALL": "/nowhere"},
    )
    assert find_problems(undemanding) == []


def without(job: PlannedJob, *names: str) -> PlannedJob:
    pairs = tuple(pair for pair in job.spec.environment if pair[0] not in names)
    return replace(job, spec=replace(job.spec, environment=pairs))


def with_(job: PlannedJob, **variables: str) -> PlannedJob:
    job = without(job, *variables)
    return replace(
        job,
        spec=replace(job.spec, environment=(*job.spec.environment, *variables.items())),
    )


def remove(path: str) -> Callable[[Path, PlannedJob], PlannedJob]:
    def change(folder: Path, job: PlannedJob) -> PlannedJob:
        target = folder / path
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        return job

    return change


def mode(path: str, bits: int) -> Callable[[Path, PlannedJob], PlannedJob]:
    def change(folder: Path, job: PlannedJob) -> PlannedJob:
        (folder / path).chmod(bits)
        return job

    return change


def empty_image(folder: Path, job: PlannedJob) -> PlannedJob:
    (folder / "stage/nemo.sqsh").write_text("")
    return job


DAMAGE: dict[str, tuple[Callable[[Path, PlannedJob], PlannedJob], str, str, str]] = {
    "no script": (
        remove("recipe/launch.sh"),
        "script",
        "there is no launch.sh in",
        "`folder` of llama3.1-25.04",
    ),
    "script not executable": (
        mode("recipe/launch.sh", 0o644),
        "script",
        "is not executable",
        "chmod +x",
    ),
    "no recipe": (
        remove("recipe"),
        "script",
        "there is no folder",
        "`folder` of llama3.1-25.04",
    ),
    "folder of a variable": (
        lambda _, job: replace(
            job, spec=replace(job.spec, directory=Path("$LLMB_REPO/grok1"))
        ),
        "script",
        "the recipe's folder is $LLMB_REPO/grok1, but LLMB_REPO is not set",
        "set `folder` of llama3.1-25.04",
    ),
    "no stage": (remove("stage"), "stage-folder", "STAGE_PATH=", "create it"),
    "relative stage": (
        lambda _, job: with_(job, STAGE_PATH="stage"),
        "stage-folder",
        "a relative path, which differs between nodes",
        "full path",
    ),
    "no image": (
        remove("stage/nemo.sqsh"),
        "image",
        "no container image nemo.sqsh",
        "llmbench setup llama3.1 --release 25.04",
    ),
    "image of a broken import": (
        empty_image,
        "image",
        "nemo.sqsh is empty",
        "llmbench setup",
    ),
    "other image": (
        lambda _, job: with_(job, RUN_CONF_IMAGE="/nowhere/a.sqsh"),
        "image",
        "no container image a.sqsh",
        "setup",
    ),
    "no token": (
        lambda _, job: without(job, "HF_TOKEN"),
        "token",
        "HF_TOKEN is not set",
        "export HF_TOKEN=",
    ),
    "empty token": (
        lambda _, job: with_(job, HF_TOKEN=""),
        "token",
        "HF_TOKEN is not set",
        "export HF_TOKEN=",
    ),
    "no stage variable": (
        lambda _, job: without(job, "STAGE_PATH"),
        "variables",
        "STAGE_PATH is not set",
        "`environment:`",
    ),
    "forbidden": (
        lambda _, job: with_(job, LLMB_INSTALL="/"),
        "forbidden-variables",
        "LLMB_INSTALL must not be set",
        "remove",
    ),
    "no bash": (
        remove("bin/bash"),
        "programs",
        "no program 'bash' on the job's PATH",
        "install it",
    ),
    "no venv": (
        lambda _, job: without(job, "VIRTUAL_ENV"),
        "virtual-environment",
        "needs a virtual environment",
        "/bin/python3 -m venv DIR, then set `virtual_environment: DIR`",
    ),
    "broken venv": (
        remove("venv/bin/python"),
        "virtual-environment",
        "has no bin/python",
        "/bin/python3 -m venv DIR",
    ),
    "no sbatch": (
        remove("bin/sbatch"),
        "slurm",
        "this machine has no Slurm",
        "--llmb-launcher=local",
    ),
    "account": (
        lambda _, job: with_(job, SBATCH_ACCOUNT="reserch"),
        "account",
        "Slurm has no account 'reserch' (did you mean 'research'?)",
        "`account` in the cluster file",
    ),
    "partition": (
        lambda _, job: with_(job, SBATCH_PARTITION="bach"),
        "partition",
        "Slurm has no partition 'bach' (did you mean 'batch'?)",
        "there are batch",
    ),
    "gres": (
        lambda _, job: without(job, "SBATCH_GPUS_PER_NODE"),
        "gpus",
        "the job requests none: its steps would see no GPUs",
        "set `gres: gpu:8`",
    ),
    "gres null": (
        lambda _, job: with_(job, SBATCH_GPUS_PER_NODE="null"),
        "gpus",
        "requests none",
        "set `gres: gpu:8`",
    ),
    "gres too large": (
        lambda _, job: with_(job, SBATCH_GPUS_PER_NODE="9"),
        "gpus",
        "has 8 GPUs a node",
        "correct",
    ),
    "nodes": (
        lambda _, job: replace(job, spec=replace(job.spec, nodes=5, gpus=40)),
        "nodes",
        "partition 'batch' has 4 nodes: a larger job never starts",
        "`largest`",
    ),
    "gpus a node": (
        lambda _, job: replace(job, spec=replace(job.spec, nodes=1, gpus=16)),
        "gpus",
        "has 8 GPUs a node: Slurm refuses a job with more",
        "`gpus_per_node`",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_launch_with_one_fault_has_one_problem_with_its_remedy(
    name: str, tmp_path: Path
) -> None:
    change, check, text, remedy = DAMAGE[name]
    (problem,) = check_launch(
        [change(tmp_path, plan_job(tmp_path))],
        CLUSTER,
        make_slurm_schedulers(FakeSlurm()),
        machine(),
    )
    assert problem.check == check
    assert text in problem.text
    assert remedy in problem.remedy


def test_unset_required_variable_is_reported_once(tmp_path: Path) -> None:
    job = without(plan_job(tmp_path, directory=Path("$STAGE_PATH")), "STAGE_PATH")
    (line,) = find_problems(job)
    assert line.startswith("STAGE_PATH is not set")


def test_image_may_be_in_the_images_folder(tmp_path: Path) -> None:
    job = plan_job(tmp_path)
    (tmp_path / "stage/images").mkdir()
    (tmp_path / "stage/nemo.sqsh").rename(tmp_path / "stage/images/nemo.sqsh")
    assert find_problems(job) == []


def test_unwritable_folders_are_problems(tmp_path: Path) -> None:
    """Uses `may`, because root may write everywhere."""
    job = plan_job(
        tmp_path,
        via="sbatch",
        command=("sbatch", "--gres=gpu:8", "-N", "2", "./launch.sh"),
    )

    def may(path: Path, requested: int) -> bool:
        return not requested & os.W_OK

    problems = find_problems(job, on=replace(machine(), may=may))
    assert [
        "STAGE_PATH: " in problems[0],
        "is not writable, but Slurm" in problems[1],
    ] == [True, True]


def test_llmb_installation_needs_write_permission_only_in_the_workload_folder(
    tmp_path: Path,
) -> None:
    workload = tmp_path / "stage/workloads/x"
    workload.mkdir(parents=True)

    def may(path: Path, requested: int) -> bool:
        return path == workload or not requested & os.W_OK

    job = plan_job(tmp_path, environment={"LLMB_WORKLOAD": str(workload)})
    assert find_problems(job, on=replace(machine(), may=may)) == []


@pytest.mark.parametrize(
    ("required", "version", "is_suitable"),
    [
        ("3.12", "3.12.9", True),
        ("3.12", "3.1", False),
        ("3.12", "3.13.0", False),
        ("3.10.12 or newer", "3.10.4", False),
        ("3.10.12 or newer", "3.9.20", False),
        ("3.10.12 or newer", "3.13.1", True),
        ("3.12", "", False),
        ("new", "3.12.1", False),
    ],
)
def test_suitable_python_version_is_accepted(
    required: str, version: str, is_suitable: bool
) -> None:
    assert is_required_version(version, required) is is_suitable


def test_wrong_python_is_named_with_its_path(tmp_path: Path) -> None:
    (line,) = find_problems(plan_job(tmp_path), on=machine("Python 3.9.2\n"))
    assert (
        f"needs Python 3.10.12 or newer; {tmp_path}/venv/bin/python is Python 3.9.2"
        in line
    )
    (line,) = find_problems(plan_job(tmp_path), on=machine("Segmentation fault"))
    assert "a program that prints no version" in line


def test_old_python_is_reported_without_virtual_environment(tmp_path: Path) -> None:
    job = without(plan_job(tmp_path), "VIRTUAL_ENV")
    problems = check_launch(
        [job], CLUSTER, make_slurm_schedulers(FakeSlurm()), machine("Python 3.9.2\n")
    )
    assert [problem.check for problem in problems] == [
        "virtual-environment",
        "python-version",
    ]


def answer(**versions: str) -> LocalMachine:
    """Return a machine whose Pythons print these versions; _ stands for a dot."""

    def run(
        arguments: Sequence[str],
        *,
        timeout: float,
        environment: Mapping[str, str] | None = None,
    ) -> CommandOutput:
        return CommandOutput(
            0, versions.get(Path(arguments[0]).name.replace(".", "_"), ""), ""
        )

    return replace(machine(), run=run)


@pytest.mark.parametrize(
    ("versions", "remedy"),
    [
        ({"python3": "Python 3.11.2"}, "bin/python3 -m venv DIR"),
        (
            {
                "python3": "Python 3.9.2",
                "python3_12": "Python 3.12.1",
                "python3_10": "3.10.4",
            },
            "/python3.12 -m venv DIR",
        ),
        (
            {"python3": "Python 3.9.2", "python3_10": "Python 3.10.4", "conda": ""},
            "conda create -p DIR python=3.10",
        ),
        (
            {"python3": "Python 3.9.2"},
            "there is no Python 3.10.12 or newer on the PATH",
        ),
    ],
)
def test_remedy_for_an_old_python_is_available(
    versions: dict[str, str], remedy: str, tmp_path: Path
) -> None:
    for name in versions:
        program(tmp_path / "bin" / name.replace("_", "."))
    (problem,) = check_launch(
        [plan_job(tmp_path)],
        CLUSTER,
        make_slurm_schedulers(FakeSlurm()),
        answer(python="Python 3.9.2", **versions),
    )
    assert problem.check == PreflightCheck.PYTHON_VERSION
    assert remedy in problem.remedy
    assert "`virtual_environment: DIR` in the cluster file" in problem.remedy


TORCH = replace(FACTS, python="", virtual_environment=False, modules=("torch",))


def test_missing_module_is_a_problem_of_local_jobs(tmp_path: Path) -> None:
    job = plan_job(tmp_path, facts=TORCH, via="local")
    (problem,) = check_launch(
        [job], CLUSTER, make_slurm_schedulers(FakeSlurm()), answer(python="torch\n")
    )
    assert problem.check == PreflightCheck.PYTHON_MODULES
    assert (
        problem.text
        == f"llama3.1 25.04 needs torch, which {tmp_path}/venv/bin/python lacks"
    )
    assert problem.remedy.startswith(
        f"{tmp_path}/venv/bin/python -m pip install torch, or set PYTHON="
    )
    assert (
        check_launch(
            [job], CLUSTER, make_slurm_schedulers(FakeSlurm()), answer(python="\n")
        )
        == ()
    )
    on_nodes = plan_job(tmp_path, facts=TORCH)
    assert (
        check_launch(
            [on_nodes],
            CLUSTER,
            make_slurm_schedulers(FakeSlurm()),
            answer(python="torch\n"),
        )
        == ()
    )


def test_modules_are_checked_with_the_python_of_the_job(tmp_path: Path) -> None:
    facts = replace(TORCH, modules=("json", "no_such_module"))
    job = plan_job(
        tmp_path, facts=facts, via="local", environment={"PYTHON": sys.executable}
    )
    (problem,) = check_launch([job], CLUSTER, make_slurm_schedulers(FakeSlurm()))
    assert (
        problem.text
        == f"llama3.1 25.04 needs no_such_module, which {sys.executable} lacks"
    )


def test_python_modules_are_checked_once_for_each_search_path(tmp_path: Path) -> None:
    """A Python may be a script that starts the first other Python on the PATH."""
    facts = replace(TORCH, modules=("json",))
    job = plan_job(
        tmp_path, facts=facts, via="local", environment={"PYTHON": sys.executable}
    )
    search_paths = []

    def run(
        arguments: Sequence[str],
        *,
        timeout: float,
        environment: Mapping[str, str] | None = None,
    ) -> CommandOutput:
        if "-c" in arguments:
            search_paths.append((environment or {})["PATH"])
        return CommandOutput(0, "", "")

    jobs = [with_(job, PATH=path) for path in ("/first", "/second", "/first")]
    check_launch(
        jobs,
        CLUSTER,
        make_slurm_schedulers(FakeSlurm()),
        replace(LocalMachine(), run=run),
    )
    assert search_paths == ["/first", "/second"]


def test_llmb_run_job_requires_cluster_config_but_no_virtual_environment(
    tmp_path: Path,
) -> None:
    job = without(
        plan_job(tmp_path, via="llmb-run", command=("llmb-run", "single")),
        "VIRTUAL_ENV",
    )
    (line,) = find_problems(job)
    assert "llmb-run needs its cluster_config.yaml" in line
    (tmp_path / "recipe/cluster_config.yaml").write_text("")
    assert find_problems(job) == []


# --- folders --------------------------------------------------------------------------


def test_recipe_in_the_stage_folder_is_one_problem(tmp_path: Path) -> None:
    job = plan_job(tmp_path, directory=tmp_path / "stage")
    (line,) = find_problems(job)
    assert (
        "| run `llmbench setup llama3.1 --release 25.04`, or set `folder` of llama3.1-25.04"
        in line
    )
    shutil.rmtree(tmp_path / "stage")
    (line,) = find_problems(job)
    assert "STAGE_PATH=" in line


def test_recipe_folder_without_access_permission_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    job = plan_job(tmp_path)
    monkeypatch.setattr(Path, "is_file", refused)
    lines = find_problems(job)
    assert (
        f"{tmp_path}/recipe/launch.sh: Permission denied | ask the owner of its folder for permission"
        in lines[0]
    )


def test_recipe_without_a_folder_is_a_problem(tmp_path: Path) -> None:
    job = plan_job(
        tmp_path, facts=replace(FACTS, file=tmp_path / "recipe" / "25.04.yaml")
    )
    (tmp_path / "recipe" / "launch.sh").unlink()
    (line,) = find_problems(job)
    assert line.startswith(
        "the folder of llama3.1 25.04 is unknown: launch.sh was not found | set `folder`"
    )
    assert "`folder` of llama3.1-25.04 under `installed:` in the cluster file" in line


# --- Slurm ----------------------------------------------------------------------------


def sbatch(folder: Path, *options: str, script: str = "#!/bin/bash\n") -> PlannedJob:
    job = plan_job(
        folder, via="sbatch", command=("sbatch", "-p", "batch", *options, "./launch.sh")
    )
    program(folder / "recipe/launch.sh", script)
    return without(job, "SBATCH_GPUS_PER_NODE")


@pytest.mark.parametrize(
    ("options", "script"),
    [
        (("--gres=gpu:8",), ""),
        (("--gres", "gpu:h100:8"), ""),
        (("--gpus=16",), ""),
        (("--gpus-per-node=8",), ""),
        ((), "#SBATCH --gres=gpu:8"),
        ((), "#SBATCH --exclusive --gpus-per-node 8 # all of them"),
        (("--gres=nvme:1,gpu:8(S:0-1)",), ""),
    ],
)
def test_gpu_request_in_sbatch_options_or_script_is_accepted(
    options: tuple[str, ...], script: str, tmp_path: Path
) -> None:
    assert (
        find_problems(sbatch(tmp_path, *options, script=f"#!/bin/bash\n{script}\n"))
        == []
    )


@pytest.mark.parametrize(
    "options", [(), ("--gres=nvme:1",), ("--gres=none",), ("--exclusive",), ("-G", "0")]
)
def test_sbatch_job_without_a_gpu_request_suggests_gres_in_the_cluster_file(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    """An exclusive job has GPUs, but its steps do not (seen on Slurm 22.05)."""
    (line,) = find_problems(sbatch(tmp_path, *options))
    assert (
        "set `gres: gpu:8` in the cluster file; 'GPUs not found' and 'without GPU resources'"
        in line
    )


def test_cpu_job_needs_no_gpus(tmp_path: Path) -> None:
    job = sbatch(tmp_path)
    assert (
        find_problems(
            replace(job, spec=replace(job.spec, key=replace(job.spec.key, gpu="cpu")))
        )
        == []
    )


def test_only_options_of_sbatch_are_checked(tmp_path: Path) -> None:
    """llmb-run has its own -p, and arguments after a script belong to the script."""
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe/cluster_config.yaml").write_text("")
    assert (
        find_problems(
            plan_job(
                tmp_path,
                via="llmb-run",
                command=("llmb-run", "single", "-p", "--gres=gpu:99"),
            )
        )
        == []
    )
    job = sbatch(tmp_path, "--gres=gpu:8")
    job = replace(
        job, spec=replace(job.spec, command=(*job.spec.command, "--gres=gpu:99"))
    )
    assert find_problems(job) == []
    job = replace(
        job,
        spec=replace(
            job.spec, command=("sbatch", "-N", "2", "./launch.sh", "--gres=gpu:8")
        ),
    )
    assert "requests none" in find_problems(job)[0]


def test_script_that_requests_its_gpus_is_accepted(tmp_path: Path) -> None:
    job = without(plan_job(tmp_path), "SBATCH_GPUS_PER_NODE")
    assert len(find_problems(job)) == 1
    assert find_problems(replace(job, facts=replace(FACTS, optional=()))) == []


def test_cluster_without_gres_refuses_a_gpu_request(tmp_path: Path) -> None:
    without_gres = FakeSlurm(part(gpus=0))
    (line,) = find_problems(sbatch(tmp_path, "--gres=gpu:8"), without_gres)
    assert (
        "has no GPUs configured (gres), but the job requests gpu:8 | remove `gres`"
        in line
    )
    assert find_problems(sbatch(tmp_path), without_gres) == []


@pytest.mark.parametrize(
    ("options", "script", "fits"),
    [
        (("--time=10",), "", True),
        (("-t", "10:00"), "", True),
        (("--time=00:10:01",), "", False),
        (("-t11",), "", False),
        ((), "#SBATCH --time=0:30:00", False),
        ((), "", True),
    ],
)
def test_time_limit_above_the_partitions_is_a_problem(
    options: tuple[str, ...], script: str, fits: bool, tmp_path: Path
) -> None:
    job = sbatch(tmp_path, "--gres=gpu:8", *options, script=f"#!/bin/bash\n{script}\n")
    lines = find_problems(job, FakeSlurm(part(limit=600)))
    assert (lines == []) is fits
    assert all("allows at most 10 minutes per job" in line for line in lines)
    assert find_problems(job, FakeSlurm(part(limit=None))) == []


def test_partition_that_is_down_is_a_problem(tmp_path: Path) -> None:
    (line,) = find_problems(plan_job(tmp_path), FakeSlurm(part(up=False)))
    assert "partition 'batch' accepts no jobs: it is down" in line


def test_job_without_a_partition_is_checked_against_the_largest_one(
    tmp_path: Path,
) -> None:
    job = sbatch(tmp_path)
    job = replace(
        job, spec=replace(job.spec, command=("sbatch", "--gres=gpu:8", "launch.sh"))
    )
    assert find_problems(job, FakeSlurm(part("tiny", 1), part("large", 100))) == []
    (line,) = find_problems(job, FakeSlurm(part("tiny", 1)))
    assert "partition 'tiny' has 1 nodes" in line


def test_account_is_accepted_without_accounting(tmp_path: Path) -> None:
    job = with_(plan_job(tmp_path), SBATCH_ACCOUNT="anything")
    assert find_problems(job, FakeSlurm(accounts=None)) == []


def test_unreachable_slurm_is_one_problem(tmp_path: Path) -> None:
    (line,) = find_problems(plan_job(tmp_path), FakeSlurm(away=True))
    assert (
        "Slurm does not answer: sinfo: error: no host; sinfo: fatal: no configuration | check `sinfo`"
        in line
    )


def test_missing_slurm_is_one_problem_of_slurm_jobs(tmp_path: Path) -> None:
    jobs = [plan_job(tmp_path, gpus) for gpus in (8, 16)]
    (tmp_path / "bin/sbatch").unlink()
    (problem,) = check_launch(
        jobs, CLUSTER, make_slurm_schedulers(FakeSlurm()), machine()
    )
    assert problem.text == "this machine has no Slurm: no sbatch on the job's PATH"
    assert len(problem.cases) == 2
    assert (
        check_launch(
            [plan_job(tmp_path, via="local")],
            CLUSTER,
            make_slurm_schedulers(FakeSlurm()),
            machine(),
        )
        == ()
    )


# --- checkpoints ----------------------------------------------------------------------


def test_checkpoints_must_fit_on_the_disk_together(tmp_path: Path) -> None:
    jobs = [
        plan_job(tmp_path, gpus, purpose=Purpose.SAVE_CHECKPOINT) for gpus in (16, 32)
    ]
    assert (
        check_launch(
            jobs, CLUSTER, make_slurm_schedulers(FakeSlurm()), machine(free=210 * 10**9)
        )
        == ()
    )
    (problem,) = check_launch(
        jobs, CLUSTER, make_slurm_schedulers(FakeSlurm()), machine(free=209 * 10**9)
    )
    assert (
        problem.text
        == f"the checkpoints need 210 GB, but {tmp_path}/stage has 209 GB free"
    )
    assert problem.cases[0] == "llama3.1_8b-25.04-h100-bf16-16 (105 GB)"
    measured = [plan_job(tmp_path)]
    assert (
        check_launch(
            measured, CLUSTER, make_slurm_schedulers(FakeSlurm()), machine(free=0)
        )
        == ()
    )


def test_checkpoint_must_be_in_the_stage_folder(tmp_path: Path) -> None:
    inside, outside = tmp_path / "stage/step50", tmp_path / "step50"
    for folder in (inside, outside):
        (folder / "weights").mkdir(parents=True, exist_ok=True)
        (folder / "weights/__0_0.distcp").write_text("")
    job = plan_job(tmp_path, purpose=Purpose.LOAD_CHECKPOINT)
    assert find_problems(with_(job, LOAD_CHECKPOINT_PATH=str(inside))) == []
    (line,) = find_problems(with_(job, LOAD_CHECKPOINT_PATH=str(outside)))
    assert f"the checkpoint must be in {tmp_path}/stage" in line


# --- text -----------------------------------------------------------------------------


def test_problem_shared_by_several_configurations_is_listed_once(
    tmp_path: Path,
) -> None:
    jobs = [plan_job(tmp_path, 8 * count) for count in range(1, 27)]
    (tmp_path / "stage/nemo.sqsh").unlink()
    slurm, python = FakeSlurm(part(nodes=20)), FakePython()
    problems = check_launch(
        jobs, CLUSTER, make_slurm_schedulers(slurm), replace(machine(), run=python)
    )
    assert [len(problem.cases) for problem in problems] == [26, 6]
    assert problems[1].cases[0] == "llama3.1_8b-25.04-h100-bf16-168 (21 nodes)"
    assert slurm.asked == 1
    assert len(python.calls) == 1
    text = " ".join(describe_problems(problems).split())
    assert "26 configurations: llama3.1_8b-25.04-h100-bf16-8," in text
    assert "and 21 more" in text


def test_problem_text_fits_a_terminal_without_secrets(tmp_path: Path) -> None:
    job = plan_job(
        tmp_path, environment={"SBATCH_PARTITION": "nowhere", "LLMB_INSTALL": "x"}
    )
    shutil.rmtree(tmp_path / "stage")
    text = describe_problems(
        check_launch([job], CLUSTER, make_slurm_schedulers(FakeSlurm()), machine())
    )
    assert text.startswith(
        "3 problems to solve before the launch:\n 1. [forbidden-variables] LLMB_INSTALL must not be set"
    )
    assert "hf_secretvalue" not in text
    long = [line for line in text.splitlines() if len(line) > 79]
    assert all(str(tmp_path) in line for line in long)


def test_problems_are_described_with_remedies() -> None:
    problem = LaunchProblem(
        "no container image a.sqsh in /stage and /stage/images",
        "run `llmbench setup a --release 1`",
        ("a",),
    )
    text = (
        "1 problem to solve before the launch:\n"
        " 1. {}no container image a.sqsh in /stage and /stage/images\n"
        "      1 configuration: a\n"
        "      do: run `llmbench setup a --release 1`"
    )
    assert describe_problems([problem]) == text.format("")
    with_check = describe_problems([replace(problem, check=PreflightCheck.IMAGE)])
    assert (
        with_check
        == text.format("[image] ")
        + "\nto launch anyway, ignore a check: --llmb-ignore=image"
    )
    assert describe_problems(
        [replace(problem, check=PreflightCheck.SCHEDULER)]
    ) == text.format("[slurm] ")
    assert describe_problems([]) == ""
