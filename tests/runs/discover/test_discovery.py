"""Finding runs: jobs and attempts, ignored files with reasons, and odd file systems."""

from __future__ import annotations

import errno
import os
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.bad_files import link_chain, nest_folders, remove_nested_folders
from support.written_trees import Tree

from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.run_records import Discovery, LoglessJob, RunFiles
from pytest_llmbench.logs.sources.stores import Stores
from pytest_llmbench.runs.discover import folder_walk as walk
from pytest_llmbench.runs.discover.discovery import _make_sort_text, find_runs

NAME = "pretrain_grok1_314b_bf16_256"
INNER = f"{NAME}/{NAME}_1744407969/{NAME}"
LOG = f"experiments/{INNER}/log-a-b.{NAME}_388660_0.out"


def find_logs(root: Path) -> dict[str, list[str]]:
    """Return the logs of each run by its id."""
    return {
        run.id: [attempt.log.name for attempt in run.attempts]
        for run in find_runs([root]).runs
    }


def get_only_run(discovery: Discovery) -> RunFiles:
    (run,) = discovery.runs
    return run


def list_reasons(discovery: Discovery) -> dict[str, str]:
    return {path.name: reason for path, reason in discovery.ignored}


def make_metadata(**sections: dict[str, object]) -> str:
    return "\n".join(f"{name}: {values}" for name, values in sections.items())


# --- jobs and attempts ----------------------------------------------------------------


def test_restarts_are_ordered_attempts_of_one_run(tree: Tree) -> None:
    logs = [
        f"experiments/{INNER}/log-a-b.{NAME}_388660_{restart}.out"
        for restart in (0, 2, 10)
    ]
    run = get_only_run(find_runs([tree(reversed(logs))]))
    assert run.job_id == "388660"
    assert [(attempt.number, attempt.log.name) for attempt in run.attempts] == [
        (number, Path(log).name) for number, log in zip((0, 2, 10), logs, strict=True)
    ]


def test_jobs_of_folder_are_separate_runs(
    tree: Tree,
) -> None:
    folder = "results/24.11/bf16/314b/512"
    root = tree(
        {
            f"{folder}/log-nemo_grok1_314b_512_41.out": "",
            f"{folder}/log-nemo_grok1_314b_512_41.err": "",
            f"{folder}/log-nemo_grok1_314b_512_7.out": "",
            f"{folder}/llmb-config_41.yaml": make_metadata(
                model_info={"gpu_type": "h200"}
            ),
        }
    )
    first, second = find_runs([root]).runs
    assert [run.job_id for run in (first, second)] == ["7", "41"]
    assert first.metadata is None
    assert first.attempts[0].err is None
    assert second.metadata == root / folder / "llmb-config_41.yaml"
    assert second.attempts[0].err == root / folder / "log-nemo_grok1_314b_512_41.err"
    assert "h200" in {hint.value for hint in second.hints}
    assert "h200" not in {hint.value for hint in first.hints}


def test_slurm_output_is_log_if_job_has_none(
    tree: Tree,
) -> None:
    root = tree(
        [
            "a/slurm-8.out",
            "a/log-x_8_0.out",
            "b/slurm-4.out",
            "b/slurm-4.err",
            "c/slurm-5_1.out",
        ]
    )
    runs = find_runs([root]).runs
    assert [
        [
            (attempt.log.name, attempt.err and attempt.err.name)
            for attempt in run.attempts
        ]
        for run in runs
    ] == [
        [("log-x_8_0.out", "slurm-8.out")],
        [("slurm-4.out", "slurm-4.err")],
        [("slurm-5_1.out", None)],
    ]


def test_slurm_output_becomes_standard_error_of_the_log_named_by_the_launcher(
    tree: Tree,
) -> None:
    """A duplicate of the log under another name neither gets the output nor prevents
    it."""
    name = "nemo_grok1_314b_512_8_0.out"
    runs = find_runs([tree([f"log-{name}", name, "slurm-8.out"])]).runs
    streams = {run.attempts[0].log.name: run.attempts[0].err for run in runs}
    assert {log: err and err.name for log, err in streams.items()} == {
        f"log-{name}": "slurm-8.out",
        name: None,
    }


def test_slurm_output_of_requeued_job_is_ignored(tree: Tree) -> None:
    discovery = find_runs([tree(["slurm-8.out", "log-x_8_0.out", "log-x_8_1.out"])])
    assert [attempt.err for attempt in get_only_run(discovery).attempts] == [None, None]
    assert list_reasons(discovery) == {"slurm-8.out": "the log of job 8 is next to it"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("sbatch_a-b.x_8.out", "the launcher's duplicate of a job's output"),
        ("nsys_x.log", "a profiler's output"),
        ("import_ckpt_llama3.1_8b_bf16_8.out", "a checkpoint import, no training"),
        (
            "log-a-b.import_ckpt_llama3.1_8b_bf16_8_12_0.out",
            "a checkpoint import, no training",
        ),
        ("log-prepare_dataset_12_0.out", "a preparation, no training"),
        ("git-info.log", "written by the framework next to its log"),
        (
            "notes.txt",
            "not read: not named like a log; give the file's own path to read it",
        ),
        (
            "log-y_9_0.out.lz4",
            "not read: not named like a log; give the file's own path to read it",
        ),
        (
            "log-y_9_0.out.tar",
            "not read: not named like a log; give the file's own path to read it",
        ),
        ("sbatch_a-b.x_8.out.gz", "the launcher's duplicate of a job's output"),
        ("log-x_8_0.out.gz", "a compressed copy of log-x_8_0.out next to it"),
        ("log-x_8.out.zst", "a compressed copy of log-x_8_0.out next to it"),
        ("slurm-8.out.gz", "the log of job 8 is next to it"),
        ("log-y_9_0.err.zst", "standard error without a log next to it"),
    ],
)
def test_ignored_file_is_listed_with_reason(tree: Tree, name: str, reason: str) -> None:
    discovery = find_runs([tree(["log-x_8_0.out", name])])
    assert get_only_run(discovery).job_id == "8"
    assert list_reasons(discovery) == {name: reason}


