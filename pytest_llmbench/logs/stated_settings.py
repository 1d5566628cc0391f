"""The settings that frameworks print before the first step and that decide how much work a step is.

One name is read in every notation: `name ..... 8`, `name: 8`, `name=8`, `"name": 8`, `model.name=8`, `cfg/name : 8`,
`--name 8`. What differs from run to run
(paths, hosts, seeds, intervals, the number of steps) is not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Literal, NamedTuple

from pytest_llmbench.core.log_records import StatedField, Statement
from pytest_llmbench.logs.scan import ByteChunk, Hit, build_search, find_line_begin, locate_hits

# Bytes around a setting that are looked at.
BEFORE, AFTER = 300, 300

# Values that turn a feature off, in whatever version of a framework.
OFF = frozenset(("none", "null", "false", "0", "off", "no"))

CONSTANTS = ("none", "true", "false")

# Words of a value that is a piece of source code.
CODE = re.compile(r"(?:self|args|cfg|config|kwargs|params|model_args)\.")

# Sizes of GPU memories in GB, farther apart than drivers differ in what they report of one.
MEMORIES = (8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 120, 141, 192, 288)


Form = Literal["number", "word", "any", "text"]
"""What a value may be: a number may also be None, True or False; a text is anything without blanks."""


class Setting(NamedTuple):
    """A setting by its names, with which its values begin: `moe_router_topk: 8`."""

    field: StatedField
    names: tuple[str, ...]
    form: Form = "number"
    optional: bool = False  # None, False and 0 turn it off, and mean the same
    before: bytes = b""  # a pattern that its line has to match before the name


class Phrase(NamedTuple):
    """A text that states something in one way only: `pattern` is searched around `marker`."""

    field: StatedField
    marker: bytes
    pattern: bytes
    read: Callable[[str], str]


def _read_count(text: str) -> str:
    """Return a printed number without separators, blanks collapsed: `8,030,261,248`, `8.0 B`, `8.03 billion`."""
    return " ".join(text.replace(",", "").split())


def _read_word(text: str) -> str:
    return text.lower()


def _name_adapter(_: str) -> str:
    return "adapter"


def _read_memory(gibibytes: str) -> str:
    """Return the size of a GPU memory as it is sold: 79.10 GiB is 80 GB."""
    size = float(gibibytes)
    return f"{min(MEMORIES, key=lambda sold: abs(sold - size) / sold)} GB"


def _read_mebibytes(text: str) -> str:
    return _read_memory(str(int(text) / 1024))


def _read_watts(text: str) -> str:
    return f"{round(float(text) / 5) * 5} W"


SETTINGS = (
    Setting(
        StatedField.MODEL_SIZES,
        (
            *(
                "n_layers",
                "n_layer",
                "num_hidden_layers",
                "n_heads",
                "n_head",
                "n_embd",
                "d_model",
                "num_hidden_groups",
            ),
            *("first_k_dense_replace", "num_dense_layers", "n_dense_layers", "first_num_dense_layers"),
        ),
    ),
    Setting(
        StatedField.MODEL_SIZES,
        ("moe_layer_freq", "hybrid_override_pattern", "hybrid_layer_pattern", "layer_types", "block_pattern"),
        form="text",
    ),
    Setting(
        StatedField.MODEL_SIZES,
        ("dim", "embed_dim", "hidden_size", "num_attention_heads"),
        before=rb"(?:Args|Config)\([^\r\n]*\Z|['\"]\Z|(?:\A|\]:)[ \t]{4,80}\Z",
    ),
    Setting(StatedField.FFN, ("ffn_hidden_size", "intermediate_size", "mlp_dim", "base_mlp_dim", "inter_dim")),
    Setting(
        StatedField.FFN,
        ("ffn_dim_multiplier", "multiple_of", "swiglu", "gated_linear_unit", "hidden_act", "activation"),
        form="any",
    ),
    Setting(StatedField.MOE_FFN, ("moe_ffn_hidden_size", "moe_intermediate_size", "moe_inter_dim", "base_moe_mlp_dim")),
    Setting(
        StatedField.MOE_FFN,
        (
            *("moe_shared_expert_intermediate_size", "shared_expert_intermediate_size", "n_shared_experts"),
            *("num_shared_experts", "shared_experts"),
        ),
        optional=True,
    ),
    Setting(
        StatedField.ATTENTION,
        ("kv_channels", "head_dim", "group_query_attention", "multi_latent_attention", "kv_lora_rank", "q_lora_rank"),
        optional=True,
    ),
    Setting(
        StatedField.ATTENTION,
        ("experimental_attention_variant", "linear_attention_type", "linear_attention_freq"),
        form="text",
        optional=True,
    ),
    Setting(
        StatedField.GROUPS,
        (
            "num_query_groups",
            "num_key_value_heads",
            "n_kv_heads",
            "num_kv_heads",
            "base_num_kv_heads",
            "n_query_groups",
        ),
    ),
    Setting(
        StatedField.WINDOW,
        ("window_size", "sliding_window", "sliding_window_size", "use_sliding_window", "local_window_size"),
        optional=True,
    ),
    Setting(StatedField.WINDOW, ("window_attn_skip_freq", "sliding_window_pattern"), form="text", optional=True),
    Setting(
        StatedField.VOCABULARY,
        ("padded_vocab_size", "vocab_size", "override_vocab_size", "original vocab_size"),
    ),
    Setting(
        StatedField.EXPERTS,
        (
            *("num_experts", "num_moe_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"),
            "num_routed_experts",
        ),
        optional=True,
    ),
    Setting(
        StatedField.TOP_K,
        (
            *("moe_router_topk", "num_experts_per_tok", "num_experts_per_token", "moe_top_k", "n_activated_experts"),
            *("moe_k", "n_expert_per_token"),
        ),
        optional=True,
    ),
    # of a sampler, too
    Setting(StatedField.TOP_K, ("top_k",), optional=True, before=rb"(?i:moe\w*\(|experts?)[^\r\n]*\Z"),
    Setting(
        StatedField.BALANCING,
        (
            *(
                "moe_router_force_load_balancing",
                "force_load_balance",
                "debug_force_load_balance",
                "use_random_routing",
            ),
            *("_debug_force_load_balance", "moe_router_force_biased"),
        ),
        optional=True,
    ),
    Setting(
        StatedField.MTP,
        ("mtp_num_layers", "num_nextn_predict_layers", "num_mtp_modules", "n_mtp_layers"),
        optional=True,
    ),
    Setting(
        StatedField.ADAPTER,
        (
            *("lora", "lora_rank", "lora_r", "lora_target", "use_lora", "use_peft", "peft", "peft_scheme", "peft_type"),
            *(
                "train_type",
                "finetuning_type",
                "adapter",
                "tuner_type",
                "freeze_LM",
                "freeze_lm",
                "freeze_ViT",
                "freeze_vit",
            ),
            *("freeze_trainable_layers", "freeze_language_model", "freeze_vision_model"),
        ),
        form="any",
        optional=True,
    ),
    Setting(
        StatedField.CAPACITY,
        (
            *("moe_expert_capacity_factor", "capacity_factor", "moe_pad_expert_input_to_capacity"),
            *("moe_train_capacity_factor", "expert_capacity_factor"),
        ),
        optional=True,
    ),
    Setting(
        StatedField.DROP_POLICY,
        ("moe_token_drop_policy", "moe_token_dropping", "sparse_matmul", "megablox", "moe_router_load_balancing_type"),
        form="any",
    ),
    Setting(
        StatedField.RECOMPUTE,
        (
            *("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules"),
            *("activations_checkpoint_granularity", "activations_checkpoint_method"),
            *("activations_checkpoint_num_layers", "gradient_checkpointing", "activation_checkpointing"),
            *("checkpoint_activations", "remat_policy", "activation_checkpoint_mode", "recompute_activations"),
        ),
        form="any",
        optional=True,
    ),
    Setting(
        StatedField.OPTIMIZER,
        ("optimizer", "optim", "opt_type", "optimizer_type", "optimizer_name"),
        form="word",
    ),
    Setting(
        StatedField.DATA,
        (
            *("mock_data", "dataset_type", "data_impl", "use_synthetic_data", "synthetic_data", "use_fake_data"),
            *("packing", "neat_packing", "sample_packing"),
        ),
        form="any",
    ),
    Setting(
        StatedField.ATTENTION_BACKEND,
        (
            *("attention_backend", "use_flash_attn", "attn_implementation", "_attn_implementation", "attn_impl"),
            *("transformer_impl", "flash_attn", "use_flash_attention", "attn_backend"),
        ),
        form="any",
    ),
    Setting(
        StatedField.ATTENTION_BACKEND,
        ("attention",),
        form="any",
        before=rb"Config param \Z",
    ),
    Setting(
        StatedField.SEQUENCES,
        (
            *("max_seq_length", "max_seq_len", "seq_len", "sequence_len", "sequence_length", "max_length"),
            *("cutoff_len", "model_max_length"),
        ),
    ),
    Setting(
        StatedField.BATCH_PARTS,
        (
            *("per_device_train_batch_size", "gradient_accumulation_steps", "train_micro_batch_size_per_gpu"),
            *("local_batch_size", "batch_accumulation_per_replica", "micro_batch_size"),
        ),
    ),
    Setting(
        StatedField.BITS,
        ("load_in_4bit", "load_in_8bit", "quantization_bit", "quant_bits", "bf16", "fp16"),
        optional=True,
    ),
    Setting(
        StatedField.KERNELS,
        (
            *("use_liger_kernel", "enable_liger_kernel", "use_unsloth", "torch_compile", "use_flex_attn"),
            *("enable_cuda_graph", "cuda_graph_impl", "use_kernels"),
        ),
        form="any",
        optional=True,
    ),
    Setting(StatedField.ATTENTION, ("attn_mask_type",), form="word"),
    Setting(
        StatedField.SHARDING,
        (
            *("zero_optimization_stage", "use_distributed_optimizer", "cpu_offload", "optimizer_cpu_offload"),
            "offload_optimizer",
        ),
        form="any",
    ),
)

_NUMBER = rb"[\d,]{1,24}(?:\.\d{1,6})?"

PHRASES = tuple(
    Phrase(field, marker, pattern, read)
    for field, marker, pattern, read in (
        # the ranks of other stages print numbers of their own, in any order
        (
            StatedField.PARAMETERS,
            b"number of parameters on ",
            rb"number of parameters on [^\r\n]{0,60}rank (?:0|\( ?0(?: ?, ?0){1,3}\)): ([\d,]{1,24})(?!\d)",
            _read_count,
        ),
        (StatedField.PARAMETERS, b" total parameters", rb"size: (%b) total parameters" % _NUMBER, _read_count),
        (StatedField.PARAMETERS, b"total params:", rb"total params: {1,9}([\d,]{1,24})(?!\d)", _read_count),
        (
            StatedField.PARAMETERS,
            b"Total number of parameters",
            rb"Total number of parameters: ([\d,.]{1,24} ?[KMBGT]?)(?![\d.])",
            _read_count,
        ),
        (StatedField.PARAMETERS, b"Total parameters: ", rb"Total parameters: ([\d,]{1,24})(?!\d)", _read_count),
        (
            StatedField.PARAMETERS,
            b"Total parameter count: ",
            rb"Total parameter count: (dense [\d,]{1,24}, sparse [\d,]{1,24}, active [\d,]{1,24})",
            lambda text: text.replace(",", ""),
        ),
        (StatedField.PARAMETERS, b"number parameters: ", rb"number parameters: ([\d.]{1,12} billion)", _read_count),
        (
            StatedField.PARAMETERS,
            b"number of parameters: ",
            rb"number of parameters: ([\d,.]{2,24}[KMB]?)\s",
            _read_count,
        ),
        (StatedField.PARAMETERS, b"  Total params", rb"([\d,.]{1,24} [KMBT]?) {2,9}Total params", _read_count),
        (StatedField.PARAMETERS, b" total params, ", rb"([\d,]{1,24}) total params, ", _read_count),
        (StatedField.PARAMETERS, b"num. model params: ", rb"num\. model params: ([\d,]{1,24})", _read_count),
        (StatedField.PARAMETERS, b" all params: ", rb"\|\| all params: ([\d,]{1,24})", _read_count),
        (StatedField.TRAINABLE, b"trainable params: ", rb"trainable params: ([\d,]{1,24}) \|\|", _read_count),
        (
            StatedField.TRAINABLE,
            b"umber of trainable parameters",
            rb"[Nn]umber of trainable parameters ?[=:] ?([\d,]{1,24})(?!\d)",
            _read_count,
        ),
        (
            StatedField.TRAINABLE,
            b"  Trainable params",
            rb"(?<![\w-])([\d,.]{1,24} [KMBT]?) {2,9}Trainable params",
            _read_count,
        ),
        (StatedField.TRAINABLE, b"M Trainable [", rb"\(([\d.]{1,16}M) Trainable \[", _read_count),
        (StatedField.TRAINABLE, b" trainable params\n", rb"- ([\d,]{1,24}) trainable params\n", _read_count),
        # printed of adapters alone
        (StatedField.ADAPTER, b" all params: ", rb"trainable params: [\d,]{1,24} \|\| all params: \d()", _name_adapter),
        (StatedField.ADAPTER, b"Fine-tuning method: ", rb"Fine-tuning method: (\w{1,20})", _read_word),
        (
            StatedField.VOCABULARY,
            b"padded vocab (size: ",
            rb"padded vocab \(size: \d{1,12}\) with \d{1,9} dummy tokens \(new size: (\d{1,12})\)",
            _read_count,
        ),
        (
            StatedField.RECOMPUTE,
            b" activation checkpointing to the model",
            rb"(Applied \w{1,20}) activation checkpointing to the model",
            _read_word,
        ),
        (
            StatedField.OPTIMIZER,
            b"DeepSpeed Basic Optimizer = ",
            rb"DeepSpeed Basic Optimizer = (\w{1,40})",
            _read_word,
        ),
        (StatedField.DATA, b"Mock", rb"\b(Mock)(?:GPT|LLM|T5|BERT|Llava)?(?:Dataset|DataModule)\b", _read_word),
        (
            StatedField.GPU_MEMORY,
            b"GiB memory",
            rb"CUDA capacity: [^\r\n]{2,80} with (\d{1,4}(?:\.\d{1,6})?)GiB memory",
            _read_memory,
        ),
        (StatedField.GPU_MEMORY, b"MiB |", rb"\| {1,9}\d{1,7}MiB */ *(\d{3,7})MiB \|", _read_mebibytes),
        (
            StatedField.POWER_LIMIT,
            b"MiB |",
            rb"\d{1,5}W */ *(\d{2,5})W \| {1,9}\d{1,7}MiB */ *\d{3,7}MiB \|",
            _read_watts,
        ),
        (StatedField.LISTING, b"Non-default values (vs", rb"(Non-default values) \(vs", _read_word),
    )
)

_compile = cache(re.compile)  # most logs need few of them
_SEPARATOR = rb"['\"]?(?: {0,2}\.{3,60} ?| \.{1,2} | {2}|[ \t]{0,20}[:=] {0,3})['\"]?"
_AFTER_OPTION = rb"[ =]['\"]?"
_ANY = (
    rb"(-?\d{1,12}(?:\.\d{1,9})?(?:[eE][+-]?\d{1,3})?|[A-Za-z_]\w{0,60}(?:[.-]\w{1,60}){0,4}"
    rb"|\((?:-?\d{1,9}, ?)+-?\d{0,9}\)|\[[\w'\", -]{0,280}\])"
    rb"(?=['\",;)\]}\s\x1b|]|\.{3}|\Z)"
)
_TEXT = rb"(\[[\w'\", -]{0,280}\]|[^\s'\",;}\x1b]{1,200})"
_VALUES = {
    (separator, form): re.compile(separator + value)
    for separator in (_SEPARATOR, _AFTER_OPTION)
    for form, value in (("any", _ANY), ("text", _TEXT))
}
_NAMED = re.compile(rb"[\w.$/-]\Z")
_OPTION = re.compile(rb"(?:\A|[\s'\"])--(?:[a-z_]\w{0,40}\.){0,6}\Z")
_SECTION = re.compile(rb"(?:\A|[\s'\"\[,(])(?:\+{0,2}(?!self\.)(?:[a-z_]\w{0,40}\.){1,6}|\w{1,20}/)\Z")
"""What may be before a name: an option of a command line, or the sections of a configuration that it is in."""

_SETTINGS_BY_NAME: dict[bytes, list[Setting]] = {}
for _setting in SETTINGS:
    for _name in _setting.names:
        _SETTINGS_BY_NAME.setdefault(_name.encode(), []).append(_setting)
_PHRASES_BY_MARKER: dict[bytes, list[Phrase]] = {}
for _phrase in PHRASES:
    _PHRASES_BY_MARKER.setdefault(_phrase.marker, []).append(_phrase)

MARKERS = tuple(dict.fromkeys((*_SETTINGS_BY_NAME, *_PHRASES_BY_MARKER)))


def find_statements(chunk: ByteChunk, begin: int, stop: int, most_in_line: int) -> list[Statement]:
    """Return what is stated between two offsets of a chunk: each value once, on its last line.

    At most `most_in_line` places of one marker are looked at in a line.
    """
    places = build_search(MARKERS).find_places(chunk.text, begin, stop)
    statements: dict[tuple[StatedField, str], Statement] = {}
    line, in_line = 0, dict[bytes, int]()
    part = chunk._replace(start=begin, line=chunk.line + chunk.text.count(b"\n", chunk.start, begin))
    for hit in locate_hits(part, places):
        if hit.line != line:
            line, in_line = hit.line, {}
        in_line[hit.marker] = in_line.get(hit.marker, 0) + 1
        if in_line[hit.marker] > most_in_line:
            continue
        for field, value in read_values(*_cut_line(hit)):
            statements.pop((field, value), None)
            statements[field, value] = Statement(field, value, hit.line)
    return list(statements.values())


def _cut_line(hit: Hit) -> tuple[bytes, bytes, bytes]:
    """Return what stands before a marker on its line, the marker, and what follows it, both cut."""
    head = hit.text[max(0, hit.start - BEFORE) : hit.start]
    tail = hit.text[hit.start + len(hit.marker) : hit.start + len(hit.marker) + AFTER]
    end = tail.find(b"\n")
    return head[find_line_begin(head, 0, len(head)) :], hit.marker, tail[: end + 1] if end >= 0 else tail


@lru_cache(4096)  # each rank prints the same
def read_values(head: bytes, marker: bytes, tail: bytes) -> tuple[tuple[StatedField, str], ...]:
    """Return the fields and values that a line states at a marker."""
    values = []
    for phrase in _PHRASES_BY_MARKER.get(marker, ()):
        line = b"".join((head, marker, tail))
        match = next((each for each in _compile(phrase.pattern).finditer(line) if each.end() > len(head)), None)
        if match:
            values.append((phrase.field, phrase.read(match[1].decode("ascii", "replace"))))
    separator = _find_separator(head)
    for setting in _SETTINGS_BY_NAME.get(marker, ()) if separator else ():
        match = _VALUES[separator, "text" if setting.form == "text" else "any"].match(tail)
        text = match[1].decode("ascii", "replace") if match else ""
        if text and _compile(setting.before).search(head) and (value := _read_value(setting, marker.decode(), text)):
            values.append((setting.field, value))
    return tuple(values)


def _find_separator(head: bytes) -> bytes:
    """Return the pattern between a name and its value; empty if the name is a part of something else."""
    if not _NAMED.search(head) or _SECTION.search(head):
        return _SEPARATOR
    return _AFTER_OPTION if _OPTION.search(head) else b""


def _read_value(setting: Setting, name: str, text: str) -> str:
    """Return the value of a setting as it is compared; empty for a text that is no value of it."""
    if CODE.match(text):
        return ""
    value = text.lower() if setting.form == "text" and text[0] != "[" else _normalise(text)
    is_word = value[0].isalpha() or value[0] == "_"
    if (setting.form == "number" and is_word and value not in CONSTANTS) or (setting.form == "word" and not is_word):
        return ""
    if setting.optional and value in OFF:
        value = "none"
    return f"{name}: {value}"


def _normalise(text: str) -> str:
    """Return `auto` for `AttnBackend.auto`, `none` for `null`, 8 for 8.0, lists without quotes and blanks."""
    if text[0] in "[(":
        return re.sub(r"['\"\s]", "", text).lower()
    if text[0].isalpha() or text[0] == "_":
        word = text.rpartition(".")[2].lower()
        return "none" if word == "null" else word
    number = float(text)
    return str(int(number)) if number.is_integer() else repr(number)
