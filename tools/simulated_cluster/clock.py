"""A clock that jumps from one event to the next. It takes the place of the module `time`."""

import heapq
import itertools
import math
from collections.abc import Callable
from typing import Final

BEGIN: Final = 1.8e9  # Unix seconds


class Clock:
    """Simulated time, in Unix seconds, and what will happen at which time."""

    def __init__(self) -> None:
        self.now = BEGIN
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()  # events at the same time happen in the order in which they were planned

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
        while not until():
            if not self._events or self._events[0][0] > end:
                assert end < math.inf, "nothing will ever happen any more"
                self.now = max(self.now, end)
                return
            self.now, _, action = heapq.heappop(self._events)
            action()
