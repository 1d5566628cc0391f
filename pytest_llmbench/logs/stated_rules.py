"""The ways in which logs state what their run is: texts that are looked for, and what has to stand around them.

A line is read only where it looks as its framework prints it: a word in a path or a sentence states nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from pytest_llmbench.core.gpus import KNOWN, read_gpu_type
from pytest_llmbench.core.log_records import StatedField

# Expert parallelism of torchtitan lies inside of the other axes: it takes no GPU of its own.
AXES_INSIDE_OTHERS = frozenset(("ep", "etp"))

NOT_FP8, NO_QUANTIZATION = "not fp8", "none"

# Words of a line that names another run than the one that prints it: the one that its weights or data come from.
ELSEWHERE = re.compile(rb"(?i)load|restor|resum|checkpoint|ckpt|cache")

ValueReader = Callable[["re.Match[bytes]"], str]


class Rule(NamedTuple):
    """One way to state something: `pattern` is searched around `marker`; without a value nothing is stated."""

    marker: bytes
    field: StatedField
    pattern: re.Pattern[bytes]
    value: ValueReader


def _read_number(match: re.Match[bytes]) -> str:
    return str(int(match[1]))


def _read_text(match: re.Match[bytes]) -> str:
    return match[1].decode("utf-8", "replace").strip()


def _read_words(match: re.Match[bytes]) -> str:
    return _read_text(match).replace(" ", "_")


def _read_setting(match: re.Match[bytes]) -> str:
    """Return `name: 8` for `name ....... 8`, too."""
    name, *_, value = _read_text(match).replace(":", " ").split()
    return f"{name}: {value}"


def _read_own_name(match: re.Match[bytes]) -> str:
    """Return the name of a run; empty on a line about a checkpoint or a cache, which may be another run's."""
    return "" if ELSEWHERE.search(match.string) else _read_text(match)


def _multiply_axes(match: re.Match[bytes]) -> str:
    """Return the product of `pp=1, dp_replicate=1, dp_shard=8, cp=1, tp=1, ep=1` but for what lies inside of others."""
    pairs = (pair.split("=") for pair in match[1].decode().split(", "))
    return str(math.prod(int(size) for name, size in pairs if name not in AXES_INSIDE_OTHERS))


def _multiply_sizes(match: re.Match[bytes]) -> str:
    """Return the product of the sizes in `['dp_shard', 'tp'], [4, 2]`."""
    return str(math.prod(map(int, match[1].split(b","))))


def _read_quantization(match: re.Match[bytes]) -> str:
    """Return the numbers that MaxText's `quantization` means, empty for a word that is not known."""
    word = match[1].decode("utf-8", "replace").strip().casefold().rpartition(".")[2]
    if word in ("", "none"):
        return NO_QUANTIZATION
    return next((precision for precision in ("fp8", "fp4", "int8", "int4") if precision in word), "")


def _read_argument(match: re.Match[bytes]) -> str:
    """Return what Megatron's argument `fp8` means: None, or a format such as e4m3 and hybrid."""
    return NOT_FP8 if match[1] in (b"None", b"False") else "fp8"


def _read_switch(match: re.Match[bytes]) -> str:
    return NOT_FP8 if match[1].lower() == b"false" else "fp8"


def _read_gpu(match: re.Match[bytes]) -> str:
    """Return the type of a GPU, empty for a name that does not begin with one: an RTX may drive a screen."""
    name = match[1].decode("utf-8", "replace").lower().removeprefix("nvidia ")
    return read_gpu_type(name) if KNOWN.match(name) else ""


def _return_always(value: str) -> ValueReader:
    return lambda _: value


def _compile_rules(field: StatedField, *rows: tuple[bytes, bytes, ValueReader]) -> Iterator[Rule]:
    """Yield the rules for a field, from rows of marker, pattern and value."""
    return (Rule(marker, field, re.compile(pattern), value) for marker, pattern, value in rows)


