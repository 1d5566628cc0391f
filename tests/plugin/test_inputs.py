"""Folders, archives, standard input and remote folders give equal verdicts."""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from support.sessions import Judge, JudgedSession, Write

GROK = "grok1_314b-25.05-gb200-bf16-128"


def logs(path: object) -> str:
    return f"--llmb-logs={path}"


def packed(folder: Path, path: Path, mode: Any = "w:gz") -> Path:
    with tarfile.open(path, mode) as tar:
        tar.add(folder, folder.name)
    return path


def pipe(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def summarise(session: JudgedSession) -> object:
    """Return the exit code and the outcomes of a session, without paths."""
    kept = ("verdict", "reason", "text", "metrics", "status", "job_id")
    return session.ret, {
        name: {key: outcome.get(key) for key in kept}
        for name, outcome in session.described.items()
    }


@pytest.mark.slow
def test_archive_is_judged_like_its_folder(
    judged: Judge, examples: Path, tmp_path: Path
) -> None:
    from pytest_llmbench.logs.sources.zstd import zstd

    data = packed(examples, tmp_path / "x.tar", "w").read_bytes()
    archive = tmp_path / "x.tar.zst"
    archive.write_bytes(zstd.compress(data))
    expected = judged(logs(examples))
    assert len(expected.verdicts) == 83
    assert summarise(judged(logs(archive))) == summarise(expected)


@pytest.mark.slow
def test_truncated_archive_is_never_green(
    judged: Judge, generated: Write, tmp_path: Path
) -> None:
    folder = generated(GROK, job_id="1")
    path = packed(folder, tmp_path / "x.tar.gz")
    path.write_bytes(path.read_bytes()[:-10])
    session = judged(logs(path))
    assert session.ret == pytest.ExitCode.TESTS_FAILED
    (name,) = (name for name in session.verdicts if name.startswith("unreadable-"))
    assert name == "unreadable-x.tar.gz"
    assert "copy the archive again" in session.messages[name]


@pytest.mark.slow
def test_standard_input_may_be_an_archive(
    pytester: pytest.Pytester, generated: Write, tmp_path: Path
) -> None:
    path = packed(generated(GROK, factor=1.5), tmp_path / "x.tar.gz")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-s",
        "-p",
        "no:cacheprovider",
        "--llmb-logs=-",
        "-k",
        GROK,
        "-n1",
    ]
    with path.open("rb") as file:
        process = subprocess.run(
            command,
            stdin=file,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=pytester.path,
        )
    assert process.returncode == pytest.ExitCode.TESTS_FAILED, (
        process.stdout + process.stderr
    )
    assert "REGRESSION" in process.stdout
    assert "<stdin>/runs/" in "".join(process.stdout.split())


@pytest.mark.slow
def test_standard_input_can_be_combined_with_paths(
    judged: Judge, generated: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its kind is recognised by its content, as for any `foo.out`."""
    folder = generated(GROK)
    (log,) = folder.rglob("log-*.out")
    copy = tmp_path / "other" / "foo.out"
    copy.parent.mkdir()
    copy.write_bytes(log.read_bytes())
    from_file = judged(logs(copy), "-s", "--llmb-release=25.05", "--llmb-gpu=gb200")
    pipe(monkeypatch, gzip.compress(log.read_bytes()))
    session = judged(logs("-"), "-s", "--llmb-release=25.05", "--llmb-gpu=gb200")
    assert session.ret == from_file.ret
    assert sorted(set(session.verdicts.values())) == sorted(
        set(from_file.verdicts.values())
    )
    pipe(monkeypatch, gzip.compress(log.read_bytes()))
    second_session = judged(logs("-"), logs(folder), "-s")
    assert second_session.verdicts[GROK] == "PASS"


@pytest.mark.slow
def test_empty_standard_input_is_never_green(
    judged: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, b"")
    assert judged(logs("-"), "-s").ret == pytest.ExitCode.TESTS_FAILED


def test_captured_standard_input_is_a_usage_error(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", "--capture=sys", logs("-")
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*--llmb-logs=- reads standard input, which pytest closes for tests: add -s"]
    )


@pytest.mark.slow
def test_remote_folder_is_judged_like_a_local_one(
    judged: Judge, generated: Write, tmp_path: Path
) -> None:
    fsspec = pytest.importorskip("fsspec")
    folder = generated(GROK, factor=1.5)
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    try:
        memory.put(str(folder), "/bucket", recursive=True)
        memory.put(str(packed(folder, tmp_path / "x.tar.gz")), "/archives/x.tar.gz")
        for url in (
            "memory://bucket",
            f"file://{folder}",
            "memory://archives/x.tar.gz",
            "memory://archives",
        ):
            assert judged(logs(url), "-k", GROK).verdicts == {GROK: "REGRESSION"}, url
    finally:
        memory.store.clear()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nope://bucket", "*fsspec does not know the protocol 'nope'*"),
        (
            "ftp://me:secret@host/runs",
            "*reports would show the password or signature in this URL*",
        ),
    ],
)
def test_unusable_url_is_a_usage_error(
    pytester: pytest.Pytester, url: str, message: str
) -> None:
    pytest.importorskip("fsspec")
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", logs(url))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


@pytest.mark.slow
def test_missing_remote_folder_is_never_green(judged: Judge) -> None:
    pytest.importorskip("fsspec")
    session = judged(logs("memory://absent/bucket"))
    assert session.ret == pytest.ExitCode.TESTS_FAILED
    assert "unreadable-bucket" in session.verdicts


@pytest.mark.slow
def test_verbose_session_lists_all_skipped_files(pytester: pytest.Pytester) -> None:
    for name in ("a.txt", "b.txt"):
        pytester.path.joinpath(name).touch()
    for arguments, summarise in (
        ([], "2 files skipped (-v lists all), first a.txt: *"),
        (["-v"], "skipped b.txt: *"),
    ):
        result = pytester.runpytest_inprocess(
            "-p", "no:cacheprovider", "--llmb-logs=.", *arguments
        )
        result.stdout.fnmatch_lines([summarise])
