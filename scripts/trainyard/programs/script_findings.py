"""What a script does that goes wrong, or wastes GPUs, where several trials share a job; read without running it.

Reported is only what is certain from the source: an assignment whose value depends on the caller is left out.
"""

import ast
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path, PurePath
from typing import Any, Final, Literal

from trainyard.config.placeholders import GPUS, PORT, TRIAL_PLACEHOLDERS, find_placeholders
from trainyard.programs.script_options import Script, ScriptOption
from trainyard.programs.script_source import SourceFile, arguments, is_file, is_literal, literal, method
from trainyard.programs.started_scripts import CommandContents, ShellLine, starts_program

Topic = Literal["gpu", "port", "requeue", "srun", "signal", "settings", "wandb", "exit", "background"]
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
WHATEVER_GPUS: Final = "whatever GPUs the trial has"
_SETS_GPUS: Final = re.compile(
    rf"(?:\b{VISIBLE}=|\baccelerate launch .*--gpu[-_]ids[ =]|\bdeepspeed .*--include[ =]\w+:)"
    r"['\"]?(\$\([^|)]*\)*|[^\s;&|'\"]+)"
)
_KNOWS_GPUS: Final = re.compile(rf"{VISIBLE}|SLURM_\w*GPUS|LOCAL|^-|^all$", re.IGNORECASE)
# In a question, or where another variable is made of it.
_ASKS_GPUS: Final = re.compile(rf"(?:-[zn]\s+|<<<\s*|(?:^|[;&(]|export)\s*\w+=[^;&]*)['\"]?\$\{{?{VISIBLE}")
_PORT: Final = re.compile(r"(?:\bMASTER_PORT=['\"]?|--?(?:master|main[-_]process)[-_]port[= ])(\d+)")
# As a program, not the value of an option or the name of a package.
_TAKES_PORT: Final = re.compile(
    r"(^|[;&|(/]|(^|\s)[^-\s]\S*\s)\s*(?P<by>(torchrun|deepspeed)(?=\s+([-{$\"']|\S+\.py\b))"
    r"|accelerate(?= launch .*--(multi[-_]gpu|num[-_]processes[ =]([2-9]|\{))))"
    r"|-m\s+torch\.distributed\.(run|launch)\b"
)
_MEETS: Final = re.compile(r"--(standalone|rdzv[-_]\w+|master[-_]port|main[-_]process[-_]port)\b|\bPET_\w+=")
_PORT_OPTIONS: Final = {"accelerate": "--main_process_port {port}", "deepspeed": "--master_port {port}"}
_FIXED_ADDRESS: Final = re.compile(r"tcp://[^{}$]*:(\d+)")
_ELSEWHERE: Final = re.compile(
    r"(^|[;&|(]|\b(then|do|else))\s*(?P<by>sbatch(?! .*(-W|--wait)\b)|tmux new\S*(?= .*-\w*d)|screen -\w*dm)(?=\w*\s)"
)
_REQUEUE: Final = re.compile(r"\bscontrol\b[^#]*\brequeue")
_SRUN: Final = re.compile(r"(^|[;&|(]|\b(exec|time|then|do|else))\s*(\w+=\S*\s+)*srun\s(?!.*--jobid)")
_USER_SIGNAL: Final = re.compile(r"\b(?:SIG)?USR([12])\b")


@dataclass(frozen=True)
class ScriptFinding:
    """Lines of a script, or of a command, and what is wrong with them."""

    topic: Topic
    path: Path | None  # None for the command in the config
    line: int
    message: str
    remedy: str

    @property
    def where(self) -> str:
        """The file and line, as in `train.py, line 10`; "the command" for the command itself."""
        return "the command" if self.path is None else f"{self.path}, line {self.line}"


def find_problems(started: CommandContents, scripts: Sequence[Script]) -> list[ScriptFinding]:
    """What a command and the scripts that it starts do, each problem of a file where it is first."""
    problems = list(_line_problems(started.lines))
    for path, lines in groupby(started.lines, lambda line: line.path):
        of_file = list(lines)
        problems += _background_problems(of_file)
        if path is not None:
            problems += _exit_problems(of_file)
    for script in scripts:
        for file in script.source.files:
            for look in _LOOKS:
                problems += look(file, script)
    first = dict[tuple[Path | None, str], ScriptFinding]()
    for problem in problems:
        problem = replace(problem, path=problem.path or started.file)
        first.setdefault((problem.path, problem.message), problem)
    return list(first.values())


