"""Recorded configurations on later days: ordinary runs pass, bad ones fail."""

from __future__ import annotations

import math
import shutil
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
from support.own_runs import (
    ARGUMENTS,
    OwnRun,
    Text,
    changed,
    deepspeed,
    maxtext,
    megatron,
    nanotron,
    titan,
    trainer,
)
from support.own_runs import write as write_run
from support.sessions import Judge, JudgedSession

Change = Callable[[OwnRun], OwnRun]


class Night(NamedTuple):
    """A recorded run, and the changes of a later run."""

    framework: Text
    change: Change
    recorded: OwnRun = OwnRun()
    tonight: Text | None = (
        None  # how tonight's log looks, if the framework alone does not print it
    )


def at(run: OwnRun, **fields: object) -> OwnRun:
    return replace(run, **fields)  # type: ignore[arg-type]


def alter(**fields: object) -> Change:
    """Return the change of these fields."""
    return lambda run: at(run, **fields)


def argue(**arguments: object) -> Change:
    """Return the change of these arguments."""
    return lambda run: changed(run, **arguments)


def slow_from(first: int, factor: float, last: int = 10**6) -> Change:
    return alter(slower=lambda step: factor if first <= step <= last else 1.0)


LONG = OwnRun(steps=200)
SHORT = OwnRun(steps=50)


# --- ordinary nights ------------------------------------------------------------------

EVALUATIONS = {
    step: f" validation loss at iteration {step} on validation set | lm loss value: 5.1E+00 | lm loss PPL: 1.6E+02 | \n"
    for step in range(21, 200, 20)
}
SAVES = {
    step: f"saving checkpoint at iteration {step - 1:7d} to /scratch/ckpt in torch_dist format\n"
    f"  successfully saved checkpoint from iteration {step - 1:7d} to /scratch/ckpt [ t 1/4, p 1/1 ]\n"
    for step in range(51, 200, 50)
}
PAUSES = dict.fromkeys(EVALUATIONS, 40.0)
SAVE_PAUSES = dict.fromkeys(SAVES, 30.0)
MORE_ARGUMENTS = {f"new_option_{number}": None for number in range(60)}


def restart(died: int, checkpoint: int, factor: float = 1.0) -> Text:
    """Return how a log looks whose job died behind a step and was restarted by torchrun
    from a checkpoint."""

    def print_run(run: OwnRun) -> str:
        first = megatron(run).splitlines(keepends=True)
        cut = next(
            index
            for index, line in enumerate(first)
            if f"iteration {died + 1:8d}/" in line
        )
        start = run.start + timedelta(seconds=run.seconds * died, minutes=20)
        again = at(run, first=checkpoint + 1, start=start, seconds=run.seconds * factor)
        return (
            "".join(first[:cut])
            + "[torchrun] worker group failed, restarting 1/3\n"
            + megatron(again)
        )

    return print_run


