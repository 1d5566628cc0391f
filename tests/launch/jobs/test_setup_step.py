"""The setup step of a recipe runs as documented, and leaves nothing when stopped."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.fake_schedulers import make_slurm
from support.job_specs import Clock
from support.planned_jobs import FACTS, machine, program

from pytest_llmbench.baseline.read import list_shipped_baselines, read_recipes
from pytest_llmbench.cli.main import main
from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.job_records import (
    Cluster,
    InstalledRecipe,
    JobStatus,
    LaunchFacts,
    Phase,
)
from pytest_llmbench.launch.jobs.setup_step import (
    SetupHost,
    build_setup_step,
    check_setup,
    run_setup,
)
from pytest_llmbench.launch.plan.planned_job import PlannedJob
from pytest_llmbench.tools.setup.setup_command import (
    SetupOptions,
    choose_recipe,
    set_up,
)

PLAIN = replace(
    FACTS, setup="./setup.sh", virtual_environment=False, python="", image=""
)
CLUSTER = Cluster(account="my account", partition="batch")


def recipe(folder: Path, script: str = "echo done") -> Path:
    """Create a recipe's folder with a setup script, and return it."""
    program(folder / "recipe/setup.sh", f"#!/bin/bash\n{script}\n")
    (folder / "stage").mkdir(exist_ok=True)
    return folder / "recipe"


def caller(folder: Path, **variables: str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "STAGE_PATH": str(folder / "stage"),
        **variables,
    }


def step(
    folder: Path,
    script: str = "echo done",
    facts: LaunchFacts = PLAIN,
    cluster: Cluster = CLUSTER,
    **variables: str,
) -> PlannedJob:
    return build_setup_step(
        facts, cluster, caller(folder, **variables), recipe(folder, script)
    )


# --- construction ---------------------------------------------------------------------


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
        (
            "sbatch -A {account} -p {partition} -N 1 ./setup.sh",
            Cluster(),
            ("sbatch", "-N", "1", "./setup.sh"),
        ),
        (
            "sbatch -A {account} -N 1 ./setup.sh",
            Cluster(account="$(reboot); x", gres="gpu:8"),
            ("sbatch", "--gres=gpu:8", "-A", "$(reboot); x", "-N", "1", "./setup.sh"),
        ),
    ],
)
def test_setup_command_is_built_from_the_documented_template(
    template: str, cluster: Cluster, command: tuple[str, ...], tmp_path: Path
) -> None:
    built = step(tmp_path, facts=replace(PLAIN, setup=template), cluster=cluster)
    assert built.spec.command == command
    assert dict(built.spec.environment)["STAGE_PATH"] == str(tmp_path / "stage")


def test_setup_step_gets_the_environment_of_the_caller_and_the_cluster_file(
    tmp_path: Path,
) -> None:
    installed = InstalledRecipe(
        "llama3.1", "25.04", None, "", (("B", "own"),), tmp_path / "venv"
    )
    cluster = replace(
        CLUSTER, environment=(("A", "${TOKEN}/x"), ("B", "all")), installed=(installed,)
    )
    built = step(
        tmp_path,
        cluster=cluster,
        TOKEN="t",  # noqa: S106
        LLMB_INSTALL="/x",
        https_proxy="proxy",
    )
    environment = dict(built.spec.environment)
    assert "LLMB_INSTALL" not in environment
    assert (environment["A"], environment["B"], environment["https_proxy"]) == (
        "t/x",
        "own",
        "proxy",
    )
    assert environment["PATH"].startswith(f"{tmp_path}/venv/bin:")
    assert environment["SBATCH_ACCOUNT"] == environment["SLURM_ACCOUNT"] == "my account"
    assert "TOKEN" in built.spec.secrets


def test_unset_reference_of_the_cluster_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        LaunchError,
        match=r"HF_TOKEN in the cluster file refers to .*MY_TOKEN.*not set",
    ):
        step(
            tmp_path,
            cluster=replace(CLUSTER, environment=(("HF_TOKEN", "${MY_TOKEN}"),)),
        )


