"""Building a job from its recipe: command, folder, environment and log."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.shipped_specs import CALLER, CLUSTER, baseline, facts, spec

from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.job_records import (
    Cluster,
    Command,
    InstalledRecipe,
    JobSpec,
    LaunchFacts,
    Purpose,
)
from pytest_llmbench.launch.plan.job_spec import (
    IMAGE,
    build_job,
    find_container_image,
    list_missing,
)

STAGE = Path("/lustre/stage")


def environment(spec: JobSpec) -> dict[str, str]:
    return dict(spec.environment)


@pytest.mark.parametrize(
    ("name", "ending", "launcher", "command", "directory"),
    [
        (
            "grok1/24.11",
            "fp8-256",
            "",
            "sbatch --gres=gpu:8 -A acct -p batch -N 32 ./launch.sh",
            "/lustre/stage",
        ),
        (
            "nemotron4/25.01",
            "fp8-128",
            "",
            "sbatch --gres=gpu:8 -A acct -p batch -N 16 /lustre/stage/launch.sh",
            "/lustre/stage",
        ),
        (
            "grok1/25.05",
            "h100-fp8-512",
            "script",
            "./launch.sh",
            "/lustre/recipes/grok1",
        ),
        (
            "grok1/25.05",
            "h100-fp8-512",
            "",
            "llmb-run single -w pretrain_grok1 -s 314b --dtype fp8 --scale 512",
            "/lustre/llmb",
        ),
    ],
)
def test_command_equals_that_of_the_document(
    name: str, ending: str, launcher: str, command: str, directory: str
) -> None:
    job = spec(name, ending, launcher=launcher)
    assert " ".join(job.command) == command
    assert job.directory == Path(directory)
    assert job.via == (launcher or facts(name).kind)


@pytest.mark.parametrize(
    ("name", "ending", "launcher", "launcher_variables"),
    [
        (
            "grok1/24.11",
            "fp8-256",
            "",
            {
                "DTYPE": "fp8",
                "STAGE_PATH": "/lustre/stage",
                "SLURM_ACCOUNT": "acct",
                "SLURM_PARTITION": "batch",
                "SLURM_GPUS_PER_NODE": "8",
            },
        ),
        (
            "llama3.1/25.04",
            "70b-25.04-h100-bf16-64",
            "",
            {
                "DTYPE": "bf16",
                "MODEL_SIZE": "70b",
                "JOB_TOTAL_GPUS": "64",
                "GPUS_PER_NODE": "8",
                "STAGE_PATH": "/lustre/stage",
                "HF_TOKEN": "hf_very_secret",
                "SBATCH_ACCOUNT": "acct",
                "SBATCH_PARTITION": "batch",
                "SBATCH_GPUS_PER_NODE": "8",
                "COLUMNS": "400",
            },
        ),
        (
            "grok1/25.05",
            "h100-fp8-512",
            "script",
            {
                "DTYPE": "fp8",
                "MODEL_SIZE": "314b",
                "JOB_TOTAL_GPUS": "512",
                "GPU_TYPE": "h100",
                "LLMB_INSTALL": "/lustre/llmb",
                "LLMB_REPO": "/lustre/recipes",
                "LLMB_WORKLOAD": "/lustre/llmb/workloads/pretrain_grok1",
                "HF_TOKEN": "hf_very_secret",
                "SBATCH_ACCOUNT": "acct",
                "SBATCH_PARTITION": "batch",
                "SBATCH_GPUS_PER_NODE": "8",
                "COLUMNS": "400",
            },
        ),
    ],
)
def test_environment_is_exactly_that_of_the_document(
    name: str, ending: str, launcher: str, launcher_variables: dict[str, str]
) -> None:
    """In particular without LD_PRELOAD, SLURM_JOB_ID and a forbidden STAGE_PATH of the
    caller."""
    common = {"PATH": "/usr/bin:/bin", "HOME": "/home/user"}
    assert environment(spec(name, ending, launcher=launcher)) == {
        **common,
        **launcher_variables,
    }


def test_forbidden_variable_of_the_cluster_file_is_removed() -> None:
    cluster = replace(CLUSTER, environment=(("STAGE_PATH", "/lustre/old"),))
    assert (
        environment(spec("grok1/24.11", "fp8-256", cluster))["STAGE_PATH"]
        == "/lustre/old"
    )
    assert "STAGE_PATH" not in environment(spec("grok1/25.05", "h100-fp8-512", cluster))


def test_later_setting_of_a_variable_takes_precedence() -> None:
    """The cluster file overrides the caller, the installed recipe the cluster, the
    configuration all."""
    installed = InstalledRecipe(
        "grok1", "24.11", environment=(("B", "recipe"), ("DTYPE", "bf16"))
    )
    cluster = replace(
        CLUSTER,
        environment=(
            ("STAGE_PATH", "/cluster"),
            ("B", "cluster"),
            ("C", "cluster"),
            ("DTYPE", "fp32"),
        ),
        installed=(installed,),
    )
    job = spec("grok1/24.11", "fp8-256", cluster, variables=(("C", "purpose"),))
    variables = environment(job)
    assert (
        variables["STAGE_PATH"],
        variables["B"],
        variables["C"],
        variables["DTYPE"],
    ) == (
        "/cluster",
        "recipe",
        "purpose",
        "fp8",
    )


SWITCHES = [
    "ENABLE_PROFILE",
    "ENABLE_NCCLTRACE",
    "DISABLE_PERFRUN",
    "ENABLE_CHECKPOINT",
    "LOAD_CHECKPOINT_PATH",
]


@pytest.mark.parametrize("name", SWITCHES)
def test_run_is_never_profiled_or_traced_by_accident(name: str) -> None:
    """A profiled run must not be judged for its speed: only the job's purpose enables
    profiles."""
    cluster = replace(CLUSTER, environment=((name, "true"),))
    caller = {**CALLER, name: "true"}
    assert name not in environment(
        spec("llama3.1/25.04", "8b-25.04-h100-bf16-16", cluster, caller=caller)
    )
    job = spec(
        "llama3.1/25.04",
        "8b-25.04-h100-bf16-16",
        cluster,
        purpose=Purpose.PROFILE,
        variables=((name, "asked"),),
    )
    assert environment(job)[name] == "asked"
    assert job.purpose is Purpose.PROFILE


def test_null_gpus_per_node_in_the_llmb_run_file_is_ignored() -> None:
    """srun reads SLURM_GPUS_PER_NODE=null as a request for GPUs, and refuses every
    step."""
    caller = {**CALLER, "SLURM_GPUS_PER_NODE": "null"}
    without = replace(CLUSTER, gres="")
    assert "SLURM_GPUS_PER_NODE" not in environment(
        spec("grok1/24.11", "fp8-256", without, caller=caller)
    )
    assert (
        environment(spec("grok1/24.11", "fp8-256", caller=caller))[
            "SLURM_GPUS_PER_NODE"
        ]
        == "8"
    )


def test_command_leaves_out_account_and_partition_that_nobody_named() -> None:
    assert spec("grok1/24.11", "fp8-8", Cluster(gpu="h100")).command == (
        "sbatch",
        "-N",
        "1",
        "./launch.sh",
    )
    joined = own_command(
        "sbatch --account={account} -p {partition} -N {nodes} ./launch.sh"
    )
    job = build_job(
        baseline("grok1/24.11", "fp8-8"),
        joined,
        Cluster(gpu="h100", partition="p q"),
        caller=CALLER,
    )
    assert job.command == ("sbatch", "-p", "p q", "-N", "1", "./launch.sh")


def test_account_and_partition_of_the_callers_environment_are_used() -> None:
    caller = {**CALLER, "SLURM_ACCOUNT": "mine", "SLURM_PARTITION": "other"}
    job = spec("grok1/24.11", "fp8-8", Cluster(gpu="h100"), caller=caller)
    assert job.command == (
        "sbatch",
        "-A",
        "mine",
        "-p",
        "other",
        "-N",
        "1",
        "./launch.sh",
    )


def test_time_limit_is_passed_to_sbatch() -> None:
    cluster = replace(CLUSTER, time_limit="00:30:00")
    assert spec("grok1/24.11", "fp8-8", cluster).command[:3] == (
        "sbatch",
        "--gres=gpu:8",
        "--time=00:30:00",
    )
    assert (
        environment(spec("grok1/25.05", "h100-fp8-512", cluster))["TIME_LIMIT"]
        == "00:30:00"
    ), "launch.sh reads it"


def test_launcher_unknown_to_the_recipe_is_refused() -> None:
    with pytest.raises(
        LaunchError,
        match=r"--llmb-launcher=scrpt: .*did you mean 'script'\?.*llmb-run, script",
    ):
        spec("grok1/25.05", "h100-fp8-512", launcher="scrpt")
    with pytest.raises(
        LaunchError, match="launcher 'sbatch': the recipe has no such launcher"
    ):
        spec("grok1/25.05", "h100-fp8-512", replace(CLUSTER, launcher="sbatch"))


def test_installed_recipe_sets_folder_launcher_and_environment(tmp_path: Path) -> None:
    installed = InstalledRecipe(
        "grok1", "25.05", Path("${RECIPES}/grok1"), "script", (), tmp_path
    )
    job = spec(
        "grok1/25.05",
        "h100-fp8-512",
        replace(CLUSTER, installed=(installed,)),
        caller={**CALLER, "RECIPES": "/my recipes"},
    )
    assert (job.via, job.directory) == ("script", Path("/my recipes/grok1"))
    assert environment(job)["VIRTUAL_ENV"] == str(tmp_path)
    assert environment(job)["PATH"] == f"{tmp_path}/bin:/usr/bin:/bin"
    (tmp_path / "conda-meta").mkdir()
    conda = environment(
        spec(
            "grok1/25.05",
            "h100-fp8-512",
            replace(CLUSTER, installed=(replace(installed, folder=None),)),
        )
    )
    assert conda["CONDA_PREFIX"] == str(tmp_path)


def test_llmb_run_starts_in_its_installation_folder() -> None:
    installed = InstalledRecipe("grok1", "25.05", Path("/lustre/recipes/grok1"))
    assert spec(
        "grok1/25.05", "h100-fp8-512", replace(CLUSTER, installed=(installed,))
    ).directory == Path("/lustre/llmb")


def test_custom_recipe_runs_in_its_files_folder(tmp_path: Path) -> None:
    custom_facts = replace(
        own_command("./launch.sh", "local"), file=tmp_path / "mine.yaml"
    )
    job = build_job(
        baseline("grok1/24.11", "fp8-8"),
        custom_facts,
        Cluster(gpu="h100"),
        caller=CALLER,
    )
    assert (job.via, job.directory) == ("local", tmp_path)


def test_virtual_environment_is_passed_if_required() -> None:
    caller = {**CALLER, "VIRTUAL_ENV": "/venv"}
    assert (
        environment(spec("llama3.1/25.04", "8b-25.04-h100-bf16-8", caller=caller))[
            "VIRTUAL_ENV"
        ]
        == "/venv"
    )
    assert "VIRTUAL_ENV" not in environment(spec("grok1/24.11", "fp8-8", caller=caller))


def test_visible_devices_are_passed_to_local_jobs_only() -> None:
    caller = {**CALLER, "CUDA_VISIBLE_DEVICES": "3"}
    local = build_job(
        baseline("grok1/24.11", "fp8-8"),
        own_command("./launch.sh", "local"),
        Cluster(gpu="h100"),
        caller=caller,
    )
    assert environment(local)["CUDA_VISIBLE_DEVICES"] == "3"
    assert local.gpus_per_node == 0, (
        "it is charged for its own GPUs, not for those of whole nodes"
    )
    assert "CUDA_VISIBLE_DEVICES" not in environment(
        spec("grok1/24.11", "fp8-8", caller=caller)
    )


# --- logs -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "ending", "purpose", "folders"),
    [
        (
            "grok1/24.11",
            "fp8-256",
            Purpose.MEASURE,
            [STAGE / "results/24.11/fp8/314b/256"],
        ),
        (
            "nemotron4/25.01",
            "fp8-128",
            Purpose.NCCL_TRACE,
            [
                STAGE / "results/25.01-nccl-trace/fp8/340b/128",
                STAGE / "results/25.01/fp8/340b/128",
            ],
        ),
        (
            "llama3.1/25.04",
            "8b-25.04-h100-bf16-8",
            Purpose.MEASURE,
            [STAGE / "experiments"],
        ),
        (
            "grok1/25.05",
            "h100-fp8-512",
            Purpose.NCCL_TRACE,
            [Path("/lustre/llmb/workloads/pretrain_grok1/experiments")],
        ),
    ],
)
def test_logs_are_expected_in_the_deepest_folder_that_the_document_determines(
    name: str, ending: str, purpose: Purpose, folders: list[Path]
) -> None:
    assert list(spec(name, ending, purpose=purpose).log_folders) == folders


def test_local_job_logs_only_its_output() -> None:
    """A log of Slurm's job 3 in results/ is not the log of the third local job."""
    custom_facts = replace(
        own_command("./launch.sh", "local"), log="results/{dtype}/log_{job}.out"
    )
    assert (
        build_job(
            baseline("grok1/24.11", "fp8-8"),
            custom_facts,
            Cluster(gpu="h100"),
            caller=CALLER,
        ).log_folders
        == ()
    )


