"""Parse the names of experiments and logs: pure functions over strings.

Recognises all spellings of `pretrain_<recipe>_<size>_<precision>_<GPUs>`, the log names
that launchers derive from it, and two older forms:
`log-<framework>_<model>_<size>_<GPUs>_<job>` and `log-<framework>-<GPUs>_<size>_<job>`.
The position of a number, never its value, decides if it is a GPU count or a job id.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import groupby
from operator import itemgetter

from msgspec import Struct

from pytest_llmbench.core.gpus import GPU_TYPES
from pytest_llmbench.core.patterns import compile_on_use

TYPE = r"pretrain(?:ing)?|fine[-_]?tun(?:e|ing)|sft|peft|lora|inference"
SIZE = r"\d+(?:\.\d+)?[bmt](?:_a\d+(?:\.\d+)?b)?|\d+x\d+(?:\.\d+)?b"
PRECISION = r"(?:bf|fp|tf|nvfp|mxfp|int)\d{1,2}[a-z]{0,4}"
# sorted, so that equal beginnings are compared once
GPU = "|".join(
    f"{letter}(?:{'|'.join(name[1:] for name in names)})"
    for letter, names in groupby(
        sorted(gpu.name for gpu in GPU_TYPES if gpu.in_paths), key=itemgetter(0)
    )
)
_FLAGS = re.IGNORECASE | re.DOTALL
LONGEST_NAME = 255
"""Longest name that file systems allow; longer names (in archives) are not experiments.
"""

# `pretrain_` after a separator: `team-team.pretrain_grok1_314b_bf16_256`
_TYPE_WORD = compile_on_use(rf"(?:^|(?<=[-_. ]))(?:{TYPE})_", _FLAGS)
# `pretrain_grok1_314b_bf16_256`, `llama3_8b-proxy_long_fp8_cs_gpus64_tp2`
_EXPERIMENT = compile_on_use(
    rf"(?:(?P<type>{TYPE})_)?(?P<recipe>.+?)_(?P<size>{SIZE})(?P<proxy>[-_]proxy)?"
    rf"(?:_(?P<variant>.+?))?_(?P<dtype>{PRECISION})(?P<rest>(?:_.*)?)",
    _FLAGS,
)
# Experiments of models without a size, recognised by the type and the GPU count:
# `pretrain_mixtral_bf16_gpus64`.
_UNSIZED = compile_on_use(
    rf"(?P<type>{TYPE})_(?P<recipe>[a-z][a-z0-9_.]*?)_(?P<dtype>{PRECISION})(?P<rest>(?:_[^_]+)?_gpus\d+(?:_.*)?)",
    _FLAGS,
)
# `pretrain_grok1`
_WORKLOAD = compile_on_use(rf"(?P<type>{TYPE})_(?P<recipe>.+)", _FLAGS)
# `nemotron4_15b_16_1234_0`: 16 GPUs, job 1234, attempt 0
_SIZE_THEN_GPUS = compile_on_use(
    rf"(?P<recipe>.+?)_(?P<size>{SIZE})_(?P<gpus>\d+)(?:_(?P<job>\d+))?(?:_(?P<attempt>\d+))?",
    _FLAGS,
)
# `grok1-256_314b_1234`: 256 GPUs, job 1234
_GPUS_THEN_SIZE = compile_on_use(
    rf"(?P<recipe>[^_]+)-(?P<gpus>\d+)_(?P<size>{SIZE})(?:_(?P<job>\d+))?(?:_(?P<attempt>\d+))?",
    _FLAGS,
)
# `log-mine_1234_0`
_JOB_AND_ATTEMPT = compile_on_use(
    r"(?P<base>.*?)_(?P<job>\d+)(?:_(?P<attempt>\d+))?", re.DOTALL
)
# Megatron-Bridge of 2025 has no GPU count: the job follows the precision, as in
# `log-llama3_8b_llm_pretrain_fp8_cs_1234_0`.
_UNCOUNTED = compile_on_use(
    rf"(?P<base>.+_llm_(?:{TYPE})_{PRECISION}(?:_[a-z]{{2}})?)_(?P<job>\d+)_(?P<attempt>\d+)",
    _FLAGS,
)
# The FP8 recipes (current scaling, MXFP8, delayed scaling, sub-channel scaling) with
# their names. Their step times differ by 6 to 50 %, so they are never compared.
RECIPES = {
    "cs": ("fp8_cs", "fp8cs"),
    "mx": ("fp8_mx", "fp8mx", "mxfp8"),
    "ds": ("fp8_ds", "fp8ds"),
    "sc": ("fp8_sc", "fp8sc"),
}
# `tp4`, `mbs1`
_SETTING = compile_on_use(r"(tp|pp|cp|ep|etp|dp|vp|fsdp|mbs|gbs|ga)(\d+)", _FLAGS)
# Sequence length in tokens: `seq4096`, `seqlen8192`, `ctx8k`.
_SEQUENCE = compile_on_use(
    r"(?:seq(?:uence)?|ctx|context)(?:[-]?len(?:gth)?)?[-]?(\d{3,}|\d+(?=k))(k?)",
    _FLAGS,
)
_TASK = compile_on_use(TYPE, re.IGNORECASE)
# `gpus64`, `64gpus`, `64g`; `nodes8`, `8n`
_GPUS = compile_on_use(r"gpus?(\d+)|(\d+)(?:gpus?|g)", _FLAGS)
_NODES = compile_on_use(r"nodes?(\d+)|(\d+)(?:nodes?|n)", _FLAGS)
# epoch seconds or nanoseconds
_STAMP = compile_on_use(r"\d{10}|\d{19}")
# `log-x_12_0.out`, `slurm-12_3.out`
_LAUNCHED = compile_on_use(r"log-.+\.(?:out|log)|slurm-\d+(?:[_+]\d+)?\.out", _FLAGS)
_COMPRESSED = compile_on_use(r"(.+\.(?:out|log|err))\.(?:gz|zst|xz|bz2)", _FLAGS)
# A job id, optionally with a restart, or a timestamp, at the end of a name.
_NUMBERS = compile_on_use(r"_[0-9]{5,}(?:_[0-9]+)?\Z")
# Suffixes of log names; the last is GPT-NeoX's.
_LOG_ENDS = (".out", ".log", "_stdout.txt")
_RESULT = compile_on_use(r"result_\d{1,4}\.txt")  # a log by MLPerf's rules
# Names of the two output streams of a job by PBS and Grid Engine (`train.o1234`), and of
# the output of a process by launchers and shells (`workerlog.0`, `nohup-train`).
_BATCH_OUTPUT = compile_on_use(r".+\.(?P<stream>[oe])(?P<job>\d+(?:[.-]\d+)?)", _FLAGS)
_OUTPUT_WORD = compile_on_use(
    r"(?<![a-z])(?:stdout|stderr|nohup|workerlog\.\d+\Z)(?![a-z])", re.IGNORECASE
)
# A file suffix. Names without a suffix, or with a number or date instead, may be logs.
_SUFFIX = compile_on_use(r"[a-z]{1,12}\d?")
_OUTPUT_SUFFIXES = (
    "stdout",
    "stderr",
    "output",
    "console",
    "error",
    "errors",
    "logs",
    "ou",
    "er",
    "err",
)
_LOG_WORD = compile_on_use(
    r"(?<![a-z])(?:logs?|out|output|err|error|console|stdout|stderr|nohup)(?![a-z])"
)
_DOCUMENT = compile_on_use(
    r"(?:read[-_]?me|notes?|todo|licen[cs]e|copying|change(?:s|log)|authors|contributing|makefile|dockerfile|manifest|"
    r"version|requirements|core)(?![a-z])"
)
# `workerlog.0`, `train-rank3.txt`
_RANK = compile_on_use(
    r"(.*(?<![a-z])(?:workerlog|rank|worker|proc|process|node|host|device)[-_.]?)(\d{1,6})(.*)",
    _FLAGS,
)
_PACKED = (".gz", ".zst", ".xz", ".bz2")
_PROFILED = compile_on_use(r"_nsys(?:_\d+)*$", re.IGNORECASE)
_TRACED = compile_on_use(r"nccl[-_]?trace", re.IGNORECASE)
_GPU_TYPE = compile_on_use(GPU, re.IGNORECASE)
# Size of the caches: the names of a run's folders and files are parsed a dozen times.
_CACHE_SIZE = 4096
_SETTING_FIELDS = {
    "mbs": "micro_batch_size",
    "gbs": "global_batch_size",
    "ga": "gradient_accumulation",
}

NamePairs = tuple[tuple[str, str], ...]
"""Pairs of field and value, in the order of the name."""


class Experiment(Struct, frozen=True):
    """The parsed name of an experiment."""

    pairs: NamePairs
    # the bare numbers after the GPU count: job, restart, timestamp
    numbers: tuple[str, ...] = ()


class LogName(Struct, frozen=True):
    """The parsed name of a log."""

    base: str  # the name without job and restart, equal for all attempts of a job
    pairs: NamePairs = ()
    job: str = ""
    attempt: int = 0


@lru_cache(_CACHE_SIZE)
def read_experiment(name: str, *, typed: bool = True) -> Experiment | None:
    """Parse a name such as `pretrain_grok1_314b_bf16_256`; None if it does not match.

    With `typed=False`, `pretrain_` is optional.
    """
    return _read_numbered(name, _read_typed if typed else _read_untyped)


def _read_numbered(
    name: str, read: Callable[[str], Experiment | None]
) -> Experiment | None:
    """Parse a name with `read`, without its trailing numbers if possible.

    The trailing numbers are a job id and a restart, different in each name: without
    them, the cache of `read` works. They are appended to the result if the name has a
    number of GPUs or nodes. Otherwise they may contain it, and the whole name is parsed
    again.
    """
    if len(name) > LONGEST_NAME:
        return None
    trailing_numbers = _NUMBERS.search(name)
    if trailing_numbers is None:
        return read(name)
    experiment = read(name[: trailing_numbers.start()])
    if experiment is None:
        return None
    if any(field in ("gpus", "nodes") for field, _ in experiment.pairs):
        _, *numbers = trailing_numbers[0].split("_")  # `_1234_0`
        return Experiment(experiment.pairs, (*experiment.numbers, *numbers))
    return read(name)


@lru_cache(_CACHE_SIZE)
def _read_typed(name: str) -> Experiment | None:
    return _read(name, typed=True)


@lru_cache(_CACHE_SIZE)
def _read_untyped(name: str) -> Experiment | None:
    return _read(name, typed=False)


@lru_cache(_CACHE_SIZE)
def _read_innermost(name: str) -> Experiment | None:
    """Parse the last experiment in a name, else the whole name.

    `team-team.pretrain_grok1_314b_bf16_256` contains `pretrain_grok1_314b_bf16_256`.
    The type (`pretrain_`) is optional if the whole name is parsed.
    """
    experiments = (
        _read(candidate, typed=candidate is not name)
        for candidate in _list_possible_experiments(name)
    )
    return next(filter(None, experiments), None)


def _read(name: str, *, typed: bool) -> Experiment | None:
    """Parse an experiment name into its fields and numbers.

    None if the name has another form, or if `typed` and it names no task.
    """
    match = _EXPERIMENT.fullmatch(name) or _UNSIZED.fullmatch(name)
    if not match or (typed and not match["type"]):
        return None
    groups = match.groupdict()  # _UNSIZED has no groups `size`, `proxy` and `variant`
    _, *tokens = match["rest"].split("_")
    fp8_recipe = ""
    if match["dtype"].lower() == "fp8" and tokens and tokens[0].lower() in RECIPES:
        fp8_recipe = tokens.pop(0)
    settings, numbers = _read_settings(tokens)
    pairs = [
        *_read_task(match["type"]),
        ("recipe", match["recipe"]),
        ("size", groups.get("size", match["recipe"])),
        ("dtype", match["dtype"]),
    ]
    variants: list[str] = []
    variant = groups.get("variant") or ""
    if groups.get("proxy") or variant.lower() == "proxy":
        pairs.append(("proxy", "true"))
    elif variant:
        variants.append(variant)
    if fp8_recipe:
        variants.append(fp8_recipe)
    variants += [value for field, value in settings if field == "variant"]
    if variants:
        pairs.append(("variant", "_".join(variants)))
    pairs += [(field, value) for field, value in settings if field != "variant"]
    return Experiment(tuple(pairs), numbers)


def read_workload(name: str) -> NamePairs:
    """Parse a workload's folder name, `pretrain_grok1` or `pretraining_grok1`; () if no
    match."""
    match = _WORKLOAD.fullmatch(name)
    if match is None:
        return ()
    return (*_read_task(match["type"]), ("recipe", match["recipe"]))


def read_log_name(stem: str, folder: str = "") -> LogName:
    """Parse the name of a log without its `.out`.

    If the folder has the name of the first trailing number, this number is the GPU
    count and the second number is the job: `log-mine_small_8_1` in folder `8` is job 1.
    """
    prefix = "log-"
    launched = stem.lower().startswith(prefix)
    name = stem[len(prefix) :] if launched else stem
    if launched and "_llm_" in name:  # rules out most names quickly
        uncounted = _UNCOUNTED.fullmatch(stem)
        if uncounted:
            base, job, attempt = uncounted.group("base", "job", "attempt")
            return LogName(base, job=job, attempt=int(attempt))
    # `log-account.pretrain_grok1_314b_bf16_256_1234_0`
    experiment = _read_numbered(name, _read_innermost)
    if experiment:
        job, attempt = _split_numbers(experiment.numbers)
        base = _strip_numbers(stem, job, attempt)
        return LogName(base, experiment.pairs, job, int(attempt or 0))
    # `log-grok1-256_314b_1234`, `log-nemotron4_15b_16_1234_0`
    older_form = _GPUS_THEN_SIZE.fullmatch(name) or _SIZE_THEN_GPUS.fullmatch(name)
    if older_form:
        pairs = tuple(
            (field, older_form[field]) for field in ("recipe", "size", "gpus")
        )
        job, attempt = older_form["job"] or "", older_form["attempt"] or ""
        base = _strip_numbers(stem, job, attempt)
        return LogName(base, pairs, job, int(attempt or 0))
    # `log-mine_1234_0`
    numbered = _JOB_AND_ATTEMPT.fullmatch(stem) if launched else None
    if numbered:
        first_number, second_number = numbered["job"], numbered["attempt"]
        if second_number and first_number == folder:
            return LogName(f"{numbered['base']}_{folder}", job=second_number)
        return LogName(
            numbered["base"], job=first_number, attempt=int(second_number or 0)
        )
    return LogName(stem)


def is_log_name(name: str) -> bool:
    """True if a lower-case name ends like a log's."""
    return name.endswith(_LOG_ENDS) or bool(_RESULT.fullmatch(name))


