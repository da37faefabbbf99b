"""The queue of waiting trials, which selects the next trial for a slot, and the times by which trials must end."""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Final

import numpy as np

from trainyard.cluster import slurm_allocation
from trainyard.cluster.slurm_allocation import Allocation
from trainyard.packing.failure_policy import FailurePolicy, SlotLocation
from trainyard.packing.further_seeds import FurtherSeeds
from trainyard.packing.gpu_fraction import MeasuredTasks
from trainyard.packing.shared_order import POLL_SECONDS, SharedOrder
from trainyard.planning.duration_model import Prediction
from trainyard.planning.order import remaining_seconds, start_order
from trainyard.planning.sweep_state import Task, TaskSource

STOP_SECONDS: Final = 5.0  # for a trial to stop at its next step and to write a checkpoint
WORTHWHILE_SECONDS: Final = 120.0  # a trial that can resume starts if it can run for at least this time
OVERDUE_SECONDS: Final = 15.0  # for a worker to end a command at its timeout, before the worker is killed
# Predicts the durations of trials from the seconds of finished ones; None if they are no evidence.
Predict = Callable[[list[str], dict[str, float]], Prediction | None]
PREDICT_FRACTION: Final = 0.02  # of the time, at most: the slots of short trials would wait for predictions


@dataclass
class TimeLimits:
    """When trials must end, and which still have time to run."""

    allocation: Allocation | None
    can_resume: bool
    grace_seconds: float = 0.0
    timeout_seconds: float | None = None

    def refresh(self) -> None:
        """Use the deadline that Slurm has set by now."""
        self.allocation = slurm_allocation.refresh_allocation()

    @property
    def deadline(self) -> float:
        """The deadline of the allocation, in Unix seconds; infinite without an allocation."""
        return self.allocation.deadline if self.allocation else math.inf

    @property
    def stop_seconds(self) -> float:
        """Seconds before the deadline at which trials must stop."""
        return STOP_SECONDS + self.grace_seconds

    def seconds_left(self) -> float | None:
        """Seconds until the deadline, at least 0; None without one."""
        return None if math.isinf(self.deadline) else max(0.0, self.deadline - time.time())

    def seconds_to_run(self) -> float:
        """Seconds until running trials must stop; infinite without a deadline."""
        return self.deadline - self.stop_seconds - time.time()

    def is_worthwhile(self, needed_seconds: float) -> bool:
        """Whether there is time to start a trial: to finish it or, if it can resume, to run it for a while."""
        left = self.seconds_left()
        if left is None or needed_seconds <= left - self.stop_seconds:
            return True
        return self.can_resume and left - self.grace_seconds >= WORTHWHILE_SECONDS

    def kill_seconds(self, task: Task) -> float:
        """Seconds after its start at which a trial's worker is killed; infinite without a timeout."""
        if self.timeout_seconds is None:
            return math.inf
        return self.timeout_seconds + (OVERDUE_SECONDS + self.grace_seconds if task.is_command else 0.0)


