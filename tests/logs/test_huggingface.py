"""Hugging Face Trainer: one record for a whole run."""

from __future__ import annotations

import math

import pytest
from support.written_logs import dropped, nemo2_run, parse, steps

from pytest_llmbench.core.log_records import ParsedLog


def summary(runtime: str = "2577.7505", rate: str = "0.745", loss: str = "1.5") -> str:
    """What Trainer prints when it is done."""
    return (
        f"{{'train_runtime': {runtime}, 'train_samples_per_second': 95.339, 'train_steps_per_second': {rate}, "
        f"'train_loss': {loss}, 'epoch': 3.0}}\n"
    )


def bar(done: int, total: int, elapsed: str = "42:57") -> str:
    """The progress bar of Trainer, as it stands before the summary."""
    return (
        f"\r100%|{'█' * 60}| {done}/{total} [{elapsed}<00:00,  1.34s/it]\n{' ' * 60}\r"
    )


def doubts(log: ParsedLog) -> list[str]:
    """What contradicts the time of each run."""
    return [segment.doubt for segment in log.segments]


def record(norm: str, rate: str = "1e-05", loss: str = "1.5", more: str = "") -> str:
    """What Trainer prints while it trains; older versions print no gradient norm."""
    norm = f"'grad_norm': {norm}, " if norm else ""
    return f"{{'loss': {loss}, {norm}'learning_rate': {rate}{more}, 'epoch': 0.5}}\n"


TEXTS = (
    "{'train_runtime': '403', 'train_samples_per_second': '2.196', 'train_steps_per_second': '0.275', "
    "'train_loss': '0.4069', 'epoch': '3'}              \n"
)


def test_a_run_is_one_record_of_all_its_steps() -> None:
    log = parse(bar(1921, 1921) + summary())
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


def test_numbers_printed_as_text_have_four_digits() -> None:
    columns = parse(bar(111, 111) + TEXTS).segments[0].steps
    assert (
        columns.index.tolist(),
        columns.seconds.tolist(),
        columns.loss.tolist(),
    ) == ([111], [403 / 111], [0.4069])
    assert columns.resolution_seconds.tolist() == pytest.approx([0.1 / 111])
    assert steps(
        parse(TEXTS.replace("403", "2.035e+04").replace("0.275", "0.061"))
    ) == [[1241]]


def test_json_reads_the_same() -> None:
    text = summary().replace("'", '"')
    assert (
        parse(text).segments[0].steps.seconds.tolist()
        == parse(summary()).segments[0].steps.seconds.tolist()
    )
    assert steps(parse(text.replace(", ", ",\n  ").replace("{", "{\n  "))) == [[1920]]


def test_few_digits_of_the_rate_leave_the_time_uncertain_without_a_bar() -> None:
    """2577.7505 s x 0.745/s = 1920.4, with 0.7445 to 0.7455 it is 1919 to 1922."""
    columns = parse(summary()).segments[0].steps
    assert columns.index.tolist() == [1920]
    assert columns.resolution_seconds.tolist() == pytest.approx(
        [1.3426 * 0.001 / 0.745], rel=0.001
    )
    sure = parse(summary("98.95", "0.051")).segments[0].steps
    assert sure.index.tolist() == [5]
    assert sure.resolution_seconds.tolist() == pytest.approx([0.0001 / 5])


@pytest.mark.parametrize(
    "other",
    [
        bar(5000, 5000),
        bar(240, 240),
        "Map: 100%|##| 1930/1930 [00:01<00:00]\n",
        bar(0, 0),
    ],
    ids=["longer", "shorter", "data", "empty"],
)
def test_bar_of_something_else_changes_no_steps(other: str) -> None:
    assert steps(parse(other + summary())) == [[1920]]
    assert steps(parse(bar(1921, 1921) + other + summary())) == [[1921]]


