"""The trials of a sweep as its jobs share them: which of them this job has claimed, and which it may claim."""

import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from typing import Any, Final

from trainyard.cluster import slurm_allocation
from trainyard.config.sweep import Sweep
from trainyard.config.trial_status import TrialStatus
from trainyard.packing.saved_outputs import record_completed
from trainyard.packing.session_watch import BEAT_SECONDS, Life, SessionWatch
from trainyard.planning.attempts import Attempt, AttemptKey, slurm_job_of
from trainyard.planning.budget import Spending
from trainyard.planning.claims import Entry, GivenUp
from trainyard.planning.history import History
from trainyard.planning.job_marks import RUN
from trainyard.planning.journal import (
    BudgetReached,
    Ended,
    Journal,
    Location,
    Released,
    Started,
    Suggested,
    TrialEvent,
    order_job_of,
)
from trainyard.planning.task import Task, output_file
from trainyard.planning.trial_space import TrialSpace, is_placeholder
from trainyard.utils.guarded_process import wait_for_folder
from trainyard.utils.text import count_of

BATCH_SECONDS: Final = 2.0  # of work for all slots that a claim takes at most, if other jobs may want it
POLL_SECONDS: Final = 0.5
log = logging.getLogger(__name__)


class Standing(Enum):
    """What a session may do with a trial that its plan has found unfinished."""

    MINE = "mine"  # this session has taken it, and may start it
    FREE = "free"  # it may be taken
    TAKEN = "taken"  # by another session, or it runs here
    DONE = "done"  # it has ended since this session has planned, and is not run again by it
    CANCELLED = "cancelled"  # by a user


