"""Baselines that a user writes for real logs and for an unknown framework.

The log's own step time passes; against a baseline that is 10 % faster it never does.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.custom_baseline import LLAMA_8B, custom_baseline
from support.sessions import Judge

Told = Mapping[str, Any]
JudgedAt = Callable[..., Told]
"""Judge a log against a baseline of so many seconds; return what was told."""


@pytest.fixture
def judged_at(judged: Judge, tmp_path: Path) -> JudgedAt:
    def judge(
        log: Path, baseline: Mapping[str, object], seconds: float, *options: str
    ) -> Told:
        gpus, size = baseline["gpus"], baseline["size"]
        runs, baselines_folder = (
            tmp_path / f"results/own/bf16/{size}/{gpus}",
            tmp_path / "baselines",
        )
        for folder in (runs, baselines_folder):
            folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(log, runs / f"log-{baseline['recipe']}_{size}_{gpus}_7.out")
        (baselines_folder / "own.yaml").write_text(
            custom_baseline(**baseline, seconds=f"{seconds:.5g}")
        )
        chosen = (
            f"--llmb-logs={tmp_path / 'results'}",
            f"--llmb-baselines={baselines_folder}",
            "-k",
            str(baseline["recipe"]),
        )
        told: Sequence[Told] = list(judged(*chosen, *options).described.values())
        assert len(told) == 1
        return told[0]

    return judge


# --- a framework that nobody has heard of ---------------------------------------------

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
"""What an Acorn step takes; every fifth is 0.6 % slower, so 6 of the 34 in the
window."""

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


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "verdict"), [(1, "PASS"), (0.9, "REGRESSION")])
def test_custom_log_definition_judges_its_runs(
    judged_at: JudgedAt, tmp_path: Path, factor: float, verdict: str
) -> None:
    session = judged_at(acorn_log(tmp_path, STEPS), OAK, MEAN * factor)
    assert session["verdict"] == verdict, session["text"]
    assert session["metrics"]["step_time_seconds"]["value"] == pytest.approx(
        MEAN, rel=1e-5
    )
    assert len(session["window_seconds"]) == 34


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (STEPS.replace("it 20/50 loss=2.5", "it 20/50 loss=nan"), "diverged"),
        (
            "".join(acorn(step, tokens=TOKENS / 2) for step in range(1, 51)),
            "wrong-configuration",
        ),
        (STEPS.replace("ms/step", "s/step"), "still-running"),
        ("".join(map(acorn, range(1, 41))), "window-incomplete"),
    ],
)
def test_custom_log_definition_runs_all_checks(
    judged_at: JudgedAt, tmp_path: Path, lines: str, reason: str
) -> None:
    session = judged_at(acorn_log(tmp_path, lines), OAK, MEAN)
    assert (session["verdict"], session["reason"]) == ("INVALID", reason), session[
        "text"
    ]


UNREAD = {
    "named": (
        "oak_8b_bf16_8.out",
        STEPS.replace("it ", "step "),
        "INVALID",
        "line 2: 3: [",
    ),
    "no-line": (
        "oak_8b_bf16_8.out",
        "",
        "MISSING",
        "no line contains ' ms/step', the `find` of regex:oak-own",
    ),
    "no-name": (
        "foo.out",
        STEPS.replace("it ", "step "),
        "MISSING",
        "the pattern of regex:oak-own matches none of 50",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", UNREAD)
def test_unreadable_log_is_a_run_if_its_name_matches(
    judged: Judge, tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    name, lines, verdict, told = UNREAD[case]
    runs, baselines_folder = tmp_path / "runs", tmp_path / "baselines"
    runs.mkdir()
    baselines_folder.mkdir()
    (baselines_folder / "own.yaml").write_text(custom_baseline(**OAK, seconds="12.27"))
    acorn_log(tmp_path, lines).rename(runs / name)
    session = judged(
        f"--llmb-logs={runs}", f"--llmb-baselines={baselines_folder}", "-k", "oak"
    )
    assert list(session.verdicts.values()) == [verdict]
    assert told in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_run_is_read_with_the_log_definition_of_its_own_recipe(
    judged_at: JudgedAt, tmp_path: Path
) -> None:
    """A second recipe reads the same lines in another unit; what the run is decides
    which of them counts."""
    other = {
        **OAK,
        "recipe": "elm",
        "dialect": str(OAK["dialect"]).replace("unit: ms", "unit: us"),
    }
    (tmp_path / "baselines").mkdir()
    text = custom_baseline(**other, seconds="1")
    (tmp_path / "baselines/first.yaml").write_text(text)
    session = judged_at(acorn_log(tmp_path, STEPS), OAK, MEAN)
    assert session["verdict"] == "PASS", session["text"]
    assert session["metrics"]["step_time_seconds"]["value"] == pytest.approx(
        MEAN, rel=1e-5
    )
