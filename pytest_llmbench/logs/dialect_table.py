"""The table of log dialects, and the groups of user-defined patterns.

The module of the dialect's name in `logs/dialects` parses its records. A baseline file
may define a dialect by a regular expression.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from pytest_llmbench.core.patterns import compile_on_use

NO_TOTAL = rb"(?!)"
"""A regular expression without any match."""


class Dialect(Struct, frozen=True):
    """How one framework prints its steps."""

    first_step: int
    """The number of the first step of a run."""

    markers: tuple[bytes, ...]
    """Literal texts that begin a record.

    A log is searched for the markers of all dialects at once.
    """

    heads: Mapping[bytes, bytes] = field(default_factory=dict)
    """Regular expressions that records match at a marker, by marker.

    Only for markers that also occur in other lines of many logs.
    """

    inner_markers: tuple[bytes, ...] = ()
    """The markers that a complete record contains after its beginning.

    Such a marker begins a record only if the beginning of the record was lost.
    """

    companion_markers: tuple[bytes, ...] = ()
    """The markers of lines that complete the records of other lines."""

    opening: bytes = b""
    """The text with which a record begins, if the marker does not begin it."""

    starts: tuple[bytes, ...] = ()
    """Texts that a starting process prints: later steps belong to a new attempt."""

    ends: tuple[bytes, ...] = ()
    """Texts that are printed after the last step."""

    total: bytes = NO_TOTAL
    """A regular expression for the number of steps that a start line prints."""

    ends_divide: bool = True
    """True if a step after an end line belongs to a new attempt.

    False if every rank prints its own end line, while other ranks still print steps.
    """

    prints_loss: bool = True
    """True if a step without a loss is incomplete."""

    absent_loss: float | None = None
    """The placeholder that a pipeline stage without the loss prints."""

    exact_zero: bool = False
    """True if a printed 0 is exactly zero.

    Such dialects print significant or all digits. Others may round a small number to
    `0.000`.
    """

    announces_pauses: bool = True
    """True if lines between the steps announce evaluations and saves."""

    averages: int = 1
    """Number of steps over which each printed time is a moving average."""

    prints_late: bool = False
    """True if one record, printed at the end, contains the steps of the run."""

    documented: str = ""
    """A regular expression for excerpts of such a log in documentation.

    Empty if none is known.
    """


NEMO_STARTS = (b"Copying Trainer's 'max_steps'", b"restart_count=")
NEMO_ENDS = (
    b"`Trainer.fit` stopped: `max_steps=",
    b"`Trainer.fit` stopped: `max_epochs=",
)

SEPARATORS = (b"train_samples_per_second",)
"""Start texts that are part of a record: the next record belongs to another run."""

DIALECTS = {
    "nemo1": Dialect(
        first_step=0,
        markers=(b"Epoch ", b"DLL "),
        # not "Epoch 0, global step 99: 'reduced_train_loss' reached 8.83520"
        heads={b"Epoch ": rb"Epoch (?:\d{1,9}:[: ]*\d{1,3}%|[\d: ]*\x1b)"},
        starts=NEMO_STARTS,
        ends=NEMO_ENDS,
        exact_zero=True,
        averages=5,
        documented=r"train_step_timing in s=\d",
    ),
    "nemo2": Dialect(
        first_step=0,
        markers=(b"Training epoch ",),
        starts=NEMO_STARTS,
        ends=NEMO_ENDS,
        exact_zero=True,
        documented=r"train_step_timing in s: \d|parse_train_timing",
    ),
    "maxtext": Dialect(
        first_step=0,
        markers=(b"completed step",),  # without the colon: a colour code may precede it
        starts=(b"Config param steps: ",),
        total=rb"Config param steps: (\d{1,15})[ \t]*[\r\n]",
        documented=r"completed step: \d+, seconds: ",
    ),
    "megatron": Dialect(
        first_step=1,
        # two blanks: the steps of NeMo 2 contain the word with one
        markers=(b"iteration  ", b"iteration (", b"Step Time : "),
        # not "saved checkpoint from iteration      99 to /results"
        heads={b"iteration  ": rb"iteration {2,9}\d{1,15}/"},
        inner_markers=(b"iteration (",),
        companion_markers=(b"Step Time : ",),
        starts=(
            # Megatron prints more dashes
            b"-------------------- arguments --------------------",
            b"time to initialize megatron (seconds): ",
            b"> building train, validation, and test datasets ...",
        ),
        ends=(
            b"[after training is done] datetime: ",
            b"[exiting program at iteration ",
        ),
        ends_divide=False,
        exact_zero=True,
    ),
    "torchtitan": Dialect(
        first_step=1,
        markers=(b"tps: ",),
        opening=b"step: ",
        starts=(
            b"Trainer is initialized with local batch size ",
            b"Training starts at step ",
        ),
        ends=(b"Training completed",),
        total=rb"Train(?:er|ing) [^\r\n]{1,400}?, total steps (\d{1,15}) \(",
        ends_divide=False,
        absent_loss=-1.0,
    ),
    "paxml": Dialect(
        first_step=0,
        markers=(
            b"train_step() took ",
            b"initial global_step=",
            b"Starting training loop",
            b"step_i: ",
            # for <_main>; shortened to share it with an ending marker
            b"Elapsed time ",
        ),
        starts=(b"initial global_step=", b"Starting training loop"),
        ends=(b"E2E time: Elapsed time for <_main>",),
        ends_divide=False,
        prints_loss=False,  # only about every hundred steps
        documented=r"train_step\(\) took",
    ),
    "huggingface": Dialect(
        first_step=1,
        markers=(
            b"'train_runtime': ",
            b'"train_runtime": ',
            b"ing training from ",  # Continuing (up to 4.x) or Resuming
            b"'learning_rate': ",
            b'"learning_rate": ',
        ),
        starts=(b"***** Running training *****", *SEPARATORS),
        exact_zero=True,
        prints_late=True,
    ),
    "trainer": Dialect(
        first_step=1,
        markers=(b'current_steps": ', b"global_step/max_steps"),
        starts=(b"***** Running training *****",),
        # The last record of LLaMA-Factory has no loss and no runtime, and a higher step
        # than the record before.
        ends=(
            b"'train_runtime': ",
            b'"train_runtime": ',
            b'"percentage": 100.0, "elapsed_time": ',
        ),
        ends_divide=False,
        exact_zero=True,
    ),
    "metrics": Dialect(
        first_step=1,
        markers=(b"llmb scalar: ",),
        prints_loss=False,  # not at every step
        announces_pauses=False,
        exact_zero=True,
    ),
    "mlperf": Dialect(
        first_step=0,
        markers=(b":::MLLOG ",),
        starts=(b'"key": "run_start"',),
        ends=(b'"key": "run_stop"',),
        ends_divide=False,
        prints_loss=False,  # of some steps at most
        exact_zero=True,
    ),
}

_DEFAULT = Dialect(first_step=0, markers=())

REGEX = "regex"
"""The name of a user-defined dialect in its baseline file.

