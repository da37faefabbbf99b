"""Drivers of one sweep as the jobs of Slurm have them, each a process on this machine."""

import json
import shlex
import signal
from collections import Counter

from project import ROOT
from slurm_cluster.waiting import wait_until

TRIALS = 30
BEAT_SECONDS = 0.3  # so that a stopped driver is given up after seconds
LAUNCHER = f"""
import logging, sys
sys.path.insert(0, {str(ROOT / "scripts")!r})
from pathlib import Path
from trainyard.cluster.ray.worker_parent import fork_parent
fork_parent()
from trainyard.config.load import read_config
from trainyard.packing import session_watch, trial_claims
from trainyard.packing.driver import run_sweep

logging.basicConfig(level=logging.INFO)
session_watch.BEAT_SECONDS = trial_claims.BEAT_SECONDS = {BEAT_SECONDS}
run_sweep(read_config(Path("config.yaml")), "s", Path("results"), order_job=int(sys.argv[1]))
"""
SWEEP = {
    "command": "echo {n} >> ran.txt; sleep 0.3",
    "grid": {"n": list(range(TRIALS))},
    "slots": {"jobs": 3, "cpus": 1},
}


class Drivers:
    """The drivers of a sweep, each with the number of its job."""

    def __init__(self, project):
        self.project, self.folder = project, project.results / "sweeps/s"
        self.started = []

    def write(self, **sweep):
        self.project.write({"sweeps": {"s": {**SWEEP, **sweep}}})
        (self.project.folder / "launcher.py").write_text(LAUNCHER)

    def start(self, number):
        """Start the driver of a job."""
        return self.start_command("python", "launcher.py", str(number))

    def start_command(self, *command):
        """Start a command; its output is in a file, so that none waits for its reader."""
        log = f"driver-{len(self.started)}.log"
        (self.project.folder / log).touch()  # `output` may be called before the shell runs
        self.started.append(self.project.start("sh", "-c", f"exec {shlex.join(command)} > {log} 2>&1"))
        return self.started[-1]

    def output(self, driver):
        return (self.project.folder / f"driver-{self.started.index(driver)}.log").read_text()

    def end(self, *drivers):
        """Wait for their ends, as they should be."""
        for driver in drivers:
            assert driver.wait(timeout=300) == 0, self.output(driver)

    def ran(self):
        """How often each command has run."""
        path = self.project.folder / "ran.txt"
        return Counter(path.read_text().split()) if path.exists() else Counter()

    def sessions(self):
        """The sessions that have finished a trial, with their trials."""
        found = {}
        for path in (self.folder / "sessions").glob("*.jsonl"):
            events = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
            if trials := [event["trial"] for event in events if event["event"] == "finished"]:
                found[path.stem] = trials
        return found

    def await_work_of(self, number, trials=2):
        """Wait until the driver of a job has finished so many trials; returns its session."""

        def find():
            sessions = self.sessions().items()
            return next((name for name, done in sessions if name.startswith(f"{number}-") and len(done) >= trials), "")

        return wait_until(find, what=f"{trials} trials of job {number}")

    def kill_all(self):
        for driver in self.started:
            if driver.poll() is None:
                driver.send_signal(signal.SIGCONT)
                self.project.kill_session(driver)
