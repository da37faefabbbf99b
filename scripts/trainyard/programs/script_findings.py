"""What a script does that goes wrong, or wastes GPUs, where several trials share a job; read without running it.

Reported is only what is certain from the source: an assignment whose value depends on the caller is left out.
"""

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal

from trainyard.programs.script_options import Script, ScriptOption
from trainyard.programs.script_source import Source, SourceFile, arguments, literal, method
from trainyard.programs.started_scripts import CommandContents, ShellLine, StartedScript

Topic = Literal["gpu", "port", "requeue", "signal", "settings", "folder", "memory"]
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_PORT_OPTION: Final = re.compile(r"--?(?:master[-_]port|main[-_]process[-_]port)(?:=(\d+))?")
_TORCHRUN: Final = re.compile(r"(^|[\s;&|/])torchrun\s|-m\s+torch\.distributed\.(run|launch)\b")
_MEETS: Final = re.compile(r"--(standalone|rdzv[-_]\w+|master[-_]port)\b|\bPET_\w+=")
_FIXED_ADDRESS: Final = re.compile(r"tcp://[^{}$]*:(\d+)")
_REQUEUE: Final = re.compile(r"\bscontrol\b[^#]*\brequeue")
_USER_SIGNAL: Final = re.compile(r"\b(?:SIG)?USR([12])\b")


@dataclass(frozen=True)
class ScriptFinding:
    """Lines of a script, or of a command, and what is wrong with them."""

    topic: Topic
    path: Path | None  # None for the command in the config
    line: int  # the first
    message: str
    remedy: str
    further_lines: tuple[int, ...] = ()

    @property
    def where(self) -> str:
        """The file and lines, as in `train.py, line 10`; "the command" for the command itself."""
        if self.path is None:
            return "the command"
        lines = ", ".join(map(str, (self.line, *self.further_lines)))
        return f"{self.path}, line{'s' if self.further_lines else ''} {lines}"


def find_problems(started: CommandContents, scripts: Sequence[tuple[StartedScript, Script]]) -> list[ScriptFinding]:
    """What a command and the scripts that it starts do, each problem of a file once."""
    problems = list(find_line_problems(started.lines))
    for part, script in scripts:
        problems += find_script_problems(script, part)
    merged = dict[tuple[Topic, Path | None, str], ScriptFinding]()
    if any(variable.partition("=")[0] in line.text for line in started.lines for _, variable in _GREEDY.values()):
        problems = [problem for problem in problems if problem.topic != "memory"]
    for problem in problems:
        key = (problem.topic, problem.path, problem.message)
        first = merged.setdefault(key, problem)
        if problem.line not in (first.line, *first.further_lines):
            merged[key] = replace(first, further_lines=(*first.further_lines, problem.line))
    return list(merged.values())


def find_script_problems(script: Script, started: StartedScript) -> Iterator[ScriptFinding]:
    """What a Python script does, given the words that it gets."""
    for file in script.files:
        for look in _LOOKS:
            yield from look(file, script, started)
    if script.source:
        yield from _ignored_settings(script.source, script, started)


def find_line_problems(lines: Sequence[ShellLine]) -> Iterator[ScriptFinding]:
    """What the lines of a command, and of the scripts for a shell that it starts, do."""
    for line in lines:
        text = re.sub(r"(^|\s)#.*", "", line.text)
        at = (line.path, line.number)
        assigned = re.search(rf"\b{VISIBLE}=['\"]?(\d[\d,]*)", text)
        if assigned:
            message = f"{VISIBLE} is set to {assigned[1]}, so that all trials run on that GPU"
            yield ScriptFinding("gpu", *at, message, "remove it: each trial sees its own GPUs")
        port = re.search(r"\bMASTER_PORT=['\"]?(\d+)", text) or _port_of(text.split())
        if port:
            message = f"port {port[1]} is the same for all trials, and only one of a node can have it"
            yield ScriptFinding("port", *at, message, "write {port} in its place, in the command")
        elif re.search(_TORCHRUN, text) and not re.search(_MEETS, text):
            message = "torchrun takes port 29500 in each trial, and only one of a node can have it"
            yield ScriptFinding("port", *at, message, "add --standalone, or --master-port {port}")
        if _REQUEUE.search(text):
            yield ScriptFinding("requeue", *at, *_NO_REQUEUE)
        trap = re.search(r"\btrap\b.*", text)
        if trap and (user := _USER_SIGNAL.search(trap[0])):
            yield ScriptFinding("signal", *at, *_other_signal(f"SIGUSR{user[1]}"))


