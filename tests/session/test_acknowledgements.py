"""Parsing of the file of acknowledged changes, and errors with their line."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from support.builders import KEY

from pytest_llmbench.core.codes import ACCEPTABLE, Reason
from pytest_llmbench.core.errors import SettingsError
from pytest_llmbench.core.run_records import (
    AcceptedRecording,
    Acknowledgement,
    RecordingRule,
)
from pytest_llmbench.session.acknowledgements import read_acknowledged

TODAY = date(2025, 11, 20)
ENTRY = """
  - configuration: grok1_314b-25.05-gb200-bf16-*
    slower: 6%
    since: 2025-11-03
    expires: 2026-02-01
    reason: driver 555, the security fix
    by: A. Person
"""
HEAD = "schema: 1\nacknowledged:"


def read(tmp_path: Path, text: str) -> tuple[Acknowledgement, ...]:
    path = tmp_path / "acknowledged.yaml"
    path.write_text(text, encoding="utf-8")
    return read_acknowledged(path, [KEY.id], TODAY).changes


def get_error(tmp_path: Path, text: str) -> str:
    with pytest.raises(SettingsError) as error:
        read(tmp_path, text)
    return str(error.value).replace(f"{tmp_path}/", "")


def test_acknowledged_change_is_read_with_all_fields(tmp_path: Path) -> None:
    (entry,) = read(tmp_path, HEAD + ENTRY)
    assert entry == Acknowledgement(
        configuration="grok1_314b-25.05-gb200-bf16-*",
        fraction=0.06,
        since=date(2025, 11, 3),
        expires=date(2026, 2, 1),
        reason="driver 555, the security fix",
        by="A. Person",
        place="acknowledged.yaml:3",
    )


def test_accepted_speed_up_is_a_negative_fraction(tmp_path: Path) -> None:
    (entry,) = read(tmp_path, HEAD + ENTRY.replace("slower: 6%", "faster: 2.5%"))
    assert entry.fraction == -0.025


def test_acknowledged_file_may_contain_changes_and_recording_reasons(
    tmp_path: Path,
) -> None:
    (_, accepted) = read(
        tmp_path, HEAD + ENTRY + ENTRY.replace("slower: 6%", "accept: wall-clock")
    )
    assert (accepted.fraction, accepted.accepts) == (0.0, Reason.WALL_CLOCK)


@pytest.mark.parametrize("text", ["slower: 10%", "faster: 40%"])
def test_acknowledged_slowdown_of_10_percent_and_larger_speed_up_are_valid(
    tmp_path: Path, text: str
) -> None:
    """An accepted improvement makes the gate stricter and may be larger."""
    assert len(read(tmp_path, HEAD + ENTRY.replace("slower: 6%", text))) == 1


@pytest.mark.parametrize(
    ("written", "instead", "message"),
    [
        (
            "slower: 6%",
            "slower: 60%",
            "4: found '60%', that is 60 %, expected above 0 and at most 10 %; record a new baseline for a larger change, "
            "with `accept: drift` in the file of --llmb-acknowledged",
        ),
        (
            "slower: 6%",
            "faster: 60%",
            "4: found '60%', that is 60 %, expected above 0 and at most 50 %",
        ),
        ("slower: 6%", "slowr: 6%", "4: found the unknown key 'slowr', expected"),
        (
            "slower: 6%",
            "slower: 6%\n    faster: 6%",
            "3: found no change or several, expected exactly one of slower, faster and accept",
        ),
        (
            "slower: 6%",
            "accept: wall-clok",
            f"4: found 'wall-clok', expected one of {', '.join(sorted(map(str, ACCEPTABLE)))} "
            "(did you mean 'wall-clock'?)",
        ),
        (
            "slower: 6%",
            "accept: window-incomplete",
            "4: found 'window-incomplete', expected one of",
        ),
        (
            "2026-02-01",
            "2026-11-22",
            "6: found 2026-11-22, expected at most a year from now, 2026-11-21",
        ),
        (
            "2026-02-01",
            "2025-10-01",
            "6: found 2025-10-01, expected a day after 2025-11-03, the start",
        ),
        ("    expires: 2026-02-01\n", "", "3: found no 'expires', expected that key"),
        (
            "reason: driver 555, the security fix",
            'reason: ""',
            "7: found '', expected the reason, in words",
        ),
        (
            "gb200-bf16-*",
            "gb200-bf17-128",
            "3: found 'grok1_314b-25.05-gb200-bf17-128', expected the id",
        ),
        (
            "since: 2025-11-03",
            "since: 2025-11-03\n    since: 2025-11-04",
            "6: found the key 'since' again",
        ),
    ],
)
def test_invalid_entry_is_refused_with_its_line(
    tmp_path: Path, written: str, instead: str, message: str
) -> None:
    assert written in ENTRY
    assert f"acknowledged.yaml:{message}" in get_error(
        tmp_path, HEAD + ENTRY.replace(written, instead)
    )


def test_repeated_acknowledgement_is_refused(tmp_path: Path) -> None:
    again = ENTRY.replace("gb200-bf16-*", "gb200-*").replace("2025-11-03", "2025-11-06")
    assert (
        f"10: found {KEY.id} again (first in line 3), expected each change once"
        in get_error(tmp_path, HEAD + ENTRY + again)
    )
    later = ENTRY.replace("2025-11-03", "2025-11-18")
    assert len(read(tmp_path, HEAD + ENTRY + later)) == 2


def test_empty_or_missing_file_is_refused(tmp_path: Path) -> None:
    assert "acknowledged.yaml:1: found an empty file" in get_error(tmp_path, "")
    with pytest.raises(
        SettingsError, match="expected a readable file of acknowledged changes"
    ):
        read_acknowledged(tmp_path / "none.yaml", [KEY.id], TODAY)


# --- recordings -----------------------------------------------------------------------

RECORDING = """
  - configuration: grok1*
    accept: drift
    since: 2025-11-18
    expires: 2025-12-01
    reason: driver 570
    by: A. Person