def test_a_run_that_stopped_early_is_not_finished_and_its_mean_is_of_the_steps_it_did() -> (
    None
):
    """Trainer divides the steps that were planned by the time of those that were
    done."""
    (segment,) = parse(bar(1500, 1921) + summary()).segments
    assert (segment.steps.index.tolist(), segment.steps.seconds.tolist()) == (
        [1500],
        [2577.7505 / 1500],
    )
    assert (segment.total_steps, segment.finished) == (1921, False)


def test_a_bar_that_was_not_drawn_for_the_last_step_shows_no_early_end() -> None:
    (segment,) = parse(bar(1097, 1100) + summary("10.0", "110.0")).segments
    assert (segment.steps.index.tolist(), segment.finished) == ([1100], True)


def test_the_mean_of_a_resumed_run_is_of_the_steps_that_were_left() -> None:
    """Its rate is of all 1921 steps, its time is that of the last 921."""
    log = parse(
        "INFO:  Continuing training from global step 1000\n"
        + bar(1921, 1921)
        + summary()
        + summary("2600.5")
    )
    first, second = log.segments
    assert first.steps.seconds.tolist() == pytest.approx([2577.7505 / 921])
    assert (first.steps.index.tolist(), first.steps.mean_of.tolist()) == ([1921], [921])
    assert second.steps.mean_of.tolist() == [1937]


def progress(losses: list[float], first: float = 0.0) -> str:
    lines = enumerate(losses, 1)
    return "".join(
        f"{{'loss': {loss:.4f}, 'learning_rate': 1e-05, 'epoch': {first + at / 100}}}\n"
        for at, loss in lines
    )


LOSSES = [2 + 8 / (1 + step) for step in range(100)]


@pytest.mark.parametrize("done", [10, 50, 90])
def test_a_resumed_run_that_nothing_names_shows_in_the_mean_of_its_losses(
    done: int,
) -> None:
    """Trainer divides the losses of the last steps by all steps; a console holds the
    last ones, a state all of them."""
    whole = f"{sum(LOSSES[done:]) / 100:.4f}"
    for printed in (LOSSES[done:], LOSSES):
        (doubt,) = doubts(
            parse(
                progress(printed)
                + bar(100, 100, "01:40")
                + summary("100.0", "1.0", whole)
            )
        )
        assert "the run was resumed, so its time covers the last steps only" in doubt


def test_losses_of_a_run_that_died_are_not_of_the_one_that_was_started_anew() -> None:
    end = bar(100, 100, "01:40") + summary("100.0", "1.0", f"{sum(LOSSES) / 100:.4f}")
    assert doubts(parse(progress(LOSSES[:60]) + progress(LOSSES) + end)) == [""]
    resumed = bar(100, 100, "01:40") + summary(
        "100.0", "1.0", f"{sum(LOSSES[50:]) / 100:.4f}"
    )
    assert doubts(
        parse(progress(LOSSES[:60]) + progress(LOSSES[50:], 0.5) + resumed)
    ) != [""]


@pytest.mark.parametrize(
    ("every", "scale"), [(1, 1.0), (30, 1.0), (7, 1e-4), (10, -1.0)]
)
def test_losses_of_every_few_steps_resume_no_run(every: int, scale: float) -> None:
    losses = [scale * loss for loss in LOSSES]
    printed = [
        sum(losses[first : first + every]) / every
        for first in range(0, 100 - every + 1, every)
    ]
    for first in ([], [losses[0]]):
        end = bar(100, 100, "01:40") + summary("100.0", "1.0", f"{sum(losses) / 100}")
        log = parse(progress(first + printed) + end)
        assert (steps(log), doubts(log)) == ([[100]], [""])


def test_summary_is_another_run_unless_printed_again() -> None:
    log = parse(
        bar(1921, 1921)
        + summary("2577.7505")
        + bar(1921, 1921)
        + summary("2578.1")
        + summary("2600.5")
    )
    assert steps(log) == [[1921], [1921], [1937]]
    assert all(segment.finished for segment in log.segments)
    assert log.dropped == ()
    again = parse(summary() + summary().replace("'", '"'))
    assert (steps(again), dropped(again)) == ([[1920]], {"repeated": 1})


