"""The recognisers: one row per text that logs print about a run besides its steps.

A row belongs to a table. The table limits the part of a log, and the bytes around a
marker, that its rows may match. A row matches only the exact form that its framework
prints, not a similar word in a path or sentence.

Other modules read the records of steps (`dialects`), tracebacks (`endings`, because
they span many lines), progress bars (`progress_bars`), and the reports of slow ranks
(`slow_ranks`, which only searches the logs of slow runs).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from pytest_llmbench.core.gpus import BY_NAME, find_gpu_type, round_memory
from pytest_llmbench.core.log_records import CheckpointAction, EndingCode, StatedField
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.logs.printed_settings import Form, Setting, compile_pattern
from pytest_llmbench.logs.scan import REACH, REACH_BACK, Hit, find_line_begin
from pytest_llmbench.logs.step_records import NOT_FINITE

FactT = TypeVar("FactT")
ValueT = TypeVar("ValueT")


class Recogniser(NamedTuple, Generic[FactT, ValueT]):
    """A pattern for one text, and the fact that the text states.

    `pattern` is searched in the line of `marker`. Its match has to include the marker.
    """

    fact: FactT
    marker: bytes
    pattern: bytes
    convert: Callable[[re.Match[bytes]], ValueT]  # an empty value counts as no match


class RecogniserTable(Generic[FactT, ValueT]):
    """Recognisers that are searched in the same part of a log."""

    def __init__(
        self,
        rows: Iterable[Recogniser[FactT, ValueT]],
        *,
        before: int,
        after: int,
        farthest: float = math.inf,
    ) -> None:
        """Index the rows by their markers.

        The order of the rows is the order of the facts at a marker.
        """
        self.rows = tuple(rows)
        self.before = before  # bytes before a marker that a pattern may match
        self.after = after  # bytes after it
        self.farthest = farthest  # bytes of a log that are searched
        self.by_marker: dict[bytes, list[Recogniser[FactT, ValueT]]] = {}
        for row in self.rows:
            self.by_marker.setdefault(row.marker, []).append(row)
        self.markers = tuple(self.by_marker)

    def read(self, hit: Hit) -> Iterator[tuple[Recogniser[FactT, ValueT], ValueT]]:
        """Yield the rows that match at a marker, with their values.

        Yields nothing for a marker beyond `farthest`.
        """
        if hit.offset < self.farthest:
            line, index = self.cut_line(hit)
            yield from self.read_line(line, index, hit.marker)

    def cut_line(self, hit: Hit) -> tuple[bytes, int]:
        """Return the line around a marker and the marker's index in it.

        The line is cut to `before` and `after` bytes around the marker.
        """
        text, start = hit.text, hit.start
        begin = find_line_begin(text, max(0, start - self.before), start)
        stop = min(len(text), start + len(hit.marker) + self.after)
        feed = text.find(b"\n", start, stop)
        end = stop if feed < 0 else feed + 1
        return text[begin:end], start - begin

    def read_line(
        self, line: bytes, index: int, marker: bytes
    ) -> Iterator[tuple[Recogniser[FactT, ValueT], ValueT]]:
        """Yield the rows whose match includes the marker, with their values.

        `index` is the index of the marker in the line.
        """
        for row in self.by_marker.get(marker, ()):
            for match in compile_pattern(row.pattern).finditer(line):
                if match.start() <= index < match.end():
                    value = row.convert(match)
                    if value:
                        yield row, value
                    break


def build_rows(
    fact: FactT,
    convert: Callable[[re.Match[bytes]], ValueT],
    *rows: tuple[bytes, bytes]
    | tuple[bytes, bytes, Callable[[re.Match[bytes]], ValueT]],
) -> Iterator[Recogniser[FactT, ValueT]]:
    """Yield the rows of a fact.

    A row is a marker and a pattern. A third item replaces `convert` for that row.
    """
    for marker, pattern, *converters in rows:
        row_convert = converters[0] if converters else convert
        yield Recogniser(fact, marker, pattern, row_convert)


# --- conversions ----------------------------------------------------------------------

# Expert parallelism of torchtitan is a part of the other axes and needs no further
# GPUs.
AXES_INSIDE_OTHERS = frozenset(("ep", "etp"))

NOT_FP8, NO_QUANTIZATION = "not fp8", "none"

# Words in lines that name another run: the source of weights or data.
OTHER_RUN = compile_on_use(rb"(?i)load|restor|resum|checkpoint|ckpt|cache")

TextReader = Callable[["re.Match[bytes]"], str]
StatedRow = Recogniser[StatedField, str]


def _read_number(match: re.Match[bytes]) -> str:
    """Return an integer without leading zeros."""
    return str(int(match[1]))


def _read_text(match: re.Match[bytes]) -> str:
    """Return the printed text without surrounding blanks."""
    return match[1].decode("utf-8", "replace").strip()


def _read_words(match: re.Match[bytes]) -> str:
    return _read_text(match).replace(" ", "_")


def _read_lower(match: re.Match[bytes]) -> str:
    return _read_text(match).lower()


def _read_setting(match: re.Match[bytes]) -> str:
    """Return a setting as `name: 8`, also if printed as `name ....... 8`."""
    name, *_dots, value = _read_text(match).replace(":", " ").split()
    return f"{name}: {value}"


def _read_run_name(match: re.Match[bytes]) -> str:
    """Return the name of a run.

    Returns "" on a line about a checkpoint or a cache, because that may name another
    run.
    """
    return "" if OTHER_RUN.search(match.string) else _read_text(match)


def _multiply_axes(match: re.Match[bytes]) -> str:
    """Multiply the sizes in `pp=1, dp_shard=8, tp=1, ep=1`.

    Skips AXES_INSIDE_OTHERS.
    """
    pairs = (pair.split("=") for pair in match[1].decode().split(", "))
    sizes = (int(size) for name, size in pairs if name not in AXES_INSIDE_OTHERS)
    return str(math.prod(sizes))


def _multiply_sizes(match: re.Match[bytes]) -> str:
    """Multiply the sizes in `4, 2`."""
    return str(math.prod(map(int, match[1].split(b","))))


def _read_quantization(match: re.Match[bytes]) -> str:
    """Return the number format of MaxText's `quantization`.

    Returns "" for an unknown value.
    """
    # "te_fp8_delayedscaling", or "int8"
    word = _read_text(match).casefold().rpartition(".")[2]
    if word in ("", "none"):
        return NO_QUANTIZATION
    names = ("fp8", "fp4", "int8", "int4")
    return next((name for name in names if name in word), "")


def _read_argument(match: re.Match[bytes]) -> str:
    """Read Megatron's argument `fp8`.

    It is None, False, or a format such as e4m3 or hybrid.
    """
    return NOT_FP8 if match[1] in (b"None", b"False") else "fp8"


def _read_switch(match: re.Match[bytes]) -> str:
    """Return `not fp8` for false, otherwise `fp8`: true, or the name of a format."""
    return NOT_FP8 if match[1].lower() == b"false" else "fp8"


def _read_gpu(match: re.Match[bytes]) -> str:
    """Return the type of a GPU, or "" if unknown.

    Unknown GPUs may be, for example, an RTX card that only drives a screen.
    """
    name = _read_text(match).lower().removeprefix("nvidia ")
    gpu = find_gpu_type(name)
    return gpu if gpu in BY_NAME or name.startswith(gpu) else ""


def _read_count(match: re.Match[bytes]) -> str:
    """Return a number without separators: `8030261248`, `8.03 billion`."""
    return " ".join(_read_text(match).replace(",", "").split())


def _read_memory(match: re.Match[bytes]) -> str:
    """Return the nominal size of a GPU memory: `80 GB` for 79.10 GiB."""
    return f"{round_memory(float(match[1]))} GB"


def _read_mebibytes(match: re.Match[bytes]) -> str:
    return f"{round_memory(int(match[1]) / 1024)} GB"


def _read_watts(match: re.Match[bytes]) -> str:
    """Return a power limit rounded to 5 W."""
    return f"{round(float(match[1]) / 5) * 5} W"


def _return_always(value: str) -> TextReader:
    """Return a converter that gives `value` for every match.

    The fact is that the text is in the log.
    """
    return lambda _: value


# --- stated before the first steps ----------------------------------------------------

# "device mesh with parallelism: pp=1, dp_shard=8, tp=1, ep=1": group 1 has the axes.
AXIS = rb"[a-z_]{1,20}=\d{1,9}"
AXES = rb"device mesh with parallelism: ((?:%b, )*%b)[ \t]*[\r\n\x1b]" % (AXIS, AXIS)
METHODS = rb"(?i:dpo|grpo|orpo|cpo|ppo|kto|rloo)"
# The name of a trainer ("GRPOTrainer", "DPO", "dpo_trainer"), or the selected method
# ("rlhf_type='dpo'", "stage: dpo"). MaxText prints the settings of every method, whether
# it is used or not ("Config param ..."), so its lines do not count.
REWARDS = (
    rb"\A(?![^\r\n]*Config param )[^\r\n]*"
    rb"(?:(?<![A-Za-z0-9_])"
    rb"(?:DPO|GRPO|ORPO|CPO|PPO|KTO|RLOO)(?:Trainer|Config)?(?![A-Za-z0-9_])"
    rb"|(?:stage|rlhf_type|algorithm)[ :='\"]{1,4}%b(?![A-Za-z0-9_])"
    rb"|(?<![A-Za-z0-9])%b_trainer(?![A-Za-z0-9]))" % (METHODS, METHODS)
)
REWARD_MARKERS = (
    *(b"DPO", b"RPO", b"CPO", b"PPO", b"KTO", b"RLOO"),
    *(b"dpo", b"rpo", b"ppo", b"kto"),
)

# Precedes the name of a setting. Rejects a longer name that ends the same way.
NAME_START = rb"(?<=[ \t|])"

# A number at the end of a line, after the marker that names it: "  num_layers: 32".
SETTING = NAME_START + rb"%b(\d{1,9})[ \t]*[\r\n]"

# The end of a value. A colour may follow, or the dots by which GPT-NeoX marks a value
# that is not the default.
VALUE_ENDS = rb"(?=[.\s\x1b])"

# A record of MLPerf with this key, up to its value:
# ':::MLLOG {..., "key": "global_batch_size", "value": 128, ...}'.
MLPERF = rb'MLLOG (?:[^"\r\n]{0,200}"){1,20}?key": ?"%b", ?"value": ?'


def _build_layout_rows() -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of the parallel group sizes that NeMo 1 prints."""
    for name in (
        b"tensor_model_parallel_size",
        b"pipeline_model_parallel_size",
        b"context_parallel_size",
    ):
        pattern = NAME_START + rb"(%b: \d{1,9})[ \t]*[\r\n]" % name
        yield b"%b: " % name, pattern