def may_be_log(name: str) -> bool:
    """True if a file may be a log although it is not named like one.

    Names of documents and data are excluded.
    """
    lower_name = name.lower()
    if name.startswith(".") or _DOCUMENT.match(lower_name):
        return False
    _, dot, ending = lower_name.rpartition(".")
    suffix = ending if dot else ""
    if suffix == "txt":  # `train_log.txt`, but not `results.txt`
        return _LOG_WORD.search(lower_name) is not None
    if suffix in ("o", "e"):  # `job.1234.e`, but not an object file
        return lower_name[-3:-2].isdecimal()
    return (
        suffix in _OUTPUT_SUFFIXES
        or not _SUFFIX.fullmatch(suffix)
        or is_job_output(name)
    )


def is_job_output(name: str) -> bool:
    """True if a file is named like job output by batch systems, launchers or shells."""
    return (
        _match_batch_output(name) is not None or _OUTPUT_WORD.search(name) is not None
    )


def _match_batch_output(name: str) -> re.Match[str] | None:
    """Match a PBS or Grid Engine output name, such as `train.o1234`."""
    # the last character rules out most names quickly
    return _BATCH_OUTPUT.fullmatch(name) if name[-1:].isdecimal() else None


def has_log_word(name: str) -> bool:
    """True if a name contains a word for a log: `train.log.2026-03-02`, `train_log`."""
    return is_job_output(name) or _LOG_WORD.search(name.lower()) is not None


