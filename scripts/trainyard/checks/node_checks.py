"""Checks of nodes: a short Slurm job, like the largest job of the config, and the findings from its reports."""

import contextlib
import secrets
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trainyard.checks.findings import Finding
from trainyard.checks.node_probe import LOCK, LOG, NONCE, JobReport, NodeReport, read_job, read_nodes
from trainyard.checks.sbatch_requests import SbatchRequest
from trainyard.cluster import slurm_queries
from trainyard.planning.claims import ClaimLog
from trainyard.utils.errors import StorageError, UserError
from trainyard.utils.files import write_json
from trainyard.utils.import_path import helper_command
from trainyard.utils.locks import hold

MIN_TMP_GIB = 1  # for Ray's files
WALLTIME_MINUTES = 8  # it usually takes one
POLL_SECONDS = 3  # between queries of the job, which load the controller
TORCH = "install trainyard[train] to check this; only `train` in sweeps and scaling studies needs it"
VISIBILITY_SECONDS = 60  # until a file that a node wrote is visible here on a network file system


def probe_nodes(
    requests: Sequence[SbatchRequest], results: Path, *, wait_minutes: float, notify: Callable[[str], None]
) -> Iterator[Finding]:
    """Submit the job, wait for its end and yield what it found; a job that does not end in time is cancelled."""
    folder = results.absolute() / f".doctor-{secrets.token_hex(4)}"
    folder.mkdir(parents=True)
    try:
        nonce, lock_error = secrets.token_hex(8), ""
        write_json(folder / NONCE, nonce)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(hold(folder / LOCK))  # as a driver holds its journal
                ClaimLog(folder).append("login node")  # as a driver claims trials
            except StorageError as error:
                lock_error = str(error)
            job, line = _submit(requests, folder)
            stack.callback(subprocess.run, ["scancel", "--quiet", job], check=False)
            notify(f"submitted job {job}: {line}")
            has_ended = _wait_for_end(job, folder, wait_minutes * 60, notify)
        _wait_until_visible(folder)
        if report := read_job(folder):
            yield from check_nodes(report, list(read_nodes(folder)), nonce=nonce, lock_error=lock_error)
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
    end, last = time.monotonic() + seconds, ""
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
        if report and (report.has_ended or report.slurm_error):
            return
        time.sleep(0.5)


# ---- the findings


@dataclass(frozen=True)
class Reports:
    """All reports of a job, and what the login node knows."""

    job: JobReport
    nodes: Sequence[NodeReport]
    nonce: str
    lock_error: str  # why the login node could not lock a file; "" if it could


def check_nodes(job: JobReport, nodes: Sequence[NodeReport], *, nonce: str, lock_error: str) -> Iterator[Finding]:
    """Yield the findings of a job."""
    if not job.allocation:
        yield Finding("node", "fails", job.slurm_error, "Slurm's programs must be on PATH on the nodes, too")
        return
    reports = Reports(job, nodes, nonce, lock_error)
    for check in NODE_CHECKS:
        yield from check(reports)


def check_reports(reports: Reports) -> Iterator[Finding]:
    """A step ran on every node of the job."""
    if missing := set(reports.job.nodes) - {each.node for each in reports.nodes}:
        remedy = "the nodes must have this folder and this Python at the same paths"
        message = f"no report from {', '.join(sorted(missing))}: {reports.job.step_error or 'the job ended before'}"
        yield Finding("node", "fails", message, remedy)
    else:
        yield Finding("node", "ok", reports.job.allocation)


def check_shared_files(reports: Reports) -> Iterator[Finding]:
    """Every node reads what the login node wrote."""
    if others := [each.node for each in reports.nodes if each.nonce != reports.nonce]:
        message = f"{', '.join(others)}: another folder is at this path"
        yield Finding("shared files", "fails", message, "work on a shared file system")
    elif reports.nodes:
        yield Finding("shared files", "ok", f"read and written on {', '.join(each.node for each in reports.nodes)}")


def check_locks(reports: Reports) -> Iterator[Finding]:
    """A lock of the login node holds on the nodes: two programs do not train the same study at the same time."""
    errors = (each.lock for each in reports.nodes if not each.lock_held)
    if error := reports.lock_error or next(filter(None, errors), ""):
        yield Finding("locks", "fails", error, "keep the results on a file system with locks")
    elif local := [each.node for each in reports.nodes if not each.lock_held]:
        message = f"a file that this machine has locked can be locked on {', '.join(local)}: locks are local to a node"
        remedy = "do not start the same study twice; ask for NFS without `nolock`, or Lustre with `-o flock`"
        yield Finding("locks", "warns", message, remedy)
    elif reports.nodes:
        yield Finding("locks", "ok", "a lock of this machine holds on the nodes")


def check_claims(reports: Reports) -> Iterator[Finding]:
    """A link to a name that exists fails on all nodes: no two jobs of a sweep claim the same trial."""
    if error := next((each.claims for each in reports.nodes if each.claims), ""):
        yield Finding("claims", "fails", error, "keep the results on a file system with hard links that nodes share")
    elif reports.nodes:
        yield Finding("claims", "ok", "the nodes agree on the order of hard links: sweeps may have several jobs")


