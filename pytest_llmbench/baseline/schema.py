"""Define the keys of a baseline file and their values.

docs/reference/baseline-files.md explains them. The module first defines what a key is,
then the keys of `launch` (how a recipe is started), then all others.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from pytest_llmbench.core.baseline_records import (
    USUAL_STEPS,
    USUAL_WINDOW,
    BaselineKind,
    Budget,
    RunMatch,
    TimesOf,
    Tolerance,
    ToleranceSource,
)
from pytest_llmbench.core.flops import NO_FORMULA
from pytest_llmbench.core.job_records import LAUNCHERS
from pytest_llmbench.core.metric_definitions import BUDGETED
from pytest_llmbench.core.tolerance import parse_fraction, parse_tolerances
from pytest_llmbench.core.yamlfile import (
    ConvertedScalar,
    Fields,
    Flag,
    Items,
    Names,
    Number,
    Spec,
    Text,
    YamlMapping,
)
from pytest_llmbench.logs.definitions import load_definitions
from pytest_llmbench.logs.dialect_table import DIALECTS, RATE, REGEX, UNITS

KINDS = tuple(kind.value for kind in BaselineKind)
"""Kinds of files: values from a document, values recorded on this cluster, or a recipe
without any time."""


class KeyDefinition(Struct, frozen=True):
    """A key of a baseline file.

    Reading, checking, writing and documenting the key all use this definition.
    """

    name: str
    spec: Spec
    meaning: str
    """As stated in docs/reference/baseline-files.md."""

    field: str = ""
    """Dotted attribute of `Baseline` that stores the value; empty if there is none or
    more than one."""

    required_in: tuple[str, ...] = ()
    """Kinds of files that must state the key."""

    allowed_in: tuple[str, ...] = KINDS
    """Kinds of files that may state the key. A key whose values differ between kinds is
    defined once for each."""

    is_owned: bool = False
    """True if recording never changes the key, which only the file's owner writes."""

    write: Callable[[Any], Any] | None = None
    """Converts the attribute to the value in a recorded file, if `spec` does not
    suffice."""


allow = KeyDefinition
require = partial(KeyDefinition, required_in=KINDS)


def make_fields(keys: Iterable[KeyDefinition], kind: str = KINDS[0]) -> Fields:
    """Return the required and optional keys of a mapping in a file of this kind."""
    allowed = [key for key in keys if kind in key.allowed_in]
    return Fields(
        {key.name: key.spec for key in allowed if kind in key.required_in},
        {key.name: key.spec for key in allowed if kind not in key.required_in},
    )


def make_tested_text(expected: str, test: Callable[[str], object]) -> Text:
    """Return a text spec that accepts values for which `test` is true.

    `test` may raise ValueError for an invalid value.
    """

    def accept(text: str) -> bool:
        """True if `test` is true and raises no error."""
        try:
            return bool(test(text))
        except (ValueError, re.error):
            return False

    return Text(expected, accept=accept)


NAME = Text(
    "a name of lower-case letters, digits and . _ + -",
    r"(?a:[a-z0-9][a-z0-9._+-]{0,99})",
)
WORD = Text("a name of lower-case letters and digits", r"(?a:[a-z0-9][a-z0-9_.]{0,49})")
TEXT = Text()
SIZE = Number(1, 10**9, whole=True)
GROUP = Number(1, 10**7, whole=True)
COUNT = Number(1, 10**6, whole=True)
STEP = Number(0, 10**9, whole=True)

# --- launch ---------------------------------------------------------------------------

PLACEHOLDERS = (
    "account",
    "partition",
    "nodes",
    "stage",
    "image",
    "checkpoint",
    "gpus_per_node",
    "arguments",
    "recipe",
    "size",
    "gpu",
    "dtype",
    "gpus",
    "gsw_version",
    "experiment",
    "timestamp",
    "job",
    "restart",
)


def _has_known_placeholders(text: str) -> bool:
    """True if a text has no other placeholders than PLACEHOLDERS."""
    # The name is None after the last placeholder, as for " --x" in "{nodes} --x".
    names = [name for _, name, _, _ in string.Formatter().parse(text)]
    return all(name is None or name in PLACEHOLDERS for name in names)