"""


def test_accepted_recording_may_name_a_configuration_without_baseline(
    tmp_path: Path,
) -> None:
    """A configuration that is recorded for the first time has no baseline yet."""
    path = tmp_path / "acknowledged.yaml"
    path.write_text(
        f"{HEAD} []\nrecordings:{RECORDING.replace('grok1*', 'elm_7b-*')}",
        encoding="utf-8",
    )
    file = read_acknowledged(path, [KEY.id], TODAY)
    assert file.changes == ()
    assert file.recordings == (
        AcceptedRecording(
            "elm_7b-*",
            RecordingRule.DRIFT,
            date(2025, 11, 18),
            date(2025, 12, 1),
            "driver 570",
        ),
    )


def test_accepted_recording_without_a_since_date_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "acknowledged.yaml"
    entry = RECORDING.replace("    since: 2025-11-18\n", "")
    path.write_text(f"{HEAD} []\nrecordings:{entry}", encoding="utf-8")
    (recording,) = read_acknowledged(path, [KEY.id], TODAY).recordings
    assert recording.since is None


@pytest.mark.parametrize(
    ("written", "instead", "message"),
    [
        (
            "accept: drift",
            "accept: level",
            "5: found 'level', expected drift or levels (did you mean 'levels'?)",
        ),
        (
            "2025-12-01",
            "2026-01-31",
            "7: found 2026-01-31, expected at most a month from now, 2025-12-21",
        ),
        (
            "since: 2025-11-18",
            "since: 2025-12-02",
            "7: found 2025-12-01, expected a day after 2025-12-02, the start",
        ),
        ("    by: A. Person\n", "", "4: found no 'by', expected that key"),
        ("    expires: 2025-12-01\n", "", "4: found no 'expires', expected that key"),
    ],
)
def test_invalid_recording_entry_is_refused(
    tmp_path: Path, written: str, instead: str, message: str
) -> None:
    path = tmp_path / "acknowledged.yaml"
    path.write_text(
        f"{HEAD} []\nrecordings:{RECORDING.replace(written, instead)}", encoding="utf-8"
    )
    with pytest.raises(SettingsError) as caught:
        read_acknowledged(path, [KEY.id], TODAY)
    assert f"acknowledged.yaml:{message}" in str(caught.value)


# --- repairs of nodes -----------------------------------------------------------------

REPAIR = """
  - nodes: n7,n[12-13]
    since: 2025-11-03
    reason: a new HCA
    by: A. Person
"""


def read_repair(tmp_path: Path, text: str) -> date | None:
    path = tmp_path / "acknowledged.yaml"
    path.write_text(text, encoding="utf-8")
    return read_acknowledged(path, [KEY.id], TODAY).last_repair


def test_last_repair_of_a_node_is_the_one_with_the_latest_date(tmp_path: Path) -> None:
    later = REPAIR.replace("11-03", "11-20")
    assert read_repair(tmp_path, f"{HEAD} []\nrepaired:{REPAIR}{later[1:]}") == date(
        2025, 11, 20
    )
    assert read_repair(tmp_path, f"{HEAD} []\nrepaired:{later}{REPAIR[1:]}") == date(
        2025, 11, 20
    )
    assert read_repair(tmp_path, f"{HEAD}{ENTRY}") is None
    assert read_repair(tmp_path, f"{HEAD} []\nrepaired: []\n") is None


@pytest.mark.parametrize(
    ("written", "instead", "message"),
    [
        (
            "since: 2025-11-03",
            "since: 2025-11-21",
            ":5: found 2025-11-21, expected a day not after today, 2025-11-20",
        ),
        ("nodes: n7,n[12-13]", "nodes: n7 && reboot", ":4: "),
        ("    by: A. Person\n", "", ":4: "),
    ],
)
def test_invalid_repair_is_refused(
    tmp_path: Path, written: str, instead: str, message: str
) -> None:
    with pytest.raises(SettingsError) as error:
        read_repair(tmp_path, f"{HEAD} []\nrepaired:{REPAIR.replace(written, instead)}")
    assert f"acknowledged.yaml{message}" in str(error.value)
