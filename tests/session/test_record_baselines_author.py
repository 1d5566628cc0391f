"""Who recorded a baseline is what git says, else what the environment says; never
nothing, and never an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.accepted_recordings import accept_recordings

from pytest_llmbench.core.commands import CommandOutput, run
from pytest_llmbench.session.acknowledgements import read_acknowledged
from pytest_llmbench.session.record_baselines import find_author


def git(out: str, code: int = 0) -> object:
    def answer(
        arguments: Sequence[str],
        *,
        timeout: float,
        environment: Mapping[str, str] | None = None,
    ) -> CommandOutput:
        assert arguments == ["git", "-C", "/project", "config", "user.email"]
        return CommandOutput(code, out, "")

    return answer


@pytest.mark.parametrize(
    ("answer", "environment", "host", "expected"),
    [
        (
            git("alice@example.com\n"),
            {"USER": "root"},
            "login1",
            "alice@example.com on login1",
        ),
        (git("", 1), {"USER": "alice"}, "login1", "alice on login1"),
        (git("", 127), {"USER": " ", "LOGNAME": "bob"}, "login1", "bob on login1"),
        (git("nonsense", 124), {}, "login1", "somebody on login1"),
        (git("a\x1b[31m@b"), {}, "", "a\\x1b[31m@b"),
    ],
)
def test_who_records(
    answer: object, environment: dict[str, str], host: str, expected: str
) -> None:
    assert find_author(Path("/project"), environment, host, answer) == expected  # type: ignore[arg-type]


def test_a_folder_without_git_is_no_error(tmp_path: Path) -> None:
    assert (
        find_author(tmp_path / "nowhere", {"USER": "alice"}, "login1", run)
        == "alice on login1"
    )


def test_an_author_and_a_reason_are_kept_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_53cr3t-of-m1ne")
    assert (
        find_author(tmp_path / "nowhere", {"USER": "hf_53cr3t-of-m1ne"}, "login1", run)
        == "*** on login1"
    )
    reason = "new driver, see https://u:pw-1s@h/a and hf_53cr3t-of-m1ne"
    file = accept_recordings(tmp_path, "drift", reason)
    today = datetime.now(UTC).date()
    (accepted,) = read_acknowledged(file, (), today).recordings
    assert accepted.reason == "new driver, see https://u:***@h/a and ***"
