"""What the name of an experiment or of a log says; pure functions over strings.

Understood are `pretrain_<recipe>_<size>_<precision>_<GPUs>` in all its spellings, the
file names that launchers build around it, and two older kinds:
`log-<framework>_<model>_<size>_<GPUs>_<job>`, `log-<framework>-<GPUs>_<size>_<job>`. A
number is a GPU count or a job id by its position, never by its value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

TYPE = r"pretrain(?:ing)?|fine[-_]?tun(?:e|ing)|sft|peft|lora|inference"
SIZE = r"\d+(?:\.\d+)?[bmt](?:_a\d+(?:\.\d+)?b)?|\d+x\d+(?:\.\d+)?b"
PRECISION = r"(?:bf|fp|tf|nvfp|mxfp|int)\d{1,2}[a-z]{0,4}"
GPU = r"a100|h20|h100(?:pcie|nvl)?|h200(?:nvl)?|h800|gh200|b100|b200|b300|gb200|gb300|mi300x|mi325x|mi355x"
_IGNORE = re.IGNORECASE | re.DOTALL
LONGEST_NAME = 255
"""Characters that file systems allow a name to have; the longer ones of an archive are
no experiment's."""

_TYPE_WORD = re.compile(rf"(?:^|(?<=[-_. ]))(?:{TYPE})_", _IGNORE)
_EXPERIMENT = re.compile(
    rf"(?:(?P<type>{TYPE})_)?(?P<recipe>.+?)_(?P<size>{SIZE})(?P<proxy>[-_]proxy)?"
    rf"(?:_(?P<variant>.+?))?_(?P<dtype>{PRECISION})(?P<rest>(?:_.*)?)",
    _IGNORE,
)
# Models without a size in their name: the type before it and the GPUs behind it tell
# that it is an experiment's.
_UNSIZED = re.compile(
    rf"(?P<type>{TYPE})_(?P<recipe>[a-z][a-z0-9_.]*?)_(?P<dtype>{PRECISION})(?P<rest>(?:_[^_]+)?_gpus\d+(?:_.*)?)",
    _IGNORE,
)
_WORKLOAD = re.compile(rf"(?P<type>{TYPE})_(?P<recipe>.+)", _IGNORE)
_SIZE_THEN_GPUS = re.compile(
    rf"(?P<recipe>.+?)_(?P<size>{SIZE})_(?P<gpus>\d+)(?:_(?P<job>\d+))?(?:_(?P<attempt>\d+))?",
    _IGNORE,
)
_GPUS_THEN_SIZE = re.compile(
    rf"(?P<recipe>[^_]+)-(?P<gpus>\d+)_(?P<size>{SIZE})(?:_(?P<job>\d+))?(?:_(?P<attempt>\d+))?",
    _IGNORE,
)
_JOB_AND_ATTEMPT = re.compile(
    r"(?P<base>.*?)_(?P<job>\d+)(?:_(?P<attempt>\d+))?", re.DOTALL
)
# Megatron-Bridge of 2025 has no GPU count: what follows the precision is the job.
_UNCOUNTED = re.compile(
    rf"(?P<base>.+_llm_(?:{TYPE})_{PRECISION}(?:_[a-z]{{2}})?)_(?P<job>\d+)_(?P<attempt>\d+)",
    _IGNORE,
)
# The recipes of FP8 (current scaling, MXFP8, delayed scaling, sub-channel scaling), and
# names of the precision with each: they differ by 6 to 50 %, so that a run of one of
# them is none of another.
RECIPES = {
    "cs": ("fp8_cs", "fp8cs"),
    "mx": ("fp8_mx", "fp8mx", "mxfp8"),
    "ds": ("fp8_ds", "fp8ds"),
    "sc": ("fp8_sc", "fp8sc"),
}
_SETTING = re.compile(r"(tp|pp|cp|ep|etp|dp|vp|fsdp|mbs|gbs|ga)(\d+)", _IGNORE)
# Tokens of a sequence: `seq4096`, `seqlen8192`, `ctx8k`.
_SEQUENCE = re.compile(
    r"(?:seq(?:uence)?|ctx|context)(?:[-]?len(?:gth)?)?[-]?(\d{3,}|\d+(?=k))(k?)",
    _IGNORE,
)
_TASK = re.compile(TYPE, re.IGNORECASE)
_GPUS = re.compile(r"gpus?(\d+)|(\d+)(?:gpus?|g)", _IGNORE)
_NODES = re.compile(r"nodes?(\d+)|(\d+)(?:nodes?|n)", _IGNORE)
_STAMP = re.compile(r"\d{10}|\d{19}")
_LAUNCHED = re.compile(r"log-.+\.(?:out|log)|slurm-\d+(?:[_+]\d+)?\.out", _IGNORE)
_COMPRESSED = re.compile(r"(.+\.(?:out|log|err))\.(?:gz|zst|xz|bz2)", _IGNORE)
# A job id, perhaps with a restart, or a time stamp, behind what the names of many runs
# share.
_NUMBERS = re.compile(r"_[0-9]{5,}(?:_[0-9]+)?\Z")
# How the name of a log ends; the last one is what GPT-NeoX writes.
_LOG_ENDS = (".out", ".log", "_stdout.txt")
_RESULT = re.compile(r"result_\d{1,4}\.txt")  # what MLPerf's rules call a log
# What PBS and Grid Engine call the two streams of a job, and what launchers and shells
# call the output of a process.
_BATCH_OUTPUT = re.compile(r".+\.(?P<stream>[oe])(?P<job>\d+(?:[.-]\d+)?)", _IGNORE)
_OUTPUT_WORD = re.compile(
    r"(?<![a-z])(?:stdout|stderr|nohup|workerlog\.\d+\Z)(?![a-z])", re.IGNORECASE
)
# A name that ends so has a suffix. Other names may be those of logs: without a suffix,
# or with a number or a date.
_SUFFIX = re.compile(r"[a-z]{1,12}\d?")
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
_LOG_WORD = re.compile(
    r"(?<![a-z])(?:logs?|out|output|err|error|console|stdout|stderr|nohup)(?![a-z])"
)
_DOCUMENT = re.compile(
    r"(?:read[-_]?me|notes?|todo|licen[cs]e|copying|change(?:s|log)|authors|contributing|makefile|dockerfile|manifest|"
    r"version|requirements|core)(?![a-z])"
)
_RANK = re.compile(
    r"(.*(?<![a-z])(?:workerlog|rank|worker|proc|process|node|host|device)[-_.]?)(\d{1,6})(.*)",
    _IGNORE,
)
_PACKED = (".gz", ".zst", ".xz", ".bz2")
_PROFILED = re.compile(r"_nsys(?:_\d+)*$", re.IGNORECASE)
_TRACED = re.compile(r"nccl[-_]?trace", re.IGNORECASE)
_GPU_TYPE = re.compile(GPU, re.IGNORECASE)
# How many names are remembered: those of a run's folders and files are asked for a
# dozen times.
_KNOWN = 4096
_SETTING_FIELDS = {
    "mbs": "micro_batch_size",
    "gbs": "global_batch_size",
    "ga": "gradient_accumulation",
}

