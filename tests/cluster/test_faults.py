"""The table of faults: each is injected into a real run, and the same command afterwards completes the work.

`make test-all` runs all rows and writes docs/faults.md; `make test` runs those of `in_test`.
"""

import re
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import fault_page
import pandas as pd
import pytest
from fault_runs import FaultyTrials, Run, ended_at_last, seconds_since, write_record
from fault_table import SWEEP, TRAINING, TRIALS, Fault, TrialFault
from slurm_cluster.cluster import Cluster


@dataclass(frozen=True)
class Measured:
    """What happened after a fault."""

    group: str
    fault: str
    jobs: int  # submitted
    finished_before: int  # trials or epochs
    lost: int
    repeated: int
    seconds_to_end: float  # from the fault to the end of the job
    bound_seconds: float
    seconds_to_recover: float  # from the end of the job until all work was finished
    holds: bool = False


def rows() -> list[object]:
    marked = []
    for fault in [*SWEEP, *TRAINING]:
        marks = [] if fault.in_test else [pytest.mark.slow]
        if fault.defect:
            marks.append(pytest.mark.xfail(reason=fault.defect, strict=True))
        marked.append(pytest.param(fault, marks=marks, id=f"{fault.job.__name__}: {fault.name}"))
    return marked


@pytest.mark.parametrize("fault", rows())
def test_after_a_fault_the_same_command_completes_the_work(cluster: Cluster, shared_dir: Path, fault: Fault) -> None:
    base = cluster.small / shared_dir.name if fault.in_small else shared_dir
    run = fault.job(cluster, base / "project", resources=fault.resources, nodes=fault.nodes)
    left = run.leftovers()  # by an earlier test, on a host that was cut off
    with ended_at_last(run):
        run.write()
        fault.before(run)
        expected = run.undisturbed()
        run.start(*(["--retries", "0"] if fault.then else []), minutes=fault.minutes)
        run.wait_for_progress()
        before = run.units()
        injected = time.time()
        fault.inject(run)
        if fault.opens:
            run.open()
        run.wait_for_end_of(run.jobs()[0], timeout_seconds=fault.bound_seconds + 60)
        to_end, ended = seconds_since(injected), time.time()
        recovered = recover(run, fault, ended)
        measured = Measured(
            group=fault.job.__name__,
            fault=fault.name,
            jobs=len(run.jobs()),
            finished_before=len(before),
            lost=sum(run.units().get(name) != value for name, value in before.items()),
            repeated=len(run.repeated(before)),
            seconds_to_end=to_end,
            bound_seconds=fault.bound_seconds,
            seconds_to_recover=recovered,
        )
        save(measured, run.output())
        assert (measured.lost, measured.repeated) == (0, 0), run.story()
        assert run.results() == expected, run.story()
        for pattern in fault.shows:
            assert re.search(pattern, run.output()), run.story()
        assert to_end <= fault.bound_seconds, run.story()
        assert [each for each in run.leftovers(except_for=fault.leaves) if each not in left] == []
        assert run.is_complete(), "what ended last has removed results"
        assert run.results() == expected
        save(replace(measured, holds=True), run.output())


def test_the_page_shows_what_was_lost_or_does_not_hold_if_anything_was():
    measured = Measured("Sweep", "driver killed", 2, 2, 0, 0, 0.4, 60, 9.9, holds=True)
    rows = [{**asdict(each), "defect": ""} for each in (measured, replace(measured, lost=1, holds=False))]
    assert fault_page.table(rows[:1]).splitlines()[0].count("|") == 4
    header, _, good, bad = fault_page.table(rows).splitlines()
    assert header.endswith(" | lost | does not hold |")
    assert good.endswith("| 9.9 | 0 |  |")
    assert bad.endswith("| 9.9 | 1 | **yes** |")


@pytest.mark.slow
def test_a_trial_that_fails_in_any_way_is_retried_and_affects_no_other(cluster: Cluster, shared_dir: Path) -> None:
    run = FaultyTrials(cluster, shared_dir / "project", codes=[fault.code for fault in TRIALS])
    with ended_at_last(run):
        run.write()
        run.start()
        assert run.wait_for_command() == 0, run.story()
    numbers = pd.read_csv(run.seen / run.target).set_index("n")["trial"]
    for number, fault in enumerate(TRIALS):
        tries = [attempt for attempt in run.attempts() if attempt.trial == numbers[number]]
        assert tuple(attempt.outcome for attempt in tries) == fault.outcomes, run.story()
        assert re.search(fault.shows, tries[0].error), tries[0].error
        before = {each.trial: each.metrics for each in run.finished() if each.end <= tries[0].start}
        taken = tries[0].end - tries[0].start
        save(
            Measured(
                group="Trial",
                fault=fault.name,
                jobs=len(run.jobs()),
                finished_before=len(before),
                lost=len(before.keys() - run.units().keys()),
                repeated=len(run.repeated(before)),
                seconds_to_end=round(taken, 1),
                bound_seconds=fault.bound_seconds,
                seconds_to_recover=round(tries[-1].end - tries[0].end, 1),
                holds=True,
            ),
            run.output(),
        )
        assert taken <= fault.bound_seconds
    whole = {number for number, name in numbers.items() if name in run.units()}
    results, expected = run.results(), run.undisturbed()
    assert {number: results[number] for number in whole} == {number: expected[number] for number in whole}
    assert len(whole) == len(numbers) - 1, "all but the one that diverged"
    assert run.leftovers() == []


def recover(run: Run, fault: Fault, ended: float) -> float:
    """Let the first command end, and run it again unless it has completed the work; the seconds since the end."""
    if fault.then:
        run.wait_for_command()
        fault.then(run)
    if fault.decision:
        run.start()
        assert run.wait_for_command() != 0, run.story()
        assert re.search(fault.decision, run.output()), run.story()
        fault.decide(run)
    run.open()
    for command in run.commands:
        command.wait(timeout=900)
    if not run.is_complete():
        run.start()
        assert run.wait_for_command() == 0, run.story()
    assert run.is_complete(), run.story()
    return seconds_since(ended)


def save(measured: Measured, output: str) -> None:
    """Keep a measured row for docs/faults.md."""
    order = [*TRIALS, *SWEEP, *TRAINING]
    number, fault = next((number, fault) for number, fault in enumerate(order) if is_row_of(measured, fault))
    write_record(
        f"{measured.group}-{measured.fault}", asdict(measured) | {"number": number, "defect": fault.defect}, output
    )


def is_row_of(measured: Measured, fault: Fault | TrialFault) -> bool:
    group = fault.job.__name__ if isinstance(fault, Fault) else "Trial"
    return (measured.group, measured.fault) == (group, fault.name)
