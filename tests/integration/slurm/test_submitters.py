"""Recipes that submit by themselves, and jobs that are not measured.

The output of NeMo-Run and llmb-run is parsed, and the job followed and judged on its
log. Both launchers are stand-ins that print the real lines; the jobs are real.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.clusters import Cluster
from support.fake_recipe import PURPOSED, PURPOSES, WELL, program, write_recipe
from support.forked_sessions import run_session

BLOCK = """#!/bin/bash
# NeMo-Run's report of an experiment: task names, a time in brackets, the folder wrapped at 80 columns
set -eu
if [ "$MODEL_SIZE" = refused ]; then
    echo 'sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified' >&2
    exit 1
fi
folder="$STAGE_PATH/experiments/pretrain_fake_${MODEL_SIZE}_${DTYPE}_$JOB_TOTAL_GPUS/$(printf 'd%.0s' {1..90})/train"
mkdir -p "$folder"
job=$(sbatch --parsable --gres=gpu:8 -N 1 --output="$folder/sbatch_%j.out" ./launch.sh)
ln -s "$STAGE_PATH/results/24.11/$DTYPE/$MODEL_SIZE/$JOB_TOTAL_GPUS/log-nemo_fake_${MODEL_SIZE}_8_$job.out" "$folder/"
cat <<END
────────── Entering Experiment train with id: train_1795213664566197936 ────────
[03:00:01] INFO     Launching job train for experiment train

Experiment Status for train_1795213664566197936

Task 0: train
- Status: SUBMITTED
- Executor: SlurmExecutor on @localhost
- Job id: $job
$(fold -w 80 <<<"- Local Directory: $folder")

# The experiment was run with the following tasks: ['train']
# You can inspect and reconstruct this experiment at a later point in time using:
experiment = run.Experiment.from_id("train_1795213664566197936")
experiment.status() # Gets the overall status
experiment.cancel("train") # Cancels the task by name
END
"""

LLMB_RUN = """#!/bin/bash
# llmb-run SUBCOMMAND -w WORKLOAD -s SIZE --dtype DTYPE --scale GPUS, as of 25.05 (single) and as of 26.06 (submit)
set -eu
[ "$1" = SUBCOMMAND ] || { echo "invalid choice: '$1'"; exit 2; }
[ "$2" != --help ] || exit 0
export MODEL_SIZE=$5 DTYPE=$7 JOB_TOTAL_GPUS=$9 STAGE_PATH=$LLMB_INSTALL
told() { printf '%s%-30s %-12s %-12s %-15s %s\\n' "$1" "$2" "dtype=$DTYPE" "scale=$JOB_TOTAL_GPUS" profile=False "$3"; }
if [ "$MODEL_SIZE" = refused ]; then
    told 'ERROR: ERROR: ' "$3_$MODEL_SIZE" 'launch failed with return code 1'
    [ "$1" = submit ] && exit 2 || exit 0
fi
experiment=pretrain_fake_${MODEL_SIZE}_${DTYPE}_$JOB_TOTAL_GPUS
folder=$LLMB_INSTALL/workloads/$3/experiments/$experiment/${experiment}_1795213664/$experiment
mkdir -p "$folder"
export FOLDER=$folder
job=$(sbatch --parsable --gres=gpu:8 --output="$folder/log-acct.${experiment}_%j_0.out" "$LLMB_INSTALL/job.sh")
if [ "$1" = single ]; then
    told 'LAUNCHED: ' "$3_$MODEL_SIZE" "jobid=$job"
    echo "JobID: $job, Workdir: $folder"
else
    told 'SUBMITTED: ' "$3_$MODEL_SIZE" "proxy=False  jobid=$job workdir=$folder"