def _line_problems(lines: Sequence[ShellLine]) -> Iterator[ScriptFinding]:
    """What the lines of a command, and of the scripts for a shell that it starts, do."""
    for line in lines:
        text = line.text
        at = (line.path, line.number)
        assigned = _SETS_GPUS.search(text)
        if assigned and not (_KNOWS_GPUS.search(assigned[1]) or any(_ASKS_GPUS.search(each.text) for each in lines)):
            effect = "so that all trials run on that GPU" if assigned[1][0].isdigit() else WHATEVER_GPUS
            message = f"{VISIBLE} is set to {assigned[1]}, {effect}"
            yield ScriptFinding("gpu", *at, message, "remove it: each trial sees its own GPUs")
        if port := _PORT.search(text):
            message = f"port {port[1]} is the same for all trials, and only one of a node can have it"
            yield ScriptFinding("port", *at, message, "write {port} in its place, in the command")
        elif (taking := _TAKES_PORT.search(text)) and not _MEETS.search(text):
            launcher = taking["by"] or "torchrun"
            message = f"{launcher} takes port 29500 in each trial, and only one of a node can have it"
            option = _PORT_OPTIONS.get(launcher, "--standalone, or --master-port {port}")
            yield ScriptFinding("port", *at, message, f"add {option}")
        if _REQUEUE.search(text):
            yield ScriptFinding("requeue", *at, *_NO_REQUEUE)
        away = _ELSEWHERE.search(text)
        others = [each.text for each in lines if each.path == line.path and each is not line]
        if away and not starts_program("\n".join([*others, text[: away.start()]])):
            message = f"`{away['by']}` returns at once: the trial ends before what it starts, without its results"
            yield ScriptFinding("background", *at, message, "write what it starts in its place")
        if _SRUN.search(text):
            yield ScriptFinding("srun", *at, *_NO_SRUN)
        hiding = _HIDES.match(text.strip())
        if hiding and hiding["by"] == ";" and (line.path or _SETS_ERREXIT.search(text)):
            hiding = None  # `_exit_problems` reads scripts as a whole
        if hiding and starts_program(hiding["program"]):
            message = f"`{hiding['by']} {hiding['then']}` hides whether the program before it failed: {_COUNTS}"
            yield ScriptFinding("exit", *at, message, "write `&&` instead, or leave it out")
        trap = re.search(r"\btrap\b.*", text)
        if trap and (user := _USER_SIGNAL.search(trap[0])):
            yield ScriptFinding("signal", *at, *_other_signal(f"USR{user[1]}"))


# What always succeeds, as the last command of a line.
_HIDES: Final = re.compile(
    r"(?P<program>.+?)(?P<by>;|\|\|)\s*(?P<then>((echo|printf|true|date|sleep|exit 0)\b|:(?=\s|$))[^;|&]*)$"
)
_NO_REQUEUE: Final = (
    "puts its job back into the queue, which a trial cannot: its job is that of others, too",
    "remove it: Trainyard starts a trial again that was interrupted",
)


_NO_SRUN: Final = (
    "srun would start a step of a job that does not exist, since SLURM_JOB_ID is a number of the trial",
    "remove it: a trial has its GPUs and CPUs; several ranks: `torchrun --nproc-per-node {gpus} --master-port {port}`",
)


def _other_signal(name: str) -> tuple[str, str]:
    message = f"handles SIG{name}, which a trial gets only with `stop_signal: {name}`"
    return message, "give it, or handle SIGTERM in the same way"


def find_named_signals(started: CommandContents, scripts: Sequence[Script]) -> list[str]:
    """The signals other than SIGTERM that a command and its scripts name: at one of them, they may save their state."""
    sources = [ast.unparse(file.tree) for script in scripts for file in script.source.files]
    text = "\n".join([*(line.text for line in started.lines), *sources])
    return [name for name, words in _SIGNAL_NAMES.items() if re.search(rf"\b({words})\b", text)]


_SIGNAL_NAMES: Final = {"USR1": "(SIG)?USR1", "USR2": "(SIG)?USR2", "INT": "SIGINT|KeyboardInterrupt"}


