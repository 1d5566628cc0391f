"""Every option and ini key, declared once. An idle session imports this: the standard library only, nothing costly."""

from __future__ import annotations


class Option:
    """One command line option, and its ini key where a repository may decide it; `is_flag` takes no value.

    `alone` is the value of an option that may stand without one. A plain class: making a NamedTuple or a dataclass
    compiles code, in every session.
    """

    __slots__ = ("alone", "choices", "flag", "help", "ini", "is_flag", "metavar", "repeats")

    def __init__(
        self,
        flag: str,
        metavar: str,
        help: str,
        *,
        repeats: bool = False,
        ini: str = "",
        choices: tuple[str, ...] = (),
        is_flag: bool = False,
        alone: str = "",
    ) -> None:
        """Keep what is declared."""
        self.flag, self.metavar, self.help = flag, metavar, help
        self.repeats, self.is_flag, self.alone = repeats, is_flag, alone
        self.ini, self.choices = ini, choices


def destination(flag: str) -> str:
    """Return the name under which the value of an option is stored; its ini key is the same."""
    return flag.removeprefix("--").replace("-", "_")


JUDGING_OPTIONS = (
    Option(
        "--llmb-logs",
        "PATH",
        "Judge the runs under this file, folder, archive or URL, or in standard input (-); may be repeated "
        "(default: none).",
        repeats=True,
    ),
    Option(
        "--llmb-baselines",
        "DIR",
        "Add the baseline files of this folder to the shipped ones; may be repeated (default: none).",
        repeats=True,
        ini="paths",
    ),
    Option(
        "--llmb-tolerance",
        "TOL",
        "How much slower a run may be: 5%%, 0.025, perf:5%%, mfu:3%%, or several with commas between "
        "(default: the baseline's, else 5%%).",
        ini="string",
    ),
    Option(
        "--llmb-inconclusive",
        "MODE",
        "What a run does that cannot tell: literal (measured <= bound passes), fail or skip (default: literal).",
        ini="string",
        choices=("literal", "fail", "skip"),
    ),
    Option(
        "--llmb-improvement",
        "MODE",
        "What a run does that is faster than its baseline by more than the tolerance: pass or fail "
        "(default: pass, up to 15%%).",
        ini="string",
        choices=("pass", "fail"),
    ),
    Option(
        "--llmb-scaling",
        "MODE",
        "What a worse weak scaling, or FP8 speed-up, than the documented one does: report or fail (default: report).",
        ini="string",
        choices=("report", "fail"),
    ),
    Option(
        "--llmb-trend",
        "MODE",
        "What a change to slower in the nights of a configuration does that nobody acknowledged: report or fail "
        "(default: report).",
        ini="string",
        choices=("report", "fail"),
    ),
    Option(
        "--llmb-acknowledged",
        "FILE",
        "File of the changes of step time that were accepted, each with a reason, a name and an expiry "
        "(default: none).",
        ini="paths",
    ),
    Option(
        "--llmb-repeat-window",
        "AGE",
        "Runs of one build that started within this time of the newest are its repeats: 2h, or 0 (default: 0, none).",
        ini="string",
    ),
    Option(
        "--llmb-assumed-cv",
        "PERCENT",
        "Run-to-run variation assumed where nothing was measured, at most 50%% (default: 1%%).",
        ini="string",
    ),
    Option(
        "--llmb-certify",
        "",
        "Certify: inconclusive and missing configurations fail, and performance has to be at least 95%% of the "
        "published one (default: no).",
        is_flag=True,
    ),
    Option(
        "--llmb-selftest",
        "",
        "Prove on changed copies of the runs that passed that the verdict would change (default: no).",
        is_flag=True,
    ),
    Option(
        "--llmb-require",
        "WHAT",
        "Fail a configuration without a valid run: an id, a pattern, a file of them, a suite file of llmb-run "
        "(exemplar.yaml), or all (default: none).",
        repeats=True,
        ini="args",
    ),
    Option(
        "--llmb-unmatched",
        "MODE",
        "What a run that matches no baseline does: fail or list (default: fail).",
        ini="string",
        choices=("fail", "list"),
    ),
    Option(
        "--llmb-release",
        "RELEASE",
        "Release of runs that do not tell theirs, such as 25.05 (default: none).",
        ini="string",
    ),
    Option(
        "--llmb-gpu", "TYPE", "GPU type of runs that do not tell theirs, such as h100 (default: none).", ini="string"
    ),
    Option(
        "--llmb-runs",
        "WHICH",
        "Judge the newest run of a configuration, or each in an item of its own: newest or each (default: newest).",
        choices=("newest", "each"),
    ),
    Option(
        "--llmb-since",
        "DATE",
        "Leave out runs that started before this date: 2025-11-20 or 2025-11-20T06:00 (default: none).",
    ),
    Option(
        "--llmb-max-age",
        "AGE",
        "A configuration whose newest run is older counts as missing: 90m, 20h, 7d (default: none).",
        ini="string",
    ),
    Option(
        "--llmb-against",
        "KIND",
        "Where recorded and published baselines exist: recorded, published or both (default: recorded).",
        ini="string",
        choices=("recorded", "published", "both"),
    ),
    Option(
        "--llmb-timed",
        "WHICH",
        "What decides: the window of the baseline, or what its document timed (of most the last step), to compare with "
        "its tables and for nothing else: window or document (default: window).",
        ini="string",
        choices=("window", "document"),
    ),
    Option(
        "--llmb-baseline-release",
        "RELEASE",
        "Judge every run against the baselines of this release, whatever release it is (default: none).",
        ini="string",
    ),
    Option(
        "--llmb-record",
        "DIR",
        "Write recorded baselines from the valid runs to this folder, and judge nothing (default: none).",
    ),
    Option(
        "--llmb-drift-budget",
        "PERCENT",
        "How much slower recorded baselines may become in all, at most 50%% (default: the baseline file's, else 5%%).",
        ini="string",
    ),
    Option(
        "--llmb-accept-drift",
        "REASON",
        "Why --llmb-record may write what is beyond the drift budget; kept in the file (default: it may not).",
    ),
    Option(
        "--llmb-accept-levels",
        "REASON",
        "Why --llmb-record may write the mean of runs of several levels; kept in the file (default: it may not).",
    ),
    Option(
        "--llmb-no-cache",
        "",
        "Read every log, also those that did not change since they were last read (default: no).",
        is_flag=True,
        ini="bool",
    ),
    Option("--llmb-json", "FILE", "Write the session and every outcome as one JSON document (default: none)."),
    Option(
        "--llmb-github",
        "MODE",
        "In a job of GitHub Actions, add to the job summary and annotate what is red: auto or off (default: auto).",
        ini="string",
        choices=("auto", "off"),
    ),
    Option(
        "--llmb-history",
        "URL",
        "Keep every verdict in this store, and judge with the noise of its nights: a file such as history.db, "
        "sqlite:///history.db or postgresql://user@host/database (default: none).",
        ini="string",
    ),
    Option(
        "--llmb-junit", "FILE", "Write a JUnit report with a suite for each recipe, GPU and precision (default: none)."
    ),
    Option("--llmb-html", "FILE", "Write a page with a table, charts and the logs of failures (default: none)."),
)