CONFIGURATION_ROWS = (
    *build_rows(
        StatedField.LAYOUT,
        _read_text,
        (b"device mesh with", AXES),
        (
            b"device mesh with",
            rb"device mesh with (\[[^\]\r\n]{1,99}\], \[\d[\d, ]{0,60}\])",
        ),
        (b"using world size: ", rb"using world size: \d{1,9}, ([^\r\n\x1b]{1,300})"),
        *_build_layout_rows(),
        (
            b"expert_model_parallel_size",
            NAME_START
            + rb"(expert_model_parallel_size(?:: | \.{4,60} )\d{1,9})"
            + VALUE_ENDS,
            _read_setting,
        ),
    ),
    *build_rows(
        StatedField.MICRO_BATCH,
        _read_number,
        (b"local batch size ", rb"initialized with local batch size (\d{1,9}),"),
        (b"micro_batch_size: ", SETTING % b"micro_batch_size: "),
        (
            b"micro_batch_size .",
            rb"(?<![\w-])micro_batch_size \.{4,60} (\d{1,9})" + VALUE_ENDS,
        ),
        (
            b"global_train_batch_size=",
            rb"\bglobal_train_batch_size=\d{1,9}, device_train_batch_size=\d{1,9}, "
            rb"device_train_microbatch_size=(\d{1,9}),",
        ),
        (
            b"batch_size_per_gpu .",
            rb"train_micro_batch_size_per_gpu \.{1,60} (\d{1,9})" + VALUE_ENDS,
        ),
        (
            b"Config param per_device_batch_size: ",
            rb"Config param per_device_batch_size: ([\d.]{1,20})[ \t]*[\r\n]",
            _read_text,
        ),
        (b"| mbs: ", rb"\[Start training\] [^\r\n]{1,99}\| mbs: (\d{1,9}) \|"),
        (
            b"batch size per device = ",
            rb"Instantaneous batch size per device = ([\d,]{1,15})",
            _read_text,
        ),
    ),
    *build_rows(
        StatedField.NUMBERS,
        _read_text,
        *(
            (
                b"%b ...." % name,
                rb"(?<![\w-])(%b) \.{4,60} (?:True|\{'enabled': True)" % name,
                _read_text,
            )
            for name in (b"bf16", b"fp16")
        ),
        # FP8 recipes differ in speed by 6 to 50 %. A run without FP8 prints None.
        (
            b"fp8_recipe ....",
            rb"(?<![\w-])(fp8_recipe \.{4,60} (?!None)\w{1,20})" + VALUE_ENDS,
            _read_setting,
        ),
        (
            b"fp8_recipe: ",
            rb"(?<![\w-])(fp8_recipe: (?!null|None)\w{1,20})" + VALUE_ENDS,
            _read_setting,
        ),
        (b"Config param dtype: ", rb"Config param dtype: (\w{1,20})[ \t]*[\r\n]"),
    ),
    *build_rows(
        StatedField.BATCH,
        _read_number,
        (
            b"local batch size ",
            rb"local batch size \d{1,9}, global batch size (\d{1,9}),",
        ),
        (
            b"accumulation) = ",
            rb"Total train batch size \(w\. parallel, distributed & accumulation\)"
            rb" = ([\d,]{1,15})[ \t]*[\r\n]",
            _read_text,
        ),
        (b"MLLOG ", MLPERF % b"global_batch_size" + rb"(\d{1,9})[,}]"),
        (
            b"global_train_batch_size=",
            rb"\bglobal_train_batch_size=(\d{1,9}), device_train_",
        ),
        (
            b"train_batch_size .",
            rb"(?<![\w-])train_batch_size \.{1,60} (\d{1,9})" + VALUE_ENDS,
        ),
    ),
    *build_rows(
        StatedField.SEQUENCE,
        _read_number,
        (
            b"local batch size ",
            rb"local batch size \d[^\r\n]{1,99}, sequence length (\d{1,9}),",
        ),
        (
            b"| sequence_length: ",
            rb"\| mbs: [^\r\n]{1,99}\| sequence_length: (\d{1,9}) \|",
        ),
        (b"MLLOG ", MLPERF % b"max_sequence_length" + rb"(\d{1,9})[,}]"),
        (b" max_sequence_length=", rb" max_sequence_length=(\d{1,9}), include_bias="),
    ),
    *build_rows(
        StatedField.MODEL,
        _read_text,
        (b"MLLOG ", MLPERF % b"submission_benchmark" + rb'"([\w.-]{1,60})"'),
        (
            b"- INFO - Building ",
            rb"- INFO - Building (?!device )([\w.-]{1,60} [\w.-]{1,60})"
            rb"(?= with|[ \t]*[\r\n\x1b])",
            _read_words,
        ),
    ),
)