NamePairs = tuple[tuple[str, str], ...]
"""Pairs of field and value, in the order of the name."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """What an experiment's name says."""

    pairs: NamePairs
    numbers: tuple[
        str, ...
    ] = ()  # the bare numbers after the GPU count: job, restart, time stamp


@dataclass(frozen=True, slots=True)
class LogName:
    """What a log's name says."""

    base: str  # the name without job and restart: the same for all attempts of one job
    pairs: NamePairs = ()
    job: str = ""
    attempt: int = 0


@lru_cache(_KNOWN)
def read_experiment(name: str, *, typed: bool = True) -> Experiment | None:
    """Read `pretrain_grok1_314b_bf16_256`; None if it is no such name. Unless `typed`,
    `pretrain_` may be absent."""
    return _read_numbered(name, _read_typed if typed else _read_untyped)


def _read_numbered(
    name: str, read: Callable[[str], Experiment | None]
) -> Experiment | None:
    """Return what `read` finds in a name, without another look at numbers that follow a
    GPU count.

    Recipe, size and precision stand before all numbers: those at the end neither make
    nor unmake an experiment's name.
    """
    if len(name) > LONGEST_NAME:
        return None
    tail = _NUMBERS.search(name)
    experiment = read(name[: tail.start()] if tail else name)
    if not (tail and experiment):
        return experiment
    if any(field in ("gpus", "nodes") for field, _ in experiment.pairs):
        return Experiment(
            experiment.pairs, (*experiment.numbers, *tail[0][1:].split("_"))
        )
    return read(name)


@lru_cache(_KNOWN)
def _read_typed(name: str) -> Experiment | None:
    return _read(name, typed=True)


@lru_cache(_KNOWN)
def _read_untyped(name: str) -> Experiment | None:
    return _read(name, typed=False)


@lru_cache(_KNOWN)
def _read_innermost(name: str) -> Experiment | None:
    """Read what follows the last type word that begins an experiment's name, or the
    whole name."""
    experiments = (
        _read(part, typed=part is not name) for part in _list_possible_experiments(name)
    )
    return next(filter(None, experiments), None)


