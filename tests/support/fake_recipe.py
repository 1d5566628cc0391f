"""A small recipe whose jobs run shell commands chosen by their model size.

Real launchers start the jobs, but no model is trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

STEP = 1.0
"""The published step time of every configuration, in seconds."""

WELL = "steps 1.0"
"""The shell command that prints a complete run with this step time in seconds."""

HEAD = """#!/bin/bash
{directives}# launch.sh of a recipe that trains nothing
set -eu
if [ -n "${SLURM_JOB_ID:-}" ]; then
    folder="$STAGE_PATH/results/24.11/$DTYPE/$MODEL_SIZE/$JOB_TOTAL_GPUS"
    mkdir -p "$folder"
    # as in real recipes, a requeued job appends to the same log
    exec >>"$folder/log-nemo_fake_${MODEL_SIZE}_${JOB_TOTAL_GPUS}_${SLURM_JOB_ID}.out" 2>&1
fi
batch=128
step() {  # step NUMBER SECONDS
    echo "Training epoch 0, iteration $1/49 | lr: 1e-05 | global_batch_size: $batch | global_step: $1 |" \\
        "reduced_train_loss: 11.9 | train_step_timing in s: $2 | consumed_samples: $((($1 + 1) * batch))"
}
steps() {  # steps SECONDS [FIRST [LAST]]
    local number
    for number in $(seq "${2:-0}" "${3:-49}"); do step "$number" "$1"; done
    [ "${3:-49}" != 49 ] || echo '`Trainer.fit` stopped: `max_steps=50` reached.'
}
case "$MODEL_SIZE" in
"""

ROW = (
    "  - {{size: {size}, gpu: h100, dtype: {dtype}, gpus: {gpus}, table: A table, sequence_length: 4096, layers: 2,\n"
    '     mbs: 1, gbs: {gbs}, cells: {{step_time: "1.00"}}}}\n'
)
BASELINES = """schema: 1
kind: published
recipe: fake
release: "24.11"
title: A recipe that trains nothing
framework: NeMo
dialect: nemo2
names: [fake, nemo_fake]
layout: results
source: {{document: A document}}
timed: mean
window: {{statistic: mean, first: 11, last: 44}}
steps: 50
peak_tflops: {{h100: {{bf16: "989", fp8: "1979"}}}}
models:
{models}
launch:
  kind: {kind}
  gsw_version: "24.11"
  commands:
    sbatch: {{command: "sbatch -A {{account}} -p {{partition}} -N {{nodes}} ./launch.sh", fixed: {fixed}}}
    script: {{command: ./submit.sh, fixed: {fixed}}}
    local: {{command: ./launch.sh, fixed: {fixed}}}
  environment:
    required: {{STAGE_PATH: where the results go}}
  gpus_per_node: {{h100: 8}}
  log: "results/{{gsw_version}}/{{dtype}}/{{size}}/{{gpus}}/log-nemo_fake_{{size}}_{{gpus}}_{{job}}.out"
{purposes}configurations:
{rows}"""
PURPOSES = """\
  profiling:
    enable: {ENABLE_PROFILE: "true"}
    start: PROFILE_START_STEP
    stop: PROFILE_STOP_STEP
    ranks: PROFILE_RANKS
    gpu_metrics: PROFILE_GPU_METRICS
    cpu: PROFILE_CPU
    default_start: 20
    default_stop: 30
  nccl_trace: {ENABLE_NCCL_TRACE: "true"}
  checkpoint:
    save: {ENABLE_CHECKPOINT: "true"}
    load: {LOAD_CHECKPOINT_PATH: "{checkpoint}"}
    disk_gb: {8b: 1}
    save_gpus: {8b: [8, 16]}
    load_gpus: {8b: [8]}
"""
"""The recipe's settings for profiles, traces and checkpoints, for a model of size
8b."""

PURPOSED = r"""
env | grep -E '^(ENABLE|PROFILE|LOAD)_' >$STAGE_PATH/variables || true
folder=$STAGE_PATH/results/24.11/$DTYPE/$MODEL_SIZE/$JOB_TOTAL_GPUS
mkdir -p $folder
[ -z "${ENABLE_PROFILE:-}" ] ||
    touch $folder/nemo-$MODEL_SIZE-${DTYPE}_${JOB_TOTAL_GPUS}g_${SLURM_JOB_ID:-}_0_0.nsys-rep
