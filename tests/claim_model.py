"""A model checker of the claims: random schedules of sessions that see stale files, stop, die, and go on too long.

Meanwhile, a user cancels and restores trials, puts them first, pauses the sweep, and changes the number of its jobs.

    python tests/claim_model.py [--schedules 1000] [--seed 0] [--without attempts | requests]

The sessions are real ones on a temporary folder: `ClaimLog`, `Fold`, `TrialClaims`, `TrialQueue`, `SuggestionSource`.
Simulated are the trials, the clock, the watch, which gives up anyone at any time, and the views: a session sees the
entries and each journal up to some place, as through the caches of a network file system, until it looks again. Of its
own files it sees all, and a link that fails shows the entry that was first.
"""

import argparse
import itertools
import json
import random
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from unittest.mock import patch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from sweep_journals import run_beside
from trainyard.config.sweep import CommandSweep
from trainyard.config.trial_status import TrialStatus
from trainyard.packing import trial_claims
from trainyard.packing.failure_policy import FailurePolicy
from trainyard.packing.session_watch import Life
from trainyard.packing.trial_claims import TrialClaims
from trainyard.packing.trial_queue import TrialQueue
from trainyard.planning import attempts, journal, search
from trainyard.planning.attempts import Attempt, Fold
from trainyard.planning.claims import ClaimLog, Entry
from trainyard.planning.history import History
from trainyard.planning.journal import SESSIONS, Ended, Epoch, Event, Journal, Location, SessionStarted, Started
from trainyard.planning.requests import CANCELLED, UserRequest, UserRequests
from trainyard.planning.search import SuggestionSource
from trainyard.planning.task import Task
from trainyard.planning.trial_space import TrialSpace, is_placeholder
from trainyard.utils.event_log import Reader

TRIALS = 5
# The end of the attempt for which a trial was taken last counts; requests that were read hold
RULES = ("attempts", "requests")
REQUESTS = ("cancel", "restore", "first", "pause", "resume", "jobs")
SESSIONS_AT_FIRST = 3
STEPS = 80
DRAIN_STEPS = 400  # far more than the rest of a schedule needs: what needs more does not end
COMMAND = {"command": "true {x}", "metrics": {"file": "m.json"}, "metric": "loss", "slots": {"jobs": 100}}
GRID = CommandSweep.model_validate({**COMMAND, "grid": {"x": list(range(TRIALS))}})
SEARCH = CommandSweep.model_validate(
    {**COMMAND, "search": {"method": "random", "trials": TRIALS, "values": {"x": {"low": 0.0, "high": 1.0}}}}
)


class ViolationError(Exception):
    """A schedule after which a promise of the claims is broken."""


@dataclass
class View:
    """What a session sees of the files of others."""

    session: str
    rng: random.Random
    entries: int = 0
    bytes: dict[str, int] = field(default_factory=dict)  # by file of a journal
    is_full: bool = False

    def look(self, folder: Path) -> None:
        """See some more, perhaps not all that there is."""
        if self.rng.random() < 0.6:
            written = len(list((folder / "claims").glob("*.json")))
            self.entries = self.rng.randint(self.entries, max(self.entries, written))
        for path in sorted((folder / SESSIONS).glob("*.jsonl")):
            if self.rng.random() < 0.4:
                size, seen = path.stat().st_size, self.bytes.get(path.name, 0)
                self.bytes[path.name] = self.rng.choice([size, self.rng.randint(min(seen, size), size)])

    def look_at_all(self, folder: Path) -> None:
        """See what is written by now."""
        self.entries = len(list((folder / "claims").glob("*.json")))
        self.bytes = {path.name: path.stat().st_size for path in (folder / SESSIONS).glob("*.jsonl")}

    def limit_of(self, path: Path) -> int | None:
        """The bytes of a journal that it shows; None if all."""
        is_own = path.name == f"{self.session}.jsonl"
        return None if self.is_full or is_own else self.bytes.get(path.name, 0)


class StaleReader(Reader[Event]):
    """Reads what the present view shows of a journal."""

    def restarts(self) -> bool:
        if (limit := World.view.limit_of(self._path)) is not None and limit < self.offset:
            raise AssertionError("a view shows less than it has shown")
        return super().restarts()

    def new(self, *, limit: int | None = None) -> Iterator[Event]:
        return super().new(limit=World.view.limit_of(self._path))