_TEMPLATE = make_tested_text(
    f"text whose placeholders are among {', '.join(f'{{{name}}}' for name in PLACEHOLDERS)}",
    _has_known_placeholders,
)
_JOB_ID = make_tested_text(
    r"a regular expression with the group job, such as 'job (?P<job>\d+)'",
    lambda text: "job" in re.compile(text).groupindex,
)
_VARIABLE = Text("the name of an environment variable", r"(?a:[A-Za-z_][A-Za-z0-9_]*)")
_VARIABLES = Names(_TEMPLATE, _VARIABLE)
_RANGE = Names(Items(GROUP, most=2), NAME)

COMMAND = (
    require("command", _TEMPLATE, "the command line"),
    allow(
        "folder",
        TEXT,
        "the working directory; default: the `folder` of the cluster file, or the folder of this file",
    ),
    allow("fixed", _VARIABLES, "variables of this command; nothing overrides them"),
    allow(
        "via",
        Text(choices=LAUNCHERS),
        "the launcher, see below; default: the name of the command",
    ),
    allow(
        "job_id",
        _JOB_ID,
        "a regular expression for the output of the command, with the group `job` and optionally `folder`",
    ),
    allow(
        "otherwise",
        TEXT,
        "message shown if a configuration defines no `arguments` for this command",
    ),
)
_ENVIRONMENT = Fields(
    {}, dict.fromkeys(("required", "optional", "forbidden"), _VARIABLES)
)
_MODULES = Items(Text("the name of a Python module", r"(?a:[A-Za-z_]\w*)"))
_NEEDS = Fields(
    {},
    {
        "hf_token": Flag(),
        "python": TEXT,
        "modules": _MODULES,
        "virtual_environment": Flag(),
        "dataset": TEXT,
    },
)
_PROFILING = Fields(
    {"enable": _VARIABLES},
    {
        **dict.fromkeys(("start", "stop", "ranks", "gpu_metrics", "cpu"), _VARIABLE),
        **dict.fromkeys(("default_start", "default_stop"), STEP),
    },
)
_CHECKPOINT = Fields(
    {"save": _VARIABLES, "load": _VARIABLES},
    {"disk_gb": Names(COUNT, NAME), "save_gpus": _RANGE, "load_gpus": _RANGE},
)
_SHORT_RUNS = Fields(
    {}, dict.fromkeys(("profile", "nccl-trace", "checkpoint-load"), COUNT)
)
LAUNCH = (
    require("kind", NAME, "the default command"),
    require(
        "commands",
        Names(make_fields(COMMAND), NAME),
        "the launch commands, by name",
    ),
    require("gpus_per_node", Names(GROUP, WORD), "GPUs per node, by GPU type"),
    allow("gsw_version", NAME, "the version of the recipe"),
    allow(
        "environment",
        _ENVIRONMENT,
        "environment variables that a job inherits: `required`, `optional`; `forbidden` variables are removed",
    ),
    allow(
        "sbatch_options",
        Names(TEXT, Text("an option such as --gres", r"(?a:--?[a-z][a-z-]*)")),
        "additional sbatch options of a job",
    ),
    allow(
        "log",
        _TEMPLATE,
        "path of the log, relative to `LLMB_WORKLOAD`, `STAGE_PATH` or the working directory",
    ),
    allow("setup", _TEMPLATE, "a command that prepares the recipe"),
    allow(
        "image",
        Fields({"source": TEXT}, {"file": TEXT, "digest": TEXT}),
        "the container image: `source`, `file`, `digest`",
    ),
    allow(
        "needs",
        _NEEDS,
        "requirements: `hf_token`, `python`, Python `modules`, `virtual_environment`, `dataset`",
    ),
    allow(
        "profiling",
        _PROFILING,
        "variables that enable profiling, and the names of further variables",
    ),
    allow("nccl_trace", _VARIABLES, "variables that make NCCL write a trace"),
    allow(
        "short_runs",
        _SHORT_RUNS,
        "number of steps of shorter, unmeasured jobs, by purpose",
    ),
    allow(
        "checkpoint",
        _CHECKPOINT,
        "variables that make a job save and load a checkpoint, its size, and the numbers of GPUs",
    ),
)