@pytest.mark.parametrize(
    "text",
    [
        summary(loss="NaN"),
        summary(loss="inf"),
        record("0.5") + record("0.4", loss="nan") * 2 + summary(),
    ],
    ids=["NaN", "inf", "in the last records"],
)
def test_diverged_loss_is_data(text: str) -> None:
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
def test_torn_or_insufficient_summary_is_dropped(old: str, new: str) -> None:
    log = parse(summary().replace(old, new))
    assert log.segments == ()
    assert dropped(log)["torn"] >= 1


def test_keys_with_blanks_and_parentheses() -> None:
    """Axolotl and ms-swift; the latter prints the record again in the list of all."""
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
    ("named", "step", "resolution"),
    [
        ("1921/1921", 1921, 0.0001 / 1921),
        ("1919/1921", 1919, 0.0001 / 1919),
        ("5000/5000", 1920, 1.3426 * 0.001 / 0.745),
    ],
)
def test_summary_step_is_used_if_consistent_with_the_rate(
    named: str, step: int, resolution: float
) -> None:
    text = summary().replace(
        "'train_loss'", f"'global_step/max_steps': '{named}', 'train_loss'"
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
        pytest.param(record("nan"), NONE, 1e-5, id="nothing else"),
        pytest.param(record("0.0") + record("0.0", "0.0"), 0.0, 1e-5, id="no gradient"),
        pytest.param(
            record("'nan'", "'5e-06'", "'0'"), NONE, 5e-6, id="printed as text"
        ),
    ],
)
def test_step_records_are_columns_of_their_run(
    records: str, norm: float, rate: float
) -> None:
    (segment,) = parse(records + bar(1921, 1921) + summary()).segments
    columns = segment.steps
    assert (len(columns), columns.mean_of.tolist()) == (1, [1921])
    assert columns.has_grad_norm.tolist() == [True]
    assert columns.grad_norm.tolist() == pytest.approx([norm], nan_ok=True)
    assert columns.learning_rate.tolist() == [rate]
    assert not segment.rewards


def test_step_records_may_have_fewer_or_more_fields() -> None:
    """Older versions print no gradient norm, ms-swift prints further values."""
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


def test_records_are_of_the_run_that_ends_behind_them() -> None:
    first, second = parse(
        record("0.5") * 2 + summary() + record("nan") * 2 + summary("2500.0")
    ).segments
    assert first.steps.grad_norm.tolist() == [0.5]
    assert math.isnan(second.steps.grad_norm[0])


@pytest.mark.parametrize(
    ("field", "rewards"),
    [("'rewards/chosen': 0.1", True), ("'reward': 0.5", True), ("'kl': 0.01", False)],
)
def test_reward_in_records_marks_the_run(field: str, rewards: bool) -> None:
    assert (
        parse(record("0.5", more=f", {field}") + summary()).segments[0].rewards
        is rewards
    )


def test_records_alone_are_no_run_and_another_dialect_has_nothing_dropped() -> None:
    assert parse(record("0.5") * 9).segments == ()
    log = parse(record("0.5") + "step 3: {'learning_rate': 3.0}\n" + nemo2_run(0, 9))
    assert (log.dialect, log.dropped) == ("nemo2", ())


def drawn(done: list[int], total: int, seconds: float = 30.0, first: int = 0) -> str:
    """A bar that begins in this log, and is drawn at these steps; the process made
    those behind `first`."""
    shown = "".join(
        f"\r 1%|#  | {step}/{total} [{clock(seconds * (step - first))}<01:00, 30.0s/it]"
        for step in done
    )
    return f"\r  0%|          | 0/{total} [00:00<?, ?it/s]a warning\n{shown}\n"


def clock(seconds: float) -> str:
    """The time of a bar."""
    hours, rest = divmod(int(seconds), 3600)
    return f"{f'{hours}:' if hours else ''}{rest // 60:02d}:{rest % 60:02d}"


