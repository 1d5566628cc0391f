"""Constructed daily runs: bad ones fail although an older run was good, ordinary ones
pass."""

from __future__ import annotations

import gzip
import io
import os
import re
import shutil
import tarfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from generator.lines import megatron_line
from support.constructed_runs import (
    BF16,
    GROK,
    MAXTEXT,
    NEMO1,
    NEMO2,
    NEMO2_LAUNCHER,
    RunFolder,
    change_steps,
    change_times,
    replace,
    rewrite,
)
from support.custom_baseline import LLAMA_8B, custom_baseline
from support.sessions import Judge, JudgedSession

from pytest_llmbench.core.baseline_records import Baseline

FAILED = pytest.ExitCode.TESTS_FAILED
USAGE = pytest.ExitCode.USAGE_ERROR

SITE_KEY = "runs"


class Night(NamedTuple):
    """A constructed day: its runs, options and allowed verdicts."""

    build: Callable[[RunFolder], object]
    verdicts: tuple[str, ...] = ("INVALID",)
    identifier: str = NEMO2
    options: tuple[str, ...] = ()


@pytest.fixture
def site(tmp_path: Path, baselines: dict[str, Baseline]) -> RunFolder:
    folder = tmp_path / SITE_KEY
    folder.mkdir()
    return RunFolder(folder, baselines)


def bad(
    edit: Callable[[str], str], identifier: str = NEMO2, **options: Any
) -> Callable[[RunFolder], object]:
    """Return a day with an edited run, one day after a good run."""

    def changed(text: str) -> str:
        edited = edit(text)
        assert edited != text or options, "the edit changes nothing"
        return edited

    def build(site: RunFolder) -> None:
        site.good(identifier)
        site.write(identifier, edit=changed, **options)

    return build


def slow(identifier: str = NEMO2, **options: Any) -> Callable[[RunFolder], object]:
    """Return a day with other generator options, one day after a good run."""
    return bad(lambda text: text, identifier, **options)


def without(pattern: str) -> Callable[[str], str]:
    """Return the edit that takes out the lines in which the pattern is found."""
    return lambda text: "".join(
        line for line in text.splitlines(keepends=True) if not re.search(pattern, line)
    )


END = "`Trainer.fit` stopped"


# --- what the steps say ---------------------------------------------------------------


def between(
    first: int, last: int, change: Callable[[str], str | None]
) -> Callable[[str], str]:
    return change_steps(
        lambda step, line: change(line) if first <= step <= last else line
    )


def two_processes(site: RunFolder) -> None:
    """A slow and a fast process print into one file: each step appears twice."""
    site.good()
    slowed = change_times(lambda _, seconds: f"{seconds * 1.3:.3f}")

    def combine(text: str) -> str:
        other = [
            line
            for line in slowed(text).splitlines(keepends=True)
            if "iteration" in line
        ]
        by_step = {
            re.search(r"iteration (\d+)/", line).group(1): line  # type: ignore[union-attr]
            for line in other
        }
        lines = []
        for line in text.splitlines(keepends=True):
            match = re.search(r"iteration (\d+)/", line)
            lines += [line, by_step[match.group(1)]] if match else [line]
        return "".join(lines)

    site.write(edit=combine)


def another_run_behind(site: RunFolder) -> None:
    """A slow finished run is followed by a fast run that was killed in the window."""
    site.good()
    path = site.write(factor=1.2)
    tail = site.folder / "tail"
    tail.mkdir()
    other = RunFolder(tail, site.baselines).write(ending="killed", cut=40).read_text()
    shutil.rmtree(tail)
    rewrite(path, lambda text: text + other)


def renumbered(match: re.Match[str]) -> str:
    """Number a step as one of a run that went on from step 1000."""
    return f"{match[1]}{int(match[2]) + 1000}{'/1049' if match[3] else ''}"


def resumed_in_the_window(site: RunFolder) -> None:
    """Steps 0 to 29 are in one attempt, 30 to 49 in the next: both windows are incomplete."""
    site.good()
    path = site.write(restarts=1, cut=30)
    rewrite(path, between(0, 29, lambda _: None))


