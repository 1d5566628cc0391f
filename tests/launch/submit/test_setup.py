"""The setup step of a recipe runs the documented way, is waited for, and leaves nothing behind when it is stopped."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from planned import FACTS, machine, program

from pytest_llmbench.baseline.read import list_shipped_baselines, read_recipes
from pytest_llmbench.cli.setup import SetupOptions, choose_recipe, set_up
from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.models.jobs import Cluster, InstalledRecipe, JobStatus, LaunchFacts, Phase
from pytest_llmbench.launch.preflight.plan import PlannedJob
from pytest_llmbench.launch.submit.setup import SetupHost, build_setup_step, check_setup, run_setup

PLAIN = replace(FACTS, setup="./setup.sh", virtual_environment=False, python="", image="")
CLUSTER = Cluster(account="my account", partition="batch")


def recipe(folder: Path, script: str = "echo done") -> Path:
    """Return a recipe's folder with a setup script."""
    program(folder / "recipe/setup.sh", f"#!/bin/bash\n{script}\n")
    (folder / "stage").mkdir(exist_ok=True)
    return folder / "recipe"


def caller(folder: Path, **others: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "STAGE_PATH": str(folder / "stage"), **others}


def step(
    folder: Path, script: str = "echo done", facts: LaunchFacts = PLAIN, cluster: Cluster = CLUSTER, **others: str
) -> PlannedJob:
    return build_setup_step(facts, cluster, caller(folder, **others), recipe(folder, script))


# --- what it is -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "cluster", "command"),
    [
        ("bash ./setup.sh", CLUSTER, ("bash", "./setup.sh")),
        ("STAGE_PATH={stage} bash setup.sh", CLUSTER, ("bash", "setup.sh")),
        (
            "sbatch -A {account} -p {partition} -N 1 ./setup.sh",
            CLUSTER,
            ("sbatch", "-A", "my account", "-p", "batch", "-N", "1", "./setup.sh"),
        ),
        ("sbatch -A {account} -p {partition} -N 1 ./setup.sh", Cluster(), ("sbatch", "-N", "1", "./setup.sh")),
        (
            "sbatch -A {account} -N 1 ./setup.sh",
            Cluster(account="$(reboot); x", gres="gpu:8"),
            ("sbatch", "--gres=gpu:8", "-A", "$(reboot); x", "-N", "1", "./setup.sh"),
        ),
    ],
)
def test_the_command_is_the_documented_one(
    template: str, cluster: Cluster, command: tuple[str, ...], tmp_path: Path
) -> None:
    built = step(tmp_path, facts=replace(PLAIN, setup=template), cluster=cluster)
    assert built.spec.command == command
    assert dict(built.spec.environment)["STAGE_PATH"] == str(tmp_path / "stage")


def test_the_environment_is_the_callers_with_the_clusters_and_without_what_is_forbidden(tmp_path: Path) -> None:
    installed = InstalledRecipe("llama3.1", "25.04", None, "", (("B", "own"),), tmp_path / "venv")
    cluster = replace(CLUSTER, environment=(("A", "${TOKEN}/x"), ("B", "all")), installed=(installed,))
    built = step(tmp_path, cluster=cluster, TOKEN="t", LLMB_INSTALL="/x", https_proxy="proxy")  # noqa: S106
    environment = dict(built.spec.environment)
    assert "LLMB_INSTALL" not in environment
    assert (environment["A"], environment["B"], environment["https_proxy"]) == ("t/x", "own", "proxy")
    assert environment["PATH"].startswith(f"{tmp_path}/venv/bin:")
    assert environment["SBATCH_ACCOUNT"] == environment["SLURM_ACCOUNT"] == "my account"
    assert "TOKEN" in built.spec.secrets


def test_a_variable_that_the_cluster_file_refers_to_has_to_be_set(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"HF_TOKEN in the cluster file is taken from .*MY_TOKEN.*not set"):
        step(tmp_path, cluster=replace(CLUSTER, environment=(("HF_TOKEN", "${MY_TOKEN}"),)))


