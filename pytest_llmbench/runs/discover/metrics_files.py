"""Metrics files, which trainers write next to a log or instead of one.

`runs/log_choice.py` decides if a log contains their steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# Most informative kind first; event files next to those of Hugging Face's Trainer
# contain no step times.
_KINDS = tuple(
    map(
        re.compile,
        (
            *(r"trainer_log\.jsonl", r"logging\.jsonl", r"trainer_state\.json"),
            *(
                r"events\.out\.tfevents\.(?!.*\.profile-empty).+",
                r"metrics\.csv",
                r"(?:metrics|training)\.jsonl",
            ),
        ),
    )
)
_EVENTS = "events.out.tfevents."
_ENDS = (".jsonl", ".json", ".csv")
# prefix of folders in which Trainer saves its intermediate state, without times
_CHECKPOINT = "checkpoint-"


def is_metrics(name: str) -> bool:
    """True if the name is that of a trainer's metrics file."""
    return _rank(name) is not None


def choose_metrics(
    folder: str, names: Iterable[str]
) -> tuple[list[str], dict[str, str]]:
    """Choose the most informative metrics files of a folder; explain the others."""
    ranks = {name: rank for name in names if (rank := _rank(name)) is not None}
    if not ranks or folder.startswith(_CHECKPOINT):
        return [], {}
    best = min(ranks.values())
    kept = sorted(name for name, rank in ranks.items() if rank == best)
    reason = f"metrics of the same run as {kept[0]} next to it"
    return kept, {name: reason for name, rank in ranks.items() if rank != best}


def _rank(name: str) -> int | None:
    lower_name = name.lower()
    # rules out nearly all files, ten times faster than the patterns
    if not (lower_name.endswith(_ENDS) or lower_name.startswith(_EVENTS)):
        return None
    return next(
        (rank for rank, pattern in enumerate(_KINDS) if pattern.fullmatch(lower_name)),
        None,
    )
