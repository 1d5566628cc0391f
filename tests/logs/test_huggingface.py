"""Hugging Face Trainer: one record for a whole run."""

from __future__ import annotations

import math

import pytest
from support.written_logs import dropped, nemo2_run, parse, steps

from pytest_llmbench.core.log_records import ParsedLog


def summary(runtime: str = "2577.7505", rate: str = "0.745", loss: str = "1.5") -> str:
    """Return the final record of Trainer."""
    return (
        f"{{'train_runtime': {runtime}, 'train_samples_per_second': 95.339, 'train_steps_per_second': {rate}, "
        f"'train_loss': {loss}, 'epoch': 3.0}}\n"
    )


def last_bar(done: int, total: int, elapsed: str = "42:57") -> str:
    """Return the last drawing of Trainer's progress bar, before the summary."""
    return (
        f"\r100%|{'█' * 60}| {done}/{total} [{elapsed}<00:00,  1.34s/it]\n{' ' * 60}\r"
    )


def list_doubts(log: ParsedLog) -> list[str]:
    """Return the doubt about each run's time."""
    return [segment.doubt for segment in log.segments]


def record(norm: str, rate: str = "1e-05", loss: str = "1.5", extra: str = "") -> str:
    """Return a progress record; older versions print no gradient norm."""
    norm = f"'grad_norm': {norm}, " if norm else ""
    return f"{{'loss': {loss}, {norm}'learning_rate': {rate}{extra}, 'epoch': 0.5}}\n"


TEXTS = (
    "{'train_runtime': '403', 'train_samples_per_second': '2.196', 'train_steps_per_second': '0.275', "
    "'train_loss': '0.4069', 'epoch': '3'}              \n"
)


def test_trainer_summary_becomes_one_record_with_the_mean_of_all_steps() -> None:
    log = parse(last_bar(1921, 1921) + summary())
    (segment,) = log.segments
    columns = segment.steps
    assert (log.dialect, log.dropped) == ("huggingface", ())
    assert (columns.index.tolist(), columns.mean_of.tolist()) == ([1921], [1921])
    assert columns.seconds.tolist() == [2577.7505 / 1921]
    assert columns.resolution_seconds.tolist() == pytest.approx([0.0001 / 1921])
    assert columns.loss.tolist() == [1.5]
    assert (segment.total_steps, segment.finished, segment.first_step) == (
        1921,
        True,
        1,
    )


def test_number_printed_as_string_has_four_significant_digits() -> None:
    columns = parse(last_bar(111, 111) + TEXTS).segments[0].steps
    assert (
        columns.index.tolist(),
        columns.seconds.tolist(),
        columns.loss.tolist(),
    ) == ([111], [403 / 111], [0.4069])
    assert columns.resolution_seconds.tolist() == pytest.approx([0.1 / 111])
    assert steps(
        parse(TEXTS.replace("403", "2.035e+04").replace("0.275", "0.061"))
    ) == [[1241]]


def test_json_record_equals_printed_record() -> None:
    text = summary().replace("'", '"')
    assert (
        parse(text).segments[0].steps.seconds.tolist()
        == parse(summary()).segments[0].steps.seconds.tolist()
    )
    assert steps(parse(text.replace(", ", ",\n  ").replace("{", "{\n  "))) == [[1920]]


def test_step_count_computed_from_a_rounded_rate_widens_the_resolution() -> None:
    """2577.7505 s x 0.745/s = 1920.4; for 0.7445 to 0.7455 it is 1919 to 1922."""
    columns = parse(summary()).segments[0].steps
    assert columns.index.tolist() == [1920]
    assert columns.resolution_seconds.tolist() == pytest.approx(
        [1.3426 * 0.001 / 0.745], rel=0.001
    )
    exact = parse(summary("98.95", "0.051")).segments[0].steps
    assert exact.index.tolist() == [5]
    assert exact.resolution_seconds.tolist() == pytest.approx([0.0001 / 5])