EARLY_ROWS = (
    *build_rows(
        StatedField.GPUS,
        _read_number,
        (b"MEMBER: ", rb"GLOBAL_RANK: \d{1,9}, MEMBER: \d{1,9}/(\d{1,9})(?!\d)"),
        (b"using world size: ", rb"using world size: (\d{1,9}),"),
        (b"Num_devices: ", rb"Num_devices: (\d{1,9}), shape "),
        # Printed by Megatron, and the only form in event files. The value of DeepSpeed
        # may exclude tensor parallelism.
        (b"world_size ....", rb"\A[ \t]*world_size \.{4,60} (\d{1,9})" + VALUE_ENDS),
        (b"global_num_gpus .", rb"global_num_gpus \.{1,60} (\d{1,9})(?=[.\s])"),
        (b"device mesh with", AXES, _multiply_axes),
        (
            b"device mesh with",
            rb"device mesh with \[[^\]\r\n]{1,99}\], \[(\d{1,9}(?:, ?\d{1,9})*)\]",
            _multiply_sizes,
        ),
    ),
    *build_rows(
        StatedField.GPU_TYPE,
        _read_gpu,
        # Printed by, in this order: any script (VERSIONS), torchtitan, `nvidia-smi -L`,
        # the nvidia-smi table, NCCL tests, MLPerf system descriptions.
        *(
            (b"NVIDIA ", pattern)
            for pattern in (
                rb"llmb environment: device: (NVIDIA [\w -]{2,60}?)[ \t]*[\r\n]",
                rb"CUDA capacity: (NVIDIA [\w -]{2,60}?) with [\d.]{1,12}GiB memory",
                rb"GPU \d{1,3}: (NVIDIA [\w -]{2,60}?) \(UUID: ",
                rb"\| {1,4}\d{1,3} {1,4}(NVIDIA [\w -]{2,60}?) {2,40}(?:On|Off) +\|",
                rb"\[(?:[0-9a-f]{4}:)?[0-9a-fx:]{2,8}\] (NVIDIA [\w -]{2,60}?)"
                rb"[ \t]*[\r\n]",
                rb"\"accelerator_model_name\": ?\"(NVIDIA [\w -]{2,60}?)\"",
            )
        ),
        # torchtitan on ROCm, MaxText
        (
            b"AMD Instinct ",
            rb"(?:CUDA capacity|llmb environment: device): (AMD Instinct [\w /-]{2,60}?)"
            rb"(?: with [\d.]{1,12}GiB memory|[ \t]*[\r\n])",
        ),
        (b"TFRT TPU", rb"TFRT (TPU ?v?\d[a-z]{0,2}(?: lite)?)[ \t]*[\r\n]"),
    ),
    *build_rows(
        StatedField.QUANTIZATION,
        _return_always("fp8"),
        (
            b"Config param quantization:",
            rb"Config param quantization:([^\r\n]{0,60})[\r\n]",
            _read_quantization,
        ),
        (
            b"fp8 ....",
            rb"(?<![\w-])fp8 \.{4,60} (\w{1,20})" + VALUE_ENDS,
            _read_argument,
        ),
        (
            b"fp8: ",
            rb"(?<![\w-])fp8: ['\"]?((?i:true|false|hybrid|e4m3))\b",
            _read_switch,
        ),
        # NeMo 1 also prints it for FP8 runs: both values are right
        (
            b"precision: ",
            NAME_START + rb"precision: (?:bf16|fp16|16|32)\b",
            _return_always(NO_QUANTIZATION),
        ),
        (b"Float8", rb"Float8 training active|Float8Linear layers"),
        (b"to MXFP8Linear", rb"to MXFP8Linear"),
        (b"to NVFP4Linear", rb"to NVFP4Linear", _return_always("fp4")),
    ),
    *CONFIGURATION_ROWS,
    *build_rows(
        StatedField.ENGINE,
        _return_always("deepspeed"),
        (b"deepspeed ....", rb"(?<![\w-])deepspeed \.{4,60} True\s"),
        (b"DeepSpeed info: ", rb"DeepSpeed info: version="),
    ),
    *build_rows(
        StatedField.MODEL,
        _read_text,
        (b"Experiments will be ", rb"Experiments will be logged at ([^\s]{1,500})"),
        (b"Config param model_name: ", rb"Config param model_name: ([\w.-]{1,99})"),
        (b"name: ", NAME_START + rb"name: ([\w.-]{1,99})[ \t]*[\r\n]"),
    ),
    *build_rows(
        StatedField.NAMED,
        _read_run_name,
        (b"pretrain", rb"(?<![A-Za-z0-9])(pretrain(?:ing)?_[\w.-]{3,200})"),
    ),
    *build_rows(
        StatedField.OBJECTIVE,
        _return_always("rewards"),
        (b"Config param use_dpo: T", rb"Config param use_dpo: True\b"),
        *((marker, REWARDS) for marker in REWARD_MARKERS),
    ),
)

# Sizes that NeMo 1 and Megatron print under the same name (with a colon or dots), and
# their names in the parameters of MaxText.
SIZES = (
    (
        StatedField.LAYERS,
        b"num_layers",
        (b"num_decoder_layers", b"base_num_decoder_layers"),
    ),
    (StatedField.HIDDEN, b"hidden_size", (b"emb_dim",)),
    (StatedField.HEADS, b"num_attention_heads", (b"num_query_heads",)),
    (StatedField.SEQUENCE, b"encoder_seq_length", (b"max_target_length",)),
    (StatedField.SEQUENCE, b"seq_length", ()),
    (StatedField.BATCH, b"global_batch_size", (b"global_batch_size_to_train_on",)),
)


