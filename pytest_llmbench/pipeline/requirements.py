"""Suite files of llmb-run (exemplar.yaml) as requirements: which configurations, each with how many valid runs.

    config: {scale: 512, repeats: 3, profile: true}
    workloads:
      h100:
      - pretrain_grok1_314b:
          dtypes: [bf16, fp8]

What the file leaves out is what llmb-run takes for it: 512 GPUs and 3 runs (llmb_run/exemplar.py in
NVIDIA/dgxc-benchmarking).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

from pytest_llmbench.core import formatting
from pytest_llmbench.core.errors import SettingsError, did_you_mean
from pytest_llmbench.core.models import Evidence, Key, Note, NoteCode, Reason, Recipe, RequiredRuns, Verdict
from pytest_llmbench.core.yamlfile import Fields, Flag, Items, Names, Number, Report, Text, YamlMapping
from pytest_llmbench.pipeline.results import ConfigurationResult, JudgedConfigurations
from pytest_llmbench.pipeline.settings import Settings

SCALE, REPEATS = 512, 3

_DTYPES = Fields({"dtypes": Items(Text("a precision such as bf16"))})
_WORKLOAD = Names(_DTYPES, Text("a workload such as pretrain_grok1_314b"))
_FILE = Fields(
    {
        "config": Fields(
            {},
            {"scale": Number(1, 10**7, whole=True), "repeats": Number(1, 1000, whole=True), "profile": Flag()},
        ),
        "workloads": Names(Items(_WORKLOAD), Text("a GPU type such as h100")),
    }
)


def read_suite(path: Path, recipes: Sequence[Recipe], settings: Settings) -> dict[Key, RequiredRuns]:
    """Return what a suite file asks for on the GPU type of `settings`, which may be left out where it names only one.

    Of several releases that document a configuration it is the newest, unless `settings` name one. Raises SettingsError
    with file, line and the nearest name for a workload, precision or scale that no baseline has: what cannot be judged
    must not be passed over.
    """
    from pytest_llmbench.core.yamlfile import read_document, read_entry

    asked: dict[Key, RequiredRuns] = {}

    def check(entry: YamlMapping, report: Report) -> None:
        gpu = _gpu(entry["workloads"], settings.gpu, report)
        config: YamlMapping = entry["config"]
        scale, runs = config.get("scale", SCALE), config.get("repeats", REPEATS)
        for name, line, dtype in _list_wanted(entry["workloads"].get(gpu, ()), report):
            for key in _keys(name, (gpu, dtype, scale), recipes, settings, partial(report, line)):
                asked[key] = RequiredRuns(runs, f"{path.name}:{line}")

    root = read_document(path, what="suite file", raises=SettingsError)
    read_entry(path, root, _FILE, check=check, raises=SettingsError)
    return asked


def _gpu(workloads: YamlMapping, gpu: str, report: Report) -> str:
    names = list(workloads.values)
    if gpu in names or (not gpu and len(names) == 1):
        return gpu or names[0]
    listed = ", ".join(names)
    problem = f"no workloads of --llmb-gpu={gpu}" if gpu else f"workloads of {len(names)} GPU types"
    report(workloads.line, f"found {problem}, expected --llmb-gpu to be one of {listed}{did_you_mean(gpu, names)}")
    return ""


def _list_wanted(workloads: Sequence[YamlMapping], report: Report) -> Iterator[tuple[str, int, str]]:
    """Yield each workload with its line and each of its precisions."""
    names: set[str] = set()
    for workload in workloads:
        if len(workload.values) != 1 or names & workload.values.keys():
            report(
                workload.line,
                "found several workloads in one entry, or one again, expected each in an entry of its own",
            )
            continue
        ((name, of_workload),) = workload.values.items()
        names.add(name)
        for dtype in of_workload["dtypes"]:
            yield name, workload.lines[name], dtype


def _keys(
    name: str, cell: tuple[str, str, int], recipes: Sequence[Recipe], settings: Settings, wrong: Callable[[str], None]
) -> Iterator[Key]:
    """Yield the configurations that a workload means on a GPU type, in a precision, on a number of GPUs."""
    of_workload = [key for key, names in _find_known(recipes, settings.release) if name.casefold() in names]
    if not of_workload:
        every = sorted({f"pretrain_{key.recipe}_{key.size}" for key, _ in _find_known(recipes, settings.release)})
        near = did_you_mean(name, every)
        wrong(f"found {name}, of which there is no baseline, expected a workload that has one{near}")
        return
    gpu, dtype, scale = cell
    matching = [key for key in of_workload if (key.gpu, key.dtype, key.gpus) == cell]
    if not matching:
        near = ", ".join(sorted({f"{key.dtype} on {key.gpus} {key.gpu}" for key in of_workload if key.gpu == gpu}))
        wrong(f"found {name} in {dtype} on {scale} {gpu}, expected one that has a baseline: {near or 'none on these'}")
        return
    newest = max((key.release for key in matching), key=_release)
    plain = [key for key in matching if key.release == newest and not (key.task or key.scaling or key.variant)]
    yield from plain or [key for key in matching if key.release == newest]


def _find_known(recipes: Sequence[Recipe], release: str) -> Iterator[tuple[Key, frozenset[str]]]:
    """Yield each configuration with the names of its workload: `pretrain_grok1_314b`, with and without the task."""
    for recipe in recipes:
        for key in (baseline.key for baseline in recipe.baselines if release in ("", recipe.release)):
            plain = {f"{name}_{key.size}".casefold() for name in (recipe.name, *recipe.names)}
            yield key, frozenset(f"{task}{name}" for task in ("", "pretrain_", "pretraining_") for name in plain)


def _release(text: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"\d+", text))


# --- what is there ----------------------------------------------------------------------------------------


def apply_requirements(
    judged: JudgedConfigurations, required: Mapping[Key, RequiredRuns], fewer: int | None = None
) -> JudgedConfigurations:
    """Return the results; one with fewer valid runs than a suite asks for is MISSING, unless it is red anyway.

    The runs of its evidence count that are not older than `max_age` allows. Where a launch was told to make `fewer`,
    and so many are there, the verdict stands, with a note of what is missing.
    """
    return judged.map(
        lambda result, evidence: _check_run_count(result, required.get(result.case.key), evidence[0], fewer)
    )


def _check_run_count(
    result: ConfigurationResult, asked: RequiredRuns | None, evidence: Evidence, fewer: int | None
) -> ConfigurationResult:
    judgement = result.judgement
    if asked is None or judgement.verdict not in (Verdict.PASS, Verdict.IMPROVEMENT, Verdict.INCONCLUSIVE):
        return result
    valid = sum(
        measurement.valid and not _is_old(measurement.run.started, evidence) for measurement in evidence.measurements
    )
    if valid >= asked.runs:
        return result
    count = f"{formatting.count_noun(valid, 'valid run')}, {asked.place} asks for {asked.runs}"
    if fewer is not None and valid >= fewer:
        note = Note(NoteCode.FEWER_RUNS, f"{count} (--llmb-repeats={fewer})")
        return replace(result, judgement=replace(judgement, notes=(*judgement.notes, note)))
    text = f"{count}; the newest: {judgement.text}"
    short = replace(judgement, verdict=Verdict.MISSING, reason=Reason.TOO_FEW_RUNS, text=text)
    return replace(result, judgement=short)


def _is_old(started: datetime | None, evidence: Evidence) -> bool:
    return evidence.max_age is not None and (started is None or evidence.now - started > evidence.max_age)
