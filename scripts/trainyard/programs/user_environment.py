"""The environment of a user's program: the one in which Snakemake was started, or another one by its name.

Ray sets variables for its workers, `make` for Snakemake, and `--sdm conda` activates another environment for Trainyard
itself. The user's values of the variables that these change are therefore recorded in a variable before.
"""

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from trainyard.config.placeholders import Command
from trainyard.config.scaling import ScriptScaling
from trainyard.config.user_programs import CommandOptions, Study
from trainyard.utils.environment_variables import COMPILE_THREADS, Variables
from trainyard.utils.errors import UserError
from trainyard.utils.import_path import version
from trainyard.utils.text import suggest

RECORD: Final = "TRAINYARD_USER_ENVIRONMENT"
# Variables that determine where programs and modules are found, and one that Ray sets.
RECORDED: Final = (
    "PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", "CONDA_PREFIX",
    "CONDA_DEFAULT_ENV", "CONDA_PROMPT_MODIFIER", "CONDA_SHLVL", "PYTHONBREAKPOINT",
)  # fmt: skip
# From `make run`: a `make` of the user would take over its options and variables.
_OF_MAKE: Final = re.compile(r"MAKE(FLAGS|LEVEL|OVERRIDES|_TERMOUT|_TERMERR)|MFLAGS")
# Snakemake sets them to the CPUs of the job, which several trials share.
_THREADS: Final = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)  # fmt: skip
GIT_SECONDS: Final = 5.0  # at most, while the slots wait
FULL_ERRORS: Final = {"HYDRA_FULL_ERROR": "1"}  # without it, Hydra hides where an exception comes from
SCRIPT: Final = (".py", ".sh")
# Of a command, without variables and placeholders: in quotes, and without, as in what `sh -c '...'` gets.
_WORDS: Final = [
    re.compile(rf"(?<![^\s;|&(])(?:{word})(?![^\s;|&)<>])")
    for word in (r"""'[^'{}]*'|"[^"$`\\{}]*\"""", r"[\w./+@%-]+")
]
TRAINYARD: Final = "trainyard"  # the environment that runs Trainyard
_XLA_MEMORY: Final = re.compile("XLA_(PYTHON_)?CLIENT_(MEM_FRACTION|PREALLOCATE|ALLOCATOR)$")
FIRST_MODULES: Final = "TRAINYARD_FIRST_MODULES"  # a folder of modules that trials find before all others
UNSET: Final = "***unset***"  # conda keeps it as the value of a variable that it sets no more


def record_environment() -> str:
    """The user's values of the recorded variables, as the value of the variable RECORD."""
    return json.dumps({name: os.environ.get(name) for name in RECORDED})


def code_version() -> str | None:
    """The commit of the working folder; None if git does not know.

    If tracked files differ from it, `-dirty` follows, and a digest of the differences.
    """
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        commit = subprocess.run(describe, capture_output=True, text=True, timeout=GIT_SECONDS).stdout.strip()
        if not commit.endswith("-dirty"):
            return commit or None
        differences = ["git", "diff", "--no-ext-diff", "HEAD"]
        found = subprocess.run(differences, capture_output=True, timeout=GIT_SECONDS)
        return f"{commit}-{hashlib.sha256(found.stdout).hexdigest()[:8]}"
    return None


def program_environment(python: Path | None = None) -> dict[str, str]:
    """The variables of a user's program, after the environment of an interpreter was activated, if one is given."""
    recorded = json.loads(os.environ.get(RECORD, "{}"))
    hidden = {RECORD, *recorded}
    kept = {name: value for name, value in os.environ.items() if name not in hidden and not _OF_MAKE.fullmatch(name)}
    user = FULL_ERRORS | kept | {name: value for name, value in recorded.items() if value is not None}
    return user if python is None else _activate(python, user)


