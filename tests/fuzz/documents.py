"""Fuzz targets of user input: reports and traces read back, YAML files, tables and
options."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from datetime import date
from functools import cache

from fuzz.laws import (
    call,
    empty_folder,
    refusals,
    require,
    require_printable,
    require_types,
    written,
)
from support import builders, nccl_traces
from support.imported_tables import draft
from support.outcomes import incomplete, make_session, missing, slow, stray, told

from pytest_llmbench.baseline.lint import format_lint_page, lint_file
from pytest_llmbench.baseline.read import (
    find_baseline_files,
    list_shipped_baselines,
    read_file,
    read_recipe,
)
from pytest_llmbench.baseline.write import write_recorded
from pytest_llmbench.core.baseline_records import Baseline, Recipe, Recording
from pytest_llmbench.core.errors import (
    BaselineError,
    LaunchError,
    LogError,
    RecordError,
    ReportError,
    SettingsError,
)
from pytest_llmbench.core.ini_file import (
    find_shadowed_keys,
    read_file_keys,
    refuse_misplaced,
    refuse_unknown,
)
from pytest_llmbench.core.job_records import Cluster
from pytest_llmbench.core.option import OptionValues
from pytest_llmbench.core.options import OPTIONS, TYPED_OPTIONS
from pytest_llmbench.core.run_records import Acknowledgement
from pytest_llmbench.core.trial_records import Variant
from pytest_llmbench.launch.launch_settings import LaunchSettings, resolve_launch
from pytest_llmbench.launch.plan.cluster_file import (
    fill_references,
    read_cluster,
    read_llmb_run,
)
from pytest_llmbench.launch.plan.variants import MOST_VARIANTS, read_variants
from pytest_llmbench.report.document import read, render_session
from pytest_llmbench.report.notifications import convert_to_slack
from pytest_llmbench.report.output_files import EXPORT, REPORTS, TRACE, find_obstacle
from pytest_llmbench.session.acknowledgements import read_acknowledged
from pytest_llmbench.session.catalog import load, read_suite
from pytest_llmbench.session.settings import LaunchRequest, Settings, resolve
from pytest_llmbench.tools.import_tables.import_command import format_report
from pytest_llmbench.tools.import_tables.imported_documents import write_drafts
from pytest_llmbench.tools.nccl.nccl_changes import build_document, compare
from pytest_llmbench.tools.nccl.nccl_trace import Trace, read_saved_or_logs

TODAY = date(2025, 11, 20)


# --- reports and traces ---------------------------------------------------------------


def session_seeds() -> list[bytes]:
    """Return the `--llmb-json` documents of a passed and of a failed session."""
    red = make_session(
        told(), stray(), incomplete(), slow(), missing(), failures=("history: no",)
    )
    return [
        render_session(session) for session in (red, make_session(told(), exit_code=0))
    ]


def check_session(data: bytes) -> None:
    """A document becomes a message of few lines, or is refused by name."""
    with written("session.json", data) as path:
        text = call("chat", path, "--link=https://ci/7", naming="session.json")
        require(
            len(text.splitlines()) <= 11, "a message that is longer than a chat bears"
        )
        if text:
            require(json.loads(convert_to_slack(text)), "a message that is no JSON")
            with suppress(ReportError):
                require(read(path).schema == 1, "a document of another schema")


def trace_seeds() -> list[bytes]:
    """Return NCCL traces, and a saved summary of a trace."""
    lines = "".join(nccl_traces.run()).encode()
    with empty_folder() as folder:
        (folder / "nccl.log").write_bytes(lines)
        saved = json.dumps(
            build_document(read_saved_or_logs([folder / "nccl.log"])), indent=1
        ).encode()
    return [saved, lines, lines.replace(b"comm", b"\xff")]


def check_trace(data: bytes) -> None:
    """A trace or saved summary is printed, compared and saved unchanged, or refused by
    name."""
    with written("trace.json", data) as path, refusals(LogError, naming="trace.json"):
        trace = read_saved_or_logs([path])
        require_types(trace, Trace)
        again = path.with_name("again.json")
        again.write_text(json.dumps(build_document(trace), indent=1))
        require(read_saved_or_logs([again]) == trace, "a trace that is not kept")
        require(not compare(trace, trace).changes, "a trace that changed since itself")
        for style in ("--format=text", "--format=json"):
            require_printable(
                call("nccl", path, style, "--against", again, naming="trace"), "a page"
            )


def report_seeds() -> list[bytes]:
    """Return the first bytes of files that a report may replace."""
    pieces = (
        b'<?xml version="1.0"?>\n<!-- a -->\n<testsuites name="x">',
        b"<!DOCTYPE html><title>x - llmbench</title>",
    )
    return [
        *pieces,
        *session_seeds()[:1],
        *trace_seeds()[:1],
        b"number,configuration\n1,a\n",
        b'[{"number": 1}]',
        b"PAR1",
    ]


def check_report(data: bytes) -> None:
    """Deciding whether a file may be replaced never fails, and an empty file may be
    replaced."""
    with written("report", data) as path:
        for kind in (*REPORTS.values(), EXPORT, TRACE):
            obstacle = find_obstacle(path, kind)
            require_printable(obstacle, "an obstacle")
            require(
                not obstacle or data.strip(), "an empty file that may not be replaced"
            )


# --- YAML -----------------------------------------------------------------------------

CLUSTER = """\
schema: 1
name: eos
gpu: H100
gpus_per_node: 8
largest: 1024
gpu_hours: 400
launcher: sbatch
account: coreai_dlalgo.llm
partition: batch,backfill
gres: gpu:8
time_limit: "01:30:00"
exclude: [n7, "n[12-14]"]
environment:
  STAGE_PATH: /lustre/stage
  HF_TOKEN: ${HF_TOKEN}
  EMPTY: ""
