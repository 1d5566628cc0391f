"""A file may define a custom dialect; errors are reported before a log is opened."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_llmbench.baseline.read import read_recipe, read_recipes
from pytest_llmbench.baseline.write import write_recorded
from pytest_llmbench.core.baseline_records import Recording, RegexDialect, TimesOf
from pytest_llmbench.core.errors import BaselineError, RecordError

PATTERN = r"step (?P<step>\d+) .*? (?P<seconds>[\d.]+) ms"
LOG = f"dialect: regex\nlog:\n  find: ' ms'\n  pattern: '{PATTERN}'\n"
RECORDING = Recording("2025-11-20", 1, 12.3, 12.3, 0.1, (12.3,), ("0" * 64,))


@pytest.fixture
def custom(valid: str) -> str:
    """Text of the valid file with a custom dialect."""
    return valid.replace("dialect: nemo2\n", LOG)


def test_log_definition_becomes_a_dialect_named_after_its_recipe(
    valid_file: Path, custom: str
) -> None:
    valid_file.write_text(custom)
    recipe = read_recipe(valid_file)
    assert recipe.log == RegexDialect("regex:mine-25.05", " ms", PATTERN)
    assert (
        {baseline.dialect for baseline in recipe.baselines}
        == {recipe.dialect}
        == {"regex:mine-25.05"}
    )
    assert all(baseline.log == recipe.log for baseline in recipe.baselines)


def test_all_keys_of_a_custom_log_definition_are_read(
    valid_file: Path, custom: str
) -> None:
    more = '  unit: 1/s\n  first_step: 1\n  averages: interval\n  start: "Starting"\n  end: "Done: "\n'
    valid_file.write_text(custom.replace(LOG, LOG + more))
    expected = RegexDialect(
        "regex:mine-25.05",
        " ms",
        PATTERN,
        "1/s",
        1,
        TimesOf.INTERVAL,
        "Starting",
        "Done: ",
    )
    assert read_recipe(valid_file).log == expected


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            LOG,
            "dialect: regex\n",
            "FILE:7: found dialect: regex and no 'log', expected a 'log' mapping",
        ),
        (
            "dialect: regex",
            "dialect: nemo2",
            "FILE:8: found a dialect definition in a file with dialect: nemo2, which only dialect: regex has",
        ),
        (
            "dialect: regex",
            "dialect: regexp",
            "FILE:7: found 'regexp', expected nemo1 or nemo2",
        ),
        (
            LOG,
            LOG + "  averages: 10\n",
            "FILE:11: found 10, expected single or interval",
        ),
        (
            LOG,
            LOG + '  first_step: "1"\n',
            "FILE:11: found '1' in quotes, expected a whole number from 0 to 1000000000 w",
        ),
        (
            f"'{PATTERN}'",
            f'"{PATTERN}"',
            "expected YAML; write a backslash in single quotes",
        ),
        (
            "find: ' ms'",
            "find: ''",
            "FILE:9: found '', expected at least three characters of one line",
        ),
        (
            "find: ' ms'",
            "find: 'ms'",
            "FILE:9: found 'ms', expected at least three characters of one line",
        ),
        (
            "find: ' ms'",
            'find: " ms\\n"',
            "FILE:9: found ' ms\\n', expected at least three characters of one line",
        ),
        ("  find: ' ms'\n", "", "FILE:9: found no 'find', expected that key"),
        ("find:", "fnd:", "FILE:9: found the unknown key 'fnd', expected"),
        (
            "(?P<step>",
            "(?P<step>(",
            "FILE:10: found an invalid pattern (missing )",
        ),
        ("step (", r"(s)\1tep (", "which has no backreferences or lookaround"),
        ("(?P<seconds>", "(", "FILE:10: found a pattern without the group seconds"),
        (
            " ms'\n  pattern: 'step ",
            " ms'\n  pattern: 'step (?P<los>.) ",
            "found the group los in the pattern, expected",
        ),
        (PATTERN, f"(?P<los>.){PATTERN}", "(did you mean 'loss'?)"),
        (
            PATTERN,
            f"{PATTERN}|(?P<step>x)",
            "found the group step 2 times in the pattern, expected it once",
        ),
        (
            PATTERN,
            f"({PATTERN})?",
            "FILE:10: found a pattern that matches the empty text, expected one that matches",
        ),
        (f"'{PATTERN}'", "''", "FILE:10: found '', expected text"),
    ],
)
def test_invalid_definition_is_reported(
    valid_file: Path, custom: str, old: str, new: str, message: str
) -> None:
    assert old in custom
    valid_file.write_text(custom.replace(old, new))
    with pytest.raises(BaselineError) as caught:
        read_recipe(valid_file)
    assert message in str(caught.value).replace(str(valid_file), "FILE")


def test_window_outside_the_step_numbers_of_the_log_definition_is_refused(
    valid_file: Path, custom: str
) -> None:
    text = custom.replace("first: 11, last: 44", "first: 1, last: 50")
    valid_file.write_text(text.replace(LOG, f"{LOG}  first_step: 1\n"))
    assert read_recipe(valid_file).baselines[0].window.last == 50
    valid_file.write_text(
        text.replace(LOG, f"{LOG}  first_step: 1\n").replace("first: 1,", "first: 0,")
    )
    with pytest.raises(
        BaselineError, match="from step 0 to 50, expected it within 1 to 50"
    ):
        read_recipe(valid_file)
    valid_file.write_text(text)
    with pytest.raises(
        BaselineError, match="from step 1 to 50, expected it within 0 to 49"
    ):
        read_recipe(valid_file)


def test_missing_re2_names_the_extra_to_install(
    valid_file: Path, custom: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    assert read_recipe(valid_file).dialect == "nemo2"
    valid_file.write_text(custom)
    with pytest.raises(
        BaselineError,
        match=r"mine.yaml:10: .* not installed: pip install 'pytest-llmbench\[regex\]'",
    ):
        read_recipe(valid_file)


def test_recorded_baseline_file_keeps_the_custom_log_definition(
    valid_file: Path, custom: str, tmp_path: Path
) -> None:
    valid_file.write_text(
        custom.replace(LOG, f"{LOG}  first_step: 1\n  end: 'It''s done: \"x\"'\n")
    )
    published = read_recipe(valid_file)
    ((path, _),) = write_recorded(tmp_path, [(published.baselines[0], RECORDING)])
    recorded = read_recipe(path)
    assert (recorded.log, recorded.dialect) == (published.log, "regex:mine-25.05")
    assert read_recipes([valid_file, path])[1] == recorded
    write_recorded(tmp_path, [(published.baselines[1], RECORDING)])
    assert len(read_recipe(path).baselines) == 2


def test_two_different_log_definitions_of_one_release_are_refused(
    valid_file: Path, custom: str, tmp_path: Path
) -> None:
    valid_file.write_text(custom)
    baseline = read_recipe(valid_file).baselines[0]
    log: Any = baseline.log
    other = replace(baseline, log=replace(log, unit="ms"))
    ((path, _),) = write_recorded(tmp_path, [(other, RECORDING)])
    with pytest.raises(
        BaselineError,
        match=r"found another 'log' of mine 25.05 than in .*mine.yaml, expected the same",
    ):
        read_recipes([valid_file, path])
    with pytest.raises(
        RecordError, match=r"found log .* expected one for the whole file"
    ):
        write_recorded(
            tmp_path,
            [
                (
                    replace(
                        baseline,
                        configuration=read_recipe(valid_file)
                        .baselines[1]
                        .configuration,
                    ),
                    RECORDING,
                )
            ],
        )
