"""Runs of Megatron-Bridge, as `setup_experiment.py` and llmb-run write them.

A run has a log, a configuration, the submitted script and metadata. Experiment names
differ between releases: the oldest omits the GPUs, the newest parallelism and batch
size.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from generator import lines
from generator.plan import Plan, release_number
from generator.runs import default_job, write
from generator.series import falling_loss

if TYPE_CHECKING:
    from pytest_llmbench.core.baseline_records import Baseline

RECIPES = {"cs": "tensorwise", "mx": "mxfp8", "sc": "blockwise"}
FULL_NAMES, SHORT_NAMES = (26, 2), (26, 8)
CONFIGURATION, SCRIPT, METADATA = "configuration", "script", "metadata"

SCRIPT_TEXT = """\
#!/bin/bash
#SBATCH --account=acct
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={per_node}
set -evx
srun --container-image nvcr.io/nvidia/nemo:{container} --kill-on-bad-exit=1 bash /nemo_run/scripts/{experiment}.sh
"""

COMMAND_TEXT = """\
#!/usr/bin/bash
bash -c 'numactl --membind=1 python run_script.py --model_recipe_name {model} --task {task} --gpu {gpu} \\
  --compute_dtype {dtype} --num_gpus {gpus} --max_steps 50'
"""

METADATA_TEXT = """\
job_info: {{job_id: '{job}', launcher_type: megatron_bridge, launch_time: '{launched}'}}
workload_info: {{framework: megatron_bridge, gsw_version: '26.06.01', fw_version: '{container}', workload_type: {task}}}
model_info: {{model_name: {name}, model_size: {size}, dtype: {family}, scale: {gpus}, gpu_type: {gpu}}}
cluster_info: {{gpus_per_node: {per_node}}}
container_info:
  images: ['nvcr.io#nvidia/nemo:{container}']
