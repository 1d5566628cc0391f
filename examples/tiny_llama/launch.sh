#!/bin/bash
# Trains for MAX_STEPS steps: here (./launch.sh, the log goes to the terminal) or as a Slurm job (sbatch -N 1 ./launch.sh).
# Variables, with their defaults: MODEL_SIZE=15m (or 1b), DTYPE=fp32 (or bf16), GPU_TYPE=cpu (or h100, ...),
# JOB_TOTAL_GPUS=1, MAX_STEPS=50, PYTHON=python3, STAGE_PATH (this folder): below it are the results/ of a Slurm job.
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

one_of() {  # NAME CHOICE...: the variable has one of these values
  local name=$1 choice
  shift
  for choice; do [[ ${!name} != "$choice" ]] || return 0; done
  fail "$name=${!name}: expected one of: $*"
}

# Slurm runs a copy of this script from its spool folder
folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[[ -f $folder/train.py ]] || folder=${SLURM_SUBMIT_DIR:-$folder}
[[ -f $folder/train.py ]] || fail "no train.py in $folder: run sbatch in the folder of launch.sh"

MODEL_SIZE=${MODEL_SIZE:-15m} DTYPE=${DTYPE:-fp32} GPU_TYPE=${GPU_TYPE:-cpu}
JOB_TOTAL_GPUS=${JOB_TOTAL_GPUS:-1} MAX_STEPS=${MAX_STEPS:-50} PYTHON=${PYTHON:-python3}

one_of MODEL_SIZE 15m 1b
one_of DTYPE fp32 bf16
[[ $GPU_TYPE =~ ^[a-z0-9]+$ ]] || fail "GPU_TYPE=$GPU_TYPE: expected cpu or a GPU's name such as h100"
[[ $JOB_TOTAL_GPUS == 1 ]] || fail "JOB_TOTAL_GPUS=$JOB_TOTAL_GPUS: expected 1, this recipe trains on one GPU or the CPU"
[[ $MAX_STEPS =~ ^[1-9][0-9]{0,6}$ ]] || fail "MAX_STEPS=$MAX_STEPS: expected a whole number from 1"
command -v "$PYTHON" >/dev/null || fail "PYTHON=$PYTHON: no such program, expected a Python that has PyTorch"

training=("$PYTHON" -u "$folder/train.py" --size "$MODEL_SIZE" --dtype "$DTYPE" --gpu "$GPU_TYPE" --steps "$MAX_STEPS")

if [[ -z ${SLURM_JOB_ID:-} ]]; then
  exec "${training[@]}"
fi

results=${STAGE_PATH:-$folder}/results/1.0/$DTYPE/$MODEL_SIZE/$JOB_TOTAL_GPUS
log=$results/log-tiny_llama_${MODEL_SIZE}_${JOB_TOTAL_GPUS}_${SLURM_JOB_ID}_${SLURM_RESTART_COUNT:-0}.out
mkdir -p "$results"
echo "log: $log"
srun --nodes=1 --ntasks=1 --cpu-bind=none --output="$log" "${training[@]}"
