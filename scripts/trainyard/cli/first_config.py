"""The first config for a training script, and the profile for a Slurm cluster, as `trainyard init` writes them."""

import ast
import logging
import math
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise, takewhile
from pathlib import Path
from typing import Any, Final

from trainyard.cli.array_script import pipefail_note
from trainyard.cluster.gpus import has_gpu
from trainyard.cluster.slurm_queries import Partition, named_partitions, parse_gpus
from trainyard.config.metric_names import guess_mode
from trainyard.config.parser import InLine, read_file, write_yaml
from trainyard.config.placeholders import TRIAL_DIR, dotted_items
from trainyard.config.settings import SETTINGS
from trainyard.config.user_programs import Metrics
from trainyard.programs.script_findings import (
    find_gpu_option,
    find_problems,
    find_settings_in_environment,
    handled_signals,
)
from trainyard.programs.script_options import Script, ScriptOption, read_started
from trainyard.programs.script_source import is_file, literal
from trainyard.programs.started_scripts import find_started
from trainyard.utils.errors import UserError
from trainyard.utils.import_path import SCRIPTS
from trainyard.utils.typed_commands import trainyard_call

TRIALS: Final = 20
MOST_KEYS: Final = 4  # that a first sweep varies
MOST_CHOICES: Final = 6
MOST_VALUES: Final = 4  # of the metric, in a comment
SETTINGS_FILES: Final = (".yaml", ".yml", ".json")
Values = list[Any] | dict[str, Any]
Varied = dict[str, tuple[ScriptOption, Values]]  # by key
log = logging.getLogger("init")


def _around_default(low: float, high: float, option: ScriptOption) -> Values:
    """A range on a logarithmic scale: a tenth of the default to ten times the default; this one without a default.

    From a default below 1, it ends at 1, since it may be a fraction.
    """
    default = _number(option)
    if default > 0:
        low = default / 10
        high = min(default * 10, 1.0 if default < 1 else math.inf)
    return {"low": float(f"{low:.3g}"), "high": float(f"{high:.3g}"), "log": True}