def read_output_job(name: str) -> tuple[str, str]:
    """Return the job name and job id in a PBS or Grid Engine output name, or ("", "")."""
    match = _match_batch_output(name)
    if match is None:
        return "", ""
    job_name = name[: match.start("stream") - 1]  # without the dot
    return job_name, match["job"]


def name_paired_stream(name: str, stream: str) -> str:
    """Return the name of the job's other output file, "" if `name` is not paired.

    `stream` is the other file's: with `stderr`, `train.o12` yields `train.e12`, and
    `x_stdout.txt` yields `x_stderr.txt`.
    """
    own_stream = "stderr" if stream == "stdout" else "stdout"
    match = _match_batch_output(name)
    if match is None:
        return name.replace(own_stream, stream) if own_stream in name else ""
    letters = {"stdout": "o", "stderr": "e"}
    if match["stream"] != letters[own_stream]:
        return ""
    index = match.start("stream")
    return f"{name[:index]}{letters[stream]}{name[index + 1 :]}"


def read_rank(name: str) -> tuple[str, int] | None:
    """Split a per-process file name into the shared name and the process number, or
    None."""
    match = _RANK.fullmatch(name)
    if match is None:
        return None
    before, number, after = match.groups()  # `workerlog.`, `0`, ``
    return f"{before}#{after}", int(number)