[ -z "${ENABLE_NCCL_TRACE:-}" ] || echo 'n1:1:2 [0] NCCL INFO AllReduce: opCount 0 sendbuff 0x7f recvbuff 0x7f count 1'
if [ -n "${ENABLE_CHECKPOINT:-}" ]; then
    mkdir -p $folder/checkpoints/x/weights
    touch $folder/checkpoints/x/weights/__0_0.distcp
fi
if [ -n "${LOAD_CHECKPOINT_PATH:-}" ]; then
    echo "[NeMo I] Global Checkpoint Load : Rank : 0 : Time spent in load_checkpoint: 9.712s"
    step 50 1.0
    exit
fi
"""
"""Shell commands that create the files requested by the job's variables. Append the
commands of the run."""

MODEL = (
    "  {size}: {{formula: llama, hidden_size: 64, attention_heads: 4, query_groups: 4, ffn_size: 128,"
    " vocabulary_size: 256}}"
)
FIXED = '{DTYPE: "{dtype}", MODEL_SIZE: "{size}", JOB_TOTAL_GPUS: "{gpus}"}'
SUBMIT = """#!/bin/bash
# submits its job itself, as NeMo-Run recipes do
set -eu
job=$(sbatch --parsable --gres=gpu:8 -N $((JOB_TOTAL_GPUS / 8)) ./launch.sh)
printf 'Task 0: train\\n- Status: SUBMITTED\\n- Executor: SlurmExecutor on @localhost\\n- Job id: %s\\n' "$job"
printf -- '- Local Directory: %s\\n' "$STAGE_PATH/results/24.11/$DTYPE/$MODEL_SIZE/$JOB_TOTAL_GPUS"
"""
CLUSTER = """schema: 1
name: test
gpu: h100
gpus_per_node: 8
largest: 1024
gpu_hours: 1000
gres: gpu:8
environment: {{STAGE_PATH: "{stage}"}}
installed:
  fake-24.11: {{folder: "{folder}"}}
"""


def write_recipe(
    folder: Path,
    behaviours: Mapping[str, str],
    *,
    kind: str = "sbatch",
    gpus: int = 8,
    cluster: str = "",
    directives: str = "",
    purposes: str = "",
    further: Sequence[Mapping[str, object]] = (),
) -> None:
    """Write baselines/fake.yaml, recipe/launch.sh, cluster.yaml and pytest.ini.

    `behaviours` maps each model size to the shell commands of its jobs. `directives`
    are #SBATCH lines, and `purposes` are the recipe's settings for profiles, traces and
    checkpoints. Each size has one configuration, in bf16 with a batch size of 128.
    `further` lists more configurations by the fields that differ: size, gpus, dtype,
    gbs.
    """
    recipe, stage = folder / "recipe", folder / "stage"
    for path in (recipe, stage, folder / "baselines"):
        path.mkdir(parents=True, exist_ok=True)
    cases = "".join(
        f"    {size})\n{commands}\n    ;;\n" for size, commands in behaviours.items()
    )
    program(
        recipe / "launch.sh", f"{HEAD}{cases}esac\n".replace("{directives}", directives)
    )
    program(recipe / "submit.sh", SUBMIT)
    cases_of_sizes = [{"size": size, "gpus": gpus} for size in behaviours]
    rows = "".join(
        ROW.format(**{"dtype": "bf16", "gbs": 128, **path})
        for path in (*cases_of_sizes, *further)
    )
    models = "\n".join(MODEL.format(size=size) for size in behaviours)
    text = BASELINES.format(
        models=models, rows=rows, kind=kind, fixed=FIXED, purposes=purposes
    )
    (folder / "baselines" / "fake.yaml").write_text(text)
    (folder / "cluster.yaml").write_text(
        CLUSTER.format(stage=stage, folder=recipe) + cluster
    )
    (folder / "pytest.ini").write_text("[pytest]\nllmb_baselines = baselines\n")


def program(path: Path, text: str) -> None:
    """Write an executable file."""
    path.write_text(text)
    path.chmod(0o755)
