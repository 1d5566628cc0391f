"""Baselines that a user writes for real logs, and for a framework that nobody has heard of: each judges its run.

At the log's own step time a run passes; against a baseline that is 10 % faster it never does.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from own_baseline import LLAMA_8B, own_baseline
from sessions import Judge
from shared_data import shared


class RealRun(NamedTuple):
    """A log of the shared data, what its baseline says, and the step time in the window, from the command beside it."""

    log: str
    seconds: float
    baseline: Mapping[str, object]


REAL = {
    # awk over the iteration lines of the slowest of its four runs, the second: mean of '(ms): ', steps 101 to 300
    "megatron-four-variants": RealRun(
        "megatron/2624605.out",
        1.350816,
        {
            "recipe": "gdn",
            "framework": "Megatron-LM",
            "dialect": "megatron",
            "first": 101,
            "last": 300,
            "steps": 300,
            "gpu": "gh200",
            "peak": "989",
            "size": "1b",
            "gpus": 56,
            "model": "hidden_size: 2048, attention_heads: 32, query_groups: 32, "
            "ffn_size: 5824, vocabulary_size: 128256",
            "shape": "sequence_length: 8192, layers: 16, gbs: 336, mbs: 2",
        },
    ),
    # the same, 11 <= iteration <= 44, of the first of four clocks, the slowest
    "megatron-four-clocks": RealRun(
        "megatron/four_clock_runs.out",
        21.02369,
        {
            "recipe": "qwen2",
            "framework": "Megatron-DeepSpeed",
            "dialect": "megatron",
            "first": 11,
            "last": 44,
            "steps": 50,
            "gpu": "v100",
            "peak": "125",
            "size": "7b",
            "gpus": 16,
            "model": "hidden_size: 3584, attention_heads: 28, query_groups: 4, "
            "ffn_size: 18944, vocabulary_size: 152064",
            "shape": "sequence_length: 2048, layers: 28, gbs: 16, mbs: 1",
            "more": "logged_tflops_factor: 1.31",  # it counts the forward pass that is computed again
        },
    ),
    # the stamps of rank 0: (23:15:43.022 of step 20 - 23:15:33.422 of step 2) / 18
    "torchtitan-two-ranks": RealRun(
        "torchtitan/two_ranks_print.out",
        0.53333,
        {
            "recipe": "mosaic",
            "framework": "torchtitan",
            "dialect": "torchtitan",
            "first": 3,
            "last": 20,
            "steps": 20,
            "gpu": "a40",
            "peak": "149.7",
            "size": "16m",
            "gpus": 2,
            "model": "hidden_size: 256, attention_heads: 4, query_groups: 4, ffn_size: 2816, vocabulary_size: 50368",
            "shape": "sequence_length: 2048, layers: 4, gbs: 16, mbs: 8",
        },
    ),
    # grep -o 'global_step : .*step_timing in s : [0-9.]*' gives steps 10 to 19 in full
    "nemo1-stale-bars": RealRun(
        "nemo1/stale_bars_dllogger.out",
        2.02513,
        {
            "recipe": "qwen3",
            "framework": "NeMo",
            "dialect": "nemo1",
            "first": 10,
            "last": 19,
            "steps": 20,
            "gpu": "b200",
            "peak": "2250",
            "size": "30b",
            "gpus": 32,
            "model": LLAMA_8B,
            "shape": "sequence_length: 4096, layers: 48, gbs: 256",
        },
    ),
}

Told = Mapping[str, Any]
JudgedAt = Callable[..., Told]
"""Judge a log against a baseline of so many seconds; return what was told."""


@pytest.fixture
def judged_at(judged: Judge, tmp_path: Path) -> JudgedAt:
    def judge(log: Path, baseline: Mapping[str, object], seconds: float, *options: str) -> Told:
        gpus, size = baseline["gpus"], baseline["size"]
        runs, own = tmp_path / f"results/own/bf16/{size}/{gpus}", tmp_path / "baselines"
        for folder in (runs, own):
            folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(log, runs / f"log-{baseline['recipe']}_{size}_{gpus}_7.out")
        (own / "own.yaml").write_text(own_baseline(**baseline, seconds=f"{seconds:.5g}"))
        chosen = (f"--llmb-logs={tmp_path / 'results'}", f"--llmb-baselines={own}", "-k", str(baseline["recipe"]))
        told: Sequence[Told] = list(judged(*chosen, *options).described.values())
        assert len(told) == 1
        return told[0]

    return judge


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_a_real_run_passes_at_its_own_step_time(judged_at: JudgedAt, name: str) -> None:
    log, seconds, baseline = REAL[name]
    told = judged_at(shared(f"logs/{log}"), baseline, seconds)
    assert told["verdict"] == "PASS", told["text"]
    assert told["metrics"]["step_time_seconds"]["value"] == pytest.approx(seconds, rel=1e-3)
    assert len(told["window_seconds"]) == int(str(baseline["last"])) - int(str(baseline["first"])) + 1


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_a_real_run_never_passes_against_a_baseline_that_is_faster(judged_at: JudgedAt, name: str) -> None:
    log, seconds, baseline = REAL[name]
    told = judged_at(shared(f"logs/{log}"), baseline, seconds * 0.9)
    assert told["verdict"] in ("REGRESSION", "INCONCLUSIVE"), told["text"]


# --- a framework that nobody has heard of ---------------------------------------------------------------

OAK: dict[str, object] = {
    "recipe": "oak",
    "framework": "Acorn 0.3",
    "dialect": r"""regex