@lru_cache(_CACHE_SIZE)
def strip_compression(file: str) -> str:
    """Return a log's name without its compression suffix; other names unchanged."""
    if not file.casefold().endswith(_PACKED):
        return file
    match = _COMPRESSED.fullmatch(file)
    return match[1] if match else file


def strip_suffix(file: str) -> str:
    """Return a file's name without its last suffix, ten times faster than `Path.stem`."""
    index = file.rfind(".")
    return file[:index] if 0 < index < len(file) - 1 else file


def is_launched(file: str) -> bool:
    """True if a file is named like a launcher's or Slurm's log, compressed or not."""
    return _LAUNCHED.fullmatch(strip_compression(file)) is not None


def is_profiled(name: str) -> bool:
    """True if an experiment's or task's name ends in `_nsys`, ignoring trailing
    numbers."""
    return "nsys" in name.casefold() and _PROFILED.search(name) is not None


def is_traced(name: str) -> bool:
    """True if a name contains `nccltrace`: the run wrote an NCCL trace."""
    return "trace" in name.casefold() and _TRACED.search(name) is not None


def _list_possible_experiments(name: str) -> Iterator[str]:
    """Yield the parts of a name from each type word on, last first, then the whole
    name.

    An account name in front may contain a type word, too.
    """
    starts = [match.start() for match in _TYPE_WORD.finditer(name)]
    for start in reversed(starts):
        if start > 0:
            yield name[start:]
    yield name