# --- models and metrics ---------------------------------------------------------------

SCHEMA = "1"
LATENT = ("q_rank", "kv_rank", "qk_head_size", "rope_size", "v_head_size")
"""Sizes of multi-head latent attention."""

FORMULA_NEEDS: dict[str, tuple[str, ...]] = {
    "grok": ("attention_heads", "query_groups", "ffn_size", "top_k"),
    "llama": ("attention_heads", "query_groups", "ffn_size"),
    "nemotron": (),
    "dense": ("attention_heads", "query_groups", "ffn_size"),
    "moe": ("attention_heads", "query_groups", "expert_ffn_size", "top_k"),
    "mla": ("attention_heads", "expert_ffn_size", "top_k", *LATENT),
    "hybrid": ("mamba_state_size", "mamba_groups", "mamba_heads"),
}
"""Sizes that each FLOPs formula needs, besides hidden and vocabulary size. NO_FORMULA
needs none."""

MODEL_PARTS = {
    "head_size": "size of a query or key head",
    "expert_ffn_size": "FFN size of one expert",
    "shared_ffn_size": "FFN size of the shared experts",
    "dense_layers": "number of layers without experts",
    "mtp_layers": "number of multi-token prediction layers",
    **dict.fromkeys(LATENT, "size of latent attention"),
    **dict.fromkeys(
        ("attention_layers", "mlp_layers", "expert_layers"),
        "number of such layers in a hybrid",
    ),
    "expert_latent_size": "size that experts use instead of the hidden size",
    **dict.fromkeys(
        ("mamba_state_size", "mamba_groups", "mamba_heads"), "size of a Mamba layer"
    ),
}
"""Sizes that only some models have, with their meaning."""

_SIZES = "configuration.architecture.{}"

SHAPE = ("sequence_length", "layers", "gbs")
"""Keys that a configuration must state for counting FLOPs."""

DERIVED = {
    "tokens_per_second": "tokens_per_second",
    "mfu": "mfu",
    "days_to_1t": "days_to_1t_tokens",
}
"""Cells that follow from the step time, with their metrics."""

NOT_GIVEN = ("NA", "n/a")
NO_PEAK = "NA"
"""Peak of a device without a stated peak, such as a CPU."""


# --- values of keys, and how a recording writes them ----------------------------------

_LARGEST_STEP_SECONDS = 86400
_DIGITS = r"\d{1,15}(\.\d{1,12})?"


def _is_positive(text: str) -> bool:
    """True if a printed number is positive or not given.

    `0.00` is a typing error, or represents a run that was not made.
    """
    return text in NOT_GIVEN or float(text) > 0


def _make_metric_spec(name: str) -> Text:
    """Return the spec of a printed positive number that may be NA."""
    return Text(
        f'a printed {name} such as "7.325", or {" or ".join(NOT_GIVEN)}',
        rf"(?a:{_DIGITS}|{'|'.join(NOT_GIVEN)})",
        accept=_is_positive,
    )


def _make_number_spec(name: str) -> Text:
    """Return the spec of a printed positive number."""
    return Text(
        f'a printed {name} such as "37556"', rf"(?a:{_DIGITS})", accept=_is_positive
    )


def _is_utilization(text: str) -> bool:
    """True if a printed percentage is above 0 and at most 100, or not given."""
    return text in NOT_GIVEN or 0 < float(text.rstrip("%")) <= 100


def _format_tolerances(tolerances: Iterable[Tolerance]) -> str:
    """Return `0.05, mfu:0.03`, in the syntax of --llmb-tolerance."""
    prefixes = {"time": "", "performance": "perf:"}
    texts = []
    for limit in tolerances:
        prefix = prefixes.get(limit.of, f"{limit.of}:")
        texts.append(f"{prefix}{format_decimal(limit.fraction)}")
    return ", ".join(texts)


def _map_budgets(budgets: Iterable[Budget]) -> dict[str, float]:
    """Return the largest value of each metric, as a file states it."""
    return {budget.metric: float(budget.largest) for budget in budgets}


def _map_match(match: RunMatch) -> dict[str, object]:
    """Return the keys `path` and `says` of a match, as a file states them."""
    return {"path": match.path, "says": dict(match.says)}


