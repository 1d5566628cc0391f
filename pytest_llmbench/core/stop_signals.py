"""The signals with which somebody stops what runs: Ctrl-C, SIGTERM of a CI or of Slurm,
SIGHUP of a closed terminal.

The first one raises KeyboardInterrupt wherever the program is. While reports are
written a signal is only noted: a half report is never left, and what is noted is in the
reports.
"""

from __future__ import annotations

import atexit
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

AT_ONCE_SECONDS = 1.0  # signals that come so soon after one another are one

ENDING_SECONDS = 5.0
"""A program that has done its work ends within this: a signal comes too late to
interrupt anything."""


class StopSignals:
    """What becomes of these signals between `install` and `restore`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Take a clock in seconds."""
        self.number = 0
        """The first signal that came, also while they were held back; 0 for none."""
        self._clock = clock
        self._held = False
        self._passed_over_until = float("-inf")
        self._before: dict[int, object] = {}

    @property
    def name(self) -> str:
        """The name of the signal that came, such as SIGTERM; empty for none."""
        return signal.Signals(self.number).name if self.number else ""

    def install(self) -> None:
        """Take the signals over where nobody else did: nohup ignores SIGHUP, a shell
        SIGINT in the background."""
        usual = {
            signal.SIGINT: signal.default_int_handler,
            signal.SIGTERM: signal.SIG_DFL,
            signal.SIGHUP: signal.SIG_DFL,
        }
        if (
            threading.current_thread() is not threading.main_thread()
        ):  # no other thread may say what a signal does
            return
        for number, handler in usual.items():
            if signal.getsignal(number) is handler:
                self._before[number] = handler
                signal.signal(number, self._take)
        atexit.register(self._ignore)

    def restore(self) -> None:
        """Let signals do again what they did before."""
        atexit.unregister(self._ignore)
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)  # type: ignore[arg-type]

    def hold(self) -> None:
        """Only note signals from now on."""
        self._held = True

    def let_go(self) -> None:
        """Let signals raise again; one that was noted meanwhile does now."""
        self._held = False
        if self.number:
            raise KeyboardInterrupt

    def end(self) -> None:
        """Pass over what comes while the program ends; whoever stops one that does not
        end is heard."""
        self._passed_over_until = self._clock() + ENDING_SECONDS
        self._held = False

    @contextmanager
    def let_through(self) -> Iterator[None]:
        """Let signals raise KeyboardInterrupt within a part of what holds them back;
        one that is noted does at once."""
        try:
            self.let_go()
            yield
        finally:
            self._held = True

    @contextmanager
    def keep_raised(self) -> Iterator[None]:
        """Raise KeyboardInterrupt where an interrupt arrives as RuntimeError: in Python
        3.11 while a class is created, so during any import, and just before a thread
        waits for another."""
        before = self.number
        try:
            yield
        except RuntimeError:
            if self.number and not before:
                raise KeyboardInterrupt from None
            raise

    def _ignore(self) -> None:
        # Python goes back to what the system does, which ends the process, while it
        # takes itself apart: with large modules that is a third of a second in which
        # the exit code would be lost.
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        self.number = self.number or number
        # timeout(1) sends SIGTERM to the process and then to its group: the second must
        # not stop what the first began.
        now = self._clock()
        if not self._held and now >= self._passed_over_until:
            self._passed_over_until = now + AT_ONCE_SECONDS
            raise KeyboardInterrupt
