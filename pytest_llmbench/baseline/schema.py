"""Which keys a baseline file has, and what may stand in each; docs/baselines.md explains them."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any

from pytest_llmbench.core.dialects import DIALECTS, RATE, REGEX, UNITS
from pytest_llmbench.core.metric_definitions import BUDGETED
from pytest_llmbench.core.models import BaselineKind, Budget, TimesOf, Tolerance, ToleranceSource
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

SCHEMA = "1"
KINDS = tuple(kind.value for kind in BaselineKind)
"""The document's numbers, this cluster's own, or a recipe that nothing has timed yet."""

LAUNCHERS = ("sbatch", "script", "llmb-run", "local")
"""How a command can be launched; a command of one of these names needs no `via`."""

FORMULA_NEEDS: dict[str, tuple[str, ...]] = {
    "grok": ("attention_heads", "query_groups", "ffn_size", "top_k"),
    "llama": ("attention_heads", "query_groups", "ffn_size"),
    "nemotron": (),
}
"""The sizes that each FLOPs formula needs besides hidden and vocabulary size."""

DERIVED = {"tokens_per_second": "tokens_per_second", "mfu": "mfu", "days_to_1t": "days_to_1t_tokens"}
"""The cells that follow from the step time, each with its metric."""

NOT_GIVEN = ("NA", "n/a")
NO_PEAK = "NA"
"""The peak of what has none that anyone states, as a CPU."""
PLACEHOLDERS = (
    *("account", "partition", "nodes", "stage", "checkpoint", "gpus_per_node"),
    *("recipe", "size", "gpu", "dtype", "gpus", "gsw_version", "experiment", "timestamp", "job", "restart"),
)


@dataclass(frozen=True, slots=True)
class KeyDefinition:
    """A key of a baseline file: everything that reads, checks, writes or documents it follows from here."""

    name: str
    spec: Spec
    meaning: str
    """As docs/baselines.md states it."""

    field: str = ""
    """The attribute of a `Baseline` that it becomes, dotted; empty where it becomes none or more than one."""

    required_in: tuple[str, ...] = ()
    """The kinds of files that have to state it."""

    allowed_in: tuple[str, ...] = KINDS
    """The kinds of files that may state it. A key whose values differ between kinds is defined once for each."""

    is_owned: bool = False
    """Whether only the owner of a recorded file writes it: no recording changes it."""

    write: Callable[[Any], Any] | None = None
    """What a recorded file states of that attribute, where its `spec` does not tell."""


_allow = KeyDefinition
_require = partial(KeyDefinition, required_in=KINDS)


def make_fields(keys: Iterable[KeyDefinition], kind: str = KINDS[0]) -> Fields:
    """Return the keys that a mapping in a file of this kind has to state and may state."""
    allowed = [key for key in keys if kind in key.allowed_in]
    return Fields(
        {key.name: key.spec for key in allowed if kind in key.required_in},
        {key.name: key.spec for key in allowed if kind not in key.required_in},
    )


# --- what may stand behind a key, and how a recording writes it ------------------------------------------

_LARGEST_STEP_SECONDS = 86400
_DIGITS = r"\d{1,15}(\.\d{1,12})?"


def _is_positive(text: str) -> bool:
    """Whether a printed number is above zero: `0.00` is a typing error, or a run that did not happen."""
    return text in NOT_GIVEN or float(text) > 0


def _make_metric_spec(name: str) -> Text:
    return Text(
        f'a printed {name} such as "7.325", or {" or ".join(NOT_GIVEN)}',
        rf"(?a:{_DIGITS}|{'|'.join(NOT_GIVEN)})",
        accept=_is_positive,
    )


def _is_utilization(text: str) -> bool:
    return text in NOT_GIVEN or 0 < float(text.rstrip("%")) <= 100


def _make_tested_text(expected: str, test: Callable[[str], object]) -> Text:
    """Return text that passes a test, which raises for what it cannot read."""

    def accept(text: str) -> bool:
        try:
            return bool(test(text))
        except (ValueError, re.error):
            return False

    return Text(expected, accept=accept)


def _format_tolerances(tolerances: Iterable[Tolerance]) -> str:
    """Return `0.05, mfu:0.03`: a file states what --llmb-tolerance would."""
    prefixes = {"time": "", "performance": "perf:"}
    texts = (prefixes.get(limit.of, f"{limit.of}:") + format_decimal(limit.fraction) for limit in tolerances)
    return ", ".join(texts)


def _map_budgets(budgets: Iterable[Budget]) -> dict[str, float]:
    return {budget.metric: float(budget.largest) for budget in budgets}


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

_NAME = Text("a name of lower-case letters, digits and . _ + -", r"(?a:[a-z0-9][a-z0-9._+-]{0,99})")
_WORD = Text("a name of lower-case letters and digits", r"(?a:[a-z0-9][a-z0-9_.]{0,49})")
_TEXT = Text()
_SIZE = Number(1, 10**9, whole=True)
_GROUP = Number(1, 10**7, whole=True)
_COUNT = Number(1, 10**6, whole=True)
_STEP = Number(0, 10**9, whole=True)
_DATE = _make_tested_text('a date such as "2025-11-20"', datetime.fromisoformat)
_SECONDS = Number(1e-6, _LARGEST_STEP_SECONDS)
# Text, since it is kept as printed; lint compares all of its digits with what it computes.
_COUNTED = Text('a count such as "104,689,827,840"', r"(?a:\d{1,3}(,?\d{3})*)")
_FLOPS = Text('model FLOPs such as "4.27E+15"', r"(?a:\d\.\d{1,9}[eE]\+?\d{1,3})")
_TEMPLATE = _make_tested_text(
    f"text whose placeholders are among {', '.join(f'{{{name}}}' for name in PLACEHOLDERS)}",
    lambda text: all(name is None or name in PLACEHOLDERS for _, name, _, _ in string.Formatter().parse(text)),
)
_FORMULA = Text(
    f"{' or '.join(FORMULA_NEEDS)}, with the digits it is rounded to as in llama:3 where the document rounds",
    rf"(?a:({'|'.join(map(re.escape, FORMULA_NEEDS))})(:[1-9])?)",
)
_PEAK = Text('a peak in TFLOP/s, or "NA" where nothing states one', rf"(?a:{_DIGITS}|{NO_PEAK})", accept=_is_positive)
_LITERAL = Text("at least three characters of one line", r"[^\r\n]*\S[^\r\n]*", accept=lambda text: len(text) > 2)
_JOB_ID = _make_tested_text(
    r"a regular expression with the group job, such as 'job (?P<job>\d+)'",
    lambda text: "job" in re.compile(text).groupindex,
)
_VARIABLE = Text("the name of an environment variable", r"(?a:[A-Za-z_][A-Za-z0-9_]*)")
_VARIABLES = Names(_TEMPLATE, _VARIABLE)
_RANGE = Names(Items(_GROUP, most=2), _NAME)
_TOLERANCES = ConvertedScalar(partial(parse_tolerances, source=ToleranceSource.FILE))
_FRACTION = ConvertedScalar(partial(parse_fraction, expected="a percentage such as 5% or 2.5%"))
_BUDGETS = Fields({}, dict.fromkeys(BUDGETED, Number(1e-3, 10**6)))


# --- the keys of each mapping, in the order in which a recorded file states them -------------------------

# Text, as printed: the number of digits is information.
CELLS = (
    _require(
        "step_time",
        Text(
            'a printed step time in seconds such as "7.325", at most a day',
            rf"(?a:{_DIGITS})",
            accept=lambda text: 0 < float(text) <= _LARGEST_STEP_SECONDS,
        ),
        "step time (s)",
    ),
    _allow("tokens_per_second", _make_metric_spec("throughput"), "throughput (tokens/s)"),
    _allow(
        "mfu",
        Text(
            'a printed MFU above 0% and at most 100% such as "47.59%", or NA or n/a',
            rf"(?a:{_DIGITS}%|NA|n/a)",
            accept=_is_utilization,
        ),
        "MFU",
    ),
    _allow("days_to_1t", _make_metric_spec("number of days"), "1T tokens (days)"),
)
_EARLIER = Fields({"date": _DATE, "seconds": _SECONDS}, {"by": _TEXT, "reason": _TEXT})
_RECORDING = (
    _require("date", _DATE, "the day on which it was recorded"),
    _require("runs", _COUNT, "how many runs it is the mean of"),
    _require("mean_seconds", _SECONDS, "mean step time of these runs"),
    _require("trimmed_mean_seconds", _SECONDS, "their trimmed mean, which decides"),
    _require("standard_deviation_seconds", Number(0, _LARGEST_STEP_SECONDS), "of the steps within a run"),
    _require("run_seconds", Items(_SECONDS), "the step time of each run"),
    _allow("groups", _COUNT, "how many runs are independent: nights, sets of nodes"),
    _require("log_sha256", Items(Text("64 hexadecimal digits", r"[0-9a-f]{64}"), least=0), "of their logs"),
    _allow("newest_run", _DATE, "the day on which the newest of them started (UTC)"),
    _allow("by", _TEXT, "who recorded it, and on which host"),
    _allow("environment", Names(_TEXT), "what these runs agree on"),
    _allow("reason", _TEXT, "why it may be further from the earlier values than `drift_budget` allows"),
    _allow("levels", _TEXT, "why the mean of runs of several levels may stand"),
    _allow("earlier", Items(_EARLIER, least=0), "the values that it replaced, oldest first"),
)
RECORDED = tuple(replace(key, field=f"recording.{key.name}") for key in _RECORDING)
"""What `--llmb-record` writes of a configuration; each key is a field of `Recording`."""

CONFIGURATION = (
    _require("size", _NAME, "of the model, a name under `models`", "key.size"),
    _require("gpu", _WORD, "the type of GPU", "key.gpu"),
    _require("dtype", _WORD, "the precision", "key.dtype"),
    _require("gpus", _GROUP, "the number of GPUs", "key.gpus"),
    _allow("task", _NAME, "tells rows apart that are the same in all of the above, such as lora", "key.task"),
    _allow("scaling", _NAME, "the same: weak or strong", "key.scaling"),
    _allow("variant", _NAME, "the same: anything else", "key.variant"),
    _allow("table", _TEXT, "the title of the document's table", "source.table"),
    _require("sequence_length", _SIZE, "in tokens", "configuration.architecture.sequence_length"),
    _require("layers", Number(1, 100_000, whole=True), "a proxy has fewer", "configuration.architecture.layers"),
    _allow("tp", _GROUP, "size of the tensor-parallel group", "configuration.parallelism.tp"),
    _allow("pp", _GROUP, "size of the pipeline-parallel group", "configuration.parallelism.pp"),
    _allow("cp", _GROUP, "size of the context-parallel group", "configuration.parallelism.cp"),
    _allow("ep", _GROUP, "size of the expert-parallel group", "configuration.parallelism.ep"),
    _allow("etp", _GROUP, "size of the expert-tensor-parallel group", "configuration.parallelism.etp"),
    _allow("dp", _GROUP, "size of the data-parallel group", "configuration.parallelism.dp"),
    _allow("vp", _GROUP, "size of the virtual-pipeline group", "configuration.parallelism.vp"),
    _allow("fsdp", _GROUP, "size of the sharded data-parallel group", "configuration.parallelism.fsdp"),
    _allow("mbs", _SIZE, "micro batch size", "configuration.micro_batch_size"),
    _require("gbs", _SIZE, "global batch size", "configuration.global_batch_size"),
    _allow("ga", _SIZE, "steps of gradient accumulation", "configuration.gradient_accumulation"),
    _allow("proxy", Flag(), "true: it is not the full model, so it has no days to 1T tokens", "configuration.proxy"),
    _allow("tolerance", _TOLERANCES, "that of this configuration", "tolerances", write=_format_tolerances),
    _allow("budgets", _BUDGETS, "those of this configuration", "budgets", write=_map_budgets),
    KeyDefinition("cells", make_fields(CELLS), "the printed values", "", _PUBLISHED, _PUBLISHED),
    _allow("cells", make_fields(CELLS), "the printed values", allowed_in=_RECORDED),
    KeyDefinition("recorded", make_fields(RECORDED), "what was measured", "", _RECORDED, _RECORDED),
)
GROUPS = tuple(key.name for key in CONFIGURATION if key.field.startswith("configuration.parallelism."))
COLUMNS = (*GROUPS, "sequence_length", "layers", "mbs", "gbs", "ga")
_WORKED = Fields(
    {"sequence_length": _SIZE, "layers": _SIZE, "attention": _COUNTED, "mlp": _COUNTED, "embedding": _COUNTED},
    {"flops": _FLOPS},
)
MODEL = (
    _require(
        "formula",
        _FORMULA,
        "`grok`, `llama` or `nemotron` ([how](flops.md)), and the digits it is rounded to",
    ),
    _require("hidden_size", _SIZE, "of its layers", "configuration.architecture.hidden_size"),
    _require("vocabulary_size", _SIZE, "in tokens", "configuration.architecture.vocabulary_size"),
    *(
        _allow(name, _SIZE, "where its formula needs it", f"configuration.architecture.{name}")
        for name in ("ffn_size", "attention_heads", "query_groups", "top_k")
    ),
    _allow("printed_flops", _FLOPS, "of a sequence, as stated; lint computes them again"),
    _allow("worked", _WORKED, "an example of it, computed again: `flops` from `attention`, `mlp` and `embedding`"),
    _allow("source", _TEXT, "where that stands"),
)
LOG = (
    _require("find", _LITERAL, "stands in the line of every step"),
    _require("pattern", _TEXT, "reads that line; its groups are below"),
    _allow("unit", Text(choices=(*UNITS, RATE)), "of the group `seconds`"),
    _allow("first_step", _STEP, "the number of the first step"),
    _allow("averages", Text(choices=tuple(map(str, TimesOf))), "whether a time is a mean since the line before"),
    _allow("start", _LITERAL, "stands in a line where a process starts"),
    _allow("end", _LITERAL, "stands in a line behind the last step"),
)
COMMAND = (
    _require("command", _TEMPLATE, "what is run"),
    _allow("folder", _TEXT, "where it runs; the folder of this file otherwise, or the `folder` of the cluster file"),
    _allow("fixed", _VARIABLES, "variables of this command; nothing overrides them"),
    _allow("via", Text(choices=LAUNCHERS), "how it is launched, below; else its name says it"),
    _allow("job_id", _JOB_ID, "a pattern with a group `job`, and perhaps `folder`, over what the command prints"),
)
_ENVIRONMENT = Fields({}, dict.fromkeys(("required", "optional", "forbidden"), _VARIABLES))
_MODULES = Items(Text("the name of a Python module", r"(?a:[A-Za-z_]\w*)"))
_NEEDS = Fields(
    {},
    {"hf_token": Flag(), "python": _TEXT, "modules": _MODULES, "virtual_environment": Flag(), "dataset": _TEXT},
)
_PROFILING = Fields(
    {"enable": _VARIABLES},
    {
        **dict.fromkeys(("start", "stop", "ranks", "gpu_metrics", "cpu"), _VARIABLE),
        **dict.fromkeys(("default_start", "default_stop"), _STEP),
    },
)
_CHECKPOINT = Fields(
    {"save": _VARIABLES, "load": _VARIABLES},
    {"disk_gb": Names(_COUNT, _NAME), "save_gpus": _RANGE, "load_gpus": _RANGE},
)
_SHORT_RUNS = Fields({}, dict.fromkeys(("profile", "nccl-trace", "checkpoint-load"), _COUNT))
LAUNCH = (
    _require("kind", _NAME, "the command that is the default"),
    _require("commands", Names(make_fields(COMMAND), _NAME), "by any name, how it can be launched"),
    _require("gpus_per_node", Names(_GROUP, _WORD), "by type of GPU"),
    _allow("gsw_version", _NAME, "the version of the recipe"),
    _allow("environment", _ENVIRONMENT, "variables of the caller that a job gets; `forbidden` ones are removed"),
    _allow("sbatch_options", Names(_TEXT, Text("an option such as --gres", r"(?a:--?[a-z][a-z-]*)")), "of a job"),
    _allow("log", _TEMPLATE, "below `LLMB_WORKLOAD`, `STAGE_PATH` or the folder where the command runs"),
    _allow("setup", _TEMPLATE, "a command that prepares it"),
    _allow("image", Fields({"source": _TEXT}, {"file": _TEXT, "digest": _TEXT}), "its `source`, `file` and `digest`"),
    _allow("needs", _NEEDS, "`hf_token`, `python`, `modules` of it, `virtual_environment`, `dataset`, where it does"),
    _allow("profiling", _PROFILING, "what switches it on, and the names of the variables, as far as there are any"),
    _allow("nccl_trace", _VARIABLES, "what makes NCCL write a trace"),
    _allow("short_runs", _SHORT_RUNS, "steps of a job that is not measured, by its purpose, where it makes fewer"),
    _allow("checkpoint", _CHECKPOINT, "what makes a job save and load one, its size, and with how many GPUs"),
)
_CORRECTION = Fields({"printed": _TEXT, "corrected": _TEXT})
ERRATUM = (
    _require("where", _TEXT, "the place in the document"),
    _require("reason", _TEXT, "why it is wrong"),
    _allow("printed", _TEXT, "what stands there, in the text"),
    _allow("corrected", _TEXT, "what should stand there"),
    _allow("cell", Text("a cell", choices=(*DERIVED, *COLUMNS)), "or, of a table, the cell that is wrong"),
    _allow("cells", Names(_CORRECTION), "`printed` and `corrected` of that cell, by configuration"),
)


def _make_window(*statistics: str) -> Fields:
    """Return the keys of `window`."""
    return Fields({"statistic": Text(choices=statistics), "first": _STEP, "last": _STEP})


_SOURCE = Fields({"document": _TEXT}, {"text": _TEXT, "note": _TEXT})
_WINDOW = "the steps that are measured"
_SOURCE_TIMED = "what the source timed"
FILE = (
    _require("schema", Number(1, 1, whole=True), "1"),
    _require("kind", Text(choices=KINDS), "who vouches for the numbers, if anybody does", "kind"),
    _require("recipe", _NAME, "the workload", "key.recipe"),
    _require("release", Text('a release such as "25.05"', _NAME.pattern), "of its document", "key.release"),
    _require("dialect", Text(choices=(*DIALECTS, REGEX)), "how its log is written", "dialect", write=_name_definition),
    _allow("log", make_fields(LOG), "the lines of a dialect of your own", "log"),
    _require("source", _SOURCE, "the `document` the numbers come from; its `text` and a `note`", "source"),
    _require("peak_tflops", Names(Names(_PEAK, _WORD), _WORD), "of one GPU, by type and precision"),
    _require("models", Names(make_fields(MODEL), _NAME), "what FLOPs are counted from, by size"),
    KeyDefinition("timed", Text(choices=("last_step", "mean")), _SOURCE_TIMED, "timed", _PUBLISHED, _FROM_DOCUMENT),
    KeyDefinition("timed", Text(choices=("mean", "trimmed_mean")), _SOURCE_TIMED, "timed", _RECORDED, _RECORDED),
    KeyDefinition("window", _make_window("mean"), _WINDOW, "window", _PUBLISHED, _FROM_DOCUMENT),
    KeyDefinition("window", _make_window("mean", "trimmed_mean"), _WINDOW, "window", _RECORDED, _RECORDED),
    KeyDefinition("steps", _SIZE, "of a run", "steps", _TIMED),
    _allow(
        "logged_tflops_factor", Number(0.5, 2), "logged TFLOP/s as a multiple of the computed", "logged_tflops_factor"
    ),
    _allow("tolerance", _TOLERANCES, "how much worse a run may be", "tolerances", write=_format_tolerances),
    _allow("budgets", _BUDGETS, "what a checkpoint may take", "budgets", write=_map_budgets),
    _allow("drift_budget", _FRACTION, "how far recorded values may move in all", "drift_budget", write=format_decimal),
    KeyDefinition("title", _TEXT, "the recipe as people call it", "", _FROM_DOCUMENT, is_owned=True),
    KeyDefinition("framework", _TEXT, "what trains it", "", _FROM_DOCUMENT, is_owned=True),
    KeyDefinition("names", Items(_NAME), "how folders, files and metadata spell it", "", _FROM_DOCUMENT, is_owned=True),
    _allow("layout", Text(choices=("results", "experiments", "workloads")), "the folders of its runs", is_owned=True),
    _allow("dp_excludes_ep", Flag(), "true: DP counts copies of all the experts", is_owned=True),
    _allow("launch", make_fields(LAUNCH), "how it is launched", is_owned=True),
    _allow("errata", Items(make_fields(ERRATUM), least=0), "what the document prints and contradicts", is_owned=True),
)
"""The keys of a file besides `configurations`."""


def get_file_fields(kind: str) -> Fields:
    """Return the keys of a whole file of this kind."""
    rows = Items(make_fields(CONFIGURATION, kind))
    return make_fields((*FILE, _require("configurations", rows, "one row each")), kind)


def add_defaults(entry: YamlMapping) -> YamlMapping:
    """Return a file with the window, the number of steps and what is timed, where a recipe leaves them out."""
    # What the documents of 25.05 to 25.07 average.
    window = YamlMapping(entry.line, {"statistic": "mean", "first": 11, "last": 44}, {})
    return replace(entry, values={"timed": "mean", "window": window, "steps": 50, **entry.values})