def _background_problems(lines: Sequence[ShellLine]) -> Iterator[ScriptFinding]:
    """Why a shell does not see how the last program ends that its lines start: it runs in the background."""
    started = [index for index, line in enumerate(lines) if starts_program(line.text)]
    last = lines[started[-1]] if started else None
    script = "\n".join(line.text for line in lines)
    if not last or _READS_EXIT_CODES.search(script) or (last.path and _UNCLEAR.search(script)):
        return
    *_, end = (0, *(each.end() for each in _BACKGROUND.finditer(last.text)))
    rest = "\n".join([last.text[end:], *(line.text for line in lines[started[-1] + 1 :])])
    if not end or starts_program(rest) or not all(map(_WAITS.fullmatch, _PARTS.split(rest))):
        return
    if not re.search(r"\bwait\b", rest):
        message = "the program runs in the background, and is ended when the shell ends before it"
        yield ScriptFinding("background", last.path, last.number, message, "remove the `&`, or end with `wait $!`")
    elif not re.search(r"\bwait\s+[-$\"%\w]", rest):
        message = f"`wait` alone succeeds also if the program has failed: {_COUNTS}"
        yield ScriptFinding("exit", last.path, last.number, message, "write `wait $!`, which has its exit code")


_BACKGROUND: Final = re.compile(r"(?<![&>|])&(?![&>\d])")
_PARTS: Final = re.compile(r"[;\n|&]+")
# What does nothing but wait for a program in the background, or tell of it.
_WAITS: Final = re.compile(
    r"[\s)}]*((echo|printf|sleep|date|disown|exit|wait|done|fi|trap|kill|export|true|:)\b.*|\w+=\S*)?[\s)}]*"
)


def _exit_problems(lines: Sequence[ShellLine]) -> Iterator[ScriptFinding]:
    """Why the exit code of a script for a shell is not that of the last program that it starts."""
    options = " ".join(lines[0].options)
    texts = [line.text.strip() for line in lines]
    script = "\n".join(texts)
    started = [index for index, text in enumerate(texts) if starts_program(text)]
    if not started or _READS_EXIT_CODES.search(script) or _UNCLEAR.search(script):
        return
    program = started[-1]
    last = max(index for index, text in enumerate(texts) if text)
    stops = _ERREXIT_OPTION.search(options) or _SETS_ERREXIT.search(script)
    if last > program and not stops and not _is_condition(texts[program]) and _is_whole(texts[last]):
        message = f"the exit code of the script is that of its last line `{texts[last]}`: {_COUNTS}"
        yield ScriptFinding("exit", lines[last].path, lines[last].number, message, "add `set -e` to its beginning")
    piped = _PIPED_TO_TEE.search(texts[program])
    if piped and "pipefail" not in options and not _SETS_PIPEFAIL.search(script):
        message = f"the exit code of the line is that of `{piped[1]}`: {_COUNTS}"
        remedy = "add `set -o pipefail` to the beginning of the script"
        yield ScriptFinding("exit", lines[program].path, lines[program].number, message, remedy)


def _is_condition(line: str) -> bool:
    """Whether a line does not end with its program, or tests its exit code."""
    return bool(re.match(r"(if|elif|while|until|!)\s", line) or re.search(r"\|\||&&|[|&(]$", line))


def _is_whole(line: str) -> bool:
    """Whether a line is a command of its own, which says nothing about the programs before it."""
    try:
        shlex.split(line)
    except ValueError:  # the end of a text of several lines
        return False
    return not _END.match(line)


_COUNTS: Final = "a training that fails before it would count as finished"
_ERREXIT_OPTION: Final = re.compile(r"(^|\s)-[a-zA-Z]*e|\berrexit")
_SETS_ERREXIT: Final = re.compile(r"\bset\s([^;&|\n]*\s)?(-[a-zA-Z]*e|-[a-zA-Z]*o\s+errexit)|\btrap\b.*\bERR\b")
_SETS_PIPEFAIL: Final = re.compile(r"\bset\s[^;&|\n]*\bpipefail")
_READS_EXIT_CODES: Final = re.compile(r"^(?!echo|printf).*(\$\?|\bPIPESTATUS\b)", re.MULTILINE)
# Functions and here documents, after which the order of the lines says little.
_UNCLEAR: Final = re.compile(r"^\s*(function\s+\w|[\w-]+\s*\(\))|(?<!<)<<-?\s*['\"\\]?\w", re.MULTILINE)
_PIPED_TO_TEE: Final = re.compile(r"(?<!\|)\|&?\s*(tee\b[^|;&]*)$")
# The end of a compound command, `wait`, a test, and an exit code that the script chooses.
_END: Final = re.compile(r"(fi|done|esac|wait|test)\b|[})|&[]|exec\s|(exit|return)\s*($|[^0\s])")


