"""Preflight finds everything that is in the way, says each thing once, and nothing when nothing is wrong."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from planned import FACTS, Python, machine, planned, program

from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.models.jobs import Cluster, PreflightCheck, Purpose
from pytest_llmbench.launch.preflight import check_launch
from pytest_llmbench.launch.preflight.plan import LaunchProblem, LocalMachine, PlannedJob, describe_problems
from pytest_llmbench.launch.preflight.python_checks import is_wanted_version
from pytest_llmbench.launch.slurm import CommandOutput, Partition


def part(name: str = "batch", nodes: int = 4, gpus: int = 8, limit: float | None = None, up: bool = True) -> Partition:
    return Partition(name, nodes, gpus, limit, up)


class FakeSlurm:
    """A cluster with one partition, which counts how often it is asked."""

    def __init__(self, *parts: Partition, accounts: tuple[str, ...] | None = ("research",), away: bool = False) -> None:
        self.parts, self.known, self.away = parts or (part(),), accounts, away
        self.asked = 0

    def list_partitions(self) -> tuple[Partition, ...]:
        """Return the partitions."""
        self.asked += 1
        if self.away:
            raise LaunchError("sinfo: error: no host\nsinfo: fatal: no configuration")
        return self.parts

    def list_accounts(self) -> tuple[str, ...] | None:
        """Return the accounts."""
        return self.known


CLUSTER = Cluster(partition="batch", account="research")


def found(job: PlannedJob, slurm: FakeSlurm | None = None, on: LocalMachine | None = None) -> list[str]:
    problems = check_launch([job], CLUSTER, slurm or FakeSlurm(), on or machine())
    assert all(problem.cases == (job.spec.case_id,) or "(" in problem.cases[0] for problem in problems)
    return [f"{problem.what} | {problem.remedy}" for problem in problems]


def test_nothing_is_wrong_with_a_job_that_has_all_it_needs(tmp_path: Path) -> None:
    assert found(planned(tmp_path)) == []


def without(job: PlannedJob, *names: str) -> PlannedJob:
    pairs = tuple(pair for pair in job.spec.environment if pair[0] not in names)
    return replace(job, spec=replace(job.spec, environment=pairs))


def with_(job: PlannedJob, **variables: str) -> PlannedJob:
    job = without(job, *variables)
    return replace(job, spec=replace(job.spec, environment=(*job.spec.environment, *variables.items())))


def remove(path: str) -> Callable[[Path, PlannedJob], PlannedJob]:
    def change(folder: Path, job: PlannedJob) -> PlannedJob:
        place = folder / path
        shutil.rmtree(place) if place.is_dir() else place.unlink()
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


DAMAGE: dict[str, tuple[Callable[[Path, PlannedJob], PlannedJob], str, str]] = {
    "no script": (remove("recipe/launch.sh"), "there is no launch.sh in", "`folder` of llama3.1-25.04"),
    "script not executable": (mode("recipe/launch.sh", 0o644), "cannot be executed", "chmod +x"),
    "no recipe": (remove("recipe"), "there is no folder", "`folder` of llama3.1-25.04"),
    "folder of a variable": (
        lambda _, job: replace(job, spec=replace(job.spec, directory=Path("$LLMB_REPO/grok1"))),
        "the recipe's folder is $LLMB_REPO/grok1, and LLMB_REPO is not set",
        "set `folder` of llama3.1-25.04",
    ),
    "no stage": (remove("stage"), "STAGE_PATH=", "create it"),
    "relative stage": (lambda _, job: with_(job, STAGE_PATH="stage"), "another folder on another node", "full path"),
    "no image": (remove("stage/nemo.sqsh"), "no container image nemo.sqsh", "llmbench setup llama3.1 --release 25.04"),
    "image of a broken import": (empty_image, "nemo.sqsh is empty", "llmbench setup"),
    "other image": (lambda _, job: with_(job, RUN_CONF_IMAGE="/nowhere/a.sqsh"), "no container image a.sqsh", "setup"),
    "no token": (lambda _, job: without(job, "HF_TOKEN"), "HF_TOKEN is not set", "export HF_TOKEN="),
    "empty token": (lambda _, job: with_(job, HF_TOKEN=""), "HF_TOKEN is not set", "export HF_TOKEN="),
    "no stage variable": (lambda _, job: without(job, "STAGE_PATH"), "STAGE_PATH is not set", "`environment:`"),
    "forbidden": (lambda _, job: with_(job, LLMB_INSTALL="/"), "LLMB_INSTALL must not be set", "remove"),
    "no bash": (remove("bin/bash"), "no program 'bash' on the job's PATH", "install it"),
    "no venv": (
        lambda _, job: without(job, "VIRTUAL_ENV"),
        "a virtual environment of its own",
        "/bin/python3 -m venv DIR, and `virtual_environment: DIR`",
    ),
    "broken venv": (remove("venv/bin/python"), "has no bin/python", "/bin/python3 -m venv DIR"),
    "no sbatch": (remove("bin/sbatch"), "no Slurm on this machine", "--llmb-launcher=local"),
    "account": (
        lambda _, job: with_(job, SBATCH_ACCOUNT="reserch"),
        "Slurm has no account 'reserch' (did you mean 'research'?)",
        "`account` in the cluster file",
    ),
    "partition": (
        lambda _, job: with_(job, SBATCH_PARTITION="bach"),
        "Slurm has no partition 'bach' (did you mean 'batch'?)",
        "there are batch",
    ),
    "gres": (
        lambda _, job: without(job, "SBATCH_GPUS_PER_NODE"),
        "the job asks for none: its steps would see no GPUs",
        "set `gres: gpu:8`",
    ),
    "gres null": (lambda _, job: with_(job, SBATCH_GPUS_PER_NODE="null"), "asks for none", "set `gres: gpu:8`"),
    "gres too large": (lambda _, job: with_(job, SBATCH_GPUS_PER_NODE="9"), "has 8 GPUs a node", "correct"),
    "nodes": (
        lambda _, job: replace(job, spec=replace(job.spec, nodes=5, gpus=40)),
        "partition 'batch' has 4 nodes: a larger job waits for ever",
        "`largest`",
    ),
    "gpus a node": (
        lambda _, job: replace(job, spec=replace(job.spec, nodes=1, gpus=16)),
        "has 8 GPUs a node: such a job is refused",
        "`gpus_per_node`",
    ),
}


CHECKS = {
    "no script": "script",
    "no recipe": "script",
    "no stage": "stage-folder",
    "no image": "image",
    "image of a broken import": "image",
    "no token": "token",
    "no stage variable": "variables",
    "forbidden": "forbidden-variables",
    "no bash": "programs",
    "no venv": "virtual-environment",
    "no sbatch": "slurm",
    "account": "account",
    "partition": "partition",
    "gres": "gpus",
    "nodes": "nodes",
    "gpus a node": "gpus",
}


@pytest.mark.parametrize("name", CHECKS)
def test_each_problem_says_which_check_found_it(name: str, tmp_path: Path) -> None:
    job = DAMAGE[name][0](tmp_path, planned(tmp_path))
    (problem,) = check_launch([job], CLUSTER, FakeSlurm(), machine())
    assert problem.check == CHECKS[name]


@pytest.mark.parametrize("name", DAMAGE)
def test_each_thing_that_is_missing_is_one_problem_with_its_remedy(name: str, tmp_path: Path) -> None:
    change, what, remedy = DAMAGE[name]
    (line,) = found(change(tmp_path, planned(tmp_path)))
    told_what, _, told_remedy = line.partition(" | ")
    assert what in told_what
    assert remedy in told_remedy


def test_a_folder_of_a_variable_that_is_required_is_told_once(tmp_path: Path) -> None:
    job = without(planned(tmp_path, directory=Path("$STAGE_PATH")), "STAGE_PATH")
    (line,) = found(job)
    assert line.startswith("STAGE_PATH is not set")


def test_the_image_may_lie_below_images(tmp_path: Path) -> None:
    job = planned(tmp_path)
    (tmp_path / "stage/images").mkdir()
    (tmp_path / "stage/nemo.sqsh").rename(tmp_path / "stage/images/nemo.sqsh")
    assert found(job) == []


def test_what_may_not_be_written_is_a_problem(tmp_path: Path) -> None:
    """Asked through `may`: the tests may run as root, who may everything."""
    job = planned(tmp_path, via="sbatch", command=("sbatch", "--gres=gpu:8", "-N", "2", "./launch.sh"))

    def may(path: Path, wanted: int) -> bool:
        return not wanted & os.W_OK

    problems = found(job, on=replace(machine(), may=may))
    assert ["STAGE_PATH: " in problems[0], "cannot be written, and Slurm" in problems[1]] == [True, True]


def test_of_a_shared_installation_only_the_workload_is_written(tmp_path: Path) -> None:
    workload = tmp_path / "stage/workloads/x"
    workload.mkdir(parents=True)

    def may(path: Path, wanted: int) -> bool:
        return path == workload or not wanted & os.W_OK

    job = planned(tmp_path, environment={"LLMB_WORKLOAD": str(workload)})
    assert found(job, on=replace(machine(), may=may)) == []


@pytest.mark.parametrize(
    ("wanted", "has", "suited"),
    [
        ("3.12", "3.12.0", True),
        ("3.12", "3.12.9", True),
        ("3.12", "3.1", False),
        ("3.12", "3.13.0", False),
        ("3.10.12 or newer", "3.10.12", True),
        ("3.10.12 or newer", "3.10.4", False),
        ("3.10.12 or newer", "3.9.20", False),
        ("3.10.12 or newer", "3.13.1", True),
        ("3.12", "", False),
        ("new", "3.12.1", False),
    ],
)
def test_which_python_suits(wanted: str, has: str, suited: bool) -> None:
    assert is_wanted_version(has, wanted) is suited


def test_the_wrong_python_is_named_with_its_place(tmp_path: Path) -> None:
    (line,) = found(planned(tmp_path), on=machine("Python 3.9.2\n"))
    assert f"needs Python 3.10.12 or newer; {tmp_path}/venv/bin/python is Python 3.9.2" in line
    (line,) = found(planned(tmp_path), on=machine("Segmentation fault"))
    assert "something that does not tell its version" in line


def test_a_virtual_environment_that_is_overruled_hides_no_old_python(tmp_path: Path) -> None:
    job = without(planned(tmp_path), "VIRTUAL_ENV")
    problems = check_launch([job], CLUSTER, FakeSlurm(), machine("Python 3.9.2\n"))
    assert [problem.check for problem in problems] == ["virtual-environment", "python-version"]


def answer(**versions: str) -> LocalMachine:
    """Return a machine whose Pythons, by name with _ for a point, say these versions."""

    def run(arguments: Sequence[str], *, timeout: float, environment: Mapping[str, str] | None = None) -> CommandOutput:
        return CommandOutput(0, versions.get(Path(arguments[0]).name.replace(".", "_"), ""), "")

    return replace(machine(), run=run)


@pytest.mark.parametrize(
    ("others", "remedy"),
    [
        ({"python3": "Python 3.11.2"}, "bin/python3 -m venv DIR"),
        ({"python3": "Python 3.9.2", "python3_12": "Python 3.12.1", "python3_10": "3.10.4"}, "/python3.12 -m venv DIR"),
        ({"python3": "Python 3.9.2", "python3_10": "Python 3.10.4", "conda": ""}, "conda create -p DIR python=3.10"),
        ({"python3": "Python 3.9.2"}, "there is no Python 3.10.12 or newer on the PATH"),
    ],
)
def test_the_remedy_for_an_old_python_is_a_command_that_is_there(
    others: dict[str, str], remedy: str, tmp_path: Path
) -> None:
    for name in others:
        program(tmp_path / "bin" / name.replace("_", "."))
    (problem,) = check_launch([planned(tmp_path)], CLUSTER, FakeSlurm(), answer(python="Python 3.9.2", **others))
    assert problem.check == PreflightCheck.PYTHON_VERSION
    assert remedy in problem.remedy
    assert "`virtual_environment: DIR` in the cluster file" in problem.remedy


TORCH = replace(FACTS, python="", virtual_environment=False, modules=("torch",))


def test_a_module_that_is_missing_here_is_told_before_the_launch(tmp_path: Path) -> None:
    job = planned(tmp_path, facts=TORCH, via="local")
    (problem,) = check_launch([job], CLUSTER, None, answer(python="torch\n"))
    assert problem.check == PreflightCheck.PYTHON_MODULES
    assert problem.what == f"llama3.1 25.04 needs torch, and {tmp_path}/venv/bin/python has none"
    assert problem.remedy.startswith(f"{tmp_path}/venv/bin/python -m pip install torch, or PYTHON=")
    assert check_launch([job], CLUSTER, None, answer(python="\n")) == ()
    on_nodes = planned(tmp_path, facts=TORCH)
    assert check_launch([on_nodes], CLUSTER, FakeSlurm(), answer(python="torch\n")) == ()


def test_modules_are_looked_for_by_the_python_that_the_job_is_told(tmp_path: Path) -> None:
    facts = replace(TORCH, modules=("json", "no_such_module"))
    job = planned(tmp_path, facts=facts, via="local", environment={"PYTHON": sys.executable})
    (problem,) = check_launch([job], CLUSTER, None)
    assert problem.what == f"llama3.1 25.04 needs no_such_module, and {sys.executable} has none"


def test_llmb_run_brings_its_own_python_and_needs_its_configuration(tmp_path: Path) -> None:
    job = without(planned(tmp_path, via="llmb-run", command=("llmb-run", "single")), "VIRTUAL_ENV")
    (line,) = found(job)
    assert "llmb-run needs its cluster_config.yaml" in line
    (tmp_path / "recipe/cluster_config.yaml").write_text("")
    assert found(job) == []


# --- folders ----------------------------------------------------------------------------------------------


def test_the_stage_folder_of_other_recipes_is_none_of_this_ones_business(tmp_path: Path) -> None:
    facts = replace(FACTS, forbidden=())
    assert found(planned(tmp_path, facts=facts, environment={"LLMB_INSTALL": "/nowhere"})) == []


def test_a_recipe_in_a_stage_folder_that_is_not_there_is_one_problem(tmp_path: Path) -> None:
    job = planned(tmp_path)
    shutil.rmtree(tmp_path / "stage")
    (line,) = found(replace(job, spec=replace(job.spec, directory=tmp_path / "stage")))
    assert "STAGE_PATH=" in line


def test_a_folder_that_may_not_be_entered_is_a_problem_and_no_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    job = planned(tmp_path)
    monkeypatch.setattr(Path, "is_file", refused)
    lines = found(job)
    assert (
        f"{tmp_path}/recipe/launch.sh: Permission denied | ask the owner of its folder for the permission" in lines[0]
    )


def test_a_script_that_setup_copies_into_the_stage_folder_is_missed_with_that_advice(tmp_path: Path) -> None:
    job = planned(tmp_path)
    (line,) = found(replace(job, spec=replace(job.spec, directory=tmp_path / "stage")))
    assert "| run `llmbench setup llama3.1 --release 25.04`, or set `folder` of llama3.1-25.04" in line


def test_a_recipe_of_which_nothing_says_where_it_is_names_no_folder_of_ours(tmp_path: Path) -> None:
    job = planned(tmp_path, facts=replace(FACTS, file=tmp_path / "recipe" / "25.04.yaml"))
    (tmp_path / "recipe" / "launch.sh").unlink()
    (line,) = found(job)
    assert line.startswith("nothing says where llama3.1 25.04 is: no folder with its launch.sh | set `folder`")
    assert "--llmb-recipe=llama3.1-25.04=DIR" in line


# --- Slurm ------------------------------------------------------------------------------------------------


def sbatch(folder: Path, *options: str, script: str = "#!/bin/bash\n") -> PlannedJob:
    job = planned(folder, via="sbatch", command=("sbatch", "-p", "batch", *options, "./launch.sh"))
    program(folder / "recipe/launch.sh", script)
    return without(job, "SBATCH_GPUS_PER_NODE")


@pytest.mark.parametrize(
    ("options", "script"),
    [
        (("--gres=gpu:8",), ""),
        (("--gres", "gpu:h100:8"), ""),
        (("--gpus=16",), ""),
        (("-G16",), ""),
        (("--gpus-per-node=8",), ""),
        ((), "#SBATCH --gres=gpu:8"),
        ((), "#SBATCH --exclusive --gpus-per-node 8 # all of them"),
        (("--gres=nvme:1,gpu:8(S:0-1)",), ""),
    ],
)
def test_gpus_may_be_asked_for_in_many_ways(options: tuple[str, ...], script: str, tmp_path: Path) -> None:
    assert found(sbatch(tmp_path, *options, script=f"#!/bin/bash\n{script}\n")) == []


@pytest.mark.parametrize("options", [(), ("--gres=nvme:1",), ("--gres=none",), ("--exclusive",), ("-G", "0")])
def test_a_job_that_asks_for_no_gpus_is_told_to_set_gres(options: tuple[str, ...], tmp_path: Path) -> None:
    """An exclusive job has them, but its steps do not: seen on Slurm 22.05."""
    (line,) = found(sbatch(tmp_path, *options))
    assert "set `gres: gpu:8` in the cluster file; 'GPUs not found' and 'without GPU resources'" in line


def test_a_job_for_the_cpu_has_to_ask_for_no_gpus(tmp_path: Path) -> None:
    job = sbatch(tmp_path)
    assert found(replace(job, spec=replace(job.spec, key=replace(job.spec.key, gpu="cpu")))) == []


def test_only_options_of_sbatch_itself_count(tmp_path: Path) -> None:
    """llmb-run has a -p of its own, and what follows a script belongs to the script."""
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe/cluster_config.yaml").write_text("")
    assert found(planned(tmp_path, via="llmb-run", command=("llmb-run", "single", "-p", "--gres=gpu:99"))) == []
    job = sbatch(tmp_path, "--gres=gpu:8")
    job = replace(job, spec=replace(job.spec, command=(*job.spec.command, "--gres=gpu:99")))
    assert found(job) == []
    job = replace(job, spec=replace(job.spec, command=("sbatch", "-N", "2", "./launch.sh", "--gres=gpu:8")))
    assert "asks for none" in found(job)[0]


def test_a_script_that_asks_for_its_gpus_by_itself_is_left_alone(tmp_path: Path) -> None:
    job = without(planned(tmp_path), "SBATCH_GPUS_PER_NODE")
    assert len(found(job)) == 1
    assert found(replace(job, facts=replace(FACTS, optional=()))) == []


def test_a_cluster_without_gres_must_not_be_asked_for_gpus(tmp_path: Path) -> None:
    without_gres = FakeSlurm(part(gpus=0))
    (line,) = found(sbatch(tmp_path, "--gres=gpu:8"), without_gres)
    assert "has no GPUs configured (gres), and the job asks for gpu:8 | leave `gres`" in line
    assert found(sbatch(tmp_path), without_gres) == []


@pytest.mark.parametrize(
    ("options", "script", "fits"),
    [
        (("--time=10",), "", True),
        (("-t", "10:00"), "", True),
        (("--time=00:10:01",), "", False),
        (("-t11",), "", False),
        (("--time=1-00:00:00",), "", False),
        ((), "#SBATCH --time=0:30:00", False),
        ((), "", True),
    ],
)
def test_a_time_limit_above_the_partitions_never_starts(
    options: tuple[str, ...], script: str, fits: bool, tmp_path: Path
) -> None:
    job = sbatch(tmp_path, "--gres=gpu:8", *options, script=f"#!/bin/bash\n{script}\n")
    lines = found(job, FakeSlurm(part(limit=600)))
    assert (lines == []) is fits
    assert all("gives a job at most 10 minutes" in line for line in lines)
    assert found(job, FakeSlurm(part(limit=None))) == []


def test_a_partition_that_is_down_is_told(tmp_path: Path) -> None:
    (line,) = found(planned(tmp_path), FakeSlurm(part(up=False)))
    assert "partition 'batch' takes no jobs: it is down" in line


def test_without_a_partition_the_best_one_counts(tmp_path: Path) -> None:
    job = replace(
        sbatch(tmp_path), spec=replace(sbatch(tmp_path).spec, command=("sbatch", "--gres=gpu:8", "launch.sh"))
    )
    assert found(job, FakeSlurm(part("tiny", 1), part("large", 100))) == []
    (line,) = found(job, FakeSlurm(part("tiny", 1)))
    assert "partition 'tiny' has 1 nodes" in line


def test_without_accounting_an_account_is_not_doubted(tmp_path: Path) -> None:
    job = with_(planned(tmp_path), SBATCH_ACCOUNT="anything")
    assert found(job, FakeSlurm(accounts=None)) == []


def test_a_slurm_that_is_away_is_one_problem(tmp_path: Path) -> None:
    (line,) = found(planned(tmp_path), FakeSlurm(away=True))
    assert "Slurm does not answer: sinfo: error: no host; sinfo: fatal: no configuration | look at `sinfo`" in line


def test_a_machine_without_slurm_is_told_once_and_a_local_job_does_not_care(tmp_path: Path) -> None:
    jobs = [planned(tmp_path, gpus) for gpus in (8, 16)]
    (problem,) = check_launch(jobs, CLUSTER, None, machine())
    assert problem.what == "there is no Slurm on this machine: no sbatch on the job's PATH"
    assert len(problem.cases) == 2
    assert check_launch([planned(tmp_path, via="local")], CLUSTER, None, machine()) == ()


# --- checkpoints ------------------------------------------------------------------------------------------


def test_checkpoints_have_to_fit_together_on_the_disk(tmp_path: Path) -> None:
    jobs = [planned(tmp_path, gpus, purpose=Purpose.SAVE_CHECKPOINT) for gpus in (16, 32)]
    assert check_launch(jobs, CLUSTER, FakeSlurm(), machine(free=210 * 10**9)) == ()
    (problem,) = check_launch(jobs, CLUSTER, FakeSlurm(), machine(free=209 * 10**9))
    assert problem.what == f"the checkpoints need 210 GB, and {tmp_path}/stage has 209 GB free"
    assert problem.cases[0] == "llama3.1_8b-25.04-h100-bf16-16 (105 GB)"
    measured = [planned(tmp_path)]
    assert check_launch(measured, CLUSTER, FakeSlurm(), machine(free=0)) == ()


def test_a_checkpoint_has_to_lie_below_the_stage_folder(tmp_path: Path) -> None:
    inside, outside = tmp_path / "stage/step50", tmp_path / "step50"
    for folder in (inside, outside):
        (folder / "weights").mkdir(parents=True, exist_ok=True)
        (folder / "weights/__0_0.distcp").write_text("")
    job = planned(tmp_path, purpose=Purpose.LOAD_CHECKPOINT)
    assert found(with_(job, LOAD_CHECKPOINT_PATH=str(inside))) == []
    (line,) = found(with_(job, LOAD_CHECKPOINT_PATH=str(outside)))
    assert f"it has to lie below {tmp_path}/stage" in line


# --- the text ---------------------------------------------------------------------------------------------


def test_one_problem_of_many_configurations_is_one_entry_and_slurm_is_asked_once(tmp_path: Path) -> None:
    jobs = [planned(tmp_path, 8 * count) for count in range(1, 27)]
    (tmp_path / "stage/nemo.sqsh").unlink()
    slurm, python = FakeSlurm(part(nodes=20)), Python()
    problems = check_launch(jobs, CLUSTER, slurm, replace(machine(), run=python))
    assert [len(problem.cases) for problem in problems] == [26, 6]
    assert problems[1].cases[0] == "llama3.1_8b-25.04-h100-bf16-168 (21 nodes)"
    assert slurm.asked == 1
    assert len(python.asked) == 1
    text = " ".join(describe_problems(problems).split())
    assert "26 configurations: llama3.1_8b-25.04-h100-bf16-8," in text
    assert "and 21 more" in text


def test_the_text_fits_and_holds_no_secret(tmp_path: Path) -> None:
    job = planned(tmp_path, environment={"SBATCH_PARTITION": "nowhere", "LLMB_INSTALL": "x"})
    shutil.rmtree(tmp_path / "stage")
    text = describe_problems(check_launch([job], CLUSTER, FakeSlurm(), machine()))
    assert text.startswith("3 problems to solve first:\n 1. [forbidden-variables] LLMB_INSTALL must not be set")
    assert "hf_secretvalue" not in text
    long = [line for line in text.splitlines() if len(line) > 79]
    assert all(str(tmp_path) in line for line in long)


def test_golden_text() -> None:
    problem = LaunchProblem(
        "no container image a.sqsh in /stage and /stage/images", "run `llmbench setup a --release 1`", ("a",)
    )
    text = (
        "1 problem to solve first:\n"
        " 1. {}no container image a.sqsh in /stage and /stage/images\n"
        "      1 configuration: a\n"
        "      do: run `llmbench setup a --release 1`"
    )
    assert describe_problems([problem]) == text.format("")
    named = describe_problems([replace(problem, check=PreflightCheck.IMAGE)])
    assert named == text.format("[image] ") + "\noverrule what is no problem here: --llmb-ignore=image"
    assert describe_problems([replace(problem, check=PreflightCheck.SLURM)]) == text.format("[slurm] ")
    assert describe_problems([]) == ""


def test_a_free_disk_is_read_from_the_machine(tmp_path: Path) -> None:
    assert LocalMachine().free_bytes(tmp_path) > 0


def test_facts_without_needs_are_no_problem(tmp_path: Path) -> None:
    facts = replace(FACTS, required=(), forbidden=(), image="", needs_token=False, python="", virtual_environment=False)
    assert found(planned(tmp_path, facts=facts, via="local", environment={"HF_TOKEN": ""})) == []