def _build_size_rows() -> Iterator[StatedRow]:
    """Yield the rows of the sizes of a model and its batch."""
    for field, name, parameters in SIZES:
        dotted = rb"(?<![\w-])%b \.{4,60} (\d{1,9})" % name + VALUE_ENDS
        markers = [b"Config param %b: " % parameter for parameter in parameters]
        yield from build_rows(
            field,
            _read_number,
            (b"%b: " % name, SETTING % (b"%b: " % name)),
            (b"%b ...." % name, dotted),
            *((marker, rb"%b(\d{1,9})[ \t]*[\r\n]" % marker) for marker in markers),
        )


# No marker begins with a blank, because that would slow down the search.
EARLY = RecogniserTable(
    (*EARLY_ROWS, *_build_size_rows()), before=300, after=600, farthest=16 << 20
)
"""Facts near the beginning of a log."""

PROFILER = RecogniserTable(
    build_rows(
        StatedField.PROFILER,
        _return_always("switched"),
        # One marker for all profilers: another marker would need another pass of the
        # search.
        (
            b"rofil",
            # MaxText prints it instead of the step at which the profiler is switched
            rb"completed profiler "
            # torchtitan
            rb"|\bProfiling active\. Traces will be saved "
            rb"|\bDumping profiler traces at step "
            # PyTorch, in any framework
            rb"|ActivityProfilerController\.cpp:\d{1,5}\] Completed Stage: Collection"
            # NeMo's callback for Nsight Systems
            rb"|\bStart nsys profiling",
        ),
    ),
    before=20,
    after=55,
)
"""A profiler that is switched on or off, anywhere in a log."""

STATED_MARKERS = frozenset((*EARLY.markers, *PROFILER.markers))

# Markers that a process prints when it starts, whatever follows them.
STARTING_TEXTS = (
    b"device mesh with",
    b"- INFO - Building ",
    b"using world size: ",
    b"NVIDIA ",
)

# What may precede a marker in a pattern that begins with it.
_LEADS = re.compile(rb"(?:\(\?<[=!][^()]*\))?\(?(?!\?)")


def _is_decisive(pattern: bytes, marker: bytes) -> bool:
    """True if a pattern begins with a marker, and depends on no text far behind it."""
    lead = _LEADS.match(pattern)
    return (
        lead is not None
        and pattern.startswith(marker, lead.end())
        and b"(?!" not in pattern
    )


# Patterns of markers that can be checked directly at the marker. Most of these markers
# occur in steps, too: every step of NeMo 2 contains `global_batch_size: `.
DECISIVE_PATTERNS = {
    marker: b"|".join(row.pattern for row in rows)
    for marker, rows in EARLY.by_marker.items()
    if marker not in STARTING_TEXTS
    and all(_is_decisive(row.pattern, marker) for row in rows)
}

# Those whose pattern is a number that ends its line.
LAST_IN_LINE = frozenset(
    marker
    for marker, pattern in DECISIVE_PATTERNS.items()
    if pattern == SETTING % marker
)


# --- stated in the settings before the first step -------------------------------------

_NUMBER = rb"[\d,]{1,24}(?:\.\d{1,6})?"

PREAMBLE = RecogniserTable(
    (
        *build_rows(
            StatedField.PARAMETERS,
            _read_count,
            # ranks of other stages print other numbers, in any order
            (
                b"number of parameters on ",
                rb"number of parameters on [^\r\n]{0,60}"
                rb"rank (?:0|\( ?0(?: ?, ?0){1,3}\)): ([\d,]{1,24})(?!\d)",
            ),
            (b" total parameters", rb"size: (%b) total parameters" % _NUMBER),
            (b"total params:", rb"total params: {1,9}([\d,]{1,24})(?!\d)"),
            (
                b"Total number of parameters",
                rb"Total number of parameters: ([\d,.]{1,24} ?[KMBGT]?)(?![\d.])",
            ),
            (b"Total parameters: ", rb"Total parameters: ([\d,]{1,24})(?!\d)"),
            (
                b"Total parameter count: ",
                rb"Total parameter count: "
                rb"(dense [\d,]{1,24}, sparse [\d,]{1,24}, active [\d,]{1,24})",
            ),
            (b"number parameters: ", rb"number parameters: ([\d.]{1,12} billion)"),
            (
                b"number of parameters: ",
                rb"number of parameters: ([\d,.]{2,24}[KMB]?)\s",
            ),
            (b"  Total params", rb"([\d,.]{1,24} [KMBT]?) {2,9}Total params"),
            (b" total params, ", rb"([\d,]{1,24}) total params, "),
            (b"num. model params: ", rb"num\. model params: ([\d,]{1,24})"),
            (b" all params: ", rb"\|\| all params: ([\d,]{1,24})"),
        ),
        *build_rows(
            StatedField.TRAINABLE,
            _read_count,
            (b"trainable params: ", rb"trainable params: ([\d,]{1,24}) \|\|"),
            (
                b"umber of trainable parameters",
                rb"[Nn]umber of trainable parameters ?[=:] ?([\d,]{1,24})(?!\d)",
            ),
            (
                b"  Trainable params",
                rb"(?<![\w-])([\d,.]{1,24} [KMBT]?) {2,9}Trainable params",
            ),
            (b"M Trainable [", rb"\(([\d.]{1,16}M) Trainable \["),
            (b" trainable params\n", rb"- ([\d,]{1,24}) trainable params\n"),
        ),
        *build_rows(
            StatedField.ADAPTER,
            _read_lower,
            # printed for adapters only
            (
                b" all params: ",
                rb"trainable params: [\d,]{1,24} \|\| all params: \d",
                _return_always("adapter"),
            ),
            (b"Fine-tuning method: ", rb"Fine-tuning method: (\w{1,20})"),
        ),
        *build_rows(
            StatedField.VOCABULARY,
            _read_count,
            (
                b"padded vocab (size: ",
                rb"padded vocab \(size: \d{1,12}\) with \d{1,9} dummy tokens "
                rb"\(new size: (\d{1,12})\)",
            ),
        ),
        *build_rows(
            StatedField.RECOMPUTE,
            _read_lower,
            (
                b" activation checkpointing to the model",
                rb"(Applied \w{1,20}) activation checkpointing to the model",
            ),
        ),
        *build_rows(
            StatedField.OPTIMIZER,
            _read_lower,
            (
                b"DeepSpeed Basic Optimizer = ",
                rb"DeepSpeed Basic Optimizer = (\w{1,40})",
            ),
        ),
        *build_rows(
            StatedField.DATA,
            _read_lower,
            (b"Mock", rb"\b(Mock)(?:GPT|LLM|T5|BERT|Llava)?(?:Dataset|DataModule)\b"),
        ),
        *build_rows(
            StatedField.GPU_MEMORY,
            _read_memory,
            (
                b"GiB memory",
                rb"CUDA capacity: [^\r\n]{2,80} with (\d{1,4}(?:\.\d{1,6})?)GiB memory",
            ),
            (
                b"MiB |",
                rb"\| {1,9}\d{1,7}MiB */ *(\d{3,7})MiB \|",
                _read_mebibytes,
            ),
        ),
        *build_rows(
            StatedField.MFU_PEAK,
            lambda match: f"{float(match[1]) / 1e12:g}",
            # torchtitan
            (
                b"Peak FLOPS used for",
                rb"Peak FLOPS used for computing MFU: ([1-9]\.\d{1,6}e[+]\d\d)",
            ),
        ),
        *build_rows(
            StatedField.POWER_LIMIT,
            _read_watts,
            (
                b"MiB |",
                rb"\d{1,5}W */ *(\d{2,5})W \| {1,9}\d{1,7}MiB */ *\d{3,7}MiB \|",
            ),
        ),
        *build_rows(
            StatedField.LISTING,
            _read_lower,
            (b"Non-default values (vs", rb"(Non-default values) \(vs"),
        ),
    ),
    before=300,
    after=300,
)
"""Facts that a process prints before its first step, except SETTINGS."""


