"""The queue of waiting trials, which selects the next trial for a slot."""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from trainyard.packing.repeat_best import repeat_best
from trainyard.packing.sweep_run import SweepRun
from trainyard.packing.trial_claims import POLL_SECONDS
from trainyard.planning.duration_forecast import DurationForecast
from trainyard.planning.journal import Location
from trainyard.planning.task import Task

PREDICT_FRACTION: Final = 0.02  # of the time, at most: the slots of short trials would wait for predictions


class TrialQueue:
    """The trials that wait, in their order, and then the trials that a search suggests.

    `places` are those of all slots of this job, and `all_places` those of other jobs, too.
    """

    def __init__(self, run: SweepRun) -> None:
        self._run = run
        self._claims = run.claims
        self._failures = run.failures
        self._forecast = DurationForecast(run.state)
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
        return len(self._tasks) + self._undrawn + self._claims.space.unchosen

    @property
    def _names(self) -> set[str]:
        """The trials whose tasks wait."""
        return {task.trial for task in self._tasks}

    @property
    def _undrawn(self) -> int:
        """How many configurations the search can still draw."""
        return self._run.search.remaining if self._run.search else 0

    # ---- the next trial of a slot

    def take(self, place: Location, places: Sequence[Location]) -> Task | None:
        """The next task for a slot, which this job has claimed; None if there is none for it."""
        search = self._run.search
        draws_with_others = search is not None and self._claims.is_shared
        if draws_with_others or self._claims.space.sweep.budget:
            self._claims.refresh()  # what has ended reserves nothing
        if draws_with_others:
            self._take_changes()  # another job may have drawn ahead
        all_places = [*places, *self._claims.places]
        if self._failures.avoids(place, all_places):
            return None
        while task := self._find(place, all_places):
            if self._claim(task, places, all_places):
                self._tasks.remove(task)
                return self._claims.claimed(task)
        if search and self._may_draw():
            return search.next_task(self._most_seconds())
        return None

    def has_task(self, place: Location, all_places: Sequence[Location]) -> bool:
        """Whether `take` has a task for a slot."""
        if self._find(place, all_places) is None and not (self._undrawn and self._may_draw()):
            return False
        return not self._failures.avoids(place, all_places)

    def start_attempt(self, task: Task) -> int:
        """The number of an attempt that starts now."""
        self._attempts[task.trial] += 1
        return self._claims.start(task.trial)

    def _find(self, place: Location, all_places: Sequence[Location]) -> Task | None:
        if self.is_closed or self._claims.is_held:
            return None
        # Suspects start first, so that a broken GPU is found after few trials.
        urgent = self._failures.suspect_trials | self._probes | self._claims.first
        tasks: Iterable[Task] = self._tasks
        if urgent:
            tasks = sorted(tasks, key=lambda task: task.trial not in urgent)
        seconds_in_budget = self._claims.seconds_in_budget()
        for task in tasks:
            fits = self._most_seconds(task) <= seconds_in_budget and self._is_worthwhile(task)
            if fits and self._failures.allows(task.trial, place, all_places):
                return task
        return None

    def _claim(self, task: Task, places: Sequence[Location], all_places: Sequence[Location]) -> bool:
        """Claim a task, and some of those that follow it and may run here; False if another job has it."""
        if self._claims.is_mine(task.trial):
            return True
        others = [each.trial for each in self._tasks if each is not task and not self._claims.is_mine(each.trial)]
        mean_seconds = task.expected_seconds
        if self._finished:
            mean_seconds = sum(self._finished.values()) / len(self._finished)
        size = self._claims.batch(1 + len(others), len(places), mean_seconds)
        allowed = (trial for trial in others if self._may_run_here(trial, places, all_places))
        names = [task.trial, *islice(allowed, size - 1)]
        is_claimed = self._claims.claim(names, seconds=self._most_seconds(task))
        if not is_claimed:
            self._take_changes()
        return is_claimed

    def _may_run_here(self, trial: str, places: Sequence[Location], all_places: Sequence[Location]) -> bool:
        return any(self._failures.allows(trial, place, all_places) for place in places)

    def _is_worthwhile(self, task: Task) -> bool:
        limits = self._run.limits
        needed = task.expected_seconds if limits.can_resume else task.min_seconds
        return limits.is_worthwhile(self.longest_seconds if needed is None else needed)

    # ---- what other jobs do and users request

    def poll(self) -> bool:
        """Look at what other jobs do and users request, every few seconds; returns whether there may be news.

        If all other trials have ended, further seeds of the best are drawn.
        """
        has_looked = self._claims.poll()
        has_drawn = self._repeat_best()
        if has_looked or has_drawn:
            self._take_changes()
        if has_looked and self._claims.is_held:
            self._give_back(task.trial for task in self._tasks)
        return has_looked or has_drawn

    def await_others(self) -> bool:
        """Wait until it is known that other jobs run the trials that are left; returns whether tasks wait.

        For further seeds of the best, wait until those trials have ended.
        """
        while not self.is_closed:
            self._claims.await_others(self._names)
            has_drawn = self._repeat_best()
            self._take_changes()
            if has_drawn or self._tasks or not self._claims.space.unchosen or not self._claims.describe_others():
                break
            if not self._may_draw():
                break
            self._run.clock.sleep(POLL_SECONDS)
        return self.waiting > 0

    def _take_changes(self) -> None:
        """Remove the tasks that other jobs have claimed or users have cancelled, and add those that may run again."""
        lost, opened = self._claims.take_changes(self._names)
        self._give_back(lost)
        self._tasks = deque([*(task for task in self._tasks if task.trial not in lost), *opened])

    def _give_back(self, trials: Iterable[str]) -> None:
        """Give back those of these trials that this job has claimed, and will not start now."""
        for trial in trials:
            self._claims.release(trial)

    def is_left_to_others(self, places: Sequence[Location]) -> bool:
        """Whether all waiting tasks have time to run, but other jobs have better places for them."""
        elsewhere = self._claims.places
        if self._undrawn or not elsewhere:
            return False
        all_places = [*places, *elsewhere]
        usable = [place for place in places if not self._failures.avoids(place, all_places)]
        for task in self._tasks:
            if not self._is_worthwhile(task) or self._may_run_here(task.trial, usable, all_places):
                return False
        self._claims.leave_to_others(task.trial for task in self._tasks)
        return True

    # ---- draws of a search, and of further seeds

    def lacks_draw(self, busy: int) -> bool:
        """Whether the search should draw ahead, beside as many busy slots. With one slot, it awaits each result."""
        if self._tasks or not self._undrawn or (busy < 2 and not self._claims.is_shared):
            return False
        return self._may_draw()

    def draw_ahead(self) -> None:
        """Have the search draw a configuration before a slot is free."""
        assert self._run.search is not None
        self._run.search.draw_ahead(self._most_seconds())
        self._take_changes()

    def _repeat_best(self) -> bool:
        if self._tasks or self._undrawn or not self._claims.space.unchosen or not self._may_draw():
            return False
        return repeat_best(self._claims)

    def _may_draw(self) -> bool:
        if self.is_closed or self._claims.is_held or self._most_seconds() > self._claims.seconds_in_budget():
            return False
        return self._run.limits.is_worthwhile(self.longest_seconds)

    # ---- the budget

    def _most_seconds(self, task: Task | None = None) -> float:
        """The seconds until a trial that starts now has ended, at most: as predicted, or as the longest so far.

        0 if nothing is known, or without a budget, which alone limits them.
        """
        if not self._claims.space.sweep.budget:
            return 0.0
        seconds = task and (task.max_seconds or task.expected_seconds)
        if not seconds:
            seconds = max(self.longest_seconds, *self._forecast.measured_seconds.values(), 0.0)
        return seconds + self._run.limits.stop_seconds if seconds else 0.0

    def is_over_budget(self) -> bool:
        """Whether the budget allows another job none of the trials that are left: it has to start, and to run one."""
        shortest = min(map(self._most_seconds, self._tasks), default=self._most_seconds())
        return self._forecast.startup_seconds + shortest > self._claims.seconds_in_budget()

    # ---- after the end of a trial

    def go_on(self, task: Task) -> None:
        """Add a task in front of all others."""
        self._tasks.appendleft(task)

    def awaits_probe(self, failed: str) -> bool:
        """Whether a trial from the end of the order must still run; `failed` is the last of the trials that failed.

        The trials at the end differ most from those that have run: the first may all have too large a learning rate.
        Until one has failed, each call lets another one start next.
        """
        if failed in self._probes:
            return False
        for task in reversed(self._tasks):
            if not self._attempts[task.trial]:
                self._tasks.remove(task)
                self._tasks.appendleft(task)
                self._probes.add(task.trial)
                break
        return bool(self._probes)

    def note_finished(self, trial: str, seconds: float) -> None:
        """Take up the duration of a finished trial, which predictions of others use."""
        self.longest_seconds = max(self.longest_seconds, seconds)
        self._finished[trial] = seconds

    def update_order(self) -> None:
        """Predict and sort the waiting trials after one has ended, unless that takes too large a part of the time.

        The order is longest first. Retries stay last, also of trials that failed in an earlier run.
        """
        clock = self._run.clock
        began = clock.monotonic()
        if not self._tasks or began < self._predict_after:
            return
        tasks = list(self._tasks)
        forecast = DurationForecast(self._claims.state_now())  # with what other jobs have measured
        predicted = forecast.predict([task.trial for task in tasks], self._finished)
        if predicted:
            sorted_tasks = []
            for task, seconds, least, most in zip(
                tasks, predicted.seconds, predicted.lower_bounds(), predicted.upper_bounds(), strict=True
            ):
                sorted_tasks.append(
                    replace(task, expected_seconds=float(seconds), min_seconds=float(least), max_seconds=float(most))
                )
            sorted_tasks.sort(key=self._start_order)
            self._tasks = deque(sorted_tasks)
        self._predict_after = began + (clock.monotonic() - began) / PREDICT_FRACTION

    def _start_order(self, task: Task) -> tuple[int, float]:
        return self._attempts[task.trial] + task.has_failed, -(task.expected_seconds or 0.0)