@pytest.mark.parametrize(
    "other",
    [
        last_bar(5000, 5000),
        last_bar(240, 240),
        "Map: 100%|##| 1930/1930 [00:01<00:00]\n",
        last_bar(0, 0),
    ],
    ids=["longer", "shorter", "data", "empty"],
)
def test_unrelated_progress_bar_is_ignored(other: str) -> None:
    assert steps(parse(other + summary())) == [[1920]]
    assert steps(parse(last_bar(1921, 1921) + other + summary())) == [[1921]]


def test_run_stopped_early_averages_its_completed_steps() -> None:
    """Trainer divides the planned steps by the time of the completed steps."""
    (segment,) = parse(last_bar(1500, 1921) + summary()).segments
    assert (segment.steps.index.tolist(), segment.steps.seconds.tolist()) == (
        [1500],
        [2577.7505 / 1500],
    )
    assert (segment.total_steps, segment.finished) == (1921, False)


def test_progress_bar_that_skips_the_last_steps_counts_as_finished() -> None:
    (segment,) = parse(last_bar(1097, 1100) + summary("10.0", "110.0")).segments
    assert (segment.steps.index.tolist(), segment.finished) == ([1100], True)


def test_resumed_run_averages_its_remaining_steps() -> None:
    """Its rate counts all 1921 steps, but its time covers the last 921."""
    log = parse(
        "INFO:  Continuing training from global step 1000\n"
        + last_bar(1921, 1921)
        + summary()
        + summary("2600.5")
    )
    first, second = log.segments
    assert first.steps.seconds.tolist() == pytest.approx([2577.7505 / 921])
    assert (first.steps.index.tolist(), first.steps.mean_of.tolist()) == ([1921], [921])
    assert second.steps.mean_of.tolist() == [1937]


def progress_lines(losses: list[float], first: float = 0.0) -> str:
    lines = enumerate(losses, 1)
    return "".join(
        f"{{'loss': {loss:.4f}, 'learning_rate': 1e-05, 'epoch': {first + step / 100}}}\n"
        for step, loss in lines
    )


LOSSES = [2 + 8 / (1 + step) for step in range(100)]


@pytest.mark.parametrize("done", [10, 50, 90])
def test_mean_loss_reveals_unreported_resume(
    done: int,
) -> None:
    """Trainer divides the losses of the last steps by all steps.

    A console contains the last losses, a state file all losses.
    """
    mean_loss = f"{sum(LOSSES[done:]) / 100:.4f}"
    for printed in (LOSSES[done:], LOSSES):
        (doubt,) = list_doubts(
            parse(
                progress_lines(printed)
                + last_bar(100, 100, "01:40")
                + summary("100.0", "1.0", mean_loss)
            )
        )
        assert "the run was resumed, so the time covers the last steps only" in doubt


def test_losses_of_earlier_crashed_run_are_ignored() -> None:
    end = last_bar(100, 100, "01:40") + summary(
        "100.0", "1.0", f"{sum(LOSSES) / 100:.4f}"
    )
    assert list_doubts(
        parse(progress_lines(LOSSES[:60]) + progress_lines(LOSSES) + end)
    ) == [""]
    resumed = last_bar(100, 100, "01:40") + summary(
        "100.0", "1.0", f"{sum(LOSSES[50:]) / 100:.4f}"
    )
    assert list_doubts(
        parse(progress_lines(LOSSES[:60]) + progress_lines(LOSSES[50:], 0.5) + resumed)
    ) != [""]


@pytest.mark.parametrize(
    ("every", "scale"), [(1, 1.0), (30, 1.0), (7, 1e-4), (10, -1.0)]
)
def test_averaged_losses_do_not_suggest_resume(every: int, scale: float) -> None:
    losses = [scale * loss for loss in LOSSES]
    printed = [
        sum(losses[first : first + every]) / every
        for first in range(0, 100 - every + 1, every)
    ]
    for first in ([], [losses[0]]):
        end = last_bar(100, 100, "01:40") + summary(
            "100.0", "1.0", f"{sum(losses) / 100}"
        )
        log = parse(progress_lines(first + printed) + end)
        assert (steps(log), list_doubts(log)) == ([[100]], [""])


