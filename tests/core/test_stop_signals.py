"""Stop signals: one interrupts, held ones are recorded, and other handlers are kept."""

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
def test_name_of_the_signal_is_stored_when_keyboard_interrupt_is_raised(
    stop: StopSignals, number: signal.Signals
) -> None:
    assert (stop.number, stop.name) == (0, "")
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)
    assert stop.name == number.name


def test_immediate_second_signal_is_ignored_but_later_one_raises(
    stop: StopSignals, clock: Clock
) -> None:
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)
    clock.seconds += AT_ONCE_SECONDS
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert stop.name == "SIGTERM"


def test_signal_during_class_creation_raises_keyboard_interrupt(
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


def test_runtime_error_is_raised_unless_a_signal_caused_it(stop: StopSignals) -> None:
    with pytest.raises(RuntimeError), stop.keep_raised():
        raise RuntimeError("an ordinary error")


def test_signal_while_interrupts_are_held_raises_keyboard_interrupt_on_release(
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
        pytest.fail("the recorded signal must raise at once")


def test_held_signals_interrupt_only_inside_the_allow_context(
    stop: StopSignals, clock: Clock
) -> None:
    stop.hold()
    with pytest.raises(KeyboardInterrupt), stop.allow():
        signal.raise_signal(signal.SIGTERM)
    clock.seconds += 10
    signal.raise_signal(signal.SIGTERM)


def test_signal_is_ignored_at_exit_unless_exit_hangs(
    stop: StopSignals, clock: Clock
) -> None:
    stop.hold()
    stop.end()
    signal.raise_signal(signal.SIGTERM)
    clock.seconds += ENDING_SECONDS
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("number", ALL)
def test_ignored_signal_stays_ignored(number: signal.Signals) -> None:
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


SIGNAL_AT_SHUTDOWN = """
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


def test_signal_during_shutdown_keeps_the_exit_code() -> None:
    assert (
        subprocess.run(
            [sys.executable, "-c", SIGNAL_AT_SHUTDOWN], check=False
        ).returncode
        == 3
    )
