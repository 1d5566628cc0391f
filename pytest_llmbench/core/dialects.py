"""The dialects of training logs: one row says all that any stage has to know of one.

What reads its records is the module of its name in `ingest/parse/dialects`.
"""

from __future__ import annotations

from dataclasses import dataclass

NO_TOTAL = rb"(?!)"
"""A regular expression that matches nothing."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way of writing steps."""

    first_step: int
    """The number that the dialect gives to the first step of a run."""

    markers: tuple[bytes, ...]
    """A record begins with one of them. A log is searched for the markers of all dialects at once."""

    starts: tuple[bytes, ...] = ()
    """Printed when a process starts, so that later steps are of another attempt."""

    ends: tuple[bytes, ...] = ()
    """Printed after the last step."""

    total: bytes = NO_TOTAL
    """A regular expression for the number of steps that a start says."""

    ends_divide: bool = True
    """Whether a step after an end is of another attempt. Not so where every rank prints the end, each when it gets
    there: the others still print steps."""

    prints_loss: bool = True
    """Whether a step that prints no loss lacks one."""


NEMO_STARTS = (b"Copying Trainer's 'max_steps'", b"restart_count=")
NEMO_ENDS = (b"`Trainer.fit` stopped: `max_steps=", b"`Trainer.fit` stopped: `max_epochs=")

SEPARATORS = (b"train_samples_per_second",)
"""Starts that stand in a record itself, so that the next record is of another run."""

DIALECTS = {
    "nemo1": Dialect(first_step=0, markers=(b"Epoch ", b"DLL "), starts=NEMO_STARTS, ends=NEMO_ENDS),
    "nemo2": Dialect(first_step=0, markers=(b"Training epoch ",), starts=NEMO_STARTS, ends=NEMO_ENDS),
    "maxtext": Dialect(
        first_step=0,
        markers=(b"completed step",),  # without the colon, before which a colour may end
        starts=(b"Config param steps: ",),
        total=rb"Config param steps: (\d{1,15})[ \t]*[\r\n]",
    ),
    "megatron": Dialect(
        first_step=1,
        markers=(b"iteration  ", b"iteration (", b"Step Time : "),  # with two blanks: NeMo 2 has one, in every step
        starts=(
            b"-------------------- arguments --------------------",  # Megatron's has more dashes
            b"time to initialize megatron (seconds): ",
            b"> building train, validation, and test datasets ...",
        ),
        ends=(b"[after training is done] datetime: ", b"[exiting program at iteration "),
        ends_divide=False,
    ),
    "torchtitan": Dialect(
        first_step=1,
        markers=(b"tps: ",),
        starts=(b"Trainer is initialized with local batch size ", b"Training starts at step "),
        ends=(b"Training completed",),
        total=rb"Train(?:er|ing) [^\r\n]{1,400}?, total steps (\d{1,15}) \(",
        ends_divide=False,
    ),
    "paxml": Dialect(
        first_step=0,
        markers=(
            b"train_step() took ",
            b"initial global_step=",
            b"Starting training loop",
            b"step_i: ",
            b"Elapsed time for <_main>",
        ),
        starts=(b"initial global_step=", b"Starting training loop"),
        ends=(b"E2E time: Elapsed time for <_main>",),
        ends_divide=False,
        prints_loss=False,  # every hundred steps or so only
    ),
    "huggingface": Dialect(
        first_step=1,
        markers=(
            b"'train_runtime': ",
            b'"train_runtime": ',
            b"Continuing training from global step ",
            b"'learning_rate': ",
        ),
        starts=(b"***** Running training *****", *SEPARATORS),
    ),
}

REGEX = "regex"
"""What a baseline file calls the dialect that it defines itself; its name is then that of `name_regex_dialect`."""


def name_regex_dialect(recipe: str, release: str) -> str:
    """Return the name of the dialect that the baseline file of a recipe defines, such as `regex:mine-1.0`."""
    return f"{REGEX}:{recipe}-{release}"