def test_summary_begins_new_run_unless_repeated() -> None:
    log = parse(
        last_bar(1921, 1921)
        + summary("2577.7505")
        + last_bar(1921, 1921)
        + summary("2578.1")
        + summary("2600.5")
    )
    assert steps(log) == [[1921], [1921], [1937]]
    assert all(segment.finished for segment in log.segments)
    assert log.dropped == ()
    repeated = parse(summary() + summary().replace("'", '"'))
    assert (steps(repeated), dropped(repeated)) == ([[1920]], {"repeated": 1})


@pytest.mark.parametrize(
    "text",
    [
        summary(loss="NaN"),
        summary(loss="inf"),
        record("0.5") + record("0.4", loss="nan") * 2 + summary(),
    ],
    ids=["NaN", "inf", "in the last records"],
)
def test_non_finite_loss_is_kept(text: str) -> None:
    columns = parse(text).segments[0].steps
    assert columns.has_loss.tolist() == [True]
    assert not math.isfinite(columns.loss[0])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("'train_steps_per_second': 0.745, ", ""),
        ("2577.7505", "nan"),
        ("2577.7505", "0.0"),
        ("0.745", "0.0"),
        ("2577.7505", "'3698.8815 seconds (~1h 01m 38s)'"),
        ("0.745", "0.7foreign45"),
        ("1.5", "1.5\nforeign\n"),
        ("}\n", ""),
        ("'train_loss'", "'a\nb': 1, 'train_loss'"),
        ("'train_loss'", "'{x': 1, 'train_loss'"),
        ("'train_loss'", f"'{'x' * 101}': 1, 'train_loss'"),
    ],
)
def test_truncated_or_incomplete_summary_is_dropped(old: str, new: str) -> None:
    log = parse(summary().replace(old, new))
    assert log.segments == ()
    assert dropped(log)["torn"] >= 1


def test_keys_of_trainer_records_may_contain_blanks_and_parentheses() -> None:
    """Axolotl and ms-swift print such keys.

    ms-swift prints the record again in a list of all records.
    """
    more = "'memory/max_active (GiB)': '2.42', 'train_speed(iter/s)': 0.147982, 'global_step/max_steps': '438/438', "
    keys = parse(summary().replace("'train_loss'", f"{more}'train_loss'"))
    assert (steps(keys), dropped(keys)) == ([[1920]], {})
    assert keys.segments[0].steps.loss.tolist() == [1.5]
    swift = summary(loss="0.28420261") + summary(loss="0.28420260807150577").replace(
        "'epoch': 3.0}", "'epoch': 3.0}]}"
    )
    log = parse(swift.replace("'", '"'))
    assert (steps(log), dropped(log)) == ([[1920]], {"repeated": 1})


@pytest.mark.parametrize(
    ("printed", "step", "resolution"),
    [
        ("1921/1921", 1921, 0.0001 / 1921),
        ("1919/1921", 1919, 0.0001 / 1919),
        ("5000/5000", 1920, 1.3426 * 0.001 / 0.745),
    ],
)
def test_summary_step_is_used_if_consistent_with_the_rate(
    printed: str, step: int, resolution: float
) -> None:
    text = summary().replace(
        "'train_loss'", f"'global_step/max_steps': '{printed}', 'train_loss'"
    )
    columns = parse(text).segments[0].steps
    assert columns.index.tolist() == [step]
    assert columns.resolution_seconds.tolist() == pytest.approx([resolution], rel=0.001)


NONE = math.nan