def format_decimal(number: float) -> str:
    """Return a float with all of its digits and no exponent: `989`, `0.05`."""
    # The schema accepts only digits and a point.
    return f"{Decimal(repr(float(number))):f}".removesuffix(".0")


def _name_definition(dialect: str) -> str:
    """Return the name of a dialect in a file: `regex` for a custom dialect."""
    # "regex:NAME" is the custom dialect of one file.
    name, _, _ = dialect.partition(":")
    return name


_PUBLISHED, _RECORDED = ("published",), ("recorded",)
_TIMED = ("published", "recorded")
_FROM_DOCUMENT = ("published", "recipe")

_DATE = make_tested_text('a date such as "2025-11-20"', datetime.fromisoformat)
_SECONDS = Number(1e-6, _LARGEST_STEP_SECONDS)
# Text keeps the printed digits; lint compares all of them with the computed value.
_COUNTED = Text('a count such as "104,689,827,840"', r"(?a:\d{1,3}(,?\d{3})*)")
_FLOPS = Text('model FLOPs such as "4.27E+15"', r"(?a:\d\.\d{1,9}[eE]\+?\d{1,3})")
_FORMULA = Text(
    f"{' or '.join(FORMULA_NEEDS)}, with the number of digits if the document rounds, as in llama:3, or none",
    rf"(?a:({'|'.join(map(re.escape, FORMULA_NEEDS))})(:[1-9])?|{NO_FORMULA})",
)
_PEAK = Text(
    'a peak in TFLOP/s, or "NA" if unknown',
    rf"(?a:{_DIGITS}|{NO_PEAK})",
    accept=_is_positive,
)
_LITERAL = Text(
    "at least three characters of one line",
    r"[^\r\n]*\S[^\r\n]*",
    accept=lambda text: len(text) > 2,
)
_TOLERANCES = ConvertedScalar(partial(parse_tolerances, source=ToleranceSource.FILE))
_FRACTION = ConvertedScalar(
    partial(parse_fraction, expected="a percentage such as 5% or 2.5%")
)
_BUDGETS = Fields({}, dict.fromkeys(BUDGETED, Number(1e-3, 10**6)))


# --- the keys of each mapping, in the order in which a recorded file states them ------

# Text, as printed: the number of digits is information.
CELLS = (
    allow(
        "step_time",
        Text(
            'a printed step time in seconds such as "7.325", at most a day',
            rf"(?a:{_DIGITS})",
            accept=lambda text: 0 < float(text) <= _LARGEST_STEP_SECONDS,
        ),
        "step time (s)",
    ),
    allow(
        "tokens_per_second", _make_metric_spec("throughput"), "throughput (tokens/s)"
    ),
    allow(
        "tokens_per_second_per_gpu",
        _make_number_spec("throughput of a GPU"),
        "throughput (tokens/s per GPU)",
    ),
    allow(
        "tflops_per_gpu",
        _make_number_spec("number of TFLOP/s"),
        "TFLOP/s of one GPU, as its framework counts",
    ),
    allow(
        "mfu",
        Text(
            'a printed MFU above 0% and at most 100% such as "47.59%", or NA or n/a',
            rf"(?a:{_DIGITS}%|NA|n/a)",
            accept=_is_utilization,
        ),
        "MFU",
    ),
    allow("days_to_1t", _make_metric_spec("number of days"), "1T tokens (days)"),
)
_MATCH = Fields({"path": TEXT, "says": Names(TEXT)})
_EARLIER = Fields({"date": _DATE, "seconds": _SECONDS}, {"by": TEXT, "reason": TEXT})
_RECORDING = (
    require("date", _DATE, "the day of the recording"),
    require("runs", COUNT, "number of runs in the mean"),
    require("mean_seconds", _SECONDS, "mean step time of these runs"),
    require(
        "trimmed_mean_seconds",
        _SECONDS,
        "trimmed mean step time of these runs: the expected value",
    ),
    require(
        "standard_deviation_seconds",
        Number(0, _LARGEST_STEP_SECONDS),
        "standard deviation of the steps within a run",
    ),
    require("run_seconds", Items(_SECONDS), "the step time of each run"),
    allow("groups", COUNT, "number of independent groups of runs: days, node sets"),
    require(
        "log_sha256",
        Items(Text("64 hexadecimal digits", r"[0-9a-f]{64}"), least=0),
        "SHA-256 hashes of the logs",
    ),
    allow("newest_run", _DATE, "start day of the newest run (UTC)"),
    allow("by", TEXT, "user and host of the recording"),
    allow("environment", Names(TEXT), "facts that all runs share"),
    allow(
        "reason",
        TEXT,
        "why the value may exceed the `drift_budget`",
    ),
    allow("levels", TEXT, "why the runs may have several levels"),
    allow(
        "observed",
        Names(Number(0, 1e18)),
        "further metrics of the runs, as medians",
    ),
    allow("earlier", Items(_EARLIER, least=0), "the replaced values, oldest first"),
)
RECORDED = tuple(replace(key, field=f"recording.{key.name}") for key in _RECORDING)
"""Keys that `--llmb-record` writes for a configuration; each is a field of
`Recording`."""

