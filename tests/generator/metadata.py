"""The launcher's metadata next to a log: `llmb-config_<job>.yaml`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from generator.layouts import ACCOUNT

if TYPE_CHECKING:
    from generator.plan import Plan

TEMPLATE = """\
job_info:
  job_id: '{job_id}'
  launcher_type: {launcher}
  launch_time: '{launch_time}'
  experiment_id: null
workload_info:
  framework: {framework}
  gsw_version: {gsw_version}
  fw_version: 25.04.00
  workload_type: pretrain
  synthetic_dataset: true
model_info:
  model_name: {model}
  model_size: {size}
  dtype: {dtype}
  scale: {gpus}
  gpu_type: {gpu}
cluster_info:
  cluster_name: cluster
  gpus_per_node: {gpus_per_node}
  llmb_install: /lustre/llmb
  llmb_repo: /lustre/recipes
  slurm_account: {account}
  slurm_gpu_partition: batch
  slurm_cpu_partition: batch
container_info:
  images:
  - nvcr.io#nvidia/nemo:25.04.00
job_config:
  profile_enabled: {profiled}
  proxy: {proxy}
  strong_scaling: false
  env_overrides: {env}
  model_overrides: {{}}
"""
LAUNCHERS = {"workloads": "nemo", "launcher": "configured_sbatch", "sbatch": "sbatch"}
PATCHED = {"25.05": "25.05.04"}


def metadata_text(plan: Plan) -> str:
    """Return the metadata of a run.

    `gpus_per_node` is a number in one release and a string in another.
    """
    key = plan.baseline.key
    per_node = plan.gpus_per_node
    return TEMPLATE.format(
        job_id=plan.job_id,
        launcher=LAUNCHERS[plan.layout_name],
        launch_time=plan.started.strftime("%Y-%m-%dT%H:%M:%S.%f"),
        framework="maxtext" if plan.dialect == "maxtext" else "nemo2",
        gsw_version=PATCHED.get(plan.gsw_version, plan.gsw_version),
        model=plan.model,
        size=key.size,
        dtype=key.dtype,
        gpus=key.gpus,
        gpu=key.gpu,
        gpus_per_node=per_node if plan.layout_name == "workloads" else f"'{per_node}'",
        account=ACCOUNT,
        profiled=str(plan.profiled).lower(),
        proxy=str(plan.baseline.configuration.proxy).lower(),
        env="{ENABLE_NCCLTRACE: 'true'}" if plan.traced else "{}",
    )
