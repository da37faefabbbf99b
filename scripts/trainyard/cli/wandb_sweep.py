"""A sweep of Weights & Biases as a sweep of the config.

Kinds of parameters and their defaults are those of the schema in github.com/wandb/sweeps; the words of a command are
those of `create_sweep_command_args` in wandb.
"""

import math
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from trainyard.cli.first_config import Observed, Varied, missing_options
from trainyard.cli.first_run import observe
from trainyard.cli.imported_sweep import ImportedSweep, key_for
from trainyard.config.placeholders import TRIAL_PLACEHOLDERS
from trainyard.config.trials import set_at
from trainyard.programs.script_findings import ignores_command_line
from trainyard.programs.script_options import Script, read_started
from trainyard.programs.started_scripts import find_started
from trainyard.utils.errors import UserError

RUNS: Final = 20  # of a random or Bayesian sweep without `run_cap`, which W&B continues until it is stopped
_KNOWN: Final = {"program", "method", "metric", "metrics", "parameters", "early_terminate", "command", "run_cap"}
_KNOWN_WITHOUT_EFFECT: Final = {"name", "entity", "project", "description", "apiVersion", "kind"}
_DISTRIBUTIONS: Final = ("uniform", "int_uniform", "normal", "log_uniform", "log_uniform_values", "log_normal")
_MACRO: Final = re.compile(r"\$\{([a-z_]+)(?::(\w+))?\}")
_DEFAULT_COMMAND: Final = ("${env}", "${interpreter}", "${program}", "${args}")
_STYLES: Final = {  # of W&B: the placeholder for all arguments, and one argument
    "args": ("{args}", "--{name}={value}"),
    "args_no_equals": ("{args}", "--{name} {value}"),
    "args_no_boolean_flags": ("{args}", "--{name}={value}"),
    "args_no_hyphens": ("{args:hydra}", "{name}={value}"),
    "args_append_hydra": ("", "+{name}={value}"),
    "args_override_hydra": ("", "++{name}={value}"),
}


def import_wandb_sweep(raw: Mapping[str, Any], seconds: float = 0.0) -> ImportedSweep:
    """The sweep of a W&B configuration. A program that does not use W&B runs for so many seconds, for its metrics.

    Raises:
        UserError: the configuration is not valid for W&B either.
    """
    imported = ImportedSweep(str(raw.get("name") or raw.get("project") or "sweep"), {})
    method = raw.get("method", "grid")
    words = _command_words(raw.get("command"), imported)
    if has_file := any("${args_json_file}" in str(word) for word in words):
        imported.sweep["settings"] = "json"
        if dotted := [name for name in raw.get("parameters") or {} if "." in name]:
            raise UserError(f"parameters.{dotted[0]}: a dotted name cannot be in the file of ${{args_json_file}} here")
    scripts = read_started(find_started(["python", str(raw.get("program"))], Path()))
    if scripts and all(map(ignores_command_line, scripts)):
        words = [word for word in words if word != "${args}"]
    fixed = dict[str, Any]()
    varied = dict[str, Any]()
    names = dict[str, str]()
    for name, parameter in _parameters(raw.get("parameters") or {}):
        key = names[name] = name if has_file else key_for(name)
        values = _values(name, parameter, imported)
        if "." in name and name in raw["parameters"]:
            imported.note(f"`{name}`: `wandb.config` has it within a mapping here, and as one key with a dot in W&B")
        if key != name and name not in TRIAL_PLACEHOLDERS:
            imported.note(f"`{name}` is {key} in `wandb.config`")
        if isinstance(values, list) and len(values) == 1:
            set_at(fixed, key.split("."), values[0])
        else:
            varied[key] = values
    imported.sweep["command"] = _command(raw, words, names, imported)
    if fixed:
        imported.sweep["args"] = fixed
    if not scripts or any(script.source.uses_wandb for script in scripts):
        imported.sweep["metrics"] = "wandb"
        _set_metric(raw, method, imported)
    else:
        of_all = varied | {key: [value] for key, value in fixed.items()}
        _find_metrics(scripts[0], of_all, raw, seconds, imported)
    _set_trials(method, raw.get("run_cap"), varied, imported)
    imported.sweep["slots"] = {"gpus_per_node": 1}
    imported.note(
        "`slots`: how many trials run at once; `gpus_per_node: 4` runs four, `gpus_per_trial: 0.5` two on a GPU"
    )
    for key in sorted(raw.keys() - _KNOWN - _KNOWN_WITHOUT_EFFECT):
        imported.note(f"`{key}`: there is nothing like it")
    return imported


