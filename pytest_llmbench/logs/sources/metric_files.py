"""Convert files of metrics to lines: TensorBoard event files, tables (CSV) and JSON
lines.

Each known value becomes a line `llmb scalar: STEP/TOTAL TIME VALUE NAME`. Each argument
that Megatron stores in an event file becomes a line as in its log. All other contents
are ignored.
"""

from __future__ import annotations

import csv
import json
import math
import re
import struct
from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import cache
from typing import Protocol

from pytest_llmbench.core.patterns import compile_on_use


class MetricKind(StrEnum):
    """The meaning of a value."""

    STEP_SECONDS = "step-seconds"  # of a single step
    INTERVAL_SECONDS = "interval-seconds"  # Mean of the steps since the previous value.
    # Time since the previous value or validation, divided by the steps of a whole log
    # interval.
    RESTARTED_SECONDS = "restarted-seconds"
    LOSS = "loss"
    GRAD_NORM = "grad-norm"
    TFLOPS = "tflops"  # of one GPU
    FLOPS = "flops"  # FLOP/s of one GPU
    TOKENS = "tokens"  # tokens/s of one GPU
    BATCH = "batch"  # samples per step, of all GPUs
    LEARNING_RATE = "learning-rate"
    CONSUMED = "consumed"  # samples since the start of the run
    SAMPLES = "samples"  # samples/s of all GPUs
    STEP_TOKENS = "step-tokens"  # tokens per step
    TARGETS = "targets"  # tokens per step with a loss
    VALIDATION_LOSS = "validation-loss"  # of the validation after this step


METRIC_NAMES = {
    # Megatron-LM and Megatron-Bridge
    "iteration-time": MetricKind.INTERVAL_SECONDS,
    "lm loss": MetricKind.LOSS,
    "lm loss validation": MetricKind.VALIDATION_LOSS,
    "grad-norm": MetricKind.GRAD_NORM,
    "throughput": MetricKind.TFLOPS,
    "throughput/tflops/device": MetricKind.TFLOPS,
    "batch-size": MetricKind.BATCH,
    "learning-rate": MetricKind.LEARNING_RATE,
    # MindFormers, in addition to the names of Megatron-LM
    "loss": MetricKind.LOSS,
    # torchtitan
    "time_metrics/end_to_end(s)": MetricKind.RESTARTED_SECONDS,
    "loss_metrics/global_avg_loss": MetricKind.LOSS,
    "validation_metrics/loss": MetricKind.VALIDATION_LOSS,
    "grad_norm": MetricKind.GRAD_NORM,
    "tflops": MetricKind.TFLOPS,
    "throughput(tps)": MetricKind.TOKENS,
    # GPT-NeoX
    "runtime/iteration_time": MetricKind.INTERVAL_SECONDS,
    "runtime/flops_per_sec_per_gpu": MetricKind.FLOPS,
    "runtime/samples_per_sec": MetricKind.SAMPLES,
    "train/lm_loss": MetricKind.LOSS,
    "train/learning_rate": MetricKind.LEARNING_RATE,
    "validation/lm_loss": MetricKind.VALIDATION_LOSS,
    # MaxText
    "perf/step_time_seconds": MetricKind.STEP_SECONDS,
    "perf/per_device_tflops_per_sec": MetricKind.TFLOPS,
    "perf/per_device_tokens_per_sec": MetricKind.TOKENS,
    "perf/per_device_tokens": MetricKind.STEP_TOKENS,
    "learning/total_weights": MetricKind.TARGETS,
    "learning/current_learning_rate": MetricKind.LEARNING_RATE,
    "learning/loss": MetricKind.LOSS,
    "learning/grad_norm": MetricKind.GRAD_NORM,
    "eval/avg_loss": MetricKind.VALIDATION_LOSS,
    # NeMo, Lightning
    "train_step_timing in s": MetricKind.STEP_SECONDS,
    "reduced_train_loss": MetricKind.LOSS,
    "val_loss": MetricKind.VALIDATION_LOSS,
    "TFLOPS_per_GPU": MetricKind.TFLOPS,
    "lr": MetricKind.LEARNING_RATE,
    "consumed_samples": MetricKind.CONSUMED,
    "global_batch_size": MetricKind.BATCH,
}

_TIMES = (
    MetricKind.STEP_SECONDS,
    MetricKind.INTERVAL_SECONDS,
    MetricKind.RESTARTED_SECONDS,
)
STEP_TIMES = tuple(name for name, kind in METRIC_NAMES.items() if kind in _TIMES)
"""A file without one of these names contains no step time."""


# --- files of metrics as lines ----------------------------------------------------------