def _doubled(option: ScriptOption) -> Values | None:
    """Half the default, the default, and twice the default."""
    default = _number(option)
    return [int(default) // 2, int(default), 2 * int(default)] if default >= 2 and default == int(default) else None


def _between(low: float, high: float, option: ScriptOption) -> Values:
    """A range that includes the default."""
    default = _number(option) or low
    return {"low": min(low, default), "high": max(high, default)}


def _chosen(option: ScriptOption) -> Values | None:
    return list(option.choices) if 1 < len(option.choices) <= MOST_CHOICES else None


def _number(option: ScriptOption) -> float:
    value = option.default
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0


# By the name of an option, the values to search; what comes first is varied first.
_VARIED: Final[tuple[tuple[str, Callable[[ScriptOption], Values | None]], ...]] = (
    (r"(base_|init_|initial_|max_|peak_)?(lr0?|learning_rate)", partial(_around_default, 1e-4, 1e-1)),
    (r"weight_decay|wd|l2(_reg)?", partial(_around_default, 1e-6, 1e-2)),
    (r"(train_)?(batch_size|bs)|per_device_train_batch_size", _doubled),
    (r"(\w+_)?(dropout|drop_rate|drop_path)(_rate|_prob)?", partial(_between, 0.0, 0.5)),
    (r"opt(im|imizer)?(_name|_type)?|activation|sched(uler)?|lr_scheduler|loss(_fn|_type)?", _chosen),
    (r"momentum", partial(_between, 0.8, 0.99)),
    (r"(n_?|num_)?(width|hidden(_size|_dim|_units)?|embd|d_model|depth|layers?|blocks?|channels|filters)", _doubled),
    (r"label_smoothing", partial(_between, 0.0, 0.2)),
    (r"arch|model(_name|_type)?|backbone", _chosen),
)


def _takes_number(option: ScriptOption) -> bool:
    """Whether the value of an option may be a number, as far as its declaration tells."""
    is_boolean = option.is_flag or option.switch is not None or "type=bool" in option.problem
    if is_boolean or isinstance(option.default, bool):
        return False
    try:
        return option.default is None or math.isfinite(float(option.default))
    except (TypeError, ValueError):
        return False


def find_varied(script: Script, typed: Sequence[str]) -> tuple[Script, Varied]:
    """What a first sweep of a script varies, each with its values, by key; and the script with where it reads this.

    That is the first of its options, a file of settings that its command line (`typed`) or a default names, and its
    variables where one has a usual name; otherwise the first with a number or choices.
    """
    readers = list[Script]()
    for reader in chain([script], _readers_of_file(script, typed), _readers_of_variables(script)):
        if varied := _usual(reader):
            return reader, varied
        readers.append(reader)
    for reader in readers:
        if varied := _others(reader):
            return reader, varied
    return script, {}


def _usual(script: Script) -> Varied:
    """The settings of a script that a sweep usually varies."""
    varied: Varied = {}
    for pattern, find in _VARIED:
        for option in _settings_of(script):
            is_varied = re.fullmatch(pattern, _name_of(option)) is not None
            takes_values = find is _chosen or _takes_number(option)
            if is_varied and takes_values and len(varied) < MOST_KEYS and (values := find(option)):
                varied[option.key] = option, values
    return varied


def _others(script: Script) -> Varied:
    """The first settings of a script with choices, or a number that may be another one."""
    varied: Varied = {}
    for option in _settings_of(script):
        values = _chosen(option)
        if values is None and type(option.default) is int:
            values = _doubled(option)
        elif values is None and type(option.default) is float and 0 < option.default < math.inf:
            values = _around_default(0, 0, option)
        if values and len(varied) < MOST_KEYS and not _FIXED.search(_name_of(option)):
            varied[option.key] = option, values
    return varied


_FIXED: Final = re.compile(
    r"epoch|step|iter|seed|worker|thread|cpu|device|gpu|port|rank|node|host|log|save|print|verbos|debug|every|interval"
    r"|freq|version|jobs|patience|early|fold|time|limit|^max_|^n_|^num_|env|task|path|dir"
)


def _settings_of(script: Script) -> Sequence[ScriptOption]:
    options = [option for option in script.options if option.flag.startswith("-") or script.uses_hydra]
    return script.settings or options


def _name_of(option: ScriptOption) -> str:
    return option.key.rpartition(".")[2].lower()


def _readers_of_file(script: Script, typed: Sequence[str]) -> Iterator[Script]:
    """The script with what is in the files of settings that its command line, or the default of an option, names."""
    named = list[tuple[str, ...]]()
    for before, word in pairwise(["", *typed]):
        named += [(before, word) if before.startswith("-") and "=" not in before else (word,)]
    for option in script.options:
        if isinstance(option.default, str):
            named += [(option.flag, option.default) if option.flag.startswith("-") else (option.default,)]
    for words in named:
        file = words[-1].rpartition("=")[2]
        if not file.endswith(SETTINGS_FILES) or not Path(file).is_file():
            continue
        try:
            content = read_file(Path(file))
        except UserError as error:  # it may be data
            log.info("%s", error)
            continue
        if isinstance(content, dict):
            items = [(key, value) for key, value in dotted_items(content) if _KEY.fullmatch(key)]
            settings = tuple(ScriptOption(key, default=value, names=(key,), where=file) for key, value in items)
            place = tuple(word.replace(file, _SETTINGS) for word in words)
            yield replace(script, settings=settings, settings_words=place, settings_file=file)


_SETTINGS: Final = f"{{{SETTINGS}}}"
_KEY: Final = re.compile(r"[A-Za-z_]\w*(\.\w+)*", re.ASCII)  # that a config can vary


def _readers_of_variables(script: Script) -> Iterator[Script]:
    """The script with its variables as its settings, if it has some."""
    settings = list[ScriptOption]()
    for name, default in find_settings_in_environment(script).items():
        value = default
        with suppress(ValueError, SyntaxError):  # it is text
            value = ast.literal_eval(default) if isinstance(default, str) else default
        settings.append(ScriptOption(name, default=value, names=(name,), where=str(script.path)))
    if settings:
        yield replace(script, settings=tuple(settings))


def find_constants(script: Script) -> list[str]:
    """The constants of a script with the name of a setting that a sweep usually varies, and their lines."""
    constants = list[str]()
    for file in script.source.files:
        for node in file.tree.body:
            if not isinstance(node, ast.Assign) or literal(node.value) is None:
                continue
            name = file.name(node.targets[0]).lower()
            if any(re.fullmatch(pattern, name) for pattern, _ in _VARIED):
                constants.append(f"{ast.unparse(node)} in {file.path}, line {node.lineno}")
    return constants


@dataclass(frozen=True)
class Observed:
    """What a short run of a script has shown."""

    metrics: Metrics | None = None
    metric: str = ""  # that ranks trials
    values: tuple[float | None, ...] = ()  # of the metric, as it was reported
    has_epochs: bool = True  # whether the rows of metrics name them, or steps
    writes_here: bool = False  # files in the folder that it runs in
    problem: str = ""  # why no metric was found

    @property
    def keys(self) -> dict[str, Any]:
        """The keys of a sweep with these metrics."""
        if not self.metrics:
            return {}
        if self.metrics.is_wandb:
            section: Any = "wandb"
        else:
            values = {key: getattr(self.metrics, key) for key in ("file", "pattern", "sample")}
            section = {key: value for key, value in values.items() if value}
        return {"metrics": section, "metric": self.metric, "mode": guess_mode(self.metric)}

    @property
    def guess(self) -> str:
        """Why the metric was taken for the one that ranks trials."""
        shown = [f"{value:.4g}" for value in self.values if value is not None]
        if len(shown) > MOST_VALUES:
            shown = [*shown[: MOST_VALUES - 1], "...", shown[-1]]
        if len(self.values) < 2:
            return f"a short run reported {self.metric} once ({', '.join(shown)})"
        return f"a short run reported {self.metric} {len(self.values)} times ({', '.join(shown)})"


def build_command(script: Script, varied: Varied, *, inputs: Sequence[str] = ()) -> str:
    """The command line of a trial: the varied options, its folder where the script takes one, and given `inputs`."""
    words = [*map(shlex.quote, script.program), shlex.quote(str(script.path))]
    inputs = [*inputs, *script.words]
    flags = {key: option.flag for key, (option, _) in varied.items()}
    if script.uses_hydra and not script.settings:
        return " ".join([*words, "{args:hydra}", "hydra.run.dir={trial_dir}", *map(shlex.quote, inputs)])
    if script.settings_file:
        words += script.settings_words
    elif script.settings:
        assigned = [f"{key}={{{key}}}" for key in varied]
        if variable := _output_variable(script):
            assigned.append(f"{variable}={{trial_dir}}")
        words = assigned + words
    elif all(flag == f"--{key}" for key, flag in flags.items()):
        words.append("{args}")
    elif all(flag == f"--{key.replace('_', '-')}" for key, flag in flags.items()):
        words.append("{args:dashes}")
    else:
        words += [f"{flag} {{{key}}}" for key, flag in flags.items()]
    if (option := find_gpu_option(script)) and option.default not in (None, ""):
        words.append(f"{option.flag} ${{CUDA_VISIBLE_DEVICES:-{option.default}}}")
    if script.output:
        file = Path(str(script.output.default or ""))
        name = f"/{file.name}" if file.suffix else ""
        words.append(f"{script.output.flag} {{trial_dir}}{name}")
    return " ".join([*words, *(word if _SETTINGS in word else shlex.quote(word) for word in inputs)])


def _output_variable(script: Script) -> str:
    """The first variable of a script that names a folder that it writes to; "" without one."""
    for option in script.settings:
        names_output = replace(option, flag=f"--{option.flag.lower()}").is_output
        if names_output and not Path(str(option.default or "")).suffix:
            return option.flag
    return ""


def missing_options(script: Script, varied: Varied) -> list[str]:
    """The options that the script requires and the command lacks."""
    words = [*script.settings_words, *script.words]
    given = {*varied, script.output.key if script.output else "", *(word.partition("=")[0] for word in words)}
    missing = [each for each in script.options if each.is_required and {each.key, each.flag}.isdisjoint(given)]
    positional = [each for each in missing if not each.flag.startswith("-")]
    unnamed = positional[: sum(_is_positional(script, *pair) for pair in pairwise(["", *words]))]
    return [each.flag for each in missing if each not in unnamed]


def _is_positional(script: Script, before: str, word: str) -> bool:
    """Whether a word of a command line is neither an option nor the value of the one before it."""
    option = script.find(before)
    takes_value = before.startswith("-") and "=" not in before and not (option and option.is_flag)
    return not word.startswith("-") and not takes_value


def type_words(script: Script, varied: Varied, before: Sequence[str], after: Sequence[str]) -> Script:
    """A script that is started as a user types it, but for what the sweep varies, and where it writes."""
    named = {*varied, _output_variable(script)} if script.settings else set[str]()
    assigned = list(takewhile(_ASSIGNMENT.match, before))
    program = before[len(assigned) :] or script.program
    program = [*(word for word in assigned if word.partition("=")[0] not in named), *program]
    ours = {option.flag: option for option, _ in varied.values()}
    for option in (script.output, find_gpu_option(script)):
        if option:
            ours[option.flag] = option
    kept = list[str]()
    words = list(after)
    while words:
        word = words.pop(0)
        if script.settings_file and word.rpartition("=")[2] == script.settings_file:
            kept.append(word.replace(script.settings_file, _SETTINGS))
            continue
        is_value = bool(kept) and kept[-1].startswith("-")  # of an option that would be left alone
        if script.settings_file and "=" in word and not is_value and word.partition("=")[0].lstrip("-+") in varied:
            continue
        name = word if script.uses_hydra or word.startswith("--") else word[:2]  # as in -b32
        option = next((each for each in ours.values() if name.partition("=")[0] in (each.flag, *each.names)), None)
        if option is None:
            is_path = is_file(Path(word)) or (os.sep in word and Path(word).exists())
            kept.append(str(Path(word).absolute()) if is_path else word)
        elif word == name and "=" not in word and not option.is_flag and words:
            words.pop(0)
    place = () if any(_SETTINGS in word for word in kept) else script.settings_words  # that of a default
    return replace(script, program=tuple(program), words=tuple(kept), settings_words=place)


_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=")  # of a variable, before a program


def input_words(script: Script, *, must_exist: bool = False) -> list[str]:
    """The words that name what the script reads, with paths that do not depend on the working directory."""
    words = list[str]()
    for option in script.options if not script.uses_hydra else ():
        if not option.is_input or not option.default:
            continue
        has_flag = option.flag.startswith("-")
        # One that does not exist yet may be downloaded; `--dataset cifar10` is the name of a dataset.
        is_path = not has_flag or os.sep in option.default or option.key.endswith(("dir", "folder", "root"))
        if Path(option.default).exists() or (is_path and not must_exist):
            if has_flag:
                words.append(option.flag)
            words.append(str(Path(option.default).absolute()))
    return words


def todos(script: Script, varied: Varied, observed: Observed) -> list[str]:
    """What is left to do by hand in the config, each in one line and the lines of an example."""
    steps = [f"{flag} is required: give its value in the command." for flag in missing_options(script, varied)]
    if _usual(script) != varied:
        steps += ["nothing that a sweep usually varies was found: these are the first numbers and choices. Adapt them."]
    if script.library == "shell" and not _output_variable(script):
        steps += [f"all trials run in this folder: have {script.path} write to ${TRIAL_DIR}."]
    if note := pipefail_note(script.path, " ".join(script.program)):
        steps += [note]
    if not observed.metrics:
        reason = f" ({observed.problem})" if observed.problem else ""
        example = "  metrics: {pattern: 'val acc (?P<val_accuracy>{number})'}"
        steps += [f"say where its metrics are{reason}, as in\n{example}"]
    imported = [name for file in script.source.files for _, name, _ in file.imports]
    is_trainer = any(map(_HF_TRAINER.fullmatch, imported))
    resume = "--resume_from_checkpoint {resume_from}" if is_trainer else ""
    resume = script.resume or resume
    if resume:
        checkpoint = "checkpoint-*/trainer_state.json" if is_trainer else f"*{script.checkpoint}"
        steps += [
            "if it can resume, say which files in the trial's folder are its checkpoints, as in\n"
            f"  checkpoint: '{checkpoint}'\n"
            f"  resume: {resume}\n"
            f"and try it: {trainyard_call('check', '--drill')}"
        ]
    for option in script.options:
        if _ENDS_EARLY.fullmatch(option.key.lower()):
            steps += [f"if {option.flag} ends it before it is done, say when it is, as in\n  complete: {{epoch: 10}}"]
        if _CASES.fullmatch(option.key.lower()):
            means = f"to compare configurations by their mean over several {option.flag}, vary it, too, with `average`"
            steps += [f"{means}, as in\n  average: [{option.key}]"]
    # Ports and memory matter where trials share a node or a GPU; `first_config` writes a signal.
    others = {"port", "memory", *(["signal"] if _stop_signal(script) else [])}
    started = find_started(build_command(script, varied), Path())
    for problem in find_problems(started, read_started(started)):
        if problem.topic not in others:
            steps.append(f"{problem.where}: {problem.message}: {problem.remedy}")
    return steps


_ENDS_EARLY: Final = re.compile(r"exit[-_](duration|interval)\w*|(max|time)[-_](time|hours|minutes|limit|runtime)\w*")
_HF_TRAINER: Final = re.compile(r"(transformers|trl)\b.*Trainer")  # writes trainer_state.json last
_CASES: Final = re.compile(r"(gym_|env_)?env(_?id|_?name)?|gym_id|fold|task(_?name)?")


def _stop_signal(script: Script) -> str:
    """The one user signal that a script handles; "" if there are two or none, or it handles SIGTERM, too."""
    handled = handled_signals(script)
    of_user = [each for each in handled if each.startswith("USR")]
    return of_user[0] if len(of_user) == 1 and "TERM" not in handled else ""


def first_config(script: Script, varied: Varied, observed: Observed, left: Sequence[str]) -> str:
    """The text of a config with one sweep; `left` is what is left to do."""
    command = build_command(script, varied)
    in_own_folder = script.library != "shell" and (observed.writes_here or "{trial_dir}" not in command)
    if in_own_folder:
        command = build_command(script, varied, inputs=input_words(script))
    sweep: dict[str, Any] = {"command": command}
    if in_own_folder:
        sweep["workdir"] = "trial"
    elif script.library == "shell":  # the paths in it are relative to this folder
        sweep["workdir"] = "keep"
    if script.settings_file:
        sweep["settings"] = script.settings_file
    values = {key: InLine(values) for key, (_, values) in varied.items()}
    if math.prod(len(each) if isinstance(each, list) else math.inf for _, each in varied.values()) <= TRIALS:
        sweep["grid"] = values
    elif not observed.metrics:
        sweep["sample"] = {"count": TRIALS, "values": values}
    else:
        sweep["search"] = {"method": "tpe", "trials": TRIALS, "values": values}
    sweep |= observed.keys
    if name := _stop_signal(script):
        sweep["stop_signal"] = name
    sweep["slots"] = InLine({"gpus_per_node": 1})
    notes = [f"yaml-language-server: $schema={SCRIPTS.parent / 'workflow/schemas/config.schema.json'}"]
    notes += [f"A first sweep of {script.path}, for you to adapt. All options: {SCRIPTS.parent / 'docs/options.md'}"]
    if observed.metrics:
        notes += [f"`metrics`, `metric` and `mode` are a guess: {observed.guess}. Correct them if it is wrong."]
    if name:
        notes += [f"`stop_signal`: {script.path} handles SIG{name}, and not SIGTERM."]
    notes += [f"TODO: {line}" for line in left]
    comments = "".join(f"# {line}\n" for note in notes for line in note.splitlines())
    study = re.sub(r"\W+", "_", script.path.stem) or "sweep"
    text = comments + write_yaml({"sweeps": {study: sweep}})
    if not has_gpu() and shutil.which("sinfo") is None:  # `slots` is the last line
        text = text.removesuffix("\n") + "  # without a GPU: {cpus: 1}\n"
    return text


# ---- the profile


def fill_profile(text: str, partitions: Sequence[Partition], accounts: Sequence[str]) -> str:
    """Trainyard's profile for Slurm with the settings of a site: its partition with most GPUs, and the account."""
    usable = [each for each in partitions if each.up]
    best = max(usable, key=lambda each: (each.nodes * each.gpu_count(), each.default), default=None)
    settings: dict[str, tuple[str, str]] = {}  # with a comment
    if len(accounts) == 1:  # otherwise, Slurm takes the default one
        settings["slurm_account"] = accounts[0], ""
    if best:
        settings["slurm_partition"] = best.name, f"of {', '.join(dict.fromkeys(each.name for each in usable))}"
        kinds = named_partitions(usable, best.name)
        models = dict.fromkeys(model for each in kinds for model, _ in parse_gpus(each.gpus) if model)
        own = next((model for model, _ in parse_gpus(best.gpus) if model), "")
        if len(models) > 1 and own:
            settings["gpu_type"] = own, f"of {', '.join(models)}"
        if math.isfinite(limit := min(each.limit_minutes for each in kinds)):
            settings["runtime"] = (
                f"{min(60, limit):g}",
                f"minutes of walltime, at most {limit:g}, not of sweeps: they first request 1 h, or their `walltime`",
            )
        share = best.memory_share_mb(1) or best.node_memory_mb
        text = re.sub(r"(# mem_mb: )\d+", rf"\g<1>{share:.0f}", text)
    for name, (value, comment) in settings.items():
        line = f"  {name}: {value} # {comment}" if comment else f"  {name}: {value}"
        text = re.sub(rf"^  (# )?{name}: .*$", line.replace("\\", r"\\"), text, count=1, flags=re.MULTILINE)
    return text
