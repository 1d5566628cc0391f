"""Constructed nights: each of those that should be red is red although an older run of the configuration was good, and
ordinary nights, odd as they may look, are green."""

from __future__ import annotations

import gzip
import re
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from constructed import BF16, GROK, MAXTEXT, NEMO1, NEMO2, NEMO2_LAUNCHER, Site, of_steps, replace, rewrite, timed
from generator.lines import megatron_line
from own_baseline import LLAMA_8B, own_baseline
from sessions import Judge, Judged

from pytest_llmbench.core.models import Baseline

FAILED = pytest.ExitCode.TESTS_FAILED


class Night(NamedTuple):
    """How a night is made, of which configuration, with which options, and which verdicts may be told of it."""

    build: Callable[[Site], object]
    verdicts: tuple[str, ...] = ("INVALID",)
    identifier: str = NEMO2
    options: tuple[str, ...] = ()


@pytest.fixture
def site(tmp_path: Path, baselines: dict[str, Baseline]) -> Site:
    folder = tmp_path / "runs"
    folder.mkdir()
    return Site(folder, baselines)


def bad(edit: Callable[[str], str], identifier: str = NEMO2, **options: Any) -> Callable[[Site], object]:
    """Return how a night is made whose run is edited, one day after a good one."""

    def changed(text: str) -> str:
        edited = edit(text)
        assert edited != text or options, "the edit changes nothing"
        return edited

    def build(site: Site) -> None:
        site.good(identifier)
        site.write(identifier, edit=changed, **options)

    return build


# --- what the steps say -----------------------------------------------------------------------------------


def between(first: int, last: int, change: Callable[[str], str | None]) -> Callable[[str], str]:
    return of_steps(lambda step, line: change(line) if first <= step <= last else line)


def two_processes(site: Site) -> None:
    """A slow and a fast process print into one file: each step twice, with two times."""
    site.good()
    slowed = timed(lambda _, seconds: f"{seconds * 1.3:.3f}")

    def both(text: str) -> str:
        other = [line for line in slowed(text).splitlines(keepends=True) if "iteration" in line]
        by_step = {re.search(r"iteration (\d+)/", line).group(1): line for line in other}  # type: ignore[union-attr]
        lines = []
        for line in text.splitlines(keepends=True):
            found = re.search(r"iteration (\d+)/", line)
            lines += [line, by_step[found.group(1)]] if found else [line]
        return "".join(lines)

    site.write(edit=both)


def another_run_behind(site: Site) -> None:
    """Behind a run that ended slow stands a fast one that was killed in the window."""
    site.good()
    path = site.write(factor=1.2)
    tail = site.folder / "tail"
    tail.mkdir()
    other = Site(tail, site.baselines).write(ending="killed", cut=40).read_text()
    shutil.rmtree(tail)
    rewrite(path, lambda text: text + other)


def renumbered(found: re.Match[str]) -> str:
    """Number a step as one of a run that went on from step 1000."""
    return f"{found[1]}{int(found[2]) + 1000}{'/1049' if found[3] else ''}"


def resumed_in_the_window(site: Site) -> None:
    """Steps 0 to 29 stand in one attempt, 30 to 49 in the next: neither holds the window."""
    site.good()
    path = site.write(restarts=1, cut=30)
    rewrite(path, between(0, 29, lambda _: None))