ORDINARY: Mapping[str, Night] = {
    "same": Night(megatron, alter()),
    "three-percent": Night(megatron, alter(seconds=2.06)),
    "faster": Night(megatron, alter(seconds=1.94)),
    "no-dump": Night(megatron, alter(dump=False)),
    "more-arguments": Night(megatron, argue(**MORE_ARGUMENTS)),
    "fewer-arguments": Night(
        megatron,
        alter(arguments={name: ARGUMENTS[name] for name in list(ARGUMENTS)[:12]}),
    ),
    "order-of-arguments": Night(
        megatron, alter(arguments=dict(sorted(ARGUMENTS.items(), reverse=True)))
    ),
    "seed-and-interval": Night(megatron, argue(seed=99, log_interval=1)),
    "evaluations": Night(
        megatron, alter(lines=EVALUATIONS, gaps=PAUSES), OwnRun(steps=200)
    ),
    "evaluations-recorded": Night(
        megatron, alter(), OwnRun(steps=200, lines=EVALUATIONS, gaps=PAUSES)
    ),
    "saves": Night(megatron, alter(lines=SAVES, gaps=SAVE_PAUSES), LONG),
    "saves-recorded": Night(megatron, alter(), at(LONG, lines=SAVES, gaps=SAVE_PAUSES)),
    "saves-on-slower-disk": Night(
        megatron,
        alter(gaps=dict.fromkeys(SAVES, 90.0)),
        at(LONG, lines=SAVES, gaps=SAVE_PAUSES),
    ),
    "long-evaluation-recorded": Night(
        megatron, alter(), at(LONG, lines=EVALUATIONS, gaps={**PAUSES, 101: 400.0})
    ),
    "slow-first-step-after-evaluation": Night(
        megatron,
        alter(),
        at(
            LONG,
            lines=EVALUATIONS,
            gaps=PAUSES,
            slower=lambda step: 3.0 if step % 20 == 1 else 1.0,
        ),
    ),
    "compilation-without-timer": Night(
        megatron, alter(gaps={2: 600.0}), at(LONG, gaps={2: 400.0})
    ),
    "slower-level-recorded-in-a-short-run": Night(
        maxtext,
        alter(steps=500),
        at(SHORT, slower=lambda step: 1.1 if step > 44 else 1.0),
    ),
    "midnight": Night(
        megatron, alter(start=datetime(2026, 3, 2, 23, 59, 20, tzinfo=UTC))
    ),
    "stamps-of-another-zone": Night(
        megatron, alter(start=datetime(2026, 3, 2, 11, 0, tzinfo=UTC))
    ),
    "loss-spike-recovers": Night(
        megatron,
        alter(loss=lambda step: 30.0 if step == 30 else 4 + 6 * math.exp(-step / 40)),
    ),
    "decay-to-zero": Night(
        megatron, alter(rate=lambda step: 3e-4 * max(0.0, 1 - step / 58))
    ),
    "warm-up-from-zero": Night(
        megatron, alter(rate=lambda step: 3e-4 * (step - 1) / 60)
    ),
    "scale-search": Night(megatron, alter(skipped=lambda step: int(step <= 8))),
    "norm-spike": Night(megatron, alter(norm=lambda step: 80.0 if step == 25 else 1.2)),
    "stall-of-one-step": Night(megatron, slow_from(30, 4.0, 30)),
    "two-stalls": Night(
        megatron, alter(slower=lambda step: 3.0 if step in (20, 40) else 1.0), LONG
    ),
    "stall-before-window": Night(megatron, slow_from(6, 8.0, 6)),
    "srun-labels": Night(megatron, alter(head="0: starting\n")),
    "warnings": Night(megatron, alter(head="WARNING: something is deprecated\n" * 40)),
    "every-tenth": Night(megatron, alter(), OwnRun(steps=400, every=10)),
    "small-model": Night(megatron, alter(), OwnRun(seconds=0.21, steps=400)),
    "slow-model": Night(megatron, alter(seconds=41.0), OwnRun(seconds=40.0)),
    "titan": Night(titan, alter(seconds=2.02)),
    "titan-every-tenth": Night(titan, alter(), OwnRun(steps=200, every=10)),
    "titan-summer-time": Night(titan, alter(gaps={25: 3600.0})),
    "titan-winter-time": Night(titan, alter(gaps={25: -3600.0})),
    "titan-less-verbose": Night(titan, alter(), OwnRun(dump=True)),
    "maxtext": Night(maxtext, alter()),
    "maxtext-quarter-slower-warm-up": Night(maxtext, slow_from(1, 1.5, 4)),
    "trainer": Night(trainer, alter(seconds=2.03), OwnRun(steps=300)),
    "trainer-fine-tuning": Night(
        trainer,
        alter(loss=lambda step: 0.5 + 0.2 * math.exp(-step / 50)),
        OwnRun(steps=300),
    ),
    "nanotron": Night(nanotron, alter(seconds=2.0), OwnRun(seconds=1.99)),
    "nanotron-other-digits": Night(nanotron, alter(seconds=0.61), OwnRun(seconds=0.6)),
    "deepspeed": Night(deepspeed, alter(), OwnRun(steps=400)),
    "deepspeed-scale-search": Night(
        deepspeed, alter(skipped=lambda step: int(step <= 10)), OwnRun(steps=400)
    ),
    "other-node-names": Night(megatron, alter(head="nodes: node017,node018\n")),
    "restarted": Night(megatron, alter(), tonight=restart(19, 0)),
    "resumed-behind-window": Night(
        megatron, alter(), OwnRun(steps=100), restart(70, 60)
    ),
    "resumed-without-overlap": Night(
        megatron, alter(), OwnRun(steps=100), restart(70, 70)
    ),
    "resumed-in-window": Night(megatron, alter(), OwnRun(steps=100), restart(40, 25)),
    "resumed-in-window-without-overlap": Night(
        megatron, alter(), OwnRun(steps=100), restart(40, 40)
    ),
    "resumed-in-last-half": Night(megatron, alter(), LONG, restart(180, 160)),
    "slow-save-steps-recorded": Night(
        megatron, alter(), at(LONG, slower=lambda step: 4.0 if step % 25 == 0 else 1.0)
    ),
    "slow-save-steps-recorded-titan": Night(
        titan, alter(), at(LONG, slower=lambda step: 4.0 if step % 25 == 0 else 1.0)
    ),
    "clock-set-back-by-seconds": Night(megatron, alter(gaps={50: -7.0})),
    "longer-run": Night(megatron, alter(), OwnRun(steps=100)),
}
"""Nights on which nothing is wrong."""