class StaleLog(ClaimLog):
    """Reads what the present view shows of the entries."""

    def _open(self, number: int) -> Entry | None:
        view = World.view
        if not view.is_full and number > view.entries:
            return None
        return super()._open(number)

    def append(self, session: str, **content: object) -> bool:
        number, view = len(self.entries) + 1, World.view
        if super().append(session, **content):
            view.entries = max(view.entries, number)
            return True
        view.entries = max(view.entries, number)  # the server has said that it exists
        return False

    def is_last(self, trial: str, attempt: int) -> bool:
        return "attempts" in World.without or super().is_last(trial, attempt)

    def may_end(self, end: Ended) -> bool:
        return super().may_end(end) or ("attempts" in World.without and (end.trial, end.attempt) not in self.ends)


class World:
    """What the parts of the model share, one schedule at a time."""

    view = View("", random.Random(0), is_full=True)
    without: frozenset[str] = frozenset()
    now = 0.0  # seconds
    tokens = itertools.count()  # in the names of sessions


class Watch:
    """What a session believes of the others: now and then that they have ended, rarely with reason."""

    def __init__(self, schedule: "Schedule", view: View) -> None:
        self._schedule, self._view = schedule, view

    def sees_process(self, session: str) -> bool:
        return self.life_of(session) is not Life.GONE

    def life_of(self, session: str) -> Life:
        schedule = self._schedule
        has_ended = session not in schedule.live
        if schedule.is_draining:
            return self._gone(session) if has_ended else Life.RUNS
        rng = random.Random(f"{schedule.seed} {World.now} {session}")  # they are asked in the order of a set
        if has_ended and rng.random() < 0.3:
            return self._gone(session)
        return rng.choices([Life.RUNS, Life.UNKNOWN, Life.ENDED, Life.SILENT], [80, 4, 8, 8])[0]

    def _gone(self, session: str) -> Life:
        """Whoever has seen its process end was on the same node, and sees all that it has written."""
        path = self._schedule.folder / SESSIONS / f"{session}.jsonl"
        if path.exists():
            self._view.bytes[path.name] = path.stat().st_size
        return Life.GONE

    def describe(self, session: str) -> str:
        return session

    def only(self, sessions: Iterable[str]) -> None:
        """It is asked only about those that it knows."""

    def forget(self, session: str) -> None:
        """It has nothing to forget."""


class Claims(TrialClaims):
    """The order, with batches of any size."""

    rng: random.Random

    @property
    def cancelled(self) -> Set[str]:
        return frozenset() if "requests" in World.without else super().cancelled

    def _follow_requests(self) -> None:
        if "requests" not in World.without:
            super()._follow_requests()

    def batch(self, waiting: int, slots: int, seconds: float | None) -> int:
        return self.rng.randint(1, waiting)


class Queue(TrialQueue):
    """The queue, which notes the trials that a user has put first and that waited when it chose another one."""

    passed_over: Set[str] = frozenset()

    def _claim(self, task: Task, *places: Sequence[Location]) -> bool:
        first = {each.trial for each in self._tasks} & self._claims.first
        self.passed_over = set() if task.trial in first | self._failures.suspect_trials else first
        return super()._claim(task, *places)


