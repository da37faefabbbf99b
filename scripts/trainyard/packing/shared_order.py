"""The trials of a sweep as its jobs share them: which of them this job has claimed, and which it may claim."""

import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from typing import Final

from trainyard.cluster import slurm_allocation
from trainyard.config.sweep import Sweep
from trainyard.packing.failure_policy import SlotLocation
from trainyard.packing.saved_outputs import record_completed
from trainyard.packing.session_watch import BEAT_SECONDS, Life, SessionWatch
from trainyard.planning.attempts import Attempt, Fold, group_by_trial, slurm_job_of
from trainyard.planning.budget import Spending
from trainyard.planning.claims import Entry, Fence
from trainyard.planning.job_marks import RUN
from trainyard.planning.journal import (
    BudgetReached,
    Ended,
    Event,
    Journal,
    Left,
    Released,
    Started,
    Suggested,
    TrialEvent,
    order_job_of,
)
from trainyard.planning.sweep_state import SweepState, Task, TrialSpace, is_placeholder
from trainyard.utils.errors import UserError
from trainyard.utils.guarded_process import wait_for_folder
from trainyard.utils.text import count_of

BATCH_SECONDS: Final = 2.0  # of work for all slots that a claim takes at most, if other jobs may want it
FENCE_SECONDS: Final = 60.0  # until the journal of a session that was given up is taken for what is there
POLL_SECONDS: Final = 0.5
log = logging.getLogger(__name__)


class GivenUpError(UserError):
    """Other jobs have given this session up, since it gave no sign of life; it may begin again as a new one."""