@pytest.mark.parametrize(
    "name",
    [
        "gpub019.delta_gpub019.delta_stdout.txt",  # GPT-NeoX
        "result_0.txt",  # MLPerf
        "train.log.gz",
        f"log-prepare_team-team.{NAME}_8_0.out",  # an account named like a skipped task
    ],
)
def test_log_is_recognised_by_name(tree: Tree, name: str) -> None:
    assert get_only_run(find_runs([tree([name])])).attempts[0].log.name == name


CLOSED = ("configs", "code", "checkpoints", "nsys_profile", ".git")


@pytest.mark.parametrize(
    "log",
    [
        "log-x_8_0.out",
        "slurm-8.out",
        "experiments/grok1_314b_bf16_256/1744407969/log-x_8_0.out",
    ],
)
def test_folder_inside_a_run_folder_is_read_only_if_given(tree: Tree, log: str) -> None:
    """A run's folder is recognised by a launched log or its experiment's name, at any
    depth."""
    top = Path(log).parent
    for folder in (top, top.parent if len(top.parts) > 1 else top, top / "below"):
        root = tree([log, *(f"{folder}/{name}/inner/log-y_9_0.out" for name in CLOSED)])
        discovery = find_runs([root])
        assert get_only_run(discovery).job_id == "8"
        reason = (
            "by its name a run's folder without logs; to read it, give its own path"
        )
        assert list_reasons(discovery) == dict.fromkeys(CLOSED, reason)
        assert [run.job_id for run in find_runs([root / folder / "code"]).runs] == ["9"]


def test_configuration_folder_is_not_reported(tree: Tree) -> None:
    """Megatron-Bridge writes configurations next to the log of each run."""
    files = [
        f"{NAME}/{NAME}_1/{NAME}/log-x_8_0.out",
        f"{NAME}/{NAME}_1/{NAME}/configs/ConfigContainer.yaml",
    ]
    assert list_reasons(find_runs([tree(files)])) == {}
    reason = "by its name a run's folder without logs; to read it, give its own path"
    assert list_reasons(
        find_runs([tree([*files, files[1].replace("ConfigContainer.yaml", "a.out")])])
    ) == {"configs": reason}


@pytest.mark.parametrize("neighbour", ["launcher.log", "slurm-55.out"])
def test_folder_above_runs_is_read_despite_name(tree: Tree, neighbour: str) -> None:
    root = tree([f"code/{LOG}", neighbour])
    discovery = find_runs([root])
    assert "388660" in [run.job_id for run in discovery.runs]
    assert len(discovery.runs) == 2
    assert discovery.ignored == ()
    assert get_only_run(find_runs([root / "code"])).job_id == "388660"


# --- compressed logs ------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["gz", "zst", "GZ"])
def test_compressed_log_is_log_of_its_job(tree: Tree, ending: str) -> None:
    """If it were ignored, an older run would be judged instead of the newest."""
    root = tree([f"{LOG}.{ending}", LOG.replace(".out", ".err")])
    run = get_only_run(find_runs([root]))
    plain = get_only_run(find_runs([tree([LOG])]))
    assert [attempt.log for attempt in run.attempts] == [root / f"{LOG}.{ending}"]
    assert run.attempts[0].err == root / LOG.replace(".out", ".err")
    assert run.id.split("/")[1:] == plain.id.split("/")[1:]
    assert (run.job_id, run.layout, run.started) == (
        plain.job_id,
        plain.layout,
        plain.started,
    )
    assert {(hint.field, hint.value) for hint in run.hints} == {
        (hint.field, hint.value) for hint in plain.hints
    }


@pytest.mark.parametrize("error", ["log-x_8_0.err.gz", "log-x_8_0.err.zst"])
def test_compressed_standard_error_belongs_to_its_log(tree: Tree, error: str) -> None:
    for log in ("log-x_8_0.out", "log-x_8_0.out.xz"):
        root = tree([log, error])
        assert get_only_run(find_runs([root])).attempts[0].err == root / error
        (root / "log-x_8_0.err").touch()
        assert get_only_run(find_runs([root])).attempts[0].err == root / "log-x_8_0.err"