secrets: [NOTE]
installed:
  grok1: {folder: grok1}
  grok1-25.05:
    folder: ${RECIPES}/grok1
    launcher: script
    environment: {LLMB_INSTALL: /lustre/llmb}
    virtual_environment: /lustre/venvs/grok1
"""
LLMB_RUN = """\
launcher:
  llmb_repo: /lustre/repo
  llmb_install: /lustre/llmb
  gpu_type: h100
slurm:
  account: me
  gpu: {partition: batch, gres: 8}
environment: {HF_TOKEN: x}
workloads:
  installed: [pretrain_grok1]
  config:
    pretrain_grok1: {venv_path: /lustre/venv, environment: {A: b}}
"""


CLUSTERS = (CLUSTER, LLMB_RUN)


def check_cluster(data: bytes) -> None:
    """A cluster file is read into records of the declared types, or refused by name."""
    with written("cluster.yaml", data) as path:
        for read_file_of in (read_cluster, read_llmb_run):
            with refusals(LaunchError, naming="cluster.yaml"):
                cluster = read_file_of(path)
                require_types(cluster, Cluster)
                for name, value in cluster.environment:
                    with suppress(LaunchError):
                        require_types(
                            fill_references(value, {"HF_TOKEN": "x"}, name), str
                        )


ACKNOWLEDGED = """\
schema: 1
acknowledged:
  - configuration: grok1_314b-25.05-gb200-bf16-*
    slower: 6%
    since: 2025-11-03
    expires: 2026-02-01
    reason: driver 555, the security fix
    by: A. Person
  - configuration: grok1_314b-25.05-gb200-bf16-128
    faster: 2.5%
    since: "2025-09-03"
    expires: 2026-01-01
    reason: new container
    by: B. Person
repaired:
  - {nodes: "n[07-08]", since: 2025-11-02, reason: a new HCA, by: A. Person}
"""

VARIANTS = """\
schema: 1
variants:
  - name: good
    commit: v1.0~3
  - {name: new, image: "nvcr.io/x:2", environment: {NCCL_DEBUG: "x"}, arguments: [--graphs, full]}
  - {name: mine, folder: ~/recipe}