job_config: {{profile_enabled: false, proxy: false, strong_scaling: false, env_overrides: {{}}, model_overrides: {{}}}}
"""


@dataclass(frozen=True)
class BridgeRun:
    """A run of a baseline row: its files, and its differences from the row."""

    baseline: Baseline
    factor: float = 1.0
    files: Collection[str] = (CONFIGURATION, SCRIPT)
    changed: Mapping[str, str] = field(default_factory=dict)
    """Replacements in `values`."""
    name: str = ""
    """Name of the experiment, if not the default."""
    job: str = ""
    """Job id, if not the default, and days by which the run starts later."""
    days: int = 0

    @property
    def values(self) -> dict[str, str]:
        """The values in the files."""
        key, configuration = self.baseline.key, self.baseline.configuration
        groups = configuration.parallelism
        per_node = 4 if key.gpu.startswith("gb") else 8
        model, _, size = key.size.partition("_")
        return {
            "model": key.size,
            "name": model,
            "size": size,
            "task": key.task or "pretrain",
            "gpu": key.gpu,
            "dtype": key.dtype,
            "family": "fp8" if key.dtype.startswith("fp8") else key.dtype,
            "gpus": str(key.gpus),
            "container": key.release,
            "per_node": str(min(per_node, key.gpus)),
            "nodes": str(-(-key.gpus // per_node)),
            "tp": str(groups.tp or 1),
            "pp": str(groups.pp or 1),
            "cp": str(groups.cp or 1),
            "vp": str(groups.vp) if groups.vp else "None",
            "ep": str(groups.ep or 1),
            "fsdp": "true" if (groups.fsdp or 1) > 1 else "false",
            "mbs": str(configuration.micro_batch_size),
            "gbs": str(configuration.global_batch_size),
            "sequence_length": str(configuration.architecture.sequence_length),
            **self.changed,
        }

    @property
    def experiment(self) -> str:
        """The experiment name that the scripts of the release choose."""
        if self.name:
            return self.name
        values, number = self.values, release_number(self.baseline.key.release)
        if number < FULL_NAMES:
            return "{model}_llm_{task}_{dtype}".format(**values)
        if number >= SHORT_NAMES:
            return "{task}_{model}_{dtype}_gpus{gpus}_{gpu}".format(**values)
        form = "{task}_{model}_{dtype}_gpus{gpus}_tp{tp}_pp{pp}_cp{cp}_vp{vp}_ep{ep}_etpNone_mbs{mbs}_gbs{gbs}"
        return form.format(**values)


def write_bridge_run(root: Path, run: BridgeRun) -> Path:
    """Write the files of a run under `root`, and return the path of its log."""
    job_options = default_job(run.baseline)
    job_options = {
        "job_id": run.job or job_options["job_id"],
        "started": job_options["started"] + timedelta(days=run.days),
    }
    plan = Plan(run.baseline, factor=run.factor, noise=0.0, **job_options)
    job, name = job_options["job_id"], run.experiment
    launch = root / "experiments" / name / f"{name}_{int(plan.started.timestamp())}"
    log = launch / name / f"log-acct-llm.{name}_{job}_0.out"
    texts = {
        CONFIGURATION: (
            launch / name / "configs" / "ConfigContainer.yaml",
            make_configuration(run.values),
        ),
        SCRIPT: (
            launch / f"acct-llm.{name}_sbatch.sh",
            SCRIPT_TEXT.format(**run.values, experiment=name),
        ),
        METADATA: (
            launch / name / f"llmb-config_{job}.yaml",
            METADATA_TEXT.format(
                job=job, launched=f"{plan.started:%Y-%m-%dT%H:%M:%S}", **run.values
            ),
        ),
    }
    modified = plan.ended(0).timestamp()
    write(log, make_log(plan, run), modified, replace=False)
    for path, text in (texts[kind] for kind in run.files):
        write(path, text, modified, replace=False)
    if SCRIPT in run.files:
        write(
            launch / name / "scripts" / f"{name}.sh",
            COMMAND_TEXT.format(**run.values),
            modified,
            replace=False,
        )
    return log


def make_log(plan: Plan, run: BridgeRun) -> str:
    """Return the log: both lines of each step, printed by the first and last rank."""
    batch, work = int(run.values["gbs"]), find_work(run.baseline)
    elapsed, texts = plan.began(0) + timedelta(seconds=95), ["done with setup ...\n"]
    for number, seconds in enumerate(plan.step_seconds, 1):
        elapsed += timedelta(seconds=seconds)
        loss = falling_loss(number, 12.4)
        texts.append(lines.step_time_line(seconds, work / seconds) + "\n")
        step = lines.megatron_line(
            elapsed, number, 50, seconds, batch=batch, tflops=None, loss=loss
        )
        texts.append(step + "\n")
    return "".join(texts)


def find_work(baseline: Baseline) -> float:
    """Return the TFLOP of a step on one GPU, stated or derived from TFLOP/s."""
    return baseline.configuration.logged_tflop or baseline.step_seconds * float(
        dict(baseline.cells)["tflops_per_gpu"]
    )


def make_configuration(values: Mapping[str, str]) -> str:
    """Return a shortened ConfigContainer.yaml."""
    recipe = RECIPES.get(values["dtype"].removeprefix("fp8_"), "")
    ranks = int(values["gpus"]) // (
        int(values["tp"]) * int(values["pp"]) * int(values["cp"])
    )
    texts = [
        "_target_: megatron.bridge.training.config.ConfigContainer",
        "comm_overlap:",
        f"  data_parallel_size: {ranks}",
        "ddp:",
        f"  use_megatron_fsdp: {values['fsdp']}",
        "mixed_precision:",
        "  bf16: true",
        f"  fp4: {'e2m1' if values['dtype'] == 'nvfp4' else 'null'}",
        f"  fp8: {'hybrid' if recipe else 'null'}",
        f"  fp8_recipe: {recipe or 'tensorwise'}",
        "model:",
        "  fp8: null",
        f"  context_parallel_size: {values['cp']}",
        f"  expert_model_parallel_size: {values['ep']}",
        f"  pipeline_model_parallel_size: {values['pp']}",
        f"  seq_length: {values['sequence_length']}",
        f"  tensor_model_parallel_size: {values['tp']}",
        f"  virtual_pipeline_model_parallel_size: {'null' if values['vp'] == 'None' else values['vp']}",
        *(
            ["peft:", "  _target_: megatron.bridge.peft.lora.LoRA"]
            if values["task"] == "lora"
            else ["peft: null"]
        ),
        "train:",
        f"  global_batch_size: {values['gbs']}",
        f"  micro_batch_size: {values['mbs']}",
        "  train_iters: 50",
    ]
    return "\n".join(texts) + "\n"
