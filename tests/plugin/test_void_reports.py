"""Reports of an earlier session are emptied or replaced, even on a full disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pytest_llmbench.core.errors import ReportError
from pytest_llmbench.plugin.outputs import replace_reports
from pytest_llmbench.report import document
from pytest_llmbench.report import output_files as files

OLD = {
    "--llmb-json": '{\n "schema": 1,\n "version": "0.1.0",\n "exit_code": 0,\n "green": true\n}',
    "--llmb-html": "<!DOCTYPE html><html><head><title>1 green - llmbench</title></head></html>",
    "--llmb-junit": '<?xml version="1.0"?><testsuites tests="1" failures="0"/>',
    "--junitxml": '<?xml version="1.0"?><testsuites><testsuite errors="0" failures="0"/></testsuites>',
}


def write_old_reports(folder: Path) -> dict[str, Path]:
    paths = {flag: folder / flag.strip("-") for flag in OLD}
    for flag, path in paths.items():
        path.write_text(OLD[flag])
    return paths


def fail(*arguments: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read_contents(paths: dict[str, Path]) -> dict[str, str]:
    return {
        flag: path.read_text() if path.exists() else "" for flag, path in paths.items()
    }


def test_old_reports_are_emptied_if_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_old_reports(tmp_path)
    monkeypatch.setattr(files, "write_atomically", fail)
    replace_reports(paths)
    assert read_contents(paths) == dict.fromkeys(OLD, "")
    with pytest.raises(ReportError, match="the file is empty: its session was killed"):
        document.read(paths["--llmb-json"])


def test_report_that_cannot_be_emptied_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_old_reports(tmp_path)
    for name, owner in (("write_atomically", files), ("truncate", os)):
        monkeypatch.setattr(owner, name, fail)
    replace_reports(paths)
    assert not list(tmp_path.iterdir())


def test_session_is_refused_if_an_old_report_cannot_be_emptied_or_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are void all the same."""
    paths = write_old_reports(tmp_path)
    stays = paths["--llmb-json"]
    truncate, unlink = os.truncate, Path.unlink
    monkeypatch.setattr(files, "write_atomically", fail)
    monkeypatch.setattr(
        os,
        "truncate",
        lambda path, size: fail() if path == stays else truncate(path, size),
    )
    monkeypatch.setattr(
        Path, "unlink", lambda path: fail() if path == stays else unlink(path)
    )
    with pytest.raises(
        ReportError, match=r"--llmb-json=.* \(No space left on device\)"
    ):
        replace_reports(paths)
    assert read_contents(paths) == {
        **dict.fromkeys(OLD, ""),
        "--llmb-json": OLD["--llmb-json"],
    }


def test_file_at_a_report_path_that_is_no_report_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "notes"
    notes.write_text("my notes")
    replace_reports(dict.fromkeys(OLD, notes))
    monkeypatch.setattr(files, "write_atomically", fail)
    replace_reports(dict.fromkeys(OLD, notes))
    assert notes.read_text() == "my notes"


def test_target_of_a_junit_symbolic_link_states_that_the_session_is_unfinished(
    tmp_path: Path,
) -> None:
    """Pytest writes it there."""
    target, link = tmp_path / "target.xml", tmp_path / "link.xml"
    target.write_text(OLD["--junitxml"])
    link.symlink_to(target)
    replace_reports({"--junitxml": link})
    assert link.is_symlink()
    assert "has not ended" in target.read_text()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--llmb-logs=gone",),
        ("--llmb-logs=.", "--llmb-tolerance=many"),
        ("--llmb-logs=.", "--llmb-baselines=gone"),
        (),
    ],
)
def test_usage_error_replaces_each_old_report(
    pytester: pytest.Pytester, arguments: tuple[str, ...]
) -> None:
    paths = write_old_reports(pytester.path)
    other_path = pytester.path / "notes"
    other_path.write_text("my notes")
    flags = [f"{flag}={path}" for flag, path in paths.items()]
    assert (
        pytester.runpytest("-q", *arguments, *flags).ret == pytest.ExitCode.USAGE_ERROR
    )
    assert document.read(paths["--llmb-json"]).green is False
    assert all("could not start" in path.read_text() for path in paths.values())
    assert other_path.read_text() == "my notes"


def test_usage_error_writes_no_new_report(pytester: pytest.Pytester) -> None:
    assert (
        pytester.runpytest("-q", "--llmb-logs=gone", "--llmb-json=n.json").ret
        == pytest.ExitCode.USAGE_ERROR
    )
    assert not (pytester.path / "n.json").exists()


@pytest.mark.parametrize("text", ["", " \n"])
def test_empty_json_document_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "night.json"
    path.write_text(text)
    with pytest.raises(ReportError, match="its verdicts are unknown"):
        document.read(path)