def resolve_program_paths(command: Command, start: Path) -> Command:
    """The command for another working folder than `start`: the paths of its own program and scripts become absolute.

    These are the words that name an executable file with a slash, as `./train`, or a file that ends in .py or .sh.
    """
    if isinstance(command, list):
        return [_program_path(word, start) or word for word in command]

    def resolve(word: re.Match[str]) -> str:
        path = _program_path(word[0].strip("'\""), start)
        return shlex.quote(path) if path else word[0]

    for word in _WORDS:
        command = word.sub(resolve, command)
    return command


def _program_path(word: str, start: Path) -> str | None:
    path = start / word
    is_script = word.endswith(SCRIPT)
    is_program = (is_script or os.sep in word) and os.access(path, os.R_OK if is_script else os.X_OK)
    return str(path) if is_program and path.is_file() else None


def module_path(start: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The variable with which Python finds the modules in `start` first, as if a program ran there."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(start), environment.get("PYTHONPATH"))))}


def thread_variables(count: int, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables that make libraries use this many threads; for torch.compile, the number in `environment` stays."""
    compiling = {} if COMPILE_THREADS in environment else {COMPILE_THREADS: str(count)}
    return dict.fromkeys(_THREADS, str(count)) | compiling


def worker_threads(count: int, variables: Variables) -> Variables:
    """The numbers of threads with which a worker starts: those of a trial, unless the user's `variables` have others.

    Ray imports numpy in the worker, which reads them then, before the worker sets the other variables.
    """
    return {**thread_variables(count), **{name: variables[name] for name in _THREADS if name in variables}}


def gpu_memory_variables(share: float, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables that keep JAX and TensorFlow to a share of a GPU's memory, unless the user has set one.

    By default, JAX takes 75 % of it at its start, and TensorFlow all. A tenth is for what lies outside of JAX's pool.
    """
    if not 0 < share < 1:
        return {}
    own = {"XLA": ("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{0.9 * share:.3g}"), "TF": ("TF_FORCE_GPU_ALLOW_GROWTH", "true")}
    is_set = {"XLA": any(map(_XLA_MEMORY.match, environment)), "TF": own["TF"][0] in environment}
    return {name: value for library, (name, value) in own.items() if not is_set[library]}


def find_interpreter(study: Study) -> Path | None:
    """The interpreter of the environment that `env` names; None if it is not given.

    Raises:
        UserError: there is none.
    """
    if not isinstance(study, CommandOptions) or study.env is None:
        return None
    if study.env == TRAINYARD:
        return Path(sys.executable)
    path = Path(study.env).expanduser()
    if os.sep in study.env or (path / "bin/python").exists():
        return _executable(path, study.env)
    return _executable(_conda_prefix(study.env), f"the conda environment {study.env}")


def script_interpreter(study: ScriptScaling) -> Path:
    """The interpreter of a distributed script and its launcher: by default the first `python` on the user's PATH.

    Raises:
        UserError: there is none.
    """
    if found := _find_python(study):
        return found
    raise UserError("there is no python on your PATH: activate your environment, or name it by `env:`")


def _find_python(study: Study) -> Path | None:
    path = program_environment().get("PATH")
    found = find_interpreter(study) or shutil.which("python", path=path) or shutil.which("python3", path=path)
    return Path(found) if found else None


def code_record(study: Study, *, config: str | None) -> dict[str, Any]:
    """With which code a job of a study runs; `config` is the digest of its config. The keys of `SessionStarted`."""
    return {"code": code_version(), "versions": find_versions(study), "config": config}


def find_versions(study: Study) -> dict[str, str]:
    """The versions of Trainyard, of Python (without its last part), and of torch or the libraries of trees for a study.

    Only files are read: starting Python takes a second where they lie on a shared file system.
    """
    versions = {"trainyard": version()}
    python = _find_python(study) if study.command_line else Path(sys.executable)
    if python is None:
        return versions
    prefix = python.parent.parent
    is_own = prefix == Path(sys.prefix)
    if number := re.match(r"python(\d+\.\d+)", python.resolve().name):
        versions["python"] = number[1]
    folders = sys.path if is_own else list(map(str, prefix.glob("lib/python3*/site-packages")))
    for package in study.packages:
        found = next(iter(metadata.distributions(name=package, path=folders)), None)
        if found:
            versions[package.removesuffix("-cpu")] = found.version
    return versions


def _executable(path: Path, name: str) -> Path:
    """The absolute path of an interpreter, given by its path or by the folder of its environment.

    Links are not followed: the `python` of a virtual environment is a link to one outside of it.
    """
    python = Path.cwd() / (path / "bin/python" if path.is_dir() else path)
    if not (python.is_file() and os.access(python, os.X_OK)):
        raise UserError(f"{name} has no Python interpreter: {python} is not an executable file")
    return python


def _activate(python: Path, environment: dict[str, str]) -> dict[str, str]:
    """What `activate` of a virtual or conda environment does. Of another interpreter, the folder is first on PATH."""
    prefix = python.parent.parent
    kept = {name: value for name, value in environment.items() if name not in ("PYTHONHOME", "VIRTUAL_ENV")}
    kept["PATH"] = f"{python.parent}{os.pathsep}{environment.get('PATH', os.defpath)}"
    if (prefix / "pyvenv.cfg").exists():
        return kept | {"VIRTUAL_ENV": str(prefix)}
    if not (prefix / "conda-meta").is_dir():
        return kept
    # A conda environment has variables of its own and of its packages, whose scripts set others.
    files = sorted((prefix / "etc/conda/env_vars.d").glob("*.json"))
    state = prefix / "conda-meta/state"
    own = {name: value for file in files for name, value in json.loads(file.read_text()).items()}
    own |= json.loads(state.read_text()).get("env_vars", {}) if state.exists() else {}
    named = {"CONDA_PREFIX": str(prefix), "CONDA_DEFAULT_ENV": prefix.name, "CONDA_SHLVL": "1"}
    activated = kept | named | {name: value for name, value in own.items() if value != UNSET}
    scripts = sorted(map(str, (prefix / "etc/conda/activate.d").glob("*.sh")))
    if not scripts:
        return activated
    line = 'for each; do . "$each" >&2; done; exec env -0'
    done = subprocess.run(["bash", "-c", line, "bash", *scripts], env=activated, stdout=subprocess.PIPE, check=True)
    return parse_environment(done.stdout)


def parse_environment(text: bytes) -> dict[str, str]:
    """The variables in the output of `env -0`."""
    return dict(each.split("=", 1) for each in os.fsdecode(text).split("\0") if "=" in each)


def _conda_prefix(name: str) -> Path:
    """The folder of a conda environment, by its name.

    Known are those that conda lists in a file, and those where it creates them.

    Raises:
        UserError: there is none with this name.
    """
    environment = program_environment()
    listed = Path.home() / ".conda/environments.txt"  # written by conda, mamba and micromamba
    prefixes = [Path(line) for line in listed.read_text().splitlines()] if listed.exists() else []
    roots = [Path(environment["CONDA_EXE"]).parents[1]] if "CONDA_EXE" in environment else []
    roots += [Path(environment["MAMBA_ROOT_PREFIX"])] if "MAMBA_ROOT_PREFIX" in environment else []
    folders = f"{environment.get('CONDA_ENVS_PATH', '')}:{environment.get('CONDA_ENVS_DIRS', '')}".split(":")
    for folder in [*map(Path, filter(None, folders)), *(root / "envs" for root in roots)]:
        prefixes += sorted(folder.glob("*"))
    found = {prefix.name: prefix for prefix in prefixes} | dict(zip(["base"], roots, strict=False))
    environments = {each: prefix for each, prefix in found.items() if (prefix / "conda-meta").is_dir()}
    if name not in environments:
        raise UserError(f"there is no conda environment {name!r}: give its folder; {suggest(name, environments)}")
    return environments[name]
