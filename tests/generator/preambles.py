"""Lines before the first step, of the kinds that real logs contain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from generator.lines import nemo_info

if TYPE_CHECKING:
    from datetime import datetime

    from generator.plan import Plan


def node_name(number: int) -> str:
    """Return the invented name of a node."""
    return f"node-{number:04d}"


def node_count(plan: Plan) -> int:
    """Return the number of nodes of the run."""
    return -(-plan.baseline.key.gpus // plan.gpus_per_node)


def preamble(plan: Plan, time: datetime) -> list[str]:
    """Return the lines before the first step of an attempt that began at `time`."""
    return PREAMBLES[plan.dialect](plan, time)


def group_sizes(plan: Plan) -> list[tuple[str, int]]:
    """Return the names and sizes of the parallel groups with several members."""
    groups = plan.baseline.configuration.parallelism
    groups_by_name = {
        "tensor model": groups.tp,
        "pipeline model": groups.pp,
        "context": groups.cp,
        "expert": groups.ep,
        "data": groups.dp,
    }
    return [
        (name, size)
        for name, size in groups_by_name.items()
        if size is not None and size > 1
    ]


def distributed(plan: Plan) -> list[str]:
    """Return the lines that processes print while they connect."""
    gpus = plan.baseline.key.gpus
    rule = "-" * 100
    members = [
        f"Initializing distributed: GLOBAL_RANK: {rank}, MEMBER: {rank + 1}/{gpus}"
        for rank in range(3)
    ]
    registered = f"All distributed processes registered. Starting with {gpus} processes"
    return [*members, rule, "distributed_backend=nccl", registered, rule, ""]


def nemo_start(plan: Plan, time: datetime) -> list[str]:
    """Return the lines that NeMo 1 and 2 print: devices, groups, model, optimizer."""
    configuration = plan.baseline.configuration
    microbatches = configuration.gradient_accumulation or 1
    groups = [
        nemo_info(
            time,
            f"Rank 0 has {name} parallel group of {size} ranks",
            "megatron_init:314",
        )
        for name, size in group_sizes(plan)
    ]
    return [
        "GPU available: True (cuda), used: True",
        "TPU available: False, using: 0 TPU cores",
        "HPU available: False, using: 0 HPUs",
        *groups,
        *distributed(plan),
        nemo_info(
            time,
            f"setting number of microbatches to constant {microbatches}",
            "num_microbatches:228",
        ),
        nemo_info(
            time,
            "Setting up DistributedDataParallel, gradients reduced in fp32",
            "utils:302",
        ),
        nemo_info(
            time,
            "Setting up optimizer with config lr=0.0003, weight_decay=0.1, bf16=True",
            "utils:323",
        ),
        f"LOCAL_RANK: 0 - CUDA_VISIBLE_DEVICES: [{','.join(map(str, range(plan.gpus_per_node)))}]",
        "NCCL version 2.25.1+cuda12.8",
    ]


def nemo1(plan: Plan, time: datetime) -> list[str]:
    """Return a preamble of NeMo Framework Launcher.

    The whole configuration is printed first.
    """
    configuration = plan.baseline.configuration
    settings = {
        "name": f"{plan.model}_{plan.baseline.key.size}",
        "num_nodes": node_count(plan),
        "devices": plan.gpus_per_node,
        "max_steps": plan.total_steps,
        "val_check_interval": plan.total_steps,
        "log_every_n_steps": 1,
        "micro_batch_size": configuration.micro_batch_size,
        "global_batch_size": configuration.global_batch_size,
        "encoder_seq_length": configuration.architecture.sequence_length,
        "num_layers": configuration.architecture.layers,
        "fp8": plan.baseline.key.dtype == "fp8",
        "data_impl": "mock",
    }
    return [
        "************** Experiment configuration ***********",
        *(f"  {name}: {value}" for name, value in settings.items()),
        *nemo_start(plan, time),
        "Training: |          | 0/? [00:00<?, ?it/s]",
        f"Training:   0%|          | 0/{plan.total_steps} [00:00<?]",
        f"Epoch 0: :   0%|          | 0/{plan.total_steps} [00:00<?]",
    ]


def nemo2(plan: Plan, time: datetime) -> list[str]:
    """Return a preamble of NeMo-Run: the task, then the same start lines."""
    configuration = plan.baseline.configuration
    key = plan.baseline.key
    return [
        f"Running on {node_count(plan)} nodes, head node {node_name(1)}",
        "Disabling mmap for dataset: mock data",
        nemo_info(
            time,
            f"Experiments will be logged at /nemo_run/{plan.model}_{key.size}",
            "nemo_logger:145",
        ),
        nemo_info(
            time,
            f"Padded vocab_size: {configuration.architecture.vocabulary_size}",
            "base:44",
        ),
        nemo_info(
            time,
            f"Copying Trainer's 'max_steps' ({plan.total_steps}) to LR scheduler",
            "megatron_strategy:327",
        ),
        *nemo_start(plan, time),
        "  | Name   | Type | Params | Mode ",
        "----------------------------------------",
        "0 | module | DDP  | 4.9 B  | train",
        "----------------------------------------",
        "",
    ]


def maxtext(plan: Plan, time: datetime) -> list[str]:
    """Return a MaxText preamble: dated lines of the runtime, then every parameter."""
    configuration = plan.baseline.configuration
    architecture = configuration.architecture
    fsdp = configuration.parallelism.fsdp
    parameters = {
        "base_emb_dim": architecture.hidden_size,
        "base_mlp_dim": architecture.ffn_size,
        "base_num_decoder_layers": architecture.layers,
        "base_num_kv_heads": architecture.query_groups,
        "base_num_query_heads": architecture.attention_heads,
        "checkpoint_period": 10000,
        "dataset_type": "synthetic",
        "global_batch_size_to_train_on": configuration.global_batch_size,
        "hardware": "gpu",
        "ici_fsdp_parallelism": plan.gpus_per_node,
        "dcn_fsdp_parallelism": fsdp // plan.gpus_per_node if fsdp else 1,
        "log_period": 100,
        "max_target_length": architecture.sequence_length,
        "per_device_batch_size": configuration.micro_batch_size,
        "profiler": "",
        "quantization": "fp8" if plan.baseline.key.dtype == "fp8" else "",
        "vocab_size": architecture.vocabulary_size,
    }
    stamp = f"{time:%Y-%m-%d %H:%M:%S.%f}: I"
    xla = (
        "external/xla/xla/tsl/distributed_runtime/coordination/coordination_service.cc"
    )
    return [
        f"{stamp} {xla}:637] Initializing CoordinationService",
        f"{stamp} {xla}:378] /job:jax_worker/replica:0/task:0 has connected to coordination service.",
        f"Updating keys from env and command line: {['run_name', 'steps', 'per_device_batch_size']}",
        f"Running Model: {plan.model}-{plan.baseline.key.size}",
        "Jax distributed system initialized on GPUs!",
        *(f"Config param {name}: {value}" for name, value in parameters.items()),
        f"Num_devices: {plan.baseline.key.gpus}, shape ({node_count(plan)}, 1, {plan.gpus_per_node})",
    ]


PREAMBLES = {"nemo1": nemo1, "nemo2": nemo2, "maxtext": maxtext}