_GROUPS = "configuration.parallelism."
_GROUP_MEANINGS = {
    "tp": "tensor-parallel",
    "pp": "pipeline-parallel",
    "cp": "context-parallel",
    "ep": "expert-parallel",
    "etp": "expert-tensor-parallel",
    "dp": "data-parallel",
    "vp": "virtual-pipeline",
    "fsdp": "sharded data-parallel",
}
CONFIGURATION = (
    require("size", NAME, "model size, a name under `models`", "key.size"),
    require("gpu", WORD, "GPU type", "key.gpu"),
    require("dtype", WORD, "the precision", "key.dtype"),
    require(
        "gpus",
        Number(0, 10**7, whole=True),
        "number of GPUs; 0 if unknown",
        "key.gpus",
    ),
    allow(
        "task",
        NAME,
        "distinguishes rows that are equal in the keys above, such as lora",
        "key.task",
    ),
    allow("scaling", NAME, "distinguishes such rows: weak or strong", "key.scaling"),
    allow("variant", NAME, "distinguishes such rows: anything else", "key.variant"),
    allow("table", TEXT, "the title of the document's table", "source.table"),
    allow(
        "sequence_length",
        SIZE,
        "in tokens; required for counting FLOPs",
        "configuration.architecture.sequence_length",
    ),
    allow(
        "layers",
        Number(1, 100_000, whole=True),
        "number of layers; required for counting FLOPs",
        "configuration.architecture.layers",
    ),
    *(
        allow(name, GROUP, f"size of the {kind} group", f"{_GROUPS}{name}")
        for name, kind in _GROUP_MEANINGS.items()
    ),
    allow("mbs", SIZE, "micro batch size", "configuration.micro_batch_size"),
    allow(
        "gbs",
        SIZE,
        "global batch size; required for counting FLOPs",
        "configuration.global_batch_size",
    ),
    allow(
        "ga",
        SIZE,
        "steps of gradient accumulation",
        "configuration.gradient_accumulation",
    ),
    allow(
        "proxy",
        Flag(),
        "true: a reduced model, which has no days to 1T tokens",
        "configuration.proxy",
    ),
    allow(
        "logged_tflop",
        Number(1e-6, 1e9),
        "TFLOP of a step on one GPU, as logged",
        "configuration.logged_tflop",
    ),
    allow(
        "arguments",
        Names(TEXT),
        "further arguments of this configuration, by command",
        "configuration.arguments",
        (),
        _FROM_DOCUMENT,
    ),
    allow(
        "match",
        _MATCH,
        "path pattern and stated facts of its runs, instead of names",
        "match",
        write=_map_match,
    ),
    allow(
        "tolerance",
        _TOLERANCES,
        "tolerance of this configuration",
        "tolerances",
        write=_format_tolerances,
    ),
    allow(
        "budgets",
        _BUDGETS,
        "budgets of this configuration",
        "budgets",
        write=_map_budgets,
    ),
    KeyDefinition(
        "cells", make_fields(CELLS), "the printed values", "", _PUBLISHED, _PUBLISHED
    ),
    allow("cells", make_fields(CELLS), "the printed values", allowed_in=_RECORDED),
    KeyDefinition(
        "recorded",
        make_fields(RECORDED),
        "the recorded values",
        "",
        _RECORDED,
        _RECORDED,
    ),
)
GROUPS = tuple(_GROUP_MEANINGS)
COLUMNS = (*GROUPS, "sequence_length", "layers", "mbs", "gbs", "ga")
_WORKED = Fields(
    {
        "sequence_length": SIZE,
        "layers": SIZE,
        "attention": _COUNTED,
        "mlp": _COUNTED,
        "embedding": _COUNTED,
    },
    {"flops": _FLOPS},
)
MODEL = (
    require(
        "formula",
        _FORMULA,
        "a [FLOPs formula](../explanation/flops.md) with the digits it is rounded to, or `none`",
    ),
    allow(
        "hidden_size",
        SIZE,
        "hidden size; required by every formula",
        "configuration.architecture.hidden_size",
    ),
    allow(
        "vocabulary_size",
        SIZE,
        "in tokens; required by every formula",
        "configuration.architecture.vocabulary_size",
    ),
    *(
        allow(
            name,
            SIZE,
            "if required by the formula",
            f"configuration.architecture.{name}",
        )
        for name in ("ffn_size", "attention_heads", "query_groups", "top_k")
    ),
    allow(
        "mlp_matrices",
        Number(2, 3, whole=True),
        "3 (default), or 2: not gated",
        _SIZES.format("mlp_matrices"),
    ),
    *(
        allow(name, SIZE, f"{meaning}, if the model has any", _SIZES.format(name))
        for name, meaning in MODEL_PARTS.items()
    ),
    allow("printed_flops", _FLOPS, "FLOPs of a sequence as printed; lint checks them"),
    allow(
        "worked",
        _WORKED,
        "a worked example, which lint checks: `flops` from `attention`, `mlp` and `embedding`",
    ),
    allow("source", TEXT, "where the document states these sizes"),
)
_DIALECT = Text(choices=(*DIALECTS, *load_definitions(), REGEX))
LOG = (
    require("find", _LITERAL, "text in the line of every step"),
    require("pattern", TEXT, "regular expression for that line; see its groups below"),
    allow("unit", Text(choices=(*UNITS, RATE)), "unit of the group `seconds`"),
    allow("first_step", STEP, "number of the first step"),
    allow(
        "averages",
        Text(choices=tuple(map(str, TimesOf))),
        "whether a time averages the steps since the previous line",
    ),
    allow("start", _LITERAL, "text in a line where a process starts"),
    allow("end", _LITERAL, "text in a line after the last step"),
)
_CORRECTION = Fields({"printed": TEXT, "corrected": TEXT})
ERRATUM = (
    require("where", TEXT, "location in the document"),
    require("reason", TEXT, "why it is wrong"),
    allow("printed", TEXT, "the printed text"),
    allow("corrected", TEXT, "the correct text"),
    allow(
        "cell",
        Text("a cell", choices=(*DERIVED, *COLUMNS)),
        "or, for a table, the wrong cell",
    ),
    allow(
        "cells",
        Names(_CORRECTION),
        "`printed` and `corrected` of that cell, by configuration",
    ),
)


