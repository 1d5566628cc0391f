"""Finding runs: jobs and attempts, what is left out and why, and whatever a file system can hold."""

from __future__ import annotations

import errno
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from discover.conftest import Tree
from shared_data import shared

from pytest_llmbench.discover.find import find_runs
from pytest_llmbench.models import Discovery, FoundRun, Reason

NAME = "pretrain_grok1_314b_bf16_256"
INNER = f"{NAME}/{NAME}_1744407969/{NAME}"
LOG = f"experiments/{INNER}/log-a-b.{NAME}_388660_0.out"


def found(root: Path) -> dict[str, list[str]]:
    """The logs of each run by its id."""
    return {run.id: [attempt.log.name for attempt in run.attempts] for run in find_runs([root]).runs}


def only(discovery: Discovery) -> FoundRun:
    (run,) = discovery.runs
    return run


def reasons(discovery: Discovery) -> dict[str, str]:
    return {path.name: why for path, why in discovery.ignored}


def metadata(**sections: dict[str, object]) -> str:
    return "\n".join(f"{name}: {values}" for name, values in sections.items())


# --- jobs and attempts ------------------------------------------------------------------------------------


def test_restarts_are_attempts_of_one_run_in_their_order(tree: Tree) -> None:
    logs = [f"experiments/{INNER}/log-a-b.{NAME}_388660_{restart}.out" for restart in (0, 2, 10)]
    run = only(find_runs([tree(reversed(logs))]))
    assert run.job_id == "388660"
    assert [(attempt.number, attempt.log.name) for attempt in run.attempts] == [
        (number, Path(log).name) for number, log in zip((0, 2, 10), logs, strict=True)
    ]


def test_jobs_of_one_folder_are_runs_of_their_own_with_their_own_metadata(tree: Tree) -> None:
    folder = "results/24.11/bf16/314b/512"
    root = tree(
        {
            f"{folder}/log-nemo_grok1_314b_512_41.out": "",
            f"{folder}/log-nemo_grok1_314b_512_41.err": "",
            f"{folder}/log-nemo_grok1_314b_512_7.out": "",
            f"{folder}/llmb-config_41.yaml": metadata(model_info={"gpu_type": "h200"}),
        }
    )
    first, second = find_runs([root]).runs
    assert [run.job_id for run in (first, second)] == ["7", "41"]
    assert first.metadata is None
    assert first.attempts[0].err is None
    assert second.metadata == root / folder / "llmb-config_41.yaml"
    assert second.attempts[0].err == root / folder / "log-nemo_grok1_314b_512_41.err"
    assert "h200" in {clue.value for clue in second.clues}
    assert "h200" not in {clue.value for clue in first.clues}


def test_slurms_own_output_is_the_log_only_where_the_job_has_no_other(tree: Tree) -> None:
    root = tree(["a/slurm-8.out", "a/log-x_8_0.out", "b/slurm-4.out", "b/slurm-4.err", "c/slurm-5_1.out"])
    runs = find_runs([root]).runs
    assert [[(one.log.name, one.err and one.err.name) for one in run.attempts] for run in runs] == [
        [("log-x_8_0.out", "slurm-8.out")],
        [("slurm-4.out", "slurm-4.err")],
        [("slurm-5_1.out", None)],
    ]


def test_slurms_own_output_of_a_requeued_job_belongs_to_no_attempt(tree: Tree) -> None:
    discovery = find_runs([tree(["slurm-8.out", "log-x_8_0.out", "log-x_8_1.out"])])
    assert [attempt.err for attempt in only(discovery).attempts] == [None, None]
    assert reasons(discovery) == {"slurm-8.out": "the log of job 8 stands beside it"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("sbatch_a-b.x_8.out", "the launcher's second copy of a job's output"),
        ("sbatch_allocation_8.out", "the launcher's second copy of a job's output"),
        ("nsys_x.log", "a profiler's output"),
        ("import_ckpt_llama3.1_8b_bf16_8.out", "a checkpoint import, no training"),
        ("log-a-b.import_ckpt_llama3.1_8b_bf16_8_12_0.out", "a checkpoint import, no training"),
        ("log-prepare_dataset_12_0.out", "a preparation, no training"),
        ("git-info.log", "written by the framework beside its log"),
        ("notes.txt", "not read, by its name; give the file itself to read it as a log"),
        ("log-x_8_0.out.gz", "not read, by its name; give the file itself to read it as a log"),
        ("log-y_9_0.err", "standard error without a log beside it"),
        ("llmb-config_9.yaml", "no log of its job stands beside it"),
    ],
)
def test_files_that_are_no_runs_are_named_with_the_reason(tree: Tree, name: str, reason: str) -> None:
    discovery = find_runs([tree(["log-x_8_0.out", name])])
    assert only(discovery).job_id == "8"
    assert reasons(discovery) == {name: reason}