@pytest.mark.parametrize(
    ("files", "logs"),
    [
        (
            ["log-x_8_0.out.gz", "log-x_8_1.out", "log-x_8_1.out.gz"],
            ["log-x_8_0.out.gz", "log-x_8_1.out"],
        ),
        (["slurm-4.out.gz", "slurm-4.err"], ["slurm-4.out.gz"]),
        (["slurm-4.out.gz", "slurm-4.out"], ["slurm-4.out"]),
        (["slurm-4.out.gz", "log-x_4_0.out.gz"], ["log-x_4_0.out.gz"]),
        (
            ["0/combined.log.gz", "0/stdout.log.gz", "1/combined.log.gz"],
            ["combined.log.gz"],
        ),
    ],
)
def test_compressed_logs_are_attempts_of_their_job(
    tree: Tree, files: list[str], logs: list[str]
) -> None:
    run = get_only_run(find_runs([tree(files)]))
    assert [attempt.log.name for attempt in run.attempts] == logs
    assert all(
        attempt.err is None or not attempt.err.name.endswith("gz")
        for attempt in run.attempts
    )


def test_two_logs_with_the_same_job_id_and_attempt_number_are_two_runs(
    tree: Tree,
) -> None:
    assert len(find_runs([tree(["log-x_12.out", "log-x_12_0.out"])]).runs) == 2


@pytest.mark.parametrize(
    ("files", "log", "err"),
    [
        (("combined.log", "stdout.log", "stderr.log"), "combined.log", None),
        (("stdout.log", "stderr.log"), "stdout.log", "stderr.log"),
        (("stderr.log",), "stderr.log", None),
    ],
)
def test_log_of_a_local_executor_run_is_the_combined_log_of_rank_0(
    tree: Tree, files: tuple[str, ...], log: str, err: str | None
) -> None:
    folder = f"experiments/{NAME}/{NAME}_1744407969/{NAME}/nemo_run/job-x1/{NAME}"
    run = get_only_run(
        find_runs(
            [tree([f"{folder}/{rank}/{name}" for name in files for rank in (0, 1)])]
        )
    )
    attempt = run.attempts[0]
    assert (
        attempt.log.name,
        attempt.err and attempt.err.name,
        attempt.log.parent.name,
    ) == (log, err, "0")
    assert run.job_id == "job-x1"
    assert ("gpus", "256") in {(hint.field, hint.value) for hint in run.hints}


FOLDERS = Path(LOG).parents


@pytest.mark.parametrize(
    ("folder", "log"),
    [
        (FOLDERS[0], LOG),
        (FOLDERS[1], f"{LOG}.gz"),
        (FOLDERS[1], f"{FOLDERS[0]}/nemo_run/job-x1/{NAME}/0/combined.log"),
        (FOLDERS[2], LOG),
    ],
)
def test_log_of_unrelated_name_beside_a_run_is_not_described_by_folder_names(
    tree: Tree, folder: Path, log: str
) -> None:
    """An unrelated file must not be taken for the run in whose folder it is."""
    root = tree([log, f"{folder}/launcher.log"])
    stray, real = sorted(find_runs([root]).runs, key=lambda run: len(run.hints))
    assert (stray.attempts[0].log, stray.hints, stray.layout) == (
        root / folder / "launcher.log",
        (),
        "",
    )
    assert {"recipe", "size", "dtype", "gpus"} == {hint.field for hint in real.hints}
    named = tree([log, f"{folder}/{NAME}.log"])
    assert {len(run.hints) for run in find_runs([named]).runs} == {4}


def test_log_of_unrelated_name_is_described_by_folder_names_without_other_logs(
    tree: Tree,
) -> None:
    """Otherwise a job that left only such a file would be ignored."""
    other, launch = f"experiments/{NAME}/{NAME}_1744408000", Path(LOG).parents[1]
    for files in ([f"{launch}/launcher.log"], [LOG, f"{other}/launcher.log"]):
        runs = find_runs([tree(files)]).runs
        stray = next(run for run in runs if run.attempts[0].log.name == "launcher.log")
        assert {"recipe", "size", "dtype", "gpus"} == {
            hint.field for hint in stray.hints
        }


def test_log_beside_a_nested_experiment_is_described_by_its_own_folder_names(
    tree: Tree,
) -> None:
    inner = f"{NAME}_1/experiments/pretrain_x_8b_fp8_8/log-x_8_0.out"
    runs = find_runs([tree([inner, f"{NAME}_1/tuesday.out"])]).runs
    assert {
        hint.value
        for run in runs
        if run.attempts[0].log.name == "tuesday.out"
        for hint in run.hints
    } >= {"grok1"}


def test_only_file_in_run_folder_is_the_run(tree: Tree) -> None:
    run = get_only_run(find_runs([tree(["results/24.11/bf16/314b/512/tuesday.out"])]))
    assert {hint.field for hint in run.hints} == {"release", "dtype", "size", "gpus"}
    deeper = get_only_run(
        find_runs([tree(["results/24.11/bf16/314b/512/wandb/debug.log"])])
    )
    assert {hint.field for hint in deeper.hints} == {"release"}


# --- paths ----------------------------------------------------------------------------


def test_overlapping_paths_yield_each_run_once(tree: Tree) -> None:
    root = tree([LOG, "log-x_8_0.out"])
    expected = find_runs([root]).runs
    assert len(expected) == 2
    for paths in (
        [root, root],
        [root / LOG, root],
        [root / "experiments", root],
        [root, root / LOG],
    ):
        assert find_runs(paths).runs == expected