def test_the_folder_is_told_or_installed_never_the_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = recipe(tmp_path)
    monkeypatch.chdir(folder)
    with pytest.raises(LaunchError, match="nothing says where that is: give it with --folder=DIR"):
        build_setup_step(PLAIN, CLUSTER, caller(tmp_path))
    with pytest.raises(LaunchError, match=f"there is none in {tmp_path}"):
        build_setup_step(PLAIN, CLUSTER, caller(tmp_path), tmp_path)
    installed = replace(
        CLUSTER, installed=(InstalledRecipe("llama3.1", "25.04", folder), InstalledRecipe("llama3.1", "", tmp_path))
    )
    assert build_setup_step(PLAIN, installed, caller(tmp_path)).spec.directory == folder


def test_a_recipe_without_a_setup_step_has_nothing_to_do(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="has no setup step"):
        step(tmp_path, facts=replace(PLAIN, setup=""))


def test_what_is_in_the_way_is_told_before_anything_runs(tmp_path: Path) -> None:
    assert check_setup(step(tmp_path), machine()) == ""
    text = check_setup(step(tmp_path, facts=replace(PLAIN, python="3.12")), machine())
    assert "llama3.1 25.04 needs a virtual environment of its own" in text
    lacking = build_setup_step(
        replace(PLAIN, setup="sbatch ./setup.sh"), CLUSTER, {"PATH": "/nowhere"}, recipe(tmp_path)
    )
    text = check_setup(lacking, machine())
    assert "STAGE_PATH is not set" in text
    assert "no sbatch on the PATH" in text
    assert "HF_TOKEN" not in text


# --- running it here --------------------------------------------------------------------------------------


class Clock:
    """A time that only goes on while somebody sleeps."""

    def __init__(self) -> None:
        self.time = datetime(2026, 11, 21, tzinfo=UTC)

    def now(self) -> datetime:
        """Return the time."""
        return self.time

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.time += timedelta(seconds=seconds)


def world(folder: Path, told: list[str], **fields: object) -> SetupHost:
    clock = Clock()
    made = SetupHost(told.append, clock.now, clock.sleep, folder / ".llmbench/setup/x.log", 20.0)
    return replace(made, **fields)  # type: ignore[arg-type]


def test_a_good_step_shows_its_output_and_keeps_it_without_secrets(tmp_path: Path) -> None:
    told: list[str] = []
    script = 'echo "token: $HF_TOKEN"; echo err >&2; [ -t 0 ] || echo no input'
    built = step(tmp_path, script, HF_TOKEN="hf_abcdef")  # noqa: S106
    assert run_setup(built, world(tmp_path, told)) == ""
    assert told == ["token: ***", "err", "no input"]
    assert (tmp_path / ".llmbench/setup/x.log").read_text() == "token: ***\nerr\nno input\n"


HARMLESS = """cat <<'END'
ERROR: pip's dependency resolver does not currently take into account all the packages that are installed. \
This behaviour is the source of the following dependency conflicts.
tritonclient 2.51.0 requires urllib3>=2.0.7, but you have urllib3 1.26.20 which is incompatible.
END
"""
OTHER = "echo 'nemo 2.3 requires torch>=2.6, but you have torch 2.5 which is incompatible.'"


def test_a_failed_step_is_told_with_its_last_lines_and_their_file(tmp_path: Path) -> None:
    told: list[str] = []
    script = f"echo first; for i in $(seq 8); do echo line $i; done; {HARMLESS}\nexit 3"
    text = run_setup(step(tmp_path, script), world(tmp_path, told))
    assert text.splitlines() == [
        "setup failed: ./setup.sh ended with exit code 3",
        *(f"  line {number}" for number in range(1, 9)),
        f"all of it: {tmp_path}/.llmbench/setup/x.log",
    ]


@pytest.mark.parametrize(
    ("script", "last"),
    [
        (HARMLESS, "pip's error about tritonclient and urllib3 is a known one and does no harm."),
        (HARMLESS + OTHER, "  nemo 2.3 requires torch>=2.6, but you have torch 2.5 which is incompatible."),
        ("echo fine", "fine"),
    ],
)
def test_the_known_error_of_pip_is_no_failure_and_others_are_named(script: str, last: str, tmp_path: Path) -> None:
    told: list[str] = []
    assert run_setup(step(tmp_path, script), world(tmp_path, told)) == ""
    assert told[-1] == last


