"""Jobs that share the trials of one sweep: their makespan over its lower bound, and what their claims cost.

python benchmarks/claims.py [--trials 10000] [--seconds 0.05] [--jobs 8] [--slots 4] [--folder FOLDER]

Each job is a process with the real log of claims, journal, order and queue, without Ray: a trial only takes time, half
to one and a half times its mean. `--folder` puts the files on another file system, such as a network one.
"""

import argparse
import heapq
import multiprocessing
import random
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.synchronize import Barrier
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from common import print_table, queue_beside
from trainyard.config.sweep import CommandSweep
from trainyard.config.trial_status import TrialStatus
from trainyard.packing.session_watch import SessionWatch
from trainyard.packing.trial_claims import TrialClaims
from trainyard.packing.trial_queue import TrialQueue
from trainyard.planning.attempts import Fold
from trainyard.planning.claims import ClaimLog
from trainyard.planning.history import History
from trainyard.planning.journal import SESSIONS, Ended, Journal, Location, SessionStarted, Started

FILE_CALLS = ("open", "os.link", "os.listdir", "os.scandir", "os.remove", "os.utime")  # audit events


@dataclass
class Measured:
    """What one job has measured."""

    trials: int = 0
    start: float = 0.0  # Unix seconds
    end: float = 0.0
    claims: list[float] = field(default_factory=list)  # seconds of each
    other_seconds: float = 0.0  # of looks at what others do
    lost: int = 0  # races
    calls: Counter[str] = field(default_factory=Counter)  # of the file system


def _state(folder: Path, fold: Fold, arguments: argparse.Namespace) -> History:
    sweep = CommandSweep.model_validate(
        {
            "command": "true {x}",
            "grid": {"x": {"start": 1, "stop": arguments.trials}},
            "slots": {"cpus": arguments.slots, "jobs": arguments.jobs},
        }
    )
    return History("s", sweep, "no dataset", folder, fold)


def _run_job(folder: Path, number: int, arguments: argparse.Namespace, barrier: Barrier, results: Any) -> None:
    """Run trials until none is left, and send what was measured."""
    measured, is_counting = Measured(), False

    def count(event: str, _: object) -> None:
        if is_counting and event in FILE_CALLS:
            measured.calls[event] += 1

    def append(log: ClaimLog, *options: Any, **content: Any) -> bool:
        is_won = original(log, *options, **content)
        measured.lost += not is_won
        return is_won

    original = ClaimLog.append
    sys.addaudithook(count)
    with (
        patch.object(ClaimLog, "append", append),
        Journal.of_new_session(folder, order_job=number) as journal,
        SessionWatch(folder / SESSIONS, journal.session) as watch,
    ):
        fold = Fold(folder).update()
        state = _state(folder, fold, arguments)
        claims = _TimedClaims(state, journal, watch)
        claims.measured = measured
        journal.record(SessionStarted(job=str(number), node="here", slots=arguments.slots))
        queue = queue_beside(journal, claims)
        queue.add(state.task(name) for name in state.unfinished)
        barrier.wait()
        is_counting, measured.start = True, time.time()
        _run_trials(queue, journal, measured, arguments)
        is_counting, measured.end = False, time.time()
        journal.leave()
    results.put(measured)


class _TimedClaims(TrialClaims):
    """Measures its claims."""

    measured = Measured()

    def claim(self, trials: Any, *, seconds: float = 0.0) -> bool:
        began = time.perf_counter()
        try:
            return super().claim(trials, seconds=seconds)
        finally:
            self.measured.claims.append(time.perf_counter() - began)


def _run_trials(queue: TrialQueue, journal: Journal, measured: Measured, arguments: argparse.Namespace) -> None:
    place, running = Location("", "here", "", 0), list[tuple[float, str, int, float]]()
    while True:
        began = time.perf_counter()
        queue.poll()
        measured.other_seconds += time.perf_counter() - began
        while len(running) < arguments.slots and (task := queue.take(place, [place] * arguments.slots)):
            attempt, seconds = queue.start_attempt(task), arguments.seconds * random.uniform(0.5, 1.5)
            journal.record(Started(trial=task.trial, attempt=attempt, node="here", slot=len(running)))
            heapq.heappush(running, (time.time() + seconds, task.trial, attempt, seconds))
        if not running:
            if not queue.await_others():
                return
            continue
        end, trial, attempt, seconds = heapq.heappop(running)
        time.sleep(max(0.0, end - time.time()))
        ended = Ended(trial=trial, attempt=attempt, status=TrialStatus.FINISHED, seconds=seconds, metrics={})
        journal.record(ended, then=lambda: None)
        queue.note_finished(trial, seconds)
        measured.trials += 1


def _run_jobs(folder: Path, arguments: argparse.Namespace) -> list[Measured]:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(arguments.jobs), context.Queue()
    jobs = [
        context.Process(target=_run_job, args=(folder, number, arguments, barrier, results))
        for number in range(arguments.jobs)
    ]
    for job in jobs:
        job.start()
    found = [results.get() for _ in jobs]
    for job in jobs:
        job.join()
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10_000, help="(default: 10000)")
    parser.add_argument("--seconds", type=float, default=0.05, help="mean of a trial (default: 0.05)")
    parser.add_argument("--jobs", type=int, default=8, help="processes (default: 8)")
    parser.add_argument("--slots", type=int, default=4, help="of each job (default: 4)")
    parser.add_argument("--folder", type=Path, help="where the sweep's files are (default: a temporary folder)")
    arguments = parser.parse_args()
    with TemporaryDirectory(dir=arguments.folder) as name:
        found, log = _run_jobs(Path(name), arguments), ClaimLog(Path(name))
        entries = len(log.read())
        counted = Counter(attempt.outcome for attempt in Fold(Path(name)).update().attempts.values())
    assert counted == {TrialStatus.FINISHED: arguments.trials}, counted
    assert sum(each.trials for each in found) == arguments.trials, "a trial has run twice"
    wall = max(each.end for each in found) - min(each.start for each in found)
    bound = arguments.trials * arguments.seconds / (arguments.jobs * arguments.slots)
    claims = sorted(seconds for each in found for seconds in each.claims)
    calls: Counter[str] = sum((each.calls for each in found), Counter())
    in_claims = statistics.fmean(sum(each.claims) for each in found)
    in_looks = statistics.fmean(each.other_seconds for each in found)
    others = calls.total() - calls["open"]
    rows = [
        ["makespan (s)", f"{wall:.1f}"],
        ["lower bound (s)", f"{bound:.1f}"],
        ["relative", f"{wall / bound:.3f}"],
        ["entries of the log", str(entries)],
        ["races lost", str(sum(each.lost for each in found))],
        ["claim p50 (ms)", f"{1e3 * statistics.median(claims):.1f}"],
        ["claim p95 (ms)", f"{1e3 * claims[int(0.95 * len(claims))]:.1f}"],
        ["seconds in claims, per job", f"{in_claims:.2f}"],
        ["seconds in looks at other jobs, per job", f"{in_looks:.2f}"],
        ["files opened per trial", f"{calls['open'] / arguments.trials:.2f}"],
        ["other calls per trial (link, list, remove, touch)", f"{others / arguments.trials:.2f}"],
    ]
    print_table(["measure", f"{arguments.trials:,} trials, {arguments.jobs} jobs of {arguments.slots} slots"], rows)


if __name__ == "__main__":
    main()
