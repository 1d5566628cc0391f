"""Whatever files are called and whatever a launcher's record holds: it is read, noted or passed over, never raised."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from written_logs import nemo2_run

from pytest_llmbench.ingest.discover import find_runs
from pytest_llmbench.pipeline.catalog import Catalog
from pytest_llmbench.pipeline.find_runs import ingest
from pytest_llmbench.pipeline.settings import Settings

NOW = datetime(2026, 6, 1, tzinfo=UTC)
LOG = nemo2_run(0, 3).encode()
ANY = settings(max_examples=30, derandomize=True)

WORDS = (
    *("log-", "llmb-config_", "sbatch_", "pretrain_", "grok1_314b", "_fp8_", "gpus256", "results", "experiments", "_0"),
    *("_1", ".out", ".err", ".yaml", ".tar.zst", ".gz", "1795213837", "2026-02-30", "9" * 25, " ", "\n", "\x1b[31m"),
    *("é", "~", "٣", "²", "..", "-", "=", "%", "\udcff"),
)
KEYS = ("job_id", "scale", "env_overrides", "profile_enabled", "launch_time", "images", "?", "<<")
VALUES = ("true", "[]", "25.10", "'128'", "2026-05-04T06:05:54", "~", "&a 1", "*a")


def _is_name(name: str) -> bool:
    """Whether a file can be called so."""
    try:
        size = len(name.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        return False
    return size < 200 and "/" not in name and "\x00" not in name and name.strip(".") != ""


def _sequence(values: list[str]) -> str:
    return f"[{', '.join(values)}]"


def _mapping(values: dict[str, str]) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in values.items()) + "}"


NAMES = (
    st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=3)), min_size=1, max_size=6)
    .map("".join)
    .filter(_is_name)
)
TREES = st.recursive(
    st.one_of(st.text(max_size=8), st.sampled_from(VALUES)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(_sequence),
        st.dictionaries(st.sampled_from(KEYS), inner, max_size=4).map(_mapping),
    ),
    max_leaves=8,
)
SECTIONS = ("job_info", "workload_info", "model_info", "cluster_info", "container_info", "job_config")


@ANY
@pytest.mark.slow
@given(folders=st.lists(NAMES, max_size=3), files=st.lists(NAMES, min_size=1, max_size=3, unique=True))
@example(folders=["\n"], files=["log-\x1b[31m_1.out"])
@example(folders=["\udcff"], files=["log-\udcff_1.out"])
def test_files_and_folders_of_any_name_are_read_or_passed_over(folders: list[str], files: list[str]) -> None:
    with tempfile.TemporaryDirectory() as root:
        place = Path(root, *folders)
        place.mkdir(parents=True, exist_ok=True)
        for name in files:
            if not (place / name).exists():
                (place / name).write_bytes(LOG)
        found = ingest(Settings(logs=(Path(root),)), Catalog((), {}), NOW)
        again = find_runs([Path(root)])
    assert all(run.found.id.isprintable() for run in found.runs)
    assert len({run.id for run in again.runs}) == len(again.runs)


@ANY
@pytest.mark.slow
@given(values=st.lists(TREES, min_size=6, max_size=6), end=st.text(max_size=5))
def test_metadata_of_any_content_is_used_or_noted(values: list[str], end: str) -> None:
    text = "".join(f"{key}: {value}\n" for key, value in zip(SECTIONS, values, strict=True)) + end
    with tempfile.TemporaryDirectory() as root:
        Path(root, "log-x_1_0.out").write_bytes(LOG)
        Path(root, "llmb-config_1.yaml").write_text(text, encoding="utf-8", errors="surrogatepass")
        found = ingest(Settings(logs=(Path(root),)), Catalog((), {}), NOW)
    assert [run.found.job_id for run in found.runs] == ["1"]