class TrialQueue:
    """The trials that wait, in their order, and then the trials that a search suggests."""

    def __init__(
        self,
        *,
        limits: TimeLimits,
        failures: FailurePolicy,
        order: SharedOrder,
        source: TaskSource | None,
        predict: Predict | None,
        may_end_early: bool = False,
    ) -> None:
        self._limits, self._failures, self._source, self._predict = limits, failures, source, predict
        self._order, self._seeds = order, FurtherSeeds(order)
        self._may_end_early = may_end_early
        self._tasks: deque[Task] = deque()
        self._attempts: Counter[str] = Counter()  # of this run, by trial
        self._probes = set[str]()  # trials that start before others, see `awaits_probe`
        self._finished: dict[str, float] = {}  # seconds, by trial
        self._predict_after = 0.0  # when the order may be updated next, on the monotonic clock
        self.longest_seconds = 0.0  # of all finished trials
        self.is_closed = False  # whether no trial starts any more

    def add(self, tasks: Iterable[Task]) -> None:
        """Add tasks at the end."""
        self._tasks.extend(tasks)

    @property
    def waiting(self) -> int:
        """How many trials have not started."""
        if self.is_closed:
            return 0
        # Trials that measure how many share a GPU are the first of all: further seeds are drawn after the last.
        unchosen = 0 if isinstance(self._source, MeasuredTasks) else self._order.space.unchosen
        return len(self._tasks) + self._remaining + unchosen

    def start_attempt(self, task: Task) -> int:
        """The number of an attempt that starts now."""
        self._attempts[task.trial] += 1
        return task.earlier[-1].number + 1 if task.earlier else 1

    def take(
        self, place: SlotLocation, places: Sequence[SlotLocation], elsewhere: Sequence[SlotLocation] = ()
    ) -> Task | None:
        """The next task for a slot, if there is one for it; `places` are those of all slots here."""
        others = [*places, *elsewhere]
        is_shared_search = self._source is not None and self._order.is_shared
        if self._order.space.sweep.budget or is_shared_search:
            self._order.refresh()  # what has ended reserves nothing, and another job may have drawn ahead
            self._take_changes()
        if self._failures.avoids(place, others):
            return None
        while task := self._find(place, others):
            if self._claim(task, places, others):
                self._tasks.remove(task)
                return self._order.claimed(task)
        while self._source and self._may_suggest() and (task := self._source.next_task(self._most_seconds())):
            if self._order.is_mine(task.trial) or self._order.claim([task.trial]):
                return self._order.claimed(task)
        return None

    def lacks_draw(self, busy: int) -> bool:
        """Whether the search should draw ahead, beside as many busy slots. With one slot, it awaits each result."""
        is_alone = busy < 2 and not self._order.is_shared
        can_draw = self._source is not None and self._order.space.undrawn_count > 0
        return not self._tasks and can_draw and not is_alone and self._may_suggest()

    def draw_ahead(self) -> None:
        """Have the search draw a configuration before a slot is free."""
        assert self._source is not None
        self._source.draw_ahead(self._most_seconds())
        self._take_changes()

    def fill(self, running: Mapping[str, float]) -> Task | None:
        """A trial for a slot without one that ends before one of those that are `running`, for so many seconds."""
        if not self._order.space.sweep.fill or self.is_closed or self.waiting:
            return None
        needed = {trial: seconds for trial, seconds in running.items() if trial not in self._order.space.optional}
        predicted = self._predict(list(needed), self._finished) if self._predict else None
        if predicted is None:
            return None
        return self._seeds.fill(float((predicted.seconds - np.array(list(needed.values()))).max()))

    def _claim(self, task: Task, places: Sequence[SlotLocation], all_places: Sequence[SlotLocation]) -> bool:
        """Claim a task, and some of those that follow it and may run here; False if another job has it."""
        if self._order.is_mine(task.trial):
            return True
        others = [each.trial for each in self._tasks if each is not task and not self._order.is_mine(each.trial)]
        mean = sum(self._finished.values()) / len(self._finished) if self._finished else task.expected_seconds
        size = self._order.batch(1 + len(others), len(places), mean)
        allowed = (each for each in others if any(self._failures.allows(each, place, all_places) for place in places))
        names = [task.trial, *islice(allowed, size - 1)]
        is_claimed = self._order.claim(names, seconds=self._most_seconds(task))
        self._take_changes()
        return is_claimed

    def _take_changes(self) -> None:
        """Remove the tasks that other jobs have claimed or users have cancelled, and add those that may run again."""
        taken, opened = self._order.take_changes()
        if taken:
            self._give_back(task.trial for task in self._tasks if task.trial in taken)
            self._tasks = deque(task for task in self._tasks if task.trial not in taken)
        if opened:
            known = {task.trial for task in self._tasks}
            self._tasks.extend(task for task in opened if task.trial not in known)

    def poll(self) -> bool:
        """Look at what other jobs do and users request, every few seconds; returns whether there may be news.

        If all other trials have ended, further seeds of the best are drawn.
        """
        has_looked, has_drawn = self._order.poll(), self._draw_seeds()
        self._take_changes()
        if has_looked and self._order.is_held:
            self._give_back(task.trial for task in self._tasks)
        return has_looked or has_drawn

    def _draw_seeds(self) -> bool:
        can_draw = not self._tasks and not self._remaining and self._may_suggest()
        return can_draw and self._order.space.unchosen > 0 and self._seeds.draw()

    def _give_back(self, trials: Iterable[str]) -> None:
        """Give back those of these trials that this job has claimed, and will not start now."""
        for trial in filter(self._order.is_mine, trials):
            self._order.release(trial)

    def await_others(self) -> bool:
        """Wait until it is known that other jobs run the trials that are left; returns whether tasks wait.

        For further seeds of the best, wait until those trials have ended.
        """
        while not self.is_closed:
            self._order.await_others()
            has_drawn = self._draw_seeds()
            self._take_changes()
            if has_drawn or self._tasks or not self._order.space.unchosen or not self._order.describe_others():
                break
            if self._order.is_held or not self._may_suggest():
                break
            time.sleep(POLL_SECONDS)
        return self.waiting > 0

    def is_left_to_others(self, places: Sequence[SlotLocation], others: Sequence[SlotLocation]) -> bool:
        """Whether all waiting tasks have time to run, but other jobs have better places for them."""
        if self.is_closed or self._remaining or not others:
            return False
        all_places = [*places, *others]
        is_left = all(
            self._is_worthwhile(task) and all(self._is_kept_back(task, place, all_places) for place in places)
            for task in self._tasks
        )
        if is_left:
            self._order.leave_to_others(task.trial for task in self._tasks)
        return is_left

    def _is_kept_back(self, task: Task, place: SlotLocation, others: Sequence[SlotLocation]) -> bool:
        return self._failures.avoids(place, others) or not self._failures.allows(task.trial, place, others)

    def retry(self, task: Task, places: Sequence[SlotLocation], others: Sequence[SlotLocation]) -> None:
        """Add a failed task at the end, or give it back if only other jobs have a better place for it."""
        if others and not any(self._failures.allows(task.trial, place, [*places, *others]) for place in places):
            self._order.release(task.trial)
        else:
            self.add([task])

    def has_task(self, place: SlotLocation, others: Sequence[SlotLocation]) -> bool:
        """Whether `take` has a task for a slot."""
        is_left = self._find(place, others) is not None or (self._remaining > 0 and self._may_suggest())
        return is_left and not self._failures.avoids(place, others)

    @property
    def _remaining(self) -> int:
        """How many tasks the source can still return."""
        return self._source.remaining if self._source else 0

    def _find(self, place: SlotLocation, others: Sequence[SlotLocation]) -> Task | None:
        if self.is_closed or self._order.is_held:
            return None
        # Suspects start first, so that a broken GPU is found after few trials.
        urgent = self._failures.suspect_trials | self._probes | self._order.first
        first = (task for task in self._tasks if task.trial in urgent) if urgent else ()
        later = (task for task in self._tasks if task.trial not in urgent)
        in_budget = self._order.seconds_in_budget()
        for task in chain(first, later):
            if self._most_seconds(task) > in_budget:
                continue
            if self._is_worthwhile(task) and self._failures.allows(task.trial, place, others):
                return task
        return None

    def _most_seconds(self, task: Task | None = None) -> float:
        """The seconds until a trial that starts now has ended, at most: as predicted, or as the longest so far.

        0 if nothing is known, or without a budget, which alone limits them.
        """
        if not self._order.space.sweep.budget:
            return 0.0
        predicted = task and (task.max_seconds or task.expected_seconds)
        known = predicted or max(self.longest_seconds, self._order.state.longest_measured)
        return known + self._limits.stop_seconds if known else 0.0

    def is_over_budget(self) -> bool:
        """Whether the budget allows another job none of the trials that are left: it has to start, and to run one."""
        left = [self._most_seconds(task) for task in self._tasks] or [self._most_seconds()]
        return self._order.state.startup_seconds + min(left) > self._order.seconds_in_budget()

    def _is_worthwhile(self, task: Task) -> bool:
        needed = task.expected_seconds if self._limits.can_resume else task.min_seconds
        return self._limits.is_worthwhile(self.longest_seconds if needed is None else needed)

    def _may_suggest(self) -> bool:
        is_closed = self.is_closed or self._order.is_held
        fits = self._most_seconds() <= self._order.seconds_in_budget()
        return not is_closed and fits and self._limits.is_worthwhile(self.longest_seconds)

    def awaits_probe(self, failed: str) -> bool:
        """Whether a trial from the end of the order must still run; `failed` is the last of the trials that failed.

        The trials at the end differ most from those that have run: the first may all have too large a learning rate.
        Until one has failed, each call lets another one start next.
        """
        if failed in self._probes:
            return False
        if last := next((task for task in reversed(self._tasks) if not self._attempts[task.trial]), None):
            self._tasks.remove(last)
            self._tasks.appendleft(last)
            self._probes.add(last.trial)
        return bool(self._probes)

    def note_finished(self, trial: str, seconds: float) -> None:
        """Record the duration of a finished trial, which predictions of others use."""
        self.longest_seconds = max(self.longest_seconds, seconds)
        self._finished[trial] = seconds

    def update_order(self, running: Mapping[str, float], slots: int) -> None:
        """Predict and sort the waiting trials after one has ended, unless that takes too large a part of the time.

        The order is the best that was found on a number of slots, on some of which trials have been `running` for so
        many seconds, and on those on which other jobs run trials. Retries stay last, also of trials that failed in an
        earlier run. The order is longest first if trials may end early, if a search has yet to suggest some, and if not
        all are expected to end by the deadline.
        """
        began = time.monotonic()
        if self._predict is None or not self._tasks or began < self._predict_after:
            return
        elsewhere = self._order.running_seconds
        self._sort({**elsewhere, **running}, slots + len(elsewhere))
        self._predict_after = began + (time.monotonic() - began) / PREDICT_FRACTION

    def _sort(self, running: Mapping[str, float], slots: int) -> None:
        """Predict and sort the waiting trials."""
        assert self._predict is not None
        waiting = list(self._tasks)
        predicted = self._predict([*(task.trial for task in waiting), *running], self._finished)
        if predicted is None:
            return
        of_waiting, of_running = np.split(predicted.draws, [len(waiting)], axis=1)
        order = start_order(
            Prediction(predicted.seconds[: len(waiting)], of_waiting),
            [self._attempts[task.trial] + task.has_failed for task in waiting],
            slots=slots,
            may_end_early=self._may_end_early,
            has_more=self._remaining > 0,
            limit_seconds=self._limits.seconds_to_run(),
            busy=remaining_seconds(of_running, np.array(list(running.values()))),
            compares_given=True,
        )
        least, most = predicted.lower_bounds(), predicted.upper_bounds()
        self._tasks = deque(
            replace(
                waiting[place],
                expected_seconds=float(predicted.seconds[place]),
                min_seconds=float(least[place]),
                max_seconds=float(most[place]),
            )
            for place in order
        )
