"""Values of cluster and baseline files are data or refused, never executed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.fake_recipe import WELL, write_recipe

HURT = "touch $STAGE_PATH/hurt"
VALUES = {
    "QUOTES": "a b\"c'd",
    "SEMICOLON": f"; {HURT}",
    "SUBSTITUTION": f"$({HURT}) `{HURT}`",
    "LINES": f"a\n{HURT}\n",
    "UNICODE": "héé 日本 \U0001f600",
    "EMPTY": "",
    "LONG": "x" * 100_000,
    "PATTERN": "* ? [a-z] ~",
    "TEMPLATE": "$HOME {gpus} {stage} %j",
    "BACKSLASH": "\\n \\\\ \\",
    "TERMINAL": "\t\r\x01\x1b[31m",
    "FUNCTION": f"() {{ :; }}; {HURT}",
    "OPTION": "-n --wrap=x",
}
SAVE = "\n".join(
    f'printf %s "${{{name}-unset}}" >"$STAGE_PATH/{name}"' for name in VALUES
)


@pytest.fixture
def folder(pytester: pytest.Pytester) -> Path:
    """A folder with a name that a shell would split, in which pytest is started."""
    path = pytester.mkdir("a b;touch hurt $(touch hurt) 'q")
    os.chdir(path)
    return path


def describe(folder: Path, values: dict[str, str]) -> None:
    """Write the cluster file with these variables."""
    described = {
        "schema": 1,
        "gpu": "h100",
        "gpus_per_node": 8,
        "environment": {"STAGE_PATH": str(folder / "stage"), **values},
        "installed": {"fake-24.11": {"folder": str(folder / "recipe")}},
    }
    (folder / "cluster.yaml").write_text(json.dumps(described, ensure_ascii=False))


@pytest.mark.slow
def test_launch_values_with_special_characters_reach_the_job_unchanged(
    pytester: pytest.Pytester, folder: Path
) -> None:
    write_recipe(folder, {"8b": f"{SAVE}\n{WELL}"}, kind="local")
    describe(folder, VALUES)
    pytester.runpytest("-k", "fake", "--llmb-launch").assert_outcomes(passed=2)
    assert {
        name: (folder / "stage" / name).read_bytes().decode() for name in VALUES
    } == VALUES
    assert not list(pytester.path.rglob("hurt"))


@pytest.mark.slow
def test_launch_value_too_long_for_a_process_is_refused(
    pytester: pytest.Pytester, folder: Path
) -> None:
    write_recipe(folder, {"8b": HURT}, kind="local")
    describe(folder, {"LONG": "x" * 131_072})
    result = pytester.runpytest("-k", "fake", "--llmb-launch")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "LONG takes 131078 bytes" in result.stderr.str()
    assert not list(pytester.path.rglob("hurt"))


NAMES = (
    "..",
    "../x",
    "a/b",
    "/etc",
    "a" * 300,
    "a\\0b",
    "a\\nb",
    "",
    "a b",
    "-rf",
    "$(touch hurt)",
    "a;touch hurt",
    "é",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "name"),
    [
        *(("size", name) for name in NAMES),
        ("recipe", "../x"),
        ("variant", "../x"),
        ("dtype", "../x"),
    ],
)
def test_launch_refuses_a_name_that_leads_out_of_its_folder(
    pytester: pytest.Pytester, key: str, name: str
) -> None:
    write_recipe(pytester.path, {"8b": HURT}, kind="local")
    file, quoted = pytester.path / "baselines" / "fake.yaml", f'"{name}"'
    changes = {
        "size": (
            ("size: 8b", f"size: {quoted}"),
            ("  8b: {formula", f"  {quoted}: {{formula"),
        ),
        "recipe": (("recipe: fake", f"recipe: {quoted}"),),
        "variant": (("gpus: 8,", f"gpus: 8, variant: {quoted},"),),
        "dtype": (("dtype: bf16", f"dtype: {quoted}"),),
    }
    text = file.read_text()
    for before, after in changes[key]:
        assert before in text
        text = text.replace(before, after)
    file.write_text(text)
    result = pytester.runpytest("--llmb-launch")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "expected a name" in result.stderr.str()
    assert not list(pytester.path.rglob("hurt"))
    assert not (pytester.path / ".llmbench").exists()
