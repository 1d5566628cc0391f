"""The effect of each option in a session, and errors of wrong values."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from generator import write_run
from support.accepted_recordings import accept_recordings
from support.sessions import Judge, Write

from pytest_llmbench.core.baseline_records import Baseline

GROK = "grok1_314b-25.05-gb200-bf16-128"
LLAMA = "llama3.1_8b-25.04-h100-bf16-8"


def logs(path: Path) -> str:
    return f"--llmb-logs={path}"


@pytest.mark.slow
def test_tolerance_option_overrides_ini_key_and_default(
    pytester: pytest.Pytester, judged: Judge, generated: Write
) -> None:
    folder = generated(GROK, factor=1.09, noise=0.0)
    assert judged(logs(folder), "-k", GROK).verdicts == {GROK: "REGRESSION"}
    pytester.makeini("[pytest]\nllmb_tolerance = 12%\n")
    assert judged(logs(folder), "-k", GROK).verdicts == {GROK: "PASS"}
    typed = judged(logs(folder), "-k", GROK, "--llmb-tolerance=2.5%")
    assert typed.verdicts == {GROK: "REGRESSION"}
    assert (
        "7.508 s = 7.325 s x 1.025 (tolerance 2.5 %, --llmb-tolerance)"
        in typed.messages[GROK]
    )


@pytest.mark.slow
def test_missing_configuration_is_skipped_unless_required(
    pytester: pytest.Pytester, judged: Judge, generated: Write
) -> None:
    pytester.path.joinpath("required.txt").write_text(f"# every night\n{LLAMA}\n")
    folder = generated(GROK)
    plain = judged(logs(folder))
    assert plain.ret == pytest.ExitCode.OK
    assert plain.statuses[LLAMA] == "skipped"
    required = judged(logs(folder), "--llmb-require=required.txt")
    assert required.ret == pytest.ExitCode.TESTS_FAILED
    assert [
        name for name, status in required.statuses.items() if status == "failed"
    ] == [LLAMA]
    everything = judged(logs(folder), "--llmb-require=all")
    assert list(everything.statuses.values()).count("failed") == 81


SUITE = "config: {scale: 128, repeats: 2}\nworkloads: {gb200: [{pretrain_grok1_314b: {dtypes: [bf16, fp8]}}]}\n"


@pytest.mark.slow
def test_suite_file_requires_configurations_and_numbers_of_runs(
    judged: Judge, generated: Write, pytester: pytest.Pytester
) -> None:
    pytester.path.joinpath("exemplar.yaml").write_text(SUITE)
    now = datetime.now(UTC)
    generated(LLAMA, started=now)
    folder = generated(GROK, started=now - timedelta(days=1), job_id="1")
    short = judged(logs(folder), "--llmb-require=exemplar.yaml")
    failed = [name for name, status in short.statuses.items() if status == "failed"]
    assert failed == [GROK, GROK.replace("bf16", "fp8")]
    assert (short.verdicts[GROK], short.described[GROK]["reason"]) == (
        "MISSING",
        "too-few-runs",
    )
    assert (
        "1 valid run, exemplar.yaml:2 requires 2; the newest: "
        in short.described[GROK]["text"]
    )
    chosen = (logs(folder), "-k", GROK, "--llmb-require=exemplar.yaml")
    generated(GROK, started=now - timedelta(hours=2), job_id="2")
    assert judged(*chosen).verdicts == {GROK: "PASS"}
    assert (
        judged(*chosen, "--llmb-max-age=12h").described[GROK]["reason"]
        == "too-few-runs"
    )
    generated(GROK, started=now - timedelta(hours=1), job_id="3", factor=1.2)
    assert judged(*chosen, "--llmb-max-age=90m").verdicts == {
        GROK: "REGRESSION"
    }  # too few runs never hide it


@pytest.mark.slow
def test_message_of_a_stale_configuration_names_its_last_valid_run(
    judged: Judge, generated: Write
) -> None:
    now = datetime.now(UTC)
    generated(GROK, started=now - timedelta(days=12), job_id="41")
    folder = generated(
        GROK, started=now - timedelta(days=3), job_id="42", ending="diverged"
    )
    stale = judged(
        logs(folder), "-k", GROK, f"--llmb-require={GROK}", "--llmb-max-age=2d"
    )
    outcome = stale.described[GROK]
    assert (outcome["verdict"], outcome["reason"], outcome["status"]) == (
        "MISSING",
        "too-old",
        "failed",
    )
    assert (
        "stale: the newest run is 3d old, at most 2d is allowed; last valid run 12 days ago ("
        in outcome["text"]
    )
    assert "job 41)" in outcome["text"]
    diverged = judged(logs(folder), "-k", GROK).described[GROK]
    assert diverged["verdict"] == "INVALID"
    assert "last valid run 12 days ago (" in diverged["text"]


@pytest.mark.slow
def test_terminal_groups_unmatched_runs_by_the_reason_that_nothing_was_judged(
    judged: Judge, generated: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its item, and in the summary with runs of one reason together."""
    for number in (77, 78):
        folder = generated(GROK, release="26.06.00", job_id=str(number))
    session = judged(logs(folder))
    assert session.statuses[LLAMA] == "skipped"
    output = " ".join(capsys.readouterr().out.split())
    assert (
        output.count(
            "nothing was judged: no valid run of the 82 selected configurations"
        )
        == 2
    )
    both = "pretrain_grok1_314b_bf16_128/78, pretrain_grok1_314b_bf16_128/77"
    assert (
        f"2 runs found: {both} (release 26.06.00 has no baseline; nearest {GROK}; "
        in output
    )
    assert output.count("release 26.06.00 has no baseline; nearest ") == 2


