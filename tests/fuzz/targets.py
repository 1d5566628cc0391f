"""The fuzz targets: each reads bytes from outside and raises if a law is violated."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fuzz import comparisons, documents, log_seeds, outputs, runs, stores
from fuzz.mutate import Shape

ROOT = Path(__file__).resolve().parents[2]
FINDINGS = Path(__file__).parent / "findings"

YAML_WORDS = (
    b": ",
    b"- ",
    b"\n",
    b"&a",
    b"*a",
    b"!!",
    b"{",
    b"}",
    b"[",
    b"]",
    b"|",
    b">",
    b"---",
    b"'",
    b'"',
    b"~",
)
JSON_WORDS = (
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b":",
    b",",
    b"null",
    b"true",
    b"NaN",
    b"Infinity",
    b"\\ud800",
    b"1e999",
)
PACKED_WORDS = (
    b"ustar",
    b"\x1f\x8b\x08",
    b"\x28\xb5\x2f\xfd",
    b"BZh9",
    b"\xfd7zXZ\x00",
    b"../",
    b"log-x_1.out",
)
MARKS = {
    Shape.BYTES: (),
    Shape.JSON: JSON_WORDS,
    Shape.YAML: YAML_WORDS,
    Shape.SQLITE: (b"SQLite format 3\0",),
}


@dataclass(frozen=True)
class Target:
    """One fuzz target: its check, seeds, input structure and description."""

    name: str
    check: Callable[[bytes], None]
    make_seeds: Callable[[], Sequence[bytes]]
    what: str
    shape: Shape = Shape.BYTES
    marks: Sequence[bytes] = ()

    @cached_property
    def seeds(self) -> list[bytes]:
        """The seeds, with earlier findings last."""
        return [b"", *self.make_seeds(), *self.findings]

    @property
    def findings(self) -> list[bytes]:
        """Inputs that violated a law before."""
        return [
            path.read_bytes() for path in sorted(FINDINGS.glob(f"{self.name}-*.bin"))
        ]

    @cached_property
    def words(self) -> list[bytes]:
        """Texts for building inputs: characters of the format, and names in the seeds."""
        names = {
            name
            for seed in self.make_seeds()
            for name in re.findall(rb'[a-z_]{3,40}"?:|llmb_[a-z_]+', seed)
        }
        return list(dict.fromkeys([*self.marks, *MARKS[self.shape], *sorted(names)]))


def encode(*texts: str) -> Callable[[], Sequence[bytes]]:
    """Encode texts as seeds."""
    return lambda: [text.encode() for text in texts]


LOG_WORDS = tuple(log_seeds.list_words())

TARGETS = {
    target.name: target
    for target in (
        Target("log", runs.check_log, log_seeds.logs, "logs", marks=LOG_WORDS),
        Target(
            "shipped",
            runs.check_shipped,
            log_seeds.logs,
            "logs of definitions that ship",
            marks=LOG_WORDS,
        ),
        Target(
            "metrics",
            runs.check_metrics,
            runs.metric_seeds,
            "event files, tables and JSON lines of metrics",
        ),
        Target(
            "growing",
            runs.check_growing,
            log_seeds.logs,
            "logs that grow",
            marks=LOG_WORDS,
        ),
        Target(
            "metadata",
            runs.check_metadata,
            log_seeds.records,
            "records of launchers",
            Shape.YAML,
        ),
        Target(
            "companions",
            runs.check_companions,
            runs.companion_seeds,
            "what stands beside a log",
            Shape.YAML,
        ),
        Target(
            "archive",
            runs.check_archive,
            runs.archive_seeds,
            "archives, compressed logs",
            marks=PACKED_WORDS,
        ),
        Target(
            "names", runs.check_names, encode(*runs.NAMES), "names of files and folders"
        ),
        Target(
            "compare",
            comparisons.check_compare,
            comparisons.compare_seeds,
            "two sides",
            marks=LOG_WORDS,
        ),
        Target("secret", runs.check_secret, encode(*runs.TEXTS), "text with secrets"),
        Target(
            "nccl",
            documents.check_trace,
            documents.trace_seeds,
            "NCCL traces, also saved ones",
            Shape.JSON,
        ),
        Target(
            "session",
            documents.check_session,
            documents.session_seeds,
            "JSON for `llmbench chat`",
            Shape.JSON,
        ),
        Target(
            "report",
            documents.check_report,
            documents.report_seeds,
            "files in the place of a report",
        ),
        Target(
            "baseline",
            documents.check_baseline,
            documents.baseline_seeds,
            "baseline files",
            Shape.YAML,
        ),
        Target(
            "document",
            documents.check_document,
            encode(*documents.DOCUMENTS),
            "documents for `baselines import`",
        ),
        Target(
            "recorded",
            documents.check_recorded,
            documents.recorded_seeds,
            "recorded baselines",
            Shape.YAML,
        ),
        Target(
            "cluster",
            documents.check_cluster,
            encode(*documents.CLUSTERS),
            "cluster.yaml, llmb-run's file",
            Shape.YAML,
        ),
        Target(
            "acknowledged",
            documents.check_acknowledged,
            encode(documents.ACKNOWLEDGED),
            "acknowledgements",
            Shape.YAML,
        ),
        Target(
            "variants",
            documents.check_variants,
            encode(documents.VARIANTS),
            "variants of an A/B",
            Shape.YAML,
        ),
        Target(
            "suite",
            documents.check_suite,
            encode(documents.SUITE),
            "required runs of a suite file",
            Shape.YAML,
        ),
        Target(
            "option",
            documents.check_option,
            documents.option_seeds,
            "values of options, files of patterns",
        ),
        Target(
            "ini",
            documents.check_ini,
            documents.ini_seeds,
            "configuration files of pytest",
        ),
        Target(
            "unsaved",
            stores.check_unsaved,
            stores.unsaved_seeds,
            "documents for `history add`",
            Shape.JSON,
        ),
        Target(
            "store", stores.check_store, stores.store_seeds, "histories", Shape.SQLITE
        ),
        Target(
            "journal",
            stores.check_journal,
            stores.journal_seeds,
            "journals of launches",
            Shape.SQLITE,
        ),
        Target("index", stores.check_index, stores.index_seeds, "the list of journals"),
        Target(
            "status",
            stores.check_status,
            stores.status_seeds,
            "jobs in a journal",
            Shape.JSON,
        ),
        Target(
            "plan",
            stores.check_plan,
            stores.plan_seeds,
            "what a launch notes of its options",
            Shape.JSON,
        ),
        Target("cache", stores.check_cache, stores.cache_seeds, "files of the cache"),
        Target(
            "slurm",
            outputs.check_slurm,
            outputs.slurm_seeds,
            "what Slurm's commands and nvidia-smi say",
        ),
        Target(
            "hosts",
            outputs.check_hosts,
            encode(*outputs.HOSTS),
            "lists of nodes and GPUs",
        ),
        Target(
            "script",
            outputs.check_script,
            encode(outputs.BATCH_SCRIPT),
            "scripts that are given to sbatch",
        ),
        Target(
            "submission",
            outputs.check_submission,
            encode(*outputs.SUBMISSIONS),
            "what a submission prints",
        ),
    )
}