def test_setup_never_assumes_the_current_folder_as_the_recipe_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = recipe(tmp_path)
    monkeypatch.chdir(folder)
    with pytest.raises(
        LaunchError, match=r"that folder is unknown\. Pass --folder=DIR"
    ):
        build_setup_step(PLAIN, CLUSTER, caller(tmp_path))
    with pytest.raises(LaunchError, match=f"{tmp_path}"):
        build_setup_step(PLAIN, CLUSTER, caller(tmp_path), tmp_path)
    installed = replace(
        CLUSTER,
        installed=(
            InstalledRecipe("llama3.1", "25.04", folder),
            InstalledRecipe("llama3.1", "", tmp_path),
        ),
    )
    assert build_setup_step(PLAIN, installed, caller(tmp_path)).spec.directory == folder


def test_recipe_without_a_setup_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="has no setup step"):
        step(tmp_path, facts=replace(PLAIN, setup=""))


def test_setup_problems_are_reported_before_any_step_runs(tmp_path: Path) -> None:
    assert check_setup(step(tmp_path), machine()) == ""
    text = check_setup(step(tmp_path, facts=replace(PLAIN, python="3.12")), machine())
    assert "llama3.1 25.04 needs a virtual environment" in text
    lacking = build_setup_step(
        replace(PLAIN, setup="sbatch ./setup.sh"),
        CLUSTER,
        {"PATH": "/nowhere"},
        recipe(tmp_path),
    )
    text = check_setup(lacking, machine())
    assert "STAGE_PATH is not set" in text
    assert "sbatch is not on the PATH" in text
    assert "HF_TOKEN" not in text


# --- local steps ----------------------------------------------------------------------


def world(folder: Path, printed: list[str], **fields: object) -> SetupHost:
    clock = Clock()
    created = SetupHost(
        printed.append, clock.now, clock.sleep, folder / ".llmbench/setup/x.log", 20.0
    )
    return replace(created, **fields)


def test_output_is_shown_and_kept_without_secrets(tmp_path: Path) -> None:
    printed: list[str] = []
    script = 'echo "token: $HF_TOKEN"; echo err >&2; [ -t 0 ] || echo no input'
    built = step(tmp_path, script, HF_TOKEN="hf_abcdef")  # noqa: S106
    assert run_setup(built, world(tmp_path, printed)) == ""
    assert printed == ["token: ***", "err", "no input"]
    assert (
        tmp_path / ".llmbench/setup/x.log"
    ).read_text() == "token: ***\nerr\nno input\n"


HARMLESS = """cat <<'END'
ERROR: pip's dependency resolver does not currently take into account all the packages that are installed. \
This behaviour is the source of the following dependency conflicts.
tritonclient 2.51.0 requires urllib3>=2.0.7, but you have urllib3 1.26.20 which is incompatible.
END
"""
OTHER = (
    "echo 'nemo 2.3 requires torch>=2.6, but you have torch 2.5 which is incompatible.'"
)


def test_failed_step_shows_its_last_lines_and_file(tmp_path: Path) -> None:
    printed: list[str] = []
    script = f"echo first; for i in $(seq 8); do echo line $i; done; {HARMLESS}\nexit 3"
    text = run_setup(step(tmp_path, script), world(tmp_path, printed))
    assert text.splitlines() == [
        "setup failed: ./setup.sh ended with exit code 3",
        *(f"  line {number}" for number in range(1, 9)),
        f"full output: {tmp_path}/.llmbench/setup/x.log",
    ]


@pytest.mark.parametrize(
    ("script", "last"),
    [
        (
            HARMLESS,
            "pip's error about tritonclient and urllib3 is known and harmless.",
        ),
        (
            HARMLESS + OTHER,
            "  nemo 2.3 requires torch>=2.6, but you have torch 2.5 which is incompatible.",
        ),
        ("echo fine", "fine"),
    ],
)
def test_known_pip_error_is_no_failure(script: str, last: str, tmp_path: Path) -> None:
    printed: list[str] = []
    assert run_setup(step(tmp_path, script), world(tmp_path, printed)) == ""
    assert printed[-1] == last