def test_the_image_has_to_be_there_afterwards(tmp_path: Path) -> None:
    facts = replace(PLAIN, image="a.sqsh", image_source="nvcr.io/nvidia/nemo:25.02.01")
    assert run_setup(step(tmp_path, "echo x > $STAGE_PATH/a.sqsh", facts), world(tmp_path, [])) == ""
    text = run_setup(step(tmp_path, ": > $STAGE_PATH/a.sqsh", facts), world(tmp_path, []))
    assert "setup failed: it ended well and left no container image a.sqsh in" in text


def test_where_the_image_is_fetched_separately_the_command_is_shown(tmp_path: Path) -> None:
    facts = replace(PLAIN, forbidden=(("STAGE_PATH", "old"),), image="a.sqsh", image_source="nvcr.io/nvidia/nemo:25.04")
    built = step(tmp_path, "echo fine", facts, Cluster(account="a", partition="p"), LLMB_INSTALL=str(tmp_path))
    text = run_setup(built, world(tmp_path, []))
    command = f"enroot import --output {tmp_path}/images/a.sqsh docker://nvcr.io#nvidia/nemo:25.04"
    assert text.endswith(f'  srun --account a --partition p bash -c "{command}"')


def running(folder: Path) -> bool:
    """Whether the child that the step left in the background still runs; a signal takes a moment to arrive."""
    file = Path(f"/proc/{(folder / 'stage/pid').read_text().strip()}/stat")
    for _ in range(50):
        try:
            if file.read_text().rpartition(")")[2].split()[0] == "Z":
                return False
        except OSError:  # it ends while its file is read
            return False
        time.sleep(0.1)
    return True


HANGS = pytest.mark.parametrize(
    "script",
    [
        "sleep 60 & echo $! > $STAGE_PATH/pid; echo started; wait",
        "setsid sleep 60 & echo $! > $STAGE_PATH/pid; echo started; wait",  # it left the session of the step
        "sleep 60 & echo $! > $STAGE_PATH/pid; echo started",  # the step itself has ended
    ],
)


@HANGS
def test_a_step_that_hangs_is_ended_with_its_children(script: str, tmp_path: Path) -> None:
    text = run_setup(step(tmp_path, script), world(tmp_path, [], seconds=0.5))
    assert text.startswith("setup failed: ./setup.sh ran out of time")
    assert not running(tmp_path)


@pytest.mark.slow
@HANGS
def test_stopped_by_hand_it_leaves_nothing_behind(script: str, tmp_path: Path) -> None:
    def interrupt(line: str) -> None:
        time.sleep(0.2)  # until the step has ended, where it does
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_setup(step(tmp_path, script), world(tmp_path, [], tell=interrupt))
    assert not running(tmp_path)


def test_a_function_that_the_caller_exports_reaches_the_step(tmp_path: Path) -> None:
    """Clusters hand on `module` so; a shell between would drop it."""
    told: list[str] = []
    functions = {"BASH_FUNC_module%%": "() { echo module $1; }"}
    assert run_setup(step(tmp_path, "module load enroot", PLAIN, CLUSTER, **functions), world(tmp_path, told)) == ""
    assert told == ["module load"]


def test_a_step_that_cannot_be_started_is_told(tmp_path: Path) -> None:
    built = step(tmp_path)
    (tmp_path / "recipe/setup.sh").write_text("#!/no/such/interpreter\n")
    with pytest.raises(LaunchError, match=r"\./setup.sh in .* cannot be started"):
        run_setup(built, world(tmp_path, []))


# --- as a job of Slurm ------------------------------------------------------------------------------------


class Queue:
    """Slurm, which says these states one after another; None: it does not answer."""

    def __init__(self, *states: str | None, output: Path | None = None) -> None:
        self.states = list(states)
        self.output = output
        self.cancelled: list[str] = []
        self.reason = ""

    def poll(self, jobs: Mapping[str, datetime]) -> Mapping[str, JobStatus]:
        """Return the next state, the last one for ever."""
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if state is None:
            raise LaunchError("Slurm is away")
        if self.output:
            self.output.write_text(self.output.read_text() + f"now {state}\npart" if self.output.exists() else "")
        phase = {"": Phase.UNKNOWN, "PENDING": Phase.WAITING, "RUNNING": Phase.RUNNING}.get(state, Phase.ENDED)
        return {
            number: JobStatus(phase, state, self.reason, exit_code="0:0" if state == "COMPLETED" else "1:0")
            for number in jobs
        }

    def cancel(self, job_ids: Sequence[str]) -> str:
        """Remember what was cancelled."""
        self.cancelled += job_ids
        return ""


