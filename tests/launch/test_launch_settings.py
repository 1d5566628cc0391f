"""What the options of a launch mean, and what a session that goes on takes over."""

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


def test_the_folder_of_the_journal_is_made_by_a_launch_and_has_to_be_there_for_what_goes_on(
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
            r"cannot write below .*file\.txt",
        ),
        ({"launch": True, "journal": ""}, "--llmb-journal= is empty"),
        ({"launch": True, "journal": ["a", "b"]}, "found 2 paths, expected one"),
    ):
        with pytest.raises(SettingsError, match=problem):
            find(**values)


def test_a_session_that_goes_on_elsewhere_takes_what_describes_the_cluster_from_the_one_before(
    folder: Path,
) -> None:
    (folder / "cluster.yaml").touch()
    values = {
        "llmb_launch": True,
        "llmb_nodelist": "n[1-4]",
        "llmb_exclude": "n2",
        "llmb_gpu_hours": "9",
    }
    begun = resolve_launch(values, folder)
    there = resolve_launch(
        {"llmb_resume": True, "llmb_nodelist": "n3"}, folder / "experiments"
    )
    assert begun is not None
    assert there is not None
    noted = json.loads(json.dumps(begun.to_journal()))
    going_on = there.restore_recorded(noted)
    assert going_on.cluster == folder / "cluster.yaml"
    assert (going_on.nodelist, going_on.exclude, going_on.gpu_hours) == (
        "n3",
        "n2",
        9.0,
    )
    assert going_on.restore_recorded({}) == going_on


def test_session_of_an_earlier_version_keeps_its_cluster(folder: Path) -> None:
    """Its options for GPUs and folders of recipes are keys of the cluster file
    today."""
    resumed = resolve_launch({"llmb_resume": True}, folder)
    assert resumed is not None
    noted = {"recipes": [["grok1", "/lustre/grok1"]], "largest": 64, "gpus_per_node": 4}
    going_on = resumed.restore_recorded(noted)
    assert going_on.recipes == (("grok1", Path("/lustre/grok1")),)
    assert (going_on.largest, going_on.gpus_per_node) == (64, 4)


def test_a_session_that_goes_on_cancels_nothing_that_the_one_before_let_live(
    folder: Path,
) -> None:
    """The command that `--llmb-submit-only` prints does not name the limits."""
    begun = resolve_launch(
        {"llmb_launch": True, "llmb_stall_limit": "none", "llmb_pending_limit": "72h"},
        folder,
    )
    silent = resolve_launch({"llmb_collect": True}, folder)
    own = resolve_launch(
        {"llmb_collect": True, "llmb_stall_limit": "45m", "llmb_pending_limit": "1h"},
        folder,
    )
    assert begun
    assert silent
    assert own
    noted = json.loads(json.dumps(begun.to_journal()))
    assert silent.restore_recorded(noted).stall_limit == StallLimits(cancels=False)
    assert silent.restore_recorded(noted).pending_limit == timedelta(hours=72)
    assert own.restore_recorded(noted).stall_limit == StallLimits(2700.0)
    assert own.restore_recorded(noted).pending_limit == timedelta(hours=1)
    assert "stalls: as when the session began" in silent.describe(folder)
    assert any("warn after 45 min" in line for line in own.describe(folder))