# ---- what the calls and assignments of a file do


def _environment_writes(file: SourceFile, variable: str) -> Iterator[ast.expr]:
    """The values that overwrite a variable of the environment, whatever it is."""
    for node in file.nodes:
        items = list[tuple[ast.expr | None, ast.expr]]()
        if isinstance(node, ast.Assign):
            targets = (each for each in node.targets if isinstance(each, ast.Subscript))
            items = [(each.slice, node.value) for each in targets if file.name(each.value) == "os.environ"]
        elif isinstance(node, ast.Call) and file.name(node.func) == "os.environ.update":
            given = (each for each in node.args if isinstance(each, ast.Dict))
            items = [item for each in given for item in zip(each.keys, each.values, strict=True)]
        for name, value in items:
            questions = (around.test for around in file.ancestors(value) if isinstance(around, ast.If))
            asks = any(variable in file.texts(each) for each in (value, *questions))
            if literal(name) == variable and not asks:
                yield value


def _gpu_choices(file: SourceFile, script: Script) -> Iterator[ScriptFinding]:
    """Writes to CUDA_VISIBLE_DEVICES."""
    values = list(_environment_writes(file, VISIBLE))
    is_read = bool(values) and sum(text == VISIBLE for text in file.texts(file.tree)) > len(values)
    for value in values:
        gpu = literal(value)
        remedy = "remove the line: each trial sees its own GPUs"
        option = _option_of(value, script)
        if option:
            passed = _passed(option.names, script.words)
            gpu = option.default if passed is None else passed
            remedy = f"write `{option.flag} $CUDA_VISIBLE_DEVICES` in the command, or remove the line"
        elif any(isinstance(around, ast.If) for around in file.ancestors(value)):
            continue
        elif not is_literal(value) and not is_read and "rank" not in ast.unparse(value):
            message = f"{VISIBLE} is overwritten, {WHATEVER_GPUS}"
            yield ScriptFinding("gpu", file.path, value.lineno, message, remedy)
        if gpu not in (None, "", "-1", -1) and VISIBLE not in str(gpu):
            message = f"{VISIBLE} is overwritten with {gpu!r}, so that all trials run on the same GPU"
            yield ScriptFinding("gpu", file.path, value.lineno, message, remedy)


def find_gpu_option(script: Script) -> ScriptOption | None:
    """The option whose value a script puts into CUDA_VISIBLE_DEVICES; None without one."""
    writes = (value for file in script.source.files for value in _environment_writes(file, VISIBLE))
    return next((_option_of(value, script) for value in writes), None)


def _ports(file: SourceFile, script: Script) -> Iterator[ScriptFinding]:
    """Ports that are the same in all trials."""
    ports = [(literal(value), value.lineno) for value in _environment_writes(file, "MASTER_PORT")]
    for call in file.calls:
        address = arguments(call).get("init_method")
        if method(call) == "init_process_group" and address is not None:
            matches = filter(None, map(_FIXED_ADDRESS.match, file.texts(address)))
            ports += [(match[1], call.lineno) for match in matches]
    for port, line in ports:
        if port not in (None, "0", 0):
            message = f"port {port} is the same for all trials, and only one of a node can have it"
            remedy = "leave it out: each trial has a MASTER_PORT of its own"
            yield ScriptFinding("port", file.path, line, message, remedy)


def _requeues(file: SourceFile, script: Script) -> Iterator[ScriptFinding]:
    """Calls of `scontrol requeue`, and of `srun`."""
    for call in file.calls:
        if method(call) in ("run", "call", "check_call", "check_output", "Popen", "system", "popen"):
            words = " ".join(file.texts(call))
            if _REQUEUE.search(words):
                yield ScriptFinding("requeue", file.path, call.lineno, *_NO_REQUEUE)
            if _SRUN.search(words):
                yield ScriptFinding("srun", file.path, call.lineno, *_NO_SRUN)


def _signals(file: SourceFile, script: Script) -> Iterator[ScriptFinding]:
    """Handlers of SIGUSR1 and SIGUSR2."""
    for name, line in _handlers(file):
        if name in ("USR1", "USR2"):
            yield ScriptFinding("signal", file.path, line, *_other_signal(name))


