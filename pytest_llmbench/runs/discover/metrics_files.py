"""Files of metrics, which trainers write beside a log or instead of one: which of them
are one run.

`runs/log_choice.py` decides whether a log has their steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# What says most of a run comes first; event files beside those of Hugging Face's
# Trainer hold no time of a step.
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
_CHECKPOINT = (
    "checkpoint-"  # folders in which Trainer saves its state so far, without a time
)


def is_metrics(name: str) -> bool:
    """Whether a file is called as trainers call their metrics."""
    return _rank(name) is not None


def choose_metrics(
    folder: str, names: Iterable[str]
) -> tuple[list[str], dict[str, str]]:
    """Return the files of the kind that says most of the run in a folder, and why the
    others are left out."""
    ranks = {name: rank for name in names if (rank := _rank(name)) is not None}
    if not ranks or folder.startswith(_CHECKPOINT):
        return [], {}
    best = min(ranks.values())
    kept = sorted(name for name, rank in ranks.items() if rank == best)
    why = f"metrics of the run of {kept[0]} beside it"
    return kept, {name: why for name, rank in ranks.items() if rank != best}


def _rank(name: str) -> int | None:
    known_as = name.lower()
    if not (
        known_as.endswith(_ENDS) or known_as.startswith(_EVENTS)
    ):  # as nearly every file: a tenth of the time
        return None
    return next(
        (rank for rank, pattern in enumerate(_KINDS) if pattern.fullmatch(known_as)),
        None,
    )