def test_missing_image_after_setup_is_a_failure(tmp_path: Path) -> None:
    facts = replace(PLAIN, image="a.sqsh", image_source="nvcr.io/nvidia/nemo:25.02.01")
    assert (
        run_setup(
            step(tmp_path, "echo x > $STAGE_PATH/a.sqsh", facts), world(tmp_path, [])
        )
        == ""
    )
    text = run_setup(
        step(tmp_path, ": > $STAGE_PATH/a.sqsh", facts), world(tmp_path, [])
    )
    assert (
        "setup failed: the setup step ended without an error, but left no container "
        "image a.sqsh in" in text
    )


def test_setup_script_that_exits_with_124_itself_is_not_reported_as_out_of_time(
    tmp_path: Path,
) -> None:
    """124 is the exit code of timeout(1), which the script itself may call."""
    text = run_setup(step(tmp_path, "exit 124"), world(tmp_path, []))
    assert text.startswith("setup failed: ./setup.sh ended with exit code 124")


def test_setup_shows_the_enroot_command_for_an_image_to_be_fetched_separately(
    tmp_path: Path,
) -> None:
    facts = replace(
        PLAIN,
        forbidden=(("STAGE_PATH", "old"),),
        image="a.sqsh",
        image_source="nvcr.io/nvidia/nemo:25.04",
    )
    built = step(
        tmp_path,
        "echo fine",
        facts,
        Cluster(account="a", partition="p"),
        LLMB_INSTALL=str(tmp_path),
    )
    text = run_setup(built, world(tmp_path, []))
    command = f"enroot import --output {tmp_path}/images/a.sqsh docker://nvcr.io#nvidia/nemo:25.04"
    assert text.endswith(f'  srun --account a --partition p bash -c "{command}"')


def running(folder: Path) -> bool:
    """True if the background child of the step still runs.

    A signal takes a moment to arrive.
    """
    file = Path(f"/proc/{(folder / 'stage/pid').read_text().strip()}/stat")
    for _ in range(50):
        try:
            if file.read_text().rpartition(")")[2].split()[0] == "Z":
                return False
        except OSError:  # the process may end while its file is read
            return False
        time.sleep(0.1)
    return True


WAITS = "sleep 600 & echo $! > $STAGE_PATH/pid; echo started; wait"
LEAVES_ITS_SESSION = f"setsid {WAITS}"
ENDS_BEFORE_ITS_CHILD = WAITS.removesuffix("; wait")


@pytest.mark.parametrize("script", [WAITS, LEAVES_ITS_SESSION, ENDS_BEFORE_ITS_CHILD])
def test_hanging_step_is_ended_with_its_children(script: str, tmp_path: Path) -> None:
    text = run_setup(step(tmp_path, script), world(tmp_path, [], seconds=0.5))
    assert text.startswith("setup failed: ./setup.sh ran out of time")
    assert not running(tmp_path)


@pytest.mark.slow
def test_interrupted_step_leaves_no_process(tmp_path: Path) -> None:
    def interrupt(line: str) -> None:
        time.sleep(0.2)  # until the step has ended, if it ends
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_setup(
            step(tmp_path, ENDS_BEFORE_ITS_CHILD), world(tmp_path, [], tell=interrupt)
        )
    assert not running(tmp_path)


def test_exported_function_reaches_the_step(tmp_path: Path) -> None:
    """Clusters define `module` as an exported function, which an extra shell would
    drop."""
    printed: list[str] = []
    functions = {"BASH_FUNC_module%%": "() { echo module $1; }"}
    assert (
        run_setup(
            step(tmp_path, "module load enroot", PLAIN, CLUSTER, **functions),
            world(tmp_path, printed),
        )
        == ""
    )
    assert printed == ["module load"]


def test_step_that_cannot_start_is_reported(tmp_path: Path) -> None:
    built = step(tmp_path)
    (tmp_path / "recipe/setup.sh").write_text("#!/no/such/interpreter\n")
    with pytest.raises(LaunchError, match=r"cannot start \./setup.sh in "):
        run_setup(built, world(tmp_path, []))


# --- Slurm jobs -----------------------------------------------------------------------