def test_an_account_may_be_called_like_a_skipped_task(tree: Tree) -> None:
    name = f"log-prepare_team-team.{NAME}_8_0.out"
    assert only(find_runs([tree([name])])).attempts[0].log.name == name


def test_folders_without_logs_are_not_read_unless_given(tree: Tree) -> None:
    closed = ("configs", "code", "checkpoints", "nsys_profile", ".git")
    root = tree(["log-x_8_0.out", *(f"{name}/inner/log-y_9_0.out" for name in closed), "configs/log-z_7_0.out"])
    discovery = find_runs([root])
    assert only(discovery).job_id == "8"
    assert reasons(discovery) == {"configs": "by its name a folder without logs; to read it, give its own path"}
    assert [run.job_id for run in find_runs([root / "code"]).runs] == ["9"]


def test_two_logs_that_claim_to_be_one_attempt_are_two_runs(tree: Tree) -> None:
    assert len(find_runs([tree(["log-x_12.out", "log-x_12_0.out"])]).runs) == 2


@pytest.mark.parametrize(
    ("files", "log", "err"),
    [
        (("combined.log", "stdout.log", "stderr.log"), "combined.log", None),
        (("stdout.log", "stderr.log"), "stdout.log", "stderr.log"),
        (("stderr.log",), "stderr.log", None),
    ],
)
def test_a_local_executors_run_is_its_combined_log(
    tree: Tree, files: tuple[str, ...], log: str, err: str | None
) -> None:
    folder = f"experiments/{NAME}/{NAME}_1744407969/{NAME}/nemo_run/job-x1/{NAME}"
    run = only(find_runs([tree([f"{folder}/{rank}/{name}" for name in files for rank in (0, 1)])]))
    attempt = run.attempts[0]
    assert (attempt.log.name, attempt.err and attempt.err.name, attempt.log.parent.name) == (log, err, "0")
    assert run.job_id == "job-x1"
    assert ("gpus", "256") in {(clue.field, clue.value) for clue in run.clues}


def test_a_file_of_another_name_speaks_for_itself_beside_a_launchers_log(tree: Tree) -> None:
    """A stray file must not stand in for the run whose folder it lies in."""
    other = LOG.replace(Path(LOG).name, "hydra.log")
    runs = {run.attempts[0].log.name: run for run in find_runs([tree([LOG, other])]).runs}
    assert runs["hydra.log"].clues == ()
    assert runs["hydra.log"].layout == ""
    assert len(runs[Path(LOG).name].clues) == 4


def test_a_file_of_another_name_alone_in_a_runs_folder_is_that_run(tree: Tree) -> None:
    run = only(find_runs([tree(["results/24.11/bf16/314b/512/tuesday.out"])]))
    assert {clue.field for clue in run.clues} == {"release", "dtype", "size", "gpus"}
    deeper = only(find_runs([tree(["results/24.11/bf16/314b/512/wandb/debug.log"])]))
    assert {clue.field for clue in deeper.clues} == {"release"}


# --- paths ------------------------------------------------------------------------------------------------


def test_overlapping_paths_yield_each_run_once_in_the_same_order(tree: Tree) -> None:
    root = tree([LOG, "log-x_8_0.out"])
    expected = find_runs([root]).runs
    assert len(expected) == 2
    for paths in ([root, root], [root / LOG, root], [root / "experiments", root], [root, root / LOG]):
        assert find_runs(paths).runs == expected