def _build_setting(
    field: StatedField,
    names: str,
    form: Form = "number",
    *,
    optional: bool = False,
    before: bytes = b"",
) -> Setting:
    """Build a setting from its comma-separated names."""
    return Setting(field, tuple(names.split(", ")), form, optional, before)


# Values that differ from run to run (paths, hosts, seeds, intervals, the number of
# steps) are not read.
SETTINGS = (
    _build_setting(
        StatedField.MODEL_SIZES,
        "n_layers, n_layer, num_hidden_layers, n_heads, n_head, n_embd, d_model, "
        "num_hidden_groups, first_k_dense_replace, num_dense_layers, n_dense_layers, "
        "first_num_dense_layers",
    ),
    _build_setting(
        StatedField.MODEL_SIZES,
        "moe_layer_freq, hybrid_override_pattern, hybrid_layer_pattern, layer_types, block_pattern",
        form="text",
    ),
    _build_setting(
        StatedField.MODEL_SIZES,
        "dim, embed_dim, hidden_size, num_attention_heads",
        before=rb"(?:Args|Config)\([^\r\n]*\Z|['\"]\Z|(?:\A|\]:)[ \t]{4,80}\Z",
    ),
    _build_setting(
        StatedField.FFN,
        "ffn_hidden_size, intermediate_size, mlp_dim, base_mlp_dim, inter_dim",
    ),
    _build_setting(
        StatedField.FFN,
        "ffn_dim_multiplier, multiple_of, swiglu, gated_linear_unit, hidden_act, activation",
        form="any",
    ),
    _build_setting(
        StatedField.MOE_FFN,
        "moe_ffn_hidden_size, moe_intermediate_size, moe_inter_dim, base_moe_mlp_dim",
    ),
    _build_setting(
        StatedField.MOE_FFN,
        "moe_shared_expert_intermediate_size, shared_expert_intermediate_size, "
        "n_shared_experts, num_shared_experts, shared_experts",
        optional=True,
    ),
    _build_setting(
        StatedField.ATTENTION,
        "kv_channels, head_dim, group_query_attention, multi_latent_attention, kv_lora_rank, q_lora_rank",
        optional=True,
    ),
    _build_setting(
        StatedField.ATTENTION,
        "experimental_attention_variant, linear_attention_type, linear_attention_freq",
        form="text",
        optional=True,
    ),
    _build_setting(
        StatedField.GROUPS,
        "num_query_groups, num_key_value_heads, n_kv_heads, num_kv_heads, base_num_kv_heads, n_query_groups",
    ),
    _build_setting(
        StatedField.WINDOW,
        "window_size, sliding_window, sliding_window_size, use_sliding_window, local_window_size",
        optional=True,
    ),
    _build_setting(
        StatedField.WINDOW,
        "window_attn_skip_freq, sliding_window_pattern",
        form="text",
        optional=True,
    ),
    _build_setting(
        StatedField.VOCABULARY,
        "padded_vocab_size, vocab_size, override_vocab_size, original vocab_size",
    ),
    _build_setting(
        StatedField.EXPERTS,
        "num_experts, num_moe_experts, n_routed_experts, num_local_experts, moe_num_experts, num_routed_experts",
        optional=True,
    ),
    _build_setting(
        StatedField.TOP_K,
        "moe_router_topk, num_experts_per_tok, num_experts_per_token, moe_top_k, "
        "n_activated_experts, moe_k, n_expert_per_token",
        optional=True,
    ),
    _build_setting(
        StatedField.TOP_K,
        "top_k",
        optional=True,
        before=rb"(?i:moe\w*\(|experts?)[^\r\n]*\Z",  # samplers also have a top_k
    ),
    _build_setting(
        StatedField.BALANCING,
        "moe_router_force_load_balancing, force_load_balance, "
        "debug_force_load_balance, use_random_routing, _debug_force_load_balance, "
        "moe_router_force_biased",
        optional=True,
    ),
    _build_setting(
        StatedField.MTP,
        "mtp_num_layers, num_nextn_predict_layers, num_mtp_modules, n_mtp_layers",
        optional=True,
    ),
    _build_setting(
        StatedField.ADAPTER,
        "lora, lora_rank, lora_r, lora_target, use_lora, use_peft, peft, peft_scheme, "
        "peft_type, train_type, finetuning_type, adapter, tuner_type, freeze_LM, "
        "freeze_lm, freeze_ViT, freeze_vit, freeze_trainable_layers, "
        "freeze_language_model, freeze_vision_model",
        form="any",
        optional=True,
    ),
    _build_setting(
        StatedField.CAPACITY,
        "moe_expert_capacity_factor, capacity_factor, "
        "moe_pad_expert_input_to_capacity, moe_train_capacity_factor, "
        "expert_capacity_factor",
        optional=True,
    ),
    _build_setting(
        StatedField.DROP_POLICY,
        "moe_token_drop_policy, moe_token_dropping, sparse_matmul, megablox, moe_router_load_balancing_type",
        form="any",
    ),
    _build_setting(
        StatedField.RECOMPUTE,
        "recompute_granularity, recompute_method, recompute_num_layers, "
        "recompute_modules, activations_checkpoint_granularity, "
        "activations_checkpoint_method, activations_checkpoint_num_layers, "
        "gradient_checkpointing, activation_checkpointing, checkpoint_activations, "
        "remat_policy, activation_checkpoint_mode, recompute_activations",
        form="any",
        optional=True,
    ),
    _build_setting(
        StatedField.OPTIMIZER,
        "optimizer, optim, opt_type, optimizer_type, optimizer_name",
        form="word",
    ),
    _build_setting(
        StatedField.DATA,
        "mock_data, dataset_type, data_impl, use_synthetic_data, synthetic_data, "
        "use_fake_data, packing, neat_packing, sample_packing",
        form="any",
    ),
    _build_setting(
        StatedField.ATTENTION_BACKEND,
        "attention_backend, use_flash_attn, attn_implementation, "
        "_attn_implementation, attn_impl, transformer_impl, flash_attn, "
        "use_flash_attention, attn_backend",
        form="any",
    ),
    _build_setting(
        StatedField.ATTENTION_BACKEND,
        "attention",
        form="any",
        before=rb"Config param \Z",
    ),
    _build_setting(
        StatedField.SEQUENCES,
        "max_seq_length, max_seq_len, seq_len, sequence_len, sequence_length, max_length, cutoff_len, model_max_length",
    ),
    _build_setting(
        StatedField.BATCH_PARTS,
        "per_device_train_batch_size, gradient_accumulation_steps, "
        "train_micro_batch_size_per_gpu, local_batch_size, "
        "batch_accumulation_per_replica, micro_batch_size",
    ),
    _build_setting(
        StatedField.BITS,
        "load_in_4bit, load_in_8bit, quantization_bit, quant_bits, bf16, fp16",
        optional=True,
    ),
    _build_setting(
        StatedField.KERNELS,
        "use_liger_kernel, enable_liger_kernel, use_unsloth, torch_compile, "
        "use_flex_attn, enable_cuda_graph, cuda_graph_impl, use_kernels",
        form="any",
        optional=True,
    ),
    _build_setting(
        StatedField.ATTENTION,
        "attn_mask_type",
        form="word",
    ),
    _build_setting(
        StatedField.SHARDING,
        "zero_optimization_stage, use_distributed_optimizer, cpu_offload, optimizer_cpu_offload, offload_optimizer",
        form="any",
    ),
)