class Job:
    """A job of the sweep, as its driver runs it."""

    def __init__(self, schedule: "Schedule", number: int) -> None:
        self._schedule, self._number = schedule, number
        self.place = Location("", f"n{number}", "0", 0)
        self.has_died = False
        self.running: dict[str, tuple[Task, int]] = {}  # tasks and numbers of attempts, by trial
        rng = schedule.rng
        opened = Journal.of_new_session(schedule.folder, order_job=number)
        self.journal = schedule.stack.enter_context(opened)
        self.session = self.journal.session
        schedule.live.add(self.session)
        self.view = View(self.session, rng, is_full=schedule.is_draining)
        self.view.look(schedule.folder)
        with schedule.seen_by(self):
            self.fold = Fold(schedule.folder)
            self.journal.record(SessionStarted(run="run", job=self.session))
            self._plan()

    def _plan(self) -> None:
        schedule, fold = self._schedule, self.fold
        fold.update()
        self.claims = Claims(self._state(), self.journal, Watch(schedule, self.view))
        self.claims.rng = schedule.rng
        fold.update()
        state = self._state()
        self.claims.use(state)
        source = SuggestionSource(state, self.claims) if state.sweep.search else None
        failures = FailurePolicy(retries=9, ignores_common_failures=True)
        consumers = [source] if source else []
        self.run = run_beside(self.journal, claims=self.claims, failures=failures, search=source, consumers=consumers)
        self.claims.listener = partial(self.run.apply, is_own=False)
        self.queue = Queue(self.run)
        names = [name for name in state.unfinished if not is_placeholder(name) and self.claims.may_run(name)]
        schedule.rng.shuffle(names)
        self.queue.add(map(state.task, names))

    def _state(self) -> History:
        fold, sweep = self.fold, self._schedule.sweep
        return History(
            "s",
            sweep,
            "no dataset",
            self._schedule.folder,
            fold,
        )

    # ---- what it does

    def take(self) -> bool:
        """Start a trial, if there is one; returns whether there is."""
        self.queue.passed_over = frozenset()
        if (task := self.queue.take(self.place, [self.place])) is None:
            return False
        self._schedule.check_folder(task, self)
        self._schedule.check_requests(task, self)
        number = self.queue.start_attempt(task)
        where = self.place._asdict() | {"job": self.session}
        self.run.record(Started(trial=task.trial, attempt=number, generation=0, takeover=task.takeover, **where))
        self.running[task.trial] = task, number
        if self.queue.lacks_draw(len(self.running)):
            self.queue.draw_ahead()
        return True

    def end(self, status: TrialStatus, *, is_retried: bool = False, releases: bool = False) -> None:
        """End a trial that runs; if it is retried, here or elsewhere. One that was cancelled is not."""
        trial = self._schedule.rng.choice(sorted(self.running))
        if status is TrialStatus.FAILED and trial in self.claims.cancelled:
            self.cancel(trial)
            return
        task, number = self.running.pop(trial)
        retried = is_retried if status is TrialStatus.FAILED else None
        event = Ended(trial=trial, attempt=number, status=status, seconds=1.0, metrics={"loss": 1.0}, retried=retried)
        attempt = self.run.record(event)
        if is_retried and not releases:
            self.queue.add([replace(task, earlier=(*task.earlier, attempt))])

    def cancel(self, trial: str) -> None:
        """End a trial that a user has cancelled or another job has taken, and give it back, as `TrialLoop` does."""
        _, number = self.running.pop(trial)
        self.run.record(Ended(trial=trial, attempt=number, status=TrialStatus.INTERRUPTED, error=CANCELLED))
        self.claims.release(trial)

    def end_cancelled(self) -> None:
        """End those that run and that a user has cancelled or another job has taken."""
        for trial, (_, number) in sorted(self.running.items()):
            if trial in self.claims.cancelled or self.claims.has_lost(trial, number):
                self.cancel(trial)

    def report(self) -> None:
        """A row of a trial that runs."""
        trial = self._schedule.rng.choice(sorted(self.running))
        self.run.record(Epoch(trial=trial, attempt=self.running[trial][1], metrics={"epoch": 1, "loss": 1.0}))

    def leave(self) -> None:
        """End as it should: what runs is interrupted."""
        while self.running:
            self.end(TrialStatus.INTERRUPTED)
        with self._schedule.seen_by(self):
            self.fold.commit(self.session)
        self.journal.leave()
        self._schedule.live.discard(self.session)

    def die(self, rng: random.Random) -> None:
        """Stop for ever, perhaps while it writes an event."""
        self._schedule.live.discard(self.session)
        self.has_died, self.running = True, {}
        if rng.random() < 0.3:
            with open(self.journal.path, "ab") as file:
                file.write(b'{"event":"finished","time":1.0,"trial":"t')

    def knows(self, trial: str) -> bool:
        """Whether it runs the trial, or will."""
        return trial in self.running or any(task.trial == trial for task in self.queue._tasks)