def _handlers(file: SourceFile) -> Iterator[tuple[str, int]]:
    """The signals that a file handles, as `USR1`, and the lines where."""
    for call in file.calls:
        if file.name(call.func) == "signal.signal" and len(call.args) == 2:
            number, handler = map(file.name, call.args)
            if (named := re.search(r"\bSIG([A-Z]+[12]?)$", number)) and "SIG_" not in handler:
                yield named[1], call.lineno


def handled_signals(script: Script) -> list[str]:
    """The signals that a script handles, as `USR1`."""
    return list(dict.fromkeys(name for file in script.source.files for name, _ in _handlers(file)))


def _read_variable(file: SourceFile, node: ast.AST) -> str | None:
    """The variable of the environment that an expression reads; None for others."""
    name = None
    if isinstance(node, ast.Call) and file.name(node.func) in ("os.getenv", "os.environ.get") and node.args:
        name = literal(node.args[0])
    elif isinstance(node, ast.Subscript) and file.name(node.value) == "os.environ" and isinstance(node.ctx, ast.Load):
        name = literal(node.slice)
    return name if isinstance(name, str) else None


def find_settings_in_environment(script: Script) -> dict[str, Any]:
    """The variables that a script reads, and their defaults; not those of launchers, schedulers and libraries.

    Of a script for a shell, those that it reads as `${LR:-0.1}`, or as `$LR` without setting it.
    """
    defaults = dict[str, Any]()
    for file in script.source.files:
        for node in file.nodes:
            if name := _read_variable(file, node):
                default = literal(node.args[1]) if isinstance(node, ast.Call) and len(node.args) > 1 else None
                defaults.setdefault(name, default)
    if script.library == "shell":
        text = script.path.read_text(encoding="utf-8", errors="replace")
        defaults = {name: default.strip("'\"") or None for name, default in reversed(_WITH_DEFAULT.findall(text))}
        defaults |= dict.fromkeys(sorted(set(_IN_CAPITALS.findall(text)) - defaults.keys()))
        for name in _set_by_shell(text, script.path.parent):
            defaults.pop(name, None)
    return {name: default for name, default in defaults.items() if not _NO_SETTING.match(name)}


def _set_by_shell(text: str, folder: Path) -> Iterator[str]:
    """The variables that a script for a shell, or a file that it sources, sets to anything but what they were."""
    texts = [text]
    for word in _SOURCED.findall(text):
        places = (Path(word), folder / PurePath(word).name)
        texts += [place.read_text(encoding="utf-8", errors="replace") for place in places if is_file(place)]
    for each in texts:
        yield from (name for name, value in _ASSIGNED.findall(each) if not re.search(rf"\$\{{?{name}\b", value))
        yield from (name for found in _READ_INTO.findall(each) for name in " ".join(found).split())


# As ${LR:-0.1}, ${LR:-$(cat lr)} or ${LR:?}.
_WITH_DEFAULT: Final = re.compile(r"\$\{([A-Za-z_]\w*):?(?:[-=]([^{}$`]*)\}|[-=?])")
_IN_CAPITALS: Final = re.compile(r"\$\{?([A-Z]\w*)")
_SOURCED: Final = re.compile(r"^\s*(?:source|\.)\s+[\"']?(?:\$\(.*\)/|\$\{.*\}/)?([^\s;&\"']+)", re.MULTILINE)
_ASSIGNED: Final = re.compile(r"(?<![\w$-])([A-Za-z_]\w*)\+?=(\S*)")
_READ_INTO: Final = re.compile(r"\b(?:for|select)\s+(\w+)|\b(?:read|mapfile|readarray|getopts)\b([^;|<&\n]*)")


_NO_SETTING: Final = re.compile(
    r"(SLURM|CUDA|NCCL|MASTER|OMP|MKL|HF|WANDB|TORCH|PYTHON|TRAINYARD)_|PMI|OMPI|(LOCAL_|NODE_|GROUP_)?RANK|.*WORLD_SIZE|"
    "(HOME|USER|PATH|PWD|TMPDIR|HOSTNAME)$"
)


