"""Which configuration a run is. Each row of the refusals is a way in which a wrong
answer could pass a slow run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
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


def baseline(key: Key, batch: int, *, proxy: bool = False, **changes: Any) -> Baseline:
    parallelism = replace(BASELINE.configuration.parallelism, tp=4)
    configuration = replace(
        BASELINE.configuration,
        key=key,
        global_batch_size=batch,
        proxy=proxy,
        parallelism=parallelism,
    )
    return replace(BASELINE, configuration=configuration, **changes)


def recipe(
    release: str,
    dialect: str,
    layout: str,
    *baselines: Baseline,
    names: Sequence[str] = (),
) -> Recipe:
    name = baselines[0].key.recipe
    held = tuple(replace(one, dialect=dialect) for one in baselines)
    kind = held[0].kind
    return Recipe(
        name,
        release,
        kind,
        name,
        "",
        dialect,
        tuple(names or (name,)),
        layout,
        held,
        (),
        (),
        Path(),
    )


RECIPES = (
    recipe("24.11", "nemo1", "results", baseline(GROK_OLD, 1024)),
    recipe(
        "25.05",
        "nemo2",
        "workloads",
        *(baseline(key, 1024) for key in (GROK_H100, GROK_GB200, GROK_FP8)),
        baseline(GROK_128, 256),
    ),
    recipe(
        "25.04",
        "nemo2",
        "experiments",
        baseline(LLAMA, 128),
        baseline(LLAMA_PROXY, 64, proxy=True),
    ),
    recipe(
        "24.11",
        "maxtext",
        "results",
        baseline(MAXTEXT, 128),
        names=("maxtext_llama2", "maxtext"),
    ),
)


def run(said: dict[str, Any], *more: Hint, layout: str = "") -> RunFiles:
    hints = tuple(Hint(field, str(value), "name") for field, value in said.items())
    return RunFiles("x", Path("/x"), (), (*hints, *more), layout=layout)


def said(key: Key, *fields: str) -> dict[str, Any]:
    return {
        field: getattr(key, field)
        for field in (fields or ("recipe", "size", "dtype", "gpus"))
    }


def full(key: Key, **changes: Any) -> dict[str, Any]:
    return {**said(key, "recipe", "size", "release", "gpu", "dtype", "gpus"), **changes}


def logged(
    dialect: str | None = "nemo2",
    batch: float = np.nan,
    total: int | None = 50,
    tflops: float = np.nan,
) -> ParsedLog:
    """A log of 50 steps of 10 s; NaN is not logged."""
    columns = steps(
        10.0, global_batch_size=np.full(50, batch), tflops_per_gpu=np.full(50, tflops)
    )
    return replace(log(segment(columns, total=total)), dialect=dialect)


def decided(found: RunFiles, *logs: ParsedLog, **options: Any) -> Identity:
    return identify(found, logs, options.pop("recipes", RECIPES), **options)


# --- what is matched ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "logs", "options", "expected", "assumed"),
    [
        (run(full(GROK_GB200)), [], {}, GROK_GB200, ()),
        (run(full(GROK_GB200, release="25.05.04")), [], {}, GROK_GB200, ()),
        (run(full(GROK_OLD, recipe="nemo_grok1")), [], {}, GROK_OLD, ()),
        (
            run(
                full(GROK_GB200, recipe="GROK1", size="314B", dtype="BF16", gpu="GB200")
            ),
            [],
            {},
            GROK_GB200,
            (),
        ),
        (run(full(MAXTEXT, recipe="maxtext")), [], {}, MAXTEXT, ()),
        (run(full(MAXTEXT), Hint("recipe", "maxtext", "file")), [], {}, MAXTEXT, ()),
        (run(said(GROK_128)), [], {}, GROK_128, ("release", "gpu")),
        # options fill in what nothing says
        (run(said(GROK_H100)), [], {"release": "25.05", "gpu": "h100"}, GROK_H100, ()),
        (run(said(GROK_H100)), [], {"gpu": "GB200"}, GROK_GB200, ("release",)),
        # dialect and layout tell releases apart
        (run(said(GROK_OLD)), [logged("nemo1")], {}, GROK_OLD, ("release", "gpu")),
        (
            run(said(GROK_H100), layout="workloads"),
            [],
            {"gpu": "h100"},
            GROK_H100,
            ("release",),
        ),
        # nodes have 8 GPUs, of GB200 4
        (
            run({**said(LLAMA, "recipe", "size", "dtype"), "nodes": 8}),
            [],
            {},
            LLAMA,
            ("release", "gpu"),
        ),
        (
            run({**full(GROK_GB200), "nodes": 128, "gpus_per_node": 4}),
            [],
            {},
            GROK_GB200,
            (),
        ),
        # what the name spells out
        (
            run(
                {
                    **full(LLAMA),
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
        (run({**full(LLAMA_PROXY), "proxy": "true"}), [], {}, LLAMA_PROXY, ()),
        (run({**full(LLAMA), "proxy": "false", "scaling": "weak"}), [], {}, LLAMA, ()),
        # another release on purpose
        (
            run(full(GROK_GB200, release="26.06.00")),
            [],
            {"baseline_release": "25.05"},
            GROK_GB200,
            (),
        ),
        (
            run(full(GROK_OLD, release="23.05"), layout="workloads"),
            [logged("nemo1")],
            {"baseline_release": "24.11"},
            GROK_OLD,
            (),
        ),
        # a wrong batch size in the log is for the measurement to find
        (run(full(GROK_GB200)), [logged(batch=2048)], {}, GROK_GB200, ()),
    ],
)
def test_a_run_is_what_everything_about_it_says(
    found: RunFiles,
    logs: list[ParsedLog],
    options: dict[str, str],
    expected: Key,
    assumed: tuple[str, ...],
) -> None:
    identity = decided(found, *logs, **options)
    assert identity.key == expected, identity.because
    assert identity.assumed == assumed
    assert identity.because


def test_a_release_that_is_set_aside_is_named() -> None:
    identity = decided(
        run(full(GROK_GB200, release="26.06.00")), baseline_release="25.05"
    )
    assert identity.because.endswith("its own release 26.06.00 (name) is ignored")
    assert "--llmb-baseline-release" in identity.because


# --- what is refused ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ("25.05.04", "25.05.04"),
        ("v25.05.04", "25.05.04"),
        ("25.05.01", "25.05"),
        ("25.05", "25.05"),
    ],
)
def test_a_patch_release_with_a_document_of_its_own_is_that_one(
    stated: str, expected: str
) -> None:
    """Any other patch release is one of its release."""
    patch = recipe(
        "25.05.04",
        "nemo2",
        "workloads",
        baseline(replace(GROK_GB200, release="25.05.04"), 1024),
    )
    identity = decided(run(full(GROK_GB200, release=stated)), recipes=(*RECIPES, patch))
    assert identity.key == replace(GROK_GB200, release=expected)


def test_another_key_of_the_very_release_does_not_hide_one_that_is_of_it() -> None:
    patch = recipe(
        "25.05.04",
        "nemo2",
        "workloads",
        baseline(replace(GROK_FP8, release="25.05.04"), 1024),
    )
    identity = decided(
        run(full(GROK_GB200, release="25.05.04")), recipes=(*RECIPES, patch)
    )
    assert identity.key == GROK_GB200


@pytest.mark.parametrize(
    ("said", "more", "because"),
    [
        (
            full(GROK_GB200),
            Hint("dtype", "fp8", "llmb-config_5.yaml"),
            "dtype bf16 (name) but dtype fp8 (llmb-config_5",
        ),
        (
            full(GROK_GB200),
            Hint("recipe", "llama3.1", "file x"),
            "recipe grok1 (name) but recipe llama3.1 (file x)",
        ),
        (
            full(GROK_GB200),
            Hint("release", "24.11", "file x"),
            "release 25.05 (name) but release 24.11 (file x)",
        ),
        (
            full(GROK_GB200, release="25.05.04"),
            Hint("release", "25.05.01", "file x"),
            "release 25.05.04 (name) but release 25.05.01 (file x)",
        ),
    ],
)
def test_sources_that_contradict_each_other_match_nothing(
    said: dict[str, Any], more: Hint, because: str
) -> None:
    for options in ({}, {"release": "25.05", "gpu": "gb200"}):
        identity = decided(run(said, more), **options)
        assert identity.key is None
        assert identity.because.startswith(
            f"its sources contradict each other: {because}"
        )


@pytest.mark.parametrize(
    ("said", "more", "candidates"),
    [
        (full(GROK_GB200), {"dtype": "fp8"}, (GROK_GB200, GROK_FP8)),
        (full(GROK_GB200, gpus=128), {"gpus": "512"}, (GROK_128, GROK_GB200)),
        (
            full(GROK_GB200),
            {"gpu": "h100", "dtype": "fp8"},
            (GROK_GB200, GROK_FP8, GROK_H100),
        ),
        (full(GROK_H100), {"release": "24.11"}, (GROK_OLD, GROK_H100)),
        (full(GROK_GB200), {"recipe": "grok2"}, (GROK_GB200,)),
        # what is not contradicted has to fit
        (full(GROK_GB200, gpu="b200"), {"dtype": "fp8"}, ()),
        (full(GROK_GB200), {"gpus": "128", "global_batch_size": "256"}, (GROK_128,)),
        (full(GROK_GB200), {"size": "8b", "recipe": "llama3.1"}, (GROK_GB200,)),
    ],
)
def test_candidates_of_a_contradiction_fit_one_of_its_values_and_all_else(
    said: dict[str, Any], more: dict[str, str], candidates: tuple[Key, ...]
) -> None:
    """Other configurations are not in doubt; those in doubt must not pass by an older
    run."""
    identity = decided(
        run(said, *(Hint(field, value, "file x") for field, value in more.items()))
    )
    assert (identity.key, identity.candidates) == (None, tuple(sorted(candidates)))


def test_a_contradicted_task_keeps_the_baselines_of_that_task() -> None:
    tuned = replace(LLAMA, task="finetune")
    recipes = (
        recipe(
            "25.04", "nemo2", "experiments", baseline(tuned, 128), baseline(LLAMA, 128)
        ),
    )
    twice = [
        Hint(field, value, "x")
        for field, value in (("task", "finetune"), ("task", "sft"), ("gpus", "8"))
    ]
    assert decided(run(full(LLAMA), *twice), recipes=recipes).candidates == (tuned,)


NEMO1 = logged("nemo1")


@pytest.mark.parametrize(
    ("found", "logs", "differs"),
    [
        (run(full(GROK_GB200, recipe="mini_grok1")), [], "recipe"),
        (run(full(GROK_GB200, dtype="fp8cs")), [], "dtype"),
        (run(full(GROK_GB200, gpus="388660")), [], "gpus"),
        (run(full(GROK_GB200, gpu="gb300")), [], "gpu"),
        (run(full(GROK_GB200, release="25.050")), [], "release"),
        (run(full(GROK_GB200, release="25.05_dev")), [], "release"),
        (run(full(GROK_GB200, task="finetune")), [], "task"),
        (run(full(GROK_GB200, global_batch_size="512")), [], "global_batch_size"),
        (run(full(GROK_GB200, model_overrides="num_layers=2")), [], "model_overrides"),
        (run(full(GROK_GB200, nodes="64")), [], "nodes"),
        (run(full(LLAMA, proxy="true")), [], "proxy"),
        (run(full(GROK_GB200)), [NEMO1], "dialect"),
        (run(full(GROK_GB200)), [logged("nemo2"), logged("megatron")], "dialect"),
        (run(full(GROK_GB200), layout="results"), [], "layout"),
        (run(full(LLAMA), layout="workloads"), [], "layout"),
    ],
)
def test_run_that_differs_in_one_thing_matches_nothing(
    found: RunFiles, logs: list[ParsedLog], differs: str
) -> None:
    check_unmatched(decided(found, *logs), differs)


def check_unmatched(identity: Identity, differs: str) -> None:
    assert identity.key is None
    assert identity.candidates == ()
    assert 1 <= len(identity.nearest) <= 3
    assert f"nearest: {identity.nearest[0].id} ({differs})" in identity.because


@pytest.mark.parametrize(
    ("stated", "logs", "options", "differs"),
    [
        (full(GROK_GB200, release="26.06.00"), [], {"release": "25.05"}, "release"),
        (full(GROK_128, gpu="h100"), [], {"gpu": "gb200"}, "gpu"),
        # the steps of another dialect are numbered differently
        (
            full(GROK_GB200, release="26.06"),
            [NEMO1],
            {"baseline_release": "25.05"},
            "dialect",
        ),
    ],
)
def test_options_override_nothing_that_is_stated(
    stated: dict[str, Any], logs: list[ParsedLog], options: dict[str, str], differs: str
) -> None:
    check_unmatched(decided(run(stated), *logs, **options), differs)


def test_a_release_without_a_baseline_names_the_nearest_and_the_option() -> None:
    identity = decided(run(full(GROK_H100, release="26.06.00")))
    assert identity.because == (
        "release 26.06.00 has no baseline; nearest: grok1_314b-25.05-h100-bf16-512 (release),"
        " grok1_314b-24.11-h100-bf16-512 (release), grok1_314b-25.05-gb200-bf16-512 (gpu, release);"
        " --llmb-baseline-release=25.05 judges it against that release"
    )


def test_misspelt_recipe_gets_the_nearest_name() -> None:
    identity = decided(run(full(GROK_H100, recipe="grok-1")))
    assert "recipe grok-1 has no baseline (did you mean 'grok1'?)" in identity.because


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            full(GROK_H100, gpu="b300"),
            (GROK_GB200, GROK_H100),
        ),  # another GPU type: each of those that are there
        (
            full(GROK_GB200, release="26.06"),
            (GROK_GB200,),
        ),  # and not what differs in more
        (full(GROK_GB200, recipe="grok2"), (GROK_GB200,)),
        (full(GROK_GB200, recipe="mine", size="13b"), ()),  # another workload
        (
            {"recipe": "mine"} | said(GROK_H100, "size", "dtype", "gpus", "gpu"),
            (GROK_OLD, GROK_H100),
        ),
    ],
)
def test_a_run_may_be_of_what_it_differs_from_least(
    said: dict[str, Any], expected: tuple[Key, ...]
) -> None:
    assert decided(run(said)).may_be == tuple(sorted(expected))


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
            {one.key for recipe in RECIPES for one in recipe.baselines},
        ),
    ],
)
def test_what_cannot_be_read_may_be_what_its_names_leave_open(
    path: str, expected: set[Key]
) -> None:
    identity = decided(RunFiles("x", Path(path), (), read_path_hints(Path(path).parts)))
    assert {identity.key} - {None} | set(identity.may_be) == expected


# --- what is ambiguous ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "candidates", "words"),
    [
        (
            run(said(GROK_H100), layout="workloads"),
            (GROK_GB200, GROK_H100),
            "give --llmb-gpu=gb200|h100",
        ),
        (
            run({**said(GROK_H100), "gpu": "h100"}),
            (GROK_OLD, GROK_H100),
            "not stated: release; give --llmb-release=24.11|25.05",
        ),
        (
            run(said(GROK_H100, "recipe", "size", "gpus", "gpu", "release")),
            (GROK_H100,),
            "not stated: dtype",
        ),
        (
            run(said(LLAMA, "size", "dtype", "gpus", "release")),
            (LLAMA,),
            "not stated: recipe",
        ),
    ],
)
def test_what_is_left_open_is_not_guessed(
    found: RunFiles, candidates: tuple[Key, ...], words: str
) -> None:
    identity = decided(found)
    assert (identity.key, identity.candidates) == (None, tuple(sorted(candidates)))
    assert words in identity.because


def work(key: Key, batch: int) -> float:
    """Return the TFLOP/s that a configuration logs at 10 s."""
    expected = baseline(key, batch)
    return compute_tflops_per_gpu(expected.configuration, 10.0) * (
        expected.logged_tflops_factor or 1.0
    )


WORK = work(LLAMA, 128)


@pytest.mark.parametrize(
    ("found", "logs", "expected"),
    [
        # nothing but the content: dialect, batch size, steps and TFLOP/s, all four
        (run({}), [logged(batch=128, tflops=WORK)], LLAMA),
        (run({}), [logged(batch=128)], None),
        (run({}), [logged(tflops=WORK)], None),
        (run({}), [logged(batch=128, total=None, tflops=WORK)], None),
        (run({}), [logged(None, batch=128, tflops=WORK)], None),
        (run({}), [logged(batch=128, total=1, tflops=WORK)], None),
        (run({}), [logged(batch=1024, tflops=work(GROK_H100, 1024))], None),
        (run({}), [logged(batch=128, tflops=WORK * 1.06)], None),
        (run({}), [logged(batch=128, tflops=WORK * 1.04)], LLAMA),
        # the precision leaves no trace in a log
        (run(said(GROK_FP8, "recipe", "size", "gpus")), [logged(batch=1024)], None),
        # the older folders do not name the recipe
        (run(said(LLAMA, "size", "dtype", "gpus")), [logged(batch=128)], LLAMA),
        (run(said(LLAMA, "size", "dtype", "gpus")), [logged(tflops=WORK)], LLAMA),
        (run(said(LLAMA, "size", "dtype", "gpus")), [logged()], None),
        (run(said(LLAMA, "size", "dtype", "gpus")), [logged(batch=256)], None),
    ],
)
def test_content_alone_matches_only_where_every_fact_confirms_one(
    found: RunFiles, logs: list[ParsedLog], expected: Key | None
) -> None:
    identity = decided(found, *logs)
    assert identity.key == expected, identity.because
    assert expected is None or "recipe" in identity.assumed


def test_content_tells_apart_what_names_leave_open() -> None:
    strong = replace(LLAMA, scaling="strong")
    recipes = (
        recipe(
            "25.04", "nemo2", "experiments", baseline(LLAMA, 128), baseline(strong, 512)
        ),
    )
    assert decided(run(full(LLAMA)), recipes=recipes).candidates == (LLAMA, strong)
    assert decided(run(full(LLAMA)), logged(batch=512), recipes=recipes).key == strong
    assert decided(run(full(LLAMA)), logged(batch=128), recipes=recipes).key == LLAMA
    unfit = decided(run(full(LLAMA)), logged(batch=64), recipes=recipes)
    assert unfit.candidates == (LLAMA, strong)
    assert (
        "the batch size, steps or TFLOP/s in its log fit none of them" in unfit.because
    )
    assert (
        decided(run({**full(LLAMA), "scaling": "strong"}), recipes=recipes).key
        == strong
    )
    assert (
        decided(run({**full(LLAMA), "scaling": "weak"}), recipes=recipes).key == LLAMA
    )


def test_a_baseline_of_another_task_needs_a_run_that_says_so() -> None:
    tuned = replace(LLAMA, task="finetune")
    recipes = (recipe("25.04", "nemo2", "experiments", baseline(tuned, 128)),)
    assert decided(run(full(LLAMA)), recipes=recipes).key is None
    assert (
        decided(run({**full(LLAMA), "task": "finetune"}), recipes=recipes).key == tuned
    )


def test_recorded_and_published_baselines_of_one_key_are_one_candidate() -> None:
    recorded = baseline(LLAMA, 128, kind=BaselineKind.RECORDED)
    recipes = (*RECIPES, recipe("25.04", "nemo2", "", recorded))
    assert decided(run(full(LLAMA)), recipes=recipes).key == LLAMA


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
def test_a_match_never_differs_from_anything_said(
    fields: dict[str, str], layout: str, dialect: str | None
) -> None:
    """And without help from a log it needs recipe, size, precision and GPUs to be
    said."""
    identity = decided(run(fields, layout=layout), logged(dialect))
    if identity.key is None:
        return
    assert {"recipe", "size", "dtype", "gpus"} <= set(fields)
    for field, value in fields.items():
        matched = str(getattr(identity.key, field))
        assert value in (matched, "maxtext") or value.startswith(f"{matched}.")
    assert set(identity.assumed) == {"release", "gpu"} - set(fields)


REMEMBERED = cache_matches()
"""Shared by every example below, as by all runs of a session."""


@pytest.mark.slow
@given(
    FIELDS,
    st.sampled_from(["", "results", "workloads"]),
    st.sampled_from([None, "nemo1", "nemo2"]),
    st.booleans(),
)
def test_what_was_found_for_another_run_is_what_would_be_found_for_this_one(
    fields: dict[str, str], layout: str, dialect: str | None, contradicted: bool
) -> None:
    """And it says so in the names of this run's sources."""
    more = [Hint("size", "9b", "elsewhere")] if contradicted else []
    found = run(fields, *more, layout=layout)
    own = replace(
        found,
        hints=tuple(
            replace(hint, source=f"other {hint.source}") for hint in found.hints
        ),
    )
    decided(own, logged(dialect), find=REMEMBERED)
    assert decided(found, logged(dialect), find=REMEMBERED) == decided(
        found, logged(dialect)
    )