# The beginning of an event file: the length of the first record, its checksum, the time
# and the version.
EVENTS = compile_on_use(
    rb"[\x18-\xff]\0{7}.{4}\x09.{8}\x1a\x0dbrain\.Event:2", re.DOTALL
)
EVENTS_HEAD = 36

# Size limit of the first line of a table, in bytes.
FIRST_LINE = 1 << 16
# Longer records are images, histograms and graphs; longer than LARGEST_RECORD is
# damage.
LARGEST_SCALAR = 1 << 16
LARGEST_RECORD = 1 << 31
LONGEST_ARGUMENT = 300
# A longer line contains no metrics.
LONGEST_ROW = 1 << 20

# Suffix of the tags under which TensorBoard stores texts, such as the arguments.
TEXT = "/text_summary"
# Width of the names in the arguments that Megatron prints to its log.
ARGUMENT_WIDTH = 48
# The argument with the total number of steps.
TOTAL = "train_iters"
# The column with the step number.
STEP = "step"
# The time of a row, in seconds since 1970, which W&B writes in each row.
TIMESTAMP = "_timestamp"
ARGUMENT = compile_on_use(r"[a-z][a-z0-9_]{0,60}")
LARGEST_STEP = 10**15


class Renderer(Protocol):
    """Converter of the bytes of a file to lines."""

    @property
    def unfinished(self) -> bool:
        """True if the file ends within a record."""

    def render(self, block: bytes) -> bytes:
        """Convert more bytes. Raises ValueError for damaged data."""

    def finish(self) -> bytes:
        """Convert the remaining bytes."""


def choose_renderer(name: str, head: bytes) -> Renderer | None:
    """Return the renderer for a file with this name and first bytes, or None."""
    if EVENTS.match(head):
        return EventRenderer()
    if not needs_first_line(name):
        return None
    line = head.partition(b"\n")[0]
    if name.endswith(".csv") and _has_step_times(_split_row(line)):
        return TableRenderer()
    if name.endswith(".jsonl") and _has_step_times(list(_read_object(line))):
        return ObjectRenderer()
    return None


def needs_first_line(name: str) -> bool:
    """True if a file of this name is recognised by its whole first line."""
    return name.endswith((".csv", ".jsonl"))


def _has_step_times(names: Sequence[str]) -> bool:
    """True if columns of these names contain step numbers and step times."""
    return STEP in names and any(name in names for name in STEP_TIMES)


def _render_scalar(
    step: int, total: str, timestamp: float, value: float, name: str
) -> str:
    """Format a value as a line that `logs/dialects/metrics.py` reads."""
    return f"llmb scalar: {step}/{total} {timestamp:.6f} {value!r} {name}\n"


# --- tables and JSON lines ------------------------------------------------------------


class RowRenderer:
    """Renderer of a file that has one row per line."""

    def __init__(self) -> None:
        self._incomplete = b""  # the beginning of a row that ends in a later block
        self._too_long = False  # True if that row is dropped

    @property
    def unfinished(self) -> bool:
        """False: a last line without a line feed is complete."""
        return False

    def render(self, block: bytes) -> bytes:
        """Convert the rows that end in a block."""
        *rows, self._incomplete = (self._incomplete + block).split(b"\n")
        if rows and self._too_long:
            rows[0] = b""
            self._too_long = False
        if len(self._incomplete) > LONGEST_ROW:
            self._incomplete, self._too_long = b"", True
        return b"".join(map(self._render_row, rows))

    def finish(self) -> bytes:
        """Convert the last row."""
        return b"" if self._too_long else self._render_row(self._incomplete)

    def _render_row(self, row: bytes) -> bytes:
        """Return a line for each known value of a row; an empty line if there are none."""
        is_readable = row.strip() and len(row) <= LONGEST_ROW
        values = self._read_row(row) if is_readable else {}
        step = _read_number(values.get(STEP))
        if step is None or not (0 <= step < LARGEST_STEP and step == int(step)):
            return b"\n"
        timestamp = _read_number(values.get(TIMESTAMP)) or math.nan
        # not a time in seconds, or NaN
        if not 0 < timestamp < LARGEST_STEP:
            timestamp = math.nan
        numbers = {
            name: _read_number(values[name]) for name in METRIC_NAMES if name in values
        }
        lines = (
            _render_scalar(int(step), "", timestamp, number, name)
            for name, number in numbers.items()
            if number is not None
        )
        return "".join(lines).encode() or b"\n"

    def _read_row(self, row: bytes) -> dict[str, object]:
        """Return the values of a row by name; {} for a row without values."""
        raise NotImplementedError