# --- bad nights -----------------------------------------------------------------------

UNTIMED = dict.fromkeys(range(1, 400), 0.8)

BAD: Mapping[str, Night] = {
    "twelve-percent": Night(megatron, alter(seconds=2.24)),
    "slow-since-resumed": Night(megatron, alter(), LONG, restart(120, 110, 1.3)),
    "slow-since-resumed-behind-window": Night(
        megatron, alter(), OwnRun(steps=100), restart(60, 50, 1.3)
    ),
    "data-loading": Night(megatron, alter(gaps=UNTIMED), LONG),
    "hang-between-steps": Night(megatron, alter(gaps={30: 2400.0})),
    "hang-behind-window": Night(megatron, alter(gaps={55: 2400.0})),
    "hang-in-warm-up": Night(megatron, alter(gaps={8: 2400.0}), LONG),
    "hang-before-second-step": Night(megatron, alter(gaps={2: 2400.0}), LONG),
    "hang-across-the-end-of-the-window": Night(
        megatron, alter(gaps={45: 2400.0}), OwnRun(steps=50, every=10)
    ),
    "hang-in-evaluation": Night(
        megatron,
        alter(gaps={**PAUSES, 101: 2400.0}),
        at(LONG, lines=EVALUATIONS, gaps=PAUSES),
    ),
    "hang-in-new-evaluation": Night(
        megatron,
        alter(lines=EVALUATIONS, gaps={**PAUSES, 61: 1500.0, 141: 1500.0}),
        LONG,
    ),
    "hang-in-two-saves": Night(
        megatron,
        alter(gaps={**SAVE_PAUSES, 51: 1500.0, 101: 1500.0}),
        at(LONG, lines=SAVES, gaps=SAVE_PAUSES),
    ),
    "saves-that-take-ten-times-as-long": Night(
        megatron,
        alter(gaps=dict.fromkeys(SAVES, 600.0)),
        at(LONG, lines=SAVES, gaps=SAVE_PAUSES),
    ),
    "evaluation-announced-at-each-step": Night(
        megatron,
        alter(
            lines=dict.fromkeys(range(2, 201), "evaluating the queue\n"),
            gaps=dict.fromkeys(range(2, 201), 6.0),
        ),
        LONG,
    ),
    "slower-level-beside-a-recorded-stall": Night(
        megatron,
        alter(steps=1000, slower=lambda step: 1.24 if step >= 46 else 1.0),
        at(SHORT, slower=lambda step: 10.0 if step == 47 else 1.0),
    ),
    "hang-in-the-hour-set-back": Night(megatron, alter(gaps={55: 3000.0 - 3600.0})),
    "hang-in-the-hour-set-back-stamps-only": Night(
        titan, alter(gaps={63: 3000.0 - 3600.0}), OwnRun(steps=100)
    ),
    "nanotron-data-loading": Night(nanotron, alter(gaps=UNTIMED), LONG),
    "slow-tail": Night(megatron, slow_from(45, 1.3), OwnRun(steps=100)),
    "slow-first-half": Night(megatron, slow_from(20, 1.4, 480), OwnRun(steps=1000)),
    "ramp-behind-window": Night(
        megatron,
        alter(slower=lambda step: 1 + max(0, step - 45) / 100),
        OwnRun(steps=100),
    ),
    "stalled-step-behind-window": Night(megatron, slow_from(48, 600.0, 48)),
    "maxtext-slow-tail": Night(maxtext, slow_from(50, 1.3), OwnRun(steps=100)),
    "every-twentieth-step": Night(
        megatron,
        alter(slower=lambda step: 5.0 if step % 20 == 0 else 1.0),
        OwnRun(steps=1000),
    ),
    "diverged-behind-window": Night(
        megatron, alter(loss=lambda step: 3000.0 if step > 45 else 9 - step / 40)
    ),
    "diverged-slowly": Night(megatron, alter(loss=lambda step: 11 + step * 1.2)),
    "rate-zero": Night(megatron, alter(rate=lambda step: 0.0 if step >= 20 else 3e-4)),
    "skipped": Night(
        megatron, alter(skipped=lambda step: int(step > 20 and step % 3 == 0))
    ),
    "validation-nan": Night(
        megatron,
        alter(
            lines={
                31: " validation loss at iteration 30 on validation set | lm loss value: NAN | lm loss PPL: NAN | \n"
            }
        ),
    ),
    "exploding-norm": Night(
        megatron,
        alter(norm=lambda step: 10 ** (step / 7), loss=lambda step: 8 * 1.025**step),
    ),
    "nanotron-rate-zero": Night(nanotron, alter(rate=lambda step: 0.0)),
    "nanotron-norm-is-no-number": Night(
        nanotron, alter(norm=lambda step: math.nan if step > 30 else 1.2)
    ),
    "maxtext-loss-stands-still": Night(maxtext, alter(loss=lambda step: 10.0)),
    "deepspeed-skipped": Night(
        deepspeed, alter(skipped=lambda step: 1), OwnRun(steps=400)
    ),
    "trainer-zero-loss": Night(
        trainer, alter(loss=lambda step: 3.5 if step <= 10 else 0.0), OwnRun(steps=300)
    ),
    "trainer-half-batch": Night(trainer, alter(batch=128), OwnRun(steps=300)),
    "top-k": Night(megatron, argue(moe_router_topk=1)),
    "ffn": Night(megatron, argue(ffn_hidden_size=12288)),
    "vocabulary": Night(megatron, argue(padded_vocab_size=32000)),
    "forced-balance": Night(megatron, argue(moe_router_force_load_balancing=True)),
    "multi-token": Night(megatron, argue(mtp_num_layers=1)),
    "experts": Night(megatron, argue(num_experts=4)),
    "query-groups": Night(megatron, argue(num_query_groups=2)),
}
"""Nights that nobody would sign, although most print the recorded step time."""