log:
  find: " ms/step"
  pattern: '\] it (?P<step>[\d,]+)/(?P<total>\d+) loss=(?P<loss>\S+) tok/s/gpu=(?P<tokens>\S+) (?P<seconds>\S+) ms/step'
  unit: ms
  first_step: 1
  start: "acorn: hello"
  end: "acorn: bye"
""",
    "first": 11,
    "last": 44,
    "steps": 50,
    "gpu": "h100",
    "peak": "989",
    "size": "8b",
    "gpus": 8,
    "model": LLAMA_8B,
    "shape": "sequence_length: 8192, layers: 32, gbs: 128",
}
TOKENS = 8192 * 128 / 8
SECONDS = 12.27
"""What an Acorn step takes; every fifth is 0.6 % slower, so 6 of the 34 in the window."""

MEAN = SECONDS * (1 + 6 / 34 * 0.006)


def acorn(step: int, *, loss: str = "2.5", tokens: float = TOKENS) -> str:
    seconds = SECONDS * (1.006 if step % 5 == 0 else 1)
    return (
        f"3: [2026-05-04 06:{step:02d}:00] it {step:,}/50 loss={loss} tok/s/gpu={tokens / seconds:,.1f} "
        f"{1000 * seconds:,.1f} ms/step (eta 10 ms)\n"
    )


def acorn_log(folder: Path, lines: str) -> Path:
    path = folder / "acorn.out"
    path.write_text(f"acorn: hello\n{lines}acorn: bye\n")
    return path


STEPS = "".join(map(acorn, range(1, 51)))


@pytest.mark.parametrize(("factor", "verdict"), [(1, "PASS"), (0.9, "REGRESSION"), (1.03, "PASS")])
def test_a_run_of_an_unknown_framework_is_judged_by_its_own_definition(
    judged_at: JudgedAt, tmp_path: Path, factor: float, verdict: str
) -> None:
    told = judged_at(acorn_log(tmp_path, STEPS), OAK, MEAN * factor)
    assert told["verdict"] == verdict, told["text"]
    assert told["metrics"]["step_time_seconds"]["value"] == pytest.approx(MEAN, rel=1e-5)
    assert len(told["window_seconds"]) == 34


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (STEPS.replace("it 20/50 loss=2.5", "it 20/50 loss=nan"), "diverged"),
        ("".join(acorn(step, tokens=TOKENS / 2) for step in range(1, 51)), "wrong-configuration"),
        (STEPS.replace(acorn(20), ""), "window-incomplete"),
        (STEPS.replace("ms/step", "s/step"), "still-running"),
        ("".join(map(acorn, range(1, 41))), "window-incomplete"),
    ],
)
def test_a_run_of_an_unknown_framework_is_checked_like_any_other(
    judged_at: JudgedAt, tmp_path: Path, lines: str, reason: str
) -> None:
    told = judged_at(acorn_log(tmp_path, lines), OAK, MEAN)
    assert (told["verdict"], told["reason"]) == ("INVALID", reason), told["text"]


def test_a_pattern_that_reads_nothing_is_told_with_a_line_that_it_should_read(
    judged_at: JudgedAt, tmp_path: Path
) -> None:
    told = judged_at(acorn_log(tmp_path, STEPS.replace("] it ", "] step ")), OAK, MEAN)
    assert told["verdict"] == "INVALID"
    assert "the pattern of regex:oak-own reads none of 50 lines with ' ms/step', such as line 2: 3: [" in told["text"]
    assert told["line"] == 2


UNREAD = {
    "named": ("oak_8b_bf16_8.out", STEPS.replace("it ", "step "), "INVALID", "line 2: 3: ["),
    "no-line": ("oak_8b_bf16_8.out", "", "MISSING", "no line of it holds ' ms/step', the `find` of regex:oak-own"),
    "no-name": ("foo.out", STEPS.replace("it ", "step "), "MISSING", "the pattern of regex:oak-own reads none of 50"),
}


@pytest.mark.parametrize("case", UNREAD)
def test_a_log_that_nothing_reads_is_a_run_where_its_name_and_its_lines_say_so(
    judged: Judge, tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    name, lines, verdict, told = UNREAD[case]
    runs, own = tmp_path / "runs", tmp_path / "baselines"
    runs.mkdir()
    own.mkdir()
    (own / "own.yaml").write_text(own_baseline(**OAK, seconds="12.27"))
    acorn_log(tmp_path, lines).rename(runs / name)
    session = judged(f"--llmb-logs={runs}", f"--llmb-baselines={own}", "-k", "oak")
    assert list(session.verdicts.values()) == [verdict]
    assert told in " ".join(capsys.readouterr().out.split())


def test_means_over_intervals_are_judged_as_such(judged_at: JudgedAt, tmp_path: Path) -> None:
    dialect = str(OAK["dialect"]).replace("unit: ms", "unit: ms\n  averages: interval")
    lines = "".join(acorn(step) for step in range(2, 51, 2))
    told = judged_at(acorn_log(tmp_path, lines), {**OAK, "dialect": dialect}, SECONDS * 0.9)
    assert told["verdict"] in ("REGRESSION", "INCONCLUSIVE"), told["text"]
    assert len(told["window_seconds"]) == 17


@pytest.mark.slow
def test_what_was_recorded_of_an_unknown_framework_judges_the_next_run(
    judged: Judge, judged_at: JudgedAt, tmp_path: Path
) -> None:
    recorded = tmp_path / "recorded"
    judged_at(acorn_log(tmp_path, STEPS), OAK, MEAN, f"--llmb-record={recorded}")
    logs, own = f"--llmb-logs={tmp_path / 'results'}", f"--llmb-baselines={tmp_path / 'baselines'}"
    (told,) = judged(logs, own, f"--llmb-baselines={recorded}", "-k", "oak").described.values()
    assert told["verdict"] == "PASS", told["text"]
    assert told["baseline"]["kind"] == "recorded"


def test_a_definition_that_fits_other_logs_takes_no_run_from_its_own_recipe(
    judged_at: JudgedAt, tmp_path: Path
) -> None:
    """A second recipe reads the same lines in another unit; what the run is decides which of them counts."""
    other = {**OAK, "recipe": "elm", "dialect": str(OAK["dialect"]).replace("unit: ms", "unit: us")}
    (tmp_path / "baselines").mkdir()
    text = own_baseline(**other, seconds="1")
    (tmp_path / "baselines/first.yaml").write_text(text)
    told = judged_at(acorn_log(tmp_path, STEPS), OAK, MEAN)
    assert told["verdict"] == "PASS", told["text"]
    assert told["metrics"]["step_time_seconds"]["value"] == pytest.approx(MEAN, rel=1e-5)


def test_a_run_that_nothing_names_is_told_with_what_it_lacks_and_where_to_look(
    judged: Judge, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own item is selected with the configuration that it may be of, and the end of the session says why."""
    runs, own = tmp_path / "runs", tmp_path / "baselines"
    runs.mkdir()
    own.mkdir()
    (own / "own.yaml").write_text(own_baseline(**OAK, seconds="12.27"))
    acorn_log(tmp_path, STEPS.replace("50 loss", "60 loss")).rename(runs / "foo.out")
    judged(f"--llmb-logs={runs}", f"--llmb-baselines={own}", "-k", "oak")
    told = " ".join(capsys.readouterr().out.partition(" llmbench ==")[2].split())
    lacks = "could be oak_8b-own-h100-bf16-8; nothing says its recipe, size, dtype, gpus"
    assert "AMBIGUOUS runs/foo" in told
    assert f"runs/foo ({lacks}). Next: correct what keeps" in told
    assert "llmbench summary PATH --baselines " in told