class Schedule:
    """A random schedule of a sweep."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed, self.rng, self.folder = seed, random.Random(seed), folder
        self.sweep = SEARCH if self.rng.random() < 0.4 else GRID
        self.requests = self.rng.choice([0.0, 0.08])  # probability of one, in each step
        self.live: set[str] = set()  # sessions whose process runs
        self.is_draining = False
        World.now, World.tokens = 0.0, itertools.count()
        self.stack = ExitStack()
        self.jobs: list[Job] = []
        self.given_up = self.entries = 0
        self.readers: list[tuple[Fold, View]] = []  # that only read, as the live status does
        self._counted = set[str]()  # trials

    def run(self) -> None:
        """Run it.

        Raises:
            ViolationError: a promise is broken.
        """
        (self.folder / SESSIONS).mkdir(parents=True)
        self.readers = [(Fold(self.folder), View("", self.rng)) for _ in range(2)]
        with self.stack:
            self.jobs = [Job(self, number) for number in range(SESSIONS_AT_FIRST)]
            for _ in range(STEPS):
                self._step()
                self._check_kept()
            self.check()
            self._drain()
            self.check()
            self._check_complete()

    @contextmanager
    def seen_by(self, job: Job) -> Iterator[None]:
        """In the block, files are as this job sees them."""
        clock = SimpleNamespace(
            monotonic=lambda: World.now, time=lambda: World.now, sleep=lambda seconds: self._sleep(job, seconds)
        )
        with self._reading(job.view), patch.object(trial_claims, "time", clock):
            yield

    def _sleep(self, job: Job, seconds: float) -> None:
        World.now += seconds
        job.view.look(self.folder)

    def _step(self) -> None:
        rng = self.rng
        World.now += rng.uniform(0, 4)
        running = [job for job in self.jobs if not job.has_died]
        chance = rng.random()
        if rng.random() < 0.2:
            fold, view = rng.choice(self.readers)
            view.look(self.folder)
            with self._reading(view):
                fold.update()
        if rng.random() < self.requests:
            self._request(rng.choice(REQUESTS))
        if chance < 0.03 and len(self.jobs) < 9:  # a job is added: Slurm starts another, or a killed one again
            self.jobs.append(Job(self, len(self.jobs)))
            return
        if not running:
            return
        job = rng.choice(running)
        if chance < 0.05:
            job.die(rng)
        elif chance < 0.07:
            job.leave()
            job.has_died = True
        elif chance < 0.35:
            job.view.look(self.folder)
        else:
            self._act(job)

    def _request(self, kind: str) -> None:
        """Have a user make a request about a trial that is known by now, or about the sweep."""
        log = ClaimLog(self.folder)
        log.read()
        trials = TrialSpace(self.sweep, "no dataset", log.draws).trials
        known = [name for name in trials if not is_placeholder(name)]
        if kind in ("cancel", "restore", "first"):
            if known:
                log.request(UserRequest(kind, World.now, trial=self.rng.choice(known)))
        else:
            log.request(UserRequest(kind, World.now, jobs=self.rng.randint(1, 4) if kind == "jobs" else None))

    def _act(self, job: Job) -> None:
        """Let a job do something, also one that others have given up and that does not know."""
        rng = self.rng
        with self.seen_by(job):
            chance = rng.random()
            if chance < 0.35:
                job.queue.poll()
                if rng.random() < 0.5:  # their programs may take their time
                    job.end_cancelled()
            elif chance < 0.6 and len(job.running) < 2:
                job.take()
            elif job.running and chance < 0.65:
                job.report()
            elif job.running and chance < 0.72:
                job.end(TrialStatus.FAILED, is_retried=True, releases=rng.random() < 0.6)
            elif job.running and chance < 0.74:
                job.end(TrialStatus.FAILED)
            elif job.running:
                job.end(TrialStatus.FINISHED)
            elif chance < 0.8:
                job.queue.await_others()

    def _drain(self) -> None:
        """Let those that run finish the sweep, with nothing in their way; what is cancelled stays so."""
        self.is_draining = True
        self._request("resume")
        for job in self.jobs:
            job.view.is_full = True
        if all(job.has_died for job in self.jobs):
            self.jobs.append(Job(self, len(self.jobs)))
        for _ in range(DRAIN_STEPS):
            World.now += 6.0
            running = [job for job in self.jobs if not job.has_died]
            if not running:
                return
            self._continue(self.rng.choice(running))
        raise ViolationError("the jobs do not end")

    def _continue(self, job: Job) -> None:
        with self.seen_by(job):
            job.queue.poll()
            job.end_cancelled()
            if job.take():
                return
            if job.running:
                job.end(TrialStatus.FINISHED)
            elif not job.queue.await_others() or job.claims.is_held:
                job.leave()
                job.has_died = True

    # ---- promises

    def check_folder(self, task: Task, job: Job) -> None:
        """No program starts in a folder into which another one still writes."""
        for other in self.jobs:
            for each, _ in other.running.values():
                if other is not job and each.folder_name == task.folder_name:
                    raise ViolationError(f"{task.folder_name}: {other.session} still writes where {job.session} starts")

    def check_requests(self, task: Task, job: Job) -> None:
        """What a job has read of a user's requests holds when it starts a trial."""
        requests = job.fold.claims.requests
        if task.trial in requests.cancelled:
            raise ViolationError(f"{task.trial} is cancelled, and {job.session} starts it")
        if requests.paused_at is not None:
            raise ViolationError(f"paused, and {job.session} starts {task.trial}")
        if job.queue.passed_over:
            raise ViolationError(f"{job.session} starts {task.trial} before {job.queue.passed_over}")

    def check(self) -> None:
        """Check what must hold at any time."""
        counted = ended_by_log(self.folder)
        fresh, events = self._read_all()
        by_reader = Counter(attempt.trial for attempt in fresh.attempts.values() if has_ended(attempt))
        for name, counts in (("the log", counted), ("a reader", by_reader)):
            if double := {trial: count for trial, count in counts.items() if count > 1}:
                raise ViolationError(f"by {name}, double: {double}")
        starts = Counter((event.trial, event.attempt) for _, event in events if isinstance(event, Started))
        if double_starts := [key for key, count in starts.items() if count > 1]:
            raise ViolationError(f"two attempts with the same number: {double_starts}")
        self._check_draws(fresh)
        self._check_claims(fresh)
        self._check_owners(fresh)
        self._check_agreement(fresh)
        self.entries, self.given_up = len(fresh.claims.entries), len(fresh.claims.given_up)

    def _check_kept(self) -> None:
        """What counts keeps counting, and its trial is not started again."""
        counted = ended_by_log(self.folder)
        if lost := self._counted - counted.keys():
            raise ViolationError(f"{sorted(lost)} had counted, and do not any more")
        self._counted = set(counted)

    def _read_all(self) -> tuple[Fold, list[tuple[str, Event]]]:
        with self._reading(View("", self.rng, is_full=True)):
            fold = Fold(self.folder)
            return fold, fold.news()

    @contextmanager
    def _reading(self, view: View) -> Iterator[None]:
        before, World.view = World.view, view
        try:
            yield
        finally:
            World.view = before

    def _check_draws(self, fold: Fold) -> None:
        numbers = [event.params["number"] for event in fold.claims.draws]
        if numbers != list(range(len(numbers))) or len(numbers) > TRIALS:
            raise ViolationError(f"draws: {numbers}")

    def _check_claims(self, fold: Fold) -> None:
        """Whoever takes a trial has read all earlier entries: it has not ended, is not cancelled, nothing is paused."""
        requests, ended = UserRequests(), set[str]()
        for entry in fold.claims.entries:
            if entry.request:
                requests.add(entry.number, entry.request)
            elif entry.take and (requests.paused_at is not None or requests.cancelled & {*entry.take}):
                raise ViolationError(f"entry {entry.number} takes {entry.take} in spite of {requests}")
            if again := entry.take.keys() & ended:
                raise ViolationError(f"entry {entry.number} takes {again} again, which have ended")
            ended |= {end.trial for end in entry.ends}

    def _check_owners(self, fold: Fold) -> None:
        """An unfinished trial is free, or a job has it, or its job has died and will be given up."""
        of_session = {job.session: job for job in self.jobs}
        for trial, take in fold.claims.owners.items():
            is_live = fold.is_claimed(trial) and take.session in self.live
            if is_live and not of_session[take.session].knows(trial):
                raise ViolationError(f"{trial} is lost: its owner {take.session} does not know")

    def _check_agreement(self, fresh: Fold) -> None:
        """Who has read now and then knows in the end what somebody knows who reads everything at once."""
        for fold, view in self.readers:
            view.look_at_all(self.folder)
            with self._reading(view):
                fold.update()
            for name in ("attempts", "released", "left"):
                if getattr(fold, name) != getattr(fresh, name):
                    raise ViolationError(f"{name}: {getattr(fold, name)} != {getattr(fresh, name)}")
            if fold.claims.draws != fresh.claims.draws:
                raise ViolationError(f"draws: {fold.claims.draws} != {fresh.claims.draws}")
            if fold.claims.requests != fresh.claims.requests:
                raise ViolationError(f"requests: {fold.claims.requests} != {fresh.claims.requests}")

    def _check_complete(self) -> None:
        ended, (fold, _) = ended_by_log(self.folder), self._read_all()
        trials = TrialSpace(self.sweep, "no dataset", fold.claims.draws).trials
        if left := [trial for trial in trials if not ended[trial] and trial not in fold.claims.requests.cancelled]:
            raise ViolationError(f"without a result: {left}")


