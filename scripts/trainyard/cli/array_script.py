"""The script of a Slurm job array as a sweep, whose trials are the tasks of the array.

The lines that choose the parameters of a task, from arrays in the script or from lines of a file, are evaluated by bash
itself, which is restricted to builtins and a few programs that read files: nothing else of the script runs.
"""

import argparse
import math
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from trainyard.checks.sbatch_requests import SBATCH_OPTIONS
from trainyard.cli.imported_sweep import ImportedSweep, key_for
from trainyard.cluster.slurm_queries import parse_gpus
from trainyard.config.parser import parse_value
from trainyard.config.placeholders import PLACEHOLDER, SHELL, format_argument
from trainyard.utils.errors import UserError

TASK: Final = "SLURM_ARRAY_TASK_ID"
EVALUATION_SECONDS: Final = 20
_READERS: Final = (
    *("awk", "basename", "bc", "cat", "cut", "dirname", "expr", "grep", "head"),
    *("ls", "sed", "seq", "sort", "tail", "tr", "wc"),
)
_WRITES: Final = re.compile(r"\bsed\b[^|;\n]*\s(?:-\w*i|--in-place)|\bsystem\(|\bprint[^}]*>")  # though they read only
_JOB_ID: Final = "${SLURM_JOB_ID:-$((16#${TRAINYARD_TRIAL:-0}))}"  # a trial has an ID of its own, also outside of Slurm
_VARIABLES: Final = {  # of a job, which a trial has if its script uses them
    TASK: "{task}",
    **dict.fromkeys(("SLURM_ARRAY_JOB_ID", "SLURM_JOB_ID", "SLURM_JOBID"), _JOB_ID),
    "SLURM_CPUS_PER_TASK": "{cpus}",
    "SLURM_SUBMIT_DIR": "${SLURM_SUBMIT_DIR:-$PWD}",
    **dict.fromkeys(("SLURM_NTASKS", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"), "1"),
    **dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"), "0"),
}
_ASSIGNS: Final = re.compile(
    r"(?:^|[;\s(])(?:[A-Za-z_]\w*(?:\[[^]]*\])?\+?=|(?:read|mapfile|readarray|let|declare|printf\s+-v)\b|\(\()", re.M
)
_COMMAND: Final = r"(?:^|[;&|({]|\b(?:then|do|else)\b)[ \t]*"  # before the first word of one
_ASSIGNED: Final = re.compile(
    rf"{_COMMAND}(?:(?:export|local|declare|readonly)\s+(?:-\w+\s+)*)?([A-Za-z_]\w*)(?:\[[^]]*\])?\+?=(?!=)", re.M
)
_READ: Final = re.compile(
    r"\b(?:for\s+(\w+)|(?:read|mapfile|readarray|let|printf(?=\s+-v))((?:\s+(?:-\w+|[A-Za-z_]\w*))+))"
)
# What activates an environment sets no variable of the script.
_SOURCES: Final = re.compile(
    rf"{_COMMAND}(?:source|eval|\.)\s(?!.*(?:activate|conda|mamba|module|bashrc|profile))", re.M
)
PROBED: Final = 20  # tasks for which a part of a script is tried
# Lines that only print are left out; but what they substitute, as `$(python x.py)`, may do more.
_SHOWS: Final = r"(?:echo|printf(?!\s+-v)|date|hostname|nvidia-smi|pwd|whoami)(?=[\s)]|$)"
_PRINTS: Final = re.compile(rf"\s*(?:#.*|{_SHOWS}(?:[^>|;&$`]|\$\({_SHOWS}[^()>|;&$`]*\)|\$(?!\((?!\()))*)?")
# An element of an array, or a line of a file, within a command; before it, the option or variable that gets it.
_INLINE: Final = re.compile(
    r"(?:--?([A-Za-z][\w-]*)[= ]\s*)?\"?"
    r"(\$\{(\w+)\[(?![@*]\])[^]]*\]\}|\$\((?:sed|awk|head|tail) (?:[^()]|\(\([^()]*\)\))*\))\"?"
)
_GAP: Final = r"(?:[ \t]|\\\n)+"
_SRUN: Final = re.compile(
    rf"(^|[;&|(]|\bdo\b|\bthen\b)([ \t]*)srun(?:{_GAP}--?[A-Za-z][\w-]*(?:=\S+|{_GAP}[\d:.,GMK]+(?=\s))?)*{_GAP}", re.M
)
_OWN_GPU: Final = re.compile(r"^[ \t]*export CUDA_VISIBLE_DEVICES=.*\n?", re.M)
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
    lines = [line.removeprefix("#SBATCH") for line in body.splitlines() if line.startswith("#SBATCH")]
    try:
        options, others = _PARSER.parse_known_args(shlex.split("\n".join(lines), comments=True))
    except argparse.ArgumentError as error:
        raise UserError(f"{path}: #SBATCH: {error}") from None
    array = array or options.array
    if not array:
        raise UserError(f"{path} has no line `#SBATCH --array=`: give the IDs of its tasks, as in `--array 0-9`")
    found = ImportedSweep(options.job_name or path.stem, {})
    script = _Script(body, parse_array(array), path, found)
    command, keys = script.command()
    found.sweep |= {"command": command, "workdir": "keep", **_trials(keys)}  # all tasks of an array run in one folder
    _set_resources(options, array, found)
    given = [f"--{name.replace('_', '-')}={value}" for name in _OF_SITE if (value := getattr(options, name))]
    others += [each for each in given if not _IN_SLOTS.fullmatch(each)]
    if others:
        rest = " ".join(others)
        found.note(f"not carried over: {rest}; what your site needs of it belongs in profiles/slurm/config.yaml")
    found.note("`metrics`: trials are ranked by their seconds without them: say what the program prints, as in "
               "metrics: {pattern: 'acc=(?P<acc>{number})'}")  # fmt: skip
    return found


def parse_array(text: str) -> list[int]:
    """The task IDs of an array, as in `0-15:4%2` or `1,3,5-7`."""
    tasks: list[int] = []
    for part in text.partition("%")[0].split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part.strip())
        if not match:
            raise UserError(f"--array {text}: {part!r} is neither a task ID nor a range of them such as 0-9")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        tasks += range(first, last + 1, step)
    return list(dict.fromkeys(tasks))


# ---- the parameters of the tasks


@dataclass
class _Chunk:
    """Lines of a script that are whole commands, and the variables that they set, if bash could evaluate them."""

    text: str
    sets: set[str] = field(default_factory=set)
    exports: set[str] = field(default_factory=set)  # of these, what its programs see

    @property
    def uses(self) -> set[str]:
        """The variables that it refers to."""
        plain = re.findall(r"\$\{?[#!]?([A-Za-z_]\w*)", self.text)
        arithmetic = re.findall(r"\(\(.*?\)\)|\[[^]]*\]", self.text)
        return {*plain, *(name for part in arithmetic for name in re.findall(r"[A-Za-z_]\w*", part))}


class _Script:
    """The commands of a script, and the values of its variables in each task of an array."""

    def __init__(self, body: str, tasks: Sequence[int], path: Path, found: ImportedSweep) -> None:
        self._tasks, self._path, self._found, self._unknown = tuple(tasks), path, found, ""
        self._probed = tuple(dict.fromkeys((*tasks[:: 1 + len(tasks) // PROBED], *tasks[-1:])))
        self._keys, self._kept = set[str](), set[str]()  # kept: variables that chunks may set which are not evaluated
        self._chunks, evaluated, known = list[_Chunk](), "", dict[str, list[str]]()
        with tempfile.TemporaryDirectory() as programs:
            self._bash = cache(partial(_run_restricted, Path(programs), len(tasks)))
            for text in (_Chunk(each) for each in _chunks(body) if not all(map(_PRINTS.fullmatch, each.splitlines()))):
                hoisted = [] if self._probe(text, evaluated, known) else self._hoist(text, evaluated, known)
                for chunk in (*hoisted, text):
                    evaluated += f"{chunk.text}\n" if chunk.sets else ""
                    if TASK in chunk.text and not chunk.sets:
                        self._unknown = self._unknown or chunk.text.strip().splitlines()[0]
                    self._chunks.append(chunk)
            names = tuple(  # without arrays, which are more than one text
                name for name, found in known.items() if not any(re.match(r"declare -\w*[aA]", each) for each in found)
            )
            self._values = self._bash(self._tasks, evaluated, names) if names else {}

    def _probe(self, chunk: _Chunk, evaluated: str, known: dict[str, list[str]]) -> bool:
        """Try to evaluate a chunk: note which variables it may set in any task, or return False if it sets none."""
        before = now = dict[str, list[str]]()
        if _ASSIGNS.search(chunk.text) and not _WRITES.search(chunk.text) and not chunk.uses & self._kept:
            before, now = (self._bash(self._probed, text, None) for text in (evaluated, f"{evaluated}{chunk.text}\n"))
        read = (name for names in _READ.findall(chunk.text) for name in " ".join(names).split())
        assigned = {*_ASSIGNED.findall(chunk.text), *read} - _VARIABLES.keys()
        if not now:
            self._kept |= assigned | (known.keys() if _SOURCES.search(chunk.text) else set())
            return False
        named = set(re.findall(r"[A-Za-z_]\w*", chunk.text)) - _VARIABLES.keys()
        chunk.sets = {name for name in named if name in assigned or before.get(name) != now.get(name)}
        found = {name: now.get(name, []) for name in chunk.sets}
        chunk.exports = {name for name in chunk.sets if any(re.match(r"declare -\w*x", each) for each in found[name])}
        known |= found
        return bool(chunk.sets)

    def _hoist(self, chunk: _Chunk, evaluated: str, known: dict[str, list[str]]) -> Iterator[_Chunk]:
        """Parameters that are chosen within a command, as assignments before it, whose variables it then uses."""
        for match in list(_INLINE.finditer(chunk.text)):
            name = (match[1] or (match[3] or "params").lower()).replace("-", "_")
            name += "_" * (name in known)
            before = _Chunk(f"{name}={match[2]}")
            if self._probe(before, evaluated, known):
                chunk.text = chunk.text.replace(match[2], f"${{{name}}}")
                yield before

    def command(self) -> tuple[str, dict[str, list[str]]]:
        """The command of a trial, and the values of its keys in each task.

        It has the lines of the script that do more than print, but placeholders in place of what chooses the parameters
        of a task; if these are not found, it runs the script as it is.
        """
        varying = {name for name, column in self._values.items() if len(set(column)) > 1}
        setters = [name for chunk in self._chunks for name in chunk.sets]
        exported = {name for chunk in self._chunks for name in chunk.exports}
        direct = exported.union(*(chunk.uses for chunk in self._chunks if not chunk.sets))
        chosen = {name for name in varying & direct if setters.count(name) == 1}
        indices = {name for chunk in self._chunks if chunk.sets for name in _indices(chunk.text)}
        for chunk in self._chunks:  # what follows from another parameter, such as a folder named after it, is no key
            for name in chunk.sets & chosen:
                others = (chunk.uses & chosen) - {name} - indices
                pairs = (zip(self._values[name], self._values[other], strict=True) for other in others)
                if any(part not in whole for pair in pairs for part, whole in pair):  # as a word of a line is
                    chosen.discard(name)
        lines, originals, keys, needed = list[str](), list[_Chunk](), dict[str, list[str]](), exported
        for chunk in reversed(self._chunks):
            own = dict[str, list[str]]()
            new = [self._assignment(name, chunk, own) for name in sorted(chunk.sets & needed & chosen)]
            if not chunk.sets or chunk.sets & needed - chosen:
                originals.append(chunk)
                new.insert(0, self._adapt(chunk.text))
                needed = needed | chunk.uses
            needed = needed - (chosen & chunk.sets)
            lines, keys = new + lines, own | keys
        is_ambiguous = any(setters.count(name) > 1 for name in varying & direct)
        if not keys or is_ambiguous or any(PLACEHOLDER.search(chunk.text) for chunk in originals):
            return self._unchanged()
        if any(TASK in chunk.text for chunk in originals):
            keys["task"] = list(map(str, self._tasks))
        exports = [
            f"export {name}={value}" for name, value in _VARIABLES.items() if any(name in text for text in lines)
        ]
        return "\n".join([*exports, *filter(str.strip, lines)]) + "\n", keys

    def _assignment(self, name: str, chunk: _Chunk, keys: dict[str, list[str]]) -> str:
        """The line that sets a variable in a trial; adds its key, or one for each option that its value has."""
        export, column = "export " * (name in chunk.exports), self._values[name]
        options = [_options(value) for value in column]
        if not all(options) or len({tuple(prefix for prefix, _ in each) for each in options}) > 1:
            key = self._add_key(name, column, keys)
            return f"{export}{name}={{{key}}}"
        words = list[str]()
        for place, (prefix, first) in enumerate(options[0]):
            values = [each[place][1] for each in options]
            gap = " " * bool(words)
            if len(set(values)) == 1:
                words.append(shlex.quote(f"{gap}{prefix}{first}"))
                continue
            key = self._add_key(re.sub(r"^-+|[= ]$", "", prefix), values, keys)
            words.append(f"{shlex.quote(gap + prefix)}{{{key}}}")
        return f"{export}{name}={''.join(words)}"

    def _add_key(self, name: str, column: list[str], keys: dict[str, list[str]]) -> str:
        """Add a key for a variable or an option; another one may have its name."""
        key = key_for(name)
        while key in self._keys:
            key += "_"
        self._keys.add(key)
        keys[key] = column
        return key

    def _adapt(self, text: str) -> str:
        """Lines without `srun`, and without a choice of the GPU."""
        for pattern, left, note in (
            (_SRUN, r"\1\2", "`srun` was removed: a trial already has its GPUs and CPUs"),
            (_OWN_GPU, "", "`CUDA_VISIBLE_DEVICES` was removed: a trial sees its own GPUs only"),
        ):
            text, count = pattern.subn(left, text)
            if count:
                self._found.note(note)
        return text

    def _unchanged(self) -> tuple[str, dict[str, list[str]]]:
        """A command that runs the script as it is."""
        text = "\n".join(chunk.text for chunk in self._chunks)
        names = [name for name in _VARIABLES if name == TASK or name in text]
        settings = " ".join(f"{name}={_VARIABLES[name].replace('$PWD', '.')}" for name in names)
        self._found.note(
            "`command`: the task is the only key, since it is not known how the script chooses the parameters of a task"
            f"{f' (`{self._unknown}`)' * bool(self._unknown)}. {self._path} and files that it reads are still needed"
            f"{'; remove `srun` there' * ('srun ' in text)}"
        )
        return f"{settings} bash {shlex.quote(str(self._path))}", {"task": list(map(str, self._tasks))}


def _indices(text: str) -> set[str]:
    """The variables that select an element or a line in an assignment."""
    inner = re.findall(r"\[([^]]*)\]|\(\((.*?)\)\)", text)
    return {name for pair in inner for part in pair for name in re.findall(r"[A-Za-z_]\w*", part)}


def _options(text: str) -> list[tuple[str, str]]:
    """The options of a command line, as in `--lr 0.1 batch=32`, each with its value; [] if it has anything else."""
    try:
        words = shlex.split(text)
    except ValueError:
        return []
    found = list[tuple[str, str]]()
    while words:
        word = words.pop(0)
        if match := re.fullmatch(r"(-{0,2}[A-Za-z][\w.-]*=)(\S+)", word):
            found.append((match[1], match[2]))
        elif re.fullmatch(r"--?[A-Za-z][\w.-]*", word) and words and not re.match(r"-+[A-Za-z]|.*\s", words[0]):
            found.append((f"{word} ", words.pop(0)))
        else:
            return []
    return found


def _chunks(body: str) -> Iterator[str]:
    """The lines of a script, those that only together are complete commands for bash in one chunk."""
    text = ""
    for line in body.splitlines():
        text += line + "\n"
        if line.endswith("\\"):
            continue
        done = subprocess.run([SHELL, "-n", "-c", text], capture_output=True, text=True, check=False)
        if not done.returncode and not done.stderr:  # a warning is about an incomplete here-document
            yield text.rstrip("\n")
            text = ""
    if text:
        yield text.rstrip("\n")


def _run_restricted(
    programs: Path, count: int, tasks: Sequence[int], text: str, names: Sequence[str] | None
) -> dict[str, list[str]]:
    """The values of some variables after bash has run `text` for some of `count` tasks; without `names`, declarations.

    Empty if bash may not run it, or if it prints an error.
    """
    for name in _READERS if not any(programs.iterdir()) else ():
        if program := next((path for folder in os.get_exec_path() if (path := Path(folder, name)).is_file()), None):
            (programs / name).symlink_to(program)
    last = "printf '\\0%s' " + " ".join(f'"${{{name}-}}"' for name in names) if names else "declare -p"
    each = f"set -u\n{text}\n{last}; printf '\\1'"
    script = f"SLURM_ARRAY_TASK_COUNT={count}; for {TASK} in {' '.join(map(str, tasks))}; do (\n{each}\n) || exit; done"
    environment = {**os.environ, "PATH": str(programs), "BASH_ENV": "", "LC_ALL": "C.UTF-8"}
    line = [shutil.which(SHELL) or SHELL, "--restricted", "--noprofile", "--norc", "-c", script]
    try:
        done = subprocess.run(line, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              timeout=EVALUATION_SECONDS, check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        return {}
    outputs = done.stdout.split("\1")[:-1]
    if done.stderr or len(outputs) < len(tasks):
        return {}
    if names is None:
        entries = (re.split(r"\n(?=declare -)", f"\n{output}") for output in outputs)
        rows = [{match[1]: each for each in row if (match := re.match(r"declare -\S+ (\w+)", each))} for row in entries]
    else:
        rows = [dict(zip(names, output.split("\0")[1:], strict=True)) for output in outputs]
    return {name: [row.get(name, "") for row in rows] for name in set[str]().union(*rows)}


def _trials(keys: Mapping[str, list[str]]) -> dict[str, Any]:
    """The tasks as a grid if they are all combinations of the values of their keys, otherwise as a list of trials."""
    typed = {key: _typed(column) for key, column in keys.items()}
    rows = [dict(zip(typed, values, strict=True)) for values in zip(*typed.values(), strict=True)]
    values = {key: list(dict.fromkeys(column)) for key, column in typed.items()}
    if len(rows) == len({tuple(row.values()) for row in rows}) == math.prod(map(len, values.values())):
        return {"grid": values}
    return {"trials": rows}


def _typed(column: Sequence[str]) -> list[Any]:
    """Numbers, if all values are numbers that a program would read as the same ones; otherwise the text as it is."""
    values = [parse_value(text) for text in column]
    are_numbers = all(type(value) in (int, float) for value in values)
    same = all(format_argument(value) == text for value, text in zip(values, column, strict=True))
    floats = all(re.fullmatch(r"-?(0|[1-9]\d*)?(\.\d+)?(e[-+]?\d+)?", text.lower()) for text in column)
    return values if are_numbers and (same or floats) else list(column)


# ---- what the job requests


def _set_resources(options: argparse.Namespace, array: str, found: ImportedSweep) -> None:
    """Set the slots and the limits of trials."""
    given = options.gpus_per_node or options.gpus or options.gpus_per_task
    requested = f"gpu:{given}" if given else options.gres or ""
    gpus = next((count for _, count in parse_gpus(requested)), int("gpu" in requested))
    cpus, limit = options.cpus_per_task or gpus * (options.cpus_per_gpu or 0) or 1, array.partition("%")[2]
    slots: dict[str, Any] = {"gpus_per_node": gpus} if gpus else {"gpus_per_node": 0, "slots_per_node": 1}
    slots |= ({"gpus_per_trial": gpus} if gpus > 1 else {}) | ({"cpus_per_trial": cpus} if cpus > 1 else {})
    found.sweep["slots"] = {"jobs": min(int(limit), 100) if limit else "auto", **slots}
    found.note("`slots`: a job runs one task after another, and with a larger number of slots several at a time")
    if options.time and options.time < math.inf:
        found.sweep["timeout_minutes"] = math.ceil(options.time)
        found.note("`timeout_minutes`: as long as a task could take; the walltime of jobs is predicted")
    if seconds := re.search(r"@(\d+)", options.signal or ""):
        found.sweep["grace_seconds"] = int(seconds[1])
        found.note("`grace_seconds`: a trial gets SIGTERM, and has this time to save its state")
    if options.chdir:
        found.sweep["command"] = f"cd {shlex.quote(options.chdir)} && \\\n{found.sweep['command']}"
