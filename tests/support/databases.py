"""A real PostgreSQL server, started by tests/integration/postgresql/server."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from glob import glob
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "integration" / "postgresql" / "server"
MEMORY = Path("/dev/shm")  # noqa: S108 (the folder in it has a random name)
FREE_BYTES = 2**30
"""Enough for four servers: 60 MB per server and 12 MB per database in use."""


def missing() -> str:
    """Return a message with the missing PostgreSQL programs, or ""."""
    path = os.pathsep.join(
        (
            os.environ.get("PATH", ""),
            *glob("/usr/lib/postgresql/*/bin"),
            "/usr/sbin",
            "/sbin",
        )
    )
    programs = ("initdb", "postgres", *(["runuser"] if os.geteuid() == 0 else []))
    absent = [name for name in programs if not shutil.which(name, path=path)]
    if not absent:
        return ""
    return f"needs PostgreSQL, but {', '.join(absent)} is not installed: tests/integration/postgresql/server install"


@contextmanager
def running() -> Iterator[Path]:
    """Start a server and yield the folder of its socket.

    The server also stops if this process is killed, because its script waits for the
    end of stdin.
    """
    in_memory = (
        MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > FREE_BYTES
    )  # databases are faster in memory
    parent = MEMORY if in_memory else "/tmp"  # noqa: S108
    folder = Path(
        tempfile.mkdtemp(prefix="llmb-pg-", dir=parent)
    )  # sockets need a short path
    folder.chmod(0o755)
    command = [str(SCRIPT), "serve", str(folder)]
    server_process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert server_process.stdout is not None
        assert server_process.stderr is not None
        if server_process.stdout.readline() != "up\n":
            pytest.fail(f"the server does not start: {server_process.stderr.read()}")
        yield folder
    finally:
        server_process.communicate(timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


def server() -> Iterator[Path]:
    """Start a server, or skip the test if PostgreSQL is not installed.

    Under LLMB_REQUIRE_POSTGRESQL the test fails instead.
    """
    if absent := missing():
        if os.environ.get("LLMB_REQUIRE_POSTGRESQL"):
            pytest.fail(absent)
        pytest.skip(absent)
    with running() as folder:
        yield folder


@contextmanager
def new_database(folder: Path) -> Iterator[str]:
    """Create an empty database, yield its URL, and drop it afterwards.

    All databases of a test session together would take 1 GB, and 20 s to delete from a
    disk.
    """
    name = f"h{uuid.uuid4().hex}"
    _execute(folder, f"CREATE DATABASE {name}")
    try:
        yield f"postgresql://llmb@/{name}?host={folder}"
    finally:
        _execute(folder, f"DROP DATABASE {name} WITH (FORCE)")


def _execute(folder: Path, statement: str) -> None:
    import psycopg

    with psycopg.connect(
        host=str(folder), user="llmb", dbname="postgres", autocommit=True
    ) as connection:
        connection.execute(statement.encode())