SETTINGS_BY_NAME: dict[bytes, list[Setting]] = {}
for _setting in SETTINGS:
    for _name in _setting.names:
        SETTINGS_BY_NAME.setdefault(_name.encode(), []).append(_setting)

PREAMBLE_MARKERS = tuple(dict.fromkeys((*SETTINGS_BY_NAME, *PREAMBLE.markers)))


# --- versions of software and hardware ------------------------------------------------

LINE_HEAD = (
    rb"(?:[ \t]|\x1b\[[\d;]*m|\d{1,9}: |[\w.-]{1,99}/\d{1,9} |\[(?:rank|default)\d{1,9}\]:?"
    rb"|\((?=[^()]{0,99}\bpid=\d)[^()]{0,200}\))*"
    rb"(?:\[|--|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL):)?"
)
"""Prefix of a line or progress bar, up to its text.

Blanks, colours, rank labels, an opening bracket or a log level.
"""

_LINE_START = rb"\A" + LINE_HEAD
_VERSION = rb"(\d{1,5}(?:\.[\w+-]{1,40}){1,7})"
# Requires the end of the line, because a truncated line may cut the value.
_LINE_END = rb"[ \t]*[\r\n]"


def _read_versions(match: re.Match[bytes]) -> tuple[str, ...]:
    return tuple(value.decode("ascii") for value in match.groups())


VersionRow = Recogniser[tuple[str, ...], tuple[str, ...]]


def _build_versions(names: str, marker: bytes, pattern: bytes) -> VersionRow:
    return Recogniser(tuple(names.split()), marker, pattern + _LINE_END, _read_versions)


# If several rows have the same name, the first match is used. No marker begins with a
# blank, because that would make the search of a log 50 % slower.
VERSIONS = RecogniserTable(
    (
        _build_versions(
            "nccl",
            b"L version ",
            rb"(?:%b|NCCL INFO )NCCL version " % _LINE_START + _VERSION,
        ),
        # The report of DeepSpeed, and the `datasets` package of Hugging Face, which may
        # omit the local part of the version.
        _build_versions(
            "pytorch",
            b"rch version ",
            _LINE_START + rb"torch version \.{2,60} " + _VERSION,
        ),
        _build_versions(
            "pytorch", b"rch version ", rb"\bPyTorch version %b available\." % _VERSION
        ),
        # MaxText
        _build_versions(
            "jax", b"Version: ", rb"\bSystem Information: Jax Version: " + _VERSION
        ),
        # nvidia-smi. Its "CUDA Version" is the newest that the driver supports.
        _build_versions(
            "driver cuda_driver",
            b"Version: ",
            rb"\| NVIDIA-SMI [\d.]+ +Driver Version: %b +CUDA Version: %b +\|"
            % (_VERSION, _VERSION),
        ),
        # The banner of NVIDIA's containers: `25.01 (build 134983853)`; NeMo containers
        # may print the build only.
        _build_versions(
            "nvidia_release",
            b"NVIDIA Release ",
            _LINE_START
            + rb"NVIDIA Release "
            + rb"([\w.-]{1,20}(?: \(build \d{1,12}\))?|\(build \d{1,12}\))",
        ),
        # Slurm's container plugin, when it imports an image
        _build_versions(
            "container",
            b"porting docker image: ",
            rb"\bpyxis: importing docker image: ([\w.:/@#+-]{1,200})",
        ),
        # any training script, one line per name
        *(
            _build_versions(
                name,
                b"llmb environment: ",
                _LINE_START
                + rb"llmb environment: %b: ([!-~](?:[ -~]{0,198}[!-~])?)"
                % name.encode(),
            )
            for name in (
                *("device", "power_limit", "clocks", "driver"),
                *("cuda", "nccl", "pytorch"),
            )
        ),
    ),
    before=REACH_BACK,
    after=REACH,
    farthest=64 << 20,
)
"""Versions of software and hardware.

Later lines may belong to another run.
"""


# --- a trace of NCCL ------------------------------------------------------------------

TRACE = RecogniserTable(
    build_rows("operation", bool, (b": opCount ", rb"NCCL INFO \w{1,40}: opCount ")),
    before=64,
    after=0,
)
"""Operations in a trace of NCCL."""


# --- checkpoints ----------------------------------------------------------------------


class Meaning(Enum):
    """The meaning of a line about a checkpoint."""

    WHOLE = 1  # the time of a save or load, in any mode
    # of a save, unless other lines report asynchronous saves
    WHOLE_UNLESS_ASYNCHRONOUS = 2
    STAGING_UNLESS_SYNCHRONOUS = 3  # of a save; only the configuration states the mode
    TIMER = 4  # a load; also printed if there was nothing to load
    HAPPENED = 5
    ASYNCHRONOUS = 6
    SYNCHRONOUS = 7


class CheckpointTime(NamedTuple):
    """The printed duration of a save or load, and the rank.

    `seconds` is None if the line prints no duration; `rank` may be empty.
    """

    seconds: float | None
    rank: str


SAVE, LOAD = CheckpointAction.SAVE, CheckpointAction.LOAD

_SECONDS = rb"(?P<seconds>\d{1,9}(?:\.\d{1,9})?)"
_RANK = rb"[^\r\n]{0,9}?Rank ?: (?P<rank>\d{1,9})"
_TIME_END = rb"[ \t]*(?:[\r\n]|\Z)"


def _parse_checkpoint_time(match: re.Match[bytes], divisor: int = 1) -> CheckpointTime:
    """Return the time and the rank of a match.

    The time is in the group `seconds` or `single`. `divisor` is the number of printed
    units per second: 1000 for milliseconds.
    """
    groups = match.groupdict()
    digits = groups.get("seconds") or groups.get("single")
    seconds = float(Decimal(digits.decode("ascii")) / divisor) if digits else None
    return CheckpointTime(seconds, (groups.get("rank") or b"").decode("ascii"))


def _read_milliseconds(match: re.Match[bytes]) -> CheckpointTime:
    return _parse_checkpoint_time(match, 1000)


