"""The identified configuration of a run.

Each refused case could otherwise pass a slow run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.builders import BASELINE, log, segment, steps

from pytest_llmbench.core.baseline_records import Baseline, BaselineKind, Key, Recipe
from pytest_llmbench.core.log_records import ParsedLog
from pytest_llmbench.core.metric_definitions import compute_tflops_per_gpu
from pytest_llmbench.core.run_records import Hint, Identity, RunFiles
from pytest_llmbench.runs.discover.baseline_matches import cache_matches
from pytest_llmbench.runs.discover.identify import identify
from pytest_llmbench.runs.layouts.folder_layouts import read_path_hints

GROK_OLD = Key("grok1", "314b", "24.11", "h100", "bf16", 512)
GROK_H100 = Key("grok1", "314b", "25.05", "h100", "bf16", 512)
GROK_GB200 = Key("grok1", "314b", "25.05", "gb200", "bf16", 512)
GROK_FP8 = replace(GROK_GB200, dtype="fp8")
GROK_128 = replace(GROK_GB200, gpus=128)
LLAMA = Key("llama3.1", "70b", "25.04", "h100", "bf16", 64)
LLAMA_PROXY = Key("llama3.1", "405b", "25.04", "h100", "bf16", 64)
MAXTEXT = Key("maxtext_llama2", "70b", "24.11", "h100", "bf16", 64)


def make_baseline(
    key: Key, batch: int, *, proxy: bool = False, **changes: Any
) -> Baseline:
    parallelism = replace(BASELINE.configuration.parallelism, tp=4)
    configuration = replace(
        BASELINE.configuration,
        key=key,
        global_batch_size=batch,
        proxy=proxy,
        parallelism=parallelism,
    )
    return replace(BASELINE, configuration=configuration, **changes)


def make_recipe(
    release: str,
    dialect: str,
    layout: str,
    *baselines: Baseline,
    names: Sequence[str] = (),
) -> Recipe:
    name = baselines[0].key.recipe
    dialect_baselines = tuple(
        replace(baseline, dialect=dialect) for baseline in baselines
    )
    kind = dialect_baselines[0].kind
    return Recipe(
        name,
        release,
        kind,
        name,
        "",
        dialect,
        tuple(names or (name,)),
        layout,
        dialect_baselines,
        (),
        (),
        Path(),
    )


RECIPES = (
    make_recipe("24.11", "nemo1", "results", make_baseline(GROK_OLD, 1024)),
    make_recipe(
        "25.05",
        "nemo2",
        "workloads",
        *(make_baseline(key, 1024) for key in (GROK_H100, GROK_GB200, GROK_FP8)),
        make_baseline(GROK_128, 256),
    ),
    make_recipe(
        "25.04",
        "nemo2",
        "experiments",
        make_baseline(LLAMA, 128),
        make_baseline(LLAMA_PROXY, 64, proxy=True),
    ),
    make_recipe(
        "24.11",
        "maxtext",
        "results",
        make_baseline(MAXTEXT, 128),
        names=("maxtext_llama2", "maxtext"),
    ),
)


def make_run(fields: dict[str, Any], *more: Hint, layout: str = "") -> RunFiles:
    hints = tuple(Hint(field, str(value), "name") for field, value in fields.items())
    return RunFiles("x", "/x", (), (*hints, *more), layout=layout)


def get_fields(key: Key, *fields: str) -> dict[str, Any]:
    return {
        field: getattr(key, field)
        for field in (fields or ("recipe", "size", "dtype", "gpus"))
    }


def make_all_fields(key: Key, **changes: Any) -> dict[str, Any]:
    return {
        **get_fields(key, "recipe", "size", "release", "gpu", "dtype", "gpus"),
        **changes,
    }


def make_log(
    dialect: str | None = "nemo2",
    batch: float = np.nan,
    total: int | None = 50,
    tflops: float = np.nan,
) -> ParsedLog:
    """Return a log of 50 steps of 10 s; NaN is not logged."""
    columns = steps(
        10.0, global_batch_size=np.full(50, batch), tflops_per_gpu=np.full(50, tflops)
    )
    return replace(log(segment(columns, total=total)), dialect=dialect)


def identify_run(run_files: RunFiles, *logs: ParsedLog, **options: Any) -> Identity:
    return identify(run_files, logs, options.pop("recipes", RECIPES), **options)


# --- matched --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run_files", "logs", "options", "expected", "assumed"),
    [
        (make_run(make_all_fields(GROK_GB200)), [], {}, GROK_GB200, ()),
        (
            make_run(make_all_fields(GROK_GB200, release="25.05.04")),
            [],
            {},
            GROK_GB200,
            (),
        ),
        (
            make_run(make_all_fields(GROK_OLD, recipe="nemo_grok1")),
            [],
            {},
            GROK_OLD,
            (),
        ),
        (
            make_run(
                make_all_fields(
                    GROK_GB200, recipe="GROK1", size="314B", dtype="BF16", gpu="GB200"
                )
            ),
            [],
            {},
            GROK_GB200,
            (),
        ),
        (make_run(make_all_fields(MAXTEXT, recipe="maxtext")), [], {}, MAXTEXT, ()),
        (
            make_run(make_all_fields(MAXTEXT), Hint("recipe", "maxtext", "file")),
            [],
            {},
            MAXTEXT,
            (),
        ),
        (make_run(get_fields(GROK_128)), [], {}, GROK_128, ("release", "gpu")),
        # options fill in missing fields
        (
            make_run(get_fields(GROK_H100)),
            [],
            {"release": "25.05", "gpu": "h100"},
            GROK_H100,
            (),
        ),
        (
            make_run(get_fields(GROK_H100)),
            [],
            {"gpu": "GB200"},
            GROK_GB200,
            ("release",),
        ),
        # dialect and layout distinguish releases
        (
            make_run(get_fields(GROK_OLD)),
            [make_log("nemo1")],
            {},
            GROK_OLD,
            ("release", "gpu"),
        ),
        (
            make_run(get_fields(GROK_H100), layout="workloads"),
            [],
            {"gpu": "h100"},
            GROK_H100,
            ("release",),
        ),
        # nodes have 8 GPUs, of GB200 4
        (
            make_run({**get_fields(LLAMA, "recipe", "size", "dtype"), "nodes": 8}),
            [],
            {},
            LLAMA,
            ("release", "gpu"),
        ),
        (
            make_run({**make_all_fields(GROK_GB200), "nodes": 128, "gpus_per_node": 4}),
            [],
            {},
            GROK_GB200,
            (),
        ),
        # the settings in a name
        (
            make_run(
                {
                    **make_all_fields(LLAMA),
                    "tp": 4,
                    "global_batch_size": 128,
                    "micro_batch_size": 1,
                }
            ),
            [],
            {},
            LLAMA,
            (),
        ),
        (
            make_run({**make_all_fields(LLAMA_PROXY), "proxy": "true"}),
            [],
            {},
            LLAMA_PROXY,
            (),
        ),
        (
            make_run({**make_all_fields(LLAMA), "proxy": "false", "scaling": "weak"}),
            [],
            {},
            LLAMA,
            (),
        ),
        # another release on purpose
        (
            make_run(make_all_fields(GROK_GB200, release="26.06.00")),
            [],
            {"baseline_release": "25.05"},
            GROK_GB200,
            (),
        ),
        (
            make_run(make_all_fields(GROK_OLD, release="23.05"), layout="workloads"),
            [make_log("nemo1")],
            {"baseline_release": "24.11"},
            GROK_OLD,
            (),
        ),
        # the measurement detects a wrong batch size in the log
        (
            make_run(make_all_fields(GROK_GB200)),
            [make_log(batch=2048)],
            {},
            GROK_GB200,
            (),
        ),
    ],
)
def test_run_is_identified_by_all_sources(
    run_files: RunFiles,
    logs: list[ParsedLog],
    options: dict[str, str],
    expected: Key,
    assumed: tuple[str, ...],
) -> None:
    identity = identify_run(run_files, *logs, **options)
    assert identity.key == expected, identity.because
    assert identity.assumed == assumed
    assert identity.because


def test_release_of_the_run_that_the_baseline_release_option_overrides_is_reported() -> (
    None
):
    identity = identify_run(
        make_run(make_all_fields(GROK_GB200, release="26.06.00")),
        baseline_release="25.05",
    )
    assert identity.because.endswith("its own release 26.06.00 (name) is ignored")
    assert "--llmb-baseline-release" in identity.because


# --- refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ("25.05.04", "25.05.04"),
        ("v25.05.04", "25.05.04"),
        ("25.05.01", "25.05"),
        ("25.05", "25.05"),
    ],
)
def test_baseline_of_the_exact_patch_release_is_preferred_if_one_exists(
    stated: str, expected: str
) -> None:
    """Any other patch release belongs to its release."""
    patch = make_recipe(
        "25.05.04",
        "nemo2",
        "workloads",
        make_baseline(replace(GROK_GB200, release="25.05.04"), 1024),
    )
    identity = identify_run(
        make_run(make_all_fields(GROK_GB200, release=stated)), recipes=(*RECIPES, patch)
    )
    assert identity.key == replace(GROK_GB200, release=expected)


def test_run_matches_its_minor_release_if_the_patch_release_lacks_its_configuration() -> (
    None
):
    patch = make_recipe(
        "25.05.04",
        "nemo2",
        "workloads",
        make_baseline(replace(GROK_FP8, release="25.05.04"), 1024),
    )
    identity = identify_run(
        make_run(make_all_fields(GROK_GB200, release="25.05.04")),
        recipes=(*RECIPES, patch),
    )
    assert identity.key == GROK_GB200


@pytest.mark.parametrize(
    ("fields", "more", "because"),
    [
        (
            make_all_fields(GROK_GB200),
            Hint("dtype", "fp8", "llmb-config_5.yaml"),
            "dtype bf16 (name) but dtype fp8 (llmb-config_5",
        ),
        (
            make_all_fields(GROK_GB200),
            Hint("recipe", "llama3.1", "file x"),
            "recipe grok1 (name) but recipe llama3.1 (file x)",
        ),
        (
            make_all_fields(GROK_GB200),
            Hint("release", "24.11", "file x"),
            "release 25.05 (name) but release 24.11 (file x)",
        ),
        (
            make_all_fields(GROK_GB200, release="25.05.04"),
            Hint("release", "25.05.01", "file x"),
            "release 25.05.04 (name) but release 25.05.01 (file x)",
        ),
    ],
)
def test_contradicting_sources_match_no_baseline(
    fields: dict[str, Any], more: Hint, because: str
) -> None:
    for options in ({}, {"release": "25.05", "gpu": "gb200"}):
        identity = identify_run(make_run(fields, more), **options)
        assert identity.key is None
        assert identity.because.startswith(
            f"its sources contradict each other: {because}"
        )


@pytest.mark.parametrize(
    ("fields", "more", "candidates"),
    [
        (make_all_fields(GROK_GB200), {"dtype": "fp8"}, (GROK_GB200, GROK_FP8)),
        (
            make_all_fields(GROK_GB200, gpus=128),
            {"gpus": "512"},
            (GROK_128, GROK_GB200),
        ),
        (
            make_all_fields(GROK_GB200),
            {"gpu": "h100", "dtype": "fp8"},
            (GROK_GB200, GROK_FP8, GROK_H100),
        ),
        (make_all_fields(GROK_H100), {"release": "24.11"}, (GROK_OLD, GROK_H100)),
        (make_all_fields(GROK_GB200), {"recipe": "grok2"}, (GROK_GB200,)),
        # the fields without contradiction have to fit
        (make_all_fields(GROK_GB200, gpu="b200"), {"dtype": "fp8"}, ()),
        (
            make_all_fields(GROK_GB200),
            {"gpus": "128", "global_batch_size": "256"},
            (GROK_128,),
        ),
        (
            make_all_fields(GROK_GB200),
            {"size": "8b", "recipe": "llama3.1"},
            (GROK_GB200,),
        ),
    ],
)
def test_run_may_belong_to_baselines_that_fit_either_of_two_contradicting_values(
    fields: dict[str, Any], more: dict[str, str], candidates: tuple[Key, ...]
) -> None:
    """Other configurations are not in doubt.

    Configurations in doubt must not pass by an older run.
    """
    identity = identify_run(
        make_run(
            fields, *(Hint(field, value, "file x") for field, value in more.items())
        )
    )
    assert (identity.key, identity.candidates) == (None, tuple(sorted(candidates)))


def test_run_with_contradicting_tasks_may_belong_to_baselines_of_either_task() -> None:
    tuned = replace(LLAMA, task="finetune")
    recipes = (
        make_recipe(
            "25.04",
            "nemo2",
            "experiments",
            make_baseline(tuned, 128),
            make_baseline(LLAMA, 128),
        ),
    )
    twice = [
        Hint(field, value, "x")
        for field, value in (("task", "finetune"), ("task", "sft"), ("gpus", "8"))
    ]
    assert identify_run(
        make_run(make_all_fields(LLAMA), *twice), recipes=recipes
    ).candidates == (tuned,)


NEMO1 = make_log("nemo1")


@pytest.mark.parametrize(
    ("run_files", "logs", "differs"),
    [
        (make_run(make_all_fields(GROK_GB200, recipe="mini_grok1")), [], "recipe"),
        (make_run(make_all_fields(GROK_GB200, dtype="fp8cs")), [], "dtype"),
        (make_run(make_all_fields(GROK_GB200, gpus="388660")), [], "gpus"),
        (make_run(make_all_fields(GROK_GB200, gpu="gb300")), [], "gpu"),
        (make_run(make_all_fields(GROK_GB200, release="25.050")), [], "release"),
        (make_run(make_all_fields(GROK_GB200, release="25.05_dev")), [], "release"),
        (make_run(make_all_fields(GROK_GB200, task="finetune")), [], "task"),
        (
            make_run(make_all_fields(GROK_GB200, global_batch_size="512")),
            [],
            "global_batch_size",
        ),
        (
            make_run(make_all_fields(GROK_GB200, model_overrides="num_layers=2")),
            [],
            "model_overrides",
        ),
        (make_run(make_all_fields(GROK_GB200, nodes="64")), [], "nodes"),
        (make_run(make_all_fields(LLAMA, proxy="true")), [], "proxy"),
        (make_run(make_all_fields(GROK_GB200)), [NEMO1], "dialect"),
        (
            make_run(make_all_fields(GROK_GB200)),
            [make_log("nemo2"), make_log("megatron")],
            "dialect",
        ),
        (make_run(make_all_fields(GROK_GB200), layout="results"), [], "layout"),
        (make_run(make_all_fields(LLAMA), layout="workloads"), [], "layout"),
    ],
)
def test_single_different_fact_prevents_a_match(
    run_files: RunFiles, logs: list[ParsedLog], differs: str
) -> None:
    check_unmatched(identify_run(run_files, *logs), differs)


def check_unmatched(identity: Identity, differs: str) -> None:
    assert identity.key is None
    assert identity.candidates == ()
    assert 1 <= len(identity.nearest) <= 3
    assert f"nearest: {identity.nearest[0].id} ({differs})" in identity.because


@pytest.mark.parametrize(
    ("stated", "logs", "options", "differs"),
    [
        (
            make_all_fields(GROK_GB200, release="26.06.00"),
            [],
            {"release": "25.05"},
            "release",
        ),
        (make_all_fields(GROK_128, gpu="h100"), [], {"gpu": "gb200"}, "gpu"),
        # the steps of another dialect are numbered differently
        (
            make_all_fields(GROK_GB200, release="26.06"),
            [NEMO1],
            {"baseline_release": "25.05"},
            "dialect",
        ),
    ],
)
def test_options_do_not_override_stated_fields(
    stated: dict[str, Any], logs: list[ParsedLog], options: dict[str, str], differs: str
) -> None:
    check_unmatched(identify_run(make_run(stated), *logs, **options), differs)


def test_message_on_an_unknown_release_names_nearest_baselines_and_the_option() -> None:
    identity = identify_run(make_run(make_all_fields(GROK_H100, release="26.06.00")))
    assert identity.because == (
        "release 26.06.00 has no baseline; nearest: grok1_314b-25.05-h100-bf16-512 (release),"
        " grok1_314b-24.11-h100-bf16-512 (release), grok1_314b-25.05-gb200-bf16-512 (gpu, release);"
        " --llmb-baseline-release=25.05 judges it against that release"
    )


def test_misspelt_recipe_suggests_nearest_name() -> None:
    identity = identify_run(make_run(make_all_fields(GROK_H100, recipe="grok-1")))
    assert "recipe grok-1 has no baseline (did you mean 'grok1'?)" in identity.because


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            make_all_fields(GROK_H100, gpu="b300"),
            (GROK_GB200, GROK_H100),
        ),  # another GPU type: each of those that are there
        (
            make_all_fields(GROK_GB200, release="26.06"),
            (GROK_GB200,),
        ),  # and not what differs in more
        (make_all_fields(GROK_GB200, recipe="grok2"), (GROK_GB200,)),
        (
            make_all_fields(GROK_GB200, recipe="mine", size="13b"),
            (),
        ),  # another workload
        (
            {"recipe": "mine"} | get_fields(GROK_H100, "size", "dtype", "gpus", "gpu"),
            (GROK_OLD, GROK_H100),
        ),
    ],
)
def test_unmatched_run_may_belong_only_to_the_baselines_that_differ_least(
    fields: dict[str, Any], expected: tuple[Key, ...]
) -> None:
    assert identify_run(make_run(fields)).may_be == tuple(sorted(expected))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (
            "/runs/workloads/pretrain_grok1/experiments/pretrain_grok1_314b_fp8_gpus512",
            {GROK_FP8},
        ),
        (
            "/runs/experiments/pretrain_grok1_314b_bf16_512/1750384800/log-grok1.out",
            {GROK_OLD, GROK_H100, GROK_GB200},
        ),
        ("/runs/gb200/pretrain_grok1_314b_bf16_512", {GROK_GB200}),
        ("/runs/pretrain_mine_13b_bf16_512", set()),
        (
            "/runs/lost+found",
            {baseline.key for recipe in RECIPES for baseline in recipe.baselines},
        ),
    ],
)
def test_unreadable_run_may_belong_to_any_baseline_that_fits_its_path(
    path: str, expected: set[Key]
) -> None:
    identity = identify_run(RunFiles("x", path, (), read_path_hints(Path(path).parts)))
    assert {identity.key} - {None} | set(identity.may_be) == expected


# --- ambiguous ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run_files", "candidates", "words"),
    [
        (
            make_run(get_fields(GROK_H100), layout="workloads"),
            (GROK_GB200, GROK_H100),
            "give --llmb-gpu=gb200|h100",
        ),
        (
            make_run({**get_fields(GROK_H100), "gpu": "h100"}),
            (GROK_OLD, GROK_H100),
            "not stated: release; give --llmb-release=24.11|25.05",
        ),
        (
            make_run(get_fields(GROK_H100, "recipe", "size", "gpus", "gpu", "release")),
            (GROK_H100,),
            "not stated: dtype",
        ),
        (
            make_run(get_fields(LLAMA, "size", "dtype", "gpus", "release")),
            (LLAMA,),
            "not stated: recipe",
        ),
    ],
)
def test_missing_fields_are_not_guessed(
    run_files: RunFiles, candidates: tuple[Key, ...], words: str
) -> None:
    identity = identify_run(run_files)
    assert (identity.key, identity.candidates) == (None, tuple(sorted(candidates)))
    assert words in identity.because


def compute_tflops(key: Key, batch: int) -> float:
    """Return the TFLOP/s that a configuration logs at 10 s."""
    expected = make_baseline(key, batch)
    return compute_tflops_per_gpu(expected.configuration, 10.0) * (
        expected.logged_tflops_factor or 1.0
    )


WORK = compute_tflops(LLAMA, 128)


@pytest.mark.parametrize(
    ("run_files", "logs", "expected"),
    [
        # only the content: dialect, batch size, steps and TFLOP/s
        (make_run({}), [make_log(batch=128, tflops=WORK)], LLAMA),
        (make_run({}), [make_log(batch=128)], None),
        (make_run({}), [make_log(tflops=WORK)], None),
        (make_run({}), [make_log(batch=128, total=None, tflops=WORK)], None),
        (make_run({}), [make_log(None, batch=128, tflops=WORK)], None),
        (make_run({}), [make_log(batch=128, total=1, tflops=WORK)], None),
        (
            make_run({}),
            [make_log(batch=1024, tflops=compute_tflops(GROK_H100, 1024))],
            None,
        ),
        (make_run({}), [make_log(batch=128, tflops=WORK * 1.06)], None),
        (make_run({}), [make_log(batch=128, tflops=WORK * 1.04)], LLAMA),
        # the precision leaves no trace in a log
        (
            make_run(get_fields(GROK_FP8, "recipe", "size", "gpus")),
            [make_log(batch=1024)],
            None,
        ),
        # older folder layouts do not contain the recipe
        (
            make_run(get_fields(LLAMA, "size", "dtype", "gpus")),
            [make_log(batch=128)],
            LLAMA,
        ),
        (
            make_run(get_fields(LLAMA, "size", "dtype", "gpus")),
            [make_log(tflops=WORK)],
            LLAMA,
        ),
        (make_run(get_fields(LLAMA, "size", "dtype", "gpus")), [make_log()], None),
        (
            make_run(get_fields(LLAMA, "size", "dtype", "gpus")),
            [make_log(batch=256)],
            None,
        ),
    ],
)
def test_run_without_a_telling_name_matches_only_if_batch_steps_and_tflops_agree(
    run_files: RunFiles, logs: list[ParsedLog], expected: Key | None
) -> None:
    identity = identify_run(run_files, *logs)
    assert identity.key == expected, identity.because
    assert expected is None or "recipe" in identity.assumed


def test_batch_size_in_the_log_decides_between_baselines_of_the_same_name() -> None:
    strong = replace(LLAMA, scaling="strong")
    recipes = (
        make_recipe(
            "25.04",
            "nemo2",
            "experiments",
            make_baseline(LLAMA, 128),
            make_baseline(strong, 512),
        ),
    )
    assert identify_run(
        make_run(make_all_fields(LLAMA)), recipes=recipes
    ).candidates == (LLAMA, strong)
    assert (
        identify_run(
            make_run(make_all_fields(LLAMA)), make_log(batch=512), recipes=recipes
        ).key
        == strong
    )
    assert (
        identify_run(
            make_run(make_all_fields(LLAMA)), make_log(batch=128), recipes=recipes
        ).key
        == LLAMA
    )
    unfit = identify_run(
        make_run(make_all_fields(LLAMA)), make_log(batch=64), recipes=recipes
    )
    assert unfit.candidates == (LLAMA, strong)
    assert (
        "the batch size, steps or TFLOP/s in its log fit none of them" in unfit.because
    )
    assert (
        identify_run(
            make_run({**make_all_fields(LLAMA), "scaling": "strong"}), recipes=recipes
        ).key
        == strong
    )
    assert (
        identify_run(
            make_run({**make_all_fields(LLAMA), "scaling": "weak"}), recipes=recipes
        ).key
        == LLAMA
    )


def test_fine_tuning_baseline_matches_only_a_run_that_states_this_task() -> None:
    tuned = replace(LLAMA, task="finetune")
    recipes = (make_recipe("25.04", "nemo2", "experiments", make_baseline(tuned, 128)),)
    assert identify_run(make_run(make_all_fields(LLAMA)), recipes=recipes).key is None
    assert (
        identify_run(
            make_run({**make_all_fields(LLAMA), "task": "finetune"}), recipes=recipes
        ).key
        == tuned
    )


def test_published_and_recorded_baseline_of_one_configuration_are_one_candidate() -> (
    None
):
    recorded = make_baseline(LLAMA, 128, kind=BaselineKind.RECORDED)
    recipes = (*RECIPES, make_recipe("25.04", "nemo2", "", recorded))
    assert identify_run(make_run(make_all_fields(LLAMA)), recipes=recipes).key == LLAMA


FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "recipe": st.sampled_from(["grok1", "llama3.1", "maxtext", "other"]),
        "size": st.sampled_from(["314b", "70b", "405b"]),
        "dtype": st.sampled_from(["bf16", "fp8"]),
        "gpus": st.sampled_from(["64", "128", "512"]),
        "gpu": st.sampled_from(["h100", "gb200"]),
        "release": st.sampled_from(["24.11", "25.04", "25.05.04", "26.06"]),
    },
)


@pytest.mark.slow
@given(
    FIELDS,
    st.sampled_from(["", "results", "experiments", "workloads"]),
    st.sampled_from([None, "nemo1", "nemo2"]),
)
def test_matched_configuration_contradicts_no_stated_field(
    fields: dict[str, str], layout: str, dialect: str | None
) -> None:
    """Without help from a log, recipe, size, precision and GPUs have to be stated."""
    identity = identify_run(make_run(fields, layout=layout), make_log(dialect))
    if identity.key is None:
        return
    assert {"recipe", "size", "dtype", "gpus"} <= set(fields)
    for field, value in fields.items():
        matched = str(getattr(identity.key, field))
        assert value in (matched, "maxtext") or value.startswith(f"{matched}.")
    assert set(identity.assumed) == {"release", "gpu"} - set(fields)


CACHED_MATCHES = cache_matches()
"""Shared by all examples below, like by all runs of a session."""


@pytest.mark.slow
@given(
    FIELDS,
    st.sampled_from(["", "results", "workloads"]),
    st.sampled_from([None, "nemo1", "nemo2"]),
    st.booleans(),
)
def test_cached_matches_equal_fresh_matches(
    fields: dict[str, str], layout: str, dialect: str | None, contradicted: bool
) -> None:
    """The sources in the result are those of the current run."""
    more = [Hint("size", "9b", "elsewhere")] if contradicted else []
    run_files = make_run(fields, *more, layout=layout)
    own = replace(
        run_files,
        hints=tuple(
            replace(hint, source=f"other {hint.source}") for hint in run_files.hints
        ),
    )
    identify_run(own, make_log(dialect), find=CACHED_MATCHES)
    assert identify_run(
        run_files, make_log(dialect), find=CACHED_MATCHES
    ) == identify_run(run_files, make_log(dialect))


MX, CS = replace(GROK_128, dtype="fp8_mx"), replace(GROK_128, dtype="fp8", variant="cs")
PLAIN = replace(GROK_128, dtype="fp8")


def test_cached_matches_of_other_recipes_are_not_used() -> None:
    """A run is compared with the ordinary recipes, and then with the tables."""
    find = cache_matches()
    fields = {**make_all_fields(GROK_128), "dtype": "fp8"}
    known = make_recipe("25.05", "nemo2", "workloads", make_baseline(PLAIN, 256))
    other = replace(known, name="other", baselines=())
    run_files = make_run(fields)
    assert identify(run_files, [make_log(batch=256)], (other,), find=find).key is None
    found = identify(run_files, [make_log(batch=256)], (known,), find=find)
    assert found.key == PLAIN


@pytest.mark.parametrize(
    ("key", "said_of_it", "fits"),
    [
        (PLAIN, {"dtype": "fp8"}, True),
        (PLAIN, {"dtype": "fp8", "variant": "mx"}, False),
        (PLAIN, {"dtype": "mxfp8"}, False),
        (MX, {"dtype": "fp8", "variant": "mx"}, True),
        (MX, {"dtype": "mxfp8"}, True),
        (MX, {"dtype": "fp8", "variant": "cs"}, False),
        (MX, {"dtype": "fp8"}, False),
        (CS, {"dtype": "fp8", "variant": "cs"}, True),
        (CS, {"dtype": "bf16", "variant": "cs"}, False),
    ],
)
def test_run_and_baseline_have_to_state_the_same_fp8_recipe(
    key: Key, said_of_it: dict[str, str], fits: bool
) -> None:
    known = (make_recipe("25.05", "nemo2", "workloads", make_baseline(key, 256)),)
    run_files = identify(
        make_run({**make_all_fields(GROK_128), **said_of_it}),
        [make_log(batch=256)],
        known,
    )
    assert (run_files.key == key) is fits
    assert fits or (
        run_files.nearest == (key,) and f"nearest: {key.id}" in run_files.because
    )


def test_plain_fp8_in_metadata_does_not_contradict_an_fp8_recipe_in_the_name() -> None:
    known = (
        make_recipe(
            "25.05",
            "nemo2",
            "workloads",
            make_baseline(MX, 256),
            make_baseline(PLAIN, 256),
        ),
    )
    metadata = Hint("dtype", "fp8", "llmb-config_1.yaml")
    assert (
        identify(
            make_run(make_all_fields(GROK_128, dtype="mxfp8"), metadata),
            [make_log(batch=256)],
            known,
        ).key
        == MX
    )
    assert (
        identify(
            make_run(make_all_fields(GROK_128, dtype="fp8", variant="mx"), metadata),
            [make_log(batch=256)],
            known,
        ).key
        == MX
    )
    assert identify(
        make_run(make_all_fields(GROK_128, dtype="nvfp4"), metadata),
        [make_log(batch=256)],
        known,
    ).contradicted == ("dtype",)
