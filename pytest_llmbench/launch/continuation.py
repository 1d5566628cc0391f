"""How somebody goes on with a session: the commands, whole, to be copied, and what they
would start."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.job_records import JobSpec, Resumption
from pytest_llmbench.core.options import JUDGING_OPTIONS, LAUNCHING
from pytest_llmbench.session.outcomes import ConfigurationResult

if TYPE_CHECKING:
    from pytest_llmbench.launch.run_engine import RunEngine

SESSION = "--llmb-session"
ACKNOWLEDGED = "--llmb-acknowledged"
WIDTH = 79  # columns of the terminal

NOT_KEPT = ("PATH", "DIR", "FILE", "URL", "REASON")
"""What options name that another folder may not have, or what only records."""


def format_collect(
    session: str, journal: Path, baselines: Sequence[Path], command: Sequence[str]
) -> str:
    """Return the command that collects a session from any folder, in lines of a
    terminal; `command` are the arguments with which it was submitted."""
    words = [
        "pytest",
        *_pick_selection(command),
        *_pick_judging(command),
        "--llmb-collect",
        f"{SESSION}={session}",
        f"--llmb-journal={journal.absolute()}",
        *(f"--llmb-baselines={folder}" for folder in baselines),
    ]
    lines = [""]
    for word in map(shlex.quote, words):
        if len(lines[-1]) + len(word) > WIDTH - 4 and lines[-1]:
            lines[-1] += " \\"
            lines.append("     ")
        lines[-1] += f" {word}" if lines[-1] else f"  {word}"
    return "\n".join(lines)


def format_resume(
    session: str, command: Sequence[str], *, collect: bool = False
) -> str:
    """Return the command that goes on with a session as the one whose arguments are
    given, or only collects it."""
    from pytest_llmbench.core.redaction import hide_password_of

    kept = [hide_password_of(argument) for argument in _drop_launching(command)]
    return shlex.join(
        [
            "pytest",
            *kept,
            "--llmb-collect" if collect else "--llmb-resume",
            f"{SESSION}={session}",
        ]
    )


def _pick_selection(command: Sequence[str]) -> Iterator[str]:
    for word, following in pairwise((*command, "")):
        if word in ("-k", "-m"):
            yield from (word, following)
        elif word.startswith(("-k", "-m")):
            yield word


def _pick_judging(command: Sequence[str]) -> Iterator[str]:
    """Yield the arguments that say how runs are judged: with another tolerance what is
    red could be green."""
    kept = [option for option in JUDGING_OPTIONS if option.metavar not in NOT_KEPT]
    options = {option.flag: option for option in kept if option.has_flag}
    keys = tuple(f"{option.dest}=" for option in kept if option.ini)
    for word, following in pairwise((*command, "")):
        if word in ("-o", "--override-ini") and following.startswith(keys):
            yield from (word, following)
        elif word.startswith(
            tuple(f"{way}{key}" for way in ("-o", "--override-ini=") for key in keys)
        ):
            yield word
        flag, equals, value = word.partition("=")
        if flag == ACKNOWLEDGED:
            yield f"{flag}={Path(value if equals else following).absolute()}"
        elif flag in options:
            yield word
            if options[flag].metavar and not equals and not following.startswith("-"):
                yield following


def _drop_launching(command: Sequence[str]) -> Iterator[str]:
    """Yield the arguments without those that say which session is launched, or gone on
    with."""
    for before, word in pairwise(("", *command)):
        if (
            word not in LAUNCHING
            and word.partition("=")[0] != SESSION
            and before != SESSION
        ):
            yield word


def add_resumptions(
    results: Mapping[str, ConfigurationResult], engine: RunEngine, command: str
) -> dict[str, ConfigurationResult]:
    """Add the command that resumes a session which only collects to its results.

    It is due for what was held back, or never submitted.
    """
    added = dict(results)
    held_back, specs = engine.list_held_back(), engine.list_specs()
    for case, result in results.items():
        never = result.judgement.reason is Reason.NOT_SUBMITTED and not result.jobs
        if never or case in specs:
            due = never or case in held_back
            secrets = _list_secrets(specs.get(case))
            resumption = Resumption(command, due=due, secrets=secrets)
            added[case] = dataclasses.replace(result, resumption=resumption)
    return added


def _list_secrets(spec: JobSpec | None) -> tuple[str, ...]:
    """Return the names of the secrets that a job had."""
    environment = dict(spec.environment) if spec else {}
    return tuple(name for name in spec.secrets if environment.get(name)) if spec else ()