"""


def check_variants(data: bytes) -> None:
    """A file of variants is read, with distinct names, or refused by name."""
    with (
        written("variants.yaml", data) as path,
        refusals(LaunchError, naming="variants.yaml"),
    ):
        variants = read_variants(path).variants
        require_types(variants, tuple[Variant, ...])
        require(2 <= len(variants) <= MOST_VARIANTS, "any number of variants")
        require(
            len({variant.name for variant in variants}) == len(variants),
            "one name twice",
        )


def check_acknowledged(data: bytes) -> None:
    """A file of acknowledged changes is read, within the limits of size and time, or
    refused by name."""
    with (
        written("acknowledged.yaml", data) as path,
        refusals(SettingsError, naming="acknowledged.yaml"),
    ):
        file = read_acknowledged(path, [builders.KEY.id], TODAY)
        for entry in file.changes:
            require_types(entry, Acknowledgement)
            require(-1 < entry.fraction < 1, "a change of any size")
            require(
                entry.since <= entry.expires and (entry.expires - TODAY).days <= 366,
                "a change of any time",
            )
        for recording in file.recordings:
            require((recording.expires - TODAY).days <= 31, "a recording of any time")
        require((file.last_repair or TODAY) <= TODAY, "a repair of days to come")


SUITE = """\
config:
  scale: 512
  repeats: 3
  profile: true
workloads:
  h100:
  - pretrain_grok1_314b:
      dtypes: [bf16, fp8]
  - pretrain_llama3.1_70b:
      dtypes: [bf16]
"""


@cache
def read_shipped() -> tuple[Recipe, ...]:
    """Return the shipped recipes."""
    return load(Settings()).recipes


def check_suite(data: bytes) -> None:
    """A suite file requests existing configurations, or is refused by name."""
    known = {baseline.key for recipe in read_shipped() for baseline in recipe.baselines}
    with (
        written("suite.yaml", data) as path,
        refusals(SettingsError, naming="suite.yaml"),
    ):
        asked = read_suite(path, read_shipped(), Settings(suites=(path,), gpu="h100"))
        require(
            asked.keys() <= known and asked,
            "a suite of what is not known, or of nothing",
        )
        require(
            all(1 <= runs.runs <= 1000 for runs in asked.values()),
            "a number of runs that is none",
        )


BASELINE_BYTES = 4000


def baseline_seeds() -> list[bytes]:
    """Return beginnings of the documented baselines, cut after complete blocks, and a
    small file."""
    texts = [
        path.read_bytes() for path in find_baseline_files(list_shipped_baselines())
    ]
    return [
        min(texts, key=len),
        *(text[: text.find(b"\n", BASELINE_BYTES) + 1] for text in texts),
    ]


def check_baseline(data: bytes) -> None:
    """A baseline file is read and linted, or a BaselineError states the position and
    the problem."""
    with written("any.yaml", data) as path, refusals(BaselineError, naming="any.yaml"):
        require_types(read_recipe(path), Recipe)
        require_printable(format_lint_page([lint_file(read_file(path))], 79), "a page")


@cache
def read_grok() -> tuple[Baseline, ...]:
    """Return some configurations of one file."""
    every = (baseline for recipe in read_shipped() for baseline in recipe.baselines)
    return tuple(
        baseline
        for baseline in every
        if baseline.key.id.startswith("grok1_314b-25.05-gb200")
    )


RECORDING = Recording(
    date="2025-11-20",
    runs=2,
    mean_seconds=7.412,
    trimmed_mean_seconds=7.402,
    standard_deviation_seconds=0.04,
    run_seconds=(7.4, 7.404),
    log_sha256=("0" * 64,) * 2,
)


def recorded_seeds() -> list[bytes]:
    """Return files of recorded baselines."""
    first, second = read_grok()[:2]
    texts = []
    for recorded in ([first], [first, second]):
        with empty_folder() as folder:
            (written,) = write_recorded(
                folder, [(baseline, RECORDING) for baseline in recorded]
            )
            texts.append(written[0].read_bytes())
    return texts


def check_recorded(data: bytes) -> None:
    """A baseline is added to a file of recorded baselines without losing others, or the
    file is refused unchanged."""
    added = read_grok()[2]
    with empty_folder() as folder:
        path = folder / added.key.recipe / f"{added.key.release}.yaml"
        path.parent.mkdir()
        path.write_bytes(data)
        try:
            before = {
                baseline.key: baseline.step_seconds
                for baseline in read_recipe(path).baselines
            }
        except BaselineError:
            before = {}
        try:
            write_recorded(folder, [(added, RECORDING)])
        except RecordError as error:
            require(path.name in str(error), "a refusal without the file")
            require(path.read_bytes() == data, "a file that is refused and changed")
            return
        after = {
            baseline.key: baseline.step_seconds
            for baseline in read_recipe(path).baselines
        }
        require(
            after == before | {added.key: RECORDING.trimmed_mean_seconds},
            "a recorded baseline that is lost",
        )


# --- tables ---------------------------------------------------------------------------

TABLES = """\
# Llama 3.1 8b on H100

