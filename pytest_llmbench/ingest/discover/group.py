"""Which files of one folder are the attempts of one job, and which are no logs of their own; decided by names alone."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_llmbench.core.models import AttemptFiles, Remains
from pytest_llmbench.ingest.discover import names
from pytest_llmbench.ingest.discover.metadata import FILE_NAME
from pytest_llmbench.ingest.discover.walk import File, Folder, Notes

_LOG_ENDS = (".out", ".log", "_stdout.txt")
"""How the name of a log ends; the last one is what GPT-NeoX writes."""
_SLURM = re.compile(r"slurm-(\d+(?:[_+]\d+)?)\.out", re.IGNORECASE)
_SKIPPED = {
    "sbatch_": "the launcher's second copy of a job's output",
    "nsys_": "a profiler's output",
    "import_ckpt": "a checkpoint import, no training",
    "prepare_": "a preparation, no training",
}
_SKIPPED_LOG = re.compile(rf"(?:log-(?:.*\.)?)?({'|'.join(_SKIPPED)})", re.DOTALL)
_TRAINING = re.compile(rf"\.(?:{names.TYPE})_")
_WRITTEN_BESIDE = ("cmd-args.log", "git-info.log")
ERROR_ALONE = "standard error without a log beside it"
_STREAMS = ("combined.log", "stdout.log", "stderr.log")


@dataclass(slots=True)
class Draft:
    """The files of one job in one folder. `spoken_for`: whether the names of its folders speak of it too; that is not
    so for a file of any other name beside a launcher's logs. `remains` is what is left of a job without attempts."""

    job: str
    base: str
    said: names.Said = ()
    spoken_for: bool = True
    launched: bool = True
    attempts: dict[int, AttemptFiles] = field(default_factory=dict)
    modified: float = 0.0
    remains: Remains | None = None
    remains_at: Path | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """The jobs of one folder, its metadata files by job id, and its files that are no logs, with the reason."""

    drafts: tuple[Draft, ...]
    metadata: dict[str, Path]
    ignored: Notes


def group(folder: Folder) -> Group:
    """Sort the files of a folder into jobs and attempts; a plain file comes before a compressed one."""
    files = {file.name: file for file in sorted(folder.files, key=_is_compressed)}
    metadata = {found[1]: folder.path / file.name for file in folder.files if (found := FILE_NAME.fullmatch(file.name))}
    plain = {file.name: names.uncompressed(file.name).lower() for file in folder.files}
    known = frozenset(plain.values())
    reasons = {name: _reason(plain[name], known, folder) for name in plain if name not in folder.chosen}
    logs = [file for name, file in files.items() if not reasons.get(name) and _is_log(name, folder)]
    beside = _names(files)
    drafts = _drafts(folder, logs, metadata, beside, reasons)
    _add_slurm(folder, files.values(), drafts, beside, reasons)
    used = {path.name for draft in drafts for one in draft.attempts.values() for path in (one.log, one.err) if path}
    for name, known_as in plain.items():
        if known_as.endswith(".err") and name not in used:
            reasons[name] = ERROR_ALONE
    drafts += _without_log(folder, reasons, files, drafts)
    ignored = [(folder.path / name, reason) for name, reason in reasons.items() if reason]
    return Group(tuple(drafts), metadata, ignored)


def _without_log(
    folder: Folder, reasons: dict[str, str], files: Mapping[str, File], drafts: Iterable[Draft]
) -> list[Draft]:
    """Return the jobs of which only standard error is left: such a file is called as a launcher calls a log's."""
    jobs = {draft.job for draft in drafts}
    found: dict[str, Draft] = {}
    for name in [name for name, reason in reasons.items() if reason == ERROR_ALONE]:
        stem = names.stem(names.uncompressed(name))
        put_away = any(other.startswith((f"{stem}.out.", f"{stem}.log.")) for other in files)
        if put_away or not names.is_launched(f"{stem}.out"):
            continue
        slurm = _SLURM.fullmatch(f"{stem}.out")
        said = names.log_name(stem, folder.name)
        job = slurm[1] if slurm else said.job
        if job and job not in jobs:
            del reasons[name]
            at = folder.path / name
            known = found.setdefault(
                job, Draft(job, said.base, said.said, remains=Remains.STANDARD_ERROR, remains_at=at)
            )
            known.modified = max(known.modified, files[name].modified)
    return list(found.values())


def _is_log(name: str, folder: Folder) -> bool:
    plain = names.uncompressed(name)
    return name in folder.chosen or (plain.lower().endswith(_LOG_ENDS) and not _SLURM.fullmatch(plain))


def _is_compressed(file: File) -> bool:
    return names.uncompressed(file.name) != file.name