class TableRenderer(RowRenderer):
    """Renderer of a table with column names in its first row.

    A run that was appended begins with its own column names.
    """

    def __init__(self) -> None:
        super().__init__()
        self._names: list[str] = []

    def _read_row(self, row: bytes) -> dict[str, object]:
        cells = _split_row(row)
        if STEP in cells:
            self._names = cells
            return {}
        if len(cells) != len(self._names):
            return {}
        return dict(zip(self._names, cells, strict=True))


class ObjectRenderer(RowRenderer):
    """Renderer of JSON lines."""

    def _read_row(self, row: bytes) -> dict[str, object]:
        return _read_object(row)


def _split_row(line: bytes) -> list[str]:
    """Split a line of CSV into cells; [] if it is invalid."""
    try:
        return next(csv.reader([line.decode("utf-8-sig", "replace").strip()]), [])
    except csv.Error:
        return []


def _read_object(line: bytes) -> dict[str, object]:
    """Parse a JSON object; {} for anything else."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _read_number(value: object) -> float | None:
    """Return a number, or None for other values and empty cells."""
    if isinstance(value, bool) or not isinstance(value, str | float | int):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


# --- event files: frames of length, checksum, data, checksum --------------------------

HEADER = 12
FOOTER = 4
MASK = 0xA282EAD8
"""Added to a rotated checksum."""

CRC_POLYNOMIAL = 0x82F63B78
"""The polynomial of CRC-32C, with its bits reversed."""

Field = tuple[int, "int | bytes"]
"""Number and value of a field in a protocol buffer message."""

# Field numbers of the messages Event, Summary, Summary.Value and TensorProto.
EVENT_TIME, EVENT_STEP, EVENT_SUMMARY = 1, 2, 5
SUMMARY_VALUE = 1
VALUE_TAG, VALUE_SIMPLE, VALUE_TENSOR = 1, 2, 8
TENSOR_TYPE, TENSOR_CONTENT, TENSOR_FLOATS, TENSOR_STRINGS = 1, 4, 5, 8
# The number of the type float in TENSOR_TYPE.
FLOAT_TYPE = 1


class EventRenderer:
    """Renderer of an event file. Only small frames are parsed."""

    def __init__(self) -> None:
        self._incomplete = b""  # the beginning of a frame that ends in a later block
        self._skip = 0  # remaining bytes of a large frame
        self._offset = 0  # of the next frame in the file
        self._total = ""  # the total number of steps, once it is known

    @property
    def unfinished(self) -> bool:
        """True if the file ends within a frame."""
        return bool(self._incomplete or self._skip)

    def render(self, block: bytes) -> bytes:
        """Convert the frames that end in a block."""
        skipped = min(self._skip, len(block))
        self._skip -= skipped
        self._offset += skipped
        data = self._incomplete + block[skipped:]
        data_offset = self._offset  # of `data` in the file
        begin = 0  # of a frame in `data`
        lines: list[str] = []
        while not self._skip and len(data) - begin >= HEADER:
            self._offset = data_offset + begin
            size = self._read_size(data[begin : begin + HEADER])
            end = begin + HEADER + size + FOOTER
            if size > LARGEST_SCALAR:  # skipped, also in the next blocks
                self._skip = max(0, end - len(data))
                begin = min(end, len(data))
            elif end > len(data):  # the next block contains the end of the frame
                break
            else:
                record = data[begin + HEADER : end - FOOTER]
                checksum = data[end - FOOTER : end]
                self._refuse_damage(record, checksum)
                lines += self._render_event(record)
                begin = end
        self._offset = data_offset + begin
        self._incomplete = data[begin:]
        return "".join(lines).encode("utf-8", "replace")

    def finish(self) -> bytes:
        """Return b"": an incomplete frame has no lines."""
        return b""

    def _read_size(self, header: bytes) -> int:
        """Return the size of a record. Raises ValueError for a damaged header."""
        self._refuse_damage(header[:8], header[8:])
        size = int.from_bytes(header[:8], "little")
        if size > LARGEST_RECORD:
            raise ValueError(
                f"the record at byte {self._offset} states a size of {size} bytes, expected at most {LARGEST_RECORD}"
            )
        return size

    def _refuse_damage(self, data: bytes, checksum: bytes) -> None:
        """Raise ValueError if data do not have this checksum."""
        if compute_checksum(data) != int.from_bytes(checksum, "little"):
            raise ValueError(f"wrong checksum after byte {self._offset}")

    def _render_event(self, record: bytes) -> Iterator[str]:
        """Yield the lines of an event, none for an invalid one."""
        fields = list(read_fields(record))
        steps = (value for number, value in fields if number == EVENT_STEP)
        step = next((value for value in steps if isinstance(value, int)), 0)
        times = (value for number, value in fields if number == EVENT_TIME)
        timestamp = _unpack("<d", next(times, None))
        if step >= LARGEST_STEP:
            return
        for number, summary in fields:
            if number != EVENT_SUMMARY or not isinstance(summary, bytes):
                continue
            for value_number, value in read_fields(summary):
                if value_number == SUMMARY_VALUE and isinstance(value, bytes):
                    value_fields = dict(read_fields(value))
                    yield from self._render_value(value_fields, step, timestamp)

    def _render_value(
        self, fields: dict[int, int | bytes], step: int, timestamp: float
    ) -> Iterator[str]:
        """Yield the line of a value with a known name, or of an argument."""
        tag = fields.get(VALUE_TAG, b"")
        name = tag.decode("utf-8", "replace") if isinstance(tag, bytes) else ""
        tensor = fields.get(VALUE_TENSOR)
        if name in METRIC_NAMES:
            if VALUE_SIMPLE in fields:
                value = _unpack("<f", fields[VALUE_SIMPLE])
            else:
                value = _read_tensor(tensor)
            yield _render_scalar(step, self._total, timestamp, value, name)
        elif name.endswith(TEXT) and isinstance(tensor, bytes):
            yield from self._render_argument(name.removesuffix(TEXT), tensor)

    def _render_argument(self, name: str, tensor: bytes) -> Iterator[str]:
        """Yield the line of an argument, as in Megatron's log.

        Remembers the total number of steps for the lines of later values.
        """
        text = dict(read_fields(tensor)).get(TENSOR_STRINGS, b"")
        value = text.decode("utf-8", "replace") if isinstance(text, bytes) else ""
        is_argument = (
            ARGUMENT.fullmatch(name)
            and value.isprintable()
            and 0 < len(value) <= LONGEST_ARGUMENT
        )
        if not is_argument:
            return
        if name == TOTAL and value.isdecimal() and len(value) < 16:
            self._total = value
        yield f"  {name} {'.' * max(4, ARGUMENT_WIDTH - len(name))} {value}\n"


def read_fields(data: bytes) -> Iterator[Field]:
    """Yield (number, value) of a protocol buffer message's fields, until an invalid
    one."""
    offset = 0
    while offset < len(data):
        key, offset = _read_varint(data, offset)
        if key is None:
            return
        number, kind = key >> 3, key & 7
        # Kinds: 0 is a varint, 1 eight bytes, 2 bytes after their length, 5 four bytes.
        if kind == 0:
            value, offset = _read_varint(data, offset)
            if value is None:
                return
            yield number, value
            continue
        if kind == 2:
            size, offset = _read_varint(data, offset)
        else:
            size = {1: 8, 5: 4}.get(kind)
        if size is None or offset + size > len(data):
            return
        yield number, data[offset : offset + size]
        offset += size


def _read_varint(data: bytes, offset: int) -> tuple[int | None, int]:
    """Return an integer of variable length, and the offset after it.

    The integer is None if it is truncated or too long.
    """
    value = 0
    for shift in range(0, 70, 7):
        if offset >= len(data):
            break
        byte = data[offset]
        offset += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, offset
    return None, offset


def _read_tensor(tensor: int | bytes | None) -> float:
    """Return the value of a tensor of one float, NaN for other tensors."""
    if not isinstance(tensor, bytes):
        return math.nan
    fields = dict(read_fields(tensor))
    if fields.get(TENSOR_TYPE) != FLOAT_TYPE:
        return math.nan
    return _unpack("<f", fields.get(TENSOR_FLOATS) or fields.get(TENSOR_CONTENT))


def _unpack(kind: str, value: int | bytes | None) -> float:
    """Unpack a number of the `struct` format `kind`; NaN for other values."""
    if not isinstance(value, bytes) or len(value) != struct.calcsize(kind):
        return math.nan
    number: float
    (number,) = struct.unpack(kind, value)
    return number


def compute_checksum(data: bytes) -> int:
    """Return the masked CRC-32C of data, as stored in frames."""
    table, checksum = _make_table(), 0xFFFFFFFF
    for byte in data:
        checksum = table[(checksum ^ byte) & 255] ^ (checksum >> 8)
    checksum ^= 0xFFFFFFFF
    return ((checksum >> 15 | checksum << 17) + MASK) & 0xFFFFFFFF


@cache
def _make_table() -> tuple[int, ...]:
    """Build the CRC-32C of each byte."""
    values = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (CRC_POLYNOMIAL if value & 1 else 0)
        values.append(value)
    return tuple(values)