def judge_nights(
    judged: Judge, folder: Path, cases: Mapping[str, Night]
) -> JudgedSession:
    """Record an earlier day of each configuration, then judge the later runs."""
    for number, (name, day) in enumerate(cases.items()):
        earlier = at(day.recorded, seed=number)
        write_run(
            folder / "rec", f"{name}-model", day.framework, earlier, 1000 + number
        )
        tonight = day.change(
            at(earlier, seed=500 + number, start=earlier.start + timedelta(days=1))
        )
        path = write_run(
            folder / "tonight", f"{name}-model", day.framework, tonight, 2000 + number
        )
        if day.tonight is not None:
            path.write_text(day.tonight(tonight), encoding="utf-8")
    assert (
        judged(
            f"--llmb-logs={folder / 'rec'}", f"--llmb-record={folder / 'own'}", "-q"
        ).ret
        == 0
    )
    return judged(
        f"--llmb-logs={folder / 'tonight'}", f"--llmb-baselines={folder / 'own'}", "-q"
    )


def find_wrong(
    session: JudgedSession, cases: Mapping[str, Night], status: str
) -> dict[str, str]:
    """Return the configurations whose items have an unexpected status."""
    results = {}
    for described in session.reports:
        name = described["id"].replace("_", "-").partition("-model-8b")[0]
        results[name] = (
            described["status"],
            f"{described.get('verdict')} {described.get('reason')}",
        )
    statuses = {name: results.get(name, ("no item", "")) for name in cases}
    return {
        name: " ".join(seen) for name, seen in statuses.items() if seen[0] != status
    }


DIED = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n",
    "slurmstepd: error: *** JOB 77 ON node01 CANCELLED AT 2026-03-02T04:00:00 DUE TO TIME LIMIT ***\n",
)


