"""The dialects of training logs: one row says all that any stage has to know of one.

What reads its records is the module of its name in `logs/dialects`. A baseline file may
define one by a regular expression.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

NO_TOTAL = rb"(?!)"
"""A regular expression that matches nothing."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way of writing steps."""

    first_step: int
    """The number that the dialect gives to the first step of a run."""

    markers: tuple[bytes, ...]
    """A record begins with one of them. A log is searched for the markers of all
    dialects at once."""

    starts: tuple[bytes, ...] = ()
    """Printed when a process starts, so that later steps are of another attempt."""

    ends: tuple[bytes, ...] = ()
    """Printed after the last step."""

    total: bytes = NO_TOTAL
    """A regular expression for the number of steps that a start says."""

    ends_divide: bool = True
    """Whether a step after an end is of another attempt. Not so where every rank prints
    the end, each when it gets there: the others still print steps."""

    prints_loss: bool = True
    """Whether a step that prints no loss lacks one."""

    absent_loss: float | None = None
    """What a pipeline stage without the loss prints in its place."""

    exact_zero: bool = False
    """Whether significant digits, or all, are printed: a 0 is one then. The `0.000` of
    others may be a small one, rounded."""

    announces_pauses: bool = True
    """Whether lines between the steps tell of evaluations and saves."""

    averages: int = 1
    """The printed times are means over so many steps, which neighbours share."""

    prints_late: bool = False
    """Whether its steps stand in a record of the whole run, printed when that is
    over."""

    documented: str = ""
    """A regular expression for what a document about a benchmark shows of such a log;
    empty where none is known."""


NEMO_STARTS = (b"Copying Trainer's 'max_steps'", b"restart_count=")
NEMO_ENDS = (
    b"`Trainer.fit` stopped: `max_steps=",
    b"`Trainer.fit` stopped: `max_epochs=",
)

SEPARATORS = (b"train_samples_per_second",)
"""Starts that stand in a record itself, so that the next record is of another run."""

DIALECTS = {
    "nemo1": Dialect(
        first_step=0,
        markers=(b"Epoch ", b"DLL "),
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
        markers=(
            b"completed step",
        ),  # without the colon, before which a colour may end
        starts=(b"Config param steps: ",),
        total=rb"Config param steps: (\d{1,15})[ \t]*[\r\n]",
        documented=r"completed step: \d+, seconds: ",
    ),
    "megatron": Dialect(
        first_step=1,
        markers=(
            b"iteration  ",
            b"iteration (",
            b"Step Time : ",
        ),  # with two blanks: NeMo 2 has one, in every step
        starts=(
            # Megatron's has more dashes
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
            b"Elapsed time ",  # for <_main>; as short as an ending needs it, too
        ),
        starts=(b"initial global_step=", b"Starting training loop"),
        ends=(b"E2E time: Elapsed time for <_main>",),
        ends_divide=False,
        prints_loss=False,  # every hundred steps or so only
        documented=r"train_step\(\) took",
    ),
    "huggingface": Dialect(
        first_step=1,
        markers=(
            b"'train_runtime': ",
            b'"train_runtime": ',
            b"ing training from ",  # Continuing, to 4.x, or Resuming
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
        # LLaMA-Factory's last record has neither loss nor runtime, and its steps are
        # more than those of the one before.
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
        prints_loss=False,  # of some steps, or none
        exact_zero=True,
    ),
}

_PLAIN = Dialect(first_step=0, markers=())

REGEX = "regex"
"""What a baseline file calls the dialect that it defines itself; its name is then that
of `name_regex_dialect`."""


def get_dialect(name: str | None) -> Dialect:
    """Return the dialect of this name; of one that a baseline file defines, or of none,
    one without peculiarities."""
    return DIALECTS.get(name or "", _PLAIN)


def name_regex_dialect(recipe: str, release: str) -> str:
    """Return the name of the dialect that the baseline file of a recipe defines, such
    as `regex:mine-1.0`."""
    return f"{REGEX}:{recipe}-{release}"


# --- regular expressions of baseline files, in linear time ----------------------------

TIMED = (("seconds",), ("elapsed",), ("rate", "amount"), ("stamp",))
"""The groups of which a pattern needs one row, beside `step`: what says how long a step
took. The first row counts."""

APART = ("testing", "saving")
"""The groups for time that `seconds` contains and that trains nothing: an evaluation,
and a checkpoint."""

GROUPS = (
    *("step", *(name for row in TIMED for name in row)),
    *APART,
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
"""The groups of a pattern: what a line says of a step."""

RATE = "1/s"
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0}
"""The seconds in each unit of time; RATE is that of a printed rate."""

_TOKEN = re.compile(
    r"\\Q.*?(?:\\E|\Z)|\\.|\[\^?\]?(?:\\.|\[:\^?[a-z]+:\]|[^\]\\])*\]|\(\?P?<(?P<name>\w+)>|\(|\)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class PatternGroup:
    """A named group of a pattern, with the characters of the pattern that stand
    directly before and after it."""

    name: str
    before: str
    after: str
    up_to: str = ""
    """The pattern as far as the group goes, with what is open closed."""


def find_timed(names: Collection[str]) -> tuple[str, ...]:
    """Return which of the groups of a pattern say how long a step took, none where it
    lacks them."""
    return next((row for row in TIMED if all(name in names for name in row)), ())


def compile_pattern(pattern: str, *, shipped: bool = False) -> Any:
    """Compile a pattern over bytes; ValueError if RE2 refuses it or is not installed.

    A shipped pattern needs no RE2: it was written to take linear time.
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
            "found a pattern, expected the package google-re2, which is not installed: "
            "pip install 'pytest-llmbench[regex]'"
        ) from None
    options = re2.Options()
    options.log_errors = False  # else RE2 writes to standard error itself
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise ValueError(
            f"found a pattern that cannot be read ({_decode_message(error)}), expected the syntax of RE2, "
            "which has no backreferences and no lookaround"
        ) from None


def find_groups(pattern: str) -> Iterator[PatternGroup]:
    """Yield the named groups of a pattern that compiles, in the order in which they
    end."""
    begun: list[tuple[str | None, int]] = []
    for token in _TOKEN.finditer(pattern):
        if token[0] == ")" and begun:
            name, place = begun.pop()
            if name is not None:
                after = pattern[token.end() :].removeprefix("\\")
                up_to = pattern[: token.end()] + ")" * len(begun)
                yield PatternGroup(
                    name, pattern[place - 1 : place] if place else "", after[:1], up_to
                )
        elif token[0].startswith("("):
            begun.append((token["name"], token.start()))


def _decode_message(error: Exception) -> str:
    text = error.args[0] if error.args else ""
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
