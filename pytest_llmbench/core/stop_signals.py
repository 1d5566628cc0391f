"""Handling of stop signals: Ctrl-C, SIGTERM from a CI or Slurm, SIGHUP of a terminal.

The first signal raises KeyboardInterrupt. While reports are written, signals are only
recorded, so that every report is complete and mentions them.
"""

from __future__ import annotations

import atexit
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

AT_ONCE_SECONDS = 1.0  # signals within this time count as one

ENDING_SECONDS = 5.0
"""A program that has finished its work exits within this time.

A signal in this time comes too late to interrupt anything.
"""


class StopSignals:
    """Handles stop signals between `install` and `restore`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds."""
        self.number = 0
        """The first signal received, even while signals were held back; 0 for none."""
        self._clock = clock
        self._held = False
        self._ignored_until = float("-inf")
        self._previous_handlers: dict[int, object] = {}

    @property
    def name(self) -> str:
        """The name of the received signal, such as SIGTERM; "" for none."""
        return signal.Signals(self.number).name if self.number else ""

    def install(self) -> None:
        """Install the handlers, unless a signal has another handler already.

        For example, nohup ignores SIGHUP, and a shell ignores SIGINT in the background.
        """
        # Only the main thread may set signal handlers.
        if threading.current_thread() is not threading.main_thread():
            return
        default_handlers = {
            signal.SIGINT: signal.default_int_handler,
            signal.SIGTERM: signal.SIG_DFL,
            signal.SIGHUP: signal.SIG_DFL,
        }
        for number, default_handler in default_handlers.items():
            if signal.getsignal(number) is default_handler:
                self._previous_handlers[number] = default_handler
                signal.signal(number, self._handle)
        atexit.register(self._ignore)

    def restore(self) -> None:
        """Restore the previous handlers."""
        atexit.unregister(self._ignore)
        while self._previous_handlers:
            number, handler = self._previous_handlers.popitem()
            signal.signal(number, handler)  # type: ignore[arg-type]

    def hold(self) -> None:
        """Only record signals from now on."""
        self._held = True

    def release(self) -> None:
        """Let signals raise again. Raises KeyboardInterrupt if one was recorded."""
        self._held = False
        if self.number:
            raise KeyboardInterrupt

    def end(self) -> None:
        """Ignore signals while the program exits; after ENDING_SECONDS they raise
        again."""
        self._ignored_until = self._clock() + ENDING_SECONDS
        self._held = False

    @contextmanager
    def allow(self) -> Iterator[None]:
        """Let signals raise KeyboardInterrupt in the context, despite `hold`.

        A recorded signal raises at once.
        """
        try:
            self.release()
            yield
        finally:
            self._held = True

    @contextmanager
    def keep_raised(self) -> Iterator[None]:
        """Convert a RuntimeError caused by a signal back to KeyboardInterrupt.

        In Python 3.11 an interrupt becomes a RuntimeError while a class is created,
        hence during any import, and just before a thread waits for another.
        """
        earlier_signal = self.number
        try:
            yield
        except RuntimeError:
            if self.number and not earlier_signal:
                raise KeyboardInterrupt from None
            raise

    def _ignore(self) -> None:
        """Ignore the handled signals while Python shuts down."""
        # While Python shuts down it restores the system's default, which kills the
        # process. With large modules this takes a third of a second, in which a signal
        # would change the exit code.
        for number in self._previous_handlers:
            signal.signal(number, signal.SIG_IGN)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        """Record the first signal, and raise KeyboardInterrupt unless held back."""
        self.number = self.number or number
        # timeout(1) sends SIGTERM to the process and then to its group. The second
        # signal must not interrupt the handling of the first.
        now = self._clock()
        if not self._held and now >= self._ignored_until:
            self._ignored_until = now + AT_ONCE_SECONDS
            raise KeyboardInterrupt