def test_a_given_file_is_a_log_whatever_its_name(tree: Tree) -> None:
    root = tree([LOG, "sbatch_x.out", "notes.txt", "slurm-8.out", "log-x_8_0.out", "code/a.out"])
    for name in ("sbatch_x.out", "notes.txt", "slurm-8.out", "code/a.out"):
        discovery = find_runs([root / name])
        assert only(discovery).attempts[0].log == root / name
        assert (discovery.ignored, discovery.unreadable) == ((), ())
    everything = find_runs([root, root / "notes.txt"]).runs
    assert {"notes.txt", "log-x_8_0.out", Path(LOG).name} == {run.attempts[0].log.name for run in everything}


def test_a_given_file_keeps_its_neighbours_as_evidence(tree: Tree) -> None:
    folder = Path(LOG).parent
    root = tree(
        {
            LOG: "",
            f"{folder}/log-a-b.{NAME}_388660_0.err": "",
            f"{folder}/llmb-config_388660.yaml": metadata(workload_info={"gsw_version": "25.05.04"}),
            f"{folder}/nsys_profile/grok1-314b-bf16_256g_388660_0_0.nsys-rep": "",
        }
    )
    run = only(find_runs([root / LOG]))
    assert run.attempts[0].err is not None
    assert ("release", "25.05.04") in {(clue.field, clue.value) for clue in run.clues}
    assert run.excluded is Reason.PROFILED
    assert run.layout == "experiments"


def test_a_relative_path_has_the_clues_of_its_parents(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree([LOG])
    monkeypatch.chdir((root / LOG).parent)
    run = only(find_runs([Path(Path(LOG).name)]))
    assert run == only(find_runs([root / LOG]))
    assert len(run.clues) == 4


def test_a_missing_path_and_an_unreadable_folder_are_reported(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_links_are_followed_once_and_a_run_keeps_the_names_of_its_real_folders(tree: Tree) -> None:
    root, elsewhere = tree([LOG]), tree(["far/log-y_9_0.out"])
    (root / "a_link").symlink_to(root / "experiments")
    (root / "experiments" / "loop").symlink_to(root)
    (root / "outside").symlink_to(elsewhere)
    (root / "latest.out").symlink_to(root / LOG)
    discovery = find_runs([root])
    assert [run.attempts[0].log for run in discovery.runs] == [root / LOG, root / "outside/far/log-y_9_0.out"]
    assert reasons(discovery) == {
        "a_link": "a link to a folder that is read already",
        "loop": "a link to a folder that is read already",
        "latest.out": f"another name of {root / LOG}",
    }
    assert discovery.unreadable == ()
    assert only(find_runs([root / "latest.out"])).attempts[0].log.name == "latest.out"


def test_a_given_link_comes_after_the_real_folder(tree: Tree) -> None:
    link, root = tree([]) / "nightly", tree([LOG])
    link.symlink_to(root / "experiments" / NAME)
    assert only(find_runs([link, root / "experiments"])).attempts[0].log == root / LOG
    assert only(find_runs([link])).attempts[0].log.parts[: len(link.parts)] == link.parts


def test_a_hard_link_is_no_second_run(tree: Tree) -> None:
    root = tree([LOG])
    (root / "snapshot.out").hardlink_to(root / LOG)
    assert only(find_runs([root])).attempts[0].log == root / LOG


def test_broken_links_and_special_files_are_reported(tree: Tree) -> None:
    root = tree(["log-x_8_0.out"])
    (root / "gone.out").symlink_to(root / "nowhere")
    (root / "current").symlink_to(root / "nowhere")
    (root / "self").symlink_to(root / "self")
    os.mkfifo(root / "pipe.out")
    discovery = find_runs([root])
    assert only(discovery).job_id == "8"
    assert [path.name for path, _ in discovery.unreadable] == ["gone.out"]
    assert {"current", "self", "pipe.out"} == set(reasons(discovery))


@pytest.mark.parametrize("part", ["with space", "ünïcode-日本", "new\nline", "semi;colon'\"", "[brackets]::", "-dash"])
def test_names_of_any_characters_are_read(tree: Tree, part: str) -> None:
    root = tree([f"{part}/{LOG}", f"{part}/{part}.out"])
    runs = find_runs([root]).runs
    assert {run.attempts[0].log for run in runs} == {root / part / LOG, root / part / f"{part}.out"}
    for run in runs:
        assert run.id.isprintable()
        assert not set(" \n[]:'\"") & set(run.id)


def test_a_name_that_is_no_text_is_read(tree: Tree) -> None:
    root = tree([])
    Path(os.fsdecode(os.fsencode(root) + b"/log-\xff_8_0.out")).touch()
    assert only(find_runs([root])).job_id == "8"


def test_ten_thousand_files_take_seconds(tree: Tree) -> None:
    root = tree([])
    for number in range(1000):
        folder = root / "experiments" / NAME / f"{NAME}_{1744400000 + number}" / NAME
        folder.mkdir(parents=True)
        (folder / f"log-a-b.{NAME}_{number}_0.out").touch()
        for other in range(9):
            (folder / f"rank_{other}.py").touch()
    start = time.perf_counter()
    assert len(find_runs([root]).runs) == 1000
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("gb200-cluster/25.08/results/24.11/bf16/314b/512/log-nemo_grok1_314b_512_7.out", {"gpu": "gb200"}),
        (f"gb200-cluster/h100/25.08/{LOG}", {"gpu": "h100", "release": "25.08"}),
        (f"gb200-cluster/experiments/{NAME}_h100/log-x_7_0.out", {"gpu": "h100"}),
        ("gb200-cluster/25.08/results/24.11-nccl-trace/bf16/314b/512/log-nemo_grok1_314b_512_7.out", {"gpu": "gb200"}),
        (LOG, {}),
    ],
)
def test_the_surroundings_speak_where_nothing_else_does(tree: Tree, path: str, expected: dict[str, str]) -> None:
    """A run on another GPU must not be taken for the only GPU that has a baseline."""
    run = only(find_runs([tree([path])]))
    said = [(clue.field, clue.value) for clue in run.clues if clue.field in ("gpu", "release")]
    assert dict(said) == {**({"release": "24.11"} if "24.11" in path else {}), **expected}
    assert len(said) == len(dict(said))