@pytest.mark.slow
def test_unmatched_run_fails_by_default_and_passes_in_list_mode(
    judged: Judge, generated: Write
) -> None:
    generated(GROK)
    folder = generated(
        GROK, release="26.06.00", job_id="77", started=datetime(2026, 7, 1, tzinfo=UTC)
    )
    session = judged(logs(folder))
    strays = [
        name for name, verdict in session.verdicts.items() if verdict == "unmatched"
    ]
    assert len(strays) == 1
    assert session.statuses[strays[0]] == "failed"
    assert "26.06" in session.messages[strays[0]]
    assert judged(logs(folder), "--llmb-unmatched=list").ret == pytest.ExitCode.OK


@pytest.mark.slow
def test_baseline_of_another_release_can_be_chosen(
    judged: Judge, generated: Write
) -> None:
    folder = generated(GROK, release="26.06.00")
    session = judged(logs(folder), "-k", GROK, "--llmb-baseline-release=25.05")
    assert session.verdicts == {GROK: "PASS"}


@pytest.mark.slow
def test_verdict_is_that_of_the_newest_run(judged: Judge, generated: Write) -> None:
    old, new = datetime(2025, 7, 1, tzinfo=UTC), datetime(2025, 7, 2, tzinfo=UTC)
    generated(GROK, factor=1.2, job_id="1", started=old)
    folder = generated(GROK, job_id="2", started=new)
    assert judged(logs(folder), "-k", GROK).verdicts == {GROK: "PASS"}
    session = judged(logs(folder), "-k", GROK, "--llmb-runs=each")
    assert session.verdicts == {f"{GROK}-1": "REGRESSION", f"{GROK}-2": "PASS"}
    late = judged(logs(folder), "-k", GROK, "--llmb-since=2025-07-03T00:00+00:00")
    assert (late.verdicts, late.ret) == (
        {GROK: "MISSING"},
        pytest.ExitCode.TESTS_FAILED,
    )


@pytest.mark.slow
def test_recorded_baseline_decides_later_sessions(
    judged: Judge, generated: Write, tmp_path: Path
) -> None:
    baselines_folder = tmp_path / "own"
    for number in (1, 2):
        folder = generated(
            GROK,
            factor=1.08,
            job_id=str(number),
            started=datetime(2025, 7, number, tzinfo=UTC),
        )
    recorded = judged(logs(folder), "-k", GROK, f"--llmb-record={baselines_folder}")
    assert (recorded.verdicts, recorded.statuses) == (
        {GROK: "RECORDED"},
        {GROK: "skipped"},
    )
    assert "from 2 valid runs (" in recorded.described[GROK]["text"]
    assert float(recorded.properties[GROK]["step_time_seconds"]) == pytest.approx(
        7.325 * 1.08, rel=5e-3
    )
    assert "bound_seconds" not in recorded.properties[GROK]
    baselines = f"--llmb-baselines={baselines_folder}"
    assert judged(logs(folder), "-k", GROK, baselines).verdicts == {GROK: "PASS"}
    assert judged(
        logs(folder), "-k", GROK, baselines, "--llmb-against=published"
    ).verdicts == {GROK: "REGRESSION"}
    session = judged(logs(folder), "-k", GROK, baselines, "--llmb-against=both")
    assert session.verdicts == {GROK: "REGRESSION"}
    assert [other["verdict"] for other in session.described[GROK]["others"]] == ["PASS"]