# --- values are data ------------------------------------------------------------------

PRINT = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ.get('VALUE'), os.environ.get('STAGE_PATH')]))"


def own_command(command: str, via: str = "sbatch", job_id: str = "") -> LaunchFacts:
    """Return the facts of Grok 1 24.11 with another command."""
    return replace(
        facts("grok1/24.11"),
        kind="own",
        commands=(Command("own", via, command, job_id=job_id),),
    )


@pytest.mark.slow
@given(
    value=st.text(
        st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=30
    )
)
@example("a b; touch /tmp/x $(touch /tmp/x) `x` 'q\" \n -N 9 {gpus} $STAGE_PATH")
def test_any_text_is_passed_as_one_argument_and_one_variable(value: str) -> None:
    custom_facts = own_command("prog {account} x{stage}y $STAGE_PATH ${VALUE}")
    cluster = Cluster(
        gpu="h100", account=value, environment=(("VALUE", value.replace("${", "$ {")),)
    )
    job = build_job(
        baseline("grok1/24.11", "fp8-8"),
        custom_facts,
        cluster,
        caller={**CALLER, "STAGE_PATH": value},
    )
    assert job.command == (
        "prog",
        value,
        f"x{value}y",
        value,
        value.replace("${", "$ {"),
    )


@pytest.mark.parametrize(
    "value", ["a b; $(touch x) `touch x`", "'\"", "two\nlines", "é"]
)
def test_variable_with_any_text_reaches_a_process_unchanged(
    value: str, tmp_path: Path
) -> None:
    custom_facts = own_command(f"{sys.executable} -c PRINT {{account}} $STAGE_PATH")
    cluster = Cluster(gpu="h100", account=value, environment=(("VALUE", value),))
    job = build_job(
        baseline("grok1/24.11", "fp8-8"),
        custom_facts,
        cluster,
        caller={**CALLER, "STAGE_PATH": value},
    )
    command = [PRINT if word == "PRINT" else word for word in job.command]
    process = subprocess.run(
        command,
        env=environment(job),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(process.stdout) == [[value, value], value, value]
    assert list(tmp_path.iterdir()) == []


def test_impossible_variable_is_refused_without_its_value() -> None:
    with pytest.raises(
        LaunchError, match="the value of HF_TOKEN contains a NUL"
    ) as caught:
        spec(
            "llama3.1/25.04",
            "8b-25.04-h100-bf16-8",
            caller={**CALLER, "HF_TOKEN": "hf_secret\0"},
        )
    assert "hf_secret" not in str(caught.value)
    with pytest.raises(
        LaunchError,
        match="LONG takes 131073 bytes, but a variable can have at most 131072",
    ):
        spec(
            "grok1/24.11",
            "fp8-8",
            replace(CLUSTER, environment=(("LONG", "é" + "x" * 131_065),)),
        )
    assert spec(
        "grok1/24.11", "fp8-8", replace(CLUSTER, environment=(("LONG", "x" * 131_066),))
    )
    with pytest.raises(LaunchError, match="'A B' in cluster is not a variable name"):
        spec("grok1/24.11", "fp8-8", replace(CLUSTER, environment=(("A B", "x"),)))
    with pytest.raises(LaunchError, match="the command contains a NUL"):
        build_job(
            baseline("grok1/24.11", "fp8-8"),
            own_command("sbatch a\0b"),
            CLUSTER,
            caller=CALLER,
        )


def test_unset_reference_is_refused_with_its_key() -> None:
    cluster = replace(
        CLUSTER, environment=(("HF_TOKEN", "${MY_TOKEN}"),), source=Path("cluster.yaml")
    )
    with pytest.raises(
        LaunchError,
        match=r"cluster.yaml: environment: HF_TOKEN refers to \$\{MY_TOKEN\}",
    ):
        spec("grok1/24.11", "fp8-8", cluster)


def test_unreadable_command_is_refused() -> None:
    for command, message in (
        ("sbatch 'x", "No closing quotation"),
        ("run {job}", "{job} is unknown before"),
    ):
        with pytest.raises(
            LaunchError, match=r"grok1/24.11.yaml: launch: commands: own"
        ) as caught:
            build_job(
                baseline("grok1/24.11", "fp8-8"),
                own_command(command),
                CLUSTER,
                caller=CALLER,
            )
        assert message in str(caught.value)


def test_reference_to_an_unset_variable_stays_as_written() -> None:
    """Preflight reports it together with all other missing variables."""
    caller = {name: value for name, value in CALLER.items() if name != "STAGE_PATH"}
    job = spec("maxtext_llama2/24.11", "fp8-256", caller=caller)
    assert job.command[-1] == "$STAGE_PATH/launch.sh"
    assert list_missing(job, facts("maxtext_llama2/24.11")) == ["STAGE_PATH"]


def test_missing_variables_are_listed() -> None:
    job = spec(
        "llama3.1/25.04",
        "8b-25.04-h100-bf16-8",
        Cluster(gpu="h100"),
        caller={"HF_TOKEN": ""},
    )
    assert list_missing(job, facts("llama3.1/25.04")) == [
        "STAGE_PATH",
        "HF_TOKEN",
        "SBATCH_ACCOUNT",
        "SBATCH_PARTITION",
    ]
    assert (
        list_missing(
            spec("llama3.1/25.04", "8b-25.04-h100-bf16-8"), facts("llama3.1/25.04")
        )
        == []
    )


def test_variables_that_carry_secrets_are_secret() -> None:
    cluster = replace(
        CLUSTER,
        environment=(("CARRIER", "x${MY_TOKEN}"), ("QUIET", "y")),
        secrets=("QUIET",),
    )
    job = spec(
        "llama3.1/25.04",
        "8b-25.04-h100-bf16-8",
        cluster,
        caller={**CALLER, "MY_TOKEN": "t"},
    )
    assert job.secrets == ("CARRIER", "HF_TOKEN", "QUIET")


def test_job_excludes_the_nodes_listed_in_the_cluster_file() -> None:
    assert spec(
        "grok1/24.11", "fp8-8", replace(CLUSTER, exclude=("n1", "n2"))
    ).exclude == ("n1", "n2")


def test_job_has_id_experiment_and_gpu_hours() -> None:
    job = spec("grok1/24.11", "fp8-256")
    assert (job.case_id, job.experiment) == (
        "grok1_314b-24.11-h100-fp8-256",
        "pretrain_grok1_314b_fp8_256",
    )
    assert job.gpu_hours == pytest.approx(
        50 * baseline("grok1/24.11", "fp8-256").step_seconds * 256 / 3600
    )
    partial_node = spec("grok1/24.11", "fp8-8", replace(CLUSTER, gpus_per_node=16))
    assert (partial_node.nodes, partial_node.gpus) == (1, 8)
    whole_node = 50 * baseline("grok1/24.11", "fp8-8").step_seconds * 16 / 3600
    assert partial_node.gpu_hours == pytest.approx(whole_node), (
        "nobody else gets the rest of its node"
    )
    custom_facts = own_command("x", "script", job_id=r"id (?P<job>\d+)")
    untimed = replace(baseline("grok1/24.11", "fp8-8"), step_seconds=math.nan)
    job = build_job(untimed, custom_facts, CLUSTER, caller=CALLER)
    assert (job.job_id, job.gpu_hours) == (r"id (?P<job>\d+)", 0.0)


@pytest.mark.parametrize(
    ("value", "secret", "expected"),
    [
        ("/lustre/images/own.sqsh", False, {"container": "/lustre/images/own.sqsh"}),
        ("/lustre/images/own.sqsh", True, {}),
        (" ", False, {}),
        ("a\nb", False, {}),
        ("x" * 300, False, {}),
    ],
)
def test_image_of_the_cluster_file_is_found(
    value: str, secret: bool, expected: dict[str, str]
) -> None:
    cluster = replace(
        CLUSTER, environment=((IMAGE, value),), secrets=(IMAGE,) if secret else ()
    )
    assert find_container_image(spec("grok1/24.11", "fp8-256", cluster)) == expected
    assert find_container_image(spec("grok1/24.11", "fp8-256")) == {}