def start(
    first: int,
    total: str = "100",
    line: str = "Resuming training from checkpoint with epoch 0 and ",
) -> str:
    """What Trainer prints at log level info when it goes on from a checkpoint."""
    return f"[INFO]   Total optimization steps = {total}\n[INFO]   {line}global step {first}\n"


@pytest.mark.parametrize(
    ("before", "rate", "counted"),
    [
        pytest.param(start(60), "'0.083'", (100, 40), id="rate of all steps"),
        pytest.param(
            start(60, line="Continuing training from "), "'0.083'", (100, 40), id="4.x"
        ),
        pytest.param(
            start(1060, "1,100"), "'0.917'", (1100, 40), id="total with a comma"
        ),
        pytest.param(
            start(60), "'0.033'", (40, 40), id="rate of the steps that were left"
        ),
    ],
)
def test_resumed_run_is_timed_by_its_own_steps(
    before: str, rate: str, counted: tuple[int, int]
) -> None:
    (segment,) = parse(before + summary("'1200'", rate)).segments
    assert (segment.steps.index.tolist(), segment.steps.mean_of.tolist()) == (
        [counted[0]],
        [counted[1]],
    )
    assert (segment.steps.seconds.tolist(), segment.doubt) == ([30.0], "")


def test_resumed_run_without_total_is_doubted_if_ambiguous() -> None:
    resuming = start(15).splitlines(keepends=True)[1]
    assert (
        "rate may count all steps"
        in doubts(parse(resuming + summary("'2550'", "'0.0392'")))[0]
    )
    new = parse(start(60).splitlines(keepends=True)[1] + summary("'1200'", "'0.033'"))
    assert (steps(new), doubts(new)) == ([[40]], [""])
    with_bar = parse(resuming + bar(100, 100, "42:30") + summary("'2550'", "'0.0392'"))
    assert (with_bar.segments[0].steps.mean_of.tolist(), doubts(with_bar)) == (
        [85],
        [""],
    )


@pytest.mark.parametrize(
    ("shown", "runtime", "rate", "doubted"),
    [
        pytest.param(
            drawn([61, 62, 63], 100, first=60), 1201, 0.083, True, id="resumed at 60"
        ),
        pytest.param(
            drawn([16, 17, 18], 100, first=15), 2551, 0.039, True, id="resumed at 15"
        ),
        pytest.param(
            drawn([540, 560, 580], 1000, 0.1, first=500),
            50.4,
            19.84,
            True,
            id="resumed, some steps drawn",
        ),
        pytest.param(
            drawn([61, 62, 63], 100, first=60),
            1201,
            0.033,
            False,
            id="resumed, rate of the steps left",
        ),
        pytest.param(
            drawn([6, 7, 8], 300, 2.0, first=5),
            590.4,
            0.508,
            True,
            id="resumed within the first steps",
        ),
        pytest.param(
            drawn([6, 7, 8], 300, 2.0, first=5),
            590.4,
            0.5,
            False,
            id="the same, rate of the steps left",
        ),
        pytest.param(
            drawn([1, 2, 3], 100), 3001, 0.033, False, id="from the beginning"
        ),
        pytest.param(
            drawn([20, 40, 60], 1000, 0.1),
            100.4,
            9.96,
            False,
            id="not every step drawn",
        ),
        pytest.param(
            drawn([1, 2], 100) + drawn([61, 62], 100, first=60),
            1201,
            0.083,
            True,
            id="died, then resumed",
        ),
        pytest.param(
            drawn([5, 6, 7], 8) + drawn([1, 2], 100),
            3001,
            0.033,
            False,
            id="a bar of something else",
        ),
        pytest.param("", 3001, 0.033, False, id="no bar"),
    ],
)
def test_bar_that_begins_late_contradicts_the_rate(
    shown: str, runtime: float, rate: float, doubted: bool
) -> None:
    log = parse(shown + "x" * 600 + "\n" + summary(str(runtime), str(rate)))
    assert [bool(doubt) for doubt in doubts(log)] == [doubted]


