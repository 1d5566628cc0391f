"""Texts of a table: labels, cells, headers and titles, and what each says of a configuration."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

from pytest_llmbench.baseline.schema import GROUPS

_PER_SECOND = r"\s*(?:/|per)\s*s(?:ec(?:onds?)?)?"
_PER_GPU = r"[\s_]*(?:/|per)[\s_]*gpu"
_TOKENS_PER_SECOND = rf"tokens?{_PER_SECOND}"
METRICS = {
    "step_time": r"(?:mean |average |avg\.? )?(?:train(?:ing)? )?(?:step|iteration)[ _]time(?: mean)?|"
    r"(?:time|seconds) per (?:global )?(?:training )?(?:step|iteration)",
    "tokens_per_second": rf"(?:training )?throughput(?:,? (?:in )?{_TOKENS_PER_SECOND})?|{_TOKENS_PER_SECOND}",
    "tokens_per_second_per_gpu": rf"(?:training )?throughput(?:{_PER_GPU})?|{_TOKENS_PER_SECOND}{_PER_GPU}",
    "tflops_per_gpu": rf"(?:model[ _])?t(?:era)?flops?(?:{_PER_SECOND})?{_PER_GPU}",
    "mfu": r"(?:model flops? utili[sz]ation(?: mfu)?|mfu)",
    "days_to_1t": r"(?:time|days) to train (?:with |on )?1t tokens(?: in days)?|days to (?:train )?1t(?: tokens)?",
}
"""The whole label without what stands in parentheses: a deviation, a percentile is another metric."""

_UNITS = {
    "step_time": {"seconds per step": 0, "s/step": 0, "seconds": 0, "second": 0, "sec": 0, "s": 0, "ms": -3},
    "tokens_per_second": {"tokens per second": 0, "tokens/s": 0, "tokens/sec": 0, "tokens/second": 0, "tok/s": 0},
    "tokens_per_second_per_gpu": {"tokens/s/gpu": 0, "tokens/sec/gpu": 0, "tokens/second/gpu": 0, "tok/s/gpu": 0},
    "tflops_per_gpu": {"tflop/s/gpu": 0, "tflops/gpu": 0, "tflops/s/gpu": 0, "tflop/s": 0, "tflops": 0, "tflops/s": 0},
    "mfu": {"%": 0, "percent": 0},
    "days_to_1t": {"days": 0, "day": 0, "d": 0},
}
"""The units of each metric, as a power of ten."""

LONGEST_LABEL = 200
"""Characters; a longer one is none, and would take for ever to take apart."""

_THROUGHPUTS = ("tokens_per_second", "tokens_per_second_per_gpu")

_FIELDS = {
    "gpus": r"(?:#[- ]?|no\.? of |num(?:ber)?[ _]?(?:of )?)?gpus",
    "size": r"(?:model )?size|model",
    "dtype": r"precision|dtype|data type",
    "gpu": r"gpu(?:[ _]type)?|system",
    "sequence_length": r"(?:packed )?seq(?:uence)?\.?[ _]?len(?:gth)?|seq",
    "layers": r"(?:# ?|num(?:ber)?[ _]?(?:of )?)?layers",
    "gbs": r"gbs|global[ _]?batch[ _]?size",
    "mbs": r"mbs|micro[ _]?batch[ _]?size",
    "ga": r"ga|gradient[ _]accumulation(?:[ _]steps)?",
    "task": r"task|algorithm|fine-?tuning scheme",
    **{name: name for name in GROUPS},
}
"""The columns of a configuration table; `gpus`, the three after it and `task` are part of the key."""

ABSENT = ("", "-", "--", "\u2013", "\u2014", "NA", "N/A", "n/a", "na", "None", "none")
"""How a document says that there is no value."""

_MAY_BE_ABSENT = ("tokens_per_second", "mfu", "days_to_1t")
_NOT_GIVEN = {"NA": "NA", "na": "NA", "N/A": "n/a", "n/a": "n/a"}
"""Those that a baseline file keeps, of the metrics that it may say it of."""

_NUMBER = re.compile(r"\d{1,15}(?:\.\d{1,12})?", re.ASCII)
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d{1,12})?", re.ASCII)
_POINT_OR_THOUSANDS = re.compile(r"[1-9]\d{0,2}\.\d{3}", re.ASCII)
_FOOTNOTE_MARKS = "*\u2020\u2021\u00a7"


def parse_metric_label(label: str) -> tuple[str, int] | None:
    """Return the metric that a label names, and the power of ten of its unit; None for any other label.

    A throughput needs its unit (it may be one per GPU), and what stands in parentheses has to be a unit of the metric.
    """
    bare, unit = _split_label(label)
    named = (name for name, pattern in METRICS.items() if re.fullmatch(pattern, bare))
    return next(filter(None, (_check_unit(name, bare, unit) for name in named)), None)


def parse_column_label(label: str) -> str:
    """Return the configuration column that a label names, empty for any other label."""
    bare = " ".join(label.lower().split()).rstrip(":")
    return next((name for name, pattern in _FIELDS.items() if re.fullmatch(pattern, bare)), "")


def parse_metric_cell(name: str, power: int, label: str, text: str) -> str:
    """Return the text of a metric's cell as a baseline file keeps it: all its digits, no unit and no thousands.

    Empty where the document gives none. Raises ValueError, with the reason, for what is no number, or may be two.
    """
    if text in ABSENT:
        return _NOT_GIVEN.get(text, "") if name in _MAY_BE_ABSENT else ""
    number, unit = _split_number(text.rstrip(_FOOTNOTE_MARKS).rstrip())
    if re.fullmatch(r"\([\d.,]+\)", unit, re.ASCII):
        raise ValueError("it holds two values, and nothing says of what the second is")
    if unit and unit not in _UNITS[name]:
        raise ValueError(f"the unit {unit!r} is none of {', '.join(_UNITS[name])}")
    power = _UNITS[name][unit] if unit else power
    digits = _read_digits(name, number, large=name in _THROUGHPUTS or power < 0)
    if Decimal(digits) <= 0:
        raise ValueError("it is not above 0")
    if name == "mfu":
        return _read_percentage(digits, bool(unit), "%" in label or "percent" in label.lower())
    return digits if power == 0 else f"{Decimal(digits).scaleb(power):f}"


def is_unit(text: str) -> bool:
    """Whether a cell is a unit and nothing else: `ms`, `(tokens/s)`."""
    return any(text.strip("()[] ").lower() in units for units in _UNITS.values())


def has_unit_of_another_metric(name: str, text: str) -> bool:
    """Whether a cell has the unit of another metric: it, and perhaps what is beside it, stands in the wrong place."""
    match = re.fullmatch(r"[\d.,]+\s*([^\d\s.,].*)", text.rstrip(_FOOTNOTE_MARKS).rstrip(), re.ASCII)
    unit = match[1].lower() if match else ""
    return unit not in _UNITS[name] and any(unit in units for units in _UNITS.values())


def parse_whole_number(text: str) -> int | None:
    """Return a cell of a configuration table, None where the document gives none; ValueError for any other text."""
    if text in ABSENT:
        return None
    if not (_THOUSANDS.fullmatch(text) or _NUMBER.fullmatch(text)) or "." in text or int(text.replace(",", "")) == 0:
        raise ValueError("it is no whole number above 0")
    return int(text.replace(",", ""))


def _check_unit(name: str, bare: str, unit: str) -> tuple[str, int] | None:
    if unit and unit not in _UNITS[name] and unit != name:
        return None
    # A throughput alone may be that of one GPU, or of all.
    if name in _THROUGHPUTS and not unit and "token" not in bare:
        return None
    if name == "days_to_1t" and not unit and "days" not in bare:
        return None
    return name, _UNITS[name].get(unit, 0)


def _split_label(label: str) -> tuple[str, str]:
    """Return a label in lower case, and its unit: `Step time (ms)`, `Step time [ms]`, `Step time, ms`."""
    text = " ".join(label.lower().split()).rstrip(":")
    if len(text) > LONGEST_LABEL:
        return text, ""
    match = re.fullmatch(r"(.*?)\s*(?:[(\[](.*?)[)\]]|, ?(\S+))", text)
    return (match[1], (match[2] or match[3] or "").strip()) if match else (text, "")


def _split_number(text: str) -> tuple[str, str]:
    match = re.fullmatch(r"([\d.,]+)\s*([^\d\s.,].*)?", text, re.ASCII)
    if match is None:
        raise ValueError("it is no number")
    return match[1], (match[2] or "").lower()


def _read_digits(name: str, number: str, *, large: bool) -> str:
    """Return a number without commas; ValueError for one that may be read in two ways. `large`: tokens/s and ms are."""
    # `85.459` tokens/s may be 85,459, and a step time of `7,325` may be 7.325 s or 7325 s: nobody guesses.
    if large and _POINT_OR_THOUSANDS.fullmatch(number):
        raise ValueError("its point may be one for thousands")
    if _NUMBER.fullmatch(number):
        return number
    if _THOUSANDS.fullmatch(number) and (name in _THROUGHPUTS or "." in number or number.count(",") > 1):
        return number.replace(",", "")
    raise ValueError("its comma may be a decimal one" if "," in number else "it is no number")


def _read_percentage(digits: str, in_cell: bool, in_label: bool) -> str:
    # 0.47 below `MFU %` is a fraction that somebody did not multiply, or half a percent.
    if not (in_cell or in_label) or (not in_cell and Decimal(digits) < 1):
        raise ValueError("nothing says whether it is a percentage or a fraction")
    if Decimal(digits) > 100:
        raise ValueError("it is above 100 %")
    return f"{digits}%"


GPU = r"(?:GB|B|H|A|L|V|MI)\d{2,4}(?:(?-i:(?!(?<![Ll]40)s\b))[A-Za-z])?"
"""A type of GPU, without the s of several `H100s`; the L40S is one."""

DTYPE = r"(?:BF16|FP8(?:[-_](?:CS|DS|MX|SC))?|FP16|FP32|TF32|FP4|NVFP4|MXFP8|MXFP4|INT8)"
_SIZE = r"\d+(?:x\d+)?(?:\.\d+)?[bBmM](?:[-_][aA]\d+[bB])?"
_SIZE_CELL = rf"({_SIZE})([-_ ]?proxy)?"
_NAMED_NUMBER = re.compile(
    r"\b(sequence length|seq len|global batch size|micro batch size|gradient accumulation|[a-z_]+)"
    r"\s*[=:]\s*(\d{1,9})(?![\d.,]*\d)",
    re.IGNORECASE | re.ASCII,
)
_GPUS = re.compile(
    rf"(?<![\w.,])(\d{{1,3}}(?:,\d{{3}})+|\d{{1,9}})\s*(?:[x\u00d7]\s*({GPU})s?\b(?:\s*GPUs?\b)?|[x\u00d7]?\s*({GPU})?\s*GPUs?\b)",
    re.IGNORECASE | re.ASCII,
)
_WORDS = (
    ("dtype", re.compile(rf"\b{DTYPE}(?:\s*[/,&]\s*{DTYPE})*\b", re.IGNORECASE | re.ASCII)),
    ("gpu", re.compile(rf"\b{GPU}(?=s?\b)", re.ASCII)),
    # Behind three letters, too: `GPT175B`; `a3b` is how much of a model is active.
    ("size", re.compile(rf"(?:(?<![^\W_])|(?<=[a-z]{{3}})){_SIZE}\b(?:[-_ ]?proxy\b)?", re.IGNORECASE | re.ASCII)),
)
PRETRAINING = "pretrain"
"""The task of a configuration whose key names none."""

_TASKS = (
    ("{}", re.compile(r"(?<![^\W_])(?:Q?LoRA|PEFT|SFT)(?![^\W_])", re.IGNORECASE | re.ASCII)),
    (PRETRAINING, re.compile(r"(?<![^\W_])pre-?train(?:ing)?(?![^\W_])", re.IGNORECASE | re.ASCII)),
    ("finetune", re.compile(r"(?<![^\W_])fine-?tun(?:e|ing)(?![^\W_])", re.IGNORECASE | re.ASCII)),
)
"""The tasks that a text may name; the first that it does counts: `Fine-tuning (LoRA)`."""

FILLERS = frozenset(
    {"throughput", "performance", "on", "with", "for", "at", "nvidia", "dgx", "hgx", "weak", "strong", "scaling"}
)
"""The words in the header of a column that say nothing of its configuration: how it scales, its batch says."""

ConfigurationColumns = dict[str, int | str]
"""Configuration columns by name: numbers, and the texts of size, dtype and gpu; empty where there are several. Of a
table metrics, too."""


_RELEASE = re.compile(r"(?<![\w.])\d\d\.\d\d(?:\.\d\d)?(?![\w.])", re.ASCII)
_MODEL_LABEL = re.compile(r"\s*model\s*:\s*(.+)", re.IGNORECASE)


class DocumentModel(NamedTuple):
    """What a document calls a model, as a baseline file would: `LLAMA3.1_405B` is llama3.1 and 405b."""

    recipe: str
    size: str
    """That of the recipe; the whole name of a model that states none."""

    name: str
    """The whole name: llama3.1_405b."""


@dataclass(frozen=True, slots=True)
class Caption:
    """What a header states, the words before the first fact, and everything that was not understood."""

    facts: ConfigurationColumns
    before: str
    rest: str


def read_caption(text: str) -> Caption:
    """Return the facts of a header or title; of a fact with two different values nothing is known."""
    facts: ConfigurationColumns = {}
    rest, starts = text, [len(text)]
    for name, value, match in _find_facts(text):
        facts[name] = value if facts.get(name, value) == value else ""
        start, end = match.span()
        rest = rest[:start] + " " * (end - start) + rest[end:]
        starts.append(start)
    return Caption(facts, text[: min(starts)].strip(" (|,-"), " ".join(rest.split()))


def find_unknown_words(column: Caption) -> str:
    """Return what the header of a column says beyond its facts; empty where that is nothing but fillers.

    It may be what makes it another configuration, or another measurement: `(previous release)`.
    """
    # `~~` marks what was struck out.
    words = re.findall(r"\w+|~~", column.rest)
    contradictory = [name for name, value in column.facts.items() if value == ""]
    return " ".join([*(word for word in words if word.lower() not in FILLERS and not parse_task(word)), *contradictory])


def make_recipe_name(before: str) -> str:
    """Return how a baseline file would call what stands before the size: `Llama 3.1` is llama3.1, `Maxtext LLama2`
    maxtext_llama2; empty where that is no name."""
    return _make_name(re.sub(r"\s(?=\d)", "", " ".join(_RELEASE.sub("", before).lower().split())))


def _make_name(words: str) -> str:
    name = re.sub(r"[^a-z0-9.]+", "_", words).strip("_.")
    return name if re.fullmatch(r"[a-z0-9][a-z0-9._]{0,99}", name) else ""


def read_labelled_model(heading: str) -> DocumentModel | None:
    """Return the model of a heading such as `Model: LLAMA3_70B`; None for any other heading."""
    match = _MODEL_LABEL.fullmatch(heading)
    return read_model_name(match[1]) if match else None


def read_model_name(text: str) -> DocumentModel | None:
    """Return the name of a model, such as `DeepSeekV3 (w/o MTP)`; None where no baseline file can be called so."""
    caption = read_caption(text)
    spelled = re.sub(r"\bw/(o\b)?", lambda match: "without " if match[1] else "with ", text)
    name = _make_name(spelled.lower())
    if not name or not set(caption.facts) <= {"size"}:
        return None
    recipe, size = make_recipe_name(caption.before), parse_size(str(caption.facts.get("size", "")))
    # `Llama 3 8B Instruct` is another model than Llama 3 8B.
    if size is None or not recipe or caption.rest.strip("_ ") != caption.before.strip("_ "):
        return DocumentModel(name, name, name)
    return DocumentModel(recipe, size[0], name)


def parse_dtypes(text: str) -> tuple[str, ...]:
    """Return the precisions of `BF16/FP8`, in lower case."""
    match = re.fullmatch(rf"{DTYPE}(?:\s*[/,&]\s*{DTYPE})*", text, re.IGNORECASE | re.ASCII)
    return tuple(re.findall(DTYPE, text.lower().replace("-", "_"), re.IGNORECASE)) if match else ()


def parse_size(text: str) -> tuple[str, bool] | None:
    """Return a model size in lower case, and whether it is marked as a proxy: `405b-Proxy`."""
    match = re.fullmatch(rf"(?:.*[\s_-])?{_SIZE_CELL}", text, re.IGNORECASE | re.ASCII)
    return (match[1].lower(), bool(match[2])) if match else None


def parse_release(headings: Sequence[str]) -> str:
    """Return the release that the innermost heading with one names, `26.04.01`; empty where none does."""
    named = (_RELEASE.search(heading) for heading in reversed(headings))
    return next((match[0] for match in named if match), "")


def parse_task(text: str) -> str | None:
    """Return the task that a text names, such as lora or PRETRAINING; None where it names none."""
    named = ((name, pattern.search(text)) for name, pattern in _TASKS)
    return next((name.format(match[0].lower()) for name, match in named if match), None)


def _find_facts(text: str) -> list[tuple[str, int | str, re.Match[str]]]:
    facts: list[tuple[str, int | str, re.Match[str]]] = []
    for match in _NAMED_NUMBER.finditer(text):
        name = parse_column_label(match[1].strip())
        if name and name not in ("size", "dtype", "gpu"):
            facts.append((name, int(match[2]), match))
    for match in _GPUS.finditer(text):
        facts.append(("gpus", int(match[1].replace(",", "")), match))
        if gpu := match[2] or match[3]:
            facts.append(("gpu", gpu.lower(), match))
    for name, pattern in _WORDS:
        facts += [(name, match[0].lower(), match) for match in pattern.finditer(text)]
    return facts


KEY = ("size", "gpu", "dtype", "gpus")


class LabelledCell(NamedTuple):
    """A cell with its label and its line."""

    label: str
    text: str
    line: int


def is_known_label(label: str) -> bool:
    """Whether a label names a metric or a column of a configuration."""
    return bool(parse_column_label(label) or parse_metric_label(label))


def read_cell(value: LabelledCell) -> ConfigurationColumns:
    """Return what a cell states: a metric as a baseline file keeps it, or configuration columns, a size as printed;
    nothing where the document gives no value. ValueError, with the reason, where a file has no place for it."""
    # The whole label: `Step time std` and `Throughput per GPU` are other metrics.
    metric, field = parse_metric_label(value.label), parse_column_label(value.label)
    if metric is not None:
        text = parse_metric_cell(*metric, value.label, value.text)
        return {metric[0]: text} if text else {}
    if value.text in ABSENT:
        return {}
    if not field:
        raise ValueError("no such row or column is known")
    if field == "size":
        return _read_model(value)
    if field == "task":
        if not (task := parse_task(value.text) or _make_name(value.text.lower())):
            raise ValueError("it is no name of a task")
        return {"task": task}
    if field == "dtype" and not parse_dtypes(value.text):
        raise ValueError("it is no precision such as BF16 or BF16/FP8")
    if field == "dtype":
        return {"dtype": "/".join(parse_dtypes(value.text))}
    return _read_number(field, value.text)


def _read_model(value: LabelledCell) -> ConfigurationColumns:
    """Return the size as printed, and below `Model` what a whole name says."""
    # What stands before a size below `Model size` was never a part of it.
    if re.fullmatch(_SIZE_CELL, value.text, re.IGNORECASE | re.ASCII) or "size" in value.label.lower():
        if parse_size(value.text) is None:
            raise ValueError("it is no model size such as 70b")
        return {"size": value.text}
    model = read_model_name(value.text)
    if model is None:
        raise ValueError("it is no name of a model")
    return model._asdict()


def _read_number(field: str, text: str) -> ConfigurationColumns:
    """Return the number of a column, the GPU type, or both of `8x H100`."""
    caption = read_caption(text)
    if field == "gpu" or (field == "gpus" and "gpus" in caption.facts):
        facts = {name: value for name, value in caption.facts.items() if name in ("gpu", "gpus") and value}
        if field not in facts or facts != caption.facts or find_unknown_words(caption):
            raise ValueError("it is no GPU type such as H100" if field == "gpu" else "it is no number of GPUs")
        return facts
    if field == "fsdp" and text == "0":  # not sharded
        return {}
    number = parse_whole_number(text)
    return {} if number is None else {field: number}
