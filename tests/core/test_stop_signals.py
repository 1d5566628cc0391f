"""A signal stops what runs once, is only noted while reports are written, and belongs
to whoever took it before us."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pytest_llmbench.core.stop_signals import (
    AT_ONCE_SECONDS,
    ENDING_SECONDS,
    StopSignals,
)

ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Clock:
    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stop(clock: Clock) -> Iterator[StopSignals]:
    before = {number: signal.getsignal(number) for number in ALL}
    made = StopSignals(clock)
    made.install()
    yield made
    made.restore()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", ALL)
def test_a_signal_raises_as_ctrl_c_does_and_its_name_is_known(
    stop: StopSignals, number: signal.Signals
) -> None:
    assert (stop.number, stop.name) == (0, "")
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)
    assert stop.name == number.name


def test_what_follows_at_once_is_the_same_and_what_comes_later_raises_again(
    stop: StopSignals, clock: Clock
) -> None:
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)
    clock.seconds += AT_ONCE_SECONDS
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert stop.name == "SIGTERM"


def test_what_python_makes_of_it_in_an_import_is_an_interruption(
    stop: StopSignals,
) -> None:
    class Part:
        def __set_name__(self, _owner: type, _name: str) -> None:
            signal.raise_signal(signal.SIGTERM)

    def make_class() -> type:
        class Made:
            part = Part()

        return Made

    with pytest.raises(KeyboardInterrupt), stop.keep_raised():
        make_class()


def test_an_error_without_a_signal_is_one(stop: StopSignals) -> None:
    with pytest.raises(RuntimeError), stop.keep_raised():
        raise RuntimeError("of our own")


def test_what_is_held_back_is_noted_and_raises_when_it_is_let_go(
    stop: StopSignals, clock: Clock
) -> None:
    stop.hold()
    for _ in range(3):
        clock.seconds += 10
        signal.raise_signal(signal.SIGINT)
    assert stop.name == "SIGINT"
    with pytest.raises(KeyboardInterrupt):
        stop.release()
    with pytest.raises(KeyboardInterrupt), stop.allow():
        pytest.fail("what was noted before raises before anything long begins")


def test_a_part_may_be_interrupted_and_the_rest_is_held_again(
    stop: StopSignals, clock: Clock
) -> None:
    stop.hold()
    with pytest.raises(KeyboardInterrupt), stop.allow():
        signal.raise_signal(signal.SIGTERM)
    clock.seconds += 10
    signal.raise_signal(signal.SIGTERM)


def test_at_the_end_a_signal_is_too_late_and_one_to_a_program_that_hangs_is_heard(
    stop: StopSignals, clock: Clock
) -> None:
    stop.hold()
    stop.end()
    signal.raise_signal(signal.SIGTERM)
    clock.seconds += ENDING_SECONDS
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("number", ALL)
def test_what_is_ignored_stays_so_as_under_nohup(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    stop = StopSignals()
    try:
        stop.install()
        assert signal.getsignal(number) is signal.SIG_IGN
        stop.restore()
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        stop.restore()
        signal.signal(number, before)


AT_THE_VERY_END = """
import os, signal, sys
from pytest_llmbench.core.stop_signals import StopSignals

class Late:
    def __del__(self, kill=os.kill, process=os.getpid(), number=signal.SIGTERM):
        kill(process, number)

sys.late = Late()
stop = StopSignals()
stop.install()
stop.end()
sys.exit(3)
"""


def test_while_python_takes_itself_apart_a_signal_changes_no_exit_code() -> None:
    assert (
        subprocess.run([sys.executable, "-c", AT_THE_VERY_END], check=False).returncode
        == 3
    )
