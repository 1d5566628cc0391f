"""A written run is what it was asked to be: layout, step times as printed, ending, files beside it."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from generator import write_run

from pytest_llmbench.core.models import Baseline

FAMILIES = ["grok1-24.11", "maxtext-24.11", "nemotron4-25.01", "llama3.1-25.04", "grok1-25.05"]
PRINTED = {
    "nemo1": re.compile(r"global_step=([\d.]+),[^\r\n]*?train_step_timing in s=([\d.e+]+)]"),
    "nemo2": re.compile(r"global_step: (\d+) .*?train_step_timing in s: (\S+)"),
    "maxtext": re.compile(r"completed step: (\d+), seconds: ([\d.]+),"),
}
UNIT = {
    "grok1-24.11": 0.1,
    "maxtext-24.11": 0.001,
    "nemotron4-25.01": 0.01,
    "llama3.1-25.04": 0.01,
    "grok1-25.05": 0.001,
}


def printed(path: Path, dialect: str) -> dict[int, float]:
    """The last printed seconds of each step, by a pattern of this test's own."""
    text = path.read_bytes().decode()
    return {int(float(step)): float(seconds) for step, seconds in PRINTED[dialect].findall(text)}


def window_mean(steps: dict[int, float]) -> float:
    return fmean(steps[step] for step in range(11, 45))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("options", [{}, {"noise": 0.0}, {"factor": 1.08}, {"factor": 0.93, "last_step_factor": 1.5}])
def test_mean_of_the_window(
    families: dict[str, Baseline], tmp_path: Path, family: str, options: dict[str, float]
) -> None:
    """The printed mean of steps 11 to 44 is the published one times the factor, to a thirtieth of a printed unit."""
    baseline = families[family]
    steps = printed(write_run(tmp_path, baseline, **options), baseline.dialect)
    assert sorted(steps) == list(range(50))
    wanted = baseline.step_seconds * options.get("factor", 1.0)
    assert window_mean(steps) == pytest.approx(wanted, abs=UNIT[family] / 30)
    assert steps[49] == pytest.approx(wanted * options.get("last_step_factor", 1.0), rel=0.025, abs=UNIT[family])
    assert min(steps[step] for step in range(5)) > wanted


def test_constant_steps(families: dict[str, Baseline], tmp_path: Path) -> None:
    """Without noise every steady step prints the same, or one of two neighbours where the mean lies between them."""
    maxtext = printed(write_run(tmp_path, families["maxtext-24.11"], noise=0.0), "maxtext")
    assert {maxtext[step] for step in range(11, 50)} == {6.999}
    grok = printed(write_run(tmp_path, families["grok1-24.11"], noise=0.0), "nemo1")
    assert {grok[step] for step in range(11, 45)} == {24.0, 24.1}


def test_step_times_that_were_given(families: dict[str, Baseline], tmp_path: Path) -> None:
    """Given step times are printed as they are, and their number is the number of steps."""
    seconds = (20.0, 12.5, 12.25, 12.25)
    log = write_run(tmp_path, families["llama3.1-25.04"], seconds=seconds)
    assert printed(log, "nemo2") == dict(enumerate((20.0, 12.5, 12.25, 12.25)))
    assert "iteration 3/3 |" in log.read_text(encoding="utf-8")