def _truth_of_texts(file: SourceFile, script: Script) -> Iterator[ScriptFinding]:
    """Words of the command, and variables that it sets, whose text `bool` takes for true."""
    for call in file.calls:
        if file.name(call.func) != "bool" or not call.args:
            continue
        value = call.args[0]
        is_word = isinstance(value, ast.Subscript) and file.name(value.value) == "sys.argv"
        if is_word or _read_variable(file, value) in script.variables:
            message = "`bool` takes any text for true, also `off`"
            yield ScriptFinding("settings", file.path, call.lineno, message, "compare the text, as in `text == 'on'`")


def _unread_settings(file: SourceFile, script: Script) -> Iterator[ScriptFinding]:
    """Settings that the command passes to a script that does not read its command line, but maybe `wandb.config`."""
    names = find_placeholders(list(script.words)) - _NOT_VARIED
    if not names or not ignores_command_line(script):
        return
    lines = list[int]()
    for node in file.nodes:
        is_init = isinstance(node, ast.Call) and file.name(node.func) == "wandb.init" and "config" in arguments(node)
        if is_init or file.name(node) == "wandb.config":
            lines.append(node.lineno)  # type: ignore[attr-defined]
    named = {name: find_placeholders(text) for name, text in script.variables.items()}
    varied = ", ".join(name for name, found in named.items() if found - _NOT_VARIED)
    effect = f"trials differ in the variables {varied} alone" if varied else "all trials are equal"
    if lines:
        message = f"takes its settings from `wandb.config`, and nothing of the command line: {effect}"
        yield ScriptFinding("wandb", file.path, lines[0], message, "`metrics: wandb` gives them to it")
    elif file.path == script.path and not script.source.uses_wandb and script.source.packages <= _READ_NOTHING:
        message = f"reads nothing of the command line, to which the command adds settings: {effect}"
        yield ScriptFinding("settings", file.path, 1, message, "read them in the script, as by argparse")


# Packages that leave the command line to the script; any other one may read it.
_READ_NOTHING: Final = frozenset(
    (
        *("PIL", "accelerate", "albumentations", "cv2", "datasets", "einops", "evaluate", "gym", "gymnasium", "h5py"),
        *("jax", "joblib", "lightgbm", "matplotlib", "numpy", "pandas", "peft", "safetensors", "scipy", "seaborn"),
        *("sklearn", "tensorboard", "timm", "tokenizers", "torch", "torchaudio", "torchmetrics", "torchvision"),
        *("tqdm", "transformers", "xgboost", "yaml"),
    )
)
_NOT_VARIED: Final = {*TRIAL_PLACEHOLDERS, GPUS, PORT}


def _agents(file: SourceFile, script: Script) -> Iterator[ScriptFinding]:
    """Calls of W&B's agent, which only a choice of the user avoids."""
    for call in file.calls:
        if file.name(call.func) == "wandb.agent" and not any(_is_choice(each) for each in file.ancestors(call)):
            message = "`wandb.agent` takes settings from W&B's server, and none of a trial"
            remedy = "call the function that it gets in its place, with `metrics: wandb`"
            yield ScriptFinding("settings", file.path, call.lineno, message, remedy)


def _is_choice(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "__main__" not in ast.unparse(node.test)


def ignores_command_line(script: Script) -> bool:
    """Whether it is certain that a script reads no word of its command line."""
    source = script.source
    if script.options or script.library or not source.is_whole:
        return False
    called = {method(call) for each in source.files for call in each.calls}
    named = {each.name(node).rpartition(".")[2] for each in source.files for node in each.nodes}
    return _READERS.isdisjoint(source.imports | called | named)


# With these, a script may read its command line although it has no option that can be seen.
_READERS: Final = frozenset(
    (
        *("argv", "orig_argv", "exec", "run_path", "run_module"),
        *("argparse", "chz", "docopt", "draccus", "gin", "jsonargparse", "lightning", "ml_collections", "omegaconf"),
        *("optparse", "pydantic_settings", "pyrallis", "pytorch_lightning", "sacred", "simple_parsing", "tap", "yacs"),
    )
)

Look = Callable[[SourceFile, Script], Iterator[ScriptFinding]]
_LOOKS: Final[tuple[Look, ...]] = (
    _gpu_choices,
    _ports,
    _requeues,
    _signals,
    _truth_of_texts,
    _unread_settings,
    _agents,
)


# ---- helpers


def _option_of(value: ast.AST, script: Script) -> ScriptOption | None:
    """The option whose value an expression is made of, as `str(args.gpu)`; None without one."""
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
