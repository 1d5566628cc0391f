"""Sessions that could not be stored in the history.

The document of --llmb-json is saved to a file, and converted to the history's record
when the file is added later.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import UNSET
from msgspec.structs import asdict

from pytest_llmbench.core import formatting
from pytest_llmbench.core.codes import JUDGED, NoteCode, Verdict
from pytest_llmbench.core.errors import ReportError
from pytest_llmbench.history.session_record import (
    KeyRecord,
    NoiseRecord,
    RunRecord,
    SessionRecord,
    StoredSession,
    VerdictRecord,
    WindowRecord,
    refuse_unstorable,
)
from pytest_llmbench.report import document
from pytest_llmbench.report.outcome_documents import (
    ConfigurationOutcome,
    ReportedTrials,
    SessionDocument,
    get_set,
    select_configurations,
)
from pytest_llmbench.report.output_files import write_first

NAME = "llmb-history-unsaved-{}.json"

EXPECTED = f"file named {NAME.format('*')}"


def write_unsaved(session: SessionDocument, folders: Iterable[Path]) -> Path:
    """Write a document to the first folder that is writable.

    Raises the OSError of the last folder if none is.
    """
    name = NAME.format(session.session.id if session.session else "")
    return write_first(folders, name, document.render_session(session))


def read_unsaved(path: Path) -> SessionRecord:
    """Read a file of an unsaved session, of this version or an earlier one.

    Raises ReportError with the position in the file for any other contents.
    """
    plain = document.load(path, EXPECTED)
    try:
        if not document.is_earlier(plain):
            plain = msgspec.to_builtins(make_record(document.check(plain, path)))
        refuse_unstorable(plain)
        record = msgspec.convert(plain, SessionRecord)
        if not record.verdicts:
            raise ValueError("it contains no verdict")
    except (ValueError, msgspec.ValidationError) as error:
        raise ReportError(
            f"{path}: {formatting.escape(str(error))}: nothing was stored; "
            f"give an unchanged {EXPECTED}"
        ) from None
    return record


def make_record(session: SessionDocument) -> SessionRecord:
    """Convert a session's document to the record that a history stores."""
    origin = session.session
    if origin is UNSET:
        raise ValueError("it has no 'session', unlike a document of --llmb-json")
    return SessionRecord(
        session=StoredSession(
            id=origin.id,
            started=datetime.fromisoformat(session.started),
            host=origin.host,
            program=session.version,
            options=origin.options,
            git_commit=origin.git_commit,
            ci_url=origin.ci_url,
        ),
        verdicts=tuple(map(_make_verdict, select_configurations(session.outcomes))),
    )


def _make_verdict(outcome: ConfigurationOutcome) -> VerdictRecord:
    """Build the stored verdict of a configuration."""
    window = outcome.window
    return VerdictRecord(
        item=outcome.id,
        configuration=KeyRecord(**asdict(outcome.configuration)),
        status=outcome.status,
        verdict=outcome.verdict,
        reason=outcome.reason,
        text=outcome.text,
        tolerance=outcome.tolerance,
        counts=_is_counted(outcome),
        run_seconds=get_set(outcome.statistic_seconds),
        step_time_seconds=outcome.get_metric("step_time_seconds"),
        expected_seconds=outcome.expected_seconds,
        bound_seconds=outcome.bound_seconds,
        log_difference=outcome.log_difference,
        window=WindowRecord(
            first=window.first, last=window.last, statistic=window.statistic
        ),
        baseline=outcome.baseline.kind,
        metrics={
            name: (metric.value, metric.standard_deviation)
            for name, metric in outcome.metrics.items()
        },
        step_seconds=outcome.window_seconds,
        mean_of=outcome.window_mean_of or (),
        log_sha256=outcome.log_sha256 or (),
        noise=_make_noise(outcome.trials),
        run=_make_run(outcome),
    )


def _is_counted(outcome: ConfigurationOutcome) -> bool:
    """True if the run has a time and a verdict based on that time.

    A run judged against another release on request is not a daily run of that release.
    """
    verdict = outcome.overruled or outcome.verdict
    seconds = get_set(outcome.statistic_seconds)
    is_timed = seconds is not None and seconds > 0 and not outcome.problems
    is_borrowed = any(note.code == NoteCode.OTHER_RELEASE for note in outcome.notes)
    return is_timed and verdict in JUDGED and not is_borrowed


def _make_noise(trials: ReportedTrials | None) -> NoiseRecord | None:
    """Return the record of the noise measured by an A/B, or None.

    None if the cluster is unknown, there are too few runs, or the step times do not
    differ because the log prints too few digits.
    """
    noise = trials and trials.noise
    if not (trials and noise and trials.cluster and noise.run_to_run):
        return None
    return NoiseRecord(
        cluster=trials.cluster,
        sigma=noise.run_to_run,
        degrees_of_freedom=noise.degrees_of_freedom or 0.0,
    )


def _make_run(outcome: ConfigurationOutcome) -> RunRecord | None:
    """Build the stored run of a configuration, None without a run."""
    run = outcome.run
    if run is None or (outcome.overruled or outcome.verdict) == Verdict.MISSING:
        return None
    return RunRecord(
        name=run.id,
        job_id=run.job_id,
        launcher=run.launcher,
        started=datetime.fromisoformat(run.started) if run.started else None,
        log=outcome.log or "",
        attempts=run.attempts,
        log_fingerprints=run.log_fingerprint,
        nodes=tuple(sorted({node for job in outcome.jobs for node in job.nodes})),
        jobs=tuple(map(msgspec.to_builtins, outcome.jobs)),
        environment=outcome.environment,
    )