class Queue:
    """A Slurm that reports these states in turn; None: it does not answer."""

    def __init__(self, *states: str | None, output: Path | None = None) -> None:
        self.states = list(states)
        self.output = output
        self.cancelled: list[str] = []
        self.reason = ""

    def poll(self, jobs: Mapping[str, datetime]) -> Mapping[str, JobStatus]:
        """Return the next state, and repeat the last state."""
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if state is None:
            raise LaunchError("Slurm is away")
        if self.output:
            self.output.write_text(
                self.output.read_text() + f"now {state}\npart"
                if self.output.exists()
                else ""
            )
        phase = {
            "": Phase.UNKNOWN,
            "PENDING": Phase.WAITING,
            "RUNNING": Phase.RUNNING,
        }.get(state, Phase.ENDED)
        return {
            number: JobStatus(
                phase,
                state,
                self.reason,
                exit_code="0:0" if state == "COMPLETED" else "1:0",
            )
            for number in jobs
        }

    def cancel(self, job_ids: Sequence[str]) -> str:
        """Record the cancelled jobs."""
        self.cancelled += job_ids
        return ""


def submitted(folder: Path, queue: Queue, printed: list[str], **fields: object) -> str:
    program(folder / "bin/sbatch", "#!/bin/sh\necho Submitted batch job 12\n")
    facts = replace(PLAIN, setup="sbatch -N 1 ./setup.sh")
    built = build_setup_step(
        facts,
        CLUSTER,
        caller(folder, PATH=f"{folder}/bin:/bin:/usr/bin"),
        recipe(folder),
    )
    return run_setup(
        built,
        world(
            folder,
            printed,
            **{"scheduler": make_slurm(queue), "seconds": 3600.0, **fields},
        ),
    )


def test_slurm_job_is_followed_and_its_output_shown(tmp_path: Path) -> None:
    printed: list[str] = []
    queue = Queue(
        "",
        None,
        "PENDING",
        "RUNNING",
        "COMPLETED",
        output=tmp_path / "recipe/slurm-12.out",
    )
    assert submitted(tmp_path, queue, printed) == ""
    assert printed[:2] == [
        "Submitted batch job 12",
        f"waiting for job 12, which writes to {tmp_path}/recipe/slurm-12.out",
    ]
    assert printed[2:] == [
        "now PENDING",
        "partnow RUNNING",
        "partnow COMPLETED",
        "part",
    ]
    assert queue.cancelled == []


@pytest.mark.parametrize("state", ["FAILED", "SOMETHING_NEW"])
def test_job_that_did_not_complete_is_a_failure(state: str, tmp_path: Path) -> None:
    text = submitted(tmp_path, Queue("RUNNING", state), [])
    assert text.startswith("setup failed: job 12: ")
    assert text.endswith(f"full output: {tmp_path}/recipe/slurm-12.out")


def test_setup_stops_waiting_for_an_unknown_or_overlong_slurm_job(
    tmp_path: Path,
) -> None:
    queue = Queue("RUNNING", "")
    assert "Slurm has had no record of it for 10 minutes" in submitted(
        tmp_path, queue, []
    )
    assert queue.cancelled == []
    queue = Queue("PENDING")
    assert "it exceeded the limit of 1 h and was cancelled" in submitted(
        tmp_path, queue, []
    )
    assert queue.cancelled == ["12"]
    assert "Slurm has had no record of it" in submitted(tmp_path, Queue(None), [])


def test_job_that_never_starts_is_cancelled(tmp_path: Path) -> None:
    queue = Queue("PENDING")
    queue.reason = "PartitionTimeLimit"
    assert "it could never start and was cancelled (PartitionTimeLimit: " in submitted(
        tmp_path, queue, []
    )
    assert queue.cancelled == ["12"]


def test_interrupted_wait_cancels_the_job(tmp_path: Path) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    queue, printed = Queue("PENDING"), []  # type: ignore[var-annotated]
    with pytest.raises(KeyboardInterrupt):
        submitted(tmp_path, queue, printed, sleep=interrupt)
    assert queue.cancelled == ["12"]
    assert printed[-1] == "cancelling job 12"


