"""The author of a recorded baseline, from git or the environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.accepted_recordings import accept_recordings

from pytest_llmbench.core.commands import CommandOutput, run
from pytest_llmbench.session.acknowledgements import read_acknowledged
from pytest_llmbench.session.record_baselines import find_author


def make_git(out: str, code: int = 0) -> object:
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
            make_git("alice@example.com\n"),
            {"USER": "root"},
            "login1",
            "alice@example.com on login1",
        ),
        (make_git("", 1), {"USER": "alice"}, "login1", "alice on login1"),
        (make_git("", 127), {"USER": " ", "LOGNAME": "bob"}, "login1", "bob on login1"),
        (make_git("nonsense", 124), {}, "login1", "somebody on login1"),
        (make_git("a\x1b[31m@b"), {}, "", "a\\x1b[31m@b"),
    ],
)
def test_author_is_from_git_or_the_environment(
    answer: object, environment: dict[str, str], host: str, expected: str
) -> None:
    assert find_author(Path("/project"), environment, host, answer) == expected  # type: ignore[arg-type]


def test_author_is_known_without_git(tmp_path: Path) -> None:
    assert (
        find_author(tmp_path / "nowhere", {"USER": "alice"}, "login1", run)
        == "alice on login1"
    )


def test_author_and_reason_are_redacted(
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
