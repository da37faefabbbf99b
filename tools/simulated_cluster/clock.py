"""A clock that jumps from one event to the next. It takes the place of the module `time`."""

import heapq
import itertools
import math
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

BEGIN: Final = 1.8e9  # Unix seconds


class Clock:
    """Simulated time, in Unix seconds, and what will happen at which time."""

    def __init__(self) -> None:
        self.now = BEGIN
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()  # events at the same time happen in the order in which they were planned
        self._turns = list[_Turn]()

    def time(self) -> float:
        """The time now."""
        return self.now

    monotonic = time

    def sleep(self, seconds: float) -> None:
        """Let everything happen that will happen within some seconds."""
        self.run_until(self.now + seconds)

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Plan an event."""
        if when < math.inf:
            heapq.heappush(self._events, (max(when, self.now), next(self._numbers), action))

    def run_until(self, end: float, until: Callable[[], bool] = lambda: False) -> None:
        """Let everything happen up to a time, or up to the event after which a condition holds."""
        if turn := _TURN.get():
            self.at(end, lambda: None)
            while not until() and self.now < end:
                turn.wait(lambda: until() or self.now >= end)
            return
        while not until():
            if not self._events or self._events[0][0] > end:
                assert end < math.inf, "nothing will ever happen any more"
                self.now = max(self.now, end)
                return
            self.now, _, action = heapq.heappop(self._events)
            action()
            for turn in list(self._turns):
                if turn.is_ready():
                    self._give(turn)

    def begin(self, run: Callable[[], None]) -> None:
        """Run a function beside the others, in a thread of its own; only one runs at a time, until it waits."""
        turn = _Turn(run)
        self._turns.append(turn)
        self._give(turn)

    def _give(self, turn: "_Turn") -> None:
        turn.take()
        if turn.has_ended:
            self._turns.remove(turn)


class _Turn:
    """The turn of a function that runs in a thread."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run, self._error = run, list[BaseException]()
        self._mine, self._others = threading.Semaphore(0), threading.Semaphore(0)
        self.has_ended = False
        self.is_ready: Callable[[], bool] = lambda: True
        threading.Thread(target=self._run_here, daemon=True).start()

    def _run_here(self) -> None:
        self._mine.acquire()
        _TURN.set(self)
        try:
            self._run()
        except BaseException as error:  # raised where it was given the turn
            self._error.append(error)
        self.has_ended = True
        self._others.release()

    def take(self) -> None:
        """Let the function run until it waits or ends; raises what it raises."""
        self._mine.release()
        self._others.acquire()
        if self._error:
            raise self._error[0]

    def wait(self, is_ready: Callable[[], bool]) -> None:
        """Called by the function: wait until a condition holds."""
        self.is_ready = is_ready
        self._others.release()
        self._mine.acquire()


_TURN: Final = ContextVar[_Turn | None]("turn of this thread", default=None)