LAUNCH_OPTIONS = (
    Option(
        "--llmb-launch",
        "",
        "Launch the selected configurations, wait for them and judge them (default: no).",
        is_flag=True,
    ),
    Option(
        "--llmb-dry-run",
        "",
        "Print what --llmb-launch would submit, and what is in the way; submit nothing (default: no).",
        is_flag=True,
    ),
    Option(
        "--llmb-submit-only", "", "Submit and end; --llmb-collect follows and judges later (default: no).", is_flag=True
    ),
    Option(
        "--llmb-collect",
        "",
        "Follow and judge what an earlier session submitted; submit nothing (default: no).",
        is_flag=True,
    ),
    Option(
        "--llmb-resume",
        "",
        "Go on with an earlier session that was interrupted; nothing is submitted twice (default: no).",
        is_flag=True,
    ),
    Option("--llmb-session", "ID", "The session that is collected or resumed (default: the newest unfinished one)."),
    Option(
        "--llmb-cluster",
        "FILE",
        "What this cluster is and where its recipes are: a cluster.yaml, or llmb-run's cluster_config.yaml "
        "(default: cluster.yaml here, if there is one).",
        ini="paths",
    ),
    Option(
        "--llmb-recipe",
        "NAME=DIR",
        "Folder of a recipe's launch.sh: grok1-25.05=/lustre/grok1; may be repeated (default: the cluster file's).",
        repeats=True,
    ),
    Option("--llmb-max-gpus", "N", "Largest number of GPUs of a job (default: the cluster file's)."),
    Option("--llmb-gpus-per-node", "N", "GPUs of a node (default: the cluster file's, else the recipe's)."),
    Option(
        "--llmb-launcher",
        "NAME",
        "How jobs are started: sbatch, script, llmb-run, local or a name in a baseline file (default: the recipe's).",
        ini="string",
    ),
    Option(
        "--llmb-gpu-hours",
        "N",
        "GPU-hours that one session may use (default: the cluster file's, else 50).",
        ini="string",
    ),
    Option("--llmb-max-jobs", "N", "Jobs in the queue at once (default: all).", ini="string"),
    Option(
        "--llmb-repeats",
        "N",
        "Runs of a configuration that does not pass with the first, or of which a suite file asks for several, 1 to 3; "
        "all of them count (default: 3).",
        ini="string",
    ),
    Option(
        "--llmb-retries",
        "N",
        "How often a job is started again after a failure of the infrastructure (default: 1).",
        ini="string",
    ),
    Option(
        "--llmb-pending-limit",
        "AGE",
        "A job that waits longer in the queue is cancelled: 90m, 12h (default: 24h).",
        ini="string",
    ),
    Option(
        "--llmb-keep-jobs",
        "",
        "Leave the jobs running when the session is interrupted (default: cancel them).",
        is_flag=True,
    ),
    Option(
        "--llmb-profile",
        "WHAT",
        "Profile instead of judging; alone, or with start:20,stop:30,ranks:0+1,gpu_metrics,cpu (default: no).",
        alone="default",
    ),
    Option("--llmb-nccl-trace", "", "Trace NCCL instead of judging (default: no).", is_flag=True),
    Option(
        "--llmb-save-checkpoint", "", "Save a checkpoint at the end, instead of judging (default: no).", is_flag=True
    ),
    Option(
        "--llmb-load-checkpoint",
        "DIR",
        "Start from a checkpoint, the parent of `weights`, instead of judging (default: none).",
    ),
    Option(
        "--llmb-profile-on-regression", "", "Profile a configuration once that regressed (default: no).", is_flag=True
    ),
)

LAUNCHING = ("--llmb-launch", "--llmb-dry-run", "--llmb-submit-only", "--llmb-collect", "--llmb-resume")
"""The options with which a session launches, or goes on with what was launched."""

OPTIONS = (*JUDGING_OPTIONS, *LAUNCH_OPTIONS)