_NO_REQUEUE: Final = (
    "puts its job back into the queue, which a trial cannot: its job is that of others, too",
    "remove it: Trainyard starts a trial again that was interrupted",
)


def _other_signal(name: str) -> tuple[str, str]:
    return f"handles {name}, which a trial never gets: it gets SIGTERM", "handle SIGTERM in the same way"


def _port_of(words: Sequence[str]) -> re.Match[str] | None:
    for word, following in pairwise([*words, ""]):
        option = _PORT_OPTION.fullmatch(word)
        if option and option[1]:
            return option
        if option and (number := re.fullmatch(r"(\d+)", following)):
            return number
    return None


# ---- what the calls and assignments of a file do


def _environment_writes(file: SourceFile) -> Iterator[tuple[str, ast.expr, ast.AST]]:
    """Name, value and node of all writes to variables of the environment."""
    for node in file.nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Subscript) and file.name(target.value) == "os.environ":
                    yield str(literal(target.slice)), node.value, node
        elif isinstance(node, ast.Call):
            name = file.name(node.func)
            if name in ("os.environ.setdefault", "os.putenv") and len(node.args) == 2:
                yield str(literal(node.args[0])), node.args[1], node
            elif name == "os.environ.update":
                yield from ((key, value, node) for key, value in arguments(node).items())
                for argument in node.args:
                    if isinstance(argument, ast.Dict):
                        pairs = zip(argument.keys, argument.values, strict=True)
                        yield from ((str(literal(key)), value, node) for key, value in pairs)


def _gpu_choices(file: SourceFile, script: Script, started: StartedScript) -> Iterator[ScriptFinding]:
    """Writes to CUDA_VISIBLE_DEVICES."""
    for name, value, node in _environment_writes(file):
        if name != VISIBLE or _is_default(node) or _is_of(file, value, VISIBLE) or _asks_for(file, node, VISIBLE):
            continue
        gpu, remedy = literal(value), "remove the line: each trial sees its own GPUs"
        if gpu is None:
            option = _option_of(value, script)
            if option is None:
                continue
            passed = _passed(option.names, started.words)
            if passed is not None and VISIBLE in passed:
                continue
            gpu = passed if passed is not None else option.default
            remedy = f"write `{option.flag} $CUDA_VISIBLE_DEVICES` in the command, or remove the line"
        elif any(isinstance(around, ast.If) for around in file.ancestors(node)):
            continue
        if gpu in (None, "", "-1", -1):
            continue
        message = f"{VISIBLE} is overwritten with {gpu!r}, so that all trials run on the same GPU"
        yield ScriptFinding("gpu", file.path, _line(node), message, remedy)


def find_gpu_option(script: Script) -> ScriptOption | None:
    """The option whose value a script puts into CUDA_VISIBLE_DEVICES; None without one."""
    for file in script.files:
        for name, value, node in _environment_writes(file):
            if name == VISIBLE and not _is_default(node) and not _is_of(file, value, VISIBLE):
                return _option_of(value, script)
    return None