def _reason(name: str, others: Collection[str], folder: Folder) -> str:
    """Return why a file is not taken as a log; an empty string where it is, or where nobody would expect it to be."""
    if name.endswith((".yaml", ".yml", ".err")):
        return ""
    if not name.endswith(_LOG_ENDS):
        return "not read, by its name; give the file itself to read it as a log"
    found = _SKIPPED_LOG.match(name)
    if found and (found.start(1) == 0 or not _TRAINING.search(name)):
        return _SKIPPED[found[1]]
    if name in _WRITTEN_BESIDE:
        return "written by the framework beside its log"
    return _stream_reason(name, others, folder) if name in _STREAMS else ""


def _stream_reason(name: str, others: Collection[str], folder: Folder) -> str:
    """Return why one of a local executor's files is not the log: a better one is there, or process 0 has it."""
    if folder.name.isdecimal() and folder.name != "0":
        return "another process of the run that process 0 logs"
    better = next((stream for stream in _STREAMS[: _STREAMS.index(name)] if stream in others), "")
    return f"a part or a second stream of {better} beside it" if better else ""


def _drafts(
    folder: Folder,
    logs: Iterable[File],
    metadata: Collection[str],
    beside: Mapping[str, str],
    reasons: dict[str, str],
) -> list[Draft]:
    found: dict[tuple[str, str], Draft] = {}
    for file in logs:
        plain = names.uncompressed(file.name)
        draft, number = _draft(plain, folder, metadata)
        known = found.setdefault((draft.job, draft.base), draft)
        if number in known.attempts and _is_compressed(file) and file.name not in folder.chosen:
            reasons[file.name] = f"a compressed copy of {known.attempts[number].log.name} beside it"
            continue
        if number in known.attempts:  # `x_12.out` and `x_12_0.out`: two logs that claim to be one attempt
            known = found[draft.job, file.name] = draft
        err = beside.get(f"{names.stem(plain)}.err") or beside.get(_second_stream(plain))
        known.attempts[number] = AttemptFiles(number, folder.path / file.name, folder.path / err if err else None)
        known.modified = max(known.modified, file.modified)
    drafts = list(found.values())
    beside_launched = any(draft.launched for draft in drafts)
    for draft in drafts:
        draft.spoken_for = draft.launched or not beside_launched
    return drafts


def _draft(file: str, folder: Folder, metadata: Collection[str]) -> tuple[Draft, int]:
    """Return the job that a log's name speaks of, still without attempts, and the number of this attempt."""
    stem = names.stem(file)
    suffix = file[len(stem) :]
    if file.lower() in _STREAMS:
        parts = folder.parts
        return Draft(parts[-3] if len(parts) > 3 and parts[-4] == "nemo_run" else "", stem), 0
    if slurm := _SLURM.fullmatch(file):
        return Draft(slurm[1], stem), 0
    name = names.log_name(stem, folder.name)
    job = name.job or next((known for known in metadata if re.search(rf"(?:^|[-_.]){re.escape(known)}$", stem)), "")
    return Draft(job, name.base + suffix, name.said, launched=stem.lower().startswith("log-")), name.attempt


def _names(files: Iterable[str]) -> dict[str, str]:
    """Return by their own names and those before compression the names of files, the first of those that share one."""
    found: dict[str, str] = {}
    for name in files:
        found.setdefault(name, name)
        found.setdefault(names.uncompressed(name), name)
    return found


def _second_stream(file: str) -> str:
    return "stderr.log" if file == "stdout.log" else ""


def _add_slurm(
    folder: Folder, files: Iterable[File], drafts: list[Draft], beside: Mapping[str, str], reasons: dict[str, str]
) -> None:
    """Give Slurm's own output file to its job: as the log where the job has no other, else as its standard error.

    A requeued job has one such file for all attempts; which of them it speaks of cannot be told, so it is left out.
    """
    for file in files:
        plain = names.uncompressed(file.name)
        slurm = _SLURM.fullmatch(plain)
        if not slurm or file.name in folder.chosen:
            continue
        path = folder.path / file.name
        own = [draft for draft in drafts if draft.job == slurm[1]]
        own = [draft for draft in own if draft.launched] or own  # not a copy beside the launcher's log
        attempts = [(draft, one) for draft in own for one in draft.attempts.values()]
        if not own:
            stem = names.stem(plain)
            err = beside.get(f"{stem}.err")
            attempt = AttemptFiles(0, path, folder.path / err if err else None)
            drafts.append(Draft(slurm[1], stem, attempts={0: attempt}, modified=file.modified))
        elif len(attempts) == 1 and attempts[0][1].err is None and not _is_compressed(file):
            draft, attempt = attempts[0]
            draft.attempts[attempt.number] = AttemptFiles(attempt.number, attempt.log, path)
        else:
            reasons[file.name] = f"the log of job {slurm[1]} stands beside it"
