"""Times in folder names."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from pytest_llmbench.runs.discover.folder_times import (
    read_filing_date,
    read_stamp,
    read_start,
)


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Etc/GMT-2")  # POSIX: two hours ahead of UTC
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "pretrain_llama3.1_70b_fp8_256_1744407969",
            datetime(2025, 4, 11, 21, 46, 9, tzinfo=UTC),
        ),
        (
            "x_1795213958444873766",
            datetime(2026, 11, 20, 22, 32, 38, 444873, tzinfo=UTC),
        ),
        ("run_2025-04-11T14-46-18Z", datetime(2025, 4, 11, 14, 46, 18, tzinfo=UTC)),
        ("run_20250411_144618", datetime(2025, 4, 11, 12, 46, 18, tzinfo=UTC)),
        ("2025-04-11 14:46:18.5", datetime(2025, 4, 11, 12, 46, 18, tzinfo=UTC)),
        (
            "pretrain_x_1744407969123",
            datetime(2025, 4, 11, 21, 46, 9, 123000, tzinfo=UTC),
        ),
        ("1399999999", None),
        ("1400000000", datetime(2014, 5, 13, 16, 53, 20, tzinfo=UTC)),
        ("1999999999", datetime(2033, 5, 18, 3, 33, 19, tzinfo=UTC)),
        ("2147483647", None),
        ("2025010303", datetime(2025, 1, 3, 1, tzinfo=UTC)),
        ("x_20250103030405Z", datetime(2025, 1, 3, 3, 4, 5, tzinfo=UTC)),
        ("2025010324", None),
        ("20250103", None),
        ("run_20251311_144618", None),
        ("pretrain_grok1_314b_bf16_256_388660", None),
    ],
)
def test_timestamp_in_a_name_is_epoch_or_date_and_time(
    name: str, expected: datetime | None
) -> None:
    assert read_stamp(name) == expected


@pytest.mark.parametrize(
    ("folders", "started", "dated"),
    [
        (("x", "x_1744407969"), "x_1744407969", "x_1744407969"),
        (("x_1744407969", "x_1744407970"), "x_1744407970", "x_1744407970"),
        (("2025010303",), "2025010303", "2025010303"),
        # a day is not a time
        (("2025-04-12",), "", "2025-04-12"),
        (("x_1744407969", "2025-04-12"), "x_1744407969", "2025-04-12"),
        (("2025-13-12", "x"), "", ""),
        ((), "", ""),
    ],
)
def test_start_time_is_read_from_the_innermost_folder_name_that_contains_a_time(
    folders: tuple[str, ...], started: str, dated: str
) -> None:
    for name, dating in (
        (started, read_start(folders)),
        (dated, read_filing_date(folders)),
    ):
        assert (dating is None) is (name == "")
        assert dating is None or (dating.source, dating.timestamp.tzinfo) == (
            f"the name of folder {name}",
            UTC,
        )


@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize(
    "name", ["2025-01-03", "20250103", "nightly-2025.01.03", "x_20250103_256"]
)
def test_day_begins_at_local_midnight(name: str) -> None:
    dating = read_filing_date([name])
    assert dating is not None
    assert dating.timestamp == datetime(2025, 1, 2, 22, tzinfo=UTC)
