"""Every option and ini key, declared once. An idle session imports this: the standard library only, nothing costly.

A row is all that pytest, `llmbench replay`, the settings (`pipeline.option_values`) and docs/options.md know of an
option. A new one needs its row here, a field of `Settings` or `LaunchSettings` that names it, and its use.
"""

from __future__ import annotations

from pytest_llmbench.core.option import Option

JUDGING_OPTIONS = (
    Option(
        "--llmb-logs=PATH",
        "Judge the runs under this file, folder, archive or URL, or in standard input (-); may be repeated",
        repeats=True,
        resolve="list_logs",
        more="inputs.md",
    ),
    Option(
        "--llmb-baselines=DIR",
        "Add the baseline files of this folder to the shipped ones; may be repeated",
        repeats=True,
        ini="paths",
        resolve="list_folders",
        more="baselines.md",
    ),
    Option(
        "--llmb-tolerance=TOL",
        "How much slower a run may be: 5%%, 0.025, perf:5%%, mfu:3%%, or several with commas between",
        shown="the baseline's, else 5%%",
        ini="string",
        resolve="list_tolerances",
        more="baselines.md#tolerances",
    ),
    Option(
        "--llmb-inconclusive=MODE",
        "What a run does that cannot tell: literal (measured <= bound passes), fail or skip",
        default="literal",
        ini="string",
        choices=("literal", "fail", "skip"),
        more="verdicts.md",
    ),
    Option(
        "--llmb-improvement=MODE",
        "What a run does that is faster than its baseline by more than the tolerance: pass or fail",
        default="pass",
        shown="pass, up to 15%%",
        ini="string",
        choices=("pass", "fail"),
        more="statistics.md#implausibly-fast",
    ),
    Option(
        "--llmb-scaling=MODE",
        "What a worse weak scaling, or FP8 speed-up, than the documented one does: report or fail",
        default="report",
        ini="string",
        choices=("report", "fail"),
        more="statistics.md#several-configurations",
    ),
    Option(
        "--llmb-trend=MODE",
        "What a change to slower in the nights of a configuration does that nobody acknowledged: report or fail",
        default="report",
        ini="string",
        choices=("report", "fail"),
        more="statistics.md#changes-over-the-nights",
    ),
    Option(
        "--llmb-acknowledged=FILE",
        "File of the changes of step time that were accepted, each with a reason, a name and an expiry",
        ini="paths",
        resolve="find_file",
        more="acknowledged.md",
    ),
    Option(
        "--llmb-repeat-window=AGE",
        "Runs of one build that started within this time of the newest are its repeats: 2h, or 0",
        shown="0, none",
        ini="string",
        parse="parse_window",
        more="statistics.md#more-than-one-run",
    ),
    Option(
        "--llmb-assumed-cv=PERCENT",
        "Run-to-run variation assumed where nothing was measured, at most 50%%",
        default="1%",
        ini="string",
        parse="parse_percentage",
        more="statistics.md#what-is-assumed-and-how-to-measure-your-own-noise",
    ),
    Option(
        "--llmb-certify",
        "Certify: inconclusive and missing configurations fail, and performance has to be at least 95%% of the "
        "published one",
        more="baselines.md#tolerances",
    ),
    Option(
        "--llmb-selftest",
        "Prove on changed copies of the runs that passed that the verdict would change",
        more="verdicts.md#does-the-gate-work",
    ),
    Option(
        "--llmb-require=WHAT",
        "Fail a configuration without a valid run: an id, a pattern, a file of them, a suite file of llmb-run "
        "(exemplar.yaml), or all",
        repeats=True,
        ini="args",
        resolve="list_patterns",
        more="layouts.md#suite-files",
    ),
    Option(
        "--llmb-unmatched=MODE",
        "What a run that matches no baseline does: fail or list",
        default="fail",
        ini="string",
        choices=("fail", "list"),
    ),
    Option(
        "--llmb-release=RELEASE",
        "Release of runs that do not tell theirs, such as 25.05",
        ini="string",
        more="layouts.md#which-configuration-a-run-is",
    ),
    Option(
        "--llmb-gpu=TYPE",
        "GPU type of runs that do not tell theirs, such as h100",
        ini="string",
        parse="parse_lower",
        more="layouts.md#which-configuration-a-run-is",
    ),
    Option(
        "--llmb-runs=WHICH",
        "Judge the newest run of a configuration, or each in an item of its own: newest or each",
        default="newest",
        choices=("newest", "each"),
        more="verdicts.md",
    ),
    Option(
        "--llmb-since=DATE",
        "Leave out runs that started before this date: 2025-11-20 or 2025-11-20T06:00",
        parse="parse_moment",
    ),
    Option(
        "--llmb-max-age=AGE",
        "A configuration whose newest run is older counts as missing: 90m, 20h, 7d",
        ini="string",
        parse="parse_age",
        more="history.md#what-it-is-for",
    ),
    Option(
        "--llmb-against=KIND",
        "Where recorded and published baselines exist: recorded, published or both",
        shown="recorded",
        ini="string",
        choices=("recorded", "published", "both"),
    ),
    Option(
        "--llmb-timed=WHICH",
        "What decides: the window of the baseline, or what its document timed (of most the last step), to compare"
        " with its tables and for nothing else: window or document",
        default="window",
        ini="string",
        choices=("window", "document"),
        more="statistics.md#by-the-documents-own-rule",
    ),
    Option(
        "--llmb-baseline-release=RELEASE",
        "Judge every run against the baselines of this release, whatever release it is",
        ini="string",
        more="layouts.md#which-configuration-a-run-is",
    ),
    Option(
        "--llmb-record=DIR",
        "Write recorded baselines from the valid runs to this folder, and judge nothing",
        resolve="find_output",
        more="baselines.md#how-many-runs",
    ),
    Option(
        "--llmb-model=NAME",
        "With --llmb-record: the model of runs that match no baseline, where nothing says it",
        parse="parse_lower",
        more="own-runs.md",
    ),
    Option("--llmb-size=SIZE", "The same: its size, such as 8b", parse="parse_lower", more="own-runs.md"),
    Option("--llmb-dtype=TYPE", "The same: their precision, such as bf16", parse="parse_lower", more="own-runs.md"),
    Option("--llmb-gpus=N", "The same: their number of GPUs", parse="parse_count", more="own-runs.md"),
    Option(
        "--llmb-drift-budget=PERCENT",
        "How much slower recorded baselines may become in all, at most 50%%",
        shown="the baseline file's, else 5%%",
        ini="string",
        parse="parse_percentage",
        more="baselines.md#drift",
    ),
    Option(
        "--llmb-accept-drift=REASON",
        "Why --llmb-record may write what is beyond the drift budget; kept in the file",
        shown="it may not",
        parse="parse_reason",
    ),
    Option(
        "--llmb-accept-levels=REASON",
        "Why --llmb-record may write the mean of runs of several levels; kept in the file",
        shown="it may not",
        parse="parse_reason",
        more="baselines.md#what-is-not-recorded",
    ),
    Option(
        "--llmb-no-cache",
        "Read every log, also those that did not change since they were last read",
        ini="bool",
        more="inputs.md",
    ),
    Option(
        "--llmb-json=FILE",
        "Write the session and every outcome as one JSON document",
        resolve="find_output",
        more="json.md",
    ),
    Option(
        "--llmb-github=MODE",
        "In a job of GitHub Actions, add to the job summary and annotate what is red: auto or off",
        default="auto",
        ini="string",
        choices=("auto", "off"),
        more="ci.md",
    ),
    Option(
        "--llmb-history=URL",
        "Keep every verdict in this store, and judge with the noise of its nights: a file such as history.db, "
        "sqlite:///history.db or postgresql://user@host/database",
        ini="string",
        resolve="find_history",
        more="history.md",
    ),
    Option(
        "--llmb-junit=FILE",
        "Write a JUnit report with a suite for each recipe, GPU and precision",
        resolve="find_output",
        more="junit.md",
    ),
    Option(
        "--llmb-html=FILE",
        "Write a page with a table, charts and the logs of failures",
        resolve="find_page",
        more="html.md",
    ),
)

