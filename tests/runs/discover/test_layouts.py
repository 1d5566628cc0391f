"""Every documented configuration in every layout that its release or a later launcher
writes, from every level."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import PurePosixPath
from typing import Any

import pytest
from support.written_trees import Tree

from pytest_llmbench.baseline.read import list_shipped_baselines, read_recipes
from pytest_llmbench.core.baseline_records import Baseline, Key, Recipe
from pytest_llmbench.core.log_records import ParsedLog
from pytest_llmbench.runs.discover.discovery import find_runs
from pytest_llmbench.runs.discover.identify import identify

JOB = "1407993"
Layout = Callable[[Recipe, Key], dict[str, str]]


@cache
def list_recipes() -> tuple[Recipe, ...]:
    return tuple(read_recipes(list_shipped_baselines()))


def make_metadata(key: Key) -> str:
    return (
        f"job_info: {{job_id: '{JOB}', launch_time: '2025-07-21T05:00:00+00:00'}}\n"
        f"workload_info: {{gsw_version: {key.release}.04, workload_type: pretrain}}\n"
        f"model_info: {{model_name: {key.recipe}, model_size: {key.size}, dtype: {key.dtype}, scale: {key.gpus},"
        f" gpu_type: {key.gpu}}}\n"
    )


def make_results(recipe: Recipe, key: Key) -> dict[str, str]:
    model = recipe.name if recipe.dialect == "maxtext" else f"nemo_{recipe.name}"
    folder = f"results/{key.release}/{key.dtype}/{key.size}/{key.gpus}"
    return {
        f"{folder}/log-{model}_{key.size}_{key.gpus}_{JOB}.{end}": ""
        for end in ("out", "err")
    }


def make_documented_maxtext_results(recipe: Recipe, key: Key) -> dict[str, str]:
    folder = f"results/{key.release}.1/{key.dtype}/{key.size}/{key.gpus}"
    return {f"{folder}/log-maxtext-{key.gpus}_{key.size}_{JOB}.out": ""}


def name_experiment(key: Key, count: str = "") -> str:
    return f"pretrain_{key.recipe}_{key.size}_{key.dtype}_{count or key.gpus}"


def name_task(experiment: str) -> str:
    return f"experiments/{experiment}/{experiment}_1744407969/{experiment}"


def make_experiments(recipe: Recipe, key: Key) -> dict[str, str]:
    return {
        f"{name_task(name_experiment(key))}/log-team-team.{name_experiment(key)}_{JOB}_0.out": ""
    }


def make_documented_experiments(recipe: Recipe, key: Key) -> dict[str, str]:
    experiment = name_experiment(key).replace("pretrain_", "pretraining_")
    return {
        f"{name_task(experiment)}/log-{experiment}.out": "",
        f"{name_task(experiment)}/sbatch_{experiment}.out": "",
    }


def make_workloads(recipe: Recipe, key: Key) -> dict[str, str]:
    folder = f"workloads/pretrain_{key.recipe}/{name_task(name_experiment(key))}"
    return {
        f"{folder}/log-team-team.{name_experiment(key)}_{JOB}_0.out": "",
        f"{folder}/sbatch_team-team.{name_experiment(key)}_{JOB}.out": "",
        f"{folder}/llmb-config_{JOB}.yaml": make_metadata(key),
    }


def make_archive(recipe: Recipe, key: Key) -> dict[str, str]:
    return {
        f"llmb-archive-20250801T000000Z/{path[len('workloads/') :]}": text
        for path, text in make_workloads(recipe, key).items()
    }


def make_configured_sbatch(recipe: Recipe, key: Key) -> dict[str, str]:
    folder = f"workloads/pretrain_{key.recipe}/experiments/{name_experiment(key, f'gpus{key.gpus}')}/1753074000"
    return {
        f"{folder}/log-{key.recipe}_{JOB}_0.out": "",
        f"{folder}/slurm-{JOB}.out": "",
        f"{folder}/llmb-config_{JOB}.yaml": make_metadata(key),
    }


def make_oldest_launcher_files(recipe: Recipe, key: Key) -> dict[str, str]:
    folder = f"workloads/pretrain_{key.recipe}"
    return {
        f"{folder}/slurm-{JOB}.out": "",
        f"{folder}/llmb-config_{JOB}.yaml": make_metadata(key),
    }


LAYOUTS: dict[str, tuple[Layout, ...]] = {
    "results": (make_results,),
    "experiments": (make_experiments, make_documented_experiments),
    "workloads": (
        make_workloads,
        make_archive,
        make_configured_sbatch,
        make_oldest_launcher_files,
        make_experiments,
    ),
}


def list_cases() -> Iterator[Any]:
    for recipe in list_recipes():
        layouts = [*LAYOUTS[recipe.layout]]
        if recipe.dialect == "maxtext":
            layouts.append(make_documented_maxtext_results)
        for write in layouts:
            documented = (
                recipe.baselines if write is layouts[0] else recipe.baselines[:1]
            )
            for baseline in documented:
                yield pytest.param(
                    recipe, baseline, write, id=f"{write.__name__}-{baseline.key.id}"
                )


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "baseline", "write"), list(list_cases()))
def test_documented_run_is_identified_from_every_level(
    tree: Tree, recipe: Recipe, baseline: Baseline, write: Layout
) -> None:
    files = write(recipe, baseline.key)
    root = tree(files)
    gpu = baseline.key.gpu if "llmb-config" not in " ".join(files) else ""
    log = PurePosixPath(next(iter(files)))
    for level in (log, *log.parents):
        (run,) = find_runs([root / level]).runs
        assert run.attempts[0].log == root / log
        identity = identify(
            run,
            [ParsedLog(dialect=recipe.dialect, segments=())],
            list_recipes(),
            gpu=gpu,
        )
        assert identity.key == baseline.key, f"{level}: {identity.because}"
        assert run.job_id in (JOB, "")