def _make_window(*statistics: str) -> Fields:
    """Return the keys of `window`, whose statistic is one of `statistics`."""
    return Fields({"statistic": Text(choices=statistics), "first": STEP, "last": STEP})


_SOURCE = Fields({"document": TEXT}, {"text": TEXT, "note": TEXT})
_WINDOW = "the steps that are measured"
_SOURCE_TIMED = "the statistic that the source states"
_TIMED_WINDOW = "the steps whose mean the source states, if they differ from `window`"
FILE = (
    require("schema", Number(1, 1, whole=True), "1"),
    require(
        "kind",
        Text(choices=KINDS),
        "origin of the numbers: published, recorded, or recipe (no numbers)",
        "kind",
    ),
    require("recipe", NAME, "the workload", "key.recipe"),
    require(
        "release",
        Text('a release such as "25.05"', NAME.pattern),
        "release of the document",
        "key.release",
    ),
    require(
        "dialect",
        _DIALECT,
        "log format",
        "dialect",
        write=_name_definition,
    ),
    allow("log", make_fields(LOG), "definition of a custom dialect", "log"),
    require(
        "source",
        _SOURCE,
        "the `document` of the numbers; its `text` and a `note`",
        "source",
    ),
    require(
        "peak_tflops",
        Names(Names(_PEAK, WORD), WORD),
        "peak of one GPU, by type and precision",
    ),
    allow(
        "models",
        Names(make_fields(MODEL), NAME),
        "model sizes for counting FLOPs, by size",
    ),
    KeyDefinition(
        "timed",
        Text(choices=("last_step", "mean")),
        _SOURCE_TIMED,
        "timed",
        _PUBLISHED,
        _FROM_DOCUMENT,
    ),
    KeyDefinition(
        "timed",
        Text(choices=("mean", "trimmed_mean")),
        _SOURCE_TIMED,
        "timed",
        _RECORDED,
        _RECORDED,
    ),
    KeyDefinition(
        "window", _make_window("mean"), _WINDOW, "window", _PUBLISHED, _FROM_DOCUMENT
    ),
    KeyDefinition(
        "window",
        _make_window("mean", "trimmed_mean"),
        _WINDOW,
        "window",
        _RECORDED,
        _RECORDED,
    ),
    KeyDefinition(
        "timed_window", _make_window("mean"), _TIMED_WINDOW, allowed_in=_PUBLISHED
    ),
    KeyDefinition("steps", SIZE, "number of steps of a run", "steps", _TIMED),
    allow(
        "logged_tflops_factor",
        Number(0.5, 2),
        "logged over computed TFLOP/s",
        "logged_tflops_factor",
    ),
    allow(
        "tolerance",
        _TOLERANCES,
        "how much worse a run may be",
        "tolerances",
        write=_format_tolerances,
    ),
    allow(
        "budgets",
        _BUDGETS,
        "how long saving or loading a checkpoint may take",
        "budgets",
        write=_map_budgets,
    ),
    allow(
        "drift_budget",
        _FRACTION,
        "how far recorded values may move in total",
        "drift_budget",
        write=format_decimal,
    ),
    KeyDefinition(
        "title", TEXT, "display name of the recipe", "", _FROM_DOCUMENT, is_owned=True
    ),
    KeyDefinition(
        "framework", TEXT, "the training framework", "", _FROM_DOCUMENT, is_owned=True
    ),
    KeyDefinition(
        "names",
        Items(NAME),
        "spellings of the recipe in folders, files and metadata",
        "",
        _FROM_DOCUMENT,
        is_owned=True,
    ),
    allow(
        "layout",
        Text(choices=("results", "experiments", "workloads")),
        "folder layout of its runs",
        is_owned=True,
    ),
    allow(
        "dp_excludes_ep",
        Flag(),
        "true: DP counts replicas of all the experts",
        is_owned=True,
    ),
    allow("launch", make_fields(LAUNCH), "how the recipe is launched", is_owned=True),
    allow(
        "errata",
        Items(make_fields(ERRATUM), least=0),
        "errors in the document",
        is_owned=True,
    ),
)
"""Keys of a file except `configurations`."""


def get_file_fields(kind: str) -> Fields:
    """Return the keys of a whole file of this kind."""
    rows = Items(make_fields(CONFIGURATION, kind))
    return make_fields((*FILE, require("configurations", rows, "one row each")), kind)


def add_defaults(entry: YamlMapping) -> YamlMapping:
    """Add defaults for the keys that a recipe omits.

    These are the window, the number of steps, the timed statistic, and a model without
    a formula for each size if `models` is missing.
    """
    window = YamlMapping(entry.line, USUAL_WINDOW._asdict(), {})
    lines_by_size = {row["size"]: row.line for row in entry["configurations"]}
    uncounted_models = {
        size: YamlMapping(line, {"formula": NO_FORMULA}, {"formula": line})
        for size, line in lines_by_size.items()
    }
    defaults = {
        "timed": "mean",
        "window": window,
        "steps": USUAL_STEPS,
        "models": YamlMapping(entry.line, uncounted_models, lines_by_size),
    }
    return replace(entry, values={**defaults, **entry.values})