The peak of an H100 is 989 TFLOP/s in BF16 and 1979 in FP8. `model flops = 4.74e15`

| GPUs | Precision | SeqLen | Layers | TP | PP | DP | GBS | Step time (ms) | Tokens/s | MFU (%) | Notes |
|-----:|-----------|-------:|-------:|----|----|----|----:|---------------:|---------:|--------:|-------|
| 8    | BF16      | 8192   | 32     | 1  | 1  | 8  | 128 | 12270          | 85,459   | 62.47   |       |
| 1,024 | FP8      | 8192   | 32     | 1  | 1  | 8  | 128 | 9330           | 112,388  | 41.07   | -     |
"""
TURNED = """\
| Configuration | 8x H100 GPUs | 16x H100 GPUs |
|---|---|---|
| SeqLen | 8192 | 8192 |
| Layers | 32 | 32 |
| TP | 1 | 2 |
| GBS | 128 | 256 |

| Llama 3.1 8b FP8 | 8x H100 GPUs | 16x H100 GPUs |
|---|---|---|
| Step time (s) | 9.33 | 9.36 |
"""
HTML = "# Grok1 314b H100\n<table><tr><th>GPUs</th><th>Step time (s)</th></tr>\n<tr><td>8</td><td>9.3</td></tr></table>\n"


DOCUMENTS = (TABLES, TURNED, HTML)


def check_document(data: bytes) -> None:
    """A document becomes drafts, or is refused by name.

    A draft is a baseline file, or states what it lacks.
    """
    with written("README.md", data) as path:
        call("baselines", "import", path, "--release=25.04", naming="README.md")
        with refusals(BaselineError, naming=""):
            imported = draft(
                data.decode("utf-8", "replace"),
                "25.04",
                size="8b",
                gpu="h100",
                dtype="bf16",
            )
            drafts = path.with_name("drafts")
            files = write_drafts(imported, drafts, force=False)
            require_printable("\n".join(format_report(imported, files)), "a report")
            require(
                {file.path for file in files} == set(drafts.glob("*/*.yaml")),
                "a draft elsewhere",
            )
            for made, file in zip(imported.drafts, files, strict=True):
                try:
                    require_types(read_recipe(file.path), Recipe)
                except BaselineError as error:
                    require(
                        made.missing_keys,
                        f"a draft without a gap that cannot be read: {error}",
                    )


# --- options --------------------------------------------------------------------------

VALUES = (
    *(
        "2%",
        "step_time_seconds=3%,mfu=2%",
        "2025-11-20",
        "36h",
        "5d",
        "all",
        "grok1*",
        "required.txt",
        "suite.yaml",
    ),
    *(
        "fail",
        "warn",
        "recorded",
        "published",
        "each",
        "h100",
        "25.05",
        "logs",
        "out.xml",
        "out.json",
        "h.db",
        "3",
        "0.5",
    ),
    *(
        "sqlite:///h.db",
        "postgresql://u:p@h/d",
        "grok1=recipes",
        "n[1-3]",
        "1",
        "0",
        "-1",
        "nsys:ranks=0,steps=20-25",
    ),
)
INI = re.compile(r"llmb_[a-z_]+")


def option_seeds() -> list[bytes]:
    """Return options with values, one per line; those of the ini file after their key."""
    lines = [
        f"{option.flag}={value}"
        for option in TYPED_OPTIONS
        for value in (option.default or "1", VALUES[0])
    ]
    groups = [lines[begin : begin + 3] for begin in range(0, len(lines), 3)]
    ini = [
        f"{option.dest} = {option.default or '1'}" for option in OPTIONS if option.ini
    ]
    return ["\n".join(group).encode() for group in [*groups, *([line] for line in ini)]]


def check_option(data: bytes) -> None:
    """Option values become settings, or the invalid option is named.

    A file named by an option may have any content.
    """
    typed: dict[str, object] = {}
    ini: dict[str, object] = {}
    by_name = {option.flag: option for option in TYPED_OPTIONS} | {
        option.dest: option for option in OPTIONS if option.ini
    }
    head, _, content = data.partition(b"\n\n")
    for line in head.decode("utf-8", "surrogateescape").split("\n"):
        name, _, value = line.partition("=")
        option = by_name.get(name.strip())
        if option is not None and "\0" not in value:
            layer = ini if INI.fullmatch(name.strip()) else typed
            whole: object = (
                [*layer.get(option.dest, []), value] if option.repeats else value  # type: ignore[misc]
            )
            layer[option.dest] = True if option.is_flag else whole
    with empty_folder() as folder:
        (folder / "logs").mkdir()
        for name in ("required.txt", "suite.yaml", "out.json", "h.db"):
            (folder / name).write_bytes(content)
        with refusals(SettingsError, LaunchError, naming=""):
            values = OptionValues(typed, ini)
            launch = resolve_launch(values, folder)
            require_types(launch, LaunchSettings | None)
            settings = resolve(
                values,
                folder,
                LaunchRequest(launch.launcher, launch.cluster) if launch else None,
            )
            require_types(settings, Settings)
            require(
                all(0 < limit.factor < 10 for limit in settings.tolerances),
                "a tolerance of any size",
            )
            require_types(settings.require, tuple[str, ...])


INI_FILES = ("pytest.ini", "pyproject.toml", "setup.cfg", "tox.ini", "pytest.toml")
INI_TEXTS = (
    "[pytest]\naddopts = --llmb-logs=a\nllmb_tolerance = 2%\nllmb_require =\n  all\n  grok1*\n",
    '[tool.pytest.ini_options]\nllmb_tolerance = "2%"\nllmb_baselines = ["a"]\n[tool.x]\nllmb_tolerance = 1\n',
    "[tool:pytest]\nllmb_tolerances = 2%\n[other]\nllmb_against = recorded\n",
    "[pytest]\nllmb-tolerance = 2%\n",
    "[pytest]\nllmb_tolerance = '2%'\n",
)


def ini_seeds() -> list[bytes]:
    """Return configuration files of pytest. The first byte selects the kind."""
    return [bytes([number]) + text.encode() for number, text in enumerate(INI_TEXTS)]


def check_ini(data: bytes) -> None:
    """A configuration file gives keys and values, or is refused with a reason."""
    with written(INI_FILES[(data or b"\0")[0] % len(INI_FILES)], data[1:]) as path:
        try:
            keys = read_file_keys(path)
            refuse_misplaced(path, path.name)
            refuse_unknown(list(keys), path.name)
            find_shadowed_keys(path)
        except (ValueError, SettingsError) as error:
            require(str(error), "a refusal without words")
