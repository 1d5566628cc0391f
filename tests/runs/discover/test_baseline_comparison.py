"""Runs at the path of a user-defined baseline: facts that prevent or allow a match."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.builders import BASELINE
from support.written_logs import nemo2_run, parse

from pytest_llmbench.core.baseline_records import Baseline, Recipe, Recording, RunMatch
from pytest_llmbench.core.run_records import AttemptFiles, Identity, RunFiles
from pytest_llmbench.runs.discover.identify import identify
from pytest_llmbench.runs.discover.run_facts import collect_facts


def write_arguments(**changes: object) -> str:
    """Return a dump of Megatron's arguments; a value of `...` leaves its argument
    out."""
    arguments: dict[str, object] = {
        "world_size": 64,
        "num_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "seq_length": 4096,
        "global_batch_size": 256,
        "micro_batch_size": 1,
        "ffn_hidden_size": 14336,
        "num_query_groups": 8,
        "num_experts": 64,
        "moe_router_topk": 8,
        "moe_expert_capacity_factor": None,
        "mtp_num_layers": 1,
        "moe_token_drop_policy": "probs",
        "moe_router_force_load_balancing": False,
        "window_size": None,
        "padded_vocab_size": 128256,
        "recompute_granularity": None,
        "optimizer": "adam",
        "mock_data": False,
        "attention_backend": "AttnBackend.auto",
        "bf16": True,
        "fp8": None,
        "freeze_LM": False,
        "seed": 1234,
        "save": "/home/a/ckpt",
        "train_iters": 50,
        "log_interval": 1,
        "expert_model_parallel_size": 8,
        **changes,
    }
    rows = [
        f"  {name} {'.' * (48 - len(name))} {value}\n"
        for name, value in arguments.items()
        if value is not ...
    ]
    return "".join(
        ("------------------------ arguments ------------------------\n", *rows)
    )


WORLD = "using world size: 64, data-parallel size: 16, context-parallel size: 1, tensor-model-parallel size: 4\n"
MEGATRON = f"{WORLD}{write_arguments()} > number of parameters on (tensor, pipeline) model parallel rank (0, 0): 2007\n"
NEMO = (
    "[NeMo W] trainer:\n  num_nodes: 8\n  model:\n    num_layers: 32\n    hidden_size: 4096\n"
    "    ffn_hidden_size: 14336\n"
    "    num_query_groups: 8\n    num_moe_experts: 8\n    moe_router_topk: 2\n"
    "    activations_checkpoint_method: uniform\n"
    "    activations_checkpoint_num_layers: 1\n    data_impl: mock\n    global_batch_size: 256\n"
    "[NeMo I] Padded vocab_size: 128256, original vocab_size: 128256, dummy tokens: 0.\n"
    "8.0 B     Trainable params\n0         Non-trainable params\n8.0 B     Total params\n"
)
TITAN = (
    "| N/A   32C    P0             118W /  700W |       1MiB /  81559MiB |      0%      Default |\n"
    "[titan] 2026-05-01 10:00:00,000 - root - INFO - CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory\n"
    "[titan] 2026-05-01 10:00:00,000 - root - INFO - Building llama4 17bx16e with TransformerModelArgs(dim=5120, "
    "n_layers=48, n_heads=40, n_kv_heads=8, vocab_size=202048, moe_args=MoEArgs(num_experts=16, top_k=1))\n"
    "[titan] 2026-05-01 10:00:00,000 - root - INFO - Model llama4 17bx16e size: 108,000,000,000 total parameters\n"
    "[titan] 2026-05-01 10:00:00,000 - root - INFO - Applied selective activation checkpointing to the model\n"
    "[titan] 2026-05-01 10:00:00,000 - root - INFO - Trainer is initialized with local batch size 1, "
    "global batch size 8, gradient accumulation steps 1, sequence length 8192, total steps 50 (warmup 2)\n"
)
MAXTEXT = "".join(
    f"Config param {name}: {value}\n"
    for name, value in {
        "attention": "flash",
        "base_emb_dim": 4096,
        "base_mlp_dim": 14336,
        "base_num_kv_heads": 8,
        "capacity_factor": -1.0,
        "dataset_type": "c4_mlperf",
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "remat_policy": "full",
        "use_random_routing": False,
        "vocab_size": 32000,
        "opt_type": "adamw",
        "run_name": "night_1",
        "global_batch_size_to_train_on": 64,
    }.items()
)
HUGGING_FACE = (
    'Model config MixtralConfig {\n  "hidden_size": 4096,\n  "intermediate_size": 14336,\n  "num_hidden_layers": 32,\n'
    '  "num_key_value_heads": 8,\n  "num_experts_per_tok": 2,\n  "num_local_experts": 8,\n  "sliding_window": null,\n'
    '  "vocab_size": 32000,\n  "attn_implementation": "sdpa",\n  "transformers_version": "4.51.0"\n}\n'
    "  Total train batch size (w. parallel, distributed & accumulation) = 64\n"
    "  Number of trainable parameters = 46,702,792,704\n"
)
DEEPSPEED = (
    "[INFO] [config.py:678:print]   train_batch_size ............. 64\n"
    "[INFO] [config.py:678:print]   train_micro_batch_size_per_gpu  ............. 2\n"
    "[INFO] [config.py:678:print]   optimizer_name ............... adamw\n"
    "[INFO] [config.py:678:print]   zero_optimization_stage ...... 3\n"
    'json = {\n    "moe_top_k": 2,\n    "num_experts": 8,\n    "ffn_hidden_size": 11008\n}\n'
)
TOP_K = "moe_router_topk ................................. 8"
DUMPS = {
    "megatron": MEGATRON,
    "nemo": NEMO,
    "torchtitan": TITAN,
    "maxtext": MAXTEXT,
    "huggingface": HUGGING_FACE,
    "deepspeed": DEEPSPEED,
}


def read(
    text: str, environment: tuple[tuple[str, str], ...] = ()
) -> tuple[RunFiles, tuple[object, ...]]:
    files = AttemptFiles(0, "/runs/oak", "slurm-7.out")
    run = RunFiles("oak/7", "/runs/oak", (files,), (), environment=environment)
    return run, (parse(text + nemo2_run(0, 9)),)


def record(
    text: str, name: str = "oak", environment: tuple[tuple[str, str], ...] = ()
) -> Baseline:
    """Return the baseline that a recording of such a run writes."""
    run, logs = read(text)
    says = tuple((fact.name, fact.text) for fact in collect_facts(run, logs))  # type: ignore[arg-type]
    key = replace(BASELINE.key, recipe=name)
    return replace(
        BASELINE,
        configuration=replace(BASELINE.configuration, key=key),
        dialect="nemo2",
        match=RunMatch("oak/slurm-#.out", says),
        recording=Recording(
            "2026-05-01", 1, 6.0, 6.0, 0.1, (6.0,), (), environment=environment
        ),
    )


def identify_run(
    text: str, *baselines: Baseline, environment: tuple[tuple[str, str], ...] = ()
) -> Identity:
    run, logs = read(text, environment)
    recipe = Recipe(
        "oak",
        "own",
        BASELINE.kind,
        "",
        "",
        "nemo2",
        (),
        "",
        baselines,
        (),
        (),
        Path("own.yaml"),
    )
    return identify(run, logs, [recipe])  # type: ignore[arg-type]


def change_value(text: str, setting: str, value: str) -> str:
    """Return a dump in which a setting has another value.

    The old value is the last word, or the text after the last `=`.
    """
    assert setting in text
    last = re.split(r"[ =]", setting)[-1]
    return text.replace(setting, f"{setting.removesuffix(last)}{value}")


MAJOR = [
    (
        "megatron",
        "moe_router_topk ................................. 8",
        "4",
        "router top-k moe_router_topk 4 (line 13), not 8",
    ),
    (
        "megatron",
        "num_experts ..................................... 64",
        "32",
        "experts num_experts 32 (",
    ),
    (
        "megatron",
        "ffn_hidden_size ................................. 14336",
        "12288",
        "ffn_hidden_size 12288 (",
    ),
    (
        "megatron",
        "moe_router_force_load_balancing ................. False",
        "True",
        "force_load_balancing true (",
    ),
    (
        "megatron",
        "padded_vocab_size ............................... 128256",
        "32000",
        "padded_vocab_size 32000 (",
    ),
    (
        "megatron",
        "mtp_num_layers .................................. 1",
        "None",
        "mtp layers mtp_num_layers none (",
    ),
    (
        "megatron",
        "num_query_groups ................................ 8",
        "32",
        "query groups num_query_groups 32 (",
    ),
    (
        "megatron",
        "window_size ..................................... None",
        "(4096, 0)",
        "window_size (4096,0) (",
    ),
    (
        "megatron",
        "recompute_granularity ........................... None",
        "full",
        "recompute_granularity full (",
    ),
    (
        "megatron",
        "moe_token_drop_policy ........................... probs",
        "position",
        "drop_policy position (",
    ),
    (
        "megatron",
        "moe_expert_capacity_factor ...................... None",
        "1.25",
        "capacity_factor 1.25 (",
    ),
    (
        "megatron",
        "freeze_LM ....................................... False",
        "True",
        "trained weights freeze_LM true (",
    ),
    (
        "megatron",
        "expert_model_parallel_size ...................... 8",
        "4",
        "expert_model_parallel_size 4 (",
    ),
    ("megatron", "rank (0, 0): 2007", "1761", "parameters 1761 ("),
    ("nemo", "moe_router_topk: 2", "1", "router top-k moe_router_topk 1 ("),
    ("nemo", "num_moe_experts: 8", "16", "experts num_moe_experts 16 ("),
    ("nemo", "ffn_hidden_size: 14336", "11008", "ffn size ffn_hidden_size 11008 ("),
    ("nemo", "num_query_groups: 8", "32", "query groups num_query_groups 32 ("),
    (
        "nemo",
        "activations_checkpoint_method: uniform",
        "null",
        "activations_checkpoint_method none (",
    ),
    ("torchtitan", "top_k=1", "2", "router top-k top_k 2 ("),
    ("torchtitan", "num_experts=16", "8", "experts num_experts 8 ("),
    ("torchtitan", "n_kv_heads=8", "40", "query groups n_kv_heads 40 ("),
    ("torchtitan", "n_layers=48", "24", "model sizes n_layers 24 ("),
    ("torchtitan", "vocab_size=202048", "32000", "vocabulary vocab_size 32000 ("),
    (
        "torchtitan",
        "with 79.10GiB",
        "139.81GiB",
        "gpu memory 141 GB, 80 GB (line 2), not 80 GB",
    ),
    (
        "torchtitan",
        "size: 108,000,000,000",
        "90,000,000,000",
        "parameters 90000000000 (",
    ),
    ("torchtitan", "Applied selective", "full", "recompute applied full ("),
    ("maxtext", "num_experts_per_tok: 2", "1", "router top-k num_experts_per_tok 1 ("),
    ("maxtext", "base_mlp_dim: 14336", "8192", "ffn size base_mlp_dim 8192 ("),
    ("maxtext", "base_num_kv_heads: 8", "32", "query groups base_num_kv_heads 32 ("),
    (
        "maxtext",
        "use_random_routing: False",
        "True",
        "forced balancing use_random_routing true (",
    ),
    (
        "maxtext",
        "capacity_factor: -1.0",
        "1.25",
        "expert capacity capacity_factor 1.25 (",
    ),
    ("maxtext", "remat_policy: full", "minimal", "recompute remat_policy minimal ("),
    (
        "huggingface",
        '"num_experts_per_tok": 2',
        "1",
        "router top-k num_experts_per_tok 1 (",
    ),
    (
        "huggingface",
        '"intermediate_size": 14336',
        "8192",
        "ffn size intermediate_size 8192 (",
    ),
    (
        "huggingface",
        '"sliding_window": null',
        "4096",
        "attention window sliding_window 4096 (",
    ),
    (
        "huggingface",
        '"num_hidden_layers": 32',
        "16",
        "model sizes num_hidden_layers 16 (",
    ),
    (
        "huggingface",
        "parameters = 46,702,792,704",
        "4,194,304",
        "trainable parameters 4194304 (",
    ),
    ("deepspeed", '"moe_top_k": 2', "1", "router top-k moe_top_k 1 ("),
    (
        "deepspeed",
        '"ffn_hidden_size": 11008',
        "8192",
        "ffn size ffn_hidden_size 8192 (",
    ),
]


@pytest.mark.parametrize(("dump", "setting", "value", "message"), MAJOR)
def test_changed_workload_matches_no_baseline(
    dump: str, setting: str, value: str, message: str
) -> None:
    text = DUMPS[dump]
    changed = change_value(text, setting, value)
    identity = identify_run(changed, record(text))
    assert identity.key is None
    assert identity.because.startswith("another configuration than oak")
    assert message in identity.because


@pytest.mark.parametrize(
    ("column", "message"),
    [("Trainable", "trainable parameters 4.2 M ("), ("Total", "parameters 4.2 M (")],
)
def test_changed_lightning_table_matches_no_baseline(column: str, message: str) -> None:
    changed = NEMO.replace(f"8.0 B     {column}", f"4.2 M     {column}")
    assert message in identify_run(changed, record(NEMO)).because


MINOR = [
    (
        "megatron",
        "mock_data ....................................... False",
        "True",
        "data kind mock_data true",
    ),
    (
        "megatron",
        "optimizer ....................................... adam",
        "sgd",
        "optimizer optimizer sgd",
    ),
    (
        "megatron",
        "attention_backend ............................... AttnBackend.auto",
        "fused",
        "backend fused",
    ),
    ("nemo", "data_impl: mock", "mmap", "data kind data_impl mmap"),
    (
        "maxtext",
        "dataset_type: c4_mlperf",
        "synthetic",
        "data kind dataset_type synthetic",
    ),
    (
        "maxtext",
        "attention: flash",
        "dot_product",
        "attention backend attention dot_product",
    ),
    (
        "huggingface",
        '"attn_implementation": "sdpa"',
        '"eager"',
        "attn_implementation eager",
    ),
    (
        "deepspeed",
        "zero_optimization_stage ...... 3",
        "2",
        "sharding zero_optimization_stage 2",
    ),
    ("torchtitan", "118W /  700W", "400W", "power limit 400 W (line 1), not 700 W"),
]


@pytest.mark.parametrize(("dump", "setting", "value", "message"), MINOR)
def test_run_with_a_minor_change_matches_with_a_caution(
    dump: str, setting: str, value: str, message: str
) -> None:
    text = DUMPS[dump]
    identity = identify_run(change_value(text, setting, value), record(text))
    assert identity.key is not None
    assert message in "; ".join(identity.changes)


def drop_dump(text: str) -> str:
    return WORLD


def reverse_dump(text: str) -> str:
    head, *rows = text.splitlines(keepends=True)
    return "".join((head, *reversed(rows)))


def add_arguments(text: str) -> str:
    more = {
        "num_nextn_predict_layers": 0,
        "moe_new_switch": True,
        "sliding_window": None,
        "gated_linear_unit": True,
    }
    return text + "".join(
        f"  {name} {'.' * (48 - len(name))} {value}\n" for name, value in more.items()
    )


def change_run(text: str) -> str:
    changes = (
        ("1234", "99"),
        ("/home/a/", "/scratch/b/"),
        ("train_iters ", "train_iters_2 "),
        ("night_1", "night_2"),
    )
    for old, new in changes:
        text = text.replace(old, new)
    return text.replace("log_interval ", "save_interval ")


HONEST: list[tuple[str, Callable[[str], str]]] = [
    ("megatron", drop_dump),
    *((name, add_arguments) for name in DUMPS),
    *((name, change_run) for name in DUMPS),
    *((name, reverse_dump) for name in ("megatron", "maxtext")),
    (
        "torchtitan",
        lambda text: text.replace("79.10GiB", "79.19GiB").replace(
            "81559MiB", "81079MiB"
        ),
    ),
    ("nemo", lambda text: text.replace("    num_query_groups: 8\n", "")),
]


@pytest.mark.parametrize(("dump", "change"), HONEST)
def test_log_with_an_ordinary_change_still_matches_its_baseline(
    dump: str, change: Callable[[str], str]
) -> None:
    text = DUMPS[dump]
    identity = identify_run(change(text), record(text))
    assert identity.key is not None
    assert not identity.changes
    assert identify_run(text, record(change(text))).key is not None


def test_facts_stated_by_only_the_run_or_the_baseline_are_listed() -> None:
    identity = identify_run(drop_dump(MEGATRON), record(MEGATRON))
    (missing,) = identity.one_sided
    assert missing.startswith(
        "the run no longer states attention backend, attention heads, "
    )
    (added,) = identify_run(MEGATRON, record(WORLD)).one_sided
    assert added.startswith("the baseline does not state attention backend, ")


def test_step_count_is_no_configuration_change() -> None:
    baseline = replace(
        record(""), match=RunMatch("oak/slurm-#.out", (("steps", "999"),))
    )
    identity = identify_run("", baseline)
    assert (identity.key, identity.changes) == (baseline.key, ())


def test_run_that_shares_no_fact_with_the_baseline_is_unmatched() -> None:
    gpus = replace(
        record(""), match=RunMatch("oak/slurm-#.out", (("gpus", "64"), ("steps", "50")))
    )
    assert identify_run(TITAN, gpus).key is None
    assert (
        identify_run(
            TITAN, replace(record(""), match=RunMatch("oak/slurm-#.out", ()))
        ).key
        is not None
    )


def test_run_without_facts_is_matched_by_path() -> None:
    gpus = replace(
        record(""), match=RunMatch("oak/slurm-#.out", (("gpus", "64"), ("steps", "50")))
    )
    identity = identify_run("", gpus)
    assert identity.key == gpus.key
    assert identity.one_sided[0].startswith("the run no longer states gpus")


@pytest.mark.parametrize(
    ("before", "now", "matches"),
    [
        ("", "Float8 training active\n", False),
        ("Float8 training active\n", "", False),
        ("Applied full activation checkpointing to the model\n", "", False),
        (
            "",
            "trainable params: 4,194,304 || all params: 6,742,609,920 || trainable%: 0.0622\n",
            False,
        ),
    ],
)
def test_feature_line_in_only_one_of_run_and_baseline_prevents_a_match(
    before: str, now: str, matches: bool
) -> None:
    assert (
        identify_run(TITAN + now, record(TITAN + before)).key is not None
    ) is matches


def test_adapter_missing_in_older_baseline_is_reported() -> None:
    lora = "trainable params: 4,194,304 || all params: 6,742,609,920 || trainable%: 0.0622\n"
    identity = identify_run(WORLD + lora, record(WORLD))
    assert identity.key is not None
    assert identity.changes == (
        "trained weights adapter (line 2), which the baseline does not state",
    )


def test_value_missing_in_the_list_of_non_default_values_is_a_difference() -> None:
    listed = "[model] Non-default values (vs Mcore TransformerConfig):\n  num_layers: 80\n  hidden_size: 8192\n"
    identity = identify_run(listed, record(f"{listed}  moe_router_topk: 8\n"))
    assert (
        "router top-k moe_router_topk is not stated (8 in the baseline)"
        in identity.because
    )


@pytest.mark.parametrize(("now", "matches"), [("25.05", False), ("25.07", True)])
def test_changed_default_is_a_minor_difference_if_the_version_changed(
    now: str, matches: bool
) -> None:
    changed = MEGATRON.replace(
        "moe_token_drop_policy ........................... probs",
        "moe_token_drop_policy ..... position",
    )
    baseline = record(MEGATRON, environment=(("framework", "nemo2 25.05"),))
    identity = identify_run(
        changed, baseline, environment=(("framework", f"nemo2 {now}"),)
    )
    assert (identity.key is not None) is matches
    larger = change_value(changed, TOP_K, "4")
    assert (
        identify_run(larger, baseline, environment=(("framework", f"nemo2 {now}"),)).key
        is None
    )


def test_most_specific_baseline_is_chosen() -> None:
    other = change_value(MEGATRON, TOP_K, "4")
    first, second = record(MEGATRON, "first"), record(other, "second")
    assert identify_run(MEGATRON, first, second).key == first.key
    assert identify_run(other, first, second).key == second.key
    old = record(other.replace("moe_router_topk", "moe_router_other"), "old")
    assert identify_run(other, old, second).key == second.key
    unclear = identify_run(drop_dump(MEGATRON), first, second)
    assert unclear.key is None
    assert unclear.candidates == tuple(sorted((first.key, second.key)))
    assert "router top-k" in unclear.because or "does not state" in unclear.because