def _ports(file: SourceFile, script: Script, started: StartedScript) -> Iterator[ScriptFinding]:
    """Ports that are the same in all trials."""
    ports = [
        (literal(value), node)
        for name, value, node in _environment_writes(file)
        if name == "MASTER_PORT" and not _is_default(node)
    ]
    for call in file.calls:
        if method(call) == "init_process_group":
            address = literal(arguments(call).get("init_method"))
            found = _FIXED_ADDRESS.match(address) if isinstance(address, str) else None
            ports += [(found[1], call)] if found else []
    for port, node in ports:
        if port is not None and str(port) != "0" and not _asks_for(file, node, "MASTER_PORT"):
            message = f"port {port} is the same for all trials, and only one of a node can have it"
            remedy = "leave it out: each trial has a MASTER_PORT of its own"
            yield ScriptFinding("port", file.path, _line(node), message, remedy)


def _requeues(file: SourceFile, script: Script, started: StartedScript) -> Iterator[ScriptFinding]:
    """Calls of `scontrol requeue`."""
    for call in file.calls:
        if method(call) in ("run", "call", "check_call", "check_output", "Popen", "system", "popen"):
            words = " ".join(file.texts(call))
            if _REQUEUE.search(words):
                yield ScriptFinding("requeue", file.path, call.lineno, *_NO_REQUEUE)


def _signals(file: SourceFile, script: Script, started: StartedScript) -> Iterator[ScriptFinding]:
    """Handlers of SIGUSR1 and SIGUSR2."""
    for call in file.calls:
        handled = call.args[0] if file.name(call.func) == "signal.signal" and len(call.args) == 2 else None
        if method(call) in ("SLURMEnvironment", "SlurmEnvironment"):
            handled = arguments(call).get("requeue_signal")
        user = _USER_SIGNAL.search(file.name(handled)) if handled is not None else None
        if user and not (len(call.args) == 2 and "SIG_" in file.name(call.args[1])):
            yield ScriptFinding("signal", file.path, call.lineno, *_other_signal(f"SIGUSR{user[1]}"))


def _full_folders(file: SourceFile, script: Script, started: StartedScript) -> Iterator[ScriptFinding]:
    """Refusals of a folder that exists, as {trial_dir} does."""
    for node in file.nodes:
        if not isinstance(node, ast.If) or not isinstance(node.test, ast.Call):
            continue
        if method(node.test) not in ("exists", "isdir", "is_dir", "listdir") or not _ends(node.body):
            continue
        option = _option_of(node.test, script)
        if option and (_passed(option.names, started.words) or "").rstrip("/") == "{trial_dir}":
            message = f"refuses {option.flag} if the folder exists, as {{trial_dir}} does"
            remedy = f"write `{option.flag} {{trial_dir}}/out`; a retry finds it there, too"
            yield ScriptFinding("folder", file.path, node.lineno, message, remedy)
    for call in file.calls:
        makes = file.name(call.func) in ("os.makedirs", "os.mkdir") or method(call) == "mkdir"
        if not makes or literal(arguments(call).get("exist_ok")) is True:
            continue
        around = list(file.ancestors(call))
        if any(isinstance(each, (ast.If, ast.Try)) for each in around) or len(call.args) > 2:
            continue
        option = _option_of(call, script)
        if option and (_passed(option.names, started.words) or "").rstrip("/") == "{trial_dir}":
            message = f"fails if the folder of {option.flag} exists, as {{trial_dir}} does"
            remedy = "add exist_ok=True"
            yield ScriptFinding("folder", file.path, call.lineno, message, remedy)


def _memory(file: SourceFile, script: Script, started: StartedScript) -> Iterator[ScriptFinding]:
    """Libraries that take most of a GPU's memory at their start, if the script itself imports them at its beginning."""
    for node in file.tree.body if file.path == script.path else ():
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        for library, (how_much, remedy) in _GREEDY.items():
            if library not in (name.partition(".")[0] for name in names):
                continue
            variable = remedy.partition("=")[0]
            if not any(variable in text for part in script.files for text in part.texts(part.tree)):
                message = f"{library} takes {how_much} of a GPU's memory at its start, whatever the share of a trial"
                yield ScriptFinding("memory", file.path, node.lineno, message, f"put {remedy} before the command")
                return


_GREEDY: Final = {
    "jax": ("75 %", "XLA_PYTHON_CLIENT_PREALLOCATE=false"),
    "tensorflow": ("all", "TF_FORCE_GPU_ALLOW_GROWTH=true"),
}