def test_given_file_is_log_under_any_name(tree: Tree) -> None:
    root = tree(
        [
            LOG,
            f"{LOG}.gz",
            "sbatch_x.out",
            "notes.txt",
            "slurm-8.out",
            "log-x_8_0.out",
            "code/a.out",
        ]
    )
    for name in (f"{LOG}.gz", "sbatch_x.out", "notes.txt", "slurm-8.out", "code/a.out"):
        discovery = find_runs([root / name])
        assert get_only_run(discovery).attempts[0].log == root / name
        assert (discovery.ignored, discovery.unreadable) == ((), ())
    everything = find_runs([root, root / "notes.txt"]).runs
    assert {"notes.txt", "log-x_8_0.out", Path(LOG).name} == {
        run.attempts[0].log.name for run in everything
    }


def test_file_given_on_the_command_line_is_described_by_neighbouring_files(
    tree: Tree,
) -> None:
    folder = Path(LOG).parent
    root = tree(
        {
            LOG: "",
            f"{folder}/log-a-b.{NAME}_388660_0.err": "",
            f"{folder}/llmb-config_388660.yaml": make_metadata(
                workload_info={"gsw_version": "25.05.04"}
            ),
            f"{folder}/nsys_profile/grok1-314b-bf16_256g_388660_0_0.nsys-rep": "",
        }
    )
    run = get_only_run(find_runs([root / LOG]))
    assert run.attempts[0].err is not None
    assert ("release", "25.05.04") in {(hint.field, hint.value) for hint in run.hints}
    assert run.excluded is Reason.PROFILED
    assert run.layout == "experiments"