Elsewhere its name is `name_regex_dialect`.
"""


def get_dialect(name: str | None) -> Dialect:
    """Return the dialect of a name.

    User-defined and unknown dialects get the defaults.
    """
    return DIALECTS.get(name or "", _DEFAULT)


def name_regex_dialect(recipe: str, release: str) -> str:
    """Name the dialect that a baseline file defines: `regex:mine-1.0`."""
    return f"{REGEX}:{recipe}-{release}"


# --- patterns of baseline files, matched in linear time -------------------------------

TIME_GROUPS = (("seconds",), ("elapsed",), ("rate", "amount"), ("stamp",))
"""The alternative groups for the time of a step.

A pattern needs `step` and all groups of one row; the first complete row is used.
"""

NON_TRAINING_GROUPS = ("testing", "saving")
"""Groups for evaluation and checkpoint time that `seconds` includes.

This time is subtracted: no training happens in it.
"""

GROUPS = (
    *("step", *(name for row in TIME_GROUPS for name in row)),
    *NON_TRAINING_GROUPS,
    *(
        "unit",
        "tflops",
        "loss",
        "grad_norm",
        "tokens",
        "total",
        "batch",
        "memory_bytes",
    ),
    *("throughput", "learning_rate", "step_tokens", "target_tokens", "consumed_tokens"),
)
"""All groups that a pattern may have."""

RATE = "1/s"
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0}
"""Seconds per unit of time.

RATE is the unit of a printed rate.
"""

# The parts of a pattern that matter for its groups: quoted text, an escaped character,
# a character class, the beginning of a named group, and brackets.
_TOKEN = compile_on_use(
    r"\\Q.*?(?:\\E|\Z)|\\.|\[\^?\]?(?:\\.|\[:\^?[a-z]+:\]|[^\]\\])*\]|\(\?P?<(?P<name>\w+)>|\(|\)",
    re.DOTALL,
)


class PatternGroup(Struct, frozen=True):
    """A named group of a pattern, and its neighbouring characters.

    `before` and `after` are the characters of the pattern directly around the group.
    """

    name: str
    before: str
    after: str
    prefix_pattern: str = ""
    """The pattern up to the end of the group, with open groups closed."""


def find_time_groups(names: Collection[str]) -> tuple[str, ...]:
    """Return the first row of TIME_GROUPS that `names` contains, or ()."""
    return next((row for row in TIME_GROUPS if all(name in names for name in row)), ())


def compile_pattern(pattern: str, *, shipped: bool = False) -> Any:
    """Compile a pattern over bytes.

    A shipped pattern needs no RE2, because it was written to run in linear time.

    Raises ValueError if RE2 rejects the pattern or is not installed.
    """
    if shipped:
        try:
            return re.compile(pattern.encode())
        except re.error as error:
            raise ValueError(str(error)) from None
    try:
        import re2
    except ImportError:
        raise ValueError(
            "found a pattern, but the package google-re2 is not installed: "
            "pip install 'pytest-llmbench[regex]'"
        ) from None
    options = re2.Options()
    options.log_errors = False  # otherwise RE2 prints to standard error
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise ValueError(
            f"found an invalid pattern ({_decode_message(error)}), expected RE2 syntax, "
            "which has no backreferences or lookaround"
        ) from None


def find_groups(pattern: str) -> Iterator[PatternGroup]:
    """Yield the named groups of a valid pattern, ordered by their ends."""
    open_groups: list[tuple[str | None, int]] = []  # name and offset
    for token in _TOKEN.finditer(pattern):
        if token[0] == ")" and open_groups:
            name, start = open_groups.pop()
            if name is not None:
                after = pattern[token.end() :].removeprefix("\\")
                prefix_pattern = pattern[: token.end()] + ")" * len(open_groups)
                before = pattern[start - 1 : start] if start else ""
                yield PatternGroup(name, before, after[:1], prefix_pattern)
        elif token[0].startswith("("):
            open_groups.append((token["name"], token.start()))


def _decode_message(error: Exception) -> str:
    """Return the message of an RE2 error, which may be bytes."""
    text = error.args[0] if error.args else ""
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