fi
"""

TASKS = """#!/bin/bash
# as Llama 3.1 25.04: the job of a run, and one for its profile or trace; DISABLE_PERFRUN skips the first
set -eu
experiment=pretrain_fake_${MODEL_SIZE}_${DTYPE}_$JOB_TOTAL_GPUS
number=0
submit() {  # submit TASK
    export FOLDER="$STAGE_PATH/experiments/$experiment/${experiment}_1795213664/$1"
    mkdir -p "$FOLDER"
    job=$(sbatch --parsable --gres=gpu:8 -N 1 --output="$FOLDER/log-acct.$1_%j_0.out" ./launch.sh)
    echo "$1" >>"$STAGE_PATH/tasks"
    printf 'Task %s: %s\\n- Status: SUBMITTED\\n- Job id: %s\\n- Local Directory: %s\\n' $number "$1" "$job" "$FOLDER"
    number=$((number + 1))
}
[ "${DISABLE_PERFRUN-}" = true ] || submit $experiment
[ "${ENABLE_PROFILE-}" != true ] || submit ${experiment}_nsys
[ "${ENABLE_NCCL_TRACE-}" != true ] || submit ${experiment}_nccltrace
"""

OLD = """launcher: {{llmb_repo: "{0}", llmb_install: "{0}", gpu_type: h100}}
slurm: {{gpu_partition: batch, gpu_gres: 8}}
"""
NEW = """schema_version: 2
llmb_repo: "{0}"
llmb_install: "{0}"
gpu_type: h100
slurm: {{gpu: {{partition: batch, gres: 8}}}}
"""
WORKLOADS = (
    "environment: {HF_TOKEN: hf_53cr3t}\nworkloads: {installed: [pretrain_fake]}\n"
)


def run(folder: Path, cluster: Cluster, *arguments: str) -> tuple[int, str]:
    """Run pytest in a folder, with the programs of its `bin`; return exit code and
    output."""
    path = os.pathsep.join((str(folder / "bin"), os.environ["PATH"]))
    environment = {**os.environ, **cluster.environment, "COLUMNS": "80", "PATH": path}
    options = (
        "-p",
        "no:cacheprovider",
        "-k",
        "fake",
        "--llmb-launch",
        *arguments,
        "--junitxml=junit.xml",
    )
    return run_session(folder, environment, *options)


def outcomes(folder: Path) -> dict[str, str]:
    """Return the reason by size, from the JUnit report."""
    results = {}
    for case in ElementTree.parse(folder / "junit.xml").iter("testcase"):  # noqa: S314 (our own file)
        if "fake_" not in str(case.get("name")):
            continue
        told: Mapping[str | None, str | None] = {
            entry.get("name"): entry.get("value") for entry in case.iter("property")
        }
        results[str(case.get("name")).partition("fake_")[2].partition("-")[0]] = str(
            told["reason"]
        )
    return results


BEHAVIOURS = {
    "8b": WELL,
    "9b": "echo 'RuntimeError: no such layer'; exit 3",
    "refused": WELL,
}
EXPECTED = {"8b": "within-tolerance", "9b": "job-failed", "refused": "not-submitted"}


@pytest.mark.slow
def test_job_id_is_parsed_from_the_block_that_nemo_run_prints(
    tmp_path: Path, cluster: Cluster
) -> None:
    write_recipe(tmp_path, BEHAVIOURS, kind="script")
    program(tmp_path / "recipe" / "submit.sh", BLOCK)
    code, output = run(tmp_path, cluster)
    assert code == 1
    assert outcomes(tmp_path) == EXPECTED, output
    assert "no such layer" in output
    assert "Invalid account" in " ".join(output.split())
    assert "\\n" not in output  # the output of the submission is quoted in one line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "task", "reason"),
    [
        ("", "", "within-tolerance"),
        ("--llmb-profile", "_nsys", "not-judged"),
        ("--llmb-nccl-trace", "_nccltrace", "not-judged"),
    ],
)
def test_only_the_requested_task_of_several_launch_tasks_is_submitted(
    tmp_path: Path, cluster: Cluster, option: str, task: str, reason: str
) -> None:
    """The launch script would also submit the job of a profile, which was not
    requested."""
    alone = PURPOSES.replace(
        '"true"}\n    start', '"true", DISABLE_PERFRUN: "true"}\n    start'
    )
    alone = alone.replace(
        'ENABLE_NCCL_TRACE: "true"}',
        'ENABLE_NCCL_TRACE: "true", DISABLE_PERFRUN: "true"}',
    )
    assert alone.count("DISABLE_PERFRUN") == 2
    traced = "echo 'n1:1:2 [0] NCCL INFO AllReduce: opCount 0 sendbuff 0x7f recvbuff 0x7f count 1'"
    left = f"case $FOLDER in *_nsys) touch $FOLDER/profile_0.nsys-rep ;; *_nccltrace) {traced} ;; esac"
    write_recipe(tmp_path, {"8b": f"{left}\n{WELL}"}, kind="script", purposes=alone)
    launch = tmp_path / "recipe" / "launch.sh"
    program(
        launch,
        launch.read_text().replace('    exec >>"$folder', '    : exec >>"$folder'),
    )
    program(tmp_path / "recipe" / "submit.sh", TASKS)
    code, output = run(tmp_path, cluster, *filter(None, [option]))
    assert (code, outcomes(tmp_path)) == (0, {"8b": reason}), output
    tasks = (tmp_path / "stage" / "tasks").read_text().split()
    assert tasks == [f"pretrain_fake_8b_bf16_8{task}"]


@pytest.mark.slow
@pytest.mark.parametrize(("subcommand", "config"), [("single", OLD), ("submit", NEW)])
def test_job_id_is_parsed_from_the_output_of_llmb_run(
    tmp_path: Path, cluster: Cluster, subcommand: str, config: str
) -> None:
    """The older llmb-run exits with 0 after a failed submission: nothing was submitted."""
    write_llmb_run(tmp_path, subcommand, config, BEHAVIOURS)
    code, output = run(tmp_path, cluster, "--llmb-cluster=llmb")
    assert code == 1
    assert outcomes(tmp_path) == EXPECTED, output
    assert f"exit code {2 if subcommand == 'submit' else 0} and no job id" in " ".join(
        output.split()
    ), output
    assert "53cr3t" not in output


@pytest.mark.slow
def test_profile_option_is_passed_to_a_job_submitted_by_llmb_run(
    tmp_path: Path, cluster: Cluster
) -> None:
    behaviour = f"[ -z $ENABLE_PROFILE ] || touch $FOLDER/profile_$SLURM_JOB_ID.nsys-rep; {WELL}"
    write_llmb_run(tmp_path, "single", OLD, {"8b": behaviour})
    code, output = run(tmp_path, cluster, "--llmb-cluster=llmb", "--llmb-profile")
    assert code == 0, output
    assert outcomes(tmp_path) == {"8b": "not-judged"}


@pytest.mark.slow
def test_node_options_reach_jobs_that_a_launcher_submits_itself(
    tmp_path: Path, cluster: Cluster
) -> None:
    """Excluded nodes and a time limit reach Slurm; a restarted job excludes its bad
    node, too."""
    bad = "echo 'torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered'; exit 1"
    placed = 'time_limit: "00:07:00"\nexclude: [n2]\n'
    write_recipe(
        tmp_path,
        {"8b": f'[ "$SLURMD_NODENAME" != n1 ] || {{ {bad}; }}; {WELL}'},
        kind="script",
        cluster=placed,
    )
    code, output = run(tmp_path, cluster, "--llmb-exclude=n3", "--llmb-json=night.json")
    jobs = json.loads((tmp_path / "night.json").read_text())["outcomes"][0]["jobs"]
    assert [job["nodes"] for job in jobs] == [["n1"], ["n4"]], output
    shown = [cluster.run("scontrol", "show", "job", job["job_id"]) for job in jobs]
    assert [
        "TimeLimit=00:07:00" in text and "Comment=llmb:" in text for text in shown
    ] == [True, True]
    assert code == 0


@pytest.mark.slow
def test_llmb_run_excludes_nodes(tmp_path: Path, cluster: Cluster) -> None:
    write_llmb_run(tmp_path, "submit", NEW, {"8b": WELL})
    code, output = run(
        tmp_path,
        cluster,
        "--llmb-cluster=llmb",
        "--llmb-exclude=n[1-3]",
        "--llmb-json=night.json",
    )
    assert code == 0, output
    jobs = json.loads((tmp_path / "night.json").read_text())["outcomes"][0]["jobs"]
    assert [job["nodes"] for job in jobs] == [["n4"]]


@pytest.mark.slow
def test_slurm_job_is_tracked_if_its_submitting_script_was_killed(
    tmp_path: Path, cluster: Cluster
) -> None:
    write_recipe(tmp_path, {"8b": WELL}, kind="script")
    submit = tmp_path / "recipe" / "submit.sh"
    program(
        submit, submit.read_text().replace("printf 'Task", "kill -9 $$\nprintf 'Task")
    )
    code, output = run(tmp_path, cluster)
    assert (code, outcomes(tmp_path)) == (0, {"8b": "within-tolerance"}), output


@pytest.mark.slow
def test_dry_run_submits_no_job_and_shows_no_secret(
    tmp_path: Path, cluster: Cluster
) -> None:
    write_llmb_run(tmp_path, "single", OLD, {"8b": WELL})
    code, output = run(tmp_path, cluster, "--llmb-cluster=llmb", "--llmb-dry-run")
    assert code == 0, output
    assert "llmb-run single -w pretrain_fake -s 8b --dtype bf16 --scale 8" in output
    assert "53cr3t" not in output
    assert not (tmp_path / "llmb" / "workloads").exists()


@pytest.mark.slow
def test_missing_llmb_run_is_reported_before_submission(
    tmp_path: Path, cluster: Cluster
) -> None:
    write_llmb_run(tmp_path, "single", OLD, {"8b": WELL})
    (tmp_path / "bin" / "llmb-run").unlink()
    code, output = run(tmp_path, cluster, "--llmb-cluster=llmb")
    assert code == 4
    assert "llmb-run" in output


def write_llmb_run(
    folder: Path, subcommand: str, config: str, behaviours: Mapping[str, str]
) -> None:
    """Write a recipe that is installed with llmb-run, in `llmb`."""
    write_recipe(folder, behaviours, purposes=PURPOSES)
    file, install = folder / "baselines" / "fake.yaml", folder / "llmb"
    command = '    llmb-run: {command: "llmb-run single -w pretrain_fake -s {size} --dtype {dtype} --scale'
    text = file.read_text().replace(
        "  commands:\n", f'  commands:\n{command} {{gpus}}", folder: $LLMB_INSTALL}}\n'
    )
    text = text.replace(
        "STAGE_PATH: where the results go", "LLMB_INSTALL: where everything is"
    )
    file.write_text(
        text.replace('"24.11"', '"25.05"').replace(
            "layout: results", "layout: workloads"
        )
    )
    install.mkdir()
    (install / "cluster_config.yaml").write_text(config.format(install) + WORKLOADS)
    (folder / "bin").mkdir()
    program(
        folder / "bin" / "llmb-run", LLMB_RUN.replace("= SUBCOMMAND", f"= {subcommand}")
    )
    launch = (folder / "recipe" / "launch.sh").read_text()
    program(
        install / "job.sh",
        launch.replace('    exec >>"$folder', '    : exec >>"$folder'),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "option",
    ["--llmb-profile=start:20,stop:30", "--llmb-nccl-trace", "--llmb-save-checkpoint"],
)
def test_completed_profile_trace_or_checkpoint_job_is_reported_as_skipped(
    tmp_path: Path, cluster: Cluster, option: str
) -> None:
    write_recipe(tmp_path, {"8b": PURPOSED + WELL}, purposes=PURPOSES)
    code, output = run(tmp_path, cluster, option)
    assert code == 0, output
    assert outcomes(tmp_path) == {"8b": "not-judged"}, output
    assert "stage/results/24.11/bf16/8b/8/" in output