class SharedOrder:
    """The view of one session: `refresh` reads what others have recorded, `claim` takes trials.

    `listener` is called with each event of a trial that another session has recorded, and its attempt.
    """

    def __init__(
        self,
        state: SweepState,
        journal: Journal,
        watch: SessionWatch,
        fold: Fold,
        *,
        find_sweep: Callable[[], Sweep] | None = None,
    ) -> None:
        """`find_sweep` returns the sweep with the trials that its config has gained."""
        self._state, self._journal, self._watch, self._fold = state, journal, watch, fold
        self._find_sweep = find_sweep or (lambda: state.space.sweep)
        self._session, self._run = journal.session, run_of_snakemake(state)
        # By trial: the sessions in which it had failed for good. Clocks of nodes may differ.
        self._failed_before = {trial: frozenset(sessions) for trial, sessions in fold.failed.items()}
        self._opened: dict[str, None] = {}  # trials that may be claimed again, in order, since the last `take_changes`
        self._taken = set[str]()  # those that others have claimed, or users cancelled, since
        self._polled_at = time.monotonic()
        self._left_to_others = set[str]()
        self._missing = set[str]()  # sessions whose journals have lost what counts
        self._places: dict[tuple[str, int | str], SlotLocation] = {}  # of other sessions' slots
        self._running: dict[str, tuple[str, float]] = {}  # trials of other sessions: which one, and since when
        self.listener: Callable[[TrialEvent, Attempt], None] = lambda event, attempt: None
        self.note_added: Callable[[Sequence[str]], None] = lambda trials: None
        self.cancelled = frozenset[str]()  # trials, by users
        self.is_held = False  # whether this session starts no trial: the sweep is paused, or has enough jobs
        self._configs = 0  # that were looked at
        self._reservations: list[Entry] = []  # claims of trials that are predicted and have not ended, of a budget
        self.refresh()
        self._give_up(Life.GONE, Life.ENDED)

    def use(self, state: SweepState) -> None:
        """Use a newer state of the sweep, made from the same fold."""
        self._state, self._configs = state, 0
        self._follow_requests()

    @property
    def state(self) -> SweepState:
        """The state of the sweep when its present trials were planned; see `state_now`."""
        return self._state

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
        runs = map(self._fold.run_of, filter(self._has_open_claims, self._others()))
        return {run.info.job if run else "" for run in runs}

    def leave_to_others(self, trials: Iterable[str]) -> None:
        """Leave trials to other jobs, for as long as there are any."""
        self._left_to_others |= set(trials)

    # ---- what may be claimed

    def is_mine(self, trial: str) -> bool:
        """Whether this session has claimed a trial that has not ended."""
        entry = self._fold.claims.owner(trial)
        return entry is not None and entry.session == self._session and not self._is_closed(trial, entry)

    def may_run(self, trial: str) -> bool:
        """Whether this session has claimed an unfinished trial, or may claim it.

        It may not run one again that has failed for good since this session began, or in a job of the same run of
        Snakemake.
        """
        return trial not in self.cancelled and (self.is_mine(trial) or self._may_claim(trial))

    def _may_claim(self, trial: str) -> bool:
        return trial not in self.cancelled and self._is_open(trial) and not self._has_ended_now(trial)

    def _is_open(self, trial: str) -> bool:
        """Whether all claims of a trial are seen to be closed.

        Not the last one alone: who made it has seen the attempts before it, which this session may not have read yet.
        """
        return all(self._is_closed(trial, entry) for entry in self._fold.claims.takes.get(trial, ()))

    def _is_closed(self, trial: str, entry: Entry) -> bool:
        return self._is_given_back(trial, entry) or (trial, entry.session) in self._fold.closed

    def _is_given_back(self, trial: str, entry: Entry) -> bool:
        return self._is_over(entry.session) or (trial, entry.number) in self._fold.released

    def _is_over(self, session: str) -> bool:
        return session in self._fold.claims.fences or session in self._fold.left

    def _has_ended_now(self, trial: str) -> bool:
        if (trial, self._session) in self._fold.closed:
            return True
        failed = self._fold.failed.get(trial, set())
        if failed - self._failed_before.get(trial, frozenset()):
            return True
        return self._run is not None and any(self._fold.is_of_run(session, self._run) for session in failed)

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
    def places(self) -> list[SlotLocation]:
        """Where the trials of other live sessions run, or ran last."""
        live = self._live() if self._places else ()
        return [place for (name, _), place in self._places.items() if name in live]

    @property
    def running_seconds(self) -> dict[str, float]:
        """For how long each trial of the other live sessions has been running, by the clocks of both nodes."""
        live, now = self._live() if self._running else (), time.time()
        known = self._state.space.trials
        running = ((trial, start) for trial, (name, start) in self._running.items() if name in live and trial in known)
        return {trial: max(0.0, now - start) for trial, start in running}

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
        if count > 1 or self._state.sweep.slots.most_jobs > 1:
            size = min(size, int(slots * BATCH_SECONDS / seconds) if seconds else slots)
        return max(1, size)

    def claim(self, trials: Sequence[str], *, seconds: float = 0.0) -> bool:
        """Claim the first of the trials and those of the others that are open; False if the first one is not any more.

        With a budget, also if the first one, which is predicted to take so many `seconds` at most, does not fit it.

        Raises:
            GivenUpError: this session was given up.
        """
        while True:
            self.refresh()
            gone = self._taken | self.cancelled
            free = [trial for trial in trials if trial not in gone and self._is_open(trial)]
            if self.is_held or not free or free[0] != trials[0] or seconds > self.seconds_in_budget():
                return False
            if self._fold.claims.append(self._session, take=free, seconds=seconds):
                for trial in free:
                    self._opened.pop(trial, None)
                return True

    def draw(self, choose: Callable[[], tuple[list[Suggested], str | None]], *, seconds: float = 0.0) -> str | None:
        """Record the draws that `choose` makes from all results so far, and claim the trial that it returns, if any.

        `seconds` as in `claim`.

        Raises:
            GivenUpError: this session was given up.
        """
        while True:
            self.refresh()
            if self.is_held or seconds > self.seconds_in_budget():
                return None
            draws, trial = choose()
            take = [trial] if trial else []
            if not draws or self._fold.claims.append(self._session, take=take, draws=draws, seconds=seconds):
                self._extend()
                return trial

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
        budget, now = self._state.sweep.budget, time.time()
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

    def _extend(self) -> None:
        """Take up what was drawn since; what its author has not claimed may run in any job."""
        if added := self._state.space.extend(self._fold.suggested):
            self._opened |= dict.fromkeys(filter(self._is_open, added))

    def ended(self, trials: Sequence[str]) -> SweepState | None:
        """The state now, if none of these trials runs, or may run again here; None otherwise."""
        if not all(map(self._is_open, trials)):
            return None
        state = self.state_now()
        is_left = any(state.end(trial) is None and self._may_claim(trial) for trial in trials)
        return None if is_left or self.is_held else state

    def release(self, trial: str) -> None:
        """Give a claimed trial back, for another session to run it."""
        self._journal.record(Released(trial=trial, claim=self._fold.claims.takes[trial][-1].number))

    def task(self, trial: str) -> Task:
        """An unfinished trial as a task, with the attempts that are known now."""
        return self.state_now().task(trial)

    def claimed(self, task: Task) -> Task:
        """A task that was claimed, with the folder that it has now."""
        return replace(task, takeover=self._fold.claims.takeovers.get(task.trial))

    # ---- what others do

    def refresh(self) -> None:
        """Read what was recorded since.

        Raises:
            GivenUpError: this session was given up.
        """
        entries = len(self._fold.claims.entries)
        events = [*self._fold.news(), *self._await_fenced()]
        if self._session in self._fold.claims.fences:
            raise GivenUpError("other jobs have given this one up, since it gave no sign of life for a while")
        ended, again = set[str](), dict[str, None]()
        added = self._fold.claims.entries[entries:]
        for entry in added:
            ended |= entry.fences.keys()
            if entry.session != self._session:
                self._taken |= set(entry.take)
                for trial in entry.take:
                    self._opened.pop(trial, None)
                    if self._is_given_back(trial, entry):  # which was read before
                        again[trial] = None
        for session, event in events:
            match event:
                case Left():
                    ended.add(session)
                case Released(trial=trial):
                    again[trial] = None
                case Started() if session != self._session:
                    self._places[session, event.slot] = SlotLocation.of(event.location)
                    self._running[event.trial] = session, event.time
                case Ended() if session != self._session:
                    self._running.pop(event.trial, None)
            if isinstance(event, TrialEvent) and session != self._session:
                attempt = self._fold.attempts.get((event.trial, event.attempt))
                if attempt:  # otherwise a fence that was read later has cut it off
                    self.listener(event, attempt)
        known = [*self._reservations, *(each for each in added if each.until)]
        self._reservations = [each for each in known if not self._is_closed(each.take[0], each)]
        self._watch.only(self._others())
        self._extend()
        again |= dict.fromkeys(self._fold.claims.taken_by(ended) if ended else ())
        self._opened |= dict.fromkeys(trial for trial in again if self._is_open(trial))
        self._follow_requests()

    def _follow_requests(self) -> None:
        """Do what users have requested since, as far as it concerns which trials may be claimed."""
        requests, space = self._fold.claims.requests, self._state.space
        self._taken |= requests.cancelled - self.cancelled
        restored, self.cancelled = self.cancelled - requests.cancelled, frozenset(requests.cancelled)
        added = list[str]()
        if len(requests.configs) > self._configs:
            self._configs = len(requests.configs)
            if (sweep := self._find_sweep()) is not space.sweep:
                added = space.grow(sweep)
                log.info("the config has gained %s, which may run here, too", count_of(len(added), "trial"))
                self.note_added(added)
        again = (trial for trial in (*restored, *added) if not is_placeholder(trial))
        self._opened |= dict.fromkeys(filter(self._is_open, again))
        most = self._state.sweep.slots.most_jobs if requests.jobs is None else requests.jobs
        has_enough = len(self._rivals()) >= most and len(self._ahead()) >= most
        why = "the sweep is paused" if requests.paused_at else "enough other jobs work on the sweep" * has_enough
        if bool(why) is not self.is_held:
            self.is_held = bool(why)
            log.info("%s", f"no trial starts here any more: {why}" if why else "trials start here again")

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

    def _await_fenced(self) -> Iterator[tuple[str, Event]]:
        """Wait until the journals of sessions that were given up are read up to where they count, but once for each."""
        began = 0.0
        while behind := self._fold.behind() - self._missing:
            if not began:
                began = time.monotonic()
                log.info("waiting for the rest of the journals of %s", ", ".join(sorted(behind)))
            if time.monotonic() - began >= FENCE_SECONDS:
                self._missing |= behind
            time.sleep(POLL_SECONDS)
            yield from self._fold.news()

    def take_changes(self) -> tuple[set[str], list[Task]]:
        """Trials that others have claimed or users cancelled since the last call, and tasks that may be claimed."""
        taken, self._taken = self._taken, set()
        opened, self._opened = self._opened, {}
        names = [name for name in opened if name in self._state.trials and self._may_claim(name)]
        if not names:
            return taken, []
        state = self.state_now()
        for event, attempt in record_completed(self._journal, state, names):
            self.listener(event, attempt)
        return taken, [state.task(name) for name in names if state.end(name) is None]

    def state_now(self) -> SweepState:
        """The state of the sweep, with all attempts that are known now."""
        return replace(
            self._state,
            attempts=group_by_trial(self._fold.attempts.values()),
            takeovers=dict(self._fold.claims.takeovers),
            requests=self._fold.claims.requests,
        )

    def poll(self) -> bool:
        """Refresh every few seconds, and give up sessions whose end is certain; returns whether it did so now.

        Raises:
            GivenUpError: this session was given up.
        """
        if time.monotonic() - self._polled_at >= BEAT_SECONDS:
            self._polled_at = time.monotonic()
            self.refresh()
            self._give_up(Life.GONE, Life.ENDED)
            return True
        return False

    def await_others(self) -> None:
        """Wait until trials may be claimed again, or all sessions that have claimed others are known to run.

        Raises:
            GivenUpError: this session was given up.
        """
        while True:
            self.refresh()
            self._give_up(Life.GONE, Life.ENDED, Life.SILENT)
            lives = {name: self._watch.life_of(name) for name in self._others() if self._has_open_claims(name)}
            if self._opened or all(life is Life.RUNS for life in lives.values()):
                return
            time.sleep(POLL_SECONDS)

    def describe_others(self) -> str:
        """The sessions that still have claims, as in `process 7 on n1 in job 3, since 2026-01-31 10:00:00`.

        And those because of which this one takes no trial.
        """
        return ", ".join(map(self._watch.describe, self._awaited()))

    def _awaited(self) -> list[str]:
        ahead = self._ahead() if self.is_held else ()
        return [name for name in self._others() if name in ahead or self._has_open_claims(name)]

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

    def _has_open_claims(self, session: str) -> bool:
        entries = [entry for entry in self._fold.claims.entries if entry.session == session]
        return any(not self._is_closed(trial, entry) for entry in entries for trial in entry.take)

    def _give_up(self, *lives: Life) -> None:
        """Give up the sessions with claims of which one of these is known, and read their journals to the end."""
        found = {name: self._watch.life_of(name) for name in self._others()}
        dead = {name: life for name, life in found.items() if life in lives}
        if not dead:
            return
        self.refresh()  # what they have recorded until their end
        fences = {name: self._fence(name, is_gone=life is Life.GONE) for name, life in dead.items()}
        if self._fold.claims.append(self._session, fences=fences):
            for name, life in dead.items():
                how = "gives no sign of life" if life is Life.SILENT else "has ended"
                log.info("%s %s: other jobs may run its trials", self._watch.describe(name), how)
                self._watch.forget(name)
            self._opened |= dict.fromkeys(filter(self._is_open, self._fold.claims.taken_by(dead.keys())))
        self.refresh()

    def _fence(self, session: str, *, is_gone: bool) -> Fence:
        """Give up a session as far as it was read. Its attempts end with the last output of their programs."""
        run, ends, state = self._fold.run_of(session), dict[str, float](), self._state
        deadline = time.monotonic() + state.sweep.trial_grace_seconds
        for key in run.opened if run else ():
            output = state.output_of(self._fold.attempts[key])
            if is_gone and output.exists():  # it may still be ending
                wait_for_folder(output.parent, timeout_seconds=max(0.0, deadline - time.monotonic()))
            with suppress(OSError):
                ends[key[0]] = round(min(output.stat().st_mtime, time.time()), 4)
        return Fence(self._fold.read_bytes(session), is_gone, ends)


def run_of_snakemake(state: SweepState) -> str | None:
    """What `SessionStarted.run` records."""
    return os.environ.get(RUN) if state.sweep.slots.most_jobs > 1 else None
