"""`llmbench baselines draft`: baseline files for unmatched runs, to be edited."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.sessions import Judge
from support.titan_runs import write_run

from pytest_llmbench.baseline.lint import lint_file
from pytest_llmbench.baseline.read import read_file
from pytest_llmbench.cli.main import main


def draft(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = main(["baselines", "draft", *map(str, arguments)])
    return code, capsys.readouterr().out


@pytest.mark.slow
def test_completed_baseline_draft_matches_the_runs_that_it_was_made_from(
    judged: Judge, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "runs", 1)
    code, output = draft(
        capsys, tmp_path / "runs", "-o", tmp_path / "drafts", "--dtype", "bf16"
    )
    assert code == 0
    assert "oak_14b-own-h100-bf16-8: 1 run at oak/run_#/train.log" in output
    file = tmp_path / "drafts" / "oak" / "own.yaml"
    assert f"{file}: created" in output
    text = file.read_text()
    assert "# oak_14b-own-h100-bf16-8: 1 run at" in text
    assert lint_file(read_file(file)).findings == ()
    file.write_text(
        text.replace("- size: 14b", "- size: 15b").replace("  14b:", "  15b:")
    )
    options = (f"--llmb-logs={tmp_path / 'runs'}", "-k", "oak")
    recorded = judged(
        *options,
        f"--llmb-baselines={tmp_path / 'drafts'}",
        f"--llmb-record={tmp_path / 'own'}",
    )
    assert recorded.verdicts == {"oak_15b-own-h100-bf16-8": "RECORDED"}
    session = judged(*options, f"--llmb-baselines={tmp_path / 'own'}")
    assert set(session.statuses.values()) == {"passed"}


@pytest.mark.slow
def test_llmbench_draft_overwrites_no_existing_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "runs", 1)
    file = tmp_path / "drafts" / "oak" / "own.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("# mine\n")
    code, output = draft(capsys, tmp_path / "runs", "-o", tmp_path / "drafts")
    assert code == 1
    assert "another file exists and was kept; give another folder" in output
    assert file.read_text() == "# mine\n"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--gpus=many", "--gpus=many: expected a whole number from 1"),
        ("--size= ", "--size= is empty: give a value"),
    ],
)
def test_draft_refuses_an_invalid_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, message: str
) -> None:
    assert (
        main(
            [
                "baselines",
                "draft",
                str(tmp_path),
                "-o",
                str(tmp_path / "drafts"),
                option,
            ]
        )
        == 2
    )
    assert message in capsys.readouterr().err