def submitted(folder: Path, queue: Queue, told: list[str], **fields: object) -> str:
    program(folder / "bin/sbatch", "#!/bin/sh\necho Submitted batch job 12\n")
    facts = replace(PLAIN, setup="sbatch -N 1 ./setup.sh")
    built = build_setup_step(facts, CLUSTER, caller(folder, PATH=f"{folder}/bin:/bin:/usr/bin"), recipe(folder))
    return run_setup(built, world(folder, told, **{"slurm": queue, "seconds": 3600.0, **fields}))


def test_a_job_is_followed_to_its_end_and_its_output_shown_once(tmp_path: Path) -> None:
    told: list[str] = []
    queue = Queue("", None, "PENDING", "RUNNING", "COMPLETED", output=tmp_path / "recipe/slurm-12.out")
    assert submitted(tmp_path, queue, told) == ""
    assert told[:2] == ["Submitted batch job 12", f"waiting for job 12; its output: {tmp_path}/recipe/slurm-12.out"]
    assert told[2:] == ["now PENDING", "partnow RUNNING", "partnow COMPLETED", "part"]
    assert queue.cancelled == []


@pytest.mark.parametrize("state", ["FAILED", "TIMEOUT", "NODE_FAIL", "CANCELLED", "SOMETHING_NEW"])
def test_a_job_that_did_not_end_well_is_a_failure(state: str, tmp_path: Path) -> None:
    text = submitted(tmp_path, Queue("RUNNING", state), [])
    assert text.startswith("setup failed: job 12: ")
    assert text.endswith(f"all of it: {tmp_path}/recipe/slurm-12.out")


def test_a_job_that_slurm_does_not_know_or_that_takes_for_ever_ends_the_wait(tmp_path: Path) -> None:
    queue = Queue("RUNNING", "")
    assert "Slurm has not known it for 10 minutes" in submitted(tmp_path, queue, [])
    assert queue.cancelled == []
    queue = Queue("PENDING")
    assert "it took longer than 1 h and was cancelled" in submitted(tmp_path, queue, [])
    assert queue.cancelled == ["12"]
    assert "Slurm has not known it" in submitted(tmp_path, Queue(None), [])


def test_a_job_that_never_starts_is_cancelled_with_the_reason(tmp_path: Path) -> None:
    queue = Queue("PENDING")
    queue.reason = "PartitionTimeLimit"
    assert "it will never start and was cancelled (PartitionTimeLimit: " in submitted(tmp_path, queue, [])
    assert queue.cancelled == ["12"]


def test_stopped_by_hand_the_job_is_cancelled(tmp_path: Path) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    queue, told = Queue("PENDING"), []  # type: ignore[var-annotated]
    with pytest.raises(KeyboardInterrupt):
        submitted(tmp_path, queue, told, sleep=interrupt)
    assert queue.cancelled == ["12"]
    assert told[-1] == "cancelling job 12"


# --- the command ------------------------------------------------------------------------------------------

RECIPES = read_recipes(list_shipped_baselines())