AXIS = rb"[a-z_]{1,20}=\d{1,9}"
METHODS = rb"(?i:dpo|grpo|orpo|cpo|ppo|kto|rloo)"
# A trainer by its name, or the method that was asked for. MaxText prints the settings of each, used or not.
REWARDS = (
    rb"\A(?![^\r\n]*Config param )[^\r\n]*"
    rb"(?:(?<![A-Za-z0-9_])(?:DPO|GRPO|ORPO|CPO|PPO|KTO|RLOO)(?:Trainer|Config)?(?![A-Za-z0-9_])"
    rb"|(?:stage|rlhf_type|algorithm)[ :='\"]{1,4}%b(?![A-Za-z0-9_])|(?<![A-Za-z0-9])%b_trainer(?![A-Za-z0-9]))"
    % (METHODS, METHODS)
)

# What stands before the name of a setting: no part of a longer name.
BEGINS = rb"(?<=[ \t|])"

# A number that a line ends with, behind the marker that names it.
SETTING = BEGINS + rb"%b(\d{1,9})[ \t]*[\r\n]"

# The ends of values: a colour may follow, and the dots of GPT-NeoX, which says behind them whether it is a default.
VALUE_ENDS = rb"(?=[.\s\x1b])"

# A record of MLPerf by its key, up to the value.
MLPERF = rb'MLLOG [^\r\n]{0,200}?"key": ?"%b", ?"value": ?'

CONFIGURATION_RULES = (
    *_compile_rules(
        StatedField.LAYOUT,
        (
            b"device mesh with",
            rb"device mesh with parallelism: ((?:%b, )*%b)[ \t]*[\r\n\x1b]" % (AXIS, AXIS),
            _read_text,
        ),
        (b"device mesh with", rb"device mesh with (\[[^\]\r\n]{1,99}\], \[\d[\d, ]{0,60}\])", _read_text),
        (b"using world size: ", rb"using world size: \d{1,9}, ([^\r\n\x1b]{1,300})", _read_text),
        *(
            (b"%b: " % name, BEGINS + rb"(%b: \d{1,9})[ \t]*[\r\n]" % name, _read_text)
            for name in (b"tensor_model_parallel_size", b"pipeline_model_parallel_size", b"context_parallel_size")
        ),
        (
            b"expert_model_parallel_size",
            BEGINS + rb"(expert_model_parallel_size(?:: | \.{4,60} )\d{1,9})" + VALUE_ENDS,
            _read_setting,
        ),
    ),
    *_compile_rules(
        StatedField.MICRO_BATCH,
        (b"local batch size ", rb"initialized with local batch size (\d{1,9}),", _read_number),
        (b"micro_batch_size: ", SETTING % b"micro_batch_size: ", _read_number),
        (b"micro_batch_size .", rb"(?<![\w-])micro_batch_size \.{4,60} (\d{1,9})" + VALUE_ENDS, _read_number),
        (
            b"global_train_batch_size=",
            rb"\bglobal_train_batch_size=\d{1,9}, device_train_batch_size=\d{1,9}, "
            rb"device_train_microbatch_size=(\d{1,9}),",
            _read_number,
        ),
        (b"batch_size_per_gpu .", rb"train_micro_batch_size_per_gpu \.{1,60} (\d{1,9})" + VALUE_ENDS, _read_number),
        (
            b"Config param per_device_batch_size: ",
            rb"Config param per_device_batch_size: ([\d.]{1,20})[ \t]*[\r\n]",
            _read_text,
        ),
        (b"| mbs: ", rb"\[Start training\] [^\r\n]{1,99}\| mbs: (\d{1,9}) \|", _read_number),
        (b"batch size per device = ", rb"Instantaneous batch size per device = ([\d,]{1,15})", _read_text),
    ),
    *_compile_rules(
        StatedField.NUMBERS,
        *(
            (b"%b ...." % name, rb"(?<![\w-])(%b) \.{4,60} (?:True|\{'enabled': True)" % name, _read_text)
            for name in (b"bf16", b"fp16")
        ),
        # Recipes of FP8 differ by 6 to 50 %; None is that of a run without FP8.
        (b"fp8_recipe ....", rb"(?<![\w-])(fp8_recipe \.{4,60} (?!None)\w{1,20})" + VALUE_ENDS, _read_setting),
        (b"fp8_recipe: ", rb"(?<![\w-])(fp8_recipe: (?!null|None)\w{1,20})" + VALUE_ENDS, _read_setting),
        (b"Config param dtype: ", rb"Config param dtype: (\w{1,20})[ \t]*[\r\n]", _read_text),
    ),
    *_compile_rules(
        StatedField.BATCH,
        (b"local batch size ", rb"local batch size \d{1,9}, global batch size (\d{1,9}),", _read_number),
        (
            b"accumulation) = ",
            rb"Total train batch size \(w\. parallel, distributed & accumulation\) = ([\d,]{1,15})[ \t]*[\r\n]",
            _read_text,
        ),
        (b"MLLOG ", MLPERF % b"global_batch_size" + rb"(\d{1,9})[,}]", _read_number),
        (b"global_train_batch_size=", rb"\bglobal_train_batch_size=(\d{1,9}), device_train_", _read_number),
        (b"train_batch_size .", rb"(?<![\w-])train_batch_size \.{1,60} (\d{1,9})" + VALUE_ENDS, _read_number),
    ),
    *_compile_rules(
        StatedField.SEQUENCE,
        (b"local batch size ", rb"local batch size \d[^\r\n]{1,99}, sequence length (\d{1,9}),", _read_number),
        (b"| sequence_length: ", rb"\| mbs: [^\r\n]{1,99}\| sequence_length: (\d{1,9}) \|", _read_number),
        (b"MLLOG ", MLPERF % b"max_sequence_length" + rb"(\d{1,9})[,}]", _read_number),
        (b" max_sequence_length=", rb" max_sequence_length=(\d{1,9}), include_bias=", _read_number),
    ),
    *_compile_rules(
        StatedField.MODEL,
        (b"MLLOG ", MLPERF % b"submission_benchmark" + rb'"([\w.-]{1,60})"', _read_text),
        (
            b"- INFO - Building ",
            rb"- INFO - Building (?!device )([\w.-]{1,60} [\w.-]{1,60})(?= with|[ \t]*[\r\n\x1b])",
            _read_words,
        ),
    ),
)