def test_relative_path_gets_hints_of_its_parents(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree([LOG])
    monkeypatch.chdir((root / LOG).parent)
    run = get_only_run(find_runs([Path(Path(LOG).name)]))
    assert run == get_only_run(find_runs([root / LOG]))
    assert len(run.hints) == 4


def test_missing_path_and_unreadable_folder_are_reported(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree([LOG, "locked/log-x_8_0.out", "open/log-x_9_0.out"])
    scandir = os.scandir

    def refuse(path: Any) -> Any:
        if Path(path).name == "locked":
            raise PermissionError(errno.EACCES, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    discovery = find_runs([root, root / "absent"])
    assert [run.job_id for run in discovery.runs] == ["388660", "9"]
    assert dict(discovery.unreadable) == {
        root / "locked": "cannot be read: Permission denied",
        root / "absent": "cannot be read: No such file or directory",
    }


def test_links_are_followed_once_after_real_folders(
    tree: Tree,
) -> None:
    root, elsewhere = tree([LOG]), tree(["far/log-y_9_0.out"])
    (root / "a_link").symlink_to(root / "experiments")
    (root / "experiments" / "loop").symlink_to(root)
    (root / "outside").symlink_to(elsewhere)
    (root / "latest.out").symlink_to(root / LOG)
    discovery = find_runs([root])
    assert {run.attempts[0].log for run in discovery.runs} == {
        root / LOG,
        elsewhere / "far/log-y_9_0.out",
    }
    assert list_reasons(discovery) == {
        "a_link": "a link to a folder that is read already",
        "loop": "a link to a folder that contains the link itself",
        "latest.out": f"another name of {root / LOG}",
    }
    assert discovery.unreadable == ()
    assert (
        get_only_run(find_runs([root / "latest.out"])).attempts[0].log.name
        == "latest.out"
    )


def test_upward_link_is_followed_only_if_given(tree: Tree) -> None:
    """Files next to the given folder were not requested."""
    root = tree(["wanted/a/log-x_8_0.out", "beside/log-y_9_0.out"])
    (root / "wanted/a/up").symlink_to("../..")
    (root / "wanted/itself").symlink_to(".")
    discovery = find_runs([root / "wanted"])
    assert get_only_run(discovery).job_id == "8"
    expected = "a link to a folder that contains the link itself"
    assert list_reasons(discovery) == {"up": expected, "itself": expected}
    assert {run.job_id for run in find_runs([root / "wanted/a/up"]).runs} == {"8", "9"}


def test_folder_limit_is_reported_once(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree(
        [f"{letter}/log-x_{number}_0.out" for number, letter in enumerate("abcdef")]
    )
    monkeypatch.setattr(walk, "MOST_FOLDERS", 7)
    assert len(find_runs([root]).runs) == 6
    monkeypatch.setattr(walk, "MOST_FOLDERS", 4)
    discovery = find_runs([root])
    assert [run.job_id for run in discovery.runs] == ["0", "1", "2"]
    ((path, reason),) = discovery.unreadable
    assert path == root / "d"
    assert (
        "more than 4 folders, so the newest run may be missing; give --llmb-logs fewer"
        in reason
    )


def test_link_given_on_the_command_line_is_read_after_the_folder_it_leads_to(
    tree: Tree,
) -> None:
    link, root = tree([]) / "nightly", tree([LOG])
    link.symlink_to(root / "experiments" / NAME)
    assert (
        get_only_run(find_runs([link, root / "experiments"])).attempts[0].log
        == root / LOG
    )
    assert (
        get_only_run(find_runs([link])).attempts[0].log.parts[: len(link.parts)]
        == link.parts
    )


def test_hard_link_is_no_second_run(tree: Tree) -> None:
    root = tree([LOG])
    (root / "snapshot.out").hardlink_to(root / LOG)
    assert get_only_run(find_runs([root])).attempts[0].log == root / LOG


def test_broken_links_and_special_files_are_reported(tree: Tree) -> None:
    root = tree(["log-x_8_0.out"])
    (root / "gone.out").symlink_to(root / "nowhere")
    (root / "current").symlink_to(root / "nowhere")
    (root / "self").symlink_to(root / "self")
    os.mkfifo(root / "pipe.out")
    discovery = find_runs([root])
    assert get_only_run(discovery).job_id == "8"
    assert [path.name for path, _ in discovery.unreadable] == ["gone.out"]
    assert {"current", "self", "pipe.out"} == set(list_reasons(discovery))


@pytest.mark.parametrize("part", ["ünïcode-日本", "new\nline", "[brackets]::"])
def test_names_with_any_characters_are_read(tree: Tree, part: str) -> None:
    root = tree([f"{part}/{LOG}", f"{part}/{part}.out"])
    runs = find_runs([root]).runs
    assert {run.attempts[0].log for run in runs} == {
        root / part / LOG,
        root / part / f"{part}.out",
    }
    for run in runs:
        assert run.id.isprintable()
        assert not set(" \n[]:'\"") & set(run.id)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (
            "gb200-cluster/25.08/results/24.11/bf16/314b/512/log-nemo_grok1_314b_512_7.out",
            {"gpu": "gb200"},
        ),
        (f"gb200-cluster/h100/25.08/{LOG}", {"gpu": "h100", "release": "25.08"}),
        (f"gb200-cluster/experiments/{NAME}_h100/log-x_7_0.out", {"gpu": "h100"}),
        (LOG, {}),
    ],
)
def test_folders_above_a_layout_add_gpu_type_and_release_only_if_missing(
    tree: Tree, path: str, expected: dict[str, str]
) -> None:
    """A run on another GPU must not be taken for the only GPU that has a baseline."""
    run = get_only_run(find_runs([tree([path])]))
    hints = [
        (hint.field, hint.value)
        for hint in run.hints
        if hint.field in ("gpu", "release")
    ]
    assert dict(hints) == {
        **({"release": "24.11"} if "24.11" in path else {}),
        **expected,
    }
    assert len(hints) == len(dict(hints))


# --- ids ------------------------------------------------------------------------------


def test_run_ids_are_unique_and_contain_no_absolute_path(tree: Tree) -> None:
    root = tree(
        [
            LOG,
            f"workloads/pretrain_grok1/experiments/{INNER}/log-a-b.{NAME}_388660_0.out",
            "results/24.11/bf16/70b/64/log-maxtext-64_70b_1407993.out",
            "a.out",
            "a.log",
        ]
    )
    assert set(find_logs(root / "experiments")) == {f"{NAME}/388660"}
    ids = list(find_logs(root))
    assert len(set(ids)) == len(ids) == 5
    assert not [identifier for identifier in ids if str(root.parent) in identifier]
    assert [identifier.removeprefix(root.name) for identifier in ids] == [
        "/a/a/~1",
        "/a/a/~2",
        f"{NAME}/388660/log-a-b.{NAME}_388660_0/~3",
        "24.11/bf16/70b/64/maxtext-64_70b_1407993",
        f"{NAME}/388660/log-a-b.{NAME}_388660_0/~5",
    ]


# --- evidence and time ----------------------------------------------------------------


RESULTS_FOLDER = "results/24.11/bf16/314b/512"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([LOG], None),
        ([f"profile-results/nsys/{LOG}"], None),
        ([f"x_nsys/nccltrace/{LOG}"], None),
        (
            [LOG, f"experiments/{INNER}/nsys_profile/profile_7.nsys-rep"],
            Reason.PROFILED,
        ),
        (
            [
                LOG,
                f"experiments/{INNER}/nsys_profile/g-314b-bf16_256g_388660_0_3.nsys-rep",
            ],
            Reason.PROFILED,
        ),
        (
            [LOG, f"experiments/{INNER}/g-314b-bf16_256g_388660_0_3.nsys-rep"],
            Reason.PROFILED,
        ),
        (
            [
                LOG,
                f"experiments/{INNER}/nsys_profile/g-314b-bf16_256g_7_388660_3.nsys-rep",
            ],
            None,
        ),
        ([LOG.replace(f"/{NAME}/log", f"/{NAME}_nsys/log")], Reason.PROFILED),
        ([LOG.replace(f"/{NAME}/log", f"/{NAME}_nccltrace/log")], Reason.TRACED),
        (
            ["results/25.01-nccl-trace/bf16/314b/512/log-nemo_grok1_314b_512_7.out"],
            Reason.TRACED,
        ),
        ([f"log-a-b.{NAME}_nsys_7_0.out"], Reason.PROFILED),
        ([f"log-a-b.{NAME}_nsys_7_0.out.gz"], Reason.PROFILED),
        ([f"log-a-b.{NAME}_nccltrace_7_0.out"], Reason.TRACED),
        (
            [
                f"{RESULTS_FOLDER}/tuesday.out",
                f"{RESULTS_FOLDER}/nsys_profile/p.nsys-rep",
            ],
            Reason.PROFILED,
        ),
    ],
)
def test_run_is_excluded_only_by_profiler_or_trace_evidence_of_the_same_job(
    tree: Tree, files: list[str], expected: Reason | None
) -> None:
    run = get_only_run(find_runs([tree(files)]))
    assert run.excluded == expected
    assert bool(run.excluded_because) is (expected is not None)


def test_nsys_report_without_job_id_excludes_no_run_of_a_shared_folder(
    tree: Tree,
) -> None:
    reports = ["profile_0.nsys-rep", "g-8b-bf16_8g_9_0_0.nsys-rep"]
    runs = find_runs([tree(["log-x_8_0.out", "log-x_9_0.out", *reports])]).runs
    assert {run.job_id: run.excluded for run in runs} == {
        "8": None,
        "9": Reason.PROFILED,
    }


