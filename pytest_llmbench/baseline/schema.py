"""Which keys a baseline file has, and what may stand in each; docs/baselines.md explains them."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from pytest_llmbench.core.dialects import DIALECTS, RATE, REGEX, UNITS
from pytest_llmbench.core.metric_definitions import BUDGETED
from pytest_llmbench.core.models import BaselineKind
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

DERIVED = ("tokens_per_second", "mfu", "days_to_1t")
PARALLEL_GROUPS = {
    "tp": "tensor-parallel",
    "pp": "pipeline-parallel",
    "cp": "context-parallel",
    "ep": "expert-parallel",
    "etp": "expert-tensor-parallel",
    "dp": "data-parallel",
    "vp": "virtual-pipeline",
    "fsdp": "sharded data-parallel",
}
GROUPS = tuple(PARALLEL_GROUPS)
COLUMNS = (*GROUPS, "sequence_length", "layers", "mbs", "gbs", "ga")
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


def make_fields(keys: Iterable[KeyDefinition], kind: str) -> Fields:
    """Return the keys that a file of this kind has to state and may state."""
    allowed = [key for key in keys if kind in key.allowed_in]
    return Fields(
        {key.name: key.spec for key in allowed if kind in key.required_in},
        {key.name: key.spec for key in allowed if kind not in key.required_in},
    )


_LARGEST_STEP_SECONDS = 86400
_DIGITS = r"\d{1,15}(\.\d{1,12})?"


def is_positive(text: str) -> bool:
    """Whether a printed number is above zero: `0.00` is a typing error, or a run that did not happen."""
    return float(text.rstrip("%")) > 0


def _make_metric_spec(name: str) -> Text:
    return Text(
        f'a printed {name} such as "7.325", or {" or ".join(NOT_GIVEN)}',
        rf"(?a:{_DIGITS}|{'|'.join(NOT_GIVEN)})",
        accept=lambda text: text in NOT_GIVEN or is_positive(text),
    )


def _is_utilization(text: str) -> bool:
    return text in NOT_GIVEN or 0 < float(text.rstrip("%")) <= 100


def _is_date(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _has_known_placeholders(text: str) -> bool:
    try:
        return all(name is None or name in PLACEHOLDERS for _, name, _, _ in string.Formatter().parse(text))
    except ValueError:
        return False


def _names_a_job(text: str) -> bool:
    try:
        return "job" in re.compile(text).groupindex
    except re.error:
        return False


_JOB_ID = Text(r"a regular expression with the group job, such as 'job (?P<job>\d+)'", accept=_names_a_job)
_NAME = Text("a name of lower-case letters, digits and . _ + -", r"(?a:[a-z0-9][a-z0-9._+-]{0,99})")
_WORD = Text("a name of lower-case letters and digits", r"(?a:[a-z0-9][a-z0-9_.]{0,49})")
_TEXT = Text()
_TOLERANCES = ConvertedScalar(partial(parse_tolerances, source="baseline file"))
_FRACTION = ConvertedScalar(partial(parse_fraction, expected="a percentage such as 5% or 2.5%"))
_BUDGETS = Fields({}, dict.fromkeys(BUDGETED, Number(1e-3, 10**6)))
_SIZE = Number(1, 10**9, whole=True)
_GROUP = Number(1, 10**7, whole=True)
_DATE = Text('a date such as "2025-11-20"', accept=_is_date)
_SECONDS = Number(1e-6, _LARGEST_STEP_SECONDS)
# Text, since it is kept as printed; lint compares all of its digits with what it computes.
_COUNTED = Text('a count such as "104,689,827,840"', r"(?a:\d{1,3}(,?\d{3})*)")
_FLOPS = Text('model FLOPs such as "4.27E+15"', r"(?a:\d\.\d{1,9}[eE]\+?\d{1,3})")
_TEMPLATE = Text(
    f"text whose placeholders are among {', '.join(f'{{{name}}}' for name in PLACEHOLDERS)}",
    accept=_has_known_placeholders,
)
_FORMULA = Text(
    f"{' or '.join(FORMULA_NEEDS)}, with the digits it is rounded to as in llama:3 where the document rounds",
    rf"(?a:({'|'.join(map(re.escape, FORMULA_NEEDS))})(:[1-9])?)",
)
_VARIABLE = Text("the name of an environment variable", r"(?a:[A-Za-z_][A-Za-z0-9_]*)")
_VARIABLES = Names(_TEMPLATE, _VARIABLE)
_OPTIONS = Names(_TEXT, Text("an option such as --gres", r"(?a:--?[a-z][a-z-]*)"))

# Text, as printed: the number of digits is information.
_CELLS = Fields(
    {
        "step_time": Text(
            'a printed step time in seconds such as "7.325", at most a day',
            rf"(?a:{_DIGITS})",
            accept=lambda text: 0 < float(text) <= _LARGEST_STEP_SECONDS,
        )
    },
    {
        "tokens_per_second": _make_metric_spec("throughput"),
        "mfu": Text(
            'a printed MFU above 0% and at most 100% such as "47.59%", or NA or n/a',
            rf"(?a:{_DIGITS}%|NA|n/a)",
            accept=_is_utilization,
        ),
        "days_to_1t": _make_metric_spec("number of days"),
    },
)
RECORDED = (
    KeyDefinition("date", _DATE, "the day on which it was recorded", required_in=KINDS),
    KeyDefinition("runs", Number(1, 10**6, whole=True), "how many runs it is the mean of", required_in=KINDS),
    KeyDefinition("mean_seconds", _SECONDS, "mean step time of these runs", required_in=KINDS),
    KeyDefinition("trimmed_mean_seconds", _SECONDS, "their trimmed mean, which decides", required_in=KINDS),
    KeyDefinition(
        "standard_deviation_seconds", Number(0, _LARGEST_STEP_SECONDS), "of the steps within a run", required_in=KINDS
    ),
    KeyDefinition("run_seconds", Items(_SECONDS), "the step time of each run", required_in=KINDS),
    KeyDefinition("groups", Number(1, 10**6, whole=True), "how many runs are independent: nights, sets of nodes"),
    KeyDefinition(
        "log_sha256", Items(Text("64 hexadecimal digits", r"[0-9a-f]{64}"), least=0), "of their logs", required_in=KINDS
    ),
    KeyDefinition("newest_run", _DATE, "the day on which the newest of them started (UTC)"),
    KeyDefinition("by", _TEXT, "who recorded it, and on which host"),
    KeyDefinition("environment", Names(_TEXT), "what these runs agree on"),
    KeyDefinition("reason", _TEXT, "why it may be further from the earlier values than `drift_budget` allows"),
    KeyDefinition("levels", _TEXT, "why the mean of runs of several levels may stand"),
    KeyDefinition(
        "earlier",
        Items(Fields({"date": _DATE, "seconds": _SECONDS}, {"by": _TEXT, "reason": _TEXT}), least=0),
        "the values that it replaced, oldest first",
    ),
)
"""What `--llmb-record` writes of a configuration, in this order; each key is a field of `Recording`."""

_LAYERS = Number(1, 100_000, whole=True)
CONFIGURATION = (
    KeyDefinition("size", _NAME, "of the model, a name under `models`", "key.size", required_in=KINDS),
    KeyDefinition("gpu", _WORD, "the type of GPU", "key.gpu", required_in=KINDS),
    KeyDefinition("dtype", _WORD, "the precision", "key.dtype", required_in=KINDS),
    KeyDefinition("gpus", _GROUP, "the number of GPUs", "key.gpus", required_in=KINDS),
    KeyDefinition("task", _NAME, "tells rows apart that are the same in all of the above, such as lora", "key.task"),
    KeyDefinition("scaling", _NAME, "the same: weak or strong", "key.scaling"),
    KeyDefinition("variant", _NAME, "the same: anything else", "key.variant"),
    KeyDefinition("table", _TEXT, "the title of the document's table", "source.table"),
    KeyDefinition("sequence_length", _SIZE, "in tokens", "configuration.architecture.sequence_length", KINDS),
    KeyDefinition("layers", _LAYERS, "a proxy has fewer", "configuration.architecture.layers", KINDS),
    *(
        KeyDefinition(name, _GROUP, f"size of the {what} group", f"configuration.parallelism.{name}")
        for name, what in PARALLEL_GROUPS.items()
    ),
    KeyDefinition("mbs", _SIZE, "micro batch size", "configuration.micro_batch_size"),
    KeyDefinition("gbs", _SIZE, "global batch size", "configuration.global_batch_size", required_in=KINDS),
    KeyDefinition("ga", _SIZE, "steps of gradient accumulation", "configuration.gradient_accumulation"),
    KeyDefinition(
        "proxy", Flag(), "true: it is not the full model, so it has no days to 1T tokens", "configuration.proxy"
    ),
    KeyDefinition("tolerance", _TOLERANCES, "that of this configuration"),
    KeyDefinition("budgets", _BUDGETS, "those of this configuration"),
    KeyDefinition("cells", _CELLS, "the printed values", required_in=("published",), allowed_in=("published",)),
    KeyDefinition("cells", _CELLS, "the printed values", allowed_in=("recorded",)),
    KeyDefinition(
        "recorded",
        make_fields(RECORDED, "recorded"),
        "what was measured",
        required_in=("recorded",),
        allowed_in=("recorded",),
    ),
)
"""The keys of one configuration, in the order in which a recorded file states them."""

_WORKED = Fields(
    {"sequence_length": _SIZE, "layers": _SIZE, "attention": _COUNTED, "mlp": _COUNTED, "embedding": _COUNTED},
    {"flops": _FLOPS},
)
_MODEL = Fields(
    {"formula": _FORMULA, "hidden_size": _SIZE, "vocabulary_size": _SIZE},
    {
        **dict.fromkeys(("attention_heads", "query_groups", "ffn_size", "top_k"), _SIZE),
        "printed_flops": _FLOPS,
        "worked": _WORKED,
        "source": _TEXT,
    },
)
_LAUNCH = Fields(
    {
        "kind": _NAME,
        "commands": Names(
            Fields(
                {"command": _TEMPLATE},
                {"folder": _TEXT, "fixed": _VARIABLES, "via": Text(choices=LAUNCHERS), "job_id": _JOB_ID},
            ),
            _NAME,
        ),
        "gpus_per_node": Names(_GROUP, _WORD),
    },
    {
        "gsw_version": _NAME,
        "environment": Fields({}, dict.fromkeys(("required", "optional", "forbidden"), _VARIABLES)),
        "sbatch_options": _OPTIONS,
        "log": _TEMPLATE,
        "setup": _TEMPLATE,
        "image": Fields({"source": _TEXT}, {"file": _TEXT, "digest": _TEXT}),
        "needs": Fields({}, {"hf_token": Flag(), "python": _TEXT, "virtual_environment": Flag(), "dataset": _TEXT}),
        "profiling": Fields(
            {"enable": _VARIABLES},
            {
                **dict.fromkeys(("start", "stop", "ranks", "gpu_metrics", "cpu"), _VARIABLE),
                **dict.fromkeys(("default_start", "default_stop"), Number(0, 10**9, whole=True)),
            },
        ),
        "nccl_trace": _VARIABLES,
        "checkpoint": Fields(
            {"save": _VARIABLES, "load": _VARIABLES},
            {
                "disk_gb": Names(Number(1, 10**6, whole=True), _NAME),
                "save_gpus": Names(Items(_GROUP, most=2), _NAME),
                "load_gpus": Names(Items(_GROUP, most=2), _NAME),
            },
        ),
    },
)
_CORRECTIONS = Names(Fields({"printed": _TEXT, "corrected": _TEXT}))
_ERRATUM = Fields(
    {"where": _TEXT, "reason": _TEXT},
    {
        "printed": _TEXT,
        "corrected": _TEXT,
        "cell": Text("a cell", choices=(*DERIVED, *COLUMNS)),
        "cells": _CORRECTIONS,
    },
)


_PEAK = Text(
    'a peak in TFLOP/s, or "NA" where nothing states one',
    rf"(?a:{_DIGITS}|NA)",
    accept=lambda text: text == NO_PEAK or is_positive(text),
)
_LITERAL = Text("at least three characters of one line", r"[^\r\n]*\S[^\r\n]*", accept=lambda text: len(text) > 2)
LOG = Fields(
    {"find": _LITERAL, "pattern": _TEXT},
    {
        "unit": Text(choices=(*UNITS, RATE)),
        "first_step": Number(0, 10**9, whole=True),
        "averages": Text(choices=("single", "interval")),
        "start": _LITERAL,
        "end": _LITERAL,
    },
)
_STEP = Number(0, 10**9, whole=True)
_TIMED = ("published", "recorded")
_FROM_DOCUMENT = ("published", "recipe")


def _make_window(*statistics: str) -> Fields:
    return Fields({"statistic": Text(choices=statistics), "first": _STEP, "last": _STEP})


FILE = (
    KeyDefinition("schema", Number(1, 1, whole=True), "1", required_in=KINDS),
    KeyDefinition("kind", Text(choices=KINDS), "who vouches for the numbers, if anybody does", required_in=KINDS),
    KeyDefinition("recipe", _NAME, "the workload", "key.recipe", required_in=KINDS),
    KeyDefinition(
        "release", Text('a release such as "25.05"', _NAME.pattern), "of its document", "key.release", required_in=KINDS
    ),
    KeyDefinition("dialect", Text(choices=(*DIALECTS, REGEX)), "how its log is written", required_in=KINDS),
    KeyDefinition(
        "source",
        Fields({"document": _TEXT}, {"text": _TEXT, "note": _TEXT}),
        "where the numbers come from",
        required_in=KINDS,
    ),
    KeyDefinition(
        "peak_tflops", Names(Names(_PEAK, _WORD), _WORD), "of one GPU, by type and precision", required_in=KINDS
    ),
    KeyDefinition("models", Names(_MODEL, _NAME), "what FLOPs are counted from, by size", required_in=KINDS),
    KeyDefinition(
        "timed", Text(choices=("last_step", "mean")), "what the source timed", "timed", ("published",), _FROM_DOCUMENT
    ),
    KeyDefinition(
        "timed", Text(choices=("mean", "trimmed_mean")), "what the source timed", "timed", ("recorded",), ("recorded",)
    ),
    KeyDefinition("window", _make_window("mean"), "the steps that are measured", "", ("published",), _FROM_DOCUMENT),
    KeyDefinition(
        "window", _make_window("mean", "trimmed_mean"), "the steps that are measured", "", ("recorded",), ("recorded",)
    ),
    KeyDefinition("steps", Number(1, 10**9, whole=True), "of a run", "steps", required_in=_TIMED),
    KeyDefinition("title", _TEXT, "the recipe as people call it", required_in=_FROM_DOCUMENT, is_owned=True),
    KeyDefinition("framework", _TEXT, "what trains it", required_in=_FROM_DOCUMENT, is_owned=True),
    KeyDefinition(
        "names", Items(_NAME), "how folders, files and metadata spell it", required_in=_FROM_DOCUMENT, is_owned=True
    ),
    KeyDefinition("log", LOG, "the lines of a dialect of your own"),
    KeyDefinition(
        "layout", Text(choices=("results", "experiments", "workloads")), "the folders of its runs", is_owned=True
    ),
    KeyDefinition("dp_excludes_ep", Flag(), "true: DP counts copies of all the experts", is_owned=True),
    KeyDefinition("tolerance", _TOLERANCES, "how much worse a run may be"),
    KeyDefinition("budgets", _BUDGETS, "what a checkpoint may take"),
    KeyDefinition("drift_budget", _FRACTION, "how far recorded values may move in all"),
    KeyDefinition("logged_tflops_factor", Number(0.5, 2), "logged TFLOP/s as a multiple of the computed"),
    KeyDefinition("launch", _LAUNCH, "how it is launched", is_owned=True),
    KeyDefinition("errata", Items(_ERRATUM, least=0), "what the document prints and contradicts", is_owned=True),
)
"""The keys of a file besides `configurations`, in the order in which a message lists those that are missing."""


def get_file_fields(kind: str) -> Fields:
    """Return the keys of a whole file of this kind."""
    rows = Items(make_fields(CONFIGURATION, kind))
    return make_fields((*FILE, KeyDefinition("configurations", rows, "one row each", required_in=KINDS)), kind)


def add_defaults(entry: YamlMapping) -> YamlMapping:
    """Return a file with the window, the number of steps and what is timed, where a recipe leaves them out."""
    # What the documents of 25.05 to 25.07 average.
    window = YamlMapping(entry.line, {"statistic": "mean", "first": 11, "last": 44}, {})
    return replace(entry, values={"timed": "mean", "window": window, "steps": 50, **entry.values})