def _command_words(command: Any, imported: ImportedSweep) -> list[Any]:
    """The words of a `command`, or of the default one."""
    if isinstance(command, list):
        return command
    if command:
        imported.note("`command` is not a list: W&B does not use it either")
    return list(_DEFAULT_COMMAND)


def _parameters(parameters: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The dotted names of all parameters, also of nested ones, and what they are."""
    for name, parameter in parameters.items():
        if not isinstance(parameter, Mapping):
            raise UserError(f"parameters.{prefix}{name}: must be a mapping such as {{value: {parameter!r}}}")
        if isinstance(nested := parameter.get("parameters"), Mapping):
            yield from _parameters(nested, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", parameter


def _values(name: str, parameter: Mapping[str, Any], imported: ImportedSweep) -> list[Any] | dict[str, Any]:
    """The values of a parameter: one, a list, or a range to draw from."""
    if "value" in parameter:
        return [parameter["value"]]
    if "values" in parameter:
        if "probabilities" in parameter:
            imported.note(f"`{name}`: its values are equally probable here")
        return list(parameter["values"])
    kind = "normal"
    if "min" in parameter:
        are_integers = isinstance(parameter["min"], int) and isinstance(parameter.get("max"), int)
        kind = "int_uniform" if are_integers else "uniform"
    kind = str(parameter.get("distribution") or kind)
    shape = kind.removeprefix("q_")
    step = parameter.get("q", 1) if shape != kind else 0
    low, high, is_log = _bounds(name, shape, parameter, imported)
    if step and step != 1 and not is_log:
        return {"low": _tidy(round(low / step) * step), "high": _tidy(round(high / step) * step), "step": step}
    if step and step != 1:
        imported.note(f"`{name}`: drawn without its steps of {step:g}")
    is_integer = shape == "int_uniform" or step == 1
    as_bound = round if is_integer else _tidy
    values = {"low": as_bound(low), "high": as_bound(high)}
    if is_log:
        values["log"] = True
    if is_integer:
        values["integer"] = True
    return values


def _bounds(name: str, shape: str, parameter: Mapping[str, Any], imported: ImportedSweep) -> tuple[float, float, bool]:
    """The range of a distribution, and whether it is drawn on a logarithmic scale."""
    low = parameter.get("min")
    high = parameter.get("max")
    if shape not in _DISTRIBUTIONS:
        raise UserError(f"parameters.{name}: there is no distribution {shape!r} here: give values, or min and max")
    if shape.endswith("normal"):
        imported.note(
            f"`{name}`: drawn evenly from two standard deviations around the mean of its {shape} distribution"
        )
        mean = parameter.get("mu", 0)
        deviation = parameter.get("sigma", 1)
        low = mean - 2 * deviation
        high = mean + 2 * deviation
    if low is None or high is None:
        raise UserError(f"parameters.{name}: {shape} needs min and max")
    if shape in ("log_uniform", "log_normal"):
        low = math.exp(low)
        high = math.exp(high)
    return low, high, shape.startswith("log")


def _steps(key: str, values: list[Any] | dict[str, Any]) -> Any:
    """The values of a grid."""
    if isinstance(values, list):
        return values
    if values.get("log") or not (values.get("integer") or "step" in values):
        raise UserError(f"parameters.{key}: a grid needs `values`, or whole numbers from min to max")
    return {"start": values["low"], "stop": values["high"], "step": values.get("step", 1)}


def _tidy(number: float) -> float:
    """A number without what binary fractions add: `0.3` for 3 * 0.1."""
    return number if isinstance(number, int) else float(f"{number:.12g}")


def _set_metric(raw: Mapping[str, Any], method: str, imported: ImportedSweep) -> None:
    """Set the metric and early stopping."""
    metrics = [raw["metric"]] if raw.get("metric") else list(raw.get("metrics") or [])
    stop = raw.get("early_terminate")
    if not metrics:
        if stop or method not in ("grid", "random"):
            user = "early_terminate" if stop else method
            raise UserError(f"metric: {user} needs one")
        imported.note("`metric`: nothing says by which one trials are ranked: name it")
        return
    metric = metrics[0]
    imported.sweep |= {"metric": metric["name"], "mode": "max" if str(metric.get("goal")).startswith("max") else "min"}
    for other in metrics[1:]:
        imported.note(f"`metrics`: {other['name']} is not part of the ranking")
    for key in sorted(metric.keys() - {"name", "goal"}):
        imported.note(f"`metric.{key}`: there is nothing like it")
    if stop:
        eta = round(stop.get("eta", 3))
        first = stop.get("min_iter") or round(stop["max_iter"] / eta ** stop.get("s", 1))
        imported.sweep["stop"] = {"method": "asha", "grace_period": max(1, first), "reduction_factor": max(2, eta)}
        imported.note(
            f"`stop`: W&B counts calls of `wandb.log`, Trainyard the `epoch` that is logged, else steps: "
            f"{max(1, first)} before the first cut"
        )


def _set_trials(method: str, cap: int | None, varied: Mapping[str, Any], found: ImportedSweep) -> None:
    """Set the trials: a grid, a sample, or a search, which needs metrics."""
    if method == "grid" and varied:
        found.sweep["grid"] = {key: _steps(key, values) for key, values in varied.items()}
        if cap:
            found.note(f"`run_cap: {cap}`: a grid runs all its combinations")
    elif varied:
        if not cap:
            found.note(f"there was no `run_cap`, and W&B would never end: {RUNS} trials, change it to what you want")
        is_sample = method == "random" or "metrics" not in found.sweep
        kind, count = ("sample", "count") if is_sample else ("search", "trials")
        found.sweep[kind] = {count: cap or RUNS, "values": varied}
        if method not in ("random", "bayes") and not is_sample:
            found.note(f"`method: {method}`: searched by Optuna's TPE instead")


def _find_metrics(
    script: Script, values: Mapping[str, Any], raw: Mapping[str, Any], seconds: float, found: ImportedSweep
) -> None:
    """Set the metrics of a program that does not use W&B, as a short run shows them."""
    options: Varied = {}
    for key, drawn in values.items():
        if option := script.find(f"--{key}"):
            options[key] = option, drawn
    name = (raw.get("metric") or {}).get("name", "val_loss")
    observed = Observed()
    if seconds and not missing_options(script, options):
        observed = observe(script, options, seconds)
    if not observed.metrics:
        example = f"metrics: {{pattern: '{name} (?P<{re.sub(r'[^A-Za-z0-9_]', '_', name)}>{{number}})'}}"
        found.note(
            f"`metrics`: {script.path} does not use W&B: say where its metrics are, as in {example}; then add "
            f"`metric`, and what else needs one: `search`, `stop`"
        )
        return
    found.sweep |= observed.keys
    if name in observed.metrics.groups:
        _set_metric(raw, "", found)
    found.note(
        f"`metrics`: {script.path} does not use W&B, so they are a guess, as `metric` and `mode`: {observed.guess}"
    )


def _command(raw: Mapping[str, Any], words: Any, names: Mapping[str, str], imported: ImportedSweep) -> str:
    """The command line, with its macros replaced, and with an option for each parameter whose key has another name."""
    parts = []
    for word in map(str, words):
        match = _MACRO.fullmatch(word)
        macro = match[1] if match else ""
        if macro == "env":
            continue
        if macro in _STYLES:
            every, one = _STYLES[macro]
            named = {name: key for name, key in names.items() if name != key or not every}
            parts += [one.format(name=name, value=f"{{{key}}}") for name, key in named.items()]
            parts += [every] if len(named) < len(names) else []
            if any("." in name for name in names) and macro == "args":
                imported.note("`parameters`: nested ones are options such as `--optimizer.lr`; W&B passes a mapping")
        else:
            parts.append(_literal(word, raw))
    return " ".join(parts)


def _literal(word: str, raw: Mapping[str, Any]) -> str:
    """A word of the command for a shell, with variables of the environment in place of their macros."""
    text = ""
    position = 0
    for match in _MACRO.finditer(word):
        text += shlex.quote(word[position : match.start()]) if match.start() > position else ""
        if match[1] == "program":
            if not raw.get("program"):
                raise UserError("program: is required, since the command has ${program}")
            text += shlex.quote(str(raw["program"]))
        else:
            words = {"interpreter": "python", "envvar": f'"${match[2]}"', "args_json_file": "{settings}"}
            if match[1] not in words:
                raise UserError(f"command: there is nothing like {match[0]}: pass the parameters as options")
            text += words[match[1]]
        position = match.end()
    return text + (shlex.quote(word[position:]) if position < len(word) or not word else "")