NAMED = {"job_id": "1407993", "started": datetime(2025, 6, 2, 3, tzinfo=UTC)}
PLACES: list[tuple[str, dict[str, Any], str]] = [
    ("grok1-24.11", {}, "results/24.11/bf16/314b/8/log-nemo_grok1_314b_8_1407993.out"),
    ("maxtext-24.11", {}, "results/24.11/bf16/70b/64/log-maxtext_llama2_70b_64_1407993.out"),
    ("maxtext-24.11", {"document_name": True}, "results/24.11/bf16/70b/64/log-maxtext-64_70b_1407993.out"),
    ("nemotron4-25.01", {"job_id": "9"}, "results/25.01/fp8/340b/128/log-nemo_nemotron4_340b_128_9.out"),
    (
        "nemotron4-25.01",
        {"traced": True},
        "results/25.01-nccl-trace/fp8/340b/128/log-nemo_nemotron4_340b_128_1407993.out",
    ),
    (
        "llama3.1-25.04",
        {},
        "experiments/pretrain_llama3.1_8b_bf16_8/pretrain_llama3.1_8b_bf16_8_1748833200/pretrain_llama3.1_8b_bf16_8/"
        "log-benchmark-benchmark.pretrain_llama3.1_8b_bf16_8_1407993_0.out",
    ),
    (
        "llama3.1-25.04",
        {"profiled": True},
        "experiments/pretrain_llama3.1_8b_bf16_8/pretrain_llama3.1_8b_bf16_8_1748833200/"
        "pretrain_llama3.1_8b_bf16_8_nsys/log-benchmark-benchmark.pretrain_llama3.1_8b_bf16_8_nsys_1407993_0.out",
    ),
    (
        "grok1-25.05",
        {},
        "workloads/pretrain_grok1/experiments/pretrain_grok1_314b_bf16_256/pretrain_grok1_314b_bf16_256_1748833200/"
        "pretrain_grok1_314b_bf16_256/log-benchmark-benchmark.pretrain_grok1_314b_bf16_256_1407993_0.out",
    ),
    (
        "grok1-25.05",
        {"document_name": True},
        "workloads/pretrain_grok1/experiments/pretrain_grok1_314b_bf16_256/pretrain_grok1_314b_bf16_256_1748833200/"
        "pretrain_grok1_314b_bf16_256/log-pretrain_grok1_314b_bf16_256.out",
    ),
    (
        "grok1-25.05",
        {"layout": "launcher", "release": "26.06"},
        "workloads/pretrain_grok1/experiments/pretrain_grok1_314b_bf16_gpus256/1748833200/log-grok1_1407993_0.out",
    ),
    ("grok1-25.05", {"layout": "sbatch"}, "workloads/pretrain_grok1/slurm-1407993.out"),
    (
        "llama3.1-25.04",
        {"layout": "local"},
        "experiments/pretrain_llama3.1_8b_bf16_8/pretrain_llama3.1_8b_bf16_8_1748833200/pretrain_llama3.1_8b_bf16_8/"
        "nemo_run/pretrain_llama3.1_8b_bf16_8-b7k2xw4q/pretrain_llama3.1_8b_bf16_8/0/combined.log",
    ),
]


@pytest.mark.parametrize(("family", "options", "path"), PLACES)
def test_place(families: dict[str, Baseline], tmp_path: Path, family: str, options: dict[str, Any], path: str) -> None:
    """Each release's recipes put their logs where the documents and the launchers say."""
    assert write_run(tmp_path, families[family], **NAMED | options) == tmp_path / path
    assert (tmp_path / path).is_file()


def test_same_options_same_bytes(families: dict[str, Baseline], tmp_path: Path) -> None:
    """Nothing depends on the clock or the machine."""
    first = write_run(tmp_path / "a", families["grok1-25.05"])
    second = write_run(tmp_path / "b", families["grok1-25.05"])
    assert first.read_bytes() == second.read_bytes()
    assert write_run(tmp_path, families["grok1-25.05"], job_id="2").read_bytes() != first.read_bytes()


def test_a_run_is_never_overwritten(families: dict[str, Baseline], tmp_path: Path) -> None:
    """A second run needs another job id or start."""
    write_run(tmp_path, families["grok1-24.11"])
    with pytest.raises(FileExistsError):
        write_run(tmp_path, families["grok1-24.11"])


@pytest.mark.parametrize("family", FAMILIES)
def test_files_bear_the_time_of_the_run(families: dict[str, Baseline], tmp_path: Path, family: str) -> None:
    """A run that ended long ago must not look as if it was written minutes ago."""
    started = datetime(2025, 5, 6, 7, 8, tzinfo=UTC)
    log = write_run(tmp_path, families[family], started=started)
    modified = datetime.fromtimestamp(log.stat().st_mtime, UTC)
    assert 0 < (modified - started).total_seconds() < 3600
    assert "2025-05-06 07:08:41" in log.read_text(encoding="utf-8")


@pytest.mark.parametrize("family", FAMILIES)
def test_time_limit(families: dict[str, Baseline], tmp_path: Path, family: str) -> None:
    """The log is cut at a step and Slurm says why: in the .err of a batch script, in the log of NeMo-Run."""
    log = write_run(tmp_path, families[family], ending="time-limit", cut=20)
    text = log.read_bytes().decode()
    assert max(printed(log, families[family].dialect)) == 19
    assert "Trainer.fit" not in text
    said = log.with_suffix(".err") if log.with_suffix(".err").exists() else log
    assert said.read_text(encoding="utf-8").rstrip().endswith("DUE TO TIME LIMIT ***")