@pytest.mark.parametrize(
    ("last", "doubted"),
    [
        (bar(100, 100, "50:01"), False),
        (
            bar(100, 100, "20:01"),
            False,
        ),  # the rest is the end, such as a last evaluation
        (bar(100, 100, "1:30:01"), True),
        (bar(50, 50, "50:01"), True),
        (bar(50, 50, "00:01"), False),  # of something else
    ],
)
def test_bar_contradicts_runtime_or_steps(last: str, doubted: bool) -> None:
    assert [
        bool(doubt) for doubt in doubts(parse(last + summary("3001.2", "0.033")))
    ] == [doubted]


def with_losses(losses: list[tuple[int, float]], whole: float, quote: str = "") -> str:
    """A run of 100 steps without a bar, its losses by the step that they are printed
    at."""
    lines = "".join(
        f"{{'loss': {loss}, 'learning_rate': 1e-05, 'epoch': {quote}{step / 100:g}{quote}}}\n"
        for step, loss in losses
    )
    return lines + summary("3001.2", "0.0333", str(whole)).replace(
        "'epoch': 3.0", f"'epoch': {quote}1{quote}"
    )


@pytest.mark.parametrize("quote", ["", "'"])
@pytest.mark.parametrize(
    ("losses", "whole", "doubted"),
    [
        ([(100, 6.15)], 6.15, False),
        ([(100, 6.15)], 2.46, True),
        ([(100, 6.15)], 5.22, True),
        ([(50, 8.0)], 6.0, False),
        ([(50, 8.0)], 4.1, False),  # the steps behind the last loss may have none
        ([(1, 12.0), (50, 8.0), (100, 4.0)], 6.04, False),
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
def test_few_losses_are_weighed_by_their_epochs(
    losses: list[tuple[int, float]], whole: float, doubted: bool, quote: str
) -> None:
    assert [
        bool(doubt) for doubt in doubts(parse(with_losses(losses, whole, quote)))
    ] == [doubted]


def state(
    losses: list[tuple[int, float]], whole: float, runtime: float, rate: float
) -> str:
    """A trainer_state.json of a run that ended at step 100."""
    records = "".join(
        f'{{"epoch": {step / 1000}, "grad_norm": 1.0, "learning_rate": 1e-05, "loss": {loss}, "step": {step}}},\n'
        for step, loss in losses
    )
    end = f'"train_loss": {whole}, "train_runtime": {runtime}, "train_steps_per_second": {rate}'
    return f'"log_history": [\n{records}{{"epoch": 0.1, "step": 100, {end}}}]\n'


EVERY = [(step, 2 + 400 / (40 + step)) for step in range(5, 101, 5)]
ALL, LAST = sum(loss for _, loss in EVERY) / 20, sum(loss for _, loss in EVERY[12:]) / 8


@pytest.mark.parametrize(
    ("losses", "whole", "runtime", "rate", "doubted"),
    [
        pytest.param(EVERY, ALL, 3000.5, 0.033, False, id="whole"),
        pytest.param(
            EVERY, LAST * 8 / 20, 1200.5, 0.083, True, id="resumed, of all steps"
        ),
        pytest.param(
            EVERY, LAST, 1200.5, 0.033, False, id="resumed, of the steps left"
        ),
        pytest.param(
            EVERY[12:],
            LAST,
            1200.5,
            0.033,
            False,
            id="resumed, of the steps left, their losses alone",
        ),
        pytest.param([], 2.46, 1200.5, 0.083, True, id="nothing shows it"),
    ],
)
def test_state_of_a_resumed_run_is_doubted(
    losses: list[tuple[int, float]],
    whole: float,
    runtime: float,
    rate: float,
    doubted: bool,
) -> None:
    assert [
        bool(doubt) for doubt in doubts(parse(state(losses, whole, runtime, rate)))
    ] == [doubted]
