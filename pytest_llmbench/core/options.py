"""Declare the command line options and ini keys.

Each row gives an option's flag, metavar, help, ini key, default, converter and
documentation page. Pytest's options, `llmbench replay`, docs/reference/options.md and the
settings are made from these rows. `session.settings.Settings` and
`launch.launch_settings.LaunchSettings` inherit the fields and add derived ones.

Pytest imports this module in every session, even if the plugin is idle. Therefore it
loads only modules of the standard library that pytest loads as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_llmbench.core.option import (
    Option,
    OptionRecord,
    declare,
    find_cluster,
    find_file,
    find_journal,
    find_output,
    find_page,
    list_folders,
    list_patterns,
    list_rows,
    list_tolerances,
    name_destination,
    parse_age,
    parse_checks,
    parse_count,
    parse_hours,
    parse_nodes,
    parse_percentage,
    parse_repeats,
    parse_retries,
    parse_stall_limit,
    parse_timestamp,
    parse_window,
)

if TYPE_CHECKING:
    from datetime import datetime, timedelta
    from pathlib import Path

    from pytest_llmbench.core.baseline_records import Tolerance
    from pytest_llmbench.core.job_records import PreflightCheck
    from pytest_llmbench.core.stall_limits import StallLimits


class SessionOptions(OptionRecord):
    """Options of every session."""

    log_paths: tuple[str, ...] = declare(
        "--llmb-logs=PATH",
        "Judge the runs in this file, folder, archive or URL; - reads standard input; may be repeated",
        repeats=True,
        more="inputs.md",
    )
    baselines: tuple[Path, ...] = declare(
        "--llmb-baselines=DIR",
        "Add the baseline files in this folder to the shipped ones; may be repeated",
        repeats=True,
        ini="paths",
        find=list_folders,
        more="baseline-files.md",
    )
    tolerances: tuple[Tolerance, ...] = declare(
        "--llmb-tolerance=TOL",
        "Allow a run to be this much slower than its baseline: 5%%, 0.025, perf:5%%, mfu:3%%, or several separated by commas",
        shown="the baseline's, else 5%%",
        ini="string",
        find=list_tolerances,
        unset=(),
        more="baseline-files.md#tolerances",
    )
    inconclusive: str = declare(
        "--llmb-inconclusive=MODE",
        "Choose the result of runs that are too noisy to decide: literal (pass if the measured value is within the limit), fail or skip",
        choices=("literal", "fail", "skip"),
        default="literal",
        ini="string",
        more="verdicts.md",
    )
    improvement: str = declare(
        "--llmb-improvement=MODE",
        "Choose whether runs that are faster than their baseline by more than the tolerance pass or fail",
        choices=("pass", "fail"),
        default="pass",
        shown="pass, up to 15%%",
        ini="string",
        more="../explanation/verdict.md#implausibly-fast",
    )
    scaling: str = declare(
        "--llmb-scaling=MODE",
        "Report or fail a weak scaling or FP8 speed-up that is worse than documented",
        choices=("report", "fail"),
        default="report",
        ini="string",
        more="../explanation/verdict.md#several-configurations",
    )
    trend: str = declare(
        "--llmb-trend=MODE",
        "Report or fail a configuration that slowed down over the days, unless the change is acknowledged",
        choices=("report", "fail"),
        default="report",
        ini="string",
        more="../explanation/verdict.md#changes-over-the-days",
    )
    acknowledged: Path | None = declare(
        "--llmb-acknowledged=FILE",
        "Read the accepted changes of step time from this file; each entry has a reason, a name and an expiry date",
        ini="paths",
        find=find_file,
        more="../how-to/accept-a-change.md",
    )
    repeat_window: timedelta | None = declare(
        "llmb_repeat_window=AGE",
        "Treat runs of one build as repeats if they started within this time of the newest one: 2h, or 0",
        shown="0, none",
        ini="string",
        parse=parse_window,
        more="../explanation/verdict.md#more-than-one-run",
    )
    assumed_cv: float = declare(
        "llmb_assumed_cv=PERCENT",
        "Assume this run-to-run variation if none was measured, at most 50%%",
        default="1%",
        ini="string",
        parse=parse_percentage,
        more="../explanation/verdict.md#what-is-assumed",
    )
    certify: bool = declare(
        "--llmb-certify",
        "Certify: fail inconclusive and missing configurations, and require at "
        "least 95%% of the published performance",
        more="baseline-files.md#tolerances",
    )
    selftest: bool = declare(
        "--llmb-selftest",
        "Test the gate: damage copies of the passed runs and fail if a damaged copy still passes",
        more="../how-to/judge-a-folder.md#check-that-the-gate-works",
    )
    require: tuple[str, ...] = declare(
        "--llmb-require=WHAT",
        "Fail a configuration that has no valid run: an id, a pattern, a file of "
        "patterns, a suite file of llmb-run (exemplar.yaml), or all; may be repeated",
        repeats=True,
        ini="args",
        find=list_patterns,
        more="selection.md#suite-files",
    )
    unmatched: str = declare(
        "--llmb-unmatched=MODE",
        "Fail or only list runs that match no baseline",
        choices=("fail", "list"),
        default="fail",
        ini="string",
    )
    release: str = declare(
        "--llmb-release=RELEASE",
        "Assume this release, such as 25.05, for runs that do not state their own",
        ini="string",
        unset="",
        more="layouts.md#how-a-run-gets-its-configuration",
    )
    gpu: str = declare(
        "--llmb-gpu=TYPE",
        "Assume this GPU type, such as h100, for runs that do not state their own",
        ini="string",
        parse=str.lower,
        unset="",
        more="layouts.md#how-a-run-gets-its-configuration",
    )
    runs: str = declare(
        "--llmb-runs=WHICH",
        "Judge only the newest run of each configuration, or each run in its own test item: newest or each",
        choices=("newest", "each"),
        default="newest",
        more="verdicts.md",
    )
    since: datetime | None = declare(
        "--llmb-since=DATE",
        "Do not judge runs that started before this date: 2025-11-20 or 2025-11-20T06:00",
        parse=parse_timestamp,
    )
    max_age: timedelta | None = declare(
        "--llmb-max-age=AGE",
        "Count a configuration as missing if its newest run is older than this: 90m, 20h, 7d",
        ini="string",
        parse=parse_age,
        more="history.md",
    )
    against: str = declare(
        "--llmb-against=KIND",
        "Judge against these baselines if a configuration has both kinds: recorded, published or both",
        choices=("recorded", "published", "both"),
        shown="recorded",
        ini="string",
        unset="",
    )
    timed: str = declare(
        "--llmb-timed=WHICH",
        "Judge the steps of the baseline's window, or the steps that its document timed: "
        "window or document. `document` is often a single step; use it only to compare "
        "with the document's tables",
        choices=("window", "document"),
        default="window",
        ini="string",
        more="../explanation/verdict.md#what-the-documents-timed",
    )
    baseline_release: str = declare(
        "--llmb-baseline-release=RELEASE",
        "Judge all runs against the baselines of this release, whatever their own release is",
        ini="string",
        unset="",
        more="layouts.md#how-a-run-gets-its-configuration",
    )
    record: Path | None = declare(
        "--llmb-record=DIR",
        "Write recorded baselines from the valid runs to this folder instead of judging them",
        find=find_output,
        more="../how-to/record-your-own-runs.md#record-on-several-days",
    )
    drift_budget: float | None = declare(
        "--llmb-drift-budget=PERCENT",
        "Limit how much slower recorded baselines may become in total, at most 50%%",
        shown="the baseline file's, else 5%%",
        ini="string",
        parse=parse_percentage,
        more="recorded-baselines.md#drift",
    )
    no_cache: bool = declare(
        "--llmb-no-cache",
        "Read every log again, even if it did not change since it was last read",
        ini="bool",
        more="inputs.md",
    )
    json: Path | None = declare(
        "--llmb-json=FILE",
        "Write the session and all outcomes to this file as one JSON document",
        find=find_output,
        more="json.md",
    )
    github: str = declare(
        "--llmb-github=MODE",
        "In a GitHub Actions job, write a job summary and annotate failures: auto or off",
        choices=("auto", "off"),
        default="auto",
        ini="string",
        more="../how-to/run-every-night.md",
    )
    history_url: str = declare(
        "--llmb-history=URL",
        "Store all verdicts in this database, and learn the noise from its earlier "
        "runs: a file such as history.db, sqlite:///history.db or "
        "postgresql://user@host/database",
        ini="string",
        unset="",
        more="history.md",
    )
    junit: Path | None = declare(
        "--llmb-junit=FILE",
        "Write a JUnit report with one test suite for each recipe, GPU type and precision",
        find=find_output,
        more="junit.md",
    )
    html: Path | None = declare(
        "--llmb-html=FILE",
        "Write an HTML page with a table, charts and the logs of failed runs",
        find=find_page,
        more="html.md",
    )


class LaunchOptions(OptionRecord):
    """Options of a launch; they require one of the options in LAUNCHING."""

    launch: bool = declare(
        "--llmb-launch",
        "Launch the selected configurations, wait for their jobs and judge the runs",
        more="../how-to/launch.md",
    )
    dry_run: bool = declare(
        "--llmb-dry-run",
        "Print the jobs that --llmb-launch would submit and the problems it would meet; submit nothing",
    )
    submit_only: bool = declare(
        "--llmb-submit-only",
        "Submit the jobs and exit; --llmb-collect follows and judges them later",
    )
    collect: bool = declare(
        "--llmb-collect",
        "Follow and judge the jobs of an earlier session; submit nothing",
    )
    resume: bool = declare(
        "--llmb-resume",
        "Continue an interrupted session; no job is submitted twice",
    )
    session: str = declare(
        "--llmb-session=ID",
        "Collect or resume this session",
        shown="the newest unfinished session",
        unset="",
    )
    journal: Path | None = declare(
        "--llmb-journal=DIR",
        "Record sessions and their jobs in this folder",
        shown=".llmbench in the current folder",
        ini="paths",
        find=find_journal,
        more="journal.md",
    )
    cluster: Path | None = declare(
        "--llmb-cluster=FILE",
        "Read the description of the cluster and its recipes from this cluster.yaml, or from llmb-run's cluster_config.yaml",
        shown="cluster.yaml in the current folder, if it exists",
        ini="paths",
        find=find_cluster,
        more="cluster.md",
    )
    launcher: str = declare(
        "--llmb-launcher=NAME",
        "Start jobs with sbatch, script, llmb-run, local, or a launch command that a baseline file names",
        shown="the recipe's",
        ini="string",
        unset="",
    )
    gpu_hours: float | None = declare(
        "--llmb-gpu-hours=N",
        "Limit the GPU-hours that one session may use",
        shown="the cluster file's, else 50",
        ini="string",
        parse=parse_hours,
    )
    exclude: str = declare(
        "--llmb-exclude=NODES",
        "Keep all jobs off these nodes, in addition to those that the cluster file excludes: n7,n[12-14]",
        parse=parse_nodes,
        unset="",
        more="cluster.md",
    )
    nodelist: str = declare(
        "--llmb-nodelist=NODES",
        "Run every job on these nodes: n[1-4]",
        shown="the cluster file's",
        parse=parse_nodes,
        unset="",
        more="cluster.md",
    )
    ignored: tuple[PreflightCheck, ...] = declare(
        "--llmb-ignore=CHECKS",
        "Launch despite the problems that these preflight checks found: "
        "python-version,image (each problem is printed with its check's name)",
        parse=parse_checks,
        unset=(),
        more="../how-to/launch.md#check-before-you-submit",
    )
    max_jobs: int = declare(
        "--llmb-max-jobs=N",
        "Limit the number of jobs in the queue",
        shown="all",
        ini="string",
        parse=parse_count,
        unset=0,
    )
    repeats: int = declare(
        "--llmb-repeats=N",
        "Run a configuration up to N times, 1 to 3, if its first run does not pass "
        "or a suite file requires several runs; all runs count",
        default="3",
        ini="string",
        parse=parse_repeats,
        more="../how-to/launch.md",
    )
    repeats_at_once: bool = declare(
        "--llmb-repeats-at-once",
        "Submit the second and the third run together, for queues that take longer than a run",
        shown="one after the other",
    )
    node_checks: str = declare(
        "--llmb-node-checks=COMMAND",
        "Run this command (nccl-tests, dcgmi) in a job on nodes that a launch names as slow, and quote its output",
        ini="string",
        unset="",
        more="../how-to/launch.md#slow-nodes",
    )
    retries: int = declare(
        "--llmb-retries=N",
        "Restart a job up to N times, 0 to 10, after an infrastructure failure",
        default="1",
        ini="string",
        parse=parse_retries,
    )
    pending_limit: timedelta = declare(
        "--llmb-pending-limit=AGE",
        "Cancel a job that waits in the queue for longer than this: 90m, 12h",
        default="24h",
        ini="string",
        parse=parse_age,
    )
    stall_limit: StallLimits = declare(
        "--llmb-stall-limit=AGE",
        "Warn when a job's log stalls for this long, and cancel the job at twice "
        "that: 45m, auto (based on its step times), or none (warn as with auto, but never cancel)",
        default="auto",
        ini="string",
        parse=parse_stall_limit,
        more="../how-to/launch.md",
    )
    keep_jobs: bool = declare(
        "--llmb-keep-jobs",
        "Leave the jobs running if the session is interrupted",
        shown="cancel them",
    )
    profile: str = declare(
        "--llmb-profile=WHAT",
        "Profile the runs instead of judging them; may have settings: start:20,stop:30,ranks:0+1,gpu_metrics,cpu",
        shown="no",
        alone="default",
        unset="",
        more="../how-to/launch.md",
    )
    nccl_trace: bool = declare(
        "--llmb-nccl-trace",
        "Trace NCCL instead of judging the runs",
    )
    save_checkpoint: bool = declare(
        "--llmb-save-checkpoint",
        "Save a checkpoint at the end of each run instead of judging it",
    )
    checkpoint: str = declare(
        "--llmb-load-checkpoint=DIR",
        "Load this checkpoint (the parent folder of `weights`) instead of judging the runs",
        unset="",
    )
    ab: str = declare(
        "--llmb-ab=FILE",
        "Compare the variants in this file (images, commits, variables, arguments) on the same nodes instead of judging runs",
        unset="",
        more="../how-to/run-two-builds-side-by-side.md",
    )
    bisect: str = declare(
        "--llmb-bisect=BUILDS",
        "Find the build that became slower in an ordered list: a file as for --llmb-ab, or git:GOOD..BAD",
        unset="",
        more="../how-to/find-the-build.md",
    )
    profile_on_regression: bool = declare(
        "--llmb-profile-on-regression",
        "Profile each configuration that regressed, once",
    )


JUDGING_OPTIONS = tuple(list_rows(SessionOptions).values())
LAUNCH_OPTIONS = tuple(list_rows(LaunchOptions).values())
OPTIONS = (*JUDGING_OPTIONS, *LAUNCH_OPTIONS)
TYPED_OPTIONS = tuple(option for option in OPTIONS if option.has_flag)
"""Options with a command line flag; the others are ini keys only."""

LAUNCHING = (
    "--llmb-launch",
    "--llmb-dry-run",
    "--llmb-submit-only",
    "--llmb-collect",
    "--llmb-resume",
)
"""Options that start or continue a launch."""


def get_option(flag: str) -> Option:
    """Return the option with this flag."""
    return next(option for option in OPTIONS if option.flag == flag)


# --- removed options -------------------------------------------------------------------

_DRAFT = "in the file that `llmbench baselines draft` writes (docs/how-to/record-your-own-runs.md)"
_RECORDINGS = "under `recordings` in the file of --llmb-acknowledged (docs/how-to/accept-a-change.md)"
_SESSION = "or for one session give"
_CLUSTER = "in the cluster file (docs/reference/cluster.md)"

REPLACEMENTS = {
    "--llmb-assumed-cv": f"set `llmb_assumed_cv` in pytest's configuration, {_SESSION} -o llmb_assumed_cv=2%",
    "--llmb-repeat-window": f"set `llmb_repeat_window` in pytest's configuration, {_SESSION} -o llmb_repeat_window=2h",
    "--llmb-accept-drift": f"write an entry with `accept: drift` {_RECORDINGS}",
    "--llmb-accept-levels": f"write an entry with `accept: levels` {_RECORDINGS}",
    "--llmb-model": f"set `recipe` {_DRAFT}",
    "--llmb-size": f"set `size` {_DRAFT}",
    "--llmb-dtype": f"set `dtype` {_DRAFT}",
    "--llmb-gpus": f"set `gpus` {_DRAFT}",
    "--llmb-max-gpus": f"set `largest` {_CLUSTER}",
    "--llmb-gpus-per-node": f"set `gpus_per_node` {_CLUSTER}",
    "--llmb-recipe": f"set `folder` of the recipe under `installed` {_CLUSTER}",
}
"""Remedy for each removed option, by its flag."""


def describe_removed(name: str) -> str:
    """Return a message with the replacement of a removed option, or "".

    `name` may be a flag or an ini key.
    """
    remedies = {name_destination(flag): remedy for flag, remedy in REPLACEMENTS.items()}
    remedy = remedies.get(name_destination(name))
    return f"{name} was removed: {remedy}" if remedy else ""