@pytest.mark.slow
def test_recording_beyond_the_drift_budget_needs_an_accepted_reason(
    judged: Judge, generated: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twice 2 % are written, a third time only with a reason; the nights between are
    held to the first value."""
    own, file = tmp_path / "own", tmp_path / "own" / "grok1" / "25.05.yaml"
    record, judge = f"--llmb-record={own}", f"--llmb-baselines={own}"

    def night(number: int, factor: float) -> list[str]:
        started = datetime.now(UTC) - timedelta(days=30 - number)
        folder = generated(
            GROK, factor=factor, job_id=str(number), started=started, noise=0.0
        )
        since = (
            started - timedelta(hours=1)
        ).isoformat()  # a day may begin with the night before
        return [logs(folder), "-k", GROK, "--llmb-max-age=30d", f"--llmb-since={since}"]

    for number, factor in ((1, 1.0), (2, 1.02), (3, 1.02**2)):
        session = judged(*night(number, factor), record)
        assert session.verdicts == {GROK: "RECORDED"}
    output = " ".join(capsys.readouterr().out.split())
    assert "7.472 s -> 7.621 s (+2.0 %); +4.0 % since 7.325 s of 20" in output
    before = file.read_bytes()
    chosen = night(4, 1.02**3)
    refused = judged(*chosen, record)
    assert refused.ret == pytest.ExitCode.TESTS_FAILED
    assert file.read_bytes() == before
    assert (refused.verdicts, refused.described[GROK]["reason"]) == (
        {GROK: "REGRESSION"},
        "drifted",
    )
    assert (
        "not recorded: 7.773 s is +6.1 % from 7.325 s, accepted on 20"
        in refused.described[GROK]["text"]
    )
    crept = judged(*night(5, 1.09), judge)
    assert (crept.verdicts, crept.described[GROK]["reason"]) == (
        {GROK: "REGRESSION"},
        "drifted",
    )
    accepted = (
        f"--llmb-acknowledged={accept_recordings(tmp_path, 'drift', 'driver 570')}"
    )
    moved = judged(*chosen, record, accepted, "--llmb-json=night.json")
    assert moved.verdicts == {GROK: "RECORDED"}
    cautions = json.loads(Path("night.json").read_text())["cautions"]
    text = f"drift of {GROK} is accepted: driver 570"
    assert {"code": "drift-accepted", "text": text} in cautions
    assert "reason: driver 570" in file.read_text()
    assert judged(*night(6, 1.09), judge).verdicts == {GROK: "PASS"}


@pytest.mark.slow
def test_recording_is_limited_to_the_selection(
    judged: Judge, generated: Write, tmp_path: Path
) -> None:
    old, new = (
        datetime.now(UTC) - timedelta(days=90),
        datetime.now(UTC) - timedelta(hours=5),
    )
    generated(GROK, factor=1.4, job_id="1", started=old)
    folder = generated(GROK, job_id="2", started=new, noise=0.0)
    for number, extra in enumerate(
        (["--llmb-max-age=36h"], ["--llmb-runs=each", "-k", f"{GROK}-2"])
    ):
        recorded = tmp_path / f"own{number}"
        judged(logs(folder), "-k", GROK, f"--llmb-record={recorded}", *extra)
        text = (recorded / "grok1" / "25.05.yaml").read_text()
        assert "runs: 1" in text
        assert "mean_seconds: 7.32" in text


USAGE = [
    (["--llmb-logs=nowhere"], "has no 'nowhere'"),
    (
        ["--llmb-tolerance=5%"],
        "--llmb-tolerance has no effect without runs: add --llmb-logs=PATH",
    ),
    (
        ["--llmb-logs=.", "--llmb-gpu=h10"],
        "known: b200, b300, gb200, gb300, h100 (did you mean 'h100'?)",
    ),
    (
        ["--llmb-logs=.", "--llmb-release=25.5"],
        "--llmb-release=25.5: no baseline has this value",
    ),
    (["--llmb-logs=.", "--llmb-require=grok1"], "(did you mean '*grok1*'?)"),
    (
        ["--llmb-logs=.", "--llmb-unmatched=\x1b[2Jlist"],
        r"=\x1b[2Jlist: expected fail or list",
    ),
    (
        ["--llmb-logs=.", "--llmb-max-age="],
        "--llmb-max-age= is empty: give a value, or leave the option out",
    ),
    (
        ["--llmb-logs=.", "--llmb-against= "],
        "--llmb-against= is empty: give a value, or leave the option out",
    ),
    (["--llmb-logs=.", "--llmb-drift-budget=5"], "write 5% for 5 percent"),
    (
        ["--llmb-logs=.", "--llmb-tolerence", "5%"],
        "(did you mean '--llmb-tolerance'?); see pytest --help",
    ),
    (["--llmb-logs", "."], "write --llmb-logs=. with an equals sign"),
    (
        ["--llmb-logs=.", "--llmb-record=own", "-n2"],
        "-n cannot be used with --llmb-record",
    ),
    (
        ["--llmb-logs=.", "--llmb-against=recorded"],
        "--llmb-against=recorded: no recorded baseline",
    ),
    (
        ["--llmb-logs=.", "--llmb-json=x", "--junitxml=./x"],
        "--junitxml is the same file, and one would overwrite the other",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"), USAGE, ids=[" ".join(arguments) for arguments, _ in USAGE]
)
def test_invalid_option_is_reported_before_logs_are_read(
    pytester: pytest.Pytester, arguments: list[str], message: str
) -> None:
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert message in result.stderr.str()
    assert "Traceback" not in result.stderr.str()


@pytest.mark.slow
def test_typo_in_a_baseline_names_file_and_line(
    pytester: pytest.Pytester, examples: Path
) -> None:
    pytester.mkdir("own").joinpath("mine.yaml").write_text("schema: 1\nrecipee: mine\n")
    result = pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", logs(examples), "--llmb-baselines=own"
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "mine.yaml:2" in result.stderr.str()
    assert "'recipe'" in result.stderr.str()


def contradict(folder: Path, job_id: str) -> None:
    """Let the metadata of a run say another precision than its folder."""
    (metadata,) = folder.rglob(f"llmb-config_{job_id}.yaml")
    metadata.write_text(metadata.read_text().replace("dtype: bf16", "dtype: fp8"))


@pytest.mark.slow
@pytest.mark.parametrize("selection", [("-k", GROK), ("-m", "llmb(gpus=128)")])
def test_configuration_is_invalid_if_a_newer_ambiguous_run_may_belong_to_it(
    judged: Judge, generated: Write, selection: tuple[str, ...]
) -> None:
    generated(GROK, job_id="1", started=datetime(2025, 7, 1, tzinfo=UTC))
    folder = generated(
        GROK, job_id="2", started=datetime(2025, 7, 2, tzinfo=UTC), factor=1.5
    )
    contradict(folder, "2")
    session = judged(logs(folder), *selection)
    assert (session.described[GROK]["verdict"], session.described[GROK]["reason"]) == (
        "INVALID",
        "ambiguous",
    )
    assert session.statuses[GROK] == "failed"
    assert judged(logs(folder), "-k", GROK, "--llmb-unmatched=list").verdicts == {
        GROK: "PASS"
    }


@pytest.mark.slow
@pytest.mark.parametrize("stray", ["loose", "profiled"])
def test_unidentifiable_run_does_not_invalidate_other_runs(
    judged: Judge, generated: Write, stray: str
) -> None:
    folder = generated(GROK, job_id="1", started=datetime(2025, 7, 1, tzinfo=UTC))
    (log,) = folder.rglob("log-*_1_0.out")
    (folder / "scratch").mkdir()
    if stray == "loose":
        lines = [
            line for line in log.read_text().splitlines() if "Training epoch" in line
        ][:3]
        (folder / "scratch" / "try.log").write_text("\n".join(lines) + "\n")
    else:
        generated(
            GROK, job_id="2", started=datetime(2025, 7, 2, tzinfo=UTC), profiled=True
        )
        contradict(folder, "2")
    assert judged(logs(folder), "-k", GROK).verdicts[GROK] == "PASS"


@pytest.mark.slow
def test_copy_of_an_old_run_is_not_a_new_run(
    judged: Judge, generated: Write, baselines: dict[str, Baseline]
) -> None:
    maxtext = "maxtext_llama2_70b-24.11-h100-bf16-64"
    folder = generated(maxtext, job_id="1", started=datetime(2025, 7, 1, tzinfo=UTC))
    shutil.copytree(
        folder / "results", folder / "backup" / "results", copy_function=shutil.copyfile
    )
    write_run(
        folder,
        baselines[maxtext],
        job_id="2",
        started=datetime(2025, 8, 1, tzinfo=UTC),
        factor=1.3,
    )
    assert judged(logs(folder), "-k", maxtext).verdicts == {maxtext: "REGRESSION"}


@pytest.mark.slow
def test_required_configuration_with_only_profiled_runs_fails(
    judged: Judge, generated: Write
) -> None:
    generated(LLAMA)
    folder = generated(GROK, profiled=True)
    for mode in ("newest", "each"):
        session = judged(logs(folder), f"--llmb-require={GROK}", f"--llmb-runs={mode}")
        assert [
            name[: len(GROK)]
            for name, status in session.statuses.items()
            if status == "failed"
        ] == [GROK]


@pytest.mark.slow
def test_measurement_fixture_errors_for_a_run_beyond_max_age(
    pytester: pytest.Pytester, generated: Write
) -> None:
    pytester.makepyfile(test_mine="def test_it(llmb_measurement): pass")
    folder = generated(GROK, started=datetime.now(UTC) - timedelta(days=60))
    result = pytester.runpytest_inprocess(
        "-p",
        "no:cacheprovider",
        "test_mine.py",
        logs(folder),
        "-k",
        GROK,
        "--llmb-max-age=36h",
    )
    result.assert_outcomes(errors=1, deselected=81)


def pack(folder: Path, job_id: str) -> None:
    """Compress the log of a job in place."""
    (log,) = folder.rglob(f"log-*_{job_id}_0.out")
    log.with_name(f"{log.name}.gz").write_bytes(gzip.compress(log.read_bytes()))
    log.unlink()


def cut(folder: Path, job_id: str) -> None:
    """Leave the beginning of a job's log, compressed."""
    pack(folder, job_id)
    (log,) = folder.rglob(f"log-*_{job_id}_0.out.gz")
    log.write_bytes(log.read_bytes()[:-2000])


def lose(folder: Path, job_id: str) -> None:
    """Leave only the metadata of a job."""
    (log,) = folder.rglob(f"log-*_{job_id}_0.out")
    log.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("spoil", [cut, lose])
def test_newest_run_without_a_log_is_invalid_despite_reused_job_id(
    judged: Judge,
    tmp_path: Path,
    baselines: dict[str, Baseline],
    spoil: Callable[[Path, str], None],
) -> None:
    """Two clusters number their jobs alike."""
    old, new = (
        datetime.now(UTC) - timedelta(days=30),
        datetime.now(UTC) - timedelta(hours=9),
    )
    write_run(tmp_path / "a", baselines[GROK], job_id="1001", started=old)
    write_run(tmp_path / "b", baselines[GROK], job_id="1001", started=new)
    spoil(tmp_path / "b", "1001")
    assert judged(logs(tmp_path), "-k", GROK).verdicts == {GROK: "INVALID"}


@pytest.mark.slow
def test_newer_ambiguous_run_with_an_empty_attempt_log_is_invalid(
    judged: Judge, generated: Write
) -> None:
    generated(GROK, job_id="1", started=datetime(2025, 7, 1, tzinfo=UTC))
    folder = generated(
        GROK, job_id="2", started=datetime(2025, 7, 2, tzinfo=UTC), factor=1.5
    )
    for log in list(folder.rglob("log-*_0.out")):
        log.with_name(log.name.replace("_0.out", "_1.out")).touch()
    contradict(folder, "2")
    assert judged(logs(folder), "-k", GROK).verdicts[GROK] == "INVALID"


@pytest.mark.slow
def test_recording_skips_configurations_with_invalid_newest_run(
    judged: Judge, generated: Write, tmp_path: Path
) -> None:
    generated(LLAMA)
    generated(GROK, job_id="1", started=datetime(2025, 7, 1, tzinfo=UTC), factor=1.3)
    folder = generated(
        GROK, job_id="2", started=datetime(2025, 7, 2, tzinfo=UTC), ending="diverged"
    )
    recorded = tmp_path / "own"
    session = judged(logs(folder), f"--llmb-record={recorded}")
    assert session.statuses[GROK] == "failed"
    assert [path.parent.name for path in recorded.rglob("*.yaml")] == ["llama3.1"]
