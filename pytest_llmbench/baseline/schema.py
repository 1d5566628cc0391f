"""Which keys a baseline file has, and what may stand in each; docs/baselines.md
explains them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from functools import partial

from pytest_llmbench.baseline.key_definition import (
    COUNT,
    GROUP,
    KINDS,
    NAME,
    SIZE,
    STEP,
    TEXT,
    WORD,
    KeyDefinition,
    allow,
    make_fields,
    make_tested_text,
    require,
)
from pytest_llmbench.baseline.launch_schema import LAUNCH
from pytest_llmbench.core.baseline_records import (
    USUAL_STEPS,
    USUAL_WINDOW,
    Budget,
    RunMatch,
    TimesOf,
    Tolerance,
    ToleranceSource,
)
from pytest_llmbench.core.flops import NO_FORMULA
from pytest_llmbench.core.metric_definitions import BUDGETED
from pytest_llmbench.core.tolerance import parse_fraction, parse_tolerances
from pytest_llmbench.core.yamlfile import (
    ConvertedScalar,
    Fields,
    Flag,
    Items,
    Names,
    Number,
    Text,
    YamlMapping,
)
from pytest_llmbench.logs.definitions import load_definitions
from pytest_llmbench.logs.dialect_table import DIALECTS, RATE, REGEX, UNITS

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
    allow(
        "tp", GROUP, "size of the tensor-parallel group", "configuration.parallelism.tp"
    ),
    allow(
        "pp",
        GROUP,
        "size of the pipeline-parallel group",
        "configuration.parallelism.pp",
    ),
    allow(
        "cp",
        GROUP,
        "size of the context-parallel group",
        "configuration.parallelism.cp",
    ),
    allow(
        "ep", GROUP, "size of the expert-parallel group", "configuration.parallelism.ep"
    ),
    allow(
        "etp",
        GROUP,
        "size of the expert-tensor-parallel group",
        "configuration.parallelism.etp",
    ),
    allow(
        "dp", GROUP, "size of the data-parallel group", "configuration.parallelism.dp"
    ),
    allow(
        "vp",
        GROUP,
        "size of the virtual-pipeline group",
        "configuration.parallelism.vp",
    ),
    allow(
        "fsdp",
        GROUP,
        "size of the sharded data-parallel group",
        "configuration.parallelism.fsdp",
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
GROUPS = tuple(
    key.name
    for key in CONFIGURATION
    if key.field.startswith("configuration.parallelism.")
)
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
