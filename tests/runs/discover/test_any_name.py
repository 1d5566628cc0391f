"""Files and folders of any name are read or recorded, and never raise."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.written_logs import nemo2_run

from pytest_llmbench.runs.discover.discovery import find_runs
from pytest_llmbench.session.catalog import Catalog
from pytest_llmbench.session.collect_runs import ingest
from pytest_llmbench.session.settings import Settings

NOW = datetime(2026, 6, 1, tzinfo=UTC)
LOG = nemo2_run(0, 3).encode()
ANY_NAME = settings(max_examples=30, derandomize=True)

WORDS = (
    *(
        "log-",
        "llmb-config_",
        "sbatch_",
        "pretrain_",
        "grok1_314b",
        "_fp8_",
        "gpus256",
        "results",
        "experiments",
        "_0",
    ),
    *(
        "_1",
        ".out",
        ".err",
        ".yaml",
        ".tar.zst",
        ".gz",
        "1795213837",
        "2026-02-30",
        "9" * 25,
        " ",
        "\n",
        "\x1b[31m",
    ),
    *("é", "~", "٣", "²", "..", "-", "=", "%", "\udcff"),
)


def _is_name(name: str) -> bool:
    """True if a file can have this name."""
    try:
        size = len(name.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        return False
    return (
        size < 200 and "/" not in name and "\x00" not in name and name.strip(".") != ""
    )


NAMES = (
    st.lists(
        st.one_of(st.sampled_from(WORDS), st.text(max_size=3)), min_size=1, max_size=6
    )
    .map("".join)
    .filter(_is_name)
)


@ANY_NAME
@pytest.mark.slow
@given(
    folders=st.lists(NAMES, max_size=3),
    files=st.lists(NAMES, min_size=1, max_size=3, unique=True),
)
@example(folders=["\n"], files=["log-\x1b[31m_1.out"])
@example(folders=["\udcff"], files=["log-\udcff_1.out"])
def test_folders_and_files_of_any_name_yield_unique_printable_run_ids(
    folders: list[str], files: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as root:
        path = Path(root, *folders)
        path.mkdir(parents=True, exist_ok=True)
        for name in files:
            if not (path / name).exists():
                (path / name).write_bytes(LOG)
        discovery = ingest(Settings(logs=(Path(root),)), Catalog((), {}), NOW)
        again = find_runs([Path(root)])
    assert all(run.found.id.isprintable() for run in discovery.runs)
    assert len({run.id for run in again.runs}) == len(again.runs)
