"""Output files: complete or not written, and replacing only files of their kind."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.builders import NOW
from support.outcomes import make_session, told

from pytest_llmbench.core.userfile import find_descriptor
from pytest_llmbench.report import html, junit
from pytest_llmbench.report.document import render_session
from pytest_llmbench.report.output_files import (
    EXPORT,
    HTML,
    JSON,
    JUNIT,
    NEW,
    TRACE,
    FileKind,
    find_obstacle,
    write_atomically,
)

CONTENT = b"<testsuites/>" * 20


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Limit file sizes, so that writing fails in the middle, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_write_creates_parent_folders(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "llmb.xml"
    write_atomically(path, CONTENT, JUNIT)
    assert path.read_bytes() == CONTENT
    assert [entry.name for entry in path.parent.iterdir()] == ["llmb.xml"]


def test_written_file_follows_the_umask(tmp_path: Path) -> None:
    """CI servers often read the report as another user."""
    before = os.umask(0o022)
    try:
        write_atomically(tmp_path / "llmb.xml", CONTENT, JUNIT)
    finally:
        os.umask(before)
    assert (tmp_path / "llmb.xml").stat().st_mode & 0o777 == 0o644


def test_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "llmb.xml"
    path.write_text("<testsuites>old")
    with files_of_at_most(100), pytest.raises(OSError, match="File too large"):
        write_atomically(path, CONTENT, JUNIT)
    assert path.read_text() == "<testsuites>old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["file/llmb.xml", "file/deeper/llmb.xml", "folder"])
def test_impossible_path_raises_os_error_and_leaves_no_file(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=name.partition("/")[0]):
        write_atomically(tmp_path / name, CONTENT, JUNIT)
    assert sorted(entry.name for entry in tmp_path.rglob("*")) == ["file", "folder"]


def test_dangling_link_is_not_replaced_by_a_report(tmp_path: Path) -> None:
    (tmp_path / "latest.xml").symlink_to(tmp_path / "monday.xml")
    write_atomically(tmp_path / "latest.xml", CONTENT, JUNIT)
    assert (tmp_path / "latest.xml").is_symlink()
    assert (tmp_path / "monday.xml").read_bytes() == CONTENT


def test_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """As root, --llmb-junit=/dev/null would otherwise replace the device by a file."""
    pipe, received = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()))
    reader.start()
    write_atomically(pipe, CONTENT, JUNIT)
    reader.join(10)
    assert received == [CONTENT]
    assert pipe.is_fifo()


# --- what may be replaced -------------------------------------------------------------

OWN: list[tuple[FileKind, bytes]] = [
    (JUNIT, junit.render([told()], NOW)),
    (JUNIT, junit.render([], NOW)),
    (JSON, render_session(make_session(told()))),
    (JSON, json.dumps(json.loads(render_session(make_session()))).encode()),
    (HTML, html.render([told()], NOW).encode()),
    (TRACE, b'{\n "llmbench_nccl": 1,\n "rows": []\n}\n'),
    (EXPORT, b"number,started,job_id\n1,2025\n"),
    (EXPORT, b'[\n {\n  "number": 1\n }\n]\n'),
]

FOREIGN = [
    b"step 11: 7.325 s\n",
    b"SQLite format 3\x00",
    b'{"schema": 1, "session": {}, "verdicts": []}',
    b"<!DOCTYPE html><html><title>my page</title>",
    b"<?xml version='1.0'?><project/>",
    b"PAR1 columns of another table PAR1",
]


@pytest.mark.parametrize(("kind", "content"), OWN)
def test_report_file_is_replaced_only_by_a_report_of_the_same_format(
    tmp_path: Path, kind: FileKind, content: bytes
) -> None:
    path = tmp_path / "report"
    path.write_bytes(content)
    assert find_obstacle(path, kind) == ""
    write_atomically(path, b"new", kind)
    assert path.read_bytes() == b"new"
    path.write_bytes(content)
    for other in {JUNIT, JSON, HTML, TRACE, EXPORT, NEW} - {kind}:
        assert find_obstacle(path, other).startswith(
            f"an existing file of another kind (expected: {other.name}) is not replaced"
        )


@pytest.mark.parametrize("content", FOREIGN)
@pytest.mark.parametrize(
    "kind", [JUNIT, JSON, HTML, TRACE, EXPORT, NEW], ids=lambda kind: kind.name
)
def test_foreign_file_is_not_replaced(
    tmp_path: Path, kind: FileKind, content: bytes
) -> None:
    path = tmp_path / "mine"
    path.write_bytes(content)
    with pytest.raises(
        FileExistsError, match="is not replaced: use another name, or remove it"
    ):
        write_atomically(path, CONTENT, kind)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content", [b"", CONTENT])
def test_link_to_a_file_is_refused(tmp_path: Path, content: bytes) -> None:
    """The file may belong to another user, and the link to a tool."""
    (tmp_path / "real.xml").write_bytes(content)
    (tmp_path / "link.xml").symlink_to("real.xml")
    with pytest.raises(
        FileExistsError,
        match=r"a link to the file .*real\.xml: use the path of the file itself",
    ):
        write_atomically(tmp_path / "link.xml", CONTENT, JUNIT)
    assert (tmp_path / "real.xml").read_bytes() == content
    assert (tmp_path / "link.xml").is_symlink()


def test_linked_folders_and_empty_files_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "nightly").symlink_to("disk")
    (tmp_path / "disk" / "mktemp.xml").touch()
    for name in ("mktemp.xml", "new.xml"):
        write_atomically(tmp_path / "nightly" / name, CONTENT, JUNIT)
        assert (tmp_path / "disk" / name).read_bytes() == CONTENT
    write_atomically(tmp_path / "nightly" / "new.xml", CONTENT * 2, JUNIT)
    assert (tmp_path / "disk" / "new.xml").read_bytes() == CONTENT * 2


# --- standard output ------------------------------------------------------------------

PROGRAM = """
import sys
from pathlib import Path
from pytest_llmbench.report.output_files import JUNIT, write_atomically
print("before")
write_atomically(Path(sys.argv[1]), b"<testsuites/>", JUNIT)
print("after")
"""


@pytest.mark.slow
@pytest.mark.parametrize("goes", ["file", "pipe"])
def test_write_to_standard_output_follows_its_redirection(
    tmp_path: Path, goes: str
) -> None:
    """The document keeps its position in the redirected output."""
    path = tmp_path / "out.txt"
    path.write_text("of another program\n")
    identity = path.stat().st_ino
    command = [sys.executable, "-c", PROGRAM, "/dev/stdout"]
    if goes == "pipe":
        said = subprocess.run(
            command, check=True, capture_output=True, text=True
        ).stdout
    else:
        with path.open("a") as file:
            subprocess.run(command, check=True, stdout=file)
        said = path.read_text().removeprefix("of another program\n")
    assert said == "before\n<testsuites/>after\n"
    assert path.stat().st_ino == identity


def test_only_device_paths_of_descriptors_are_recognised_as_descriptors(
    tmp_path: Path,
) -> None:
    assert [
        find_descriptor(Path(f"/dev/{name}"))
        for name in ("stdout", "stderr", "fd/7", "null")
    ] == [1, 2, 7, None]
    (tmp_path / "stdout").symlink_to("/dev/stdout")
    assert find_descriptor(tmp_path / "stdout") is None