PLANNED = "Time limit reached. Elapsed time is 0:30:02. Signaling Trainer to stop.\n"


@pytest.mark.parametrize(
    "tail", ["", PLANNED, *DIED], ids=["end", "planned end", "memory", "time limit"]
)
def test_log_without_planned_steps_that_ends_in_a_crash_is_not_recorded(
    judged: Judge, tmp_path: Path, tail: str
) -> None:
    """A log of MaxText prints no number of steps, and nothing at its end."""
    write_run(tmp_path, "died-model", maxtext, OwnRun(steps=70, tail=tail), 5)
    session = judged(
        f"--llmb-logs={tmp_path}", f"--llmb-record={tmp_path / 'own'}", "-q"
    )
    (report,) = (
        report for report in session.reports if report["id"].startswith("died")
    )
    assert (report["reason"], session.ret) == (
        ("incomplete", 1) if tail in DIED else ("recorded", 0)
    )


@pytest.mark.parametrize(
    ("run", "word"),
    [
        (
            at(LONG, gaps=dict.fromkeys(range(1, 201), 0.8)),
            "the log's clock advances",
        ),
        (at(LONG, gaps={60: 3000.0}), "gaps between steps outside the window take"),
        (
            OwnRun(steps=100, slower=lambda step: 1.4 if step > 50 else 1.0),
            "to 100 outside the window (11 to 44) took",
        ),
    ],
    ids=["data loading", "hang", "tail"],
)
def test_recording_notes_hangs_and_slow_steps_outside_the_averaged_window(
    judged: Judge, tmp_path: Path, run: OwnRun, word: str
) -> None:
    write_run(tmp_path, "own-model", megatron, run, 5)
    session = judged(
        f"--llmb-logs={tmp_path}", f"--llmb-record={tmp_path / 'own'}", "-q"
    )
    (report,) = (report for report in session.reports if report["id"].startswith("own"))
    assert report["reason"] == "recorded"
    assert word in report["text"]
    assert len(report["notes"]) == len({str(note) for note in report["notes"]})


REPORT = "GPU relative performance:\n Worst performing 2/8 ranks:\n  Rank=5 Node=node07 Score=0.68\n"


@pytest.mark.parametrize("place", ["log", "stderr", "archive"])
def test_report_quotes_the_slow_rank_from_each_kind_of_source(
    judged: Judge, tmp_path: Path, place: str
) -> None:
    write_run(tmp_path / "rec", "own-model", megatron, OwnRun(), 5)
    assert (
        judged(
            f"--llmb-logs={tmp_path / 'rec'}", f"--llmb-record={tmp_path / 'own'}", "-q"
        ).ret
        == 0
    )
    lines = {} if place == "stderr" else {30: REPORT}
    slow = OwnRun(seconds=2.4, start=OwnRun().start + timedelta(days=1), lines=lines)
    log = write_run(tmp_path / "tonight", "own-model", megatron, slow, 6)
    if place == "stderr":
        log.with_suffix(".err").write_text(REPORT, encoding="utf-8")
    elif place == "archive":
        with tarfile.open(tmp_path / "tonight" / "logs.tar.gz", "w:gz") as archive:
            archive.add(log.parent, arcname=log.parent.name)
        shutil.rmtree(log.parent)
    session = judged(
        f"--llmb-logs={tmp_path / 'tonight'}",
        f"--llmb-baselines={tmp_path / 'own'}",
        "-q",
    )
    (report,) = (report for report in session.reports if report["id"].startswith("own"))
    source = f"{log.stem}.err" if place == "stderr" else "the log"
    assert (
        f'{source} reports a slow rank: "Rank=5 Node=node07 Score=0.68"'
        in report["text"]
    )


@pytest.mark.slow
def test_days_with_ordinary_runs_pass(judged: Judge, tmp_path: Path) -> None:
    assert len(ORDINARY) >= 40
    assert (
        find_wrong(judge_nights(judged, tmp_path, ORDINARY), ORDINARY, "passed") == {}
    )


@pytest.mark.slow
def test_days_with_bad_runs_fail(judged: Judge, tmp_path: Path) -> None:
    assert find_wrong(judge_nights(judged, tmp_path, BAD), BAD, "failed") == {}