def _read(name: str, *, typed: bool) -> Experiment | None:
    match = _EXPERIMENT.fullmatch(name) or _UNSIZED.fullmatch(name)
    if not match or (typed and not match["type"]):
        return None
    named = match.groupdict()
    tokens = match["rest"].split("_")[1:]
    scaled = match["dtype"].lower() == "fp8" and tokens and tokens[0].lower() in RECIPES
    scaling = tokens[0] if scaled else ""
    pairs, numbers = _read_settings(tokens[1:] if scaling else tokens)
    head = [*_read_task(match["type"]), ("recipe", match["recipe"])]
    head += [("size", named.get("size", match["recipe"])), ("dtype", match["dtype"])]
    variants = [scaling] if scaling else []
    variant = named.get("variant") or ""
    if named.get("proxy") or variant.lower() == "proxy":
        head.append(("proxy", "true"))
    elif variant:
        variants.insert(0, variant)
    variants += [value for field, value in pairs if field == "variant"]
    if variants:
        head.append(("variant", "_".join(variants)))
    return Experiment(
        (*head, *(pair for pair in pairs if pair[0] != "variant")), numbers
    )


def read_workload(name: str) -> NamePairs:
    """Read the name of a workload's folder, `pretrain_grok1` or `pretraining_grok1`;
    nothing if it is no such name."""
    match = _WORKLOAD.fullmatch(name)
    return (*_read_task(match["type"]), ("recipe", match["recipe"])) if match else ()


def read_log_name(stem: str, folder: str = "") -> LogName:
    """Read the name of a log without its `.out`; a folder that is called by a number
    says that of the GPUs.

    Behind a size that does not look like one, `log-mine_small_8_1` in the folder `8` is
    of job 1, not of job 8.
    """
    launched = stem.lower().startswith("log-")
    name = stem[4:] if launched else stem
    if launched and "_llm_" in name and (uncounted := _UNCOUNTED.fullmatch(stem)):
        return LogName(
            uncounted["base"], (), uncounted["job"], int(uncounted["attempt"])
        )
    experiment = _read_numbered(name, _read_innermost)
    if experiment:
        job, attempt = _split_numbers(experiment.numbers)
        return LogName(
            _strip_numbers(stem, job, attempt), experiment.pairs, job, int(attempt or 0)
        )
    older = _GPUS_THEN_SIZE.fullmatch(name) or _SIZE_THEN_GPUS.fullmatch(name)
    if older:
        pairs = tuple((field, older[field]) for field in ("recipe", "size", "gpus"))
        job, attempt = older["job"] or "", older["attempt"] or ""
        return LogName(
            _strip_numbers(stem, job, attempt), pairs, job, int(attempt or 0)
        )
    numbered = _JOB_AND_ATTEMPT.fullmatch(stem) if launched else None
    if numbered and numbered["attempt"] and numbered["job"] == folder:
        return LogName(f"{numbered['base']}_{folder}", (), numbered["attempt"], 0)
    if numbered:
        return LogName(
            numbered["base"], (), numbered["job"], int(numbered["attempt"] or 0)
        )
    return LogName(stem)


def is_called_log(name: str) -> bool:
    """Whether a name in small letters ends as that of a log does."""
    return name.endswith(_LOG_ENDS) or bool(_RESULT.fullmatch(name))


def may_be_log(name: str) -> bool:
    """Whether a file that is not called as a log may be one: it is not called as a
    document or data either."""
    known_as = name.lower()
    if name.startswith(".") or _DOCUMENT.match(known_as):
        return False
    suffix = known_as.rpartition(".")[2] if "." in known_as else ""
    if suffix == "txt":
        return _LOG_WORD.search(known_as) is not None
    if suffix in ("o", "e"):  # as `job.1234.e`, and not as an object file
        return known_as[-3:-2].isdecimal()
    return (
        suffix in _OUTPUT_SUFFIXES
        or not _SUFFIX.fullmatch(suffix)
        or is_job_output(name)
    )


def is_job_output(name: str) -> bool:
    """Whether a file is called as batch systems, launchers and shells call what a job
    printed."""
    return (
        _match_batch_output(name) is not None or _OUTPUT_WORD.search(name) is not None
    )


def _match_batch_output(name: str) -> re.Match[str] | None:
    return (
        _BATCH_OUTPUT.fullmatch(name) if name[-1:].isdecimal() else None
    )  # as no log is that every run has


def is_like_log(name: str) -> bool:
    """Whether a name that is not called as a log holds a word for one:
    `train.log.2026-03-02`, `train_log`."""
    return is_job_output(name) or _LOG_WORD.search(name.lower()) is not None


def read_output_job(name: str) -> tuple[str, str]:
    """Return the name and the id of the job whose output is called so by PBS or Grid
    Engine; nothing for others."""
    match = _match_batch_output(name)
    return (name[: match.start("stream") - 1], match["job"]) if match else ("", "")