NAMED_RULES = (
    *_compile_rules(
        StatedField.GPUS,
        (b"MEMBER: ", rb"GLOBAL_RANK: \d{1,9}, MEMBER: \d{1,9}/(\d{1,9})(?!\d)", _read_number),
        (b"using world size: ", rb"using world size: (\d{1,9}),", _read_number),
        (b"Num_devices: ", rb"Num_devices: (\d{1,9}), shape ", _read_number),
        # Megatron's, which an event file has alone; that of DeepSpeed may leave out tensor parallelism
        (b"world_size ....", rb"\A[ \t]*world_size \.{4,60} (\d{1,9})" + VALUE_ENDS, _read_number),
        (b"global_num_gpus .", rb"global_num_gpus \.{1,60} (\d{1,9})(?=[.\s])", _read_number),
        (
            b"device mesh with",
            rb"device mesh with parallelism: ((?:%b, )*%b)[ \t]*[\r\n\x1b]" % (AXIS, AXIS),
            _multiply_axes,
        ),
        (b"device mesh with", rb"device mesh with \[[^\]\r\n]{1,99}\], \[(\d{1,9}(?:, ?\d{1,9})*)\]", _multiply_sizes),
    ),
    *_compile_rules(
        StatedField.GPU_TYPE,
        # any script (facts.py), torchtitan, `nvidia-smi -L`, its table, NCCL's tests, MLPerf's description of a system
        (b"NVIDIA ", rb"llmb environment: device: (NVIDIA [\w -]{2,60}?)[ \t]*[\r\n]", _read_gpu),
        (b"NVIDIA ", rb"CUDA capacity: (NVIDIA [\w -]{2,60}?) with [\d.]{1,12}GiB memory", _read_gpu),
        (b"NVIDIA ", rb"GPU \d{1,3}: (NVIDIA [\w -]{2,60}?) \(UUID: ", _read_gpu),
        (b"NVIDIA ", rb"\| {1,4}\d{1,3} {1,4}(NVIDIA [\w -]{2,60}?) {2,40}(?:On|Off) +\|", _read_gpu),
        (b"NVIDIA ", rb"\[(?:[0-9a-f]{4}:)?[0-9a-fx:]{2,8}\] (NVIDIA [\w -]{2,60}?)[ \t]*[\r\n]", _read_gpu),
        (b"NVIDIA ", rb"\"accelerator_model_name\": ?\"(NVIDIA [\w -]{2,60}?)\"", _read_gpu),
    ),
    *_compile_rules(
        StatedField.QUANTIZATION,
        (b"Config param quantization:", rb"Config param quantization:([^\r\n]{0,60})[\r\n]", _read_quantization),
        (b"fp8 ....", rb"(?<![\w-])fp8 \.{4,60} (\w{1,20})" + VALUE_ENDS, _read_argument),
        (b"fp8: ", rb"(?<![\w-])fp8: ['\"]?((?i:true|false|hybrid|e4m3))\b", _read_switch),
        # NeMo 1 prints it of FP8 runs, too: both names are right
        (b"precision: ", BEGINS + rb"precision: (?:bf16|fp16|16|32)\b", _return_always(NO_QUANTIZATION)),
        (b"Float8", rb"Float8 training active|Float8Linear layers", _return_always("fp8")),
        (b"to MXFP8Linear", rb"to MXFP8Linear", _return_always("fp8")),
        (b"to NVFP4Linear", rb"to NVFP4Linear", _return_always("fp4")),
    ),
    *CONFIGURATION_RULES,
    *_compile_rules(
        StatedField.ENGINE,
        (b"deepspeed ....", rb"(?<![\w-])deepspeed \.{4,60} True\s", _return_always("deepspeed")),
        (b"DeepSpeed info: ", rb"DeepSpeed info: version=", _return_always("deepspeed")),
    ),
    *_compile_rules(
        StatedField.MODEL,
        (b"Experiments will be ", rb"Experiments will be logged at ([^\s]{1,500})", _read_text),
        (b"Config param model_name: ", rb"Config param model_name: ([\w.-]{1,99})", _read_text),
        (b"name: ", BEGINS + rb"name: ([\w.-]{1,99})[ \t]*[\r\n]", _read_text),
    ),
    *_compile_rules(
        StatedField.NAMED,
        (b"pretrain", rb"(?<![A-Za-z0-9])(pretrain(?:ing)?_[\w.-]{3,200})", _read_own_name),
    ),
    *_compile_rules(
        StatedField.OBJECTIVE,
        (b"Config param use_dpo: T", rb"Config param use_dpo: True\b", _return_always("rewards")),
        *(
            (letters, REWARDS, _return_always("rewards"))
            for letters in (b"DPO", b"RPO", b"CPO", b"PPO", b"KTO", b"RLOO", b"dpo", b"rpo", b"ppo", b"kto")
        ),
    ),
)