def test_nsys_report_without_job_id_excludes_a_given_log_only_without_other_logs(
    tree: Tree,
) -> None:
    root = tree(["log-x_8_0.out", "log-x_9_0.out", "profile_0.nsys-rep"])
    run = get_only_run(find_runs([root / "log-x_8_0.out"]))
    assert (run.excluded, run.loose_reports) == (None, ("profile_0.nsys-rep",))
    (root / "log-x_9_0.out").unlink()
    assert get_only_run(find_runs([root / "log-x_8_0.out"])).excluded is Reason.PROFILED


def test_nsys_report_in_a_subfolder_excludes_a_run_given_by_its_log(tree: Tree) -> None:
    root = tree(["log-x_8_0.out", "log-x_9_0.out", "nsys/m-8b-bf16_8g_8_0_0.nsys-rep"])
    assert get_only_run(find_runs([root / "log-x_8_0.out"])).excluded is Reason.PROFILED
    assert get_only_run(find_runs([root / "log-x_9_0.out"])).excluded is None


def test_nsys_report_excludes_the_run_whose_complete_job_id_is_in_its_name(
    tree: Tree,
) -> None:
    logs = [f"log-x_{job}_0.out" for job in (38866, 388660, 7)]
    runs = find_runs(
        [tree([*logs, "profile_12_388660_node0.nsys-rep", "profile_7.nsys-rep"])]
    ).runs
    assert {run.job_id for run in runs if run.excluded} == {"388660"}


@pytest.mark.parametrize("logs", [[LOG], []])
def test_run_is_described_by_folder_names_if_its_metadata_is_not_valid_yaml(
    tree: Tree, logs: list[str]
) -> None:
    root = tree(
        {
            **dict.fromkeys(logs, ""),
            f"{Path(LOG).parent}/llmb-config_388660.yaml": "model_info: [1",
        }
    )
    discovery = find_runs([root])
    run = get_only_run(discovery)
    assert (len(run.attempts), len(run.hints)) == (len(logs), 4)
    assert not logs or run.metadata is None
    assert [(path.name, reason[:14]) for path, reason in discovery.unreadable] == [
        ("llmb-config_388660.yaml", "not valid YAML")
    ]


def test_metadata_belongs_to_the_only_launched_log_without_job_id_in_its_folder(
    tree: Tree,
) -> None:
    release = make_metadata(workload_info={"gsw_version": "25.05.04"})
    root = tree({f"{INNER}/log-{NAME}.out": "", f"{INNER}/llmb-config_5.yaml": release})
    run = get_only_run(find_runs([root]))
    assert (run.job_id, run.metadata) == ("5", root / INNER / "llmb-config_5.yaml")
    for stray in ("train.log", "hydra.out"):
        (root / INNER / stray).touch()
    assert {run.metadata for run in find_runs([root]).runs} == {
        None,
        root / INNER / "llmb-config_5.yaml",
    }
    assert find_runs([root]).unreadable == ()


@pytest.mark.parametrize(
    ("logs", "log_names"),
    [
        (("log-a.out", "log-b.out"), "log-a.out, log-b.out"),
        (("log-a.out", "log-b_8_0.out"), "log-a.out"),
    ],
)
def test_ambiguous_metadata_is_reported(
    tree: Tree, logs: tuple[str, ...], log_names: str
) -> None:
    root = tree([*(f"{INNER}/{log}" for log in logs), f"{INNER}/llmb-config_5.yaml"])
    discovery = find_runs([root])
    assert [run.metadata for run in discovery.runs] == [None, None]
    reason = f"unclear which log, if any, belongs to job 5: no job id in the name of {log_names}"
    assert discovery.unreadable == ((root / INNER / "llmb-config_5.yaml", reason),)
    assert (
        find_runs([root / INNER / logs[0]])
        .unreadable[0][1]
        .endswith(f"in the name of {logs[0]}")
    )


# --- jobs without a log ---------------------------------------------------------------


@pytest.mark.parametrize("neighbours", [(), (f"sbatch_a-b.{NAME}_9.out",)])
def test_job_with_only_metadata_is_run_without_attempts(
    tree: Tree, neighbours: tuple[str, ...]
) -> None:
    """The newest job failed before it wrote a log; an older run must not pass in its
    place."""
    text = make_metadata(
        job_info={"launch_time": "2025-04-11T20:00:00+00:00"},
        model_info={"gpu_type": "h200"},
    )
    path = f"experiments/{INNER}/llmb-config_9.yaml"
    root = tree(
        {path: text, **{f"experiments/{INNER}/{name}": "" for name in neighbours}}
    )
    os.utime(root / path, (1744500000, 1744500000))
    (run,) = (run for run in find_runs([root]).runs if run.job_id == "9")
    assert (run.attempts, run.folder, run.metadata) == (
        (),
        (root / path).parent,
        root / path,
    )
    assert (run.started, run.modified) == (
        datetime(2025, 4, 11, 20, tzinfo=UTC),
        datetime.fromtimestamp(1744500000, UTC),
    )
    assert {"recipe", "size", "dtype", "gpus", "gpu"} == {
        hint.field for hint in run.hints
    }
    assert run.layout == "experiments"
    assert run.id == f"{NAME}/9"