LAUNCH_OPTIONS = (
    Option("--llmb-launch", "Launch the selected configurations, wait for them and judge them", more="launching.md"),
    Option("--llmb-dry-run", "Print what --llmb-launch would submit, and what is in the way; submit nothing"),
    Option("--llmb-submit-only", "Submit and end; --llmb-collect follows and judges later"),
    Option("--llmb-collect", "Follow and judge what an earlier session submitted; submit nothing"),
    Option("--llmb-resume", "Go on with an earlier session that was interrupted; nothing is submitted twice"),
    Option("--llmb-session=ID", "The session that is collected or resumed", shown="the newest unfinished one"),
    Option(
        "--llmb-journal=DIR",
        "Folder in which sessions and their jobs are written down",
        shown=".llmbench here",
        ini="paths",
        resolve="find_journal",
        more="journal.md",
    ),
    Option(
        "--llmb-cluster=FILE",
        "What this cluster is and where its recipes are: a cluster.yaml, or llmb-run's cluster_config.yaml",
        shown="cluster.yaml here, if there is one",
        ini="paths",
        resolve="find_cluster",
        more="cluster.md",
    ),
    Option(
        "--llmb-recipe=NAME=DIR",
        "Folder of a recipe's launch.sh: grok1-25.05=/lustre/grok1; may be repeated",
        shown="the cluster file's",
        repeats=True,
        resolve="list_recipes",
    ),
    Option("--llmb-max-gpus=N", "Largest number of GPUs of a job", shown="the cluster file's", parse="parse_count"),
    Option(
        "--llmb-gpus-per-node=N", "GPUs of a node", shown="the cluster file's, else the recipe's", parse="parse_count"
    ),
    Option(
        "--llmb-launcher=NAME",
        "How jobs are started: sbatch, script, llmb-run, local or a name in a baseline file",
        shown="the recipe's",
        ini="string",
    ),
    Option(
        "--llmb-gpu-hours=N",
        "GPU-hours that one session may use",
        shown="the cluster file's, else 50",
        ini="string",
        parse="parse_hours",
    ),
    Option(
        "--llmb-exclude=NODES",
        "Nodes that no job gets, besides those of the cluster file: n7,n[12-14]",
        parse="parse_nodes",
        more="cluster.md",
    ),
    Option(
        "--llmb-nodelist=NODES",
        "Nodes that every job gets: n[1-4]",
        shown="the cluster file's",
        parse="parse_nodes",
        more="cluster.md",
    ),
    Option(
        "--llmb-ignore=CHECKS",
        "Launch although these checks before it found something: python-version,image; their names stand with what "
        "they find",
        parse="parse_checks",
        more="launching.md#4-what-is-checked-first",
    ),
    Option("--llmb-max-jobs=N", "Jobs in the queue at once", shown="all", ini="string", parse="parse_count"),
    Option(
        "--llmb-repeats=N",
        "Runs of a configuration that does not pass with the first, or of which a suite file asks for several, 1 "
        "to 3; all of them count",
        default="3",
        ini="string",
        parse="parse_repeats",
        more="launching.md",
    ),
    Option(
        "--llmb-repeats-at-once",
        "Submit the second and the third run together, where the queue takes longer than a run",
        shown="one after the other",
    ),
    Option(
        "--llmb-node-checks=COMMAND",
        "Command that a job runs on nodes which a launch names as slow, and quotes: nccl-tests, dcgmi",
        shown="none",
        ini="string",
        more="launching.md#when-a-launch-stops",
    ),
    Option(
        "--llmb-retries=N",
        "How often a job is started again after a failure of the infrastructure",
        default="1",
        ini="string",
        parse="parse_retries",
    ),
    Option(
        "--llmb-pending-limit=AGE",
        "A job that waits longer in the queue is cancelled: 90m, 12h",
        default="24h",
        ini="string",
        parse="parse_age",
    ),
    Option(
        "--llmb-stall-limit=AGE",
        "A job whose log stands still for so long is told, and at twice that cancelled: 45m; auto goes by the gaps "
        "between its steps, none tells only",
        default="auto",
        ini="string",
        parse="parse_stall_limit",
        more="launching.md",
    ),
    Option("--llmb-keep-jobs", "Leave the jobs running when the session is interrupted", shown="cancel them"),
    Option(
        "--llmb-profile=WHAT",
        "Profile instead of judging; alone, or with start:20,stop:30,ranks:0+1,gpu_metrics,cpu",
        shown="no",
        alone="default",
        more="launching.md",
    ),
    Option("--llmb-nccl-trace", "Trace NCCL instead of judging"),
    Option("--llmb-save-checkpoint", "Save a checkpoint at the end, instead of judging"),
    Option("--llmb-load-checkpoint=DIR", "Start from a checkpoint, the parent of `weights`, instead of judging"),
    Option(
        "--llmb-ab=FILE",
        "Compare variants on the same nodes instead of judging: images, commits, variables, arguments",
        more="ab.md",
    ),
    Option(
        "--llmb-bisect=BUILDS",
        "Search an ordered list for what made it slower: a file as of --llmb-ab, or git:GOOD..BAD",
        more="bisect.md",
    ),
    Option("--llmb-profile-on-regression", "Profile a configuration once that regressed"),
)

LAUNCHING = ("--llmb-launch", "--llmb-dry-run", "--llmb-submit-only", "--llmb-collect", "--llmb-resume")
"""The options with which a session launches, or goes on with what was launched."""

GOING_ON = ("--llmb-collect", "--llmb-resume")
"""Those of them with which it goes on."""

OPTIONS = (*JUDGING_OPTIONS, *LAUNCH_OPTIONS)
