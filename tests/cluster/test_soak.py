"""A sweep of 300 short trials survives five minutes in which something breaks every few seconds."""

import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from fault_runs import Sweep, ended_at_last, seconds_since, write_record
from slurm_cluster.cluster import Cluster
from slurm_cluster.hosts import Host
from slurm_cluster.waiting import wait_until

pytestmark = pytest.mark.slow

SEED = 14
FAULT_SECONDS = 300
PAUSES = (2.0, 6.0)  # seconds between two faults
CUT_SECONDS = 10.0
TIMEOUT_SECONDS = 7200


class Soak(Sweep):
    """A sweep in four jobs with two GPUs each. A trial may lose many attempts, none of which is its own fault."""

    trials, lasts = 300, 5.0
    options = {"slots": {"jobs": 4, "gpus_per_node": 2}, "retries": 50, "max_failed_fraction": 1}


def worker(run: Sweep, dice: random.Random) -> None:
    kill(run.place_of(dice.choice(run.running())), dice)


def driver(run: Sweep, dice: random.Random) -> None:
    kill((run.driver_host, int(run.session["process"])), dice)


def raylet(run: Sweep, dice: random.Random) -> None:
    kill_named("raylet", dice.choice(list(run.cluster.hosts.values())), dice)


def slurmstepd(run: Sweep, dice: random.Random) -> None:
    kill_named("slurmstepd", dice.choice(list(run.cluster.hosts.values())), dice)


def slurmd(run: Sweep, dice: random.Random) -> None:
    """Kill slurmd on a host, where the site's service manager starts it again."""
    host = dice.choice(list(run.cluster.hosts.values()))
    host.kill_slurmd()
    host.start_slurmd()


def network(run: Sweep, dice: random.Random) -> None:
    host = dice.choice(list(run.cluster.hosts.values()))
    host.disconnect()
    time.sleep(CUT_SECONDS)
    host.reconnect()


def cancel(run: Sweep, dice: random.Random) -> None:
    run.cluster.run(["scancel", str(run.jobs()[-1])], check=False)


# How often each is chosen: what ends the job, which takes a while to start, less often.
WHILE_TRIALS_RUN = {worker: 24, raylet: 2, driver: 1, slurmstepd: 1, cancel: 1}
ALWAYS = {network: 3, slurmd: 3}


def kill(place: tuple[Host, int], dice: random.Random) -> None:
    host, process = place
    host.run(["kill", f"-{dice.choice(['KILL', 'TERM', 'SEGV'])}", str(process)], check=False)


def kill_named(name: str, host: Host, dice: random.Random) -> None:
    """Kill one of them: without any slurmstepd, nobody would end what a job has left on its host."""
    if found := [process for process in host.processes() if process.name == name]:
        dice.choice(found).signal(signal.SIGKILL)


@pytest.mark.timeout(TIMEOUT_SECONDS)
def test_after_five_minutes_of_random_faults_all_trials_have_finished_once(cluster: Cluster, shared_dir: Path) -> None:
    dice, counts = random.Random(SEED), Counter()
    run = Soak(cluster, shared_dir / "project")
    with ended_at_last(run):
        run.write()
        run.open()
        run.start()
        wait_until(run.finished, what="a first trial", while_running=run.commands[-1])
        start = time.time()
        while not run.is_complete():
            assert seconds_since(start) < TIMEOUT_SECONDS, run.story()
            if seconds_since(start) < FAULT_SECONDS:
                faults = ALWAYS | (WHILE_TRIALS_RUN if run.running() else {})
                (fault,) = dice.choices(list(faults), weights=list(faults.values()))
                fault(run, dice)
                counts[fault.__name__] += 1
            if run.commands[-1].poll() is not None and not run.is_complete():
                run.start()
            time.sleep(dice.uniform(*PAUSES))
        if run.wait_for_command() != 0:  # a job was ended more often than it is tried again, and others did its work
            run.start()
        assert run.wait_for_command() == 0, run.output()
        tries, finished = run.attempts(), [attempt.trial for attempt in run.finished()]
        write_record(
            "soak",
            {
                "group": "Soak",
                "seed": SEED,
                "fault_seconds": FAULT_SECONDS,
                "trials": run.trials,
                "faults": dict(counts.most_common()),
                "seconds": seconds_since(start),
                "jobs": len(run.jobs()),
                "commands": len(run.commands),
                "attempts": len(tries),
                "failed": len(tries) - len(finished),
                "finished": len(set(finished)),
                "repeated": len(finished) - len(set(finished)),
            },
            run.output(),
        )
        assert len(finished) == len(set(finished)) == run.trials
        assert run.results() == run.undisturbed()
        assert run.leftovers() == []