@pytest.mark.parametrize(
    ("records", "norm", "rate"),
    [
        pytest.param(record("0.4") + record("0.3"), 0.4, 1e-5, id="two records"),
        pytest.param(
            record("0.4") + record("nan") + record("inf"),
            NONE,
            1e-5,
            id="diverged at the end",
        ),
        pytest.param(record("0.4") + record("nan"), 0.4, 1e-5, id="one overflow"),
        pytest.param(record("nan"), NONE, 1e-5, id="diverged only"),
        pytest.param(record("0.0") + record("0.0", "0.0"), 0.0, 1e-5, id="no gradient"),
        pytest.param(
            record("'nan'", "'5e-06'", "'0'"), NONE, 5e-6, id="printed as text"
        ),
    ],
)
def test_progress_records_give_gradient_norm_and_learning_rate_of_their_run(
    records: str, norm: float, rate: float
) -> None:
    (segment,) = parse(records + last_bar(1921, 1921) + summary()).segments
    columns = segment.steps
    assert (len(columns), columns.mean_of.tolist()) == (1, [1921])
    assert columns.has_grad_norm.tolist() == [True]
    assert columns.grad_norm.tolist() == pytest.approx([norm], nan_ok=True)
    assert columns.learning_rate.tolist() == [rate]
    assert not segment.rewards


def test_progress_records_may_have_fewer_or_more_fields() -> None:
    """Older versions print no gradient norm; ms-swift prints more values."""
    without = parse(record("") + summary()).segments[0].steps
    assert (without.has_grad_norm.tolist(), without.learning_rate.tolist()) == (
        [False],
        [1e-5],
    )
    line = (
        record("0.25")
        .replace("'grad_norm'", "'token_acc': 0.6, 'grad_norm'")
        .replace("'learn", "'memory(GiB)': 8.5, 'learn")
    )
    more = parse(line + summary()).segments[0].steps
    assert (more.grad_norm.tolist(), more.learning_rate.tolist()) == ([0.25], [1e-5])


def test_progress_records_belong_to_next_summary() -> None:
    first, second = parse(
        record("0.5") * 2 + summary() + record("nan") * 2 + summary("2500.0")
    ).segments
    assert first.steps.grad_norm.tolist() == [0.5]
    assert math.isnan(second.steps.grad_norm[0])


@pytest.mark.parametrize(
    ("field", "rewards"),
    [("'rewards/chosen': 0.1", True), ("'reward': 0.5", True), ("'kl': 0.01", False)],
)
def test_reward_field_in_a_progress_record_marks_the_run_as_reward_training(
    field: str, rewards: bool
) -> None:
    assert (
        parse(record("0.5", extra=f", {field}") + summary()).segments[0].rewards
        is rewards
    )


def test_progress_records_without_summary_are_ignored() -> None:
    assert parse(record("0.5") * 9).segments == ()
    log = parse(record("0.5") + "step 3: {'learning_rate': 3.0}\n" + nemo2_run(0, 9))
    assert (log.dialect, log.dropped) == ("nemo2", ())


def draw_bar(done: list[int], total: int, seconds: float = 30.0, first: int = 0) -> str:
    """Return a bar that starts in this log, drawn at the steps in `done`.

    The process ran the steps after `first`.
    """
    drawings = "".join(
        f"\r 1%|#  | {step}/{total} [{format_clock(seconds * (step - first))}<01:00, 30.0s/it]"
        for step in done
    )
    return f"\r  0%|          | 0/{total} [00:00<?, ?it/s]a warning\n{drawings}\n"


def format_clock(seconds: float) -> str:
    """Return the elapsed time as a bar prints it."""
    hours, remainder = divmod(int(seconds), 3600)
    return f"{f'{hours}:' if hours else ''}{remainder // 60:02d}:{remainder % 60:02d}"


def resume_lines(
    first: int,
    total: str = "100",
    line: str = "Resuming training from checkpoint with epoch 0 and ",
) -> str:
    """Return the lines that Trainer prints when it resumes a checkpoint."""
    return f"[INFO]   Total optimization steps = {total}\n[INFO]   {line}global step {first}\n"


