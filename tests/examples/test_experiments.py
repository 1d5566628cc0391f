"""The committed examples equal the generator's output."""

from __future__ import annotations

from pathlib import Path

import pytest
from generator.__main__ import main
from generator.experiments import EXPERIMENTS, table, verdicts

from pytest_llmbench.core.baseline_records import Baseline
from pytest_llmbench.core.codes import Reason, Verdict

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def read_tree(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_readme_contains_the_generated_table(documented: dict[str, Baseline]) -> None:
    """Update the README with: python -m generator --table"""
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert table(documented) in readme
    links = [path.partition(")")[0] for path in readme.split("](")[1:]]
    assert sum(link.startswith("experiments/") for link in links) == len(EXPERIMENTS)
    assert [link for link in links if not (EXAMPLES / link).is_file()] == []


def test_newest_comparable_run_decides_the_verdict() -> None:
    """Profiled runs do not count, and unmatched runs belong to no configuration."""
    by_configuration = verdicts()
    assert by_configuration["llama3.1_70b-25.04-h100-bf16-64"] == (
        Verdict.PASS,
        Reason.WITHIN_TOLERANCE,
    )
    assert by_configuration["llama3.1_70b-25.04-h100-fp8-64"] == (
        Verdict.MISSING,
        Reason.ONLY_NOT_COMPARABLE,
    )
    assert by_configuration["grok1_314b-25.05-gb200-fp8-128"] == (
        Verdict.PASS,
        Reason.WITHIN_TOLERANCE,
    )
    assert len(by_configuration) == len(
        {experiment.configuration for experiment in EXPERIMENTS}
    )


@pytest.mark.slow
def test_generator_command_reproduces_the_committed_example_logs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Update the examples with: cd examples && python -m generator experiments"""
    assert main([str(tmp_path / "new")]) == 0
    written, committed = (
        read_tree(tmp_path / "new"),
        read_tree(EXAMPLES / "experiments"),
    )
    assert sorted(written) == sorted(committed)
    assert [name for name in written if written[name] != committed[name]] == []
    assert main([str(tmp_path / "new")]) == 2
    assert "is not empty" in capsys.readouterr().err
    (tmp_path / "new" / "results" / "notes.txt").write_text("mine", encoding="utf-8")
    assert main(["--force", str(tmp_path / "new")]) == 0
    assert len(read_tree(tmp_path / "new")) == len(committed) + 1


@pytest.mark.slow
def test_generator_command_writes_one_run_of_a_given_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second run of the configuration needs another job id and start."""
    arguments = [
        "--configuration",
        "grok1_314b-25.05-gb200-bf16-128",
        "--factor",
        "1.08",
        str(tmp_path),
    ]
    assert main(arguments) == 0
    log = Path(capsys.readouterr().out.strip())
    assert "train_step_timing in s: 7.9" in log.read_text(encoding="utf-8")
    assert main(arguments) == 2
    assert "Choose another --job-id and --started" in capsys.readouterr().err
    assert main([*arguments, "--job-id", "7", "--started", "2025-08-01T00:00"]) == 0
    assert "_7_0.out" in capsys.readouterr().out


@pytest.mark.slow
def test_command_suggests_the_nearest_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typo prints a suggestion, and nothing is written."""
    assert (
        main(["--configuration", "grok1_314b-25.05-gb20-bf16-128", str(tmp_path)]) == 2
    )
    assert "did you mean 'grok1_314b-25.05-gb200-bf16-128'?" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_generator_command_requires_an_output_folder(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Only --table works without a folder."""
    with pytest.raises(SystemExit):
        main([])
    assert "DIR is missing" in capsys.readouterr().err
    assert main(["--table"]) == 0
    assert capsys.readouterr().out.startswith("| job |")
