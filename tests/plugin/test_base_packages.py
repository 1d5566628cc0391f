"""A plain install judges runs, and names the extra that an option needs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from generator.experiments import verdicts

pytestmark = [pytest.mark.wheel, pytest.mark.slow]

OPTIONAL = (
    *(
        "hyperscan",
        "re2",
        "fsspec",
        "s3fs",
        "jinja2",
        "sqlalchemy",
        "psycopg",
        "pyarrow",
        "argcomplete",
    ),
    "markdown_it",
)
WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL})); import pytest; sys.exit(pytest.main(sys.argv[1:]))"


def run_without_extras(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    plugins = ("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:hypothesispytest")
    command = [sys.executable, "-c", WITHOUT, "-q", *plugins, *options]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


def test_plain_install_judges_the_examples(tmp_path: Path, examples: Path) -> None:
    result = run_without_extras(
        tmp_path, f"--llmb-logs={examples}", "--llmb-json=o.json", "--llmb-junit=o.xml"
    )
    assert result.returncode == pytest.ExitCode.TESTS_FAILED, (
        result.stdout + result.stderr
    )
    outcomes = json.loads((tmp_path / "o.json").read_text())["outcomes"]
    judged = {outcome["id"]: outcome.get("verdict") for outcome in outcomes}
    assert {name: judged[name] for name in verdicts()} == {
        name: str(verdict) for name, (verdict, _) in verdicts().items()
    }
    assert (tmp_path / "o.xml").stat().st_size > 0


@pytest.mark.parametrize(
    ("option", "extra"),
    [
        ("--llmb-html=o.html", "html"),
        ("--llmb-history=h.db", "history"),
        ("--llmb-history=postgresql://localhost/nights", "postgresql"),
        ("--llmb-logs=s3://bucket/runs", "remote"),
    ],
)
def test_feature_without_its_extra_package_is_reported(
    tmp_path: Path, examples: Path, option: str, extra: str
) -> None:
    logs = () if option.startswith("--llmb-logs") else (f"--llmb-logs={examples}",)
    result = run_without_extras(tmp_path, *logs, option)
    assert result.returncode == pytest.ExitCode.USAGE_ERROR, (
        result.stdout + result.stderr
    )
    assert f"pip install 'pytest-llmbench[{extra}]'" in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