# --- ids --------------------------------------------------------------------------------------------------


def test_ids_are_short_unique_and_without_the_machines_paths(tree: Tree) -> None:
    root = tree(
        [
            LOG,
            f"workloads/pretrain_grok1/experiments/{INNER}/log-a-b.{NAME}_388660_0.out",
            "results/24.11/bf16/70b/64/log-maxtext-64_70b_1407993.out",
            "a.out",
            "a.log",
        ]
    )
    assert set(found(root / "experiments")) == {f"{NAME}/388660"}
    ids = list(found(root))
    assert len(set(ids)) == len(ids) == 5
    assert not [identifier for identifier in ids if str(root.parent) in identifier]
    assert [identifier.removeprefix(root.name) for identifier in ids] == [
        "/a/a/~1",
        "/a/a/~2",
        f"/{NAME}/388660/log-a-b.{NAME}_388660_0/~3",
        "/24.11/bf16/70b/64/maxtext-64_70b_1407993",
        f"/{NAME}/388660/log-a-b.{NAME}_388660_0/~5",
    ]


# --- evidence and time ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([LOG], None),
        ([f"profile-results/nsys/{LOG}"], None),
        ([f"x_nsys/nccltrace/{LOG}"], None),
        ([LOG, f"experiments/{INNER}/nsys_profile/profile_7.nsys-rep"], Reason.PROFILED),
        ([LOG, f"experiments/{INNER}/nsys_profile/g-314b-bf16_256g_388660_0_3.nsys-rep"], Reason.PROFILED),
        ([LOG, f"experiments/{INNER}/g-314b-bf16_256g_388660_0_3.nsys-rep"], Reason.PROFILED),
        ([LOG, f"experiments/{INNER}/nsys_profile/g-314b-bf16_256g_7_388660_3.nsys-rep"], None),
        ([LOG.replace(f"/{NAME}/log", f"/{NAME}_nsys/log")], Reason.PROFILED),
        ([LOG.replace(f"/{NAME}/log", f"/{NAME}_nccltrace/log")], Reason.TRACED),
        (["results/25.01-nccl-trace/bf16/314b/512/log-nemo_grok1_314b_512_7.out"], Reason.TRACED),
        ([f"log-a-b.{NAME}_nsys_7_0.out"], Reason.PROFILED),
        ([f"log-a-b.{NAME}_nccltrace_7_0.out"], Reason.TRACED),
    ],
)
def test_a_run_is_excluded_by_positive_evidence_of_its_own(
    tree: Tree, files: list[str], expected: Reason | None
) -> None:
    run = only(find_runs([tree(files)]))
    assert run.excluded == expected
    assert bool(run.excluded_because) is (expected is not None)


