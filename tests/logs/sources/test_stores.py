"""Standard input: read once, given as often as it is asked for."""

from __future__ import annotations

import io

import pytest

from pytest_llmbench.core.errors import LogError, SettingsError
from pytest_llmbench.logs.sources import stores


class Terminal(io.TextIOWrapper):
    """A terminal, by what it says."""

    def isatty(self) -> bool:
        """Say so."""
        return True


def test_it_is_read_once_and_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "IN_MEMORY", 10)
    source = io.BytesIO(b"step 1\n" * 999)
    for _ in range(2):
        assert b"".join(stores.read_input(source)) == b"step 1\n" * 999
    assert source.read() == b""


def test_only_what_can_be_piped_is_accepted() -> None:
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


def test_one_that_is_closed_cannot_be_read() -> None:
    source = io.BytesIO()
    source.close()
    with pytest.raises(LogError, match="cannot read standard input: "):
        b"".join(stores.read_input(source))


class Broken(io.BytesIO):
    """A stream that fails once, in its middle."""

    failed = False

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the first bytes, then fail, then return the others."""
        if self.tell() and not self.failed:
            self.failed = True
            raise OSError("broken")
        return super().read(10)


def test_what_follows_an_error_is_no_log_of_its_own() -> None:
    source = Broken(b"step 1\n" * 9)
    for _ in range(2):
        with pytest.raises(LogError, match="cannot read standard input: broken"):
            b"".join(stores.read_input(source))