def test_each_logless_job_is_a_run(tree: Tree) -> None:
    profiled = make_metadata(job_config={"profile_enabled": "true"})
    folder = "workloads/pretrain_grok1"
    root = tree(
        {
            f"{folder}/llmb-config_{job}.yaml": profiled if job == 2 else "a: b"
            for job in (1, 2, 10)
        }
    )
    runs = find_runs([root]).runs
    assert {run.job_id: run.excluded for run in runs} == {
        "1": None,
        "2": Reason.PROFILED,
        "10": None,
    }
    assert [run.job_id for run in runs] == ["1", "2", "10"]


RESULTS = "results/25.01/bf16/340b/128/log-nemo_nemotron4_340b_128"


@pytest.mark.parametrize(
    ("files", "jobs"),
    [
        ([f"{RESULTS}_9.err"], ["9"]),
        ([f"{RESULTS}_9.err", f"{RESULTS}_9.out"], []),
        ([f"{RESULTS}_9.err", f"{RESULTS}_9.out.lz4"], []),
        ([f"{RESULTS}_9.err", "elsewhere/log-nemo_nemotron4_340b_128_9.out"], []),
        ([f"{RESULTS}_9.err", "results/25.01/bf16/340b/128/llmb-config_9.yaml"], ["9"]),
        ([f"{RESULTS}_9_0.err", f"{RESULTS}_9_1.err"], ["9"]),
        (["results/25.01/bf16/340b/128/train.err"], []),
    ],
)
def test_job_with_only_stderr_is_run_without_attempts(
    tree: Tree, files: list[str], jobs: list[str]
) -> None:
    runs = [run for run in find_runs([tree(files)]).runs if not run.attempts]
    assert [run.job_id for run in runs] == jobs
    assert {run.logless_job for run in runs} <= {LoglessJob.STANDARD_ERROR}


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ([f"{NAME}/{NAME}_1744407969/{NAME}/train.sh"], 1),
        ([f"{NAME}/{NAME}_1744407969/_TASKS"], 1),
        ([f"{NAME}/1744407969/config.yaml"], 1),
        ([f"{INNER}/sbatch_a-b.{NAME}_9.out"], 1),
        ([f"{INNER}/log-a-b.{NAME}_9_0.out"], 0),
        ([f"{INNER}/log-a-b.{NAME}_9_0.out.bak"], 0),
        ([f"{INNER}/run.tar.gz"], 0),
        ([f"{INNER}/llmb-config_9.yaml"], 0),
        ([f"{NAME}/train.sh"], 0),
        (["notes_1744407969/train.sh"], 0),
    ],
)
def test_empty_launch_folder_is_run_without_attempts(
    tree: Tree, files: list[str], left: int
) -> None:
    root = tree([f"experiments/{file}" for file in files])
    logless = [
        run for run in find_runs([root]).runs if run.logless_job is LoglessJob.FOLDER
    ]
    assert len(logless) == left
    assert all(
        run.started == datetime.fromtimestamp(1744407969, UTC) for run in logless
    )


@pytest.mark.parametrize(
    "folder",
    [".", "workloads/pretrain_grok1", f"workloads/pretrain_grok1/{Path(LOG).parent}/x"],
)
def test_metadata_with_log_in_other_folder_is_no_run(tree: Tree, folder: str) -> None:
    log = f"workloads/pretrain_grok1/{LOG}"
    discovery = find_runs([root := tree([log, f"{folder}/llmb-config_388660.yaml"])])
    assert get_only_run(discovery).attempts[0].log == root / log
    reason = f"the log of job 388660 is elsewhere, in {(root / log).parent}"
    assert list_reasons(discovery) == {"llmb-config_388660.yaml": reason}


def test_given_file_adds_no_neighbouring_runs(tree: Tree) -> None:
    folder = Path(LOG).parent
    root = tree(
        [LOG, f"{folder}/llmb-config_9.yaml", f"{folder}/log-a-b.{NAME}_7_0.err"]
    )
    assert get_only_run(find_runs([root / LOG])).job_id == "388660"


@pytest.mark.parametrize(
    ("path", "started", "dated"),
    [
        (LOG, f"{NAME}_1744407969", ""),
        (f"2025-05-01/{LOG}", f"{NAME}_1744407969", ""),
        (f"2025-05-01/{NAME}/log-x_8_0.out", "", "2025-05-01"),
        (f"{NAME}/2025010303/log-x_8_0.out", "2025010303", ""),
        (f"{NAME}/20250103/log-x_8_0.out", "", "20250103"),
        ("results/20250411_144618/bf16/314b/512/log-x_8_0.out", "", "20250411_144618"),
    ],
)
def test_start_time_is_read_from_experiment_folders_and_not_from_their_parents(
    tree: Tree, path: str, started: str, dated: str
) -> None:
    """Parent folders and bare days are weaker than the log's own timestamp."""
    run = get_only_run(find_runs([tree([path])]))
    source = run.start_candidates[0].source
    assert source == f"the name of folder {started or dated}"
    assert (run.started is None, run.dated is None) == (not started, not dated)


