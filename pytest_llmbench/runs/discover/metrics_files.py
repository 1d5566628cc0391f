"""Metrics files, which trainers write next to a log or instead of one.

`runs/log_choice.py` decides if a log contains their steps.
"""

from __future__ import annotations

from collections.abc import Iterable

from pytest_llmbench.core.patterns import compile_on_use

# Most informative kind first; event files next to those of Hugging Face's Trainer
# contain no step times.
_KINDS = (
    compile_on_use(r"trainer_log\.jsonl"),
    compile_on_use(r"logging\.jsonl"),
    compile_on_use(r"trainer_state\.json"),
    compile_on_use(r"events\.out\.tfevents\.(?!.*\.profile-empty).+"),
    compile_on_use(r"metrics\.csv"),
    compile_on_use(r"(?:metrics|training)\.jsonl"),
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
    """Choose the most informative metrics files of a folder; explain the others.

    Returns the chosen names, and the reason to skip each other metrics file by name.
    """
    if folder.startswith(_CHECKPOINT):
        return [], {}
    rank_by_name: dict[str, int] = {}
    for name in names:
        rank = _rank(name)
        if rank is not None:
            rank_by_name[name] = rank
    if not rank_by_name:
        return [], {}
    best_rank = min(rank_by_name.values())
    chosen = sorted(name for name, rank in rank_by_name.items() if rank == best_rank)
    reason = f"metrics of the same run as {chosen[0]} next to it"
    skipped = {name: reason for name, rank in rank_by_name.items() if rank != best_rank}
    return chosen, skipped


def _rank(name: str) -> int | None:
    """Return the index of the file's kind in `_KINDS`, None for other files."""
    lower_name = name.lower()
    # rules out nearly all files, ten times faster than the patterns
    if not (lower_name.endswith(_ENDS) or lower_name.startswith(_EVENTS)):
        return None
    return next(
        (rank for rank, pattern in enumerate(_KINDS) if pattern.fullmatch(lower_name)),
        None,
    )