@pytest.mark.parametrize(
    ("before", "rate", "counted"),
    [
        pytest.param(resume_lines(60), "'0.083'", (100, 40), id="rate of all steps"),
        pytest.param(
            resume_lines(60, line="Continuing training from "),
            "'0.083'",
            (100, 40),
            id="4.x",
        ),
        pytest.param(
            resume_lines(1060, "1,100"), "'0.917'", (1100, 40), id="total with a comma"
        ),
        pytest.param(
            resume_lines(60), "'0.033'", (40, 40), id="rate of remaining steps"
        ),
    ],
)
def test_resumed_run_divides_time_by_remaining_steps(
    before: str, rate: str, counted: tuple[int, int]
) -> None:
    (segment,) = parse(before + summary("'1200'", rate)).segments
    assert (segment.steps.index.tolist(), segment.steps.mean_of.tolist()) == (
        [counted[0]],
        [counted[1]],
    )
    assert (segment.steps.seconds.tolist(), segment.doubt) == ([30.0], "")


def test_resumed_run_with_ambiguous_rate_and_no_total_steps_is_doubtful() -> None:
    resuming = resume_lines(15).splitlines(keepends=True)[1]
    assert (
        "rate may count all steps"
        in list_doubts(parse(resuming + summary("'2550'", "'0.0392'")))[0]
    )
    new = parse(
        resume_lines(60).splitlines(keepends=True)[1] + summary("'1200'", "'0.033'")
    )
    assert (steps(new), list_doubts(new)) == ([[40]], [""])
    with_bar = parse(
        resuming + last_bar(100, 100, "42:30") + summary("'2550'", "'0.0392'")
    )
    assert (with_bar.segments[0].steps.mean_of.tolist(), list_doubts(with_bar)) == (
        [85],
        [""],
    )


@pytest.mark.parametrize(
    ("bars", "runtime", "rate", "doubted"),
    [
        pytest.param(
            draw_bar([61, 62, 63], 100, first=60), 1201, 0.083, True, id="resumed at 60"
        ),
        pytest.param(
            draw_bar([16, 17, 18], 100, first=15), 2551, 0.039, True, id="resumed at 15"
        ),
        pytest.param(
            draw_bar([540, 560, 580], 1000, 0.1, first=500),
            50.4,
            19.84,
            True,
            id="resumed, some steps drawn",
        ),
        pytest.param(
            draw_bar([61, 62, 63], 100, first=60),
            1201,
            0.033,
            False,
            id="resumed, rate of remaining steps",
        ),
        pytest.param(
            draw_bar([6, 7, 8], 300, 2.0, first=5),
            590.4,
            0.508,
            True,
            id="resumed within the first steps",
        ),
        pytest.param(
            draw_bar([6, 7, 8], 300, 2.0, first=5),
            590.4,
            0.5,
            False,
            id="resumed early, rate of remaining steps",
        ),
        pytest.param(
            draw_bar([1, 2, 3], 100), 3001, 0.033, False, id="from the beginning"
        ),
        pytest.param(
            draw_bar([20, 40, 60], 1000, 0.1),
            100.4,
            9.96,
            False,
            id="not every step drawn",
        ),
        pytest.param(
            draw_bar([1, 2], 100) + draw_bar([61, 62], 100, first=60),
            1201,
            0.083,
            True,
            id="died, then resumed",
        ),
        pytest.param(
            draw_bar([5, 6, 7], 8) + draw_bar([1, 2], 100),
            3001,
            0.033,
            False,
            id="unrelated bar",
        ),
        pytest.param("", 3001, 0.033, False, id="no bar"),
    ],
)
def test_progress_bar_that_starts_late_makes_a_rate_of_all_steps_doubtful(
    bars: str, runtime: float, rate: float, doubted: bool
) -> None:
    log = parse(bars + "x" * 600 + "\n" + summary(str(runtime), str(rate)))
    assert [bool(doubt) for doubt in list_doubts(log)] == [doubted]


@pytest.mark.parametrize(
    ("last", "doubted"),
    [
        (last_bar(100, 100, "50:01"), False),
        (
            last_bar(100, 100, "20:01"),
            False,
        ),  # the remaining time is the end of the run, such as a last evaluation
        (last_bar(100, 100, "1:30:01"), True),
        (last_bar(50, 50, "50:01"), True),
        (last_bar(50, 50, "00:01"), False),  # an unrelated bar
    ],
)
def test_run_with_a_progress_bar_that_contradicts_runtime_or_steps_is_doubtful(
    last: str, doubted: bool
) -> None:
    assert [
        bool(doubt) for doubt in list_doubts(parse(last + summary("3001.2", "0.033")))
    ] == [doubted]


