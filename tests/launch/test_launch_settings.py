"""The options of a launch, and the settings that a resumed session restores."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.core.errors import SettingsError
from pytest_llmbench.core.stall_limits import StallLimits
from pytest_llmbench.launch.launch_settings import resolve_launch


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "experiments").mkdir()
    (tmp_path / "file.txt").write_text("grok1*")
    return tmp_path


def test_journal_folder_must_exist_for_a_resumed_session(
    folder: Path,
) -> None:
    def find(**values: Any) -> Path | None:
        launch = resolve_launch(
            {f"llmb_{name}": value for name, value in values.items()}, folder
        )
        assert launch is not None
        return launch.journal

    assert find(launch=True) is None
    assert find(launch=True, journal="new/place") == folder / "new/place"
    assert not (folder / "new").exists()
    assert (
        find(collect=True, journal=[folder / "experiments"]) == folder / "experiments"
    )
    for values, problem in (
        (
            {"collect": True, "journal": "experiment"},
            r"--llmb-journal=experiment does not exist.*did you mean 'experim",
        ),
        (
            {"resume": True, "journal": "file.txt"},
            r"--llmb-journal=file\.txt: .* is a file",
        ),
        (
            {"launch": True, "journal": "file.txt/below"},
            r"cannot write in .*file\.txt",
        ),
        ({"launch": True, "journal": ""}, "--llmb-journal= is empty"),
        ({"launch": True, "journal": ["a", "b"]}, "found 2 paths, expected one"),
    ):
        with pytest.raises(SettingsError, match=problem):
            find(**values)


def test_resumed_session_restores_the_cluster_settings(
    folder: Path,
) -> None:
    (folder / "cluster.yaml").touch()
    values = {
        "llmb_launch": True,
        "llmb_nodelist": "n[1-4]",
        "llmb_exclude": "n2",
        "llmb_gpu_hours": "9",
    }
    started = resolve_launch(values, folder)
    resumed = resolve_launch(
        {"llmb_resume": True, "llmb_nodelist": "n3"}, folder / "experiments"
    )
    assert started is not None
    assert resumed is not None
    recorded = json.loads(json.dumps(started.to_journal()))
    restored = resumed.restore_recorded(recorded)
    assert restored.cluster == folder / "cluster.yaml"
    assert (restored.nodelist, restored.exclude, restored.gpu_hours) == (
        "n3",
        "n2",
        9.0,
    )
    assert restored.restore_recorded({}) == restored


def test_resumed_session_restores_cluster_options_of_an_earlier_version(
    folder: Path,
) -> None:
    """The cluster file has replaced its options for GPUs and recipe folders."""
    resumed = resolve_launch({"llmb_resume": True}, folder)
    assert resumed is not None
    recorded = {
        "recipes": [["grok1", "/lustre/grok1"]],
        "largest": 64,
        "gpus_per_node": 4,
    }
    restored = resumed.restore_recorded(recorded)
    assert restored.recipes == (("grok1", Path("/lustre/grok1")),)
    assert (restored.largest, restored.gpus_per_node) == (64, 4)


def test_resumed_session_restores_stall_and_pending_limits(
    folder: Path,
) -> None:
    """The command printed by `--llmb-submit-only` does not contain the limits."""
    started = resolve_launch(
        {"llmb_launch": True, "llmb_stall_limit": "none", "llmb_pending_limit": "72h"},
        folder,
    )
    without_limits = resolve_launch({"llmb_collect": True}, folder)
    with_limits = resolve_launch(
        {"llmb_collect": True, "llmb_stall_limit": "45m", "llmb_pending_limit": "1h"},
        folder,
    )
    assert started
    assert without_limits
    assert with_limits
    recorded = json.loads(json.dumps(started.to_journal()))
    assert without_limits.restore_recorded(recorded).stall_limit == StallLimits(
        cancels=False
    )
    assert without_limits.restore_recorded(recorded).pending_limit == timedelta(
        hours=72
    )
    assert with_limits.restore_recorded(recorded).stall_limit == StallLimits(2700.0)
    assert with_limits.restore_recorded(recorded).pending_limit == timedelta(hours=1)
    assert "stalls: as when the session began" in without_limits.describe(folder)
    assert any("warn after 45 min" in line for line in with_limits.describe(folder))