def _make_nemo_pattern(verb: bytes, label: bytes) -> bytes:
    """Return a pattern for the checkpoint time that NeMo prints after `label`.

    For example `Global Checkpoint Save : Rank: 0 : ... : Save duration: 12.5s`.
    """
    return rb"Global Checkpoint %b\b(?:%b)?(?:[^\r\n]{0,200}?%b: %bs%b)?" % (
        verb,
        _RANK,
        label,
        _SECONDS,
        _TIME_END,
    )


def _make_megatron_pattern(verb: bytes) -> bytes:
    """Return a pattern for a timer of Megatron, in milliseconds.

    It prints `....: (min, max)`, `....: max`, or `: max` between other timers of its
    line.
    """
    single = _SECONDS.replace(b"seconds", b"single")
    return (
        rb"%b-checkpoint(?: \.{3,99})?:"
        rb"(?: (?:\(\d{1,12}(?:\.\d{1,9})?, %b\)|%b(?=%b| \|)))?"
        % (verb, _SECONDS, single, _TIME_END)
    )


# The word `checkpoint` alone occurs in too many other lines. A match without a time is
# a truncated record.
CHECKPOINTS = RecogniserTable(
    (
        *build_rows(
            (SAVE, Meaning.WHOLE_UNLESS_ASYNCHRONOUS),
            _read_milliseconds,
            (
                b"Global Checkpoint",
                _make_nemo_pattern(b"Save", b"Save duration"),
                _parse_checkpoint_time,
            ),
            (b"save-checkpoint", _make_megatron_pattern(b"save")),
        ),
        *build_rows(
            (LOAD, Meaning.TIMER),
            _read_milliseconds,
            (b"load-checkpoint", _make_megatron_pattern(b"load")),
        ),
        *build_rows(
            (LOAD, Meaning.WHOLE),
            _parse_checkpoint_time,
            (
                b"Global Checkpoint",
                _make_nemo_pattern(b"Load", b"Time spent in load_checkpoint"),
            ),
            (
                b"Finished loading the checkpoint",
                rb"Finished loading the checkpoint in (?:%b seconds)?" % _SECONDS,
            ),
            (
                b"Finished restoring checkpoint",
                rb"Finished restoring checkpoint in (?:%b seconds from )?" % _SECONDS,
            ),
        ),
        *build_rows(
            (SAVE, Meaning.STAGING_UNLESS_SYNCHRONOUS),
            _parse_checkpoint_time,
            (
                b"Finished saving the checkpoint",
                rb"Finished saving the checkpoint"
                rb"(?: \(or staging if async is enabled\))? ?in (?:%b seconds)?"
                % _SECONDS,
            ),
        ),
        *build_rows(
            (SAVE, Meaning.WHOLE),
            _parse_checkpoint_time,
            (
                b"ynchronous save ",
                rb"Finished (?:synchronous save|asynchronous save"
                rb" \(blocking \+ background\)) in (?:%b seconds)?" % _SECONDS,
            ),
            (
                b"async_",
                rb"Finished async_save \(blocking \+ background\)\. Time taken: "
                rb"(?:%bs\.)?" % _SECONDS,
            ),
        ),
        *build_rows(
            (SAVE, Meaning.HAPPENED),
            _parse_checkpoint_time,
            (
                b"uccessfully saved checkpoint",
                rb"uccessfully saved checkpoint (?:from|at) iteration",
            ),
            (b"saved a checkpoint", rb"saved a checkpoint at step \d"),
            (b"Saving a full checkpoint", rb"Saving a full checkpoint at last step"),
        ),
        *build_rows(
            (LOAD, Meaning.HAPPENED),
            _parse_checkpoint_time,
            (
                b"uccessfully loaded checkpoint",
                rb"uccessfully loaded checkpoint from ",
            ),
        ),
        *build_rows(
            (SAVE, Meaning.ASYNCHRONOUS),
            _parse_checkpoint_time,
            # One marker for three forms. Other markers for these texts made the
            # automaton twice as slow: measure before changing them.
            (
                b" async checkpoint",
                rb"cheduled (?:an )?async checkpoint save"
                rb"|Pending async checkpoint saves",
            ),
            (b"Async checkpoint", rb"Async checkpoint(?: save for|ing detected)"),
            (b"async_", rb"(?i:async_save['\"]?[ \t.:=]{1,99}true\b)"),
            (b"async_", rb"(?i:async_mode['\"]?[ \t:=]{1,9}['\"]?async)"),
            (b"Async finalization time took", rb"Async finalization time took"),
        ),
        *build_rows(
            (SAVE, Meaning.SYNCHRONOUS),
            _parse_checkpoint_time,
            (b"async_", rb"(?i:async_mode['\"]?[ \t:=]{1,9}['\"]?disabled\b)"),
        ),
    ),
    before=64,
    after=REACH,
)
"""Saves and loads of checkpoints, and whether saves are asynchronous."""


# --- validation losses and skipped updates --------------------------------------------

_BAD = rb"['\"]?-?%b(?![\w.])" % NOT_FINITE

BAD_VALIDATIONS = RecogniserTable(
    build_rows(
        "validation",
        bool,
        # Trainer
        (
            b"eval_samples_per_second",
            rb"eval_loss['\"]: {0,9}%b[^{}\r\n]*eval_samples_per_second" % _BAD,
        ),
        # Megatron and GPT-NeoX
        (b"loss value: ", rb"loss value: {1,9}%b" % _BAD),
        # MaxText
        (
            b"eval metrics after step: ",
            rb"eval metrics after step: \d{1,12}, [^\r\n]{0,60}?loss=%b" % _BAD,
        ),
    ),
    before=300,
    after=300,
)
"""Validation losses that are NaN or infinite."""


class SkippedUpdate(NamedTuple):
    """A skipped weight update, and the loss scale if it is printed."""

    rank: bytes | None  # as printed: `Rank 3 `
    scale: bytes  # the text with the old and the new scale
    halved: bool  # the scale was reduced


def _read_skipped(match: re.Match[bytes]) -> SkippedUpdate:
    return SkippedUpdate(
        match["rank"],
        match["scale"] or b"",
        halved=match["old"] != match["new"],
    )


SKIPPED_UPDATES = RecogniserTable(
    build_rows(
        "skipped update",
        _read_skipped,
        # One update per line. DeepSpeed may print it for several ranks:
        # "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768"
        (
            b"OVERFLOW! ",
            rb"OVERFLOW! (?P<rank>Rank \d{1,9} )?Skipping step\."
            rb"(?P<scale> Attempted loss scale: (?P<old>[\d.e+]{1,30}),"
            rb" reducing to (?P<new>[\d.e+]{1,30}))?",
        ),
    ),
    before=0,
    after=300,
)
"""Skipped weight updates."""


class SkipCount(NamedTuple):
    """Skipped weight updates up to a line, and the largest learning rate of that line.

    `total` is None if the line reports a single update.
    """

    total: int | None
    rate: float = math.nan


def _read_skip_count(match: re.Match[bytes]) -> SkipCount:
    """Return the number of skipped updates; the rate is NaN if missing or damaged."""
    count = int(match["count"])
    rates = match.groupdict().get("rates") or b"nan"  # "0.0001, 0.0002"
    try:
        return SkipCount(count, rate=max(map(float, rates.split(b","))))
    except ValueError:
        return SkipCount(count)


