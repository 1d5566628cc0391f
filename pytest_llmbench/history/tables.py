"""The tables of a history, as queries name them; `migrations` makes them."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import Boolean, Column, DateTime, Double, Integer, LargeBinary, MetaData, Table, Text

METADATA = MetaData()

VERSION = Table("llmb_version", METADATA, Column("version", Integer))

SESSION = Table(
    "llmb_session",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("started", DateTime),
    Column("host", Text),
    Column("program", Text),
    Column("options", Text),
    Column("git_commit", Text),
    Column("ci_url", Text),
)
"""One session of pytest. `options` is a JSON list; all times are UTC."""

RUN = Table(
    "llmb_run",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("configuration", Text),
    Column("started", DateTime),
    Column("job_id", Text),
    Column("fingerprint", Text),
    Column("recipe", Text),
    Column("size", Text),
    Column("release", Text),
    Column("gpu", Text),
    Column("dtype", Text),
    Column("gpus", Integer),
    Column("name", Text),
    Column("launcher", Text),
    Column("log", Text),
    Column("attempts", Integer),
    Column("nodes", Text),
    Column("jobs", Text),
    Column("log_fingerprints", Text),
    Column("environment", Text),
)
"""One run, however often it was judged. `nodes`, `jobs`, `log_fingerprints` and `environment` are JSON."""

VERDICT = Table(
    "llmb_verdict",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("session", Text),
    Column("run", Integer),
    Column("configuration", Text),
    Column("verdict", Text),
    Column("reason", Text),
    Column("status", Text),
    Column("counts", Boolean),
    Column("run_seconds", Double),
    Column("step_time_seconds", Double),
    Column("expected_seconds", Double),
    Column("bound_seconds", Double),
    Column("log_difference", Double),
    Column("first_step", Integer),
    Column("last_step", Integer),
    Column("statistic", Text),
    Column("baseline", Text),
    Column("tolerance", Text),
    Column("item", Text),
    Column("text", Text),
    Column("metrics", Text),
    Column("mean_of", Text),
    Column("step_seconds", LargeBinary),
    Column("log_sha256", Text),
)
"""What one session said of a configuration; `run` is NULL where there was none.

`counts` says whether the run may stand for a night; `run_seconds` is the statistic of that run alone, and
`step_time_seconds` the mean of its repeats with it. `step_seconds` are the window's as 64-bit floats, little-endian,
NaN for what is no number; `metrics` is JSON, by name the value and its standard deviation. `log_sha256` is a JSON list:
the hash of each log as this session read it, null for one that nobody could tell, empty where none was asked for.
"""

DIGEST = Table(
    "llmb_digest",
    METADATA,
    Column("configuration", Text, primary_key=True),
    Column("upto", Integer, primary_key=True),
    Column("newest_day", Text),
    Column("verdicts", Text),
)
"""What sessions read of the verdicts with numbers up to `upto` (and larger than the one before): see `digests`."""


def convert_to_stored(moment: datetime) -> datetime:
    """Return a time as it is stored: UTC, without saying so."""
    return moment.astimezone(UTC).replace(tzinfo=None)