def with_losses(
    losses: list[tuple[int, float]], mean_loss: float, quote: str = ""
) -> str:
    """Return a run of 100 steps without a bar, with these (step, loss) pairs."""
    lines = "".join(
        f"{{'loss': {loss}, 'learning_rate': 1e-05, 'epoch': {quote}{step / 100:g}{quote}}}\n"
        for step, loss in losses
    )
    return lines + summary("3001.2", "0.0333", str(mean_loss)).replace(
        "'epoch': 3.0", f"'epoch': {quote}1{quote}"
    )


@pytest.mark.parametrize("quote", ["", "'"])
@pytest.mark.parametrize(
    ("losses", "mean_loss", "doubted"),
    [
        ([(100, 6.15)], 6.15, False),
        ([(100, 6.15)], 2.46, True),
        ([(100, 6.15)], 5.22, True),
        ([(50, 8.0)], 6.0, False),
        ([(50, 8.0)], 4.1, False),  # the steps after the last loss may have no loss
        ([(1, 12.0), (50, 8.0), (100, 4.0)], 6.04, False),
        ([(100, 4.0), (100, 4.0)], 4.0, False),
        ([(96, 4.0), (97, 4.0), (98, 4.0), (99, 4.0), (100, 4.0)], 0.2, True),
        (
            [
                (65, 9.0),
                (70, 6.0),
                (75, 5.0),
                (80, 4.0),
                (85, 4.0),
                (90, 4.0),
                (95, 4.0),
                (100, 4.0),
            ],
            5.0,
            False,
        ),
    ],
)
def test_mean_loss_is_compared_with_sparsely_printed_losses_weighted_by_epoch(
    losses: list[tuple[int, float]], mean_loss: float, doubted: bool, quote: str
) -> None:
    assert [
        bool(doubt)
        for doubt in list_doubts(parse(with_losses(losses, mean_loss, quote)))
    ] == [doubted]


def state_file(
    losses: list[tuple[int, float]], mean_loss: float, runtime: float, rate: float
) -> str:
    """Return a trainer_state.json of a run that ended at step 100."""
    records = "".join(
        f'{{"epoch": {step / 1000}, "grad_norm": 1.0, "learning_rate": 1e-05, "loss": {loss}, "step": {step}}},\n'
        for step, loss in losses
    )
    end = f'"train_loss": {mean_loss}, "train_runtime": {runtime}, "train_steps_per_second": {rate}'
    return f'"log_history": [\n{records}{{"epoch": 0.1, "step": 100, {end}}}]\n'


EVERY = [(step, 2 + 400 / (40 + step)) for step in range(5, 101, 5)]
ALL, LAST = sum(loss for _, loss in EVERY) / 20, sum(loss for _, loss in EVERY[12:]) / 8


@pytest.mark.parametrize(
    ("losses", "mean_loss", "runtime", "rate", "doubted"),
    [
        pytest.param(EVERY, ALL, 3000.5, 0.033, False, id="complete"),
        pytest.param(
            EVERY, LAST * 8 / 20, 1200.5, 0.083, True, id="resumed, rate of all steps"
        ),
        pytest.param(
            EVERY, LAST, 1200.5, 0.033, False, id="resumed, rate of remaining steps"
        ),
        pytest.param(
            EVERY[12:],
            LAST,
            1200.5,
            0.033,
            False,
            id="resumed, rate and losses of remaining steps",
        ),
        pytest.param([], 2.46, 1200.5, 0.083, True, id="no losses"),
    ],
)
def test_trainer_state_file_is_doubtful_if_its_rate_counts_steps_before_resume(
    losses: list[tuple[int, float]],
    mean_loss: float,
    runtime: float,
    rate: float,
    doubted: bool,
) -> None:
    assert [
        bool(doubt)
        for doubt in list_doubts(parse(state_file(losses, mean_loss, runtime, rate)))
    ] == [doubted]