MX, CS = replace(GROK_128, dtype="fp8_mx"), replace(GROK_128, dtype="fp8", variant="cs")
PLAIN = replace(GROK_128, dtype="fp8")


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
def test_a_recipe_of_fp8_is_that_of_a_baseline_that_names_it(
    key: Key, said_of_it: dict[str, str], fits: bool
) -> None:
    known = (recipe("25.05", "nemo2", "workloads", baseline(key, 256)),)
    found = identify(run({**full(GROK_128), **said_of_it}), [logged(batch=256)], known)
    assert (found.key == key) is fits
    assert fits or (found.nearest == (key,) and f"nearest: {key.id}" in found.because)


def test_metadata_that_say_fp8_do_not_contradict_a_name_that_says_its_recipe() -> None:
    known = (
        recipe("25.05", "nemo2", "workloads", baseline(MX, 256), baseline(PLAIN, 256)),
    )
    metadata = Hint("dtype", "fp8", "llmb-config_1.yaml")
    assert (
        identify(
            run(full(GROK_128, dtype="mxfp8"), metadata), [logged(batch=256)], known
        ).key
        == MX
    )
    assert (
        identify(
            run(full(GROK_128, dtype="fp8", variant="mx"), metadata),
            [logged(batch=256)],
            known,
        ).key
        == MX
    )
    assert identify(
        run(full(GROK_128, dtype="nvfp4"), metadata), [logged(batch=256)], known
    ).contradicted == ("dtype",)
