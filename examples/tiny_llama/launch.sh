#!/bin/bash
# Trains for MAX_STEPS steps, with one process per GPU (several are started by torchrun):
#   ./launch.sh               here, with the log on the terminal
#   sbatch -N 1 ./launch.sh   as a Slurm job
# Variables and defaults: MODEL_SIZE=15m (or 1m, 250m, 1b), DTYPE=fp32 (or bf16), GPU_TYPE=cpu (or h100, ...),
# JOB_TOTAL_GPUS=1, COMPILE=0 (or 1), MAX_STEPS=50, PYTHON=python3, STAGE_PATH=this folder (a Slurm job writes its log to
# $STAGE_PATH/results).
#SBATCH --job-name=tiny_llama
#SBATCH --output=sbatch_%x_%j.out
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=0:30:00

set -euo pipefail

fail() {
  echo "launch.sh: $1" >&2
  exit 2
}

one_of() {  # NAME CHOICE...: fail unless the variable has one of these values
  local name=$1 choice
  shift
  for choice; do [[ ${!name} != "$choice" ]] || return 0; done
  fail "$name=${!name}: expected one of: $*"
}

# Slurm copies this script to its spool folder and runs it there
folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[[ -f $folder/train.py ]] || folder=${SLURM_SUBMIT_DIR:-$folder}
[[ -f $folder/train.py ]] || fail "no train.py in $folder: run sbatch in the folder of launch.sh"

MODEL_SIZE=${MODEL_SIZE:-15m} DTYPE=${DTYPE:-fp32} GPU_TYPE=${GPU_TYPE:-cpu} COMPILE=${COMPILE:-0}
JOB_TOTAL_GPUS=${JOB_TOTAL_GPUS:-1} MAX_STEPS=${MAX_STEPS:-50} PYTHON=${PYTHON:-python3}
nodes=${SLURM_JOB_NUM_NODES:-1}

one_of MODEL_SIZE 1m 15m 250m 1b
one_of DTYPE fp32 bf16
one_of COMPILE 0 1
[[ $GPU_TYPE =~ ^[a-z0-9]+$ ]] || fail "GPU_TYPE=$GPU_TYPE: expected cpu or a GPU's name such as h100"
[[ $JOB_TOTAL_GPUS =~ ^[1-9][0-9]{0,3}$ ]] || fail "JOB_TOTAL_GPUS=$JOB_TOTAL_GPUS: expected a whole number from 1"
((JOB_TOTAL_GPUS % nodes == 0)) || fail "JOB_TOTAL_GPUS=$JOB_TOTAL_GPUS: expected as many on each of $nodes nodes"
[[ $MAX_STEPS =~ ^[1-9][0-9]{0,6}$ ]] || fail "MAX_STEPS=$MAX_STEPS: expected a whole number from 1"
command -v "$PYTHON" >/dev/null || fail "PYTHON=$PYTHON: no such program, expected a Python that has PyTorch"
"$PYTHON" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' ||
  fail "PYTHON=$PYTHON has no PyTorch: pip install 'torch>=2.5' there, or set PYTHON to one that has it"

run=("$folder/train.py" --size "$MODEL_SIZE" --dtype "$DTYPE" --gpu "$GPU_TYPE" --gpus "$JOB_TOTAL_GPUS" --steps "$MAX_STEPS")
name=tiny_llama
if ((COMPILE)); then run+=(--compile) name=tiny_llama_compiled; fi

torchrun=("$PYTHON" -m torch.distributed.run --nproc-per-node="$((JOB_TOTAL_GPUS / nodes))")
if ((nodes > 1)); then  # the processes meet at the first node (this one), at a port derived from the job id
  port=$((20000 + SLURM_JOB_ID % 10000))
  training=("${torchrun[@]}" --nnodes="$nodes" --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID"
    --rdzv-endpoint="$(hostname):$port" "${run[@]}")
elif ((JOB_TOTAL_GPUS > 1)); then
  training=("${torchrun[@]}" --standalone "${run[@]}")
else
  training=("$PYTHON" -u "${run[@]}")
fi
((JOB_TOTAL_GPUS == 1)) || export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}  # torchrun's default, without its warning

if [[ -z ${SLURM_JOB_ID:-} ]]; then
  exec "${training[@]}"
fi

results=${STAGE_PATH:-$folder}/results/1.0/$DTYPE/$MODEL_SIZE/$JOB_TOTAL_GPUS
log=$results/log-${name}_${MODEL_SIZE}_${JOB_TOTAL_GPUS}_${SLURM_JOB_ID}_${SLURM_RESTART_COUNT:-0}.out
mkdir -p "$results"
echo "log: $log"
# one task per node; if a task fails, Slurm kills the others
srun --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --kill-on-bad-exit=1 --cpu-bind=none --output="$log" \
  "${training[@]}"
