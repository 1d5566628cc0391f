"""Times in folder names."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from pytest_llmbench.discover.stamps import stamp, started_by_name

WRITTEN = datetime(2025, 4, 12, 3, 0, tzinfo=UTC)


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
        ("1744407969", datetime(2025, 4, 11, 21, 46, 9, tzinfo=UTC)),
        ("pretrain_llama3.1_70b_fp8_256_1744407969", datetime(2025, 4, 11, 21, 46, 9, tzinfo=UTC)),
        ("x_1795213958444873766", datetime(2026, 11, 20, 22, 32, 38, 444873, tzinfo=UTC)),
        ("run_2025-04-11T14-46-18Z", datetime(2025, 4, 11, 14, 46, 18, tzinfo=UTC)),
        ("run_20250411_144618", datetime(2025, 4, 11, 12, 46, 18, tzinfo=UTC)),
        ("2025-04-11 14:46:18.5", datetime(2025, 4, 11, 12, 46, 18, tzinfo=UTC)),
        ("run_20251311_144618", None),
        ("pretrain_grok1_314b_bf16_256_388660", None),
        ("2025-04-11", None),
        ("0000000000", None),
    ],
)
def test_a_stamp_is_epoch_time_or_a_written_time(name: str, expected: datetime | None) -> None:
    assert stamp(name) == expected


@pytest.mark.parametrize(
    ("own", "above", "expected"),
    [
        (("x", "x_1744407969"), (), "x_1744407969"),
        (("x_1744407969", "x_1744407970"), (), "x_1744407970"),
        (("x",), ("2025-04-12",), ""),
        (("x",), ("2025-03-12",), "2025-03-12"),
        (("x",), ("1741700000", "y"), "1741700000"),
        (("x",), ("1744407969",), ""),
        (("x_1741700000",), ("2025-03-12",), "x_1741700000"),
    ],
)
def test_the_innermost_own_folder_decides_and_a_day_only_where_the_file_is_a_copy(
    own: tuple[str, ...], above: tuple[str, ...], expected: str
) -> None:
    started, source = started_by_name(own, above, WRITTEN)
    assert source == (f"the name of folder {expected}" if expected else "")
    assert (started is None) is (expected == "")
    assert started is None or (started.tzinfo is UTC and started < WRITTEN + timedelta(days=1))