@pytest.mark.parametrize("family", FAMILIES)
def test_killed(families: dict[str, Baseline], tmp_path: Path, family: str) -> None:
    """The last line is torn and nothing says why."""
    log = write_run(tmp_path, families[family], ending="killed", cut=20)
    everything = log.read_bytes().decode() + "".join(path.read_text() for path in tmp_path.rglob("*.err"))
    assert not log.read_bytes().endswith(b"\n")
    assert "DUE TO" not in everything
    assert "Trainer.fit" not in everything


@pytest.mark.parametrize(
    ("family", "nan"),
    [("grok1-24.11", "=nan.0,"), ("maxtext-24.11", "loss: nan\n"), ("llama3.1-25.04", "reduced_train_loss: nan |")],
)
def test_diverged(families: dict[str, Baseline], tmp_path: Path, family: str, nan: str) -> None:
    """The loss is NaN from the cut on, as each framework prints it, and the run goes on to its end."""
    log = write_run(tmp_path, families[family], ending="diverged", cut=30)
    lines = [line for line in log.read_text(encoding="utf-8").splitlines(keepends=True) if nan in line]
    assert len(lines) >= 20
    assert len(printed(log, families[family].dialect)) == 50


def test_restarts(families: dict[str, Baseline], tmp_path: Path) -> None:
    """A requeue keeps the job id: another file in NeMo-Run, the same file in a batch script."""
    last = write_run(tmp_path, families["llama3.1-25.04"], restarts=1, cut=17)
    first = last.with_name(last.name.replace("_1.out", "_0.out"))
    assert max(printed(first, "nemo2")) == 16
    assert "DUE TO NODE FAILURE" in first.read_text(encoding="utf-8")
    assert max(printed(last, "nemo2")) == 49
    log = write_run(tmp_path, families["nemotron4-25.01"], restarts=1, cut=17)
    text = log.read_text(encoding="utf-8")
    assert text.count("Experiment configuration") == 2
    assert [int(float(step)) for step, _ in PRINTED["nemo1"].findall(text)].count(0) == 2 * 2


def test_maxtext_log_holds_two_runs(families: dict[str, Baseline], tmp_path: Path) -> None:
    """15 profiling steps, slower ones, stand before the 50 that count."""
    text = write_run(tmp_path, families["maxtext-24.11"]).read_text(encoding="utf-8")
    steps = [(int(step), float(seconds)) for step, seconds in PRINTED["maxtext"].findall(text)]
    assert [step for step, _ in steps] == [*range(15), *range(50)]
    assert steps[14][1] == pytest.approx(6.999 * 1.15, abs=0.01)
    weights = re.findall(r"Tokens/s/device: ([\d.]+), total_weights: (\d+), loss: (\S+)", text)
    assert {(total, loss) for _, total, loss in weights} == {(str(4096 * 128), "0.000")}
    assert float(weights[-1][0]) * steps[-1][1] == pytest.approx(8192, rel=1e-3)


def test_dllogger_records(families: dict[str, Baseline], tmp_path: Path) -> None:
    """Records of full precision are glued to the bars, and their mean is the one asked for."""
    log = write_run(tmp_path, families["grok1-24.11"], dllogger=True, carriage_returns=True, factor=1.01)
    text = log.read_bytes().decode()
    seconds = [float(value) for value in re.findall(r"]DLL \S+ \S+ - .*?train_step_timing in s : (\S+)", text)]
    assert len(seconds) == 50
    assert fmean(seconds[11:45]) == pytest.approx(24.03 * 1.01, abs=1e-6)
    assert text.count("\r") == 100


def test_stale_bars(families: dict[str, Baseline], tmp_path: Path) -> None:
    """Each step prints two bars of one count, the first with the step before."""
    text = write_run(tmp_path, families["grok1-24.11"]).read_text(encoding="utf-8")
    bars = re.findall(r"\| 20/50 \[.*?global_step=([\d.]+)", text)
    assert bars == ["18.00", "19.00"]
    assert "train_step_timing in s: [" in text


@pytest.mark.parametrize(("family", "logged"), [("grok1-25.05", 1.03 * 512 / 256), ("maxtext-24.11", 128 / 64)])
def test_logged_tflops(families: dict[str, Baseline], tmp_path: Path, family: str, logged: float) -> None:
    """Logged TFLOP/s times step time is the model's FLOPs, times the known factor of the recipe."""
    flops = {"grok1-25.05": 4274090770432000, "maxtext-24.11": 1820636636774400}[family]
    text = write_run(tmp_path, families[family]).read_text(encoding="utf-8")
    pattern = r"train_step_timing in s: (\S+) \| TFLOPS_per_GPU: (\S+)|seconds: (\S+), TFLOP/s/device: ([\d.]+)"
    rows = [tuple(float(cell) for cell in row if cell.strip(",")) for row in re.findall(pattern, text.replace(",", ""))]
    for seconds, tflops in rows[-30:]:
        assert seconds * tflops == pytest.approx(logged * flops / 1e12, rel=1e-3)