STEPS = {
    "the-last-step-of-the-window-is-not-printed": Night(bad(between(44, 44, lambda _: None))),
    "two-processes-one-slow": Night(two_processes, ("INVALID", "REGRESSION", "INCONCLUSIVE")),
    "steps-numbered-from-a-checkpoint": Night(bad(replace(r"(iteration |global_step: )(\d+)(/49)?", renumbered))),
    "negative-time-of-one-step": Night(bad(timed(lambda _, s: f"-{s:.3f}", 20, 20))),
    "a-time-that-is-no-number": Night(bad(timed(lambda _, s: "nan", 20, 20))),
    "decimal-commas": Night(bad(timed(lambda _, s: f"{s:.3f}".replace(".", ",")))),
    "exponents": Night(bad(timed(lambda _, s: f"{s * 10:.3e}")), ("REGRESSION", "INVALID")),
    "an-end-that-the-steps-do-not-reach": Night(bad(between(31, 49, lambda _: None))),
    "another-run-behind-a-slow-one": Night(another_run_behind, ("REGRESSION", "INVALID")),
    "resumed-within-the-window": Night(resumed_in_the_window),
    "the-middle-is-zeros": Night(
        bad(lambda text: text[: len(text) // 2] + "\0" * 4096 + text[len(text) // 2 + 3500 :])
    ),
    "loss-nan-behind-the-window": Night(bad(between(48, 49, replace(r"train_loss: [\d.]+", "train_loss: nan")))),
    "no-loss-in-the-window": Night(bad(between(11, 44, replace(r" \| reduced_train_loss: [\d.]+", "")))),
    "half-of-the-batch-from-step-10-on": Night(
        bad(between(10, 49, replace(r"global_batch_size: (\d+)", lambda f: f"global_batch_size: {int(f[1]) // 2}")))
    ),
    "no-step-at-all": Night(bad(of_steps(lambda *_: None))),
}
"""Of NeMo 2."""

SLOW = {
    "ten-percent": Night(bad(str, factor=1.10), ("REGRESSION", "INCONCLUSIVE")),
    "the-last-third": Night(bad(timed(lambda _, s: f"{s * 1.25:.3f}", 33, 49)), ("REGRESSION", "INCONCLUSIVE")),
    "windows-line-ends": Night(
        bad(lambda text: text.replace("\n", "\r\n"), factor=1.15), ("REGRESSION", "INCONCLUSIVE")
    ),
    "behind-a-colour": Night(
        bad(replace("Training epoch", "\x1b[32mTraining epoch"), factor=1.15), ("REGRESSION", "INCONCLUSIVE")
    ),
}


# --- other frameworks -------------------------------------------------------------------------------------


def metadata_say(old: str, new: str, *, alone: bool = False) -> Callable[[Site], object]:
    """Return how a night is made whose metadata say something else than its folder, a day after a good one or alone."""

    def build(site: Site) -> None:
        if not alone:
            site.good(NEMO2_LAUNCHER)
        (file,) = site.write(NEMO2_LAUNCHER).parent.glob("llmb-config_*.yaml")
        assert old in file.read_text(encoding="utf-8")
        rewrite(file, lambda text: text.replace(old, new, 1))

    return build


FRAMEWORKS = {
    "nemo1-loss-nan-in-the-bars": Night(
        bad(
            replace(r"(iteration|Epoch 0: : +[6-9]\d%.*?)reduced_train_loss=[\d.]+", r"\1reduced_train_loss=nan.0"),
            NEMO1,
        ),
        identifier=NEMO1,
    ),
    "nemo1-record-of-another-time": Night(
        bad(str, GROK, dllogger=True, factor=1.15), ("REGRESSION", "INCONCLUSIVE"), GROK
    ),
    "maxtext-only-the-profiled-steps": Night(
        bad(lambda text: text[: text.index("Profile of the compiled step")], MAXTEXT), identifier=MAXTEXT
    ),
    "launcher-other-gpu-in-the-metadata": Night(
        metadata_say("gpu_type: gb200", "gpu_type: b200"),
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


# --- files ------------------------------------------------------------------------------------------------


def file_is(change: Callable[[Path], object], *, only: bool = False) -> Callable[[Site], object]:
    """Return how a night is made whose log is changed as a file, one day after a good one unless it is the only one."""

    def build(site: Site) -> None:
        if not only:
            site.good()
        change(site.write())

    return build


def cut_gzip(path: Path) -> None:
    packed = gzip.compress(path.read_bytes())
    path.with_name(f"{path.name}.gz").write_bytes(packed[: len(packed) * 2 // 3])
    path.unlink()


def dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("gone.out")


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


FILES = {
    "an-empty-log": Night(file_is(lambda path: path.write_bytes(b""))),
    "utf-16": Night(file_is(lambda path: path.write_bytes(path.read_text(encoding="utf-8").encode("utf-16")))),
    "a-link-to-nothing": Night(file_is(dangling)),
    "a-folder-of-the-name-of-a-log": Night(file_is(directory)),
    "a-gzip-that-breaks-off": Night(file_is(cut_gzip)),
    "the-second-half": Night(file_is(lambda path: rewrite(path, lambda text: text[len(text) * 2 // 3 :]))),
}

# --- runs in the place of others --------------------------------------------------------------------------


def in_place_of(other: str, identifier: str = NEMO2, **options: Any) -> Callable[[Site], object]:
    """Return how a night is made in which the log of another configuration stands in the folder of `identifier`."""

    def build(site: Site) -> None:
        site.good(identifier)
        path = site.write(identifier)
        aside = Site(site.folder / "aside", site.baselines, site.newest)
        aside.folder.mkdir()
        text = aside.write(other, **options).read_text(encoding="utf-8")
        shutil.rmtree(aside.folder)
        rewrite(path, lambda _: text)

    return build


def two_jobs_of_one_id(site: Site) -> None:
    """Two jobs have one id, as after the scheduler's database was made anew; the newer one is slow."""
    site.write(days=40, job_id="77")
    site.write(job_id="77", factor=1.2)


def slow_in_one_copy(site: Site) -> None:
    """One job's log stands twice, and one of the two is slow: edited, or another rank's."""
    path = site.write(job_id="78", factor=1.25)
    other = site.folder / "copy" / path.relative_to(site.folder)
    other.parent.mkdir(parents=True)
    faster = timed(lambda _, seconds: f"{seconds / 1.25:.3f}")
    other.write_text(faster(path.read_text(encoding="utf-8")), encoding="utf-8")


def slow_beside_metadata_of_a_good_one(site: Site) -> None:
    """The metadata of a good job lie beside the log of a slow one, which has none."""
    good = site.write(NEMO2_LAUNCHER, days=1)
    slow = site.write(NEMO2_LAUNCHER, factor=1.2)
    for file in slow.parent.glob("llmb-config_*.yaml"):
        file.unlink()
    (file,) = good.parent.glob("llmb-config_*.yaml")
    shutil.copy(file, slow.parent)


def with_a_profiler(text: str) -> str:
    return text.replace("completed step: 20,", "completed profiler activation, seconds: 1.0\ncompleted step: 20,")


def text_of(site: Site, identifier: str = NEMO2, **options: Any) -> str:
    """Return the text of a log that is no run of the night."""
    aside = Site(site.folder.parent / "aside", site.baselines, site.newest)
    aside.folder.mkdir()
    return aside.write(identifier, **options).read_text(encoding="utf-8")


def a_hiccup_behind_a_slow_part(site: Site) -> None:
    """The part that decides, as the slowest, is slow by one step alone; the one before it was slow throughout."""
    site.good()
    odd = text_of(site, edit=timed(lambda _, seconds: f"{seconds * 6:.3f}", 20, 20))
    site.write(factor=1.09, edit=lambda text: text + odd)


def a_copy_that_knows_less(site: Site) -> None:
    """A log was copied after its last step; then its job began again, and died."""
    site.good(days=2)
    path = site.write(job_id="79")
    copy = site.folder / "copy" / path.relative_to(site.folder)
    copy.parent.mkdir(parents=True)
    shutil.copy(path, copy)
    rewrite(path, lambda text: f"{text}{before_the_steps(text)}{OUT_OF_MEMORY}")


def before_the_steps(text: str) -> str:
    return text[: text.rindex("\n", 0, text.index("Training epoch")) + 1]


OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    "srun: error: node-0001: task 3: Exited with exit code 1\n"
)
SLOWER = ("REGRESSION", "INCONCLUSIVE", "INVALID")

PLACES = {
    "fp8-in-the-place-of-bf16": Night(in_place_of(NEMO2, BF16), ("INVALID", "IMPROVEMENT"), BF16),
    "8-gpus-in-the-place-of-16": Night(in_place_of("llama3.1_8b-25.04-h100-fp8-8")),
    "another-framework-in-its-place": Night(in_place_of(MAXTEXT), ("INVALID",)),
    "a-hiccup-behind-a-slow-part": Night(a_hiccup_behind_a_slow_part, SLOWER),
    "a-copy-that-knows-less": Night(a_copy_that_knows_less),
    "with-lora": Night(
        lambda site: (site.good(), site.write(experiment="pretrain_llama3.1_8b_fp8_16_lora")), ("MISSING", "INVALID")
    ),
    "two-jobs-of-one-id": Night(two_jobs_of_one_id, SLOWER),
    "slow-in-one-copy": Night(slow_in_one_copy, SLOWER),
    "metadata-of-another-job": Night(slow_beside_metadata_of_a_good_one, (*SLOWER, "MISSING"), NEMO2_LAUNCHER),
}

# --- frameworks of a user's own -----------------------------------------------------------------------------

MEGATRON = {
    "recipe": "elm", "framework": "Megatron-LM", "dialect": "megatron", "gpu": "h100", "peak": "989", "size": "8b",
    "gpus": 8, "model": LLAMA_8B, "shape": "sequence_length: 8192, layers: 32, gbs: 128",
}  # fmt: skip
BATCH, ELM_SECONDS = 128, 12.0


def megatron(seconds: float = ELM_SECONDS) -> str:
    """Return a log of Megatron-LM whose steps take this long."""
    began = datetime(2026, 5, 4, 6, tzinfo=UTC)
    lines = ["using world size: 8, data-parallel size: 8\n"]
    for step in range(1, 51):
        wobble = seconds * (1.004 if step % 3 else 0.996)
        time = began + timedelta(seconds=seconds * step)
        line = megatron_line(time, step, 50, wobble, batch=BATCH, tflops=None, loss=11.0 - step / 20)
        lines.append(f"{line}\n")
    return "".join(lines)


ELM = megatron()
ELMS = {
    "ordinary": (ELM, "PASS"),
    "slow": (megatron(ELM_SECONDS * 1.12), "REGRESSION"),
    "loss-nan": (re.sub(r"lm loss: \S+", "lm loss: nan", ELM), "INVALID"),
    "every-step-skipped": (ELM.replace("skipped iterations:   0", "skipped iterations:   1"), "INVALID"),
    "times-torn": (re.sub(r"\(ms\): (\d+)\.\d .*", r"(ms): \1", ELM), "INVALID"),
    "half-of-the-world": (ELM.replace("world size: 8,", "world size: 4,"), "INVALID"),
}
"""Logs of Megatron-LM with their verdicts."""

# --- ordinary nights --------------------------------------------------------------------------------------


ORDINARY = {
    "behind-a-profiled-part": Night(
        lambda site: site.write(MAXTEXT, edit=lambda text: with_a_profiler(text) + text),
        identifier=MAXTEXT,
    ),
    "mixed-precision-with-fp8": Night(bad(lambda text: f"  precision: bf16-mixed\n  fp8: hybrid\n{text}")),
    "the-second-of-a-series": Night(lambda site: site.write(experiment="pretrain_llama3.1_8b_fp8_16_seq2")),
    "two-percent-slower": Night(lambda site: site.write(factor=1.02)),
    "requeued-after-a-node-failed": Night(lambda site: site.write(restarts=1)),
    "two-ranks-print": Night(lambda site: site.write(ranks=("[default0]:", "[default1]:"))),
    "carriage-returns": Night(lambda site: site.write(GROK, carriage_returns=True), identifier=GROK),
    "records-beside-bars": Night(lambda site: site.write(GROK, dllogger=True), identifier=GROK),
    "a-checkpoint-is-saved": Night(lambda site: site.write(checkpoint="save")),
    "a-slow-night-long-ago": Night(lambda site: (site.write(days=20, factor=1.3), site.write(days=1), site.write())),
    "on-this-machine": Night(lambda site: site.write(layout="local")),
}


def judge_night(judged: Judge, site: Site, night: Night) -> Judged:
    night.build(site)
    return judged(f"--llmb-logs={site.folder}", "-k", night.identifier, *night.options)


RED = {
    **{f"steps-{name}": night for name, night in STEPS.items()},
    **{f"slow-{name}": night for name, night in SLOW.items()},
    **{f"frameworks-{name}": night for name, night in FRAMEWORKS.items()},
    **{f"files-{name}": night for name, night in FILES.items()},
    **{f"places-{name}": night for name, night in PLACES.items()},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RED)
def test_a_night_that_should_be_red_is(judged: Judge, site: Site, name: str) -> None:
    """Whatever the older run says."""
    night = RED[name]
    session = judge_night(judged, site, night)
    assert session.ret == FAILED
    if session.statuses[night.identifier] == "failed":
        assert session.verdicts[night.identifier] in night.verdicts
    else:  # the run of the night is one of no configuration, and says that it may be of this one; or none was judged
        others = [status for name, status in session.statuses.items() if name != night.identifier]
        assert others == ["failed"] or session.findings == ["NOTHING_JUDGED"]


@pytest.fixture
def judge_elm(judged: Judge, tmp_path: Path) -> Callable[[str], Judged]:
    """Judge a log of Megatron-LM against a baseline that a user wrote."""

    def judge(text: str) -> Judged:
        runs, own = tmp_path / "results/own/bf16/8b/8", tmp_path / "own"
        runs.mkdir(parents=True)
        own.mkdir()
        (runs / "log-elm_8b_8_7.out").write_text(text, encoding="utf-8")
        (own / "own.yaml").write_text(own_baseline(**MEGATRON, seconds=f"{ELM_SECONDS * 1.0013:.3f}"), encoding="utf-8")
        return judged(f"--llmb-logs={tmp_path / 'results'}", f"--llmb-baselines={own}", "-k", "elm")

    return judge


@pytest.mark.parametrize(("text", "verdict"), ELMS.values(), ids=ELMS)
def test_run_of_a_users_own_framework_gets_its_verdict(
    judge_elm: Callable[[str], Judged], text: str, verdict: str
) -> None:
    session = judge_elm(text)
    assert [*session.verdicts.values()] == [verdict]
    assert session.ret == (pytest.ExitCode.OK if verdict == "PASS" else FAILED)


@pytest.mark.slow
@pytest.mark.parametrize("name", ORDINARY)
def test_an_ordinary_night_is_green(judged: Judge, site: Site, name: str) -> None:
    night = ORDINARY[name]
    session = judge_night(judged, site, night)
    assert session.verdicts[night.identifier] in ("PASS", "INCONCLUSIVE")
    assert session.statuses[night.identifier] == "passed"
    assert session.ret == pytest.ExitCode.OK