def test_a_report_without_a_job_id_is_nobodys_where_runs_share_a_folder(tree: Tree) -> None:
    reports = ["profile_0.nsys-rep", "g-8b-bf16_8g_9_0_0.nsys-rep"]
    runs = find_runs([tree(["log-x_8_0.out", "log-x_9_0.out", *reports])]).runs
    assert {run.job_id: run.excluded for run in runs} == {"8": None, "9": Reason.PROFILED}


def test_broken_metadata_is_reported_and_the_run_is_known_by_its_names(tree: Tree) -> None:
    root = tree({LOG: "", f"{Path(LOG).parent}/llmb-config_388660.yaml": "model_info: [1"})
    discovery = find_runs([root])
    run = only(discovery)
    assert (run.metadata, len(run.clues)) == (None, 4)
    assert [(path.name, why[:14]) for path, why in discovery.unreadable] == [
        ("llmb-config_388660.yaml", "not valid YAML")
    ]


def test_metadata_belongs_to_the_only_run_that_has_no_job_id(tree: Tree) -> None:
    release = metadata(workload_info={"gsw_version": "25.05.04"})
    root = tree({f"{INNER}/log-{NAME}.out": "", f"{INNER}/llmb-config_5.yaml": release})
    run = only(find_runs([root]))
    assert (run.job_id, run.metadata) == ("5", root / INNER / "llmb-config_5.yaml")
    (root / INNER / "log-other.out").touch()
    assert [run.metadata for run in find_runs([root]).runs] == [None, None]


@pytest.mark.parametrize(
    ("launch_time", "folder", "expected", "source"),
    [
        ("2025-04-11T20:00:00+00:00", f"{NAME}_1744407969", datetime(2025, 4, 11, 20, tzinfo=UTC), "the launch time"),
        ("", f"{NAME}_1744407969", datetime(2025, 4, 11, 21, 46, 9, tzinfo=UTC), "the name of folder"),
        ("", NAME, None, ""),
    ],
)
def test_a_run_started_when_metadata_or_its_folder_say(
    tree: Tree, launch_time: str, folder: str, expected: datetime | None, source: str
) -> None:
    text = metadata(job_info={"launch_time": launch_time})
    root = tree({f"{NAME}/{folder}/log-x_8_0.out": "", f"{NAME}/{folder}/llmb-config_8.yaml": text})
    os.utime(root / NAME / folder / "log-x_8_0.out", (1744500000, 1744500000))
    run = only(find_runs([root]))
    assert run.started == expected
    assert run.started_from.startswith(source)
    assert bool(run.started_from) is bool(source)
    assert run.modified == datetime.fromtimestamp(1744500000, UTC)


# --- a real tree ------------------------------------------------------------------------------------------


def test_the_tree_of_a_real_launcher() -> None:
    root = shared("logs/llmb_install")
    discovery = find_runs([root])
    assert discovery.unreadable == ()
    assert {run.job_id: (run.attempts[0].log.name, run.layout) for run in discovery.runs} == {
        **{job: (f"log-fakecfg_{job}_0.out", "workloads") for job in ("3", "5", "6", "7", "8", "11")},
        "2": ("log-root-root.pretrain_faketrain_8b_bf16_2nodes_2_0.out", "workloads"),
        "15": ("log-root-root.pretrain_faketrain_8b_bf16_1nodes_15_0.out", "workloads"),
        "4": ("slurm-4.out", "workloads"),
        "19": ("log-realtitan_19_0.out", "workloads"),
    }
    assert {why for _, why in discovery.ignored} == {"the launcher's second copy of a job's output"}
    for run in discovery.runs:
        said = {clue.field: clue.value for clue in run.clues}
        assert {"recipe", "size", "dtype", "gpus", "gpu", "release"} <= set(said)
        assert len(run.attempts) == 1
        assert run.started is not None
        assert run.started.date().isoformat() == "2026-11-20"
        assert run.excluded is None
