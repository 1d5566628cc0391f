"""A custom recipe is recorded and later judged with the printed options."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.custom_baseline import LLAMA_8B, custom_baseline
from support.sessions import Judge

STEPS = "".join(
    f"it {step} loss=2.5 {12270 + step % 3} ms/step\n" for step in range(1, 51)
)

LOG = r"""regex
log: {find: " ms/step", unit: ms, first_step: 1,
  pattern: 'it (?P<step>\d+) loss=(?P<loss>\S+) (?P<seconds>\S+) ms/step'}"""


def write_recipe(folder: Path, *, kind: str = "recipe") -> None:
    """Write a file whose runs are called by a name that is not the recipe's own."""
    shape = "sequence_length: 8192, layers: 32, gbs: 128, tp: 1, dp: 2, ep: 4"
    text = custom_baseline(
        recipe="oak",
        framework='"Acorn: 0.3"',
        dialect=LOG,
        gpu="h100",
        peak="989",
        size="8b",
        gpus=8,
        model=LLAMA_8B,
        shape=shape,
        seconds="12.2",
        more="dp_excludes_ep: true",
    )
    text = text.replace("names: [oak]", 'names: [oak, quercus, "1.0"]').replace(
        "title: oak,", "title: Oak and more,"
    )
    if kind == "recipe":
        text = text.replace("kind: published", "kind: recipe").replace(
            ', cells: {step_time: "12.2"}', ""
        )
    folder.mkdir()
    (folder / "oak.yaml").write_text(text, encoding="utf-8")


def write_runs(folder: Path) -> None:
    for day in (1, 2, 3):
        run = folder / f"2026-05-0{day}" / "pretrain_quercus_8b_bf16_8"
        run.mkdir(parents=True)
        (run / f"log-quercus_8b_bf16_8_{day}.out").write_text(
            STEPS.replace("2.5", f"2.{day}"), encoding="utf-8"
        )


def told_options(shown: str) -> list[str]:
    """Return the options of the last printed next step."""
    step = " ".join(shown[shown.rindex("next: ") :].split())
    match = re.search(
        r"judge later runs against it with ((?:--llmb-baselines=\S+ ?)+)", step
    )
    assert match, step
    return match[1].split()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["recipe", "published"])
def test_recipe_recorded_from_runs_judges_the_same_runs(
    judged: Judge,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_recipe(tmp_path / "mine", kind=kind)
    write_runs(tmp_path / "runs")
    logs = ("--llmb-logs=runs", "--llmb-runs=newest", "-k", "oak")
    recorded = judged(*logs, "--llmb-baselines=mine", "--llmb-record=own")
    assert list(recorded.verdicts.values()) == ["RECORDED"], recorded.described
    options = told_options(capsys.readouterr().out)
    assert options == ["--llmb-baselines=mine", "--llmb-baselines=own"]
    for chosen in (options, ["--llmb-baselines=own"]):
        assert judged(*logs, *chosen).verdicts == dict.fromkeys(
            recorded.verdicts, "PASS"
        )
    text = (tmp_path / "own" / "oak" / "own.yaml").read_text(encoding="utf-8")
    for line in (
        "title: Oak and more",
        "framework: 'Acorn: 0.3'",
        "names: [oak, quercus, '1.0']",
        "dp_excludes_ep: true",
    ):
        assert line in text
    session = judged(*logs, "--llmb-baselines=own", "--llmb-record=own")
    assert list(session.verdicts.values()) == ["RECORDED"]
    assert (tmp_path / "own" / "oak" / "own.yaml").read_text(encoding="utf-8").count(
        "names:"
    ) == 1
    elsewhere = judged(*logs, "--llmb-baselines=own", "--llmb-record=other")
    assert list(elsewhere.verdicts.values()) == ["RECORDED"]
    assert judged(*logs, "--llmb-baselines=other").verdicts == dict.fromkeys(
        recorded.verdicts, "PASS"
    )
