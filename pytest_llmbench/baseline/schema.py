"""Which keys a baseline file has, and what may stand in each; docs/baselines.md explains them."""

from __future__ import annotations

import re
import string
from dataclasses import replace
from datetime import datetime
from functools import partial

from pytest_llmbench.core.dialects import DIALECTS, REGEX
from pytest_llmbench.core.metric_definitions import BUDGETED
from pytest_llmbench.core.patterns import RATE, UNITS
from pytest_llmbench.core.tolerance import parse_fraction, parse_tolerances
from pytest_llmbench.core.yamlfile.schema import (
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
KINDS = ("published", "recorded", "recipe")
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
GROUPS = ("tp", "pp", "cp", "ep", "etp", "dp", "vp", "fsdp")
COLUMNS = (*GROUPS, "sequence_length", "layers", "mbs", "gbs", "ga")
NOT_GIVEN = ("NA", "n/a")
NO_PEAK = "NA"
"""The peak of what has none that anyone states, as a CPU."""
PLACEHOLDERS = (
    *("account", "partition", "nodes", "stage", "checkpoint", "gpus_per_node"),
    *("recipe", "size", "gpu", "dtype", "gpus", "gsw_version", "experiment", "timestamp", "job", "restart"),
)

_LARGEST_STEP_SECONDS = 86400
_DIGITS = r"\d{1,15}(\.\d{1,12})?"


def is_positive(text: str) -> bool:
    """Whether a printed number is above zero: `0.00` is a typing error, or a run that did not happen."""
    return float(text.rstrip("%")) > 0


def _printed_metric(name: str, digits: str = _DIGITS) -> Text:
    example = "47.59%" if digits.endswith("%") else "7.325"
    absent = "|".join(NOT_GIVEN)
    return Text(
        f'a printed {name} such as "{example}", or {" or ".join(NOT_GIVEN)}',
        rf"(?a:{digits}|{absent})",
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

_CELLS = Fields(
    {
        "step_time": Text(
            'a printed step time in seconds such as "7.325", at most a day',
            rf"(?a:{_DIGITS})",
            accept=lambda text: 0 < float(text) <= _LARGEST_STEP_SECONDS,
        )
    },
    {
        "tokens_per_second": _printed_metric("throughput"),
        "mfu": Text(
            'a printed MFU above 0% and at most 100% such as "47.59%", or NA or n/a',
            rf"(?a:{_DIGITS}%|NA|n/a)",
            accept=_is_utilization,
        ),
        "days_to_1t": _printed_metric("number of days"),
    },
)
_RECORDED = Fields(
    {
        "date": _DATE,
        "runs": Number(1, 10**6, whole=True),
        "mean_seconds": _SECONDS,
        "trimmed_mean_seconds": _SECONDS,
        "standard_deviation_seconds": Number(0, _LARGEST_STEP_SECONDS),
        "run_seconds": Items(_SECONDS),
        "log_sha256": Items(Text("64 hexadecimal digits", r"[0-9a-f]{64}"), least=0),
    },
    {
        "groups": Number(1, 10**6, whole=True),
        "newest_run": _DATE,
        "by": _TEXT,
        "environment": Names(_TEXT),
        "reason": _TEXT,
        "levels": _TEXT,
        "earlier": Items(Fields({"date": _DATE, "seconds": _SECONDS}, {"by": _TEXT, "reason": _TEXT}), least=0),
    },
)
_CONFIGURATION: dict[str, Spec] = {
    "size": _NAME,
    "gpu": _WORD,
    "dtype": _WORD,
    "gpus": _GROUP,
    "sequence_length": _SIZE,
    "layers": Number(1, 100_000, whole=True),
    "gbs": _SIZE,
}
_CONFIGURATION_OPTIONS: dict[str, Spec] = {
    **dict.fromkeys(GROUPS, _GROUP),
    "mbs": _SIZE,
    "ga": _SIZE,
    "proxy": Flag(),
    "task": _NAME,
    "scaling": _NAME,
    "variant": _NAME,
    "table": _TEXT,
    "tolerance": _TOLERANCES,
    "budgets": _BUDGETS,
}
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
_LOG = Fields(
    {"find": _LITERAL, "pattern": _TEXT},
    {
        "unit": Text(choices=(*UNITS, RATE)),
        "first_step": Number(0, 10**9, whole=True),
        "averages": Text(choices=("single", "interval")),
        "start": _LITERAL,
        "end": _LITERAL,
    },
)
_REQUIRED: dict[str, Spec] = {
    "schema": Number(1, 1, whole=True),
    "kind": Text(choices=KINDS),
    "recipe": _NAME,
    "release": Text('a release such as "25.05"', _NAME.pattern),
    "dialect": Text(choices=(*DIALECTS, REGEX)),
    "source": Fields({"document": _TEXT}, {"text": _TEXT, "note": _TEXT}),
    "peak_tflops": Names(Names(_PEAK, _WORD), _WORD),
    "models": Names(_MODEL, _NAME),
}
_OPTIONAL: dict[str, Spec] = {
    "log": _LOG,
    "layout": Text(choices=("results", "experiments", "workloads")),
    "dp_excludes_ep": Flag(),
    "tolerance": _TOLERANCES,
    "budgets": _BUDGETS,
    "drift_budget": _FRACTION,
    "logged_tflops_factor": Number(0.5, 2),
    "launch": _LAUNCH,
    "errata": Items(_ERRATUM, least=0),
}


def get_file_fields(kind: str) -> Fields:
    """Return the keys of a whole file: a recorded one needs fewer facts about the document, and a recording; a recipe
    that nothing has timed has no cells, and a window and a number of steps where they are not the usual ones."""
    recorded, timed = kind == "recorded", kind != "recipe"
    cells, recording = {"cells": _CELLS} if timed else {}, {"recorded": _RECORDED}
    row = Fields(
        {**_CONFIGURATION, **(recording if recorded else cells)},
        {**_CONFIGURATION_OPTIONS, **(cells if recorded else {})},
    )
    about: dict[str, Spec] = {"title": _TEXT, "framework": _TEXT, "names": Items(_NAME)}
    how = _measurement_keys(recorded)
    return Fields(
        {**_REQUIRED, **(how if timed else {}), **({} if recorded else about), "configurations": Items(row)},
        {**({} if timed else how), **(about if recorded else {}), **_OPTIONAL},
    )


def add_defaults(entry: YamlMapping) -> YamlMapping:
    """Return a file with the window, the number of steps and what is timed, where a recipe leaves them out."""
    window = YamlMapping(entry.line, {"statistic": "mean", "first": 11, "last": 44}, {})
    return replace(entry, values={"timed": "mean", "window": window, "steps": 50, **entry.values})


def _measurement_keys(recorded: bool) -> dict[str, Spec]:
    """Return the keys that say what was measured."""
    step = Number(0, 10**9, whole=True)
    statistics = ("mean", "trimmed_mean") if recorded else ("mean",)
    return {
        "timed": Text(choices=("mean", "trimmed_mean") if recorded else ("last_step", "mean")),
        "window": Fields({"statistic": Text(choices=statistics), "first": step, "last": step}),
        "steps": Number(1, 10**9, whole=True),
    }
