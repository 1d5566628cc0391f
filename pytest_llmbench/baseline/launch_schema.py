"""The keys of `launch` in a baseline file: how a recipe is started; docs/baselines.md
explains them."""

from __future__ import annotations

import re
import string

from pytest_llmbench.baseline.key_definition import (
    COUNT,
    GROUP,
    NAME,
    STEP,
    TEXT,
    WORD,
    allow,
    make_fields,
    make_tested_text,
    require,
)
from pytest_llmbench.core.job_records import LAUNCHERS
from pytest_llmbench.core.yamlfile import Fields, Flag, Items, Names, Text

PLACEHOLDERS = (
    *(
        "account",
        "partition",
        "nodes",
        "stage",
        "image",
        "checkpoint",
        "gpus_per_node",
        "arguments",
    ),
    *(
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
    ),
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