def has_ended(attempt: Attempt) -> bool:
    """Whether an attempt has an end after which its trial does not run again."""
    return attempt.outcome is TrialStatus.FINISHED or (attempt.outcome is TrialStatus.FAILED and not attempt.is_retried)


def ended_by_log(folder: Path) -> Counter[str]:
    """How often each trial has ended for good, by the entries alone, and by nothing of what reads them."""
    last, found = dict[str, int](), dict[tuple[str, int], str]()
    for path in sorted((folder / "claims").glob("*.json")):
        entry = json.loads(path.read_bytes())
        for end in entry["end"]:
            if last.get(end["trial"]) == end["attempt"]:
                found[end["trial"], end["attempt"]] = end["event"]
        last |= entry["take"]
    return Counter(trial for trial, _ in found)


def _draw(_: object, drawn: list[object], *__: object) -> tuple[dict[str, float], dict[str, int], dict[str, object]]:
    """A configuration that has its number, and differs in each call."""
    return {"x": (len(drawn) + World.view.rng.random()) / (TRIALS + 1)}, {"number": len(drawn)}, {}


@contextmanager
def model(*, without: str = "") -> Iterator[None]:
    """In the block, schedules can run; `without` a rule of the claims."""
    World.without = frozenset({without})
    with (
        patch.object(attempts, "Reader", StaleReader),
        patch.object(attempts, "ClaimLog", StaleLog),
        patch.object(journal, "session_name", lambda order_job: f"{order_job}-local.0-{next(World.tokens):03}"),
        patch.object(journal, "read_clock", lambda: World.now),
        patch.object(trial_claims, "run_of_snakemake", lambda state: "run"),
        patch.object(search.OptunaStudy, "draw", _draw),
    ):
        yield