# --- the setup command ----------------------------------------------------------------

RECIPES = read_recipes(list_shipped_baselines())


@pytest.mark.parametrize(
    ("name", "release", "message"),
    [
        (
            "grok",
            "",
            r"no recipe 'grok' with a setup step \(did you mean 'grok1'\?\); expected grok1, llama3.1,",
        ),
        (
            "grok1",
            "25.5",
            r"--release 25.5: grok1 has no such release; expected 24.11 or 25.05 \(did you mean '25.05'\?\)",
        ),
        (
            "grok1",
            "",
            "grok1 has several releases: give --release, one of 24.11, 25.05",
        ),
    ],
)
def test_unknown_recipe_is_refused(name: str, release: str, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        choose_recipe(name, release, RECIPES, Cluster())


def test_setup_uses_the_only_release_or_the_installed_one() -> None:
    assert choose_recipe("nemotron4", "", RECIPES, Cluster()).release == "25.01"
    installed = Cluster(installed=(InstalledRecipe("grok1", "25.05"),))
    assert choose_recipe("grok1", "", RECIPES, installed).release == "25.05"
    assert choose_recipe("grok1", "24.11", RECIPES, installed).release == "24.11"


def test_dry_run_starts_no_process(tmp_path: Path) -> None:
    recipe(tmp_path, "touch $STAGE_PATH/ran")
    options = SetupOptions("maxtext_llama2", folder=Path("recipe"), dry_run=True)
    text, is_good = set_up(options, RECIPES, tmp_path, caller(tmp_path), print)
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


def test_dry_run_shows_variables_and_image_command(tmp_path: Path) -> None:
    """Variables that the caller already has are omitted, and secrets are masked."""
    recipe(tmp_path)
    program(tmp_path / "venv/bin/python", "#!/bin/sh\necho Python 3.12.3\n")
    (tmp_path / "cluster.yaml").write_text(
        "schema: 1\naccount: research\npartition: batch\n"
        f"environment: {{HF_TOKEN: hf_x, LLMB_INSTALL: {tmp_path}/stage}}\n"
        f"installed: {{grok1-25.05: {{folder: {tmp_path}/recipe, virtual_environment: {tmp_path}/venv}}}}\n"
    )
    options = SetupOptions("grok1", "25.05", dry_run=True)
    text, is_good = set_up(
        options,
        RECIPES,
        tmp_path,
        {"PATH": "/usr/bin:/bin", "SLURM_PARTITION": "batch"},
        print,
    )
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
        "fetch the image separately:",
        '  srun --account research --partition batch bash -c "enroot import --output '
        f'{tmp_path}/stage/images/nvidia+nemo+25.04.00.sqsh docker://nvcr.io#nvidia/nemo:25.04.00"',
    ]
    assert is_good


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (
            "touch x; echo i > $STAGE_PATH/nvidia+jax+maxtext-2024.12.09.sqsh",
            (0, "Next: pytest -k maxtext_llama2 --llmb-launch --llmb-dry-run"),
        ),
        ("exit 5", (1, "full output: ")),
    ],
    ids=["done", "failed"],
)
def test_setup_command_prints_the_next_step_or_the_failure_last(
    script: str,
    expected: tuple[int, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe(tmp_path, script)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STAGE_PATH", str(tmp_path / "stage"))
    code = main(["setup", "maxtext_llama2", "--folder", "recipe"])
    assert (code, expected[1] in capsys.readouterr().out.splitlines()[-1]) == (
        expected[0],
        True,
    )


@pytest.mark.slow
def test_terminated_setup_command_leaves_no_process_of_its_step(tmp_path: Path) -> None:
    recipe(tmp_path, WAITS)
    command = [
        sys.executable,
        "-m",
        "pytest_llmbench.cli.main",
        "setup",
        "maxtext_llama2",
        "--folder",
        "recipe",
    ]
    environment = {**os.environ, **caller(tmp_path)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert any(line == "started\n" for line in process.stdout)
        process.terminate()
        assert process.wait(timeout=180) == 143
    assert not running(tmp_path)
