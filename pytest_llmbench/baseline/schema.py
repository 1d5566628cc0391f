"""Which keys a baseline file has, and what may stand in each; docs/baselines.md
explains them.

First what a key is, then the keys of `launch` (how a recipe is started), then all
others.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any

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
"""The document's numbers, this cluster's own, or a recipe that nothing has timed
yet."""


@dataclass(frozen=True, slots=True)
class KeyDefinition:
    """A key of a baseline file: everything that reads, checks, writes or documents it
    follows from here."""

    name: str
    spec: Spec
    meaning: str
    """As docs/baselines.md states it."""

    field: str = ""
    """The attribute of a `Baseline` that it becomes, dotted; empty where it becomes
    none or more than one."""

    required_in: tuple[str, ...] = ()
    """The kinds of files that have to state it."""

    allowed_in: tuple[str, ...] = KINDS
    """The kinds of files that may state it. A key whose values differ between kinds is
    defined once for each."""

    is_owned: bool = False
    """Whether only the owner of a recorded file writes it: no recording changes it."""

    write: Callable[[Any], Any] | None = None
    """What a recorded file states of that attribute, where its `spec` does not tell."""


allow = KeyDefinition
require = partial(KeyDefinition, required_in=KINDS)


def make_fields(keys: Iterable[KeyDefinition], kind: str = KINDS[0]) -> Fields:
    """Return the keys that a mapping in a file of this kind has to state and may
    state."""
    allowed = [key for key in keys if kind in key.allowed_in]
    return Fields(
        {key.name: key.spec for key in allowed if kind in key.required_in},
        {key.name: key.spec for key in allowed if kind not in key.required_in},
    )


def make_tested_text(expected: str, test: Callable[[str], object]) -> Text:
    """Return text that passes a test, which raises for what it cannot read."""

    def accept(text: str) -> bool:
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

_TEMPLATE = make_tested_text(
    f"text whose placeholders are among {', '.join(f'{{{name}}}' for name in PLACEHOLDERS)}",
    lambda text: all(
        name is None or name in PLACEHOLDERS
        for _, name, _, _ in string.Formatter().parse(text)
    ),
)
_JOB_ID = make_tested_text(
    r"a regular expression with the group job, such as 'job (?P<job>\d+)'",
    lambda text: "job" in re.compile(text).groupindex,
)
_VARIABLE = Text("the name of an environment variable", r"(?a:[A-Za-z_][A-Za-z0-9_]*)")
_VARIABLES = Names(_TEMPLATE, _VARIABLE)
_RANGE = Names(Items(GROUP, most=2), NAME)

COMMAND = (
    require("command", _TEMPLATE, "what is run"),
    allow(
        "folder",
        TEXT,
        "where it runs; the folder of this file otherwise, or the `folder` of the cluster file",
    ),
    allow("fixed", _VARIABLES, "variables of this command; nothing overrides them"),
    allow(
        "via",
        Text(choices=LAUNCHERS),
        "how it is launched, below; else its name says it",
    ),
    allow(
        "job_id",
        _JOB_ID,
        "a pattern with a group `job`, and perhaps `folder`, over what the command prints",
    ),
    allow(
        "otherwise", TEXT, "why it launches no configuration without `arguments` for it"
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
    require("kind", NAME, "the command that is the default"),
    require(
        "commands",
        Names(make_fields(COMMAND), NAME),
        "by any name, how it can be launched",
    ),
    require("gpus_per_node", Names(GROUP, WORD), "by type of GPU"),
    allow("gsw_version", NAME, "the version of the recipe"),
    allow(
        "environment",
        _ENVIRONMENT,
        "variables of the caller that a job gets; `forbidden` ones are removed",
    ),
    allow(
        "sbatch_options",
        Names(TEXT, Text("an option such as --gres", r"(?a:--?[a-z][a-z-]*)")),
        "of a job",
    ),
    allow(
        "log",
        _TEMPLATE,
        "below `LLMB_WORKLOAD`, `STAGE_PATH` or the folder where the command runs",
    ),
    allow("setup", _TEMPLATE, "a command that prepares it"),
    allow(
        "image",
        Fields({"source": TEXT}, {"file": TEXT, "digest": TEXT}),
        "its `source`, `file` and `digest`",
    ),
    allow(
        "needs",
        _NEEDS,
        "`hf_token`, `python`, `modules` of it, `virtual_environment`, `dataset`, where it does",
    ),
    allow(
        "profiling",
        _PROFILING,
        "what switches it on, and the names of the variables, as far as there are any",
    ),
    allow("nccl_trace", _VARIABLES, "what makes NCCL write a trace"),
    allow(
        "short_runs",
        _SHORT_RUNS,
        "steps of a job that is not measured, by its purpose, where it makes fewer",
    ),
    allow(
        "checkpoint",
        _CHECKPOINT,
        "what makes a job save and load one, its size, and with how many GPUs",
    ),
)

# --- models and metrics ---------------------------------------------------------------

SCHEMA = "1"
LATENT = ("q_rank", "kv_rank", "qk_head_size", "rope_size", "v_head_size")
"""The sizes of multi-head latent attention."""

FORMULA_NEEDS: dict[str, tuple[str, ...]] = {
    "grok": ("attention_heads", "query_groups", "ffn_size", "top_k"),
    "llama": ("attention_heads", "query_groups", "ffn_size"),
    "nemotron": (),
    "dense": ("attention_heads", "query_groups", "ffn_size"),
    "moe": ("attention_heads", "query_groups", "expert_ffn_size", "top_k"),
    "mla": ("attention_heads", "expert_ffn_size", "top_k", *LATENT),
    "hybrid": ("mamba_state_size", "mamba_groups", "mamba_heads"),
}
"""The sizes that each FLOPs formula needs besides hidden and vocabulary size;
NO_FORMULA needs none at all."""

MODEL_PARTS = {
    "head_size": "a head of queries and keys",
    "expert_ffn_size": "one expert",
    "shared_ffn_size": "the experts of all tokens",
    "dense_layers": "layers without experts",
    "mtp_layers": "layers that predict further tokens",
    **dict.fromkeys(LATENT, "latent attention"),
    **dict.fromkeys(
        ("attention_layers", "mlp_layers", "expert_layers"), "the layers of a hybrid"
    ),
    "expert_latent_size": "what experts work on in place of the hidden size",
    **dict.fromkeys(
        ("mamba_state_size", "mamba_groups", "mamba_heads"), "a Mamba layer"
    ),
}
"""Sizes that only some models have, each with what it is of."""

_SIZES = "configuration.architecture.{}"

SHAPE = ("sequence_length", "layers", "gbs")
"""The keys that a configuration states where FLOPs are counted."""

DERIVED = {
    "tokens_per_second": "tokens_per_second",
    "mfu": "mfu",
    "days_to_1t": "days_to_1t_tokens",
}
"""The cells that follow from the step time, each with its metric."""

NOT_GIVEN = ("NA", "n/a")
NO_PEAK = "NA"
"""The peak of what has none that anyone states, as a CPU."""


# --- what may stand behind a key, and how a recording writes it -----------------------

_LARGEST_STEP_SECONDS = 86400
_DIGITS = r"\d{1,15}(\.\d{1,12})?"


def _is_positive(text: str) -> bool:
    """Whether a printed number is above zero: `0.00` is a typing error, or a run that
    did not happen."""
    return text in NOT_GIVEN or float(text) > 0


def _make_metric_spec(name: str) -> Text:
    return Text(
        f'a printed {name} such as "7.325", or {" or ".join(NOT_GIVEN)}',
        rf"(?a:{_DIGITS}|{'|'.join(NOT_GIVEN)})",
        accept=_is_positive,
    )


def _make_number_spec(name: str) -> Text:
    return Text(
        f'a printed {name} such as "37556"', rf"(?a:{_DIGITS})", accept=_is_positive
    )


def _is_utilization(text: str) -> bool:
    return text in NOT_GIVEN or 0 < float(text.rstrip("%")) <= 100


def _format_tolerances(tolerances: Iterable[Tolerance]) -> str:
    """Return `0.05, mfu:0.03`: a file states what --llmb-tolerance would."""
    prefixes = {"time": "", "performance": "perf:"}
    texts = (
        prefixes.get(limit.of, f"{limit.of}:") + format_decimal(limit.fraction)
        for limit in tolerances
    )
    return ", ".join(texts)


def _map_budgets(budgets: Iterable[Budget]) -> dict[str, float]:
    return {budget.metric: float(budget.largest) for budget in budgets}


def _map_match(match: RunMatch) -> dict[str, object]:
    return {"path": match.path, "says": dict(match.says)}


def format_decimal(number: float) -> str:
    """Return a float with every digit it has and no exponent: `989`, `0.05`."""
    # The schema takes digits and a point only.
    return f"{Decimal(repr(float(number))):f}".removesuffix(".0")


def _name_definition(dialect: str) -> str:
    """Return what a file calls a dialect: `regex` the one that it defines itself."""
    return dialect.partition(":")[0]


_PUBLISHED, _RECORDED = ("published",), ("recorded",)
_TIMED = ("published", "recorded")
_FROM_DOCUMENT = ("published", "recipe")

_DATE = make_tested_text('a date such as "2025-11-20"', datetime.fromisoformat)
_SECONDS = Number(1e-6, _LARGEST_STEP_SECONDS)
# Text, since it is kept as printed; lint compares all of its digits with what it
# computes.
_COUNTED = Text('a count such as "104,689,827,840"', r"(?a:\d{1,3}(,?\d{3})*)")
_FLOPS = Text('model FLOPs such as "4.27E+15"', r"(?a:\d\.\d{1,9}[eE]\+?\d{1,3})")
_FORMULA = Text(
    f"{' or '.join(FORMULA_NEEDS)}, with the digits it is rounded to as in llama:3 where the document rounds, or none",
    rf"(?a:({'|'.join(map(re.escape, FORMULA_NEEDS))})(:[1-9])?|{NO_FORMULA})",
)
_PEAK = Text(
    'a peak in TFLOP/s, or "NA" where nothing states one',
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
    require("date", _DATE, "the day on which it was recorded"),
    require("runs", COUNT, "how many runs it is the mean of"),
    require("mean_seconds", _SECONDS, "mean step time of these runs"),
    require("trimmed_mean_seconds", _SECONDS, "their trimmed mean, which decides"),
    require(
        "standard_deviation_seconds",
        Number(0, _LARGEST_STEP_SECONDS),
        "of the steps within a run",
    ),
    require("run_seconds", Items(_SECONDS), "the step time of each run"),
    allow("groups", COUNT, "how many runs are independent: nights, sets of nodes"),
    require(
        "log_sha256",
        Items(Text("64 hexadecimal digits", r"[0-9a-f]{64}"), least=0),
        "of their logs",
    ),
    allow("newest_run", _DATE, "the day on which the newest of them started (UTC)"),
    allow("by", TEXT, "who recorded it, and on which host"),
    allow("environment", Names(TEXT), "what these runs agree on"),
    allow(
        "reason",
        TEXT,
        "why it may be further from the earlier values than `drift_budget` allows",
    ),
    allow("levels", TEXT, "why the mean of runs of several levels may stand"),
    allow(
        "observed",
        Names(Number(0, 1e18)),
        "what the runs showed beside their step time, medians over them",
    ),
    allow(
        "earlier", Items(_EARLIER, least=0), "the values that it replaced, oldest first"
    ),
)
RECORDED = tuple(replace(key, field=f"recording.{key.name}") for key in _RECORDING)
"""What `--llmb-record` writes of a configuration; each key is a field of
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
    require("size", NAME, "of the model, a name under `models`", "key.size"),
    require("gpu", WORD, "the type of GPU", "key.gpu"),
    require("dtype", WORD, "the precision", "key.dtype"),
    require(
        "gpus",
        Number(0, 10**7, whole=True),
        "the number of GPUs; 0 where nothing says it",
        "key.gpus",
    ),
    allow(
        "task",
        NAME,
        "tells rows apart that are the same in all of the above, such as lora",
        "key.task",
    ),
    allow("scaling", NAME, "the same: weak or strong", "key.scaling"),
    allow("variant", NAME, "the same: anything else", "key.variant"),
    allow("table", TEXT, "the title of the document's table", "source.table"),
    allow(
        "sequence_length",
        SIZE,
        "in tokens; FLOPs need it",
        "configuration.architecture.sequence_length",
    ),
    allow(
        "layers",
        Number(1, 100_000, whole=True),
        "the same; a proxy has fewer",
        "configuration.architecture.layers",
    ),
    *(
        allow(name, GROUP, f"size of the {what} group", f"{_GROUPS}{name}")
        for name, what in _GROUP_MEANINGS.items()
    ),
    allow("mbs", SIZE, "micro batch size", "configuration.micro_batch_size"),
    allow(
        "gbs", SIZE, "global batch size, the same", "configuration.global_batch_size"
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
        "true: it is not the full model, so it has no days to 1T tokens",
        "configuration.proxy",
    ),
    allow(
        "logged_tflop",
        Number(1e-6, 1e9),
        "of a step on one GPU, as it is logged",
        "configuration.logged_tflop",
    ),
    allow(
        "arguments",
        Names(TEXT),
        "by command, words of it alone",
        "configuration.arguments",
        (),
        _FROM_DOCUMENT,
    ),
    allow(
        "match",
        _MATCH,
        "where its runs lie and what they say, in place of names",
        "match",
        write=_map_match,
    ),
    allow(
        "tolerance",
        _TOLERANCES,
        "that of this configuration",
        "tolerances",
        write=_format_tolerances,
    ),
    allow(
        "budgets",
        _BUDGETS,
        "those of this configuration",
        "budgets",
        write=_map_budgets,
    ),
    KeyDefinition(
        "cells", make_fields(CELLS), "the printed values", "", _PUBLISHED, _PUBLISHED
    ),
    allow("cells", make_fields(CELLS), "the printed values", allowed_in=_RECORDED),
    KeyDefinition(
        "recorded", make_fields(RECORDED), "what was measured", "", _RECORDED, _RECORDED
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
        "one of [these](flops.md), and the digits it is rounded to; or `none`",
    ),
    allow(
        "hidden_size",
        SIZE,
        "of its layers; any formula needs it",
        "configuration.architecture.hidden_size",
    ),
    allow(
        "vocabulary_size",
        SIZE,
        "in tokens, the same",
        "configuration.architecture.vocabulary_size",
    ),
    *(
        allow(
            name,
            SIZE,
            "where its formula needs it",
            f"configuration.architecture.{name}",
        )
        for name in ("ffn_size", "attention_heads", "query_groups", "top_k")
    ),
    allow(
        "mlp_matrices",
        Number(2, 3, whole=True),
        "3, which stands, or 2: not gated",
        _SIZES.format("mlp_matrices"),
    ),
    *(
        allow(name, SIZE, f"of {what}, where it has any", _SIZES.format(name))
        for name, what in MODEL_PARTS.items()
    ),
    allow(
        "printed_flops", _FLOPS, "of a sequence, as stated; lint computes them again"
    ),
    allow(
        "worked",
        _WORKED,
        "an example of it, computed again: `flops` from `attention`, `mlp` and `embedding`",
    ),
    allow("source", TEXT, "where that stands"),
)
_DIALECT = Text(choices=(*DIALECTS, *load_definitions(), REGEX))
LOG = (
    require("find", _LITERAL, "stands in the line of every step"),
    require("pattern", TEXT, "reads that line; its groups are below"),
    allow("unit", Text(choices=(*UNITS, RATE)), "of the group `seconds`"),
    allow("first_step", STEP, "the number of the first step"),
    allow(
        "averages",
        Text(choices=tuple(map(str, TimesOf))),
        "whether a time is a mean since the line before",
    ),
    allow("start", _LITERAL, "stands in a line where a process starts"),
    allow("end", _LITERAL, "stands in a line behind the last step"),
)
_CORRECTION = Fields({"printed": TEXT, "corrected": TEXT})
ERRATUM = (
    require("where", TEXT, "the place in the document"),
    require("reason", TEXT, "why it is wrong"),
    allow("printed", TEXT, "what stands there, in the text"),
    allow("corrected", TEXT, "what should stand there"),
    allow(
        "cell",
        Text("a cell", choices=(*DERIVED, *COLUMNS)),
        "or, of a table, the cell that is wrong",
    ),
    allow(
        "cells",
        Names(_CORRECTION),
        "`printed` and `corrected` of that cell, by configuration",
    ),
)


