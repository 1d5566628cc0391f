"""The committed examples are what the generator writes, and their table says what they are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from generator.__main__ import main, shipped
from generator.experiments import EXPERIMENTS, table, verdicts, write_experiments
from generator.layouts import layout
from generator.logs import log_text

from pytest_llmbench.core.models import Baseline, Reason, Verdict

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def documented() -> dict[str, Baseline]:
    """The shipped baselines by id."""
    return shipped()


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.mark.slow
def test_committed_examples_are_what_the_generator_writes(documented: dict[str, Baseline], tmp_path: Path) -> None:
    """Byte for byte, no file more and none less; written anew with: cd examples && python -m generator experiments"""
    write_experiments(tmp_path, documented)
    written, committed = tree(tmp_path), tree(EXAMPLES / "experiments")
    assert sorted(written) == sorted(committed)
    assert [name for name in written if written[name] != committed[name]] == []


def test_examples_are_small() -> None:
    """They travel with every clone."""
    files = tree(EXAMPLES / "experiments")
    assert len(files) < 80
    assert sum(map(len, files.values())) < 1_500_000


def test_readme_holds_the_table(documented: dict[str, Baseline]) -> None:
    """The README's table is the generator's: python -m generator --table"""
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert table(documented) in readme
    links = [part.partition(")")[0] for part in readme.split("](")[1:]]
    assert sum(link.startswith("experiments/") for link in links) == len(EXPERIMENTS)
    assert [link for link in links if not (EXAMPLES / link).is_file()] == []


def test_what_the_examples_show() -> None:
    """Every ending that a user should see stands in them."""
    shown = Counter((experiment.expected, experiment.reason) for experiment in EXPERIMENTS)
    assert shown[Verdict.PASS, Reason.WITHIN_TOLERANCE] >= 15
    for ending in (
        (Verdict.REGRESSION, Reason.SLOWER_THAN_BOUND),
        (Verdict.IMPROVEMENT, Reason.FASTER_THAN_BASELINE),
        (Verdict.INVALID, Reason.DIVERGED),
        (Verdict.INVALID, Reason.INCOMPLETE),
        (Verdict.NOT_COMPARABLE, Reason.PROFILED),
        (Verdict.NOT_COMPARABLE, Reason.TRACED),
        (Verdict.NOT_COMPARABLE, Reason.CHECKPOINT_LOAD),
        (None, Reason.UNMATCHED),
    ):
        assert shown[ending] >= 1


def test_every_family_has_a_clean_pass(documented: dict[str, Baseline]) -> None:
    """Recipe, size, release and GPU type: each has a passing run."""
    passed = {documented[experiment.configuration].key for experiment in EXPERIMENTS if experiment.expected == "PASS"}
    families = {(key.recipe, key.size, key.release, key.gpu) for key in (each.key for each in documented.values())}
    assert {(key.recipe, key.size, key.release, key.gpu) for key in passed} == families


def test_verdicts_of_configurations() -> None:
    """The newest comparable run decides; a profiled run does not stand in; an unmatched run is of no configuration."""
    found = verdicts()
    assert found["llama3.1_70b-25.04-h100-bf16-64"] == (Verdict.PASS, Reason.WITHIN_TOLERANCE)
    assert found["llama3.1_70b-25.04-h100-fp8-64"] == (Verdict.MISSING, Reason.ONLY_NOT_COMPARABLE)
    assert found["grok1_314b-25.05-gb200-fp8-128"] == (Verdict.PASS, Reason.WITHIN_TOLERANCE)
    assert len(found) == len({experiment.configuration for experiment in EXPERIMENTS})


def test_preambles_are_of_a_size_to_read(documented: dict[str, Baseline]) -> None:
    """20 to 60 lines stand before the first step."""
    for experiment in EXPERIMENTS:
        plan = experiment.plan(documented[experiment.configuration])
        lines = log_text(plan, 0).replace("\r", "\n").splitlines()
        starts = ("completed step", "| 1/", "Training epoch", "NCCL INFO", "Checkpoint Load")
        first = next(number for number, line in enumerate(lines) if any(start in line for start in starts))
        assert 20 <= first <= 60, layout(plan).logs[0]


@pytest.mark.slow
def test_command_writes_the_examples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Into a new folder, and over an old one only when told to."""
    assert main([str(tmp_path / "new")]) == 0
    assert tree(tmp_path / "new") == tree(EXAMPLES / "experiments")
    assert main([str(tmp_path / "new")]) == 2
    assert "is not empty" in capsys.readouterr().err
    (tmp_path / "new" / "results" / "notes.txt").write_text("mine", encoding="utf-8")
    assert main(["--force", str(tmp_path / "new")]) == 0
    assert len(tree(tmp_path / "new")) == len(tree(EXAMPLES / "experiments")) + 1


@pytest.mark.slow
def test_command_writes_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of any documented configuration; a second one needs a name of its own."""
    asked = ["--configuration", "grok1_314b-25.05-gb200-bf16-128", "--factor", "1.08", str(tmp_path)]
    assert main(asked) == 0
    log = Path(capsys.readouterr().out.strip())
    assert "train_step_timing in s: 7.9" in log.read_text(encoding="utf-8")
    assert main(asked) == 2
    assert "give another --job-id and --started" in capsys.readouterr().err
    assert main([*asked, "--job-id", "7", "--started", "2025-08-01T00:00"]) == 0
    assert "_7_0.out" in capsys.readouterr().out


def test_command_names_the_nearest_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A typo is a message with a way out, and nothing is written."""
    assert main(["--configuration", "grok1_314b-25.05-gb20-bf16-128", str(tmp_path)]) == 2
    assert "did you mean 'grok1_314b-25.05-gb200-bf16-128'?" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_command_needs_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a folder nothing can be written; the table needs none."""
    with pytest.raises(SystemExit):
        main([])
    assert "DIR is missing" in capsys.readouterr().err
    assert main(["--table"]) == 0
    assert capsys.readouterr().out.startswith("| job |")