def run_schedule(seed: int, parent: Path) -> Schedule:
    """Run a schedule in a folder of its own, which is removed.

    Raises:
        ViolationError: a promise of the claims is broken.
    """
    folder = parent / str(seed)
    try:
        schedule = Schedule(seed, folder)
        schedule.run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return schedule


def memory_folder() -> str | None:
    """A folder in memory, where there is one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def main() -> None:
    """Run schedules, and print what they had and which have broken a promise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=1000, help="(default: 1000)")
    parser.add_argument("--seed", type=int, default=0, help="of the first schedule (default: 0)")
    parser.add_argument("--without", default="", choices=["", *RULES], help="a rule of the claims")
    arguments = parser.parse_args()
    totals: Counter[str] = Counter()
    with TemporaryDirectory(dir=memory_folder()) as folder, model(without=arguments.without):
        for seed in range(arguments.seed, arguments.seed + arguments.schedules):
            try:
                schedule = run_schedule(seed, Path(folder))
            except ViolationError as error:
                totals["broken"] += 1
                print(f"seed {seed}: {error}", flush=True)
            else:
                totals.update(entries=schedule.entries, given_up=schedule.given_up, jobs=len(schedule.jobs))
    print(f"{arguments.schedules} schedules", dict(totals))


if __name__ == "__main__":
    main()