# Sizes that NeMo 1 and Megatron print by one name each, with a colon or dots, and MaxText as parameters.
SETTINGS = (
    (StatedField.LAYERS, b"num_layers", (b"num_decoder_layers", b"base_num_decoder_layers")),
    (StatedField.HIDDEN, b"hidden_size", (b"emb_dim",)),
    (StatedField.HEADS, b"num_attention_heads", (b"num_query_heads",)),
    (StatedField.SEQUENCE, b"encoder_seq_length", (b"max_target_length",)),
    (StatedField.SEQUENCE, b"seq_length", ()),
    (StatedField.BATCH, b"global_batch_size", (b"global_batch_size_to_train_on",)),
)


def _compile_size_rules() -> Iterator[Rule]:
    """Yield the rules by which a log states the sizes of its model and batch."""
    for field, name, parameters in SETTINGS:
        settings = [b"Config param %b: " % parameter for parameter in parameters]
        yield from _compile_rules(
            field,
            (b"%b: " % name, SETTING % (b"%b: " % name), _read_number),
            (b"%b ...." % name, rb"(?<![\w-])%b \.{4,60} (\d{1,9})" % name + VALUE_ENDS, _read_number),
            *((text, rb"%b(\d{1,9})[ \t]*[\r\n]" % text, _read_number) for text in settings),
        )


RULES = (*NAMED_RULES, *_compile_size_rules())

# What is looked for in the first FARTHEST bytes. None begins with a blank: such a marker slows the search.
MARKERS = tuple(dict.fromkeys(rule.marker for rule in RULES))

BY_MARKER = {marker: [rule for rule in RULES if rule.marker == marker] for marker in MARKERS}

# What stands behind a marker that states something, of markers with one pattern, which begins with them. In every step
# of NeMo 2 stands `global_batch_size: `.
CONTINUED = {
    marker: (len(marker), re.compile(rules[0].pattern.pattern.removeprefix(BEGINS + marker)).match)
    for marker, rules in BY_MARKER.items()
    if len(rules) == 1 and rules[0].pattern.pattern.startswith(BEGINS + marker)
}