Look = Callable[[SourceFile, Script, StartedScript], Iterator[ScriptFinding]]
_LOOKS: Final[tuple[Look, ...]] = (_gpu_choices, _ports, _requeues, _signals, _full_folders, _memory)


# ---- settings that nobody reads

# With these, a script may read its command line although it has no option that can be seen.
_READERS: Final = frozenset(
    (
        *("absl", "argparse", "chz", "cleo", "click", "clize", "configargparse", "datargs", "defopt", "detectron2"),
        *("docopt", "draccus", "fire", "getopt", "gin", "hydra", "jsonargparse", "lightning", "lightning_fabric"),
        *("mmengine", "ml_collections", "omegaconf", "optparse", "plac", "pyrallis", "pytorch_lightning", "runpy"),
        *("sacred", "simple_parsing", "tap", "typer", "tyro", "xmanager", "yacs"),
    )
)


def _ignored_settings(source: Source, script: Script, started: StartedScript) -> Iterator[ScriptFinding]:
    """`wandb.config` in a script that does not read its command line, to which the command passes settings."""
    if not any("{" in word for word in started.words) or script.options or not source.is_whole:
        return
    called = {method(call) for file in source.files for call in file.calls}
    if not called.isdisjoint(("exec", "run_path", "run_module")):  # of a file that may read it
        return
    names = {file.name(node) for file in source.files for node in file.nodes}
    if not source.imports.isdisjoint(_READERS) or any("argv" in name for name in names):
        return
    for file in source.files:
        for node in file.nodes:
            is_config = isinstance(node, ast.Attribute) and file.name(node) == "wandb.config"
            is_init = (
                isinstance(node, ast.Call) and file.name(node.func) == "wandb.init" and "config" in arguments(node)
            )
            if is_config or is_init:
                message = (
                    "takes its settings from `wandb.config`, and nothing of the command line: all trials are equal"
                )
                remedy = "give the script an option for each setting, and `wandb.init(config=vars(args))`"
                yield ScriptFinding("settings", file.path, _line(node), message, remedy)
                return


# ---- helpers


def _line(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 0))


def _is_default(node: ast.AST) -> bool:
    """Whether a write to the environment leaves a value that is there, as `setdefault` does."""
    return isinstance(node, ast.Call) and method(node) == "setdefault"


def _is_of(file: SourceFile, value: ast.AST, variable: str) -> bool:
    """Whether an expression is made of a variable of the environment."""
    return variable in file.texts(value)


def _asks_for(file: SourceFile, node: ast.AST, variable: str) -> bool:
    """Whether a statement runs only after a question about a variable of the environment."""
    questions = (around.test for around in file.ancestors(node) if isinstance(around, ast.If))
    return any(variable in file.texts(question) for question in questions)


def _option_of(value: ast.AST, script: Script) -> ScriptOption | None:
    """The option whose value an expression is made of, as `str(args.gpu)`; None without one."""
    for choice in (node for node in ast.walk(value) if isinstance(node, ast.IfExp)):
        return _option_of(choice.body, script) or _option_of(choice.orelse, script)
    for node in ast.walk(value):
        name = node.attr if isinstance(node, ast.Attribute) else ""
        for option in script.options if name else ():
            if not option.is_flag and {f"--{name}", f"--{name.replace('_', '-')}"} & set(option.names):
                return option
    return None


def _passed(names: Sequence[str], words: Sequence[str]) -> str | None:
    """The word that a command passes for an option; None if it passes none."""
    for word, following in pairwise([*words, ""]):
        if word in names:
            return following
        name, equals, value = word.partition("=")
        if equals and name in names:
            return value
    return None


def _ends(body: Sequence[ast.stmt]) -> bool:
    """Whether statements end the program."""
    for node in body:
        if isinstance(node, ast.Raise):
            return True
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and method(node.value) in ("exit", "_exit"):
            return True
    return False