STEPS = {
    "milliseconds-for-seconds": Night(
        bad(change_times(lambda _, s: f"{s * 1000:.1f}")), ("INVALID", "REGRESSION")
    ),
    "minutes-for-seconds": Night(
        bad(change_times(lambda _, s: f"{s / 60:.5f}")), ("INVALID", "IMPROVEMENT")
    ),
    "half-of-the-window-is-not-printed": Night(
        bad(change_steps(lambda n, line: None if 10 < n < 45 and n % 2 else line))
    ),
    "the-last-step-of-the-window-is-not-printed": Night(
        bad(between(44, 44, lambda _: None))
    ),
    "the-first-step-of-the-window-is-not-printed": Night(
        bad(between(11, 11, lambda _: None))
    ),
    "two-processes-one-slow": Night(
        two_processes, ("INVALID", "REGRESSION", "INCONCLUSIVE")
    ),
    "steps-numbered-from-a-checkpoint": Night(
        bad(replace(r"(iteration |global_step: )(\d+)(/49)?", renumbered))
    ),
    "negative-times": Night(bad(change_times(lambda _, s: f"-{s:.3f}"))),
    "negative-time-of-one-step": Night(
        bad(change_times(lambda _, s: f"-{s:.3f}", 20, 20))
    ),
    "three-zero-times": Night(bad(change_times(lambda _, s: "0.0", 20, 22))),
    "an-infinite-time": Night(bad(change_times(lambda _, s: "inf", 20, 20))),
    "a-time-that-is-no-number": Night(bad(change_times(lambda _, s: "nan", 20, 20))),
    "decimal-commas": Night(
        bad(change_times(lambda _, s: f"{s:.3f}".replace(".", ",")))
    ),
    "times-as-masked": Night(bad(change_times(lambda _, s: "***", 15, 40))),
    "exponents": Night(
        bad(change_times(lambda _, s: f"{s * 10:.3e}")), ("REGRESSION", "INVALID")
    ),
    "no-end-although-the-window-is-whole": Night(
        bad(lambda text: between(46, 49, lambda _: None)(without(END)(text)))
    ),
    "an-end-that-the-steps-do-not-reach": Night(bad(between(31, 49, lambda _: None))),
    "another-run-behind-a-slow-one": Night(
        another_run_behind, ("REGRESSION", "INVALID")
    ),
    "resumed-within-the-window": Night(resumed_in_the_window),
    "the-middle-is-zeros": Night(
        bad(
            lambda text: (
                text[: len(text) // 2] + "\0" * 4096 + text[len(text) // 2 + 3500 :]
            )
        )
    ),
    "loss-nan-behind-the-window": Night(
        bad(between(48, 49, replace(r"train_loss: [\d.]+", "train_loss: nan")))
    ),
    "loss-nan-before-the-window": Night(
        bad(between(5, 6, replace(r"train_loss: [\d.]+", "train_loss: NaN")))
    ),
    "loss-minus-nan": Night(
        bad(between(20, 49, replace(r"train_loss: [\d.]+", "train_loss: -nan")))
    ),
    "loss-infinite": Night(
        bad(between(30, 49, replace(r"train_loss: [\d.]+", "train_loss: inf")))
    ),
    "no-loss-in-any-step": Night(bad(replace(r" \| reduced_train_loss: [\d.]+", ""))),
    "no-loss-in-the-window": Night(
        bad(between(11, 44, replace(r" \| reduced_train_loss: [\d.]+", "")))
    ),
    "half-of-the-batch-from-step-10-on": Night(
        bad(
            between(
                10,
                49,
                replace(
                    r"global_batch_size: (\d+)",
                    lambda f: f"global_batch_size: {int(f[1]) // 2}",
                ),
            )
        )
    ),
    "no-step-at-all": Night(bad(without("Training epoch"))),
    "an-out-of-memory-before-the-end": Night(
        bad(
            lambda text: (
                between(46, 49, lambda _: None)(without(END)(text))
                + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
            )
        )
    ),
    "a-task-that-exited-with-1": Night(
        bad(
            lambda text: (
                between(47, 49, lambda _: None)(without(END)(text))
                + "srun: error: node-0001: task 3: Exited with exit code 1\n"
            )
        )
    ),
    "cancelled-in-the-window": Night(
        bad(
            lambda text: (
                between(40, 49, lambda _: None)(without(END)(text))
                + "slurmstepd: error: *** JOB 1 ON node-0001 CANCELLED AT 2025-06-02T03:10:00 DUE TO TIME LIMIT ***\n"
            )
        )
    ),
}
"""Of NeMo 2."""

SLOW = {
    "ten-percent": Night(slow(factor=1.10), ("REGRESSION", "INCONCLUSIVE")),
    "twice-as-long": Night(slow(factor=2.0), ("REGRESSION",)),
    "the-last-third": Night(
        bad(change_times(lambda _, s: f"{s * 1.25:.3f}", 33, 49)),
        ("REGRESSION", "INCONCLUSIVE"),
    ),
    "every-second-step": Night(
        bad(change_times(lambda n, s: f"{s * (1.2 if n % 2 else 1):.3f}")),
        ("REGRESSION", "INCONCLUSIVE"),
    ),
    "a-third-of-the-steps-thrice": Night(
        bad(change_times(lambda n, s: f"{s * (3 if n % 3 == 0 else 1):.3f}")),
        ("REGRESSION", "INCONCLUSIVE", "INVALID"),
    ),
    "slower-with-each-step": Night(
        bad(change_times(lambda n, s: f"{s * (1 + n / 200):.3f}")),
        ("REGRESSION", "INCONCLUSIVE"),
    ),
    "windows-line-ends": Night(
        bad(lambda text: text.replace("\n", "\r\n"), factor=1.15),
        ("REGRESSION", "INCONCLUSIVE"),
    ),
    "behind-a-colour": Night(
        bad(replace("Training epoch", "\x1b[32mTraining epoch"), factor=1.15),
        ("REGRESSION", "INCONCLUSIVE"),
    ),
    "nemo1": Night(slow(NEMO1, factor=1.12), ("REGRESSION", "INCONCLUSIVE"), NEMO1),
    "grok-24.11": Night(slow(GROK, factor=1.12), ("REGRESSION", "INCONCLUSIVE"), GROK),
    "maxtext": Night(
        slow(MAXTEXT, factor=1.12), ("REGRESSION", "INCONCLUSIVE"), MAXTEXT
    ),
    "launcher": Night(
        slow(NEMO2_LAUNCHER, factor=1.12),
        ("REGRESSION", "INCONCLUSIVE"),
        NEMO2_LAUNCHER,
    ),
}


# --- other frameworks -----------------------------------------------------------------


def metadata_say(
    old: str, new: str, *, alone: bool = False
) -> Callable[[RunFolder], object]:
    """Return a day whose metadata contradict its folder, with or without a good run before."""

    def build(site: RunFolder) -> None:
        if not alone:
            site.good(NEMO2_LAUNCHER)
        (file,) = site.write(NEMO2_LAUNCHER).parent.glob("llmb-config_*.yaml")
        assert old in file.read_text(encoding="utf-8")
        rewrite(file, lambda text: text.replace(old, new, 1))

    return build


FRAMEWORKS = {
    "nemo1-loss-nan-in-the-bars": Night(
        bad(
            replace(
                r"(iteration|Epoch 0: : +[6-9]\d%.*?)reduced_train_loss=[\d.]+",
                r"\1reduced_train_loss=nan.0",
            ),
            NEMO1,
        ),
        identifier=NEMO1,
    ),
    "nemo1-bars-end-at-two-thirds": Night(
        slow(NEMO1, ending="killed", cut=33), identifier=NEMO1
    ),
    "nemo1-record-of-another-time": Night(
        slow(GROK, dllogger=True, factor=1.15), ("REGRESSION", "INCONCLUSIVE"), GROK
    ),
    "nemo1-half-of-the-steps": Night(slow(NEMO1, steps=25), identifier=NEMO1),
    "maxtext-loss-nan": Night(
        bad(replace(r"loss: 0\.000", "loss: nan"), MAXTEXT), identifier=MAXTEXT
    ),
    "maxtext-half-the-tflops": Night(
        bad(
            replace(
                r"TFLOP/s/device: ([\d.]+)",
                lambda f: f"TFLOP/s/device: {float(f[1]) / 2:.3f}",
            ),
            MAXTEXT,
        ),
        identifier=MAXTEXT,
    ),
    "maxtext-only-the-profiled-steps": Night(
        bad(lambda text: text[: text.index("Profile of the compiled step")], MAXTEXT),
        identifier=MAXTEXT,
    ),
    "maxtext-steps-twice-as-fast-than-dispatch-allows": Night(
        bad(
            replace(
                r"(completed step: (?:2[0-9]|3[0-9]), seconds: )[\d.]+", r"\g<1>0.001"
            ),
            MAXTEXT,
        ),
        identifier=MAXTEXT,
    ),
    "maxtext-half-of-the-devices": Night(
        bad(lambda text: text.replace("Num_devices: 128", "Num_devices: 64"), MAXTEXT),
        identifier=MAXTEXT,
    ),
    "launcher-other-gpu-in-the-metadata": Night(
        metadata_say("gpu_type: gb200", "gpu_type: b200"),
        ("INVALID", "MISSING"),
        NEMO2_LAUNCHER,
    ),
    "launcher-other-size-in-the-metadata": Night(
        metadata_say("scale: 128", "scale: 256"),
        ("INVALID", "MISSING"),
        NEMO2_LAUNCHER,
    ),
    "launcher-other-precision-in-the-metadata": Night(
        metadata_say("dtype: bf16", "dtype: fp8"),
        ("INVALID", "MISSING"),
        NEMO2_LAUNCHER,
    ),
    "launcher-metadata-that-is-no-yaml": Night(
        metadata_say("job_info:", "job_info: ["),
        ("INVALID", "MISSING"),
        NEMO2_LAUNCHER,
    ),
    "launcher-profile-enabled": Night(
        metadata_say("profile_enabled: false", "profile_enabled: true", alone=True),
        ("MISSING", "NOT_COMPARABLE"),
        NEMO2_LAUNCHER,
    ),
}


# --- files ----------------------------------------------------------------------------


def file_is(
    change: Callable[[Path], object], *, only: bool = False
) -> Callable[[RunFolder], object]:
    """Return how a night is made whose log is changed as a file, one day after a good
    one unless it is the only one."""

    def build(site: RunFolder) -> None:
        if not only:
            site.good()
        change(site.write())

    return build


def cut_gzip(path: Path) -> None:
    packed = gzip.compress(path.read_bytes())
    path.with_name(f"{path.name}.gz").write_bytes(packed[: len(packed) * 2 // 3])
    path.unlink()


def broken_gzip(path: Path) -> None:
    path.with_name(f"{path.name}.gz").write_bytes(b"\x1f\x8b\x08\0" + os.urandom(3000))
    path.unlink()


def cut_tar(path: Path) -> None:
    """The only run lies in an archive whose copy broke off."""
    root = next(parent for parent in path.parents if parent.name == SITE_KEY)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.add(root / "experiments", "experiments")
    shutil.rmtree(root / "experiments")
    (root / "night.tar").write_bytes(stream.getvalue()[:-12000])


def dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("gone.out")


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


FILES = {
    "an-empty-log": Night(file_is(lambda path: path.write_bytes(b""))),
    "only-the-preamble": Night(
        file_is(
            lambda path: rewrite(
                path, lambda text: text[: text.index("Training epoch")]
            )
        )
    ),
    "bytes-of-chance": Night(
        file_is(lambda path: path.write_bytes(os.urandom(20_000)))
    ),
    "utf-16": Night(
        file_is(
            lambda path: path.write_bytes(
                path.read_text(encoding="utf-8").encode("utf-16")
            )
        )
    ),
    "a-link-to-nothing": Night(file_is(dangling)),
    "a-folder-of-the-name-of-a-log": Night(file_is(directory)),
    "a-gzip-that-breaks-off": Night(file_is(cut_gzip)),
    "a-gzip-that-is-none": Night(file_is(broken_gzip)),
    "a-tar-that-breaks-off": Night(file_is(cut_tar, only=True), ("INVALID", "MISSING")),
    "the-first-half": Night(
        file_is(lambda path: rewrite(path, lambda text: text[: len(text) // 2]))
    ),
    "the-second-half": Night(
        file_is(lambda path: rewrite(path, lambda text: text[len(text) * 2 // 3 :]))
    ),
    "every-line-without-its-end": Night(
        file_is(
            lambda path: rewrite(
                path,
                lambda text: "".join(
                    f"{line[: len(line) * 2 // 3]}\n" for line in text.splitlines()
                ),
            )
        )
    ),
}

# --- runs in the place of others ------------------------------------------------------


def in_place_of(
    other: str, identifier: str = NEMO2, **options: Any
) -> Callable[[RunFolder], object]:
    """Return how a night is made in which the log of another configuration stands in
    the folder of `identifier`."""

    def build(site: RunFolder) -> None:
        site.good(identifier)
        path = site.write(identifier)
        aside = RunFolder(site.folder / "aside", site.baselines, site.newest)
        aside.folder.mkdir()
        text = aside.write(other, **options).read_text(encoding="utf-8")
        shutil.rmtree(aside.folder)
        rewrite(path, lambda _: text)

    return build


def two_jobs_of_one_id(site: RunFolder) -> None:
    """Two jobs share an id, as after a reset of the scheduler; the newer one is slow."""
    site.write(days=40, job_id="77")
    site.write(job_id="77", factor=1.2)


def slow_in_one_copy(site: RunFolder) -> None:
    """The log of a job exists twice; one of them is slow."""
    path = site.write(job_id="78", factor=1.25)
    other = site.folder / "copy" / path.relative_to(site.folder)
    other.parent.mkdir(parents=True)
    faster = change_times(lambda _, seconds: f"{seconds / 1.25:.3f}")
    other.write_text(faster(path.read_text(encoding="utf-8")), encoding="utf-8")


def slow_beside_metadata_of_a_good_one(site: RunFolder) -> None:
    """Metadata of a good job are next to the log of a slow job without metadata."""
    good = site.write(NEMO2_LAUNCHER, days=1)
    slow = site.write(NEMO2_LAUNCHER, factor=1.2)
    for file in slow.parent.glob("llmb-config_*.yaml"):
        file.unlink()
    (file,) = good.parent.glob("llmb-config_*.yaml")
    shutil.copy(file, slow.parent)


def killed_after_a_good_one_of_one_job(site: RunFolder) -> None:
    """A job was requeued after it had ended, and its second attempt was killed in the
    window."""
    path = site.write(restarts=0, job_id="79")
    second = path.with_name(path.name.replace("_0.out", "_1.out"))
    text = path.read_text(encoding="utf-8")
    second.write_text(text[: text.index("iteration 20/")], encoding="utf-8")


def slow_behind_a_profiled_part(site: RunFolder) -> None:
    """A profiled run precedes a slow run in the same log."""
    site.good(MAXTEXT)
    profiled = with_a_profiler(text_of(site, MAXTEXT, factor=1.3))
    site.write(MAXTEXT, factor=1.15, edit=lambda text: profiled + text)


def with_a_profiler(text: str) -> str:
    return text.replace(
        "completed step: 20,",
        "completed profiler activation, seconds: 1.0\ncompleted step: 20,",
    )


def text_of(site: RunFolder, identifier: str = NEMO2, **options: Any) -> str:
    """Return the text of a log that is not a run of the day."""
    aside = RunFolder(site.folder.parent / "aside", site.baselines, site.newest)
    aside.folder.mkdir()
    return aside.write(identifier, **options).read_text(encoding="utf-8")


def resumed_behind_the_window(site: RunFolder) -> None:
    """A slow job was requeued near its end, loaded its checkpoint and made the last two
    steps."""
    site.good()
    slow = site.write(factor=1.3, restarts=1, cut=48)
    loaded = "Successfully loaded checkpoint from /ckpt/last\n"
    rewrite(
        slow,
        change_steps(
            lambda step, line: (
                None if step < 48 else f"{loaded}{line}" if step == 48 else line
            )
        ),
    )


def a_hiccup_behind_a_slow_part(site: RunFolder) -> None:
    """The part that decides, as the slowest, is slow by one step alone; the one before
    it was slow throughout."""
    site.good()
    odd = text_of(
        site, edit=change_times(lambda _, seconds: f"{seconds * 6:.3f}", 20, 20)
    )
    site.write(factor=1.09, edit=lambda text: text + odd)


def a_profiled_part_behind_a_slow_one(site: RunFolder) -> None:
    site.good(MAXTEXT)
    profiled = with_a_profiler(text_of(site, MAXTEXT, factor=1.2))
    site.write(MAXTEXT, factor=1.15, edit=lambda text: text + profiled)


def died_under_a_name_of_its_own(site: RunFolder) -> None:
    """A user's script calls its log train_N.log; that of the night ends before the
    first step."""
    good = site.good()
    good.rename(good.with_name("train_0.log"))
    dead = site.write(edit=lambda text: f"{before_the_steps(text)}{OUT_OF_MEMORY}")
    dead.rename(dead.with_name("train_1.log"))


def a_copy_that_knows_less(site: RunFolder) -> None:
    """A log was copied after its last step; then its job began again, and died."""
    site.good(days=2)
    path = site.write(job_id="79")
    copy = site.folder / "copy" / path.relative_to(site.folder)
    copy.parent.mkdir(parents=True)
    shutil.copy(path, copy)
    rewrite(path, lambda text: f"{text}{before_the_steps(text)}{OUT_OF_MEMORY}")


def a_hiccup_in_each_repeat(site: RunFolder) -> None:
    for hours in (0, 3, 6):
        odd = change_times(
            lambda _, seconds: f"{seconds * 15:.3f}", 20 + hours, 20 + hours
        )
        site.write(NEMO2_LAUNCHER, days=hours / 24, edit=odd)


def before_the_steps(text: str) -> str:
    return text[: text.rindex("\n", 0, text.index("Training epoch")) + 1]


OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    "srun: error: node-0001: task 3: Exited with exit code 1\n"
)
SLOWER = ("REGRESSION", "INCONCLUSIVE", "INVALID")

PLACES = {
    "fp8-in-the-place-of-bf16": Night(
        in_place_of(NEMO2, BF16), ("INVALID", "IMPROVEMENT"), BF16
    ),
    "8-gpus-in-the-place-of-16": Night(in_place_of("llama3.1_8b-25.04-h100-fp8-8")),
    "70b-in-the-place-of-8b": Night(
        in_place_of("llama3.1_70b-25.04-h100-fp8-64"), ("INVALID",)
    ),
    "another-framework-in-its-place": Night(in_place_of(MAXTEXT), ("INVALID",)),
    "nemo1-half-the-gpus": Night(
        in_place_of("nemotron4_340b-25.01-h100-bf16-256", NEMO1),
        ("INVALID", "REGRESSION"),
        NEMO1,
    ),
    "nemo1-half-the-sequence": Night(
        bad(replace(r"(encoder_seq_length: )4096", r"\g<1>2048"), NEMO1),
        identifier=NEMO1,
    ),
    "nemo1-fewer-layers": Night(
        bad(replace(r"(num_layers: )\d+", r"\g<1>8"), NEMO1), identifier=NEMO1
    ),
    "nemo1-fp8-in-the-settings": Night(
        bad(replace("fp8: False", "fp8: True"), NEMO1), identifier=NEMO1
    ),
    "nemo1-half-the-batch-in-the-settings": Night(
        bad(
            replace(
                r"( global_batch_size: )(\d+)", lambda f: f"{f[1]}{int(f[2]) // 2}"
            ),
            NEMO1,
        ),
        identifier=NEMO1,
    ),
    "maxtext-fewer-layers": Night(
        bad(replace(r"(num_decoder_layers: )\d+", r"\g<1>8"), MAXTEXT),
        identifier=MAXTEXT,
    ),
    "maxtext-half-the-sequence": Night(
        bad(
            replace(r"(max_target_length: )(\d+)", lambda f: f"{f[1]}{int(f[2]) // 2}"),
            MAXTEXT,
        ),
        identifier=MAXTEXT,
    ),
    "maxtext-fp8-in-the-settings": Night(
        bad(replace("quantization: ", "quantization: fp8"), MAXTEXT), identifier=MAXTEXT
    ),
    "maxtext-another-model": Night(
        bad(
            replace(
                "Config param vocab",
                "Config param model_name: llama2-7b\nConfig param vocab",
            ),
            MAXTEXT,
        ),
        identifier=MAXTEXT,
    ),
    "slow-behind-a-profiled-part": Night(slow_behind_a_profiled_part, SLOWER, MAXTEXT),
    "resumed-behind-the-window": Night(resumed_behind_the_window),
    "a-hiccup-behind-a-slow-part": Night(a_hiccup_behind_a_slow_part, SLOWER),
    "a-profiled-part-behind-a-slow-one": Night(
        a_profiled_part_behind_a_slow_one, SLOWER, MAXTEXT
    ),
    "died-under-a-name-of-its-own": Night(died_under_a_name_of_its_own),
    "a-copy-that-knows-less": Night(a_copy_that_knows_less),
    "a-hiccup-in-each-repeat": Night(
        a_hiccup_in_each_repeat, SLOWER, NEMO2_LAUNCHER, ("-ollmb_repeat_window=12h",)
    ),
    "two-jobs-of-one-id": Night(two_jobs_of_one_id, SLOWER),
    "slow-in-one-copy": Night(slow_in_one_copy, SLOWER),
    "metadata-of-another-job": Night(
        slow_beside_metadata_of_a_good_one, (*SLOWER, "MISSING"), NEMO2_LAUNCHER
    ),
    "a-second-attempt-is-killed": Night(killed_after_a_good_one_of_one_job),
    "slow-among-noise": Night(
        lambda site: [
            site.write(days=day, factor=1 + 0.003 * (-1) ** day + 0.07 * (day == 0))
            for day in range(12)
        ],
        ("REGRESSION",),
    ),
    "slow-since-a-week": Night(
        lambda site: [
            site.write(days=day, factor=1.07 + 0.003 * (-1) ** day - 0.07 * (day > 7))
            for day in range(20)
        ],
        ("REGRESSION",),
    ),
}

# --- frameworks of a user's own -------------------------------------------------------

MEGATRON = {
    "recipe": "elm", "framework": "Megatron-LM", "dialect": "megatron", "gpu": "h100", "peak": "989", "size": "8b",
    "gpus": 8, "model": LLAMA_8B, "shape": "sequence_length: 8192, layers: 32, gbs: 128",
}  # fmt: skip
BATCH, ELM_SECONDS = 128, 12.0


def megatron(
    edit: Callable[[int, str], str | None] = lambda _, line: line,
    *,
    seconds: float = ELM_SECONDS,
) -> str:
    """Return a log of Megatron-LM, each line of a step edited."""
    start = datetime(2026, 5, 4, 6, tzinfo=UTC)
    lines = ["using world size: 8, data-parallel size: 8\n"]
    for step in range(1, 51):
        wobble = seconds * (1.004 if step % 3 else 0.996)
        line = megatron_line(
            start + timedelta(seconds=seconds * step),
            step,
            50,
            wobble,
            batch=BATCH,
            tflops=None,
            loss=11.0 - step / 20,
        )
        lines.append(edit(step, f"{line}\n") or "")
    return "".join(lines)


def in_window(pattern: str, by: str) -> Callable[[int, str], str]:
    return lambda step, line: re.sub(pattern, by, line) if step > 10 else line


ELMS = {
    "slow": megatron(seconds=ELM_SECONDS * 1.12),
    "loss-nan": megatron(in_window(r"lm loss: \S+", "lm loss: nan")),
    "loss-gone": megatron(in_window(r"lm loss: \S+ \| ", "")),
    "grad-norm-infinite": megatron(in_window(r"grad norm: \S+", "grad norm: inf")),
    "every-step-skipped": megatron(
        in_window(r"skipped iterations:   0", "skipped iterations:   1")
    ),
    "nan-iterations": megatron(
        in_window(r"nan iterations:   0", "nan iterations:   1")
    ),
    "half-of-the-batch": megatron(
        lambda _, line: line.replace(
            "global batch size:   128", "global batch size:    64"
        )
    ),
    "of-a-hundred-steps": megatron(
        lambda _, line: line.replace("/      50", "/     100")
    ),
    "steps-41-to-50-only": megatron(lambda step, line: line if step > 40 else None),
    "times-of-zero": megatron(in_window(r"\(ms\): \S+", "(ms): 0.0")),
    "times-torn": megatron(in_window(r"\(ms\): (\d+)\.\d .*", r"(ms): \1")),
    "half-of-the-world": megatron().replace("world size: 8,", "world size: 4,"),
}
"""Logs of Megatron-LM that are not well."""

# --- which configuration, which run ---------------------------------------------------

NAMES = {
    "instruct": "pretrain_llama3.1_8b_instruct_fp8_16",
    "another-generation": "pretrain_llama3_8b_fp8_16",
    "another-precision": "pretrain_llama3.1_8b_nvfp4_16",
    "an-odd-number-of-gpus": "pretrain_llama3.1_8b_fp8_24",
    "fine-tuned": "finetune_llama3.1_8b_fp8_16",
    "with-a-sequence-length": "pretrain_llama3.1_8b_fp8_16_seq4096",
    "with-lora": "pretrain_llama3.1_8b_fp8_16_lora",
    "with-another-batch": "pretrain_llama3.1_8b_fp8_gpus16_tp1_pp1_cp2_vp1_mbs1_gbs128",
}
"""Experiments that are of no documented configuration, whatever they resemble."""


def renamed(name: str) -> Callable[[RunFolder], object]:
    return lambda site: (site.good(), site.write(experiment=name))


# --- sessions -------------------------------------------------------------------------


def nothing(site: RunFolder) -> None:
    """The folder is empty."""


SESSIONS: dict[str, tuple[Callable[[RunFolder], object], tuple[str, ...], int]] = {
    "an-empty-folder": (nothing, (), FAILED),
    "files-that-are-no-logs": (
        lambda site: (site.folder / "notes.txt").write_text("step 1: 3 s"),
        (),
        FAILED,
    ),
    "only-a-picture": (
        lambda site: (site.folder / "log-x_1.out").write_bytes(
            b"\x89PNG\r\n\x1a\n" + bytes(500)
        ),
        (),
        FAILED,
    ),
    "too-old": (lambda site: site.write(days=3), ("--llmb-max-age=1d",), FAILED),
    "since-tomorrow": (RunFolder.write, ("--llmb-since=2999-01-01",), FAILED),
    "a-required-one-is-missing": (
        RunFolder.write,
        ("--llmb-require=grok1_314b-24.11-h100-bf16-8",),
        FAILED,
    ),
    "a-tolerance-of-nan": (RunFolder.write, ("--llmb-tolerance=nan",), USAGE),
    "a-tolerance-without-end": (RunFolder.write, ("--llmb-tolerance=inf%",), USAGE),
    "a-negative-tolerance": (RunFolder.write, ("--llmb-tolerance=-5%",), USAGE),
    "a-tolerance-of-everything": (
        lambda site: site.write(factor=3),
        ("--llmb-tolerance=1000%",),
        USAGE,
    ),
    "noise-without-end": (
        lambda site: site.write(factor=1.2),
        ("-ollmb_assumed_cv=100%",),
        USAGE,
    ),
    "a-selection-of-nothing": (
        RunFolder.write,
        ("-k", "no-such-thing"),
        pytest.ExitCode.NO_TESTS_COLLECTED,
    ),
    "an-empty-path": (RunFolder.write, ("--llmb-logs=",), USAGE),
    "a-path-that-is-not-there": (
        RunFolder.write,
        ("--llmb-logs=/no/such/folder",),
        USAGE,
    ),
    "a-release-that-is-none": (
        RunFolder.write,
        ("--llmb-baseline-release=99.99",),
        USAGE,
    ),
    "a-gpu-that-is-none": (RunFolder.write, ("--llmb-gpu=h1000",), USAGE),
    "a-trace-alone": (lambda site: site.write(traced=True), (), FAILED),
    "a-profile-alone": (lambda site: site.write(profiled=True), (), FAILED),
    "a-checkpoint-load-alone": (lambda site: site.write(checkpoint="load"), (), FAILED),
    "baselines-that-are-not-there": (
        RunFolder.write,
        ("--llmb-baselines=/no/such/folder",),
        USAGE,
    ),
}


# --- ordinary nights ------------------------------------------------------------------


def nights_with_noise(site: RunFolder) -> None:
    for day in range(12):
        site.write(days=day, factor=1 + 0.004 * (-1) ** day)


def packed(site: RunFolder) -> None:
    path = site.write()
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()


def in_a_tar(site: RunFolder) -> None:
    site.write()
    with tarfile.open(site.folder / "night.tar.gz", "w:gz") as archive:
        archive.add(site.folder / "experiments", "experiments")
    shutil.rmtree(site.folder / "experiments")


def a_dead_job_in_a_copied_tree(site: RunFolder) -> None:
    """A job died days ago, and a copy gave all files one time."""
    dead = site.write(
        GROK, days=3, job_id="1001", edit=lambda text: text[: text.index("[NeMo I")]
    )
    logs = [
        dead,
        site.write(GROK, days=1, job_id="1002"),
        site.write(GROK, job_id="1003"),
    ]
    stamp = site.newest.timestamp() + 7200
    for index, path in enumerate(reversed(logs)):
        for file in (path, path.with_suffix(".err")):
            os.utime(file, (stamp + index / 2, stamp + index / 2))


ORDINARY = {
    "behind-a-profiled-part": Night(
        lambda site: site.write(
            MAXTEXT,
            edit=lambda text: (
                with_a_profiler(text) + text.replace("seconds: 7", "seconds: 7")
            ),
        ),
        identifier=MAXTEXT,
    ),
    "from-the-checkpoint-of-another-precision": Night(
        bad(
            lambda text: (
                f"Loading distributed checkpoint from /ckpts/pretrain_llama3.1_8b_bf16_gpus16/step=9\n{text}"
            )
        )
    ),
    "mixed-precision-with-fp8": Night(
        bad(lambda text: f"  precision: bf16-mixed\n  fp8: hybrid\n{text}")
    ),
    "the-second-of-a-series": Night(
        lambda site: site.write(experiment="pretrain_llama3.1_8b_fp8_16_seq2")
    ),
    "a-dead-job-in-a-copied-tree": Night(a_dead_job_in_a_copied_tree, identifier=GROK),
    "clean": Night(RunFolder.write),
    "nemo1": Night(lambda site: site.write(NEMO1), identifier=NEMO1),
    "grok": Night(lambda site: site.write(GROK), identifier=GROK),
    "maxtext": Night(lambda site: site.write(MAXTEXT), identifier=MAXTEXT),
    "launcher": Night(
        lambda site: site.write(NEMO2_LAUNCHER), identifier=NEMO2_LAUNCHER
    ),
    "two-percent-slower": Night(lambda site: site.write(factor=1.02)),
    "two-percent-faster": Night(lambda site: site.write(factor=0.98)),
    "noisy-steps": Night(lambda site: site.write(noise=0.015)),
    "twelve-nights": Night(nights_with_noise),
    "requeued-after-a-node-failed": Night(lambda site: site.write(restarts=1)),
    "requeued-twice": Night(
        lambda site: site.write(NEMO1, restarts=2), identifier=NEMO1
    ),
    "two-ranks-print": Night(
        lambda site: site.write(ranks=("[default0]:", "[default1]:"))
    ),
    "carriage-returns": Night(
        lambda site: site.write(GROK, carriage_returns=True), identifier=GROK
    ),
    "records-beside-bars": Night(
        lambda site: site.write(GROK, dllogger=True), identifier=GROK
    ),
    "a-straggler-at-the-end": Night(lambda site: site.write(last_step_factor=1.6)),
    "windows-line-ends": Night(bad(lambda text: text.replace("\n", "\r\n"))),
    "a-warning-with-a-traceback": Night(
        bad(
            lambda text: (
                'Traceback (most recent call last):\n  File "x.py", line 1\nImportError: no apex\n'
                + text
            )
        )
    ),
    "compressed": Night(packed),
    "in-an-archive": Night(in_a_tar),
    "a-checkpoint-is-saved": Night(lambda site: site.write(checkpoint="save")),
    "a-slow-night-long-ago": Night(
        lambda site: (site.write(days=20, factor=1.3), site.write(days=1), site.write())
    ),
    "a-diverged-night-before": Night(
        lambda site: (site.write(days=1, ending="diverged"), site.write())
    ),
    "text-in-other-scripts": Night(bad(lambda text: "日本語のログ: 開始 🚀\n" + text)),
    "the-batch-script-beside-it": Night(lambda site: site.write(sbatch="script")),
    "on-this-machine": Night(lambda site: site.write(layout="local")),
}


def judge_night(judged: Judge, site: RunFolder, case: Night) -> JudgedSession:
    case.build(site)
    return judged(f"--llmb-logs={site.folder}", "-k", case.identifier, *case.options)


RED = {
    **{f"steps-{name}": case for name, case in STEPS.items()},
    **{f"slow-{name}": case for name, case in SLOW.items()},
    **{f"frameworks-{name}": case for name, case in FRAMEWORKS.items()},
    **{f"files-{name}": case for name, case in FILES.items()},
    **{f"places-{name}": case for name, case in PLACES.items()},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RED)
def test_session_with_a_bad_run_fails(
    judged: Judge, site: RunFolder, name: str
) -> None:
    """The verdict does not depend on the older run."""
    case = RED[name]
    session = judge_night(judged, site, case)
    assert session.ret == FAILED
    if session.statuses[case.identifier] == "failed":
        assert session.verdicts[case.identifier] in case.verdicts
    else:  # the run of the night is one of no configuration, and says that it may be of this one; or none was judged
        other_items = [
            status
            for name, status in session.statuses.items()
            if name != case.identifier
        ]
        assert other_items == ["failed"] or session.findings == ["NOTHING_JUDGED"]


@pytest.fixture
def judge_elm(judged: Judge, tmp_path: Path) -> Callable[[str], JudgedSession]:
    """Judge a log of Megatron-LM against a baseline that a user wrote."""

    def judge(text: str) -> JudgedSession:
        runs, baselines_folder = tmp_path / "results/own/bf16/8b/8", tmp_path / "own"
        runs.mkdir(parents=True)
        baselines_folder.mkdir()
        (runs / "log-elm_8b_8_7.out").write_text(text, encoding="utf-8")
        (baselines_folder / "own.yaml").write_text(
            custom_baseline(**MEGATRON, seconds=f"{ELM_SECONDS * 1.0013:.3f}"),
            encoding="utf-8",
        )
        return judged(
            f"--llmb-logs={tmp_path / 'results'}",
            f"--llmb-baselines={baselines_folder}",
            "-k",
            "elm",
        )

    return judge


@pytest.mark.slow
@pytest.mark.parametrize("name", ELMS)
def test_bad_run_of_a_custom_framework_fails(
    judge_elm: Callable[[str], JudgedSession], name: str
) -> None:
    session = judge_elm(ELMS[name])
    assert session.ret == FAILED
    assert not {"PASS", "IMPROVEMENT"} & set(session.verdicts.values())


@pytest.mark.slow
def test_ordinary_run_of_a_custom_framework_passes(
    judge_elm: Callable[[str], JudgedSession],
) -> None:
    session = judge_elm(megatron())
    assert (session.ret, [*session.verdicts.values()]) == (pytest.ExitCode.OK, ["PASS"])


def titan(factor: float) -> str:
    """Return a log of torchtitan that prints neither seconds nor time stamps: its times
    follow from tokens/s."""
    lines = []
    for step in range(1, 51):
        rate = (
            8192 * BATCH / 8 / (ELM_SECONDS * factor * (1.004 if step % 3 else 0.992))
        )
        lines.append(
            f"[titan] root - INFO - step: {step:2}  loss: {11 - step / 20:8.5f}  grad_norm:  2.2500  "
            f"memory: 28.18GiB(89.87%)  tps: {rate:,.0f}  tflops: {rate * 0.05795:,.2f}  mfu: 41.11%\n"
        )
    return "".join(lines)


@pytest.mark.slow
def test_runs_with_times_derived_from_tokens_are_not_copies(
    judged: Judge, tmp_path: Path
) -> None:
    """Both have as many steps, and neither prints a time: the newer, slow one is
    judged."""
    baselines_folder, runs = tmp_path / "own", tmp_path / "results/own/bf16/8b/8"
    baselines_folder.mkdir()
    runs.mkdir(parents=True)
    baseline = custom_baseline(
        **MEGATRON | {"framework": "torchtitan", "dialect": "torchtitan"},
        seconds="12.000",
    )
    (baselines_folder / "own.yaml").write_text(baseline, encoding="utf-8")
    now = datetime.now(UTC).timestamp()
    for name, factor, ago in (
        ("log-elm_8b_8_7.out", 1.0, 90_000),
        ("train_elm_8b.log", 1.3, 7_200),
    ):
        (runs / name).write_text(titan(factor), encoding="utf-8")
        os.utime(runs / name, (now - ago, now - ago))
    session = judged(
        f"--llmb-logs={tmp_path / 'results'}",
        f"--llmb-baselines={baselines_folder}",
        "-k",
        "elm",
    )
    assert session.ret == FAILED
    assert "PASS" not in session.verdicts.values()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_run_in_a_folder_named_for_an_undocumented_configuration_fails_the_session(
    judged: Judge, site: RunFolder, name: str
) -> None:
    """An item of its own, or in the place of the older run; it never passes as the
    configuration that it resembles."""
    renamed(NAMES[name])(site)
    session = judged(f"--llmb-logs={site.folder}")
    assert session.ret == FAILED
    red = [
        identifier
        for identifier, status in session.statuses.items()
        if status == "failed"
    ]
    assert red
    newest = session.described[NEMO2]["run"]
    assert (
        newest is None
        or session.statuses[NEMO2] == "failed"
        or NAMES[name] not in str(newest)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", SESSIONS)
def test_session_without_judged_runs_fails(
    pytester: pytest.Pytester, site: RunFolder, name: str
) -> None:
    """Or a usage error."""
    build, options, code = SESSIONS[name]
    build(site)
    logs = (
        ()
        if any(option.startswith("--llmb-logs") for option in options)
        else (f"--llmb-logs={site.folder}",)
    )
    assert (
        pytester.runpytest_inprocess("-p", "no:cacheprovider", *logs, *options).ret
        == code
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ORDINARY)
def test_session_with_ordinary_runs_passes(
    judged: Judge, site: RunFolder, name: str
) -> None:
    case = ORDINARY[name]
    session = judge_night(judged, site, case)
    assert session.verdicts[case.identifier] in ("PASS", "INCONCLUSIVE")
    assert session.statuses[case.identifier] == "passed"
    assert session.ret == pytest.ExitCode.OK