def name_paired_stream(name: str, stream: str) -> str:
    """Return the name of standard output or standard error (`stdout`, `stderr`) beside
    a file; empty if it has none."""
    other = "stderr" if stream == "stdout" else "stdout"
    match = _match_batch_output(name)
    if match is None:
        return name.replace(other, stream) if other in name else ""
    place = match.start("stream")
    letters = {"stdout": "o", "stderr": "e"}
    return (
        f"{name[:place]}{letters[stream]}{name[place + 1 :]}"
        if match["stream"] == letters[other]
        else ""
    )


def read_rank(name: str) -> tuple[str, int] | None:
    """Return what the files of all processes of a run share in their names, and the
    number of the process."""
    match = _RANK.fullmatch(name)
    return (f"{match[1]}#{match[3]}", int(match[2])) if match else None


@lru_cache(_KNOWN)
def strip_compression(file: str) -> str:
    """Return the name that a log had before it was compressed; any other name as it
    is."""
    match = _COMPRESSED.fullmatch(file) if file.casefold().endswith(_PACKED) else None
    return match[1] if match else file


def strip_suffix(file: str) -> str:
    """Return a file's name without its last suffix, as `Path.stem` does ten times as
    slowly."""
    place = file.rfind(".")
    return file[:place] if 0 < place < len(file) - 1 else file


def is_launched(file: str) -> bool:
    """Whether a file is called as launchers and Slurm call a job's log, compressed or
    not."""
    return _LAUNCHED.fullmatch(strip_compression(file)) is not None


def is_profiled(name: str) -> bool:
    """Whether an experiment's or task's name ends in `_nsys`, before numbers that a
    launcher adds."""
    return "nsys" in name.casefold() and _PROFILED.search(name) is not None


def is_traced(name: str) -> bool:
    """Whether a name says that the run wrote an NCCL trace."""
    return "trace" in name.casefold() and _TRACED.search(name) is not None


def _list_possible_experiments(name: str) -> Iterator[str]:
    """Yield what follows each type word, the last first (an account may hold one too),
    and the whole name."""
    for start in reversed([match.start() for match in _TYPE_WORD.finditer(name)]):
        if start:
            yield name[start:]
    yield name


def _read_task(word: str | None) -> list[tuple[str, str]]:
    """Return the task that a type word names; pretraining, the default, is not said."""
    task = re.sub(r"[-_]", "", (word or "").lower())
    if task in ("", "pretrain", "pretraining"):
        return []
    return [("task", "finetune" if task.startswith("finetun") else task)]


def _read_settings(tokens: list[str]) -> tuple[NamePairs, tuple[str, ...]]:
    """Read what follows the precision: GPUs or nodes, parallelism, batch sizes, and the
    bare numbers left over."""
    pairs: list[tuple[str, str]] = []
    numbers: list[str] = []
    unknown: list[str] = []
    counted = any(_GPUS.fullmatch(token) or _NODES.fullmatch(token) for token in tokens)
    for token in tokens:
        pair = read_setting(token)
        if pair:
            pairs.append(pair)
        elif token.isdecimal() and (counted or _STAMP.fullmatch(token)):
            numbers.append(token)
        elif token.isdecimal():
            pairs.append(("gpus", token))
            counted = True
        elif not counted and not is_profiled(f"_{token}") and not is_traced(token):
            unknown.append(token)
    if unknown and counted:
        pairs.append(("variant", "_".join(unknown)))
    return tuple(pairs), tuple(numbers)


def read_setting(token: str) -> tuple[str, str] | None:
    """Return what one part of a name says: GPUs, nodes, a size of parallelism or batch,
    a task, a GPU type."""
    if match := _SETTING.fullmatch(token):
        field = match[1].lower()
        return _SETTING_FIELDS.get(field, field), match[2]
    if match := _GPUS.fullmatch(token):
        return "gpus", match[1] or match[2]
    if match := _NODES.fullmatch(token):
        return "nodes", match[1] or match[2]
    if match := _SEQUENCE.fullmatch(token):
        return "sequence_length", str(int(match[1]) * (1024 if match[2] else 1))
    if _TASK.fullmatch(token):
        return next(iter(_read_task(token)), None)
    return ("gpu", token) if _GPU_TYPE.fullmatch(token) else None


def _split_numbers(numbers: tuple[str, ...]) -> tuple[str, str]:
    """Return the job id and the restart count: the last two of the numbers after the
    GPU count, or the job id alone."""
    if len(numbers) < 2:
        return "".join(numbers), ""
    return numbers[-2], numbers[-1]


def _strip_numbers(stem: str, job: str, attempt: str) -> str:
    """Return a stem without the job id and restart count at its end."""
    tail = "".join(f"_{number}" for number in (job, attempt) if number)
    return stem.removesuffix(tail)