@pytest.mark.parametrize(
    ("name", "release", "message"),
    [
        ("grok", "", r"no recipe 'grok' with a setup step \(did you mean 'grok1'\?\): expected grok1, llama3.1,"),
        ("grok1", "25.5", r"--release 25.5: grok1 has 24.11 or 25.05 \(did you mean '25.05'\?\)"),
        ("grok1", "", "grok1 has several releases: give --release, one of 24.11, 25.05"),
    ],
)
def test_the_recipe_has_to_be_known(name: str, release: str, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        choose_recipe(name, release, RECIPES, Cluster())


def test_the_release_is_the_only_one_or_the_installed_one() -> None:
    assert choose_recipe("nemotron4", "", RECIPES, Cluster()).release == "25.01"
    installed = Cluster(installed=(InstalledRecipe("grok1", "25.05"),))
    assert choose_recipe("grok1", "", RECIPES, installed).release == "25.05"
    assert choose_recipe("grok1", "24.11", RECIPES, installed).release == "24.11"


def test_a_dry_run_runs_nothing(tmp_path: Path) -> None:
    recipe(tmp_path, "touch $STAGE_PATH/ran")
    asked = SetupOptions("maxtext_llama2", folder=Path("recipe"), dry_run=True)
    text, is_good = set_up(asked, RECIPES, tmp_path, caller(tmp_path), print)
    stage, image = tmp_path / "stage", "nvidia+jax+maxtext-2024.12.09.sqsh"
    assert text.splitlines() == [
        f"STAGE_PATH={stage}",
        f"cd {tmp_path}/recipe",
        "bash ./setup.sh",
        f"imports docker://ghcr.io#nvidia/jax:maxtext-2024-12-09 to {stage}/{image}",
    ]
    assert is_good
    assert not (tmp_path / "stage/ran").exists()
    assert not (tmp_path / ".llmbench").exists()


def test_a_dry_run_shows_what_it_sets_and_how_the_image_is_fetched(tmp_path: Path) -> None:
    """What the caller has already is left out, and no secret is shown."""
    recipe(tmp_path)
    program(tmp_path / "venv/bin/python", "#!/bin/sh\necho Python 3.12.3\n")
    (tmp_path / "cluster.yaml").write_text(
        "schema: 1\naccount: research\npartition: batch\n"
        f"environment: {{HF_TOKEN: hf_x, LLMB_INSTALL: {tmp_path}/stage}}\n"
        f"installed: {{grok1-25.05: {{folder: {tmp_path}/recipe, virtual_environment: {tmp_path}/venv}}}}\n"
    )
    asked = SetupOptions("grok1", "25.05", dry_run=True)
    text, is_good = set_up(asked, RECIPES, tmp_path, {"PATH": "/usr/bin:/bin", "SLURM_PARTITION": "batch"}, print)
    assert text.splitlines() == [
        "HF_TOKEN=***",
        f"LLMB_INSTALL={tmp_path}/stage",
        f"PATH={tmp_path}/venv/bin:/usr/bin:/bin",
        "SBATCH_ACCOUNT=research",
        "SBATCH_PARTITION=batch",
        "SLURM_ACCOUNT=research",
        f"VIRTUAL_ENV={tmp_path}/venv",
        f"cd {tmp_path}/recipe",
        "./setup.sh",
        "the image is fetched separately:",
        '  srun --account research --partition batch bash -c "enroot import --output '
        f'{tmp_path}/stage/images/nvidia+nemo+25.04.00.sqsh docker://nvcr.io#nvidia/nemo:25.04.00"',
    ]
    assert is_good


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "code"), [("touch x; echo i > $STAGE_PATH/nvidia+jax+maxtext-2024.12.09.sqsh", 0), ("exit 5", 1)]
)
def test_the_command_ends_with_what_comes_next_or_with_the_failure(script: str, code: int, tmp_path: Path) -> None:
    recipe(tmp_path, script)
    command = [sys.executable, "-m", "pytest_llmbench.cli.main", "setup", "maxtext_llama2", "--folder", "recipe"]
    environment = {**os.environ, **caller(tmp_path)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr
    last = done.stdout.splitlines()[-1]
    assert ("Next: pytest -k maxtext_llama2 --llmb-launch --llmb-dry-run" in last) is (code == 0)
    assert last.startswith("all of it: ") is (code == 1)


@pytest.mark.slow
def test_a_command_that_is_ended_by_a_signal_ends_the_step(tmp_path: Path) -> None:
    recipe(tmp_path, "sleep 60 & echo $! > $STAGE_PATH/pid; echo started; wait")
    command = [sys.executable, "-m", "pytest_llmbench.cli.main", "setup", "maxtext_llama2", "--folder", "recipe"]
    environment = {**os.environ, **caller(tmp_path)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any(line == "started\n" for line in process.stdout)
        process.terminate()
        assert process.wait(timeout=30) == 143
    assert not running(tmp_path)


@pytest.mark.slow
def test_an_unknown_recipe_is_a_usage_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest_llmbench.cli.main", "setup", "grok"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "did you mean 'grok1'" in done.stderr
