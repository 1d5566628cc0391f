"""Standard input is read once and returned as often as requested."""

from __future__ import annotations

import io

import pytest

from pytest_llmbench.core.errors import LogError, SettingsError
from pytest_llmbench.logs.sources import stores


class Terminal(io.TextIOWrapper):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        """True."""
        return True


def test_standard_input_is_read_once_and_returned_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stores, "IN_MEMORY", 10)
    source = io.BytesIO(b"step 1\n" * 999)
    for _ in range(2):
        assert b"".join(stores.read_input(source)) == b"step 1\n" * 999
    assert source.read() == b""


def test_standard_input_is_accepted_only_if_piped() -> None:
    assert (
        stores.check_input("--llmb-logs", io.TextIOWrapper(io.BytesIO()))
        == stores.STANDARD_INPUT
    )
    with pytest.raises(
        SettingsError, match="--llmb-logs=- reads standard input, which is a terminal"
    ):
        stores.check_input("--llmb-logs", Terminal(io.BytesIO()))
    with pytest.raises(SettingsError, match="and there is none"):
        stores.check_input("--llmb-logs", None)


def test_closed_standard_input_is_unreadable() -> None:
    source = io.BytesIO()
    source.close()
    with pytest.raises(LogError, match="cannot read standard input: "):
        b"".join(stores.read_input(source))


class Broken(io.BytesIO):
    """A stream with one error in its middle."""

    failed = False

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the first bytes, then raise an error, then return the other bytes."""
        if self.tell() and not self.failed:
            self.failed = True
            raise OSError("broken")
        return super().read(10)


def test_standard_input_is_not_used_after_a_read_error() -> None:
    source = Broken(b"step 1\n" * 9)
    for _ in range(2):
        with pytest.raises(LogError, match="cannot read standard input: broken"):
            b"".join(stores.read_input(source))
