"""A row of Megatron-Bridge's tables, launched on a real Slurm.

The script has Megatron-Bridge's arguments and output. The run is found and judged as
the row; a run of another precision is not.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from generator.bridge import CONFIGURATION, SCRIPT, BridgeRun, write_bridge_run
from support.clusters import Cluster
from support.forked_sessions import run_session

from pytest_llmbench.baseline.read import find_shipped_tables, read_recipe

ROW = "megatron_bridge_nemotron_3_nano-26.06-b300-fp8_mx-8"

SETUP = """\
import argparse, os, subprocess
parser = argparse.ArgumentParser()
for name in ("model_family_name", "model_recipe_name", "gpu", "compute_dtype", "account", "partition", "log_dir"):
    parser.add_argument(f"--{name}", required=True)
for name in ("num_gpus", "gpus_per_node", "max_steps"):
    parser.add_argument(f"--{name}", type=int, required=True)
for name in ("container_image", "hf_token"):
    parser.add_argument(f"--{name}", required=True)
args = parser.parse_args()
nodes = -(-args.num_gpus // args.gpus_per_node)
job = subprocess.run(
    ["sbatch", "--parsable", f"--account={args.account}", f"--partition={args.partition}", f"--nodes={nodes}",
     f"--output={os.devnull}", f"--wrap=bash {os.getcwd()}/job.sh {args.log_dir}"],
    check=True, capture_output=True, text=True,
).stdout.strip()
print("Task 0: train\\n- Status: SUBMITTED\\n- Executor: SlurmExecutor on @localhost\\n- Job id:", job)
"""

JOB = """\
cp -r "$PWD/prepared/." "$1/"
cd "$1"
log=$(find . -name 'log-*_JOB_0.out')
mv "$log" "${log/JOB/$SLURM_JOB_ID}"
touch "${log/JOB/$SLURM_JOB_ID}"
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "outcome"),
    [({}, "PASS within-tolerance"), ({"dtype": "bf16"}, "INVALID wrong-configuration")],
    ids=str,
)
def test_megatron_bridge_table_row_is_launched_and_its_log_judged(
    changed: dict[str, str], outcome: str, cluster: Cluster, tmp_path: Path
) -> None:
    release = read_recipe(find_shipped_tables() / "26.06.yaml")
    base = next(baseline for baseline in release.baselines if baseline.key.id == ROW)
    checkout, stage = tmp_path / "Megatron-Bridge", tmp_path / "stage"
    (checkout / "scripts" / "performance").mkdir(parents=True)
    (checkout / "scripts" / "performance" / "setup_experiment.py").write_text(SETUP)
    (checkout / "job.sh").write_text(JOB)
    run = BridgeRun(base, changed=changed, files=(CONFIGURATION, SCRIPT), job="JOB")
    write_bridge_run(checkout / "prepared", run)
    stage.mkdir()
    (stage / "nvidia+nemo+26.06.sqsh").write_text("an image")
    (tmp_path / "cluster.yaml").write_text(
        "schema: 1\ngpu: b300\ngpus_per_node: 8\ngres: gpu:8\naccount: research\npartition: batch\n"
        f"environment: {{STAGE_PATH: {stage}, HF_TOKEN: hf_very_secret}}\n"
        f"installed:\n  megatron_bridge-26.06: {{folder: {checkout}}}\n"
    )
    arguments = (
        "-k",
        ROW,
        "--llmb-launch",
        "--llmb-repeats=1",
        "--llmb-retries=0",
        "--llmb-json=session.json",
    )
    environment = {**os.environ, **cluster.environment, "COLUMNS": "80"}
    _, output = run_session(tmp_path, environment, "-p", "no:cacheprovider", *arguments)
    (told,) = [
        outcome
        for outcome in json.loads((tmp_path / "session.json").read_text())["outcomes"]
        if outcome["id"] == ROW
    ]
    assert f"{told['verdict']} {told['reason']}" == outcome, output
    kept = [path for path in (tmp_path / ".llmbench").rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if b"hf_very_secret" in path.read_bytes()]
    assert "hf_very_secret" not in output
