"""Checks of nodes: a short Slurm job, like the largest job of the config, and the findings from its reports."""

import contextlib
import secrets
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from trainyard.checks.findings import Finding
from trainyard.checks.node_probe import LOCK, LOCK_REMEDY, LOG, JobReport, read_job, read_nodes
from trainyard.checks.sbatch_requests import SbatchRequest
from trainyard.cluster import slurm_queries
from trainyard.planning.claims import ClaimLog
from trainyard.utils.errors import StorageError, UserError
from trainyard.utils.import_path import helper_command
from trainyard.utils.locks import hold

WALLTIME_MINUTES = 8  # it usually takes one
POLL_SECONDS = 3  # between queries of the job, which load the controller
VISIBILITY_SECONDS = 60  # until a file that a node wrote is visible here on a network file system


def probe_nodes(
    requests: Sequence[SbatchRequest], results: Path, *, wait_minutes: float, notify: Callable[[str], None]
) -> Iterator[Finding]:
    """Submit the job, wait for its end and yield what it found; a job that does not end in time is cancelled."""
    folder = results.absolute() / f".doctor-{secrets.token_hex(4)}"
    folder.mkdir(parents=True)
    try:
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(hold(folder / LOCK))  # as a driver holds its journal
                ClaimLog(folder).append("login node")  # as a driver claims trials
            except StorageError as error:
                yield Finding("locks", "fails", str(error), LOCK_REMEDY)
                return
            job, line = _submit(requests, folder)
            stack.callback(subprocess.run, ["scancel", "--quiet", job], check=False)
            notify(f"submitted job {job}: {line}")
            has_ended = _wait_for_end(job, folder, wait_minutes * 60, notify)
        _wait_until_visible(folder)
        if report := read_job(folder):
            yield from merge_findings(report, read_nodes(folder))
        elif not has_ended:
            remedy = "see `squeue --me --start`, and allow more time with --wait-minutes"
            yield Finding("node", "unknown", f"job {job} had not ended after {wait_minutes:g} minutes", remedy)
        else:
            output = (folder / LOG).read_text().strip()[-500:] if (folder / LOG).exists() else "(nothing)"
            remedy = "put this folder and this Python on a file system that the nodes share"
            yield Finding("node", "fails", f"job {job} wrote no report into {folder}; its output: {output}", remedy)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _submit(requests: Sequence[SbatchRequest], folder: Path) -> tuple[str, str]:
    """Submit a job like the largest request, but short and on at most two nodes; returns its ID and sbatch's line."""
    like = max(requests, key=lambda each: (bool(each.gpus), each.options.nodes))
    options = like.options
    named = {"account": options.account, "partition": options.partition, "qos": options.qos,
             "constraint": options.constraint, "mem": f"{like.mem_mb:g}" if like.mem_mb else "",
             "gres": f"gpu:{like.gpus}" if like.gpus else ""}  # fmt: skip
    nodes = min(2, max(each.options.nodes for each in requests))
    line = ["sbatch", "--parsable", f"--time={WALLTIME_MINUTES}", f"--nodes={nodes}", "--ntasks-per-node=1"]
    line += [f"--cpus-per-task={like.cpus}"]
    line += [f"--{name}={value}" for name, value in named.items() if value]
    line += ["--job-name=trainyard-doctor", f"--chdir={folder}", f"--output={LOG}"]
    wrapped = shlex.join([*helper_command("checks.node_probe"), "job", str(folder)])
    done = subprocess.run([*line, "--wrap", wrapped], text=True, capture_output=True, check=False)
    if done.returncode:
        raise UserError(f"`{shlex.join(line)}` failed: {done.stderr.strip()}")
    return done.stdout.strip().split(";")[0], shlex.join(line)


def _wait_for_end(job: str, folder: Path, seconds: float, notify: Callable[[str], None]) -> bool:
    """Wait until the job has left the queue, and report each change of its state; False if it has not in time."""
    end = time.monotonic() + seconds
    last = ""
    while time.monotonic() < end:
        with contextlib.suppress(UserError):  # Slurm does not respond; it may next time
            state = slurm_queries.job_state(job)
            if state not in ("", last):
                notify(f"job {job} is {state.removesuffix(': None')}")
            if not state and (last or read_job(folder)):
                return True
            last = state or last
        time.sleep(POLL_SECONDS)
    return False


def _wait_until_visible(folder: Path) -> None:
    """Wait until the last version of the report is visible here, if the job has written something."""
    end = time.monotonic() + VISIBILITY_SECONDS
    while (folder / LOG).exists() and time.monotonic() < end:
        report = read_job(folder)
        if report and report.has_ended:
            return
        time.sleep(0.5)


# ---- the findings


def merge_findings(job: JobReport, nodes: Mapping[str, Sequence[Finding]]) -> Iterator[Finding]:
    """The findings about a job; a finding of several nodes is one."""
    if missing := set(job.nodes) - nodes.keys():
        remedy = "the nodes must have this folder and this Python at the same paths"
        message = f"no report from {', '.join(sorted(missing))}: {job.step_error or 'the job ended before'}"
        yield Finding("node", "fails", message, remedy)
    elif job.allocation:
        yield Finding("node", "ok", job.allocation)
    found_on = dict[Finding, list[str]]()
    for node, findings in nodes.items():
        for finding in findings:
            found_on.setdefault(finding, []).append(node)
    for finding, names in found_on.items():
        yield replace(finding, message=f"{', '.join(names)}: {finding.message}")
    yield from job.findings
    if not job.has_ended:
        message = f"the job ended before it had checked all: {job.step_error or f'see its output, {LOG}'}"
        yield Finding("node", "fails", message, "run the doctor again, or on another node")
