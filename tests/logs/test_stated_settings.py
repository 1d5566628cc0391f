"""Settings in the notations of frameworks: one name, one value, whatever is around them."""

from __future__ import annotations

import pytest

from pytest_llmbench.logs.stated_settings import MARKERS, read_values

STATED = {
    "dots": ("  moe_router_topk ................................. 8\n", "router top-k", "moe_router_topk: 8"),
    "two dots": ("  gradient_accumulation_steps .. 8\n", "batch of a gpu", "gradient_accumulation_steps: 8"),
    "no dots": ("  train_micro_batch_size_per_gpu  4\n", "batch of a gpu", "train_micro_batch_size_per_gpu: 4"),
    "yaml": ("    moe_router_topk: 8\n", "router top-k", "moe_router_topk: 8"),
    "json": ('  "num_experts_per_tok": 8,\n', "router top-k", "num_experts_per_tok: 8"),
    "python": ("per_device_train_batch_size=4,\n", "batch of a gpu", "per_device_train_batch_size: 4"),
    "hydra": ("python train.py model.moe_router_topk=8 a=b\n", "router top-k", "moe_router_topk: 8"),
    "hydra that adds": ("'++model.moe.moe_router_topk=8'\n", "router top-k", "moe_router_topk: 8"),
    "dllogger": ("PARAMETER cfg/moe_router_topk : 8  cfg/x : 1\n", "router top-k", "moe_router_topk: 8"),
    "option": ("+ torchrun train.py --num_experts_per_tok 8 --x\n", "router top-k", "num_experts_per_tok: 8"),
    "option with =": ("--model.num_experts_per_tok=8\n", "router top-k", "num_experts_per_tok: 8"),
    "nanotron": ("[INFO|DP=0|PP=0|TP=0]:            hidden_size=4096,\n", "model sizes", "hidden_size: 4096"),
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
    "window": ("  window_attn_skip_freq .......... 4\n", "attention window", "window_attn_skip_freq: 4"),
    "coloured": ("  window_attn_skip_freq .......... 4\x1b[0m\n", "attention window", "window_attn_skip_freq: 4"),
    "in a dictionary": ('{"window_attn_skip_freq": 4}\n', "attention window", "window_attn_skip_freq: 4"),
    "deepspeed": ("DeepSpeed Basic Optimizer = AdamW\n", "optimizer", "adamw"),
}
"""Lines, and the field and value that they state."""


def read_line(line: str) -> set[tuple[str, str]]:
    text = line.encode()
    markers = [marker for marker in MARKERS if marker in text]
    parts = [(text.partition(marker), marker) for marker in markers]
    return {
        (str(field), value) for (head, _, tail), marker in parts for field, value in read_values(head, marker, tail)
    }


@pytest.mark.parametrize(("line", "field", "value"), STATED.values(), ids=STATED)
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
def test_names_in_other_texts_state_nothing(line: str) -> None:
    assert read_line(line) == set()
