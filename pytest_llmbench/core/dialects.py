"""The dialects of training logs, as every stage names them."""

from __future__ import annotations

FIRST_STEP = {
    "nemo1": 0,
    "nemo2": 0,
    "maxtext": 0,
    "megatron": 1,
    "torchtitan": 1,
    "paxml": 0,
    "huggingface": 1,
}
"""The built-in dialects, with the number that each gives to its first step."""

REGEX = "regex"
"""What a baseline file calls the dialect that it defines itself; its name is then that of `regex_name`."""


def name_regex_dialect(recipe: str, release: str) -> str:
    """Return the name of the dialect that the baseline file of a recipe defines, such as `regex:mine-1.0`."""
    return f"{REGEX}:{recipe}-{release}"
