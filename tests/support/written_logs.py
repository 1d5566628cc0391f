"""Log lines of the frameworks, for logs of a few lines."""

from __future__ import annotations

from pytest_llmbench.core.log_records import ParsedLog
from pytest_llmbench.logs.log_reader import parse_blocks


def parse(text: str | bytes) -> ParsedLog:
    """Parse a log as a single block."""
    return parse_blocks([text.encode() if isinstance(text, str) else text])


def nemo2(
    step: int,
    seconds: str = "6.061",
    *,
    total: int = 50,
    more: str = " | consumed_samples: 640",
) -> str:
    """Format a NeMo 2 line of epoch 0."""
    return (
        f"Training epoch 0, iteration {step}/{total - 1} | lr: 1.5e-07 | global_batch_size: 128 | "
        f"global_step: {step} | reduced_train_loss: 11.96 | train_step_timing in s: {seconds}{more}\n"
    )


def nemo2_run(first: int, last: int, prefix: str = "", *, total: int = 50) -> str:
    """Format the NeMo 2 lines from step `first` to step `last`."""
    return "".join(prefix + nemo2(step, total=total) for step in range(first, last + 1))


def nemo2_log(order: str, **lines: str) -> str:
    """Format NeMo 2 lines in an order such as "0-9 8 START 10-12".

    Words are names of additional `lines`.
    """
    text = ""
    for word in order.split():
        first, _, last = word.partition("-")
        text += (
            lines[word] if word in lines else nemo2_run(int(first), int(last or first))
        )
    return text


def bar(
    count: int,
    step: str,
    seconds: str,
    *,
    total: int = 50,
    samples: str = "512.0",
    loss: str = "12.90",
) -> str:
    """Format a NeMo 1 progress bar with its logged values."""
    return (
        f"Epoch 0: :  10%|█         | {count}/{total} [01:19<11:58, v_num=None, reduced_train_loss={loss}, "
        f"global_step={step}, consumed_samples={samples}, train_step_timing in s={seconds}]"
    )


def dll(
    step: int, seconds: str, *, samples: str = "512.0", loss: str = "12.94773006439209"
) -> str:
    """Format a DLLogger record."""
    return (
        f"DLL 2025-06-11 05:14:49.562847 - {step} reduced_train_loss : {loss}  lr : 0.0  global_step : {step}.0  "
        f"consumed_samples : {samples}  grad_norm : 14.857102394104004  train_step_timing in s : {seconds}  epoch : 0 "
    )


def maxtext(step: int, seconds: str = "7.908", *, loss: str = ", loss: 0.000") -> str:
    """Format a MaxText line."""
    return (
        f"completed step: {step}, seconds: {seconds}, TFLOP/s/device: 460.480, Tokens/s/device: 1035.970, "
        f"total_weights: 524288{loss}\n"
    )


def maxtext_run(first: int, last: int, prefix: str = "") -> str:
    """Format the MaxText lines from step `first` to step `last`."""
    return "".join(prefix + maxtext(step) for step in range(first, last + 1))


def steps(log: ParsedLog) -> list[list[int]]:
    """Return the step numbers of each segment."""
    return [segment.steps.index.tolist() for segment in log.segments]


def dropped(log: ParsedLog) -> dict[str, int]:
    """Return the number of dropped records by reason."""
    return {record.reason: record.count for record in log.dropped}


FILLER = b"text without any meaning that stands between the steps\n" * 60
LOGS = {
    "nemo1": "".join(
        "\r" + bar(n + 1, f"{n}.000", "2.000") + dll(n, "2.0012") + "\n" * (n % 3 == 0)
        for n in range(4)
    ),
    "nemo2": "[NeMo I 2025-04-11 14:48:45 x] start\n"
    + nemo2_run(0, 1, "0: ")
    + nemo2(2, more="")
    + nemo2_run(0, 1, "0: "),
    "maxtext": "Config param steps: 3\n"
    + maxtext_run(0, 2)
    + "Config param steps: 9\n"
    + maxtext_run(0, 3),
    "endings": "slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2021-05-27T21:42:11 DUE TO TIME LIMIT ***\n",
}
"""Small logs. LONG contains all of them, separated by filler text."""
LONG = b"".join(text.encode() + FILLER for text in LOGS.values()) * 2