class TrialClaims:
    """The view of one session: `refresh` reads what others have recorded, `claim` takes trials.

    `listener` is called with each event of a trial that another session has recorded, and its attempt.
    """

    def __init__(
        self,
        state: History,
        journal: Journal,
        watch: SessionWatch,
        *,
        find_sweep: Callable[[], Sweep] | None = None,
    ) -> None:
        """`find_sweep` returns the sweep with the trials that its config has gained."""
        self._state = state
        self._fold = fold = state.fold
        self._journal = journal
        self._watch = watch
        self._find_sweep = find_sweep or (lambda: state.space.sweep)
        self._session = journal.session
        self._run = run_of_snakemake(state)
        # By trial that had ended before: its last attempt. Clocks of nodes may differ.
        self._ended_before = {trial: fold.last_attempt(trial) for trial, _ in fold.attempts if fold.end_of(trial)}
        self._taken = set[str]()  # trials that others have claimed since the last `take_changes`
        self._polled_at = time.monotonic()
        self._left_to_others = set[str]()
        self._started = set[AttemptKey]()  # attempts that have begun here
        self._places: dict[tuple[str, int | str], Location] = {}  # of other sessions' slots
        self.listener: Callable[[TrialEvent, Attempt], None] = lambda event, attempt: None
        self.note_added: Callable[[Sequence[str]], None] = lambda trials: None
        self.is_held = False  # whether this session starts no trial: the sweep is paused, or has enough jobs
        self._configs = 0  # that were looked at
        self._reservations: list[Entry] = []  # claims of trials that are predicted and have not ended, of a budget
        self.refresh()
        self._give_up(Life.GONE, Life.ENDED)

    def use(self, state: History) -> None:
        """Use a newer state of the sweep, made from the same fold."""
        self._state = state
        self._configs = 0
        self._follow_requests()

    @property
    def space(self) -> TrialSpace:
        """The trials of the sweep."""
        return self._state.space

    def has_work(self) -> bool:
        """Whether this session may run a trial now, or draw one, that it does not leave to others."""
        left = self._left_to_others if self.is_shared else set[str]()
        names = (name for name in self._state.unfinished if name not in left and not (left and is_placeholder(name)))
        return not self.is_held and any(map(self.may_run, names))

    def is_taken(self) -> bool:
        """Whether no job can take another trial, for a reason other than a pause or a limit on the number of jobs."""
        return not self.is_held and not any(map(self.may_run, self._state.unfinished))

    def is_complete(self) -> bool:
        """Whether no trial is left to run for any job."""
        return not self.describe_others() and not any(map(self.may_run, self._state.unfinished))

    def claiming_jobs(self) -> set[str]:
        """The Slurm jobs of the other sessions with claims that are not known to have ended."""
        runs = map(self._fold.run_of, self._claiming())
        return {run.info.job if run else "" for run in runs}

    def leave_to_others(self, trials: Iterable[str]) -> None:
        """Leave trials to other jobs, for as long as there are any."""
        self._left_to_others |= set(trials)

    # ---- what may be claimed

    def standing(self, trial: str) -> Standing:
        """What this session may do with an unfinished trial, as far as it has read the log and the journals.

        It does not run a trial again that has ended since it has planned, or failed in its own run of Snakemake.
        """
        if trial in self.cancelled:
            return Standing.CANCELLED
        if ended := self._fold.end_of(trial):
            session, end = ended
            is_done = end.is_final and (self._is_new_end(trial) or self._is_of_this_run(session))
            return Standing.DONE if is_done else Standing.FREE
        take = self._fold.claims.owners.get(trial)
        if take is None:
            return Standing.FREE
        if (trial, take.attempt) in self._started:
            return Standing.TAKEN
        is_mine = take.session == self._session
        was_started = is_mine and (trial, take.attempt) in self._fold.attempts  # with a Ray that has ended
        if was_started or self._fold.is_given_back(trial, take):
            return Standing.FREE
        return Standing.MINE if is_mine else Standing.TAKEN

    def _is_new_end(self, trial: str) -> bool:
        return self._ended_before.get(trial) != self._fold.last_attempt(trial)

    def _is_of_this_run(self, session: str) -> bool:
        """Whether a session is of the same run of Snakemake; also if its start is not read yet, which may be so."""
        other = self._fold.run_of(session)
        is_of_run = self._run is not None and (other is None or other.info.run == self._run)
        return is_of_run or session == self._session

    def is_mine(self, trial: str) -> bool:
        """Whether this session has taken a trial, and has not started it."""
        return self.standing(trial) is Standing.MINE

    def may_run(self, trial: str) -> bool:
        """Whether this session may start an unfinished trial, once it has taken it."""
        return self.standing(trial) in (Standing.MINE, Standing.FREE)

    def _is_free(self, trial: str) -> bool:
        return self.standing(trial) is Standing.FREE

    def has_lost(self, trial: str, attempt: int) -> bool:
        """Whether others have taken a trial for another attempt, or recorded the end of this one: it does not count."""
        end = self._fold.claims.ends.get((trial, attempt))
        return not self._fold.claims.is_last(trial, attempt) or end is not None

    @property
    def is_shared(self) -> bool:
        """Whether other sessions have claimed trials and have not ended, as far as it was recorded."""
        return bool(self._others())

    @property
    def sharing(self) -> int:
        """How many sessions work on the sweep, including this one."""
        return 1 + len(self._live())

    def _others(self) -> list[str]:
        """The other sessions that have not ended, as far as the log tells."""
        return list(self._fold.live - {self._session})

    @property
    def places(self) -> list[Location]:
        """Where the trials of other live sessions run, or ran last."""
        live = self._live() if self._places else ()
        return [place for (name, _), place in self._places.items() if name in live]

    def _live(self) -> set[str]:
        """The other sessions that are known to run."""
        return {name for name in self._others() if self._watch.life_of(name) is Life.RUNS}

    @property
    def paused_seconds(self) -> float:
        """Seconds in which this process was stopped, with its trials, as in a job that Slurm suspends."""
        return self._watch.paused_seconds

    # ---- claiming

    def batch(self, waiting: int, slots: int, seconds: float | None) -> int:
        """How many of the `waiting` trials to claim at once, if one takes this long.

        Half of a fair share: the last trials of all jobs then end at about the same time.
        """
        if self._state.sweep.budget:  # each must fit what is left when it starts
            return 1
        count = self.sharing
        size = math.ceil(waiting / (2 * count))
        if count > 1 or self._state.sweep.slots.jobs > 1:
            size = min(size, int(slots * BATCH_SECONDS / seconds) if seconds else slots)
        return max(1, size)

    def claim(self, trials: Sequence[str], *, seconds: float = 0.0) -> bool:
        """Claim the first of these trials, and as many of the others as are free; returns whether the first was free.

        With a budget, nothing is claimed if the first, predicted to take `seconds` at most, does not fit what is left.
        """
        while True:
            self.refresh()
            free = [trial for trial in trials if trial not in self._taken and self._is_free(trial)]
            self._taken |= set(trials) - set(free)
            if self.is_held or not free or free[0] != trials[0] or seconds > self.seconds_in_budget():
                return False
            if self._append(take=self._next_attempts(free), seconds=seconds):
                return True

    def draw(self, choose: Callable[[], tuple[list[Suggested], str | None]], *, seconds: float = 0.0) -> str | None:
        """Record the draws that `choose` makes from all results so far, and claim the trial that it returns, if any.

        `seconds` as in `claim`.
        """
        while True:
            self.refresh()
            if self.is_held or seconds > self.seconds_in_budget():
                return None
            draws, trial = choose()
            take = self._next_attempts([trial] if trial else [])
            if not draws or self._append(take=take, draws=draws, seconds=seconds):
                self.space.extend(self._fold.claims.draws)
                return trial

    def _next_attempts(self, trials: Sequence[str]) -> dict[str, int]:
        return {trial: self._fold.next_attempt(trial) for trial in trials}

    def _append(self, **content: Any) -> bool:
        """Append an entry, with the ends that the log lacks; False if another session has written the next one."""
        return self._fold.claims.append(self._session, ends=self._fold.uncommitted(), **content)

    # ---- the budget

    def seconds_in_budget(self) -> float:
        """How long a trial that starts now may take to fit the budget, negative if none does; infinite without one.

        Other jobs count until their trials are predicted to have ended, as their claims tell.
        """
        spending = self.spending()
        return spending.latest_end(self._session) - time.time() if spending else math.inf

    def must_stop_by(self) -> float:
        """When running trials must have ended because the budget is spent, in Unix seconds; infinite without one."""
        spending = self.spending()
        return spending.must_stop_by(time.time()) if spending else math.inf

    def spending(self) -> Spending | None:
        """What was spent of the budget by now, and is reserved; None without one."""
        budget = self._state.sweep.budget
        now = time.time()
        if budget is None:
            return None
        live = [self._session, *(name for name in self._others() if self._watch.life_of(name) is not Life.GONE)]
        ends = dict.fromkeys(live, now)
        for entry in self._reservations:
            if entry.session in ends:
                ends[entry.session] = max(ends[entry.session], entry.until or 0.0)
        return Spending(budget, self._fold.sessions, self._state.sweep.slots, ends)

    def note_budget_reached(self) -> None:
        """Record that no trial that is left fits the budget."""
        assert self._state.sweep.budget is not None
        self._journal.record(BudgetReached(budget=self._state.sweep.budget.model_dump()))

    def ended(self, trials: Sequence[str]) -> History | None:
        """The state now, if none of these trials runs, or may run again here; None otherwise."""
        if any(map(self._fold.is_claimed, trials)):
            return None
        state = self.state_now()
        is_left = any(state.record(trial).end is None and self._is_free(trial) for trial in trials)
        return None if is_left or self.is_held else state

    def release(self, trial: str) -> None:
        """Give a trial back if this session has taken it; it does not run here any more."""
        take = self._fold.claims.owners.get(trial)
        if take and take.session == self._session and self._fold.is_claimed(trial):
            self._journal.record(Released(trial=trial, claim=take.entry))

    def start(self, trial: str) -> int:
        """The number of the attempt for which this session has taken a trial, and which begins now."""
        attempt = self._fold.claims.owners[trial].attempt
        self._started.add((trial, attempt))
        return attempt

    def task(self, trial: str) -> Task:
        """An unfinished trial as a task, with the attempts that are known now."""
        return self.state_now().task(trial)

    def claimed(self, task: Task) -> Task:
        """A task that was claimed, with the folder that it has now."""
        return replace(task, takeover=self._fold.claims.takeovers.get(task.trial))

    # ---- what others do

    def refresh(self) -> None:
        """Read what was recorded since."""
        entries = len(self._fold.claims.entries)
        events = self._fold.news()
        added = self._fold.claims.entries[entries:]
        for entry in added:
            if entry.session != self._session:
                self._taken |= entry.take.keys()
        for session, event in events:
            if session != self._session and isinstance(event, TrialEvent):
                if isinstance(event, Started):
                    self._places[session, event.slot] = event.location
                self._note(event)
        known = [*self._reservations, *(each for each in added if each.until)]
        self._reservations = [entry for entry in known if self._is_reserved(entry)]
        self._watch.only(self._others())
        self.space.extend(self._fold.claims.draws)
        self._follow_requests()

    def _note(self, event: TrialEvent) -> None:
        """Tell of an event of another session, unless it is an end that does not count."""
        attempt = self._fold.attempts[event.trial, event.attempt]
        is_end = isinstance(event, Ended) and event.is_final
        if not is_end or attempt.outcome is not TrialStatus.INTERRUPTED:
            self.listener(event, attempt)

    def _is_reserved(self, entry: Entry) -> bool:
        """Whether a trial that an entry has taken may still use what was reserved for it."""
        (trial,) = entry.take
        return self._fold.claims.owners[trial].entry == entry.number and self._fold.is_claimed(trial)

    def _follow_requests(self) -> None:
        """Do what users have requested since, as far as it concerns which trials may be claimed."""
        requests = self._fold.claims.requests
        if len(requests.configs) > self._configs:
            self._configs = len(requests.configs)
            if (sweep := self._find_sweep()) is not self.space.sweep:
                added = self._state.grow(sweep)
                log.info("the config has gained %s, which may run here, too", count_of(len(added), "trial"))
                self.note_added(added)
        most = self._state.sweep.slots.jobs if requests.jobs is None else requests.jobs
        has_enough = len(self._rivals()) >= most and len(self._ahead()) >= most
        is_held = bool(requests.paused_at) or has_enough
        if is_held is self.is_held:
            return
        self.is_held = is_held
        if requests.paused_at:
            log.info("no trial starts here any more: the sweep is paused")
        elif has_enough:
            log.info("no trial starts here any more: enough other jobs work on the sweep")
        else:
            log.info("trials start here again")

    @property
    def cancelled(self) -> Set[str]:
        """The trials that users have cancelled."""
        return self._fold.claims.requests.cancelled

    @property
    def first(self) -> Set[str]:
        """The trials that start before others, by users."""
        return self._fold.claims.requests.first

    def _rivals(self) -> list[str]:
        """The other sessions among which only so many may work: all, or without a request those on the same GPUs.

        Other jobs of Slurm have their own GPUs. Without Slurm, a second program would use those of the first one.
        """
        is_for_all = self._fold.claims.requests.jobs is not None or slurm_allocation.job_id() == "local"
        return [name for name in self._others() if is_for_all or self._is_here(name)]

    def _is_here(self, session: str) -> bool:
        """Whether a session is of the same Slurm job as this one, which was not requeued since."""
        return slurm_job_of(session) == slurm_job_of(self._session)

    def _ahead(self) -> list[str]:
        """The rivals that work on the sweep and have begun before this session."""
        began = self._fold.claims.began
        mine = began.get(self._session, math.inf)
        return [name for name in self._rivals() if began[name] < mine and self._works(name)]

    def _works(self, session: str) -> bool:
        """Whether a session works on the sweep; one before this one in the same job only if that is certain."""
        life = self._watch.life_of(session)
        if life is Life.UNKNOWN:
            is_predecessor = order_job_of(session) == self._journal.order_job
            return not is_predecessor or self._watch.sees_process(session)
        return life is Life.RUNS

    def take_changes(self, waiting: Set[str]) -> tuple[Set[str], list[Task]]:
        """The waiting trials that others have claimed or users cancelled, and the tasks of others that may be claimed.

        One that others have claimed and given back is in both: its task has the attempts that are known now.
        """
        lost = waiting & (self._taken | self.cancelled)
        self._taken = set()
        names = self._open_trials(waiting - lost)
        for event, attempt in record_completed(self._journal, self._state, names):
            self.listener(event, attempt)
        return lost, [self._state.task(name) for name in names if self._state.record(name).end is None]

    def _open_trials(self, waiting: Set[str]) -> list[str]:
        """The unfinished trials that may be claimed, without those that wait in the queue of this job."""
        names = [name for name in self.state_now().unfinished if name not in waiting and not is_placeholder(name)]
        return list(filter(self._is_free, names))

    def state_now(self) -> History:
        """The state of the sweep, with all attempts that are known now."""
        self._state.refresh()
        return self._state

    def poll(self) -> bool:
        """Refresh every few seconds, and give up sessions whose end is certain; returns whether it did so now."""
        if time.monotonic() - self._polled_at >= BEAT_SECONDS:
            self._polled_at = time.monotonic()
            self.refresh()
            self._give_up(Life.GONE, Life.ENDED)
            return True
        return False

    def await_others(self, waiting: Set[str] = frozenset()) -> None:
        """Wait until trials may be claimed again, or all sessions that have claimed others are known to run."""
        while True:
            self.refresh()
            self._give_up(Life.GONE, Life.ENDED, Life.SILENT)
            is_known = all(self._watch.life_of(name) is Life.RUNS for name in self._claiming())
            if is_known or self._open_trials(waiting):
                return
            time.sleep(POLL_SECONDS)

    def describe_others(self) -> str:
        """The sessions that still have claims, as in `process 7 on n1 in job 3, since 2026-01-31 10:00:00`.

        And those because of which this one takes no trial.
        """
        return ", ".join(map(self._watch.describe, self._awaited()))

    def _awaited(self) -> list[str]:
        ahead = self._ahead() if self.is_held else ()
        claiming = self._claiming()
        return [name for name in self._others() if name in ahead or name in claiming]

    def others_are_here(self) -> bool:
        """Whether one of the sessions that `describe_others` names is of the same Slurm job, and uses its GPUs."""
        return any(map(self._is_here, self._awaited()))

    def await_end(self) -> None:
        """Wait until some other session has ended, or given its trials back."""
        before = self.describe_others()
        while self.describe_others() == before:
            time.sleep(POLL_SECONDS)
            self._fold.update()
            self._give_up(Life.GONE, Life.ENDED, Life.SILENT)

    def _claiming(self) -> set[str]:
        """The other sessions with trials that they have not given back."""
        owners = self._fold.claims.owners.items()
        return {take.session for trial, take in owners if self._fold.is_claimed(trial)} - {self._session}

    def _give_up(self, *lives: Life) -> None:
        """Give up the sessions of which one of these is known, for others to take their trials."""
        found = {name: self._watch.life_of(name) for name in self._others()}
        dead = {name: life for name, life in found.items() if life in lives}
        if not dead:
            return
        self.refresh()  # what they have recorded until their end
        given_up = {name: self._given_up(name, is_gone=life is Life.GONE) for name, life in dead.items()}
        if self._append(given_up=given_up):
            for name, life in dead.items():
                how = "gives no sign of life" if life is Life.SILENT else "has ended"
                log.info("%s %s: other jobs may run its trials", self._watch.describe(name), how)
                self._watch.forget(name)
        self.refresh()

    def _given_up(self, session: str, *, is_gone: bool) -> GivenUp:
        """That a session is given up, with the ends of its attempts: of the open ones, the last output of a program."""
        run = self._fold.run_of(session)
        ends = dict[str, float]()
        state = self._state
        deadline = time.monotonic() + state.sweep.trial_grace_seconds
        for key in run.attempts if run else ():
            attempt = self._fold.attempts[key]
            ends[attempt.trial] = attempt.end
            if attempt.outcome is not TrialStatus.RUNNING:
                continue
            output = output_file(state.folder, attempt)
            if is_gone and output.exists():  # it may still be ending
                wait_for_folder(output.parent, timeout_seconds=max(0.0, deadline - time.monotonic()))
            with suppress(OSError):
                ends[attempt.trial] = round(max(attempt.end, min(output.stat().st_mtime, time.time())), 4)
        return GivenUp(is_gone, ends)


def run_of_snakemake(state: History) -> str | None:
    """What `SessionStarted.run` records."""
    return os.environ.get(RUN) if state.sweep.slots.jobs > 1 else None
