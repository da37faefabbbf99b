"""The script of a Slurm job array as a sweep: each trial runs the script as a task of the array did."""

import argparse
import math
import re
import shlex
from itertools import takewhile
from pathlib import Path, PurePath
from typing import Any, Final

from trainyard.checks.sbatch_requests import SBATCH_OPTIONS
from trainyard.cli.imported_sweep import ImportedSweep
from trainyard.cluster.slurm_queries import parse_gpus
from trainyard.config.sweep import MAX_JOBS
from trainyard.programs.started_scripts import starts_program
from trainyard.utils.errors import UserError

JOBS: Final = 16  # for an array without a limit of tasks at a time
_SIGNALS: Final = {"2": "INT", "10": "USR1", "12": "USR2"}  # sbatch takes numbers, too
_PIPEFAIL: Final = "-o pipefail"
TASK: Final = "SLURM_ARRAY_TASK_ID"
_JOB_ID: Final = "${SLURM_JOB_ID:-$((16#${TRAINYARD_TRIAL:-0}))}"  # a trial has an ID of its own, also outside of Slurm
_ASSIGNMENT: Final = re.compile(r"(?:export\s+|local\s+|declare\s+)?(\w+)=")
_NO_WORK: Final = re.compile(r"#|(set|echo|then|else|elif|if|fi|for|while|do|done|case|esac|exit|wait)\b|[(){}]")
_VARIABLES: Final = {  # of a job, which a trial has if its script uses them
    TASK: "{task}",
    **dict.fromkeys(("SLURM_ARRAY_JOB_ID", "SLURM_JOB_ID", "SLURM_JOBID"), _JOB_ID),
    "SLURM_CPUS_PER_TASK": "{cpus}",
    "SLURM_SUBMIT_DIR": "${SLURM_SUBMIT_DIR:-.}",
    **dict.fromkeys(("SLURM_NTASKS", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"), "1"),
    **dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"), "0"),
}
_PARSER: Final = argparse.ArgumentParser(
    parents=[SBATCH_OPTIONS], allow_abbrev=False, add_help=False, exit_on_error=False
)
for _flags in (("-a", "--array"), ("-J", "--job-name"), ("-D", "--chdir"), ("--signal",), ("--gpus-per-task",)):
    _PARSER.add_argument(*_flags)
_OF_SITE: Final = ("account", "partition", "qos", "constraint", "mem", "mem_per_cpu", "nodes",
                   "gres", "gpus", "gpus_per_node", "gpus_per_task")  # fmt: skip
_IN_SLOTS: Final = re.compile(r"--nodes=1|--gpus[a-z-]*=\d+|--gres=gpu(:\d+)?")  # not the type of the GPUs


def import_array_script(path: Path, array: str | None = None) -> ImportedSweep:
    """The sweep of a script. `array` has its task IDs if they are not in the script.

    Raises:
        UserError: there are no task IDs, or sbatch would refuse an option.
    """
    body = path.read_text(encoding="utf-8", errors="replace")
    # sbatch reads its options up to the first command.
    comments = takewhile(lambda line: not line.strip() or line.lstrip().startswith("#"), body.splitlines())
    lines = [line.removeprefix("#SBATCH") for line in comments if line.startswith("#SBATCH")]
    try:
        options, others = _PARSER.parse_known_args(shlex.split("\n".join(lines), comments=True))
    except argparse.ArgumentError as error:
        raise UserError(f"{path}: #SBATCH: {error}") from None
    array = array or options.array
    if not array:
        raise UserError(f"{path} has no line `#SBATCH --array=` before its first command: give the IDs of its tasks, "
                        "as in `--array 0-9`")  # fmt: skip
    tasks = parse_array(array)
    imported = ImportedSweep(options.job_name or path.stem, {})
    used = [name for name in _VARIABLES if name == TASK or name in body]
    values = {name: _VARIABLES[name] for name in used}
    values["SLURM_JOB_NAME"] = shlex.quote(options.job_name or path.name)
    step = re.search(r":(\d+)", array)
    values |= {
        "SLURM_ARRAY_TASK_COUNT": str(len(tasks)),
        "SLURM_ARRAY_TASK_MIN": str(min(tasks)),
        "SLURM_ARRAY_TASK_MAX": str(max(tasks)),
        "SLURM_ARRAY_TASK_STEP": step[1] if step else "1",
    }
    settings = " ".join(f"{name}={value}" for name, value in values.items())
    interpreter = shlex.join(interpreter_of(body))
    command = f"{settings} {interpreter} {shlex.quote(str(path))}"
    if options.chdir:
        command = f"cd {shlex.quote(options.chdir)} && {settings} {interpreter} {shlex.quote(str(path.absolute()))}"
    # All tasks of an array run in one folder.
    imported.sweep |= {"command": command, "workdir": "keep", "grid": {"task": tasks}}
    if "srun " in body:
        imported.note(f"remove `srun` in {path}: a trial already has its GPUs and CPUs")
    if note := pipefail_note(path, interpreter):
        imported.note(note)
    if common := _common_lines(body):
        what = f"what these lines of {path}, which do not mention the task, prepare for all trials: {'; '.join(common)}"
        imported.note(f"`setup` runs once per job: move there {what}")
    _set_resources(options, array, imported)
    for name in _OF_SITE:
        option = f"--{name.replace('_', '-')}={getattr(options, name)}"
        if getattr(options, name) and not _IN_SLOTS.fullmatch(option):
            others.append(option)
    if others:
        rest = " ".join(others)
        imported.note(f"not carried over: {rest}; what your site needs of it belongs in profiles/slurm/config.yaml")
    imported.note("`metrics`: trials are ranked by their seconds without them: say what the program prints, as in "
               "metrics: {pattern: 'acc=(?P<acc>{number})'}")  # fmt: skip
    return imported


def parse_array(text: str) -> list[int]:
    """The task IDs of an array, as in `0-15:4%2` or `1,3,5-7`."""
    tasks: list[int] = []
    for part in text.partition("%")[0].split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part.strip())
        if not match:
            raise UserError(f"--array {text}: {part!r} is neither a task ID nor a range of them such as 0-9")
        first = int(match[1])
        last = int(match[2] or match[1])
        step = int(match[3] or 1)
        if first > last or not step:
            raise UserError(f"--array {text}: the range {part.strip()!r} has no task IDs")
        tasks += range(first, last + 1, step)
    return list(dict.fromkeys(tasks))


def _common_lines(body: str) -> list[str]:
    """The commands before the training that mention neither the task or its job nor a variable that depends on them."""
    names = [name for name, value in _VARIABLES.items() if value in ("{task}", _JOB_ID)]
    lines = list[str]()
    for line in map(str.strip, body.replace("\\\n", " ").splitlines()):
        assigned = _ASSIGNMENT.match(line)
        if re.search(rf"\b({'|'.join(names)})\b", line):
            names += [assigned[1]] if assigned else []
        elif line and not (assigned or _NO_WORK.match(line) or starts_program(line)):
            lines.append(line)
    return lines


def interpreter_of(body: str) -> list[str]:
    """The program of the first line of a script and its options, or bash; a pipe fails with its programs."""
    first = body.partition("\n")[0]
    words = first.removeprefix("#!").split() if first.startswith("#!") else []
    words = [word for word in words if word not in ("-", "--")] or ["bash"]  # which end the options
    has_pipefail = any(PurePath(word).name in ("bash", "ksh", "zsh") for word in words)
    return [*words, *_PIPEFAIL.split()] if has_pipefail else words


def pipefail_note(path: Path, interpreter: str) -> str:
    """What the pipes of a script do by this interpreter, and not when it is run by itself; "" if it has none."""
    if not interpreter.endswith(_PIPEFAIL):
        return ""
    if not re.search(r"[^|]\|[^|]", path.read_text(encoding="utf-8", errors="replace")):
        return ""
    return f"`pipefail`: a pipe such as `| tee` in {path} fails if any of its programs does"


def _set_resources(options: argparse.Namespace, array: str, imported: ImportedSweep) -> None:
    """Set the slots and the limits of trials."""
    given = options.gpus_per_node or options.gpus or options.gpus_per_task
    requested = f"gpu:{given}" if given else options.gres or ""
    gpus = next((count for _, count in parse_gpus(requested)), int("gpu" in requested))
    cpus = options.cpus_per_task or gpus * (options.cpus_per_gpu or 0) or 1
    limit = array.partition("%")[2]
    slots: dict[str, Any] = {"gpus_per_node": gpus} if gpus else {"gpus_per_node": 0}
    slots |= ({"gpus_per_trial": gpus} if gpus > 1 else {}) | ({"cpus_per_trial": cpus} if cpus > 1 else {})
    imported.sweep["slots"] = {"jobs": min(int(limit or JOBS), MAX_JOBS), **slots}
    imported.note("`slots`: a job runs one task after another, and with a larger number of slots several at a time")
    if options.time and options.time < math.inf:
        imported.sweep["timeout_minutes"] = math.ceil(options.time)
        imported.note("`timeout_minutes`: as long as a task could take; the walltime of jobs is predicted")
    if options.signal:
        name, _, seconds = options.signal.rpartition(":")[2].partition("@")
        name = _SIGNALS.get(name, name.upper().removeprefix("SIG"))
        if name in _SIGNALS.values():
            imported.sweep["stop_signal"] = name
        imported.sweep["grace_seconds"] = int(seconds or 60)  # sbatch's default
        imported.note(
            "`stop_signal`, `grace_seconds`: the signal at which a trial saves its state, and the time that it has"
        )
