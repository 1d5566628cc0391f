"""The table of options: each row declares one option and the field that it becomes.

A row gives flag, metavar, help, ini key, default, converter and documentation page;
pytest, `llmbench replay`, docs/options.md and the settings are made from it.
`session.settings.Settings` and `launch.launch_settings.LaunchSettings` inherit these
fields and add what they derive from them. An idle session of pytest imports this
module, so that it loads the standard library only, and only what pytest loads anyway.
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
    """The options of every session."""

    log_paths: tuple[str, ...] = declare(
        "--llmb-logs=PATH",
        "Judge the runs under this file, folder, archive or URL, or in standard input (-); may be repeated",
        repeats=True,
        more="inputs.md",
    )
    baselines: tuple[Path, ...] = declare(
        "--llmb-baselines=DIR",
        "Add the baseline files of this folder to the shipped ones; may be repeated",
        repeats=True,
        ini="paths",
        find=list_folders,
        more="baselines.md",
    )
    tolerances: tuple[Tolerance, ...] = declare(
        "--llmb-tolerance=TOL",
        "How much slower a run may be: 5%%, 0.025, perf:5%%, mfu:3%%, or several with commas between",
        shown="the baseline's, else 5%%",
        ini="string",
        find=list_tolerances,
        unset=(),
        more="baselines.md#tolerances",
    )
    inconclusive: str = declare(
        "--llmb-inconclusive=MODE",
        "What a run does that cannot tell: literal (measured <= bound passes), fail or skip",
        choices=("literal", "fail", "skip"),
        default="literal",
        ini="string",
        more="verdicts.md",
    )
    improvement: str = declare(
        "--llmb-improvement=MODE",
        "What a run does that is faster than its baseline by more than the tolerance: pass or fail",
        choices=("pass", "fail"),
        default="pass",
        shown="pass, up to 15%%",
        ini="string",
        more="statistics.md#implausibly-fast",
    )
    scaling: str = declare(
        "--llmb-scaling=MODE",
        "What a worse weak scaling, or FP8 speed-up, than the documented one does: report or fail",
        choices=("report", "fail"),
        default="report",
        ini="string",
        more="statistics.md#several-configurations",
    )
    trend: str = declare(
        "--llmb-trend=MODE",
        "What a change to slower in the nights of a configuration does that nobody acknowledged: report or fail",
        choices=("report", "fail"),
        default="report",
        ini="string",
        more="statistics.md#changes-over-the-nights",
    )
    acknowledged: Path | None = declare(
        "--llmb-acknowledged=FILE",
        "File of the changes of step time that were accepted, each with a reason, a name and an expiry",
        ini="paths",
        find=find_file,
        more="acknowledged.md",
    )
    repeat_window: timedelta | None = declare(
        "llmb_repeat_window=AGE",
        "Runs of one build that started within this time of the newest are its repeats: 2h, or 0",
        shown="0, none",
        ini="string",
        parse=parse_window,
        more="statistics.md#more-than-one-run",
    )
    assumed_cv: float = declare(
        "llmb_assumed_cv=PERCENT",
        "Run-to-run variation assumed where nothing was measured, at most 50%%",
        default="1%",
        ini="string",
        parse=parse_percentage,
        more="statistics.md#what-is-assumed-and-how-to-measure-your-own-noise",
    )
    certify: bool = declare(
        "--llmb-certify",
        "Certify: inconclusive and missing configurations fail, and performance "
        "has to be at least 95%% of the published one",
        more="baselines.md#tolerances",
    )
    selftest: bool = declare(
        "--llmb-selftest",
        "Prove on changed copies of the runs that passed that the verdict would change",
        more="verdicts.md#does-the-gate-work",
    )
    require: tuple[str, ...] = declare(
        "--llmb-require=WHAT",
        "Fail a configuration without a valid run: an id, a pattern, a file of "
        "them, a suite file of llmb-run (exemplar.yaml), or all",
        repeats=True,
        ini="args",
        find=list_patterns,
        more="layouts.md#suite-files",
    )
    unmatched: str = declare(
        "--llmb-unmatched=MODE",
        "What a run that matches no baseline does: fail or list",
        choices=("fail", "list"),
        default="fail",
        ini="string",
    )
    release: str = declare(
        "--llmb-release=RELEASE",
        "Release of runs that do not tell theirs, such as 25.05",
        ini="string",
        unset="",
        more="layouts.md#which-configuration-a-run-is",
    )
    gpu: str = declare(
        "--llmb-gpu=TYPE",
        "GPU type of runs that do not tell theirs, such as h100",
        ini="string",
        parse=str.lower,
        unset="",
        more="layouts.md#which-configuration-a-run-is",
    )
    runs: str = declare(
        "--llmb-runs=WHICH",
        "Judge the newest run of a configuration, or each in an item of its own: newest or each",
        choices=("newest", "each"),
        default="newest",
        more="verdicts.md",
    )
    since: datetime | None = declare(
        "--llmb-since=DATE",
        "Leave out runs that started before this date: 2025-11-20 or 2025-11-20T06:00",
        parse=parse_timestamp,
    )
    max_age: timedelta | None = declare(
        "--llmb-max-age=AGE",
        "A configuration whose newest run is older counts as missing: 90m, 20h, 7d",
        ini="string",
        parse=parse_age,
        more="history.md#what-it-is-for",
    )
    against: str = declare(
        "--llmb-against=KIND",
        "Where recorded and published baselines exist: recorded, published or both",
        choices=("recorded", "published", "both"),
        shown="recorded",
        ini="string",
        unset="",
    )
    timed: str = declare(
        "--llmb-timed=WHICH",
        "What decides: the window of the baseline, or what its document timed (of "
        "most the last step), to compare with its tables and for nothing else: "
        "window or document",
        choices=("window", "document"),
        default="window",
        ini="string",
        more="statistics.md#by-the-documents-own-rule",
    )
    baseline_release: str = declare(
        "--llmb-baseline-release=RELEASE",
        "Judge every run against the baselines of this release, whatever release it is",
        ini="string",
        unset="",
        more="layouts.md#which-configuration-a-run-is",
    )
    record: Path | None = declare(
        "--llmb-record=DIR",
        "Write recorded baselines from the valid runs to this folder, and judge nothing",
        find=find_output,
        more="baselines.md#how-many-runs",
    )
    drift_budget: float | None = declare(
        "--llmb-drift-budget=PERCENT",
        "How much slower recorded baselines may become in all, at most 50%%",
        shown="the baseline file's, else 5%%",
        ini="string",
        parse=parse_percentage,
        more="baselines.md#drift",
    )
    no_cache: bool = declare(
        "--llmb-no-cache",
        "Read every log, also those that did not change since they were last read",
        ini="bool",
        more="inputs.md",
    )
    json: Path | None = declare(
        "--llmb-json=FILE",
        "Write the session and every outcome as one JSON document",
        find=find_output,
        more="json.md",
    )
    github: str = declare(
        "--llmb-github=MODE",
        "In a job of GitHub Actions, add to the job summary and annotate what is red: auto or off",
        choices=("auto", "off"),
        default="auto",
        ini="string",
        more="ci.md",
    )
    history_url: str = declare(
        "--llmb-history=URL",
        "Keep every verdict in this store, and judge with the noise of its "
        "nights: a file such as history.db, sqlite:///history.db or "
        "postgresql://user@host/database",
        ini="string",
        unset="",
        more="history.md",
    )
    junit: Path | None = declare(
        "--llmb-junit=FILE",
        "Write a JUnit report with a suite for each recipe, GPU and precision",
        find=find_output,
        more="junit.md",
    )
    html: Path | None = declare(
        "--llmb-html=FILE",
        "Write a page with a table, charts and the logs of failures",
        find=find_page,
        more="html.md",
    )


class LaunchOptions(OptionRecord):
    """The options of a launch: each needs one of LAUNCHING."""

    launch: bool = declare(
        "--llmb-launch",
        "Launch the selected configurations, wait for them and judge them",
        more="launching.md",
    )
    dry_run: bool = declare(
        "--llmb-dry-run",
        "Print what --llmb-launch would submit, and what is in the way; submit nothing",
    )
    submit_only: bool = declare(
        "--llmb-submit-only",
        "Submit and end; --llmb-collect follows and judges later",
    )
    collect: bool = declare(
        "--llmb-collect",
        "Follow and judge what an earlier session submitted; submit nothing",
    )
    resume: bool = declare(
        "--llmb-resume",
        "Go on with an earlier session that was interrupted; nothing is submitted twice",
    )
    session: str = declare(
        "--llmb-session=ID",
        "The session that is collected or resumed",
        shown="the newest unfinished one",
        unset="",
    )
    journal: Path | None = declare(
        "--llmb-journal=DIR",
        "Folder in which sessions and their jobs are written down",
        shown=".llmbench here",
        ini="paths",
        find=find_journal,
        more="journal.md",
    )
    cluster: Path | None = declare(
        "--llmb-cluster=FILE",
        "What this cluster is and where its recipes are: a cluster.yaml, or llmb-run's cluster_config.yaml",
        shown="cluster.yaml here, if there is one",
        ini="paths",
        find=find_cluster,
        more="cluster.md",
    )
    launcher: str = declare(
        "--llmb-launcher=NAME",
        "How jobs are started: sbatch, script, llmb-run, local or a name in a baseline file",
        shown="the recipe's",
        ini="string",
        unset="",
    )
    gpu_hours: float | None = declare(
        "--llmb-gpu-hours=N",
        "GPU-hours that one session may use",
        shown="the cluster file's, else 50",
        ini="string",
        parse=parse_hours,
    )
    exclude: str = declare(
        "--llmb-exclude=NODES",
        "Nodes that no job gets, besides those of the cluster file: n7,n[12-14]",
        parse=parse_nodes,
        unset="",
        more="cluster.md",
    )
    nodelist: str = declare(
        "--llmb-nodelist=NODES",
        "Nodes that every job gets: n[1-4]",
        shown="the cluster file's",
        parse=parse_nodes,
        unset="",
        more="cluster.md",
    )
    ignored: tuple[PreflightCheck, ...] = declare(
        "--llmb-ignore=CHECKS",
        "Launch although these checks before it found something: "
        "python-version,image; their names stand with what they find",
        parse=parse_checks,
        unset=(),
        more="launching.md#4-what-is-checked-first",
    )
    max_jobs: int = declare(
        "--llmb-max-jobs=N",
        "Jobs in the queue at once",
        shown="all",
        ini="string",
        parse=parse_count,
        unset=0,
    )
    repeats: int = declare(
        "--llmb-repeats=N",
        "Runs of a configuration that does not pass with the first, or of which a "
        "suite file asks for several, 1 to 3; all of them count",
        default="3",
        ini="string",
        parse=parse_repeats,
        more="launching.md",
    )
    repeats_at_once: bool = declare(
        "--llmb-repeats-at-once",
        "Submit the second and the third run together, where the queue takes longer than a run",
        shown="one after the other",
    )
    node_checks: str = declare(
        "--llmb-node-checks=COMMAND",
        "Command that a job runs on nodes which a launch names as slow, and quotes: nccl-tests, dcgmi",
        ini="string",
        unset="",
        more="launching.md#when-a-launch-stops",
    )
    retries: int = declare(
        "--llmb-retries=N",
        "How often a job is started again after a failure of the infrastructure",
        default="1",
        ini="string",
        parse=parse_retries,
    )
    pending_limit: timedelta = declare(
        "--llmb-pending-limit=AGE",
        "A job that waits longer in the queue is cancelled: 90m, 12h",
        default="24h",
        ini="string",
        parse=parse_age,
    )
    stall_limit: StallLimits = declare(
        "--llmb-stall-limit=AGE",
        "A job whose log stands still for so long is told, and at twice that "
        "cancelled: 45m; auto goes by the gaps between its steps, none tells only",
        default="auto",
        ini="string",
        parse=parse_stall_limit,
        more="launching.md",
    )
    keep_jobs: bool = declare(
        "--llmb-keep-jobs",
        "Leave the jobs running when the session is interrupted",
        shown="cancel them",
    )
    profile: str = declare(
        "--llmb-profile=WHAT",
        "Profile instead of judging; alone, or with start:20,stop:30,ranks:0+1,gpu_metrics,cpu",
        shown="no",
        alone="default",
        unset="",
        more="launching.md",
    )
    nccl_trace: bool = declare(
        "--llmb-nccl-trace",
        "Trace NCCL instead of judging",
    )
    save_checkpoint: bool = declare(
        "--llmb-save-checkpoint",
        "Save a checkpoint at the end, instead of judging",
    )
    checkpoint: str = declare(
        "--llmb-load-checkpoint=DIR",
        "Start from a checkpoint, the parent of `weights`, instead of judging",
        unset="",
    )
    ab: str = declare(
        "--llmb-ab=FILE",
        "Compare variants on the same nodes instead of judging: images, commits, variables, arguments",
        unset="",
        more="ab.md",
    )
    bisect: str = declare(
        "--llmb-bisect=BUILDS",
        "Search an ordered list for what made it slower: a file as of --llmb-ab, or git:GOOD..BAD",
        unset="",
        more="bisect.md",
    )
    profile_on_regression: bool = declare(
        "--llmb-profile-on-regression",
        "Profile a configuration once that regressed",
    )


JUDGING_OPTIONS = tuple(list_rows(SessionOptions).values())
LAUNCH_OPTIONS = tuple(list_rows(LaunchOptions).values())
OPTIONS = (*JUDGING_OPTIONS, *LAUNCH_OPTIONS)
TYPED_OPTIONS = tuple(option for option in OPTIONS if option.has_flag)
"""The options of the command line; the others are keys of pytest's configuration."""

LAUNCHING = (
    "--llmb-launch",
    "--llmb-dry-run",
    "--llmb-submit-only",
    "--llmb-collect",
    "--llmb-resume",
)
"""The options that start a launch or continue one."""


def get_option(flag: str) -> Option:
    """Return the row of a flag."""
    return next(option for option in OPTIONS if option.flag == flag)


# --- removed options -------------------------------------------------------------------

_DRAFT = "in the file that `llmbench baselines draft` writes (docs/own-runs.md)"
_RECORDINGS = (
    "under `recordings` in the file of --llmb-acknowledged (docs/acknowledged.md)"
)
_SESSION = "or for one session give"
_CLUSTER = "in the cluster file (docs/cluster.md)"

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
"""The remedy by flag."""


def describe_removed(name: str) -> str:
    """Return the replacement of a removed flag, also written as a key, or ""."""
    remedies = {name_destination(flag): remedy for flag, remedy in REPLACEMENTS.items()}
    remedy = remedies.get(name_destination(name))
    return f"{name} was removed: {remedy}" if remedy else ""
