"""Options that were removed, and the keys that replace them."""

from __future__ import annotations

from pytest_llmbench.core.option import name_destination

_DRAFT = "in the file that `llmbench baselines draft` writes (docs/own-runs.md)"
_RECORDINGS = (
    "under `recordings` in the file of --llmb-acknowledged (docs/acknowledged.md)"
)
_SESSION = "or for one session give"
_CLUSTER = "in the cluster file (docs/cluster.md)"

REPLACEMENTS = {
    "--llmb-assumed-cv": f"set `llmb_assumed_cv` in pytest's configuration, {_SESSION} -o llmb_assumed_cv=2%",
    "--llmb-repeat-window": f"set `llmb_repeat_window` in pytest's configuration, {_SESSION} -o llmb_repeat_window=2h",
    "--llmb-accept-drift": f"write an entry with `accept: drift` {_RECORDINGS}",
    "--llmb-accept-levels": f"write an entry with `accept: levels` {_RECORDINGS}",
    "--llmb-model": f"set `recipe` {_DRAFT}",
    "--llmb-size": f"set `size` {_DRAFT}",
    "--llmb-dtype": f"set `dtype` {_DRAFT}",
    "--llmb-gpus": f"set `gpus` {_DRAFT}",
    "--llmb-max-gpus": f"set `largest` {_CLUSTER}",
    "--llmb-gpus-per-node": f"set `gpus_per_node` {_CLUSTER}",
    "--llmb-recipe": f"set `folder` of the recipe under `installed` {_CLUSTER}",
}
"""The remedy by flag."""


def describe_removed(name: str) -> str:
    """Return the replacement of a removed flag, also written as a key, or ""."""
    remedies = {name_destination(flag): remedy for flag, remedy in REPLACEMENTS.items()}
    remedy = remedies.get(name_destination(name))
    return f"{name} was removed: {remedy}" if remedy else ""