def on_nodes(check: Callable[[JobReport, NodeReport], Finding]) -> Callable[[Reports], Iterator[Finding]]:
    """Check each node; yields a finding once for all nodes with the same."""

    def check_all(reports: Reports) -> Iterator[Finding]:
        nodes: dict[Finding, list[str]] = {}
        for each in reports.nodes:
            nodes.setdefault(check(reports.job, each), []).append(each.node)
        yield from (replace(found, message=f"{', '.join(names)}: {found.message}") for found, names in nodes.items())

    return check_all


@on_nodes
def check_temporary_folders(_: JobReport, node: NodeReport) -> Finding:
    """The temporary folder of a node has space, and programs can be executed there."""
    message = f"{node.tmp_gib:.1f} GiB free in {node.tmp}"
    if node.tmp_gib < MIN_TMP_GIB:
        remedy = f"Ray needs {MIN_TMP_GIB} GiB there: set TMPDIR to a folder of the nodes with more space"
        return Finding("temporary files", "fails", message, remedy)
    if not node.tmp_executes:
        remedy = "torch.compile needs it: set TMPDIR to a folder of the nodes that permits it"
        return Finding("temporary files", "warns", f"{message}, which forbids execution (noexec)", remedy)
    return Finding("temporary files", "ok", message)


@on_nodes
def check_cpus(job: JobReport, node: NodeReport) -> Finding:
    """A step can use the CPUs that the job has: it is not bound to fewer."""
    wanted = min(job.cpus_per_node, node.machine_cpus)
    if node.cpus >= wanted:
        return Finding("CPUs", "ok", f"a step can use its {wanted}")
    remedy = "ask the site's administrators about TaskPluginParam and the cgroups of steps"
    return Finding("CPUs", "fails", f"a step is bound to {node.cpus} of its {wanted}", remedy)


def check_python(reports: Reports) -> Iterator[Finding]:
    """Ray can be imported, and torch if it is installed."""
    for each in reports.nodes:
        if each.import_error:
            yield Finding(
                "Python", "fails", f"{each.node}: {each.python}: {each.import_error}", "install Trainyard again"
            )
            return
    versions = (
        f"Python {each.python}, torch {each.torch or '(not installed)'}, Ray {each.ray}" for each in reports.nodes
    )
    for text in dict.fromkeys(versions):
        yield Finding("Python", "ok", text)


def check_gpus(reports: Reports) -> Iterator[Finding]:
    """Torch computes on every GPU of the job, on every node."""
    if not (wanted := reports.job.gpus_per_node):
        yield Finding("GPU", "ok", "not needed: no job of the config requests one")
        return

    @on_nodes
    def check(_: JobReport, node: NodeReport) -> Finding:
        count = len(node.devices)
        if count == wanted:
            names = ", ".join(f"{node.devices.count(name)} {name}" for name in dict.fromkeys(node.devices))
            return Finding("GPU", "ok", f"torch computes on {names}; CUDA {node.cuda}")
        if not count and not node.driver:
            message = f"Slurm allocated {wanted}, but there is no NVIDIA driver: training would run on the CPU"
            return Finding("GPU", "fails", message, "ask the site's administrators whether these GPUs are real")
        if node.lacks_torch:
            return Finding("GPU", "unknown", f"{wanted} allocated, and not tried: torch is not installed", TORCH)
        if node.device_error or count:
            message = f"torch computes on {count} of {wanted}; {node.device_error or 'it finds no others'}"
            remedy = "check the node with `nvidia-smi`, and report it to its administrators"
            return Finding("GPU", "fails", message, remedy)
        build = f"is built for CUDA {node.cuda}" if node.cuda else "is built without CUDA"
        message = f"torch finds none of {wanted}; it {build}, and the node has {node.driver}"
        return Finding("GPU", "fails", message, "install a torch for this driver: see https://pytorch.org/get-started")

    yield from check(replace(reports, nodes=[each for each in reports.nodes if not each.import_error]))


def check_meeting(reports: Reports) -> Iterator[Finding]:
    """Ranks on two nodes meet at the address that trainings use, and reduce a value."""
    job = reports.job
    if len(job.nodes) < 2:
        yield Finding("network", "ok", "not needed: no job of the config has several nodes")
    elif any(each.lacks_torch for each in reports.nodes):
        yield Finding("network", "unknown", "the nodes did not meet: torch is not installed", TORCH)
    elif job.meeting:
        reached = f"{job.nodes[1]} reached {job.nodes[0]} at {job.meeting['address']}"
        through = f" through {job.meeting['interface']}" if job.meeting["interface"] else ""
        yield Finding("network", "ok", f"{reached}{through}; all-reduce with {job.meeting['backends']}")
    else:
        remedy = "the names and addresses of nodes must be right on all nodes, and no firewall between them"
        message = job.meeting_error or "the job ended before the nodes met"
        yield Finding("network", "fails", message, remedy)


def check_ray(reports: Reports) -> Iterator[Finding]:
    """Ray starts on the first node of a job."""
    if reports.job.ray:
        yield Finding("Ray", "ok", reports.job.ray)
    else:
        message = reports.job.ray_error or "the job ended before Ray had started"
        yield Finding("Ray", "fails", message, "see the message; Ray needs free ports and memory on the nodes")


NODE_CHECKS: tuple[Callable[[Reports], Iterable[Finding]], ...] = (
    check_reports,
    check_shared_files,
    check_locks,
    check_claims,
    check_temporary_folders,
    check_cpus,
    check_python,
    check_gpus,
    check_meeting,
    check_ray,
)