def _make_window(*statistics: str) -> Fields:
    """Return the keys of `window`."""
    return Fields({"statistic": Text(choices=statistics), "first": STEP, "last": STEP})


_SOURCE = Fields({"document": TEXT}, {"text": TEXT, "note": TEXT})
_WINDOW = "the steps that are measured"
_SOURCE_TIMED = "what the source timed"
_TIMED_WINDOW = "the steps of which the source states the mean, where those are others than `window`"
FILE = (
    require("schema", Number(1, 1, whole=True), "1"),
    require(
        "kind",
        Text(choices=KINDS),
        "who vouches for the numbers, if anybody does",
        "kind",
    ),
    require("recipe", NAME, "the workload", "key.recipe"),
    require(
        "release",
        Text('a release such as "25.05"', NAME.pattern),
        "of its document",
        "key.release",
    ),
    require(
        "dialect",
        _DIALECT,
        "how its log is written",
        "dialect",
        write=_name_definition,
    ),
    allow("log", make_fields(LOG), "the lines of a dialect of your own", "log"),
    require(
        "source",
        _SOURCE,
        "the `document` the numbers come from; its `text` and a `note`",
        "source",
    ),
    require(
        "peak_tflops",
        Names(Names(_PEAK, WORD), WORD),
        "of one GPU, by type and precision",
    ),
    allow(
        "models",
        Names(make_fields(MODEL), NAME),
        "what FLOPs are counted from, by size, where they are",
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
    KeyDefinition("steps", SIZE, "of a run", "steps", _TIMED),
    allow(
        "logged_tflops_factor",
        Number(0.5, 2),
        "logged TFLOP/s as a multiple of the computed",
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
        "budgets", _BUDGETS, "what a checkpoint may take", "budgets", write=_map_budgets
    ),
    allow(
        "drift_budget",
        _FRACTION,
        "how far recorded values may move in all",
        "drift_budget",
        write=format_decimal,
    ),
    KeyDefinition(
        "title", TEXT, "the recipe as people call it", "", _FROM_DOCUMENT, is_owned=True
    ),
    KeyDefinition(
        "framework", TEXT, "what trains it", "", _FROM_DOCUMENT, is_owned=True
    ),
    KeyDefinition(
        "names",
        Items(NAME),
        "how folders, files and metadata spell it",
        "",
        _FROM_DOCUMENT,
        is_owned=True,
    ),
    allow(
        "layout",
        Text(choices=("results", "experiments", "workloads")),
        "the folders of its runs",
        is_owned=True,
    ),
    allow(
        "dp_excludes_ep",
        Flag(),
        "true: DP counts copies of all the experts",
        is_owned=True,
    ),
    allow("launch", make_fields(LAUNCH), "how it is launched", is_owned=True),
    allow(
        "errata",
        Items(make_fields(ERRATUM), least=0),
        "what the document prints and contradicts",
        is_owned=True,
    ),
)
"""The keys of a file besides `configurations`."""


def get_file_fields(kind: str) -> Fields:
    """Return the keys of a whole file of this kind."""
    rows = Items(make_fields(CONFIGURATION, kind))
    return make_fields((*FILE, require("configurations", rows, "one row each")), kind)


def add_defaults(entry: YamlMapping) -> YamlMapping:
    """Return a file with the window, the number of steps and what is timed, where a
    recipe leaves them out; without `models` with a model for each size whose FLOPs
    nobody counts."""
    window = YamlMapping(entry.line, USUAL_WINDOW._asdict(), {})
    rows = {row["size"]: row.line for row in entry["configurations"]}
    uncounted = {
        size: YamlMapping(line, {"formula": NO_FORMULA}, {"formula": line})
        for size, line in rows.items()
    }
    defaults = {
        "timed": "mean",
        "window": window,
        "steps": USUAL_STEPS,
        "models": YamlMapping(entry.line, uncounted, rows),
    }
    return replace(entry, values={**defaults, **entry.values})