SKIP_COUNT_ROWS = tuple(
    build_rows(
        "skipped updates",
        _read_skip_count,
        # DeepSpeed
        (
            b"skipped=",
            rb"step=\d{1,12}, skipped=(?P<count>\d{1,12}), "
            rb"lr=(?:\[{1,2}(?P<rates>[\d.e, +-]{1,200})\])?",
        ),
        # InternEvo
        (b"skip_batches=", rb"inf_nan_skip_batches=(?P<count>\d{1,12})(?!\d)"),
        # MindFormers prints each skipped update
        (
            b"overflow cond: True",
            rb"overflow cond: True\b",
            lambda _: SkipCount(total=None),
        ),
    )
)
"""Texts in the line of a step, or shortly before it.

They are not searched by markers, because most steps contain them.
"""


# --- how a log ends -------------------------------------------------------------------

# "slurmstepd: error: *** STEP 71.0 ON node1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME
# LIMIT ***", up to the word before the time.
SLURM = rb"error: \*\*\* (?:JOB|STEP) \S{1,99} (?:ON \S{1,99} )?CANCELLED "
# Driver errors with hardware causes. Others (13, 31, 43, 45) are mostly bugs of the
# program.
XIDS = rb"(?:48|64|74|79|94|95|119|120|140|14[4-9]|150)"

# "srun: error: node1: task 3: Exited with exit code 1", up to the reason.
TASKS = rb"srun: error: \S{1,99}: tasks? .{1,99}: "


# Sorted by strength of the cause, the strongest first. A step without a reason is
# cancelled after a crash or manually. Each matching line contains its marker.
ENDINGS = (
    *build_rows(
        EndingCode.TIME_LIMIT,
        bool,
        (b"CANCELLED ", SLURM + rb".{0,99}DUE TO TIME LIMIT"),
    ),
    *build_rows(
        EndingCode.NODE_FAILURE,
        bool,
        (b"CANCELLED ", SLURM + rb".{0,99}DUE TO NODE.FAIL"),
        (b"srun: error: ", rb"srun: error: Node failure on "),
    ),
    *build_rows(
        EndingCode.GPU_FAILURE,
        bool,
        (
            b"uncorrectable ",
            rb"uncorrectable (?:ECC|NVLink) error (?:encountered|detected)",
        ),
        (b"ECC_UNCORRECTABLE", rb"CUDA_ERROR_ECC_UNCORRECTABLE"),
        (b"NVRM: Xid", rb"NVRM: Xid \([^)]{1,60}\): %b\b" % XIDS),
    ),
    *build_rows(
        EndingCode.OUT_OF_MEMORY,
        bool,
        (b"srun: error: ", TASKS + rb"Out Of Memory"),
        (b"oom", rb"slurmstepd\S{0,99}: error: .{0,99}oom.kill"),
        (
            b"ut-of-memory",
            rb"slurmstepd\S{0,99}: error: .{0,99}out-of-memory handler",
        ),
        (b"ut of memory", rb"[Oo]ut of memory: Kill(?:ed)? process"),
    ),
    *build_rows(
        EndingCode.GPU_OUT_OF_MEMORY,
        bool,
        (b"OutOfMemoryError: ", rb"\bOutOfMemoryError: "),
        (b"RESOURCE_EXHAUSTED", rb"RuntimeError: RESOURCE_EXHAUSTED"),
        (b"ut of memory", rb"RuntimeError: CUDA (?:error: )?out of memory"),
    ),
    *build_rows(
        EndingCode.DIVERGED,
        bool,
        (b" in local ", rb"Error: .{0,99}found (?:NaN|Inf) in local "),
        (b"Unexpected result ", rb"Error: .{0,99}Unexpected result (?:nan|inf)\b"),
        (
            b"The loss returned in ",
            rb"ValueError: The loss returned in .{1,40} is (?:nan|inf)",
        ),
    ),
    *build_rows(
        EndingCode.PREEMPTED,
        bool,
        (b"CANCELLED ", SLURM + rb".{0,99}DUE TO PREEMPTION"),
        (
            b"Preemption detected",
            rb"\bPreemption detected, saving checkpoint and exiting",
        ),
    ),
    *build_rows(
        EndingCode.REQUEUED,
        bool,
        (b"CANCELLED ", SLURM + rb".{0,99}DUE TO JOB REQUEUE"),
    ),
    *build_rows(
        EndingCode.CANCELLED,
        bool,
        (b"CANCELLED ", rb"error: \*\*\* JOB \S{1,99} (?:ON \S{1,99} )?CANCELLED "),
    ),
    *build_rows(
        EndingCode.EXITED,
        bool,
        # limits of Megatron
        (
            b"[exiting program after ",
            rb"\[exiting program after "
            rb"(?:consuming all available data|[\d.]{1,20} minutes)",
        ),
        # Timer of Lightning
        (
            b"Time limit reached",
            rb"\bTime limit reached\. Elapsed time is [\w:., ]{1,40}\."
            rb" Signaling Trainer to stop",
        ),
        # the cap of modded-nanogpt and its descendants
        (b"stopping_early: ", rb"\bstopping_early: ?wallclock_cap\b"),
    ),
    *build_rows(
        EndingCode.SEGFAULT,
        bool,
        (b"Segmentation fault", rb"\bSegmentation fault\b"),
    ),
    *build_rows(
        EndingCode.NCCL_TIMEOUT,
        bool,
        (b"operation timeout", rb"Watchdog caught collective operation timeout"),
    ),
    *build_rows(
        EndingCode.TASK_FAILURE,
        bool,
        (b"CANCELLED ", SLURM + rb".{0,99}DUE TO TASK FAILURE"),
        (
            b"srun: error: ",
            TASKS + rb"(?:Exited with exit code|Aborted|Killed|Bus error)",
        ),
        (b" Killed", rb": line \d{1,9}: +\d{1,9} Killed\b"),
    ),
    *build_rows(EndingCode.STEP_CANCELLED, bool, (b"CANCELLED ", SLURM)),
)
"""Lines that state how a log ended."""

# Texts that a log is searched for. The line of each row of ENDINGS contains one of
# them. One short text for the words of Slurm and most exceptions costs less than six long texts.
ERROR = b"rror: "
ENDING_MARKERS = (
    ERROR,
    b"Killed",
    b"NVRM: Xid",
    b"Preemption detected",
    b"collective operation timeout",
    b"Segmentation fault",
    b"[exiting program after ",
    b"Elapsed time ",
    b"stopping_early: ",
)


# Every line that states an ending contains one of these texts.
ANY_ENDING = compile_on_use(
    b"|".join(
        re.escape(marker) for marker in dict.fromkeys(row.marker for row in ENDINGS)
    )
)


def find_endings(text: bytes) -> Iterator[EndingCode]:
    """Yield the endings that a line states, the strongest cause first."""
    if not ANY_ENDING.search(text):
        return
    for row in ENDINGS:
        if row.marker in text and compile_pattern(row.pattern).search(text):
            yield row.fact
