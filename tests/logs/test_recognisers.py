"""Facts that logs print besides steps: one line per row, and similar lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.shared_data import shared
from support.written_logs import nemo2_run, parse

from pytest_llmbench.core.log_records import StatedField
from pytest_llmbench.logs.facts import read_preamble
from pytest_llmbench.logs.growing import Growing
from pytest_llmbench.logs.log_reader import parse_blocks, read_log
from pytest_llmbench.logs.recognisers import (
    EARLY,
    PREAMBLE,
    PREAMBLE_MARKERS,
    REWARD_MARKERS,
    RecogniserTable,
)

STATED = {
    " 9: [default3]: Initializing distributed: GLOBAL_RANK: 3, MEMBER: 4/8\n": (
        StatedField.GPUS,
        "8",
    ),
    "using world size: 16, data-parallel-size: 4, tensor-model-parallel size: 2\n": (
        StatedField.GPUS,
        "16",
    ),
    "Num_devices: 8, shape (1, 1, 1, 8)\n": (StatedField.GPUS, "8"),
    "  global_num_gpus ................. 1...........................updated\n": (
        StatedField.GPUS,
        "1",
    ),
    "Building device mesh with parallelism: pp=2, dp_replicate=1, dp_shard=8, cp=1, tp=4, ep=8\n": (
        StatedField.GPUS,
        "64",
    ),
    "Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]\n": (
        StatedField.GPUS,
        "8",
    ),
    "[titan] - INFO - CUDA capacity: NVIDIA H100 PCIe with 79.10GiB memory\n": (
        StatedField.GPU_TYPE,
        "h100pcie",
    ),
    "|   0  NVIDIA H100 80GB HBM3          On  |   00000000:8F:00.0 Off |                    0 |\n": (
        StatedField.GPU_TYPE,
        "h100",
    ),
    "#  Rank  0 Group  0 Pid  64904 on       mew0 device  0 [0000:17:00] NVIDIA H100 PCIe\n": (
        StatedField.GPU_TYPE,
        "h100pcie",
    ),
    "CUDA capacity: AMD Instinct MI300X OAM with 191.98GiB memory\n": (
        StatedField.GPU_TYPE,
        "mi300x",
    ),
    "llmb environment: device: AMD Instinct MI250X / MI250\n": (
        StatedField.GPU_TYPE,
        "mi250x",
    ),
    "TFRT TPU v5 lite\n": (StatedField.GPU_TYPE, "tpuv5e"),
    ':::SYSJSON {"accelerator_model_name":"NVIDIA H100 80GB HBM3","x":""}\n': (
        StatedField.GPU_TYPE,
        "h100",
    ),
    "Config param quantization: \n": (StatedField.QUANTIZATION, "none"),
    "Config param quantization: te_fp8_delayedscaling\n": (
        StatedField.QUANTIZATION,
        "fp8",
    ),
    "  fp8 ............................................. None\n": (
        StatedField.QUANTIZATION,
        "not fp8",
    ),
    " 0:   fp8 ............................................. hybrid\n": (
        StatedField.QUANTIZATION,
        "fp8",
    ),
    "|   fp8: true # enables fp8 in TransformerLayer forward\n": (
        StatedField.QUANTIZATION,
        "fp8",
    ),
    "|   precision: bf16\n": (StatedField.QUANTIZATION, "none"),
    "Float8 training active with recipe rowwise\n": (StatedField.QUANTIZATION, "fp8"),
    "Converted Linear layers to NVFP4Linear\n": (StatedField.QUANTIZATION, "fp4"),
    "  deepspeed ....................................... True\n": (
        StatedField.ENGINE,
        "deepspeed",
    ),
    "[Rank 0] DeepSpeed info: version=0.4.0+407ff0f\n": (
        StatedField.ENGINE,
        "deepspeed",
    ),
    "Experiments will be logged at /nemo_run/llama3.1_8b\n": (
        StatedField.MODEL,
        "/nemo_run/llama3.1_8b",
    ),
    "|   name: qwen25_32b\n": (StatedField.MODEL, "qwen25_32b"),
    "srun --job-name=a-b.pretrain_grok1_314b_fp8_128 x\n": (
        StatedField.NAMED,
        "pretrain_grok1_314b_fp8_128",
    ),
    "[titan] - root - INFO - Building llama3 175M_L16 with {\n": (
        StatedField.MODEL,
        "llama3_175M_L16",
    ),
    "using world size: 8, data-parallel-size: 4, tensor-model-parallel size: 2\n": (
        StatedField.LAYOUT,
        "data-parallel-size: 4, tensor-model-parallel size: 2",
    ),
    "[titan] - Building device mesh with parallelism: pp=2, dp_shard=8, tp=4\n": (
        StatedField.LAYOUT,
        "pp=2, dp_shard=8, tp=4",
    ),
    "  expert_model_parallel_size ...................... 8\n": (
        StatedField.LAYOUT,
        "expert_model_parallel_size: 8",
    ),
    "  micro_batch_size ................................ 14\x1b[0m\n": (
        StatedField.MICRO_BATCH,
        "14",
    ),
    "  train_batch_size ................ 36..........................updated\n": (
        StatedField.BATCH,
        "36",
    ),
    "I0317 pyconfig.py:413] Config param emb_dim: 2560\n": (StatedField.HIDDEN, "2560"),
    "  num_attention_heads ............................. 32\n": (
        StatedField.HEADS,
        "32",
    ),
    "I0317 pyconfig.py:413] Config param per_device_batch_size: 0.5\n": (
        StatedField.MICRO_BATCH,
        "0.5",
    ),
    "  Total train batch size (w. parallel, distributed & accumulation) = 1,024\n": (
        StatedField.BATCH,
        "1,024",
    ),
    "  fp16 ............................ {'enabled': True}...........updated\n": (
        StatedField.NUMBERS,
        "fp16",
    ),
    "  fp8_recipe ...................................... delayed\n": (
        StatedField.NUMBERS,
        "fp8_recipe: delayed",
    ),
    "trainer = DPOTrainer(model)\n": (StatedField.OBJECTIVE, "rewards"),
    "llamafactory-cli train --stage dpo\n": (StatedField.OBJECTIVE, "rewards"),
    "  world_size ...................................... 8\n": (StatedField.GPUS, "8"),
    "llmb environment: device: NVIDIA H100 80GB HBM3\n": (StatedField.GPU_TYPE, "h100"),
    "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-9ad78c4b)\n": (
        StatedField.GPU_TYPE,
        "h100",
    ),
    "|   fp8_recipe: tensorwise\n": (StatedField.NUMBERS, "fp8_recipe: tensorwise"),
    "Converted Linear layers to MXFP8Linear\n": (StatedField.QUANTIZATION, "fp8"),
    "|   tensor_model_parallel_size: 2\n": (
        StatedField.LAYOUT,
        "tensor_model_parallel_size: 2",
    ),
    "|   pipeline_model_parallel_size: 2\n": (
        StatedField.LAYOUT,
        "pipeline_model_parallel_size: 2",
    ),
    "|   context_parallel_size: 2\n": (StatedField.LAYOUT, "context_parallel_size: 2"),
    "|   micro_batch_size: 4\n": (StatedField.MICRO_BATCH, "4"),
    "  train_micro_batch_size_per_gpu .................. 4\n": (
        StatedField.MICRO_BATCH,
        "4",
    ),
    "  Instantaneous batch size per device = 8\n": (StatedField.MICRO_BATCH, "8"),
    "  bf16 ............................................ True\n": (
        StatedField.NUMBERS,
        "bf16",
    ),
    "I0317 pyconfig.py:413] Config param dtype: bfloat16\n": (
        StatedField.NUMBERS,
        "bfloat16",
    ),
    ':::MLLOG {"key": "global_batch_size", "value": 128, "metadata": {}}\n': (
        StatedField.BATCH,
        "128",
    ),
    ':::MLLOG {"key": "max_sequence_length", "value": 8192, "metadata": {}}\n': (
        StatedField.SEQUENCE,
        "8192",
    ),
    ':::MLLOG {"key": "submission_benchmark", "value": "llama31_8b"}\n': (
        StatedField.MODEL,
        "llama31_8b",
    ),
    "I0317 pyconfig.py:413] Config param model_name: llama3-8b\n": (
        StatedField.MODEL,
        "llama3-8b",
    ),
    "|   num_layers: 32\n": (StatedField.LAYERS, "32"),
    "  num_layers ...................................... 32\n": (
        StatedField.LAYERS,
        "32",
    ),
    "I0317 pyconfig.py:413] Config param num_decoder_layers: 32\n": (
        StatedField.LAYERS,
        "32",
    ),
    "I0317 pyconfig.py:413] Config param base_num_decoder_layers: 32\n": (
        StatedField.LAYERS,
        "32",
    ),
    "|   hidden_size: 4096\n": (StatedField.HIDDEN, "4096"),
    "  hidden_size ..................................... 4096\n": (
        StatedField.HIDDEN,
        "4096",
    ),
    "|   num_attention_heads: 32\n": (StatedField.HEADS, "32"),
    "I0317 pyconfig.py:413] Config param num_query_heads: 32\n": (
        StatedField.HEADS,
        "32",
    ),
    "|   encoder_seq_length: 8192\n": (StatedField.SEQUENCE, "8192"),
    "  encoder_seq_length .............................. 8192\n": (
        StatedField.SEQUENCE,
        "8192",
    ),
    "I0317 pyconfig.py:413] Config param max_target_length: 8192\n": (
        StatedField.SEQUENCE,
        "8192",
    ),
    "|   seq_length: 8192\n": (StatedField.SEQUENCE, "8192"),
    "  seq_length ...................................... 8192\n": (
        StatedField.SEQUENCE,
        "8192",
    ),
    "|   global_batch_size: 128\n": (StatedField.BATCH, "128"),
    "  global_batch_size ............................... 128\n": (
        StatedField.BATCH,
        "128",
    ),
    "I0317 pyconfig.py:413] Config param global_batch_size_to_train_on: 128\n": (
        StatedField.BATCH,
        "128",
    ),
    "Config param use_dpo: True\n": (StatedField.OBJECTIVE, "rewards"),
}


@pytest.mark.parametrize(
    ("line", "expected"), STATED.items(), ids=[line.strip()[:60] for line in STATED]
)
def test_log_line_states_a_fact(line: str, expected: tuple[str, str]) -> None:
    (segment,) = parse("hello\n" + line + nemo2_run(0, 9)).segments
    assert [
        (statement.field, statement.value, statement.line)
        for statement in segment.stated
        if statement.field == expected[0]
    ] == [(*expected, 2)]
    assert parse(nemo2_run(0, 9) + line).segments[0].stated == ()


INITIALIZED = (
    "[titan] - Trainer is initialized with local batch size 3, global batch size 96, gradient accumulation steps 8, "
    "sequence length 2048, total steps 30000 (warmup 12700)\n"
)


OLMO = (
    "2025-12-26 19:16:24.833\tnode-03:0\ttrain:98\tINFO\tTrainConfig(run_name='OLMo-1B', "
    "model=ModelConfig(d_model=2048, max_sequence_length=4096, include_bias=False, scale_logits=False), "
    f"{'x' * 4000}, max_duration=1000, global_train_batch_size=512, device_train_batch_size=64, "
    "device_train_microbatch_size=8, device_eval_batch_size=8)\n"
)
NANOTRON = (
    "08/31/2024 14:37:26 [INFO|DP=0|PP=0|TP=0]: [Start training] datetime: 2024-08-31 14:37:26.889276 | mbs: 2 | "
    "grad_accum: 1 | global_batch_size: 2 | sequence_length: 256 | train_steps: 15 | start_iteration_step: 0\n"
)


@pytest.mark.parametrize(
    ("line", "batch", "micro_batch", "sequence"),
    [
        (INITIALIZED, "96", "3", "2048"),
        (OLMO, "512", "8", "4096"),
        (NANOTRON, None, "2", "256"),
    ],
    ids=["torchtitan", "OLMo", "nanotron"],
)
def test_log_line_may_state_batch_size_and_sequence_length_together(
    line: str, batch: str | None, micro_batch: str, sequence: str
) -> None:
    (segment,) = parse(line + nemo2_run(0, 9)).segments
    stated = {statement.field: statement.value for statement in segment.stated}
    assert stated.pop(StatedField.BATCH, None) == batch
    assert stated.pop(StatedField.MODEL_SIZES, None) in (None, "d_model: 2048")
    assert stated.pop(StatedField.SEQUENCES, None) in (
        None,
        f"sequence_length: {sequence}",
    )
    assert stated == {
        StatedField.MICRO_BATCH: micro_batch,
        StatedField.SEQUENCE: sequence,
    }


@pytest.mark.parametrize(
    "line",
    [
        "Starting with 8 processes, MEMBER: 4/8\n",
        "num_processes: 8, process_count: 8, jax.process_index: 0\n",
        "  log_world_size_to_tensorboard ................... False\n",
        "[INFO] [config.py:904:print]   world_size ................... 1\n",
        "Building device mesh with parallelism: pp=1, dp_shard=-1, tp=1\n",
        "  fp8_recipe ...................................... None\n",
        "  fp8_recipe: null\n",
        "  eval_micro_batch_size ........................... 2\n",
        "  first_last_layers_bf16 .......................... False\n",
        "  x_ffn_hidden_size: 14336\n",
        "    ffn_hidden_size=self.ffn_hidden_size,\n",
        "  num_experts: the number of experts\n",
        "Config param base_emb_dim: 2560\n",
        "[titan] - root - INFO - Building device mesh of x\n",
        "  fp8: null\n",
        "  use_fp8: true\n",
        "Config param quantization_local_shard_count: 1\n",
        "  deepspeed ....................................... False\n",
        "Config param loss_algo: grpo\n",
        "Config param rl: {'loss_algo': 'grpo', 'stage': 'dpo'}\n",
        "Config param use_dpo: False\n",
        "  grpo_iterations ................................. 2\n",
        "not supported by PPOLIB, see GRPO_NOTES\n",
        "run_name: x, filename: y.txt z\n",
        "GPU 0: NVIDIA RTX A400 (UUID: GPU-9ad78c4b)\n",
        "we compare with the NVIDIA H100 PCIe of [1]\n",
        "NVIDIA Release 25.01 (build 134983853)\n",
    ],
)
def test_line_similar_to_a_statement_states_no_fact(line: str) -> None:
    (segment,) = parse(line + nemo2_run(0, 9)).segments
    assert segment.stated == ()


def members_line(count: int) -> str:
    return f"GLOBAL_RANK: 0, MEMBER: 1/{count}\n"


def test_attempt_that_states_no_facts_inherits_those_of_the_attempt_before() -> None:
    log = parse(
        members_line(8)
        + members_line(16)
        + nemo2_run(0, 9)
        + "restart_count=1\n"
        + members_line(32)
        + nemo2_run(0, 9)
    )
    assert [
        [statement.value for statement in segment.stated] for segment in log.segments
    ] == [
        ["8", "16"],
        ["32"],
    ]
    inherited = parse(
        members_line(8) + nemo2_run(0, 9) + "restart_count=1\n" + nemo2_run(0, 9)
    )
    assert [
        [statement.value for statement in segment.stated]
        for segment in inherited.segments
    ] == [
        ["8"],
        ["8"],
    ]


def test_profiling_is_recorded_for_the_attempt_that_switched_the_profiler() -> None:
    step = "completed step: {}, seconds: 1.000, TFLOP/s/device: 1.000, loss: 1.000\n"
    first, second = (
        "".join(step.format(number) for number in range(count)) for count in (6, 9)
    )
    switched = "completed profiler activation/deactivation step: 6, loss: 1.000\n"
    start = "Config param steps: 9\n"
    for text, expected in (
        (first + switched + start + second, [1, 0]),
        (first + start + second + switched, [0, 1]),
    ):
        segments = parse(text).segments
        assert [
            sum(statement.field == StatedField.PROFILER for statement in segment.stated)
            for segment in segments
        ] == expected


@pytest.mark.parametrize(
    "line",
    [
        "[titan] 2026-03-02 10:00:22,053 - root - INFO - Dumping profiler traces at step 10",
        "[rank0]:[titan] 2026-03-02 09:59:00,000 - root - INFO - Profiling active. Traces will be saved at ./trace",
        "[NeMo I 2025-04-11 14:40:00 nsys:80] ====== Start nsys profiling ======",
        "STAGE:2024-03-02 10:00:22 4242:4242 ActivityProfilerController.cpp:320] Completed Stage: Collection",
    ],
)
@pytest.mark.parametrize("position", ["before", "after"])
def test_log_line_of_a_profiler_marks_the_run_as_profiled(
    line: str, position: str
) -> None:
    text = (
        f"{line}\n{nemo2_run(0, 9)}"
        if position == "before"
        else f"{nemo2_run(0, 9)}{line}\n"
    )
    stated = [
        statement.field
        for segment in parse(text).segments
        for statement in segment.stated
    ]
    assert stated == [StatedField.PROFILER]


@pytest.mark.parametrize(
    "line",
    [
        "profiling: false",
        "enable_profiling = False",
        "profile ...... False",
        "profiler: none",
    ],
)
def test_disabled_profiler_is_not_stated(line: str) -> None:
    assert [
        statement.value
        for segment in parse(f"{line}\n{nemo2_run(0, 9)}").segments
        for statement in segment.stated
    ] == []


@pytest.mark.slow
@pytest.mark.parametrize("size", [61, 4096])
def test_statements_read_from_blocks_and_from_files_are_equal(
    tmp_path: Path, size: int
) -> None:
    data = (
        "noise of a rank\n" * 3000
        + members_line(8)
        + "|   fp8: true\n"
        + nemo2_run(0, 9)
    ).encode()
    path = tmp_path / "log.out"
    path.write_bytes(data)
    blocks = [data[start : start + size] for start in range(0, len(data), size)]
    for log in (
        parse_blocks(blocks),
        parse_blocks([data]),
        read_log(path),
        Growing(path).read(),
    ):
        assert [
            (statement.value, statement.line) for statement in log.segments[0].stated
        ] == [
            ("8", 3001),
            ("fp8", 3002),
        ]


@pytest.mark.parametrize(
    ("name", "gpus"),
    [
        ("megatron/four_clock_runs.out", "16"),
        ("maxtext/nan_loss.out", "8"),
        ("nemo1/stale_bars_dllogger.out", "32"),
        ("torchtitan/two_ranks_print.out", "2"),
    ],
)
def test_real_log_states_gpu_count(name: str, gpus: str) -> None:
    """None of these runs trains on rewards."""
    for segment in read_log(shared(f"logs/{name}")).segments:
        assert [
            statement.value
            for statement in segment.stated
            if statement.field == StatedField.GPUS
        ][-1:] == [gpus]
        assert StatedField.OBJECTIVE not in {
            statement.field for statement in segment.stated
        }


def test_gpu_count_is_read_from_a_line_with_hundreds_of_repeated_labels() -> None:
    """Only the first markers of a line are examined.

    Otherwise a line of one MiB would take minutes.
    """
    stated = "Initializing distributed: GLOBAL_RANK: 3, MEMBER: 4/8"
    log = parse(
        f"{stated} {'GLOBAL_RANK: ' * 500}\n"
        + f"{stated.replace('4/8', '4/16')}\n"
        + nemo2_run(0, 2)
    )
    (segment,) = log.segments
    assert [
        statement.value
        for statement in segment.stated
        if statement.field == StatedField.GPUS
    ] == ["8", "16"]


@pytest.mark.parametrize(
    ("last", "batch"), [("", ["128"]), (" | consumed_samples: 5", [])]
)
def test_batch_size_is_read_from_a_step_record_only_at_line_end(
    last: str, batch: list[str]
) -> None:
    """Also if the whole log is read at once, by columns."""
    lines = (
        f"Training epoch 0, iteration {number}/4 | global_step: {number} | reduced_train_loss: 11.0{number} | "
        f"train_step_timing in s: 7.3{number} | global_batch_size: 128{last}\n"
        for number in range(4)
    )
    (segment,) = parse_blocks(["".join(lines).encode()]).segments
    assert [
        statement.value
        for statement in segment.stated
        if statement.field is StatedField.BATCH
    ] == batch


NOTATIONS = {
    "dots": (
        "  moe_router_topk ................................. 8\n",
        "router top-k",
        "moe_router_topk: 8",
    ),
    "two dots": (
        "  gradient_accumulation_steps .. 8\n",
        "batch of a gpu",
        "gradient_accumulation_steps: 8",
    ),
    "no dots": (
        "  train_micro_batch_size_per_gpu  4\n",
        "batch of a gpu",
        "train_micro_batch_size_per_gpu: 4",
    ),
    "yaml": ("    moe_router_topk: 8\n", "router top-k", "moe_router_topk: 8"),
    "json": ('  "num_experts_per_tok": 8,\n', "router top-k", "num_experts_per_tok: 8"),
    "python": (
        "per_device_train_batch_size=4,\n",
        "batch of a gpu",
        "per_device_train_batch_size: 4",
    ),
    "hydra": (
        "python train.py model.moe_router_topk=8 a=b\n",
        "router top-k",
        "moe_router_topk: 8",
    ),
    "hydra that adds": (
        "'++model.moe.moe_router_topk=8'\n",
        "router top-k",
        "moe_router_topk: 8",
    ),
    "dllogger": (
        "PARAMETER cfg/moe_router_topk : 8  cfg/x : 1\n",
        "router top-k",
        "moe_router_topk: 8",
    ),
    "option": (
        "+ torchrun train.py --num_experts_per_tok 8 --x\n",
        "router top-k",
        "num_experts_per_tok: 8",
    ),
    "option with =": (
        "--model.num_experts_per_tok=8\n",
        "router top-k",
        "num_experts_per_tok: 8",
    ),
    "nanotron": (
        "[INFO|DP=0|PP=0|TP=0]:            hidden_size=4096,\n",
        "model sizes",
        "hidden_size: 4096",
    ),
    "layers of a hybrid": (
        "  hybrid_override_pattern ....... M-M*-M-\n",
        "model sizes",
        "hybrid_override_pattern: m-m*-m-",
    ),
    "layers of experts": (
        "  moe_layer_freq ....... ([0]*1+[1]*31)\n",
        "model sizes",
        "moe_layer_freq: ([0]*1+[1]*31)",
    ),
    "length": ("sequence_len: 8192\n", "sequence lengths", "sequence_len: 8192"),
    "bits": ("load_in_4bit=True,\n", "bits", "load_in_4bit: true"),
    "no bits": ("load_in_4bit=False,\n", "bits", "load_in_4bit: none"),
    "kernels": ("use_liger_kernel=True,\n", "kernels", "use_liger_kernel: true"),
    "adapter": ("adapter: qlora\n", "trained weights", "adapter: qlora"),
    "no adapter": ("adapter: null\n", "trained weights", "adapter: none"),
    "window": (
        "  window_attn_skip_freq .......... 4\n",
        "attention window",
        "window_attn_skip_freq: 4",
    ),
    "coloured": (
        "  window_attn_skip_freq .......... 4\x1b[0m\n",
        "attention window",
        "window_attn_skip_freq: 4",
    ),
    "in a dictionary": (
        '{"window_attn_skip_freq": 4}\n',
        "attention window",
        "window_attn_skip_freq: 4",
    ),
    "deepspeed": ("DeepSpeed Basic Optimizer = AdamW\n", "optimizer", "adamw"),
}
"""Lines, and the field and value that they state."""


PREAMBLE_LINES = [
    (
        "[titan] - INFO - Peak FLOPS used for computing MFU: 9.890e+14\n",
        StatedField.MFU_PEAK,
        "989",
    ),
    (
        " > number of parameters on (tensor, pipeline) rank (0, 0): 1,024\n",
        StatedField.PARAMETERS,
        "1024",
    ),
    (
        "Model llama3 8B size: 8,030,261 total parameters\n",
        StatedField.PARAMETERS,
        "8030261",
    ),
    ("total params: 7000\n", StatedField.PARAMETERS, "7000"),
    ("Total number of parameters: 8.0 B\n", StatedField.PARAMETERS, "8.0 B"),
    ("Total parameters: 8,030\n", StatedField.PARAMETERS, "8030"),
    (
        "Total parameter count: dense 1,000, sparse 2,000, active 1,500\n",
        StatedField.PARAMETERS,
        "dense 1000 sparse 2000 active 1500",
    ),
    ("number parameters: 8.03 billion\n", StatedField.PARAMETERS, "8.03 billion"),
    ("number of parameters: 124.44M\n", StatedField.PARAMETERS, "124.44M"),
    ("8.0 B     Total params\n", StatedField.PARAMETERS, "8.0 B"),
    ("2,506,172 total params, 2,000 of a layer\n", StatedField.PARAMETERS, "2506172"),
    ("num. model params: 8,030\n", StatedField.PARAMETERS, "8030"),
    (
        "trainable params: 41 || all params: 8,030 || trainable%: 0.5\n",
        StatedField.PARAMETERS,
        "8030",
    ),
    (
        "trainable params: 41 || all params: 8,030 || trainable%: 0.5\n",
        StatedField.TRAINABLE,
        "41",
    ),
    (
        "trainable params: 41 || all params: 8,030 || trainable%: 0.5\n",
        StatedField.ADAPTER,
        "adapter",
    ),
    ("Number of trainable parameters = 4,194\n", StatedField.TRAINABLE, "4194"),
    ("4.2 M     Trainable params\n", StatedField.TRAINABLE, "4.2 M"),
    ("Model (8030.3M Trainable [100%])\n", StatedField.TRAINABLE, "8030.3M"),
    ("- 4,194 trainable params\n", StatedField.TRAINABLE, "4194"),
    ("Fine-tuning method: LoRA\n", StatedField.ADAPTER, "lora"),
    (
        "padded vocab (size: 128000) with 256 dummy tokens (new size: 128256)\n",
        StatedField.VOCABULARY,
        "128256",
    ),
    (
        "Applied selective activation checkpointing to the model\n",
        StatedField.RECOMPUTE,
        "applied selective",
    ),
    ("DeepSpeed Basic Optimizer = FusedAdam\n", StatedField.OPTIMIZER, "fusedadam"),
    ("building MockGPTDataset\n", StatedField.DATA, "mock"),
    (
        "CUDA capacity: NVIDIA H100 PCIe with 79.10GiB memory\n",
        StatedField.GPU_MEMORY,
        "80 GB",
    ),
    (
        "| N/A 32C P0 112W / 700W |   1234MiB / 81559MiB |\n",
        StatedField.GPU_MEMORY,
        "80 GB",
    ),
    (
        "| N/A 32C P0 112W / 702W |   1234MiB / 81559MiB |\n",
        StatedField.POWER_LIMIT,
        "700 W",
    ),
    (
        "Non-default values (vs the defaults):\n",
        StatedField.LISTING,
        "non-default values",
    ),
]


@pytest.mark.parametrize(("line", "field", "value"), PREAMBLE_LINES)
def test_line_before_the_first_step_states_a_fact(
    line: str, field: StatedField, value: str
) -> None:
    assert (str(field), value) in read_line(line)


@pytest.mark.parametrize(
    ("table", "lines"),
    [
        (EARLY, [*STATED, INITIALIZED, OLMO, NANOTRON]),
        (PREAMBLE, [line for line, *_ in PREAMBLE_LINES]),
    ],
    ids=["early", "preamble"],
)
def test_each_statement_pattern_matches_an_example_line(
    table: RecogniserTable[StatedField, str], lines: list[str]
) -> None:
    unmatched = [
        row
        for row in table.rows
        if not any(
            re.search(row.pattern, line.encode()) and row.marker in line.encode()
            for line in lines
        )
    ]
    assert [row.marker for row in unmatched if row.marker not in REWARD_MARKERS] == []


def read_line(line: str) -> set[tuple[str, str]]:
    text = line.encode()
    offsets = [(text.find(marker), marker) for marker in PREAMBLE_MARKERS]
    return {
        (str(field), value)
        for offset, marker in offsets
        if offset >= 0
        for field, value in read_preamble(text, offset, marker)
    }


@pytest.mark.parametrize(("line", "field", "value"), NOTATIONS.values(), ids=NOTATIONS)
def test_setting_is_read_in_each_notation(line: str, field: str, value: str) -> None:
    assert (field, value) in read_line(line)


@pytest.mark.parametrize(
    "line",
    [
        "    self.moe_router_topk = config.moe_router_topk\n",
        "    x = self.moe_router_topk=8\n",
        "  /data/a/moe_router_topk: 8\n",
        "  my_moe_router_topk: 8\n",
        "per_device_train_batch_size: auto\n",
        "the option --num_experts_per_tok --x\n",
        "loaded with max_length of 4096\n",
    ],
)
def test_setting_name_in_unrelated_text_is_not_read_as_a_setting(line: str) -> None:
    assert read_line(line) == set()