def test_launch_time_takes_precedence_over_folder_name(tree: Tree) -> None:
    text = make_metadata(job_info={"launch_time": "2025-04-11T20:00:00+00:00"})
    folder = f"{NAME}/{NAME}_1744407969"
    run = get_only_run(
        find_runs(
            [
                tree(
                    {
                        f"{folder}/log-x_8_0.out": "",
                        f"{folder}/llmb-config_8.yaml": text,
                    }
                )
            ]
        )
    )
    assert run.started == datetime(2025, 4, 11, 20, tzinfo=UTC)
    assert run.start_candidates[0].source.startswith("the launch time")


# --- builds ---------------------------------------------------------------------------


def build_of(tree: Tree, *, folder: str = NAME, **sections: Any) -> tuple[str, ...]:
    root = tree(
        {
            f"{folder}/log-x_8_0.out": "",
            f"{folder}/llmb-config_8.yaml": make_metadata(job_info={}, **sections),
        }
    )
    return get_only_run(find_runs([root])).build


def test_build_does_not_depend_on_the_order_of_metadata_keys_and_images(
    tree: Tree,
) -> None:
    versions = {"fw_version": "25.04.01", "gsw_version": "26.06.00"}
    backwards = dict(reversed(versions.items()))
    first = build_of(
        tree, workload_info=versions, container_info={"images": ["b:2", "a:1"]}
    )
    second = build_of(
        tree, container_info={"images": ["a:1", "b:2", "b:2"]}, workload_info=backwards
    )
    images = ("container.images=a:1", "container.images=b:2")
    assert first == second == (*images, "fw_version=25.04.01", "release=26.06.00")


def test_build_contains_all_contradicting_releases(tree: Tree) -> None:
    """Neither is dropped: otherwise two builds could look the same."""
    folder = "results/25.01/bf16/314b/512"
    assert build_of(tree, folder=folder, workload_info={"gsw_version": "v25.05"}) == (
        "release=25.01",
        "release=25.05",
    )
    assert build_of(tree, folder=folder, workload_info={"gsw_version": "25.01"}) == (
        "release=25.01",
    )


# --- a real tree ----------------------------------------------------------------------


@pytest.mark.slow
def test_folders_of_any_depth_are_read(tree: Tree) -> None:
    root = tree(["log-grok1_314b_128_1_0.out"])
    nest_folders(root / "a", 700, "train.out")
    try:
        discovery = find_runs([root])
    finally:
        remove_nested_folders(root / "a")
    assert [run.folder for run in discovery.runs] == [
        root,
        root.joinpath("a", *["d"] * 700),
    ]
    assert not discovery.unreadable


@pytest.mark.parametrize(
    "name",
    ["log-grok1_314b_128_2_0.out", "runs.tar.gz", "metrics.csv", "llmb-config_2.yaml"],
)
def test_empty_folder_named_like_a_log_is_listed_as_ignored_and_possibly_newer(
    tree: Tree, name: str
) -> None:
    root = tree(["log-grok1_314b_128_1_0.out"])
    (root / name).mkdir()
    (root / "empty").mkdir()
    discovery = find_runs([root], Stores())
    assert {path.name: reason for path, reason in discovery.ignored} == {
        name: "an empty folder in place of a file"
    }
    assert [path.name for path, _, _ in discovery.hidden] == [name]


def test_fifo_named_like_a_log_is_reported_as_a_possible_newer_run(tree: Tree) -> None:
    root = tree(["log-grok1_314b_128_1_0.out"])
    os.mkfifo(root / "log-grok1_314b_128_2_0.out")
    discovery = find_runs([root])
    assert [(path.name, reason) for path, _, reason in discovery.hidden] == [
        ("log-grok1_314b_128_2_0.out", "not a regular file")
    ]


def test_sparse_archive_is_unreadable(tree: Tree) -> None:
    root = tree(["run/log-grok1_314b_128_1_0.out", "extra/e.tar"])
    os.truncate(root / "extra" / "e.tar", 2 << 30)
    discovery = find_runs([root], Stores())
    assert [run.job_id for run in discovery.runs] == ["1"]
    assert [
        (path.name, "the rest are holes" in reason)
        for path, reason in discovery.unreadable
    ] == [("e.tar", True)]


def test_too_long_chain_of_symbolic_links_is_reported_as_unreadable(
    tmp_path: Path,
) -> None:
    link_chain(tmp_path, 1200)
    discovery = find_runs([tmp_path / "1100.link"])
    assert [reason for _, reason in discovery.unreadable] == [
        "cannot be read: Too many levels of symbolic links"
    ]


def test_search_of_many_launches_needs_little_memory(tmp_path: Path) -> None:
    """A search took three times as much as its runs when it kept the drafts, and a
    dictionary, of each folder."""
    name = "pretrain_grok1_314b_fp8_512"
    launches = 300
    for number in range(launches):
        folder = (
            tmp_path / "experiments" / name / f"{name}_{1754014020 + number}" / name
        )
        folder.mkdir(parents=True)
        (folder / f"log-team-team.{name}_{1000000 + number}_0.out").touch()
    find_runs([tmp_path])  # fills the caches of names
    tracemalloc.start()
    try:
        discovery = find_runs([tmp_path])
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(discovery.runs) == launches
    assert peak < 2.4 * kept


def test_folders_sort_by_the_components_of_their_paths() -> None:
    local = ["/b", "/a/b-1", "/a-1/c", "/a b", "/a/b", "/a", "/", "."]
    folders = ["s3:/a-1", "s3:/a", *local]
    by_components = sorted(folders, key=lambda folder: Path(folder).parts)
    assert sorted(folders, key=_make_sort_text) == by_components