def test_first_line_lacks_consumed_samples(families: dict[str, Baseline], tmp_path: Path) -> None:
    """NeMo 2's first step prints no consumed_samples; the others count from the batch size."""
    text = write_run(tmp_path, families["llama3.1-25.04"]).read_text(encoding="utf-8")
    samples = re.findall(r"global_step: \d+ .*?in s: \S+(?: \| consumed_samples: (\d+))?\n", text)
    assert samples == ["", *(str((step + 1) * 128) for step in range(1, 50))]


def test_profiled_runs(families: dict[str, Baseline], tmp_path: Path) -> None:
    """Each release leaves its own evidence, and stops where it says."""
    for family, steps in (("nemotron4-25.01", 30), ("llama3.1-25.04", 25), ("grok1-25.05", 50)):
        log = write_run(tmp_path, families[family], profiled=True)
        assert len(printed(log, families[family].dialect)) == steps
        assert list(log.parent.rglob("*.nsys-rep"))
    metadata = next(tmp_path.rglob("llmb-config_*.yaml")).read_text(encoding="utf-8")
    assert "profile_enabled: true" in metadata


@pytest.mark.parametrize("family", FAMILIES)
def test_traced_runs(families: dict[str, Baseline], tmp_path: Path, family: str) -> None:
    """A traced run holds NCCL lines and few steps."""
    text = write_run(tmp_path, families[family], traced=True, profiling_steps=0).read_text(encoding="utf-8")
    assert len(re.findall(r"^\[\d] NCCL INFO (?:AllReduce|AllGather): opCount [0-9a-f]+ ", text, re.M)) == 40
    assert len({step for step, _ in PRINTED[families[family].dialect].findall(text)}) == 5


def test_checkpoint_runs(families: dict[str, Baseline], tmp_path: Path) -> None:
    """Loading a checkpoint runs one step; saving one adds its line at the end."""
    loaded = write_run(tmp_path, families["llama3.1-25.04"], checkpoint="load", job_id="1")
    assert "Global Checkpoint Load : Rank : 0" in loaded.read_text(encoding="utf-8")
    assert list(printed(loaded, "nemo2")) == [0]
    saved = write_run(tmp_path, families["llama3.1-25.04"], checkpoint="save", job_id="2")
    assert "Global Checkpoint Save : Rank: 0 : Iteration: 50" in saved.read_text(encoding="utf-8")
    assert len(printed(saved, "nemo2")) == 50


def test_ranks(families: dict[str, Baseline], tmp_path: Path) -> None:
    """Each step is printed under every rank's prefix."""
    log = write_run(tmp_path, families["maxtext-24.11"], ranks=("0: ", "1: "), profiling_steps=0)
    lines = [line for line in log.read_text(encoding="utf-8").splitlines() if "completed step" in line]
    assert [line.partition("completed")[0] for line in lines] == ["0: ", "1: "] * 50


def test_metadata(families: dict[str, Baseline], tmp_path: Path) -> None:
    """The launcher's metadata tells the configuration and the patched release."""
    yaml = pytest.importorskip("yaml")
    log = write_run(tmp_path, families["grok1-25.05"], **NAMED)
    found = yaml.safe_load((log.parent / "llmb-config_1407993.yaml").read_text(encoding="utf-8"))
    assert found["workload_info"]["gsw_version"] == "25.05.04"
    assert found["model_info"] == {
        "model_name": "grok1",
        "model_size": "314b",
        "dtype": "bf16",
        "scale": 256,
        "gpu_type": "gb200",
    }
    assert found["cluster_info"]["gpus_per_node"] == 4
    assert found["job_info"]["launch_time"] == "2025-06-02T03:00:00.000000"
    assert found["job_config"] == {
        "profile_enabled": False,
        "proxy": False,
        "strong_scaling": False,
        "env_overrides": {},
        "model_overrides": {},
    }


def test_copy_of_the_log(families: dict[str, Baseline], tmp_path: Path) -> None:
    """An attached launcher leaves every line a second time, under the last ten characters of the task's name."""
    log = write_run(tmp_path, families["llama3.1-25.04"], sbatch="copy")
    copy = next(tmp_path.rglob("sbatch_*.out")).read_text(encoding="utf-8")
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
    assert copy == "".join(f"_8b_bf16_8/0 {line}" for line in lines)