def _read_task(word: str | None) -> list[tuple[str, str]]:
    """Return the task of a type word as pairs; empty for pretraining, the default.

    `fine-tuning` is the task `finetune`, `SFT` the task `sft`.
    """
    task = re.sub(r"[-_]", "", (word or "").lower())
    if task in ("", "pretrain", "pretraining"):
        return []
    return [("task", "finetune" if task.startswith("finetun") else task)]


def _read_settings(tokens: list[str]) -> tuple[NamePairs, tuple[str, ...]]:
    """Parse the tokens after the precision: GPUs, nodes, parallelism, batch sizes,
    variant.

    If no token such as `gpus64` or `nodes8` states the number of GPUs, it is the first
    bare number (but not a timestamp); unknown tokens before this number are then the
    variant. Other unknown tokens are ignored. Returns (field, value) pairs, and the
    remaining bare numbers.
    """
    pairs: list[tuple[str, str]] = []
    numbers: list[str] = []
    variants: list[str] = []
    has_gpu_count = any(
        _GPUS.fullmatch(token) or _NODES.fullmatch(token) for token in tokens
    )
    for token in tokens:
        pair = read_setting(token)
        if pair:
            pairs.append(pair)
        elif token.isdecimal() and (has_gpu_count or _STAMP.fullmatch(token)):
            numbers.append(token)
        elif token.isdecimal():
            pairs.append(("gpus", token))
            has_gpu_count = True
        elif not (has_gpu_count or is_profiled(f"_{token}") or is_traced(token)):
            variants.append(token)
    if variants and has_gpu_count:
        pairs.append(("variant", "_".join(variants)))
    return tuple(pairs), tuple(numbers)


def read_setting(token: str) -> tuple[str, str] | None:
    """Parse one token of a name: GPUs, nodes, parallelism, batch, sequence, task or GPU
    type.

    `gpus64` is ("gpus", "64"), `ctx8k` is ("sequence_length", "8192"). None for an
    unknown token.
    """
    if match := _SETTING.fullmatch(token):
        field = match[1].lower()
        return _SETTING_FIELDS.get(field, field), match[2]
    if match := _GPUS.fullmatch(token):
        return "gpus", match[1] or match[2]
    if match := _NODES.fullmatch(token):
        return "nodes", match[1] or match[2]
    if match := _SEQUENCE.fullmatch(token):
        number, has_unit_k = int(match[1]), bool(match[2])
        return "sequence_length", str(number * 1024 if has_unit_k else number)
    if _TASK.fullmatch(token):
        return next(iter(_read_task(token)), None)
    return ("gpu", token) if _GPU_TYPE.fullmatch(token) else None


def _split_numbers(numbers: tuple[str, ...]) -> tuple[str, str]:
    """Return the job id and restart count: the last two numbers, or the job id only.

    Missing numbers are "".
    """
    if not numbers:
        return "", ""
    if len(numbers) == 1:
        return numbers[0], ""
    *_, job, attempt = numbers
    return job, attempt


def _strip_numbers(stem: str, job: str, attempt: str) -> str:
    """Return a log's stem without its trailing job id and restart: `x` for `x_12_0`."""
    tail = "".join(f"_{number}" for number in (job, attempt) if number)
    return stem.removesuffix(tail)
