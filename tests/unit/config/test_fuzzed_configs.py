"""Configs from anywhere: each is valid, or an error of few lines; nothing is executed or written, in bounded time."""

import copy
import json
import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trainyard.cli.workflow import Workflow
from trainyard.config.config import Data
from trainyard.config.datasets import ImageFolder
from trainyard.config.load import MAX_ERRORS, MAX_LENGTH, ConfigError, check_config, compose
from trainyard.config.placeholders import build_argv
from trainyard.config.scaling import TrainScaling
from trainyard.config.sweep import CommandSweep, Range, Sample, Slots, Stop, TrainSweep
from trainyard.config.train import Train
from trainyard.config.trees import Trees
from trainyard.utils.errors import UserError

GOOD = {
    "datasets": {"digits": {"source": "digits"}, "photos": {"source": "imagefolder", "root": "photos"}},
    "data": {},
    "sweeps": {
        "depth": {"dataset": "digits", "train": {}, "grid": {"lr": {"start": 0.1, "stop": 0.3, "step": 0.1}},
                  "sample": {"count": 2, "values": {"lr": [0.1]}}, "stop": {"method": "asha"}, "slots": {}},
        "trees": {"dataset": "digits", "trees": {}},
        "own": {"command": "x {n}", "args": {"n": 1}, "slots": {}},
    },
    "scaling": {"study": {"dataset": "digits", "train": {}, "scales": ["1x1", "1x2"]}},
}  # fmt: skip
# Every key of these sections is given other values.
SECTIONS = {
    ("datasets", "photos"): ImageFolder, ("data",): Data, ("scaling", "study"): TrainScaling,
    ("sweeps", "depth"): TrainSweep, ("sweeps", "own"): CommandSweep, ("sweeps", "depth", "train"): Train,
    ("sweeps", "depth", "slots"): Slots, ("sweeps", "depth", "grid", "lr"): Range, ("sweeps", "depth", "stop"): Stop,
    ("sweeps", "depth", "sample"): Sample, ("sweeps", "trees", "trees"): Trees,
}  # fmt: skip
KEYS = [(*place, name) for place, model in SECTIONS.items() for name in model.model_fields]
KEYS += [(place[0], "a;b") for place in SECTIONS] + [("datasets",), ("sweeps",), ("scaling",), ("unknown",)]

SHELL = "; touch executed; `touch executed` $(touch executed) | & > executed ' \" \\ \n * ~ ! # {n} %s"
TEXTS = ["", "a", "lr", "1x2", "a:b", "x.csv", SHELL, f"x {SHELL}", "../..", "-x", "\x1b[2J", "9" * 5000]
NUMBERS = [0, 1, 2, 8, -1, 2**31, 2**63, 10**400, 0.5, 5e-324, 1e308, float("nan"), float("inf"), float("-inf")]
texts = st.sampled_from(TEXTS)
anything = st.recursive(
    texts | st.sampled_from([*NUMBERS, True, None]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


@settings(derandomize=True, deadline=None, max_examples=300, suppress_health_check=list(HealthCheck))
@given(changes=st.lists(st.tuples(st.sampled_from(KEYS), anything), min_size=1, max_size=3))
def test_a_config_with_any_values_is_valid_or_an_error_of_few_lines(changes):
    content = copy.deepcopy(GOOD)
    for place, value in changes:
        section = content
        for name in place[:-1]:
            section = section.setdefault(name, {}) if isinstance(section, dict) else {}
        if isinstance(section, dict):
            section[place[-1]] = value
    with TemporaryDirectory() as folder:
        path = Path(folder, "config.json")
        path.write_text(json.dumps(content))
        try:
            workflow = Workflow(compose([path], {}), results=Path(folder, "results"))
        except UserError as error:  # a ConfigError, or `python` names no interpreter
            lines = str(error).splitlines()
            assert len(lines) <= MAX_ERRORS + 2
            assert max(map(len, lines)) <= MAX_LENGTH + len(folder) + 100
        else:
            json.dumps(workflow.config.model_dump(mode="json"))
            assert workflow.plots()
        assert os.listdir(folder) == ["config.json"]
        assert not Path("executed").exists()


GRID = "sweeps: {s: {function: 'a:b', grid: {x: %s}}}"
FILES = {  # name and content, and what the error says
    "tabs": ("c.yaml", "datasets:\n\tdigits: {source: digits}", "not valid YAML: .* cannot start any token"),
    "latin-1": ("c.yaml", "{café: 1}".encode("latin-1"), "'utf-8' codec can't decode"),
    "a number of 5000 digits": (
        "c.yaml",
        "sweeps: {t: {retries: 0x" + "f" * 5000 + "}}",
        "is too large for an integer",
    ),
    "a type of Python": ("c.yaml", "data: !!python/object/apply:os.mkdir [executed]", "could not determine a"),
    "bytes": ("c.yaml", "data: {local: !!binary gIGC}", "data.local: is a bytes; use text, numbers"),
    "deep lists": ("c.yaml", "data: {local: " + "[" * 200 + "]" * 200 + "}", "data: is nested too deeply"),
    "deep mappings": ("c.json", '{"a": ' * 450 + "1" + "}" * 450, "is nested too deeply"),
    "many trials": ("c.yaml", GRID % "{start: 0, stop: 1.0e12}", r"has 1e\+12 configurations; 1,000,000 are"),
    "a tiny step": ("c.yaml", GRID % "{start: 0, stop: 1, step: 1.0e-300}", r"has 1e\+300 configurations"),
    "many errors": ("c.yaml", "\n".join(f"k{n}: 1" for n in range(3000)), r"^1000 errors in (.|\n)*and 950 more"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_config_is_an_error_of_few_lines(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    file, content, message = FILES[name]
    Path(file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=message) as error:
        check_config(compose([Path(file)], {}))
    assert len(str(error.value).splitlines()) <= MAX_ERRORS + 2
    assert os.listdir() == [file]


@settings(derandomize=True, deadline=None, max_examples=20)
@given(
    value=st.sampled_from([SHELL, "\x1b[2J", "-x", ""]) | st.text(st.characters(exclude_characters="\0", codec="utf-8"))
)
def test_an_argument_reaches_a_command_as_it_is(value):
    sweep = check_config({"sweeps": {"own": {"command": "printf %s {x}", "args": {"x": value}}}}).sweeps["own"]
    argv = build_argv(sweep.command, sweep.args)
    assert subprocess.run(argv, stdout=subprocess.PIPE, check=True).stdout == value.encode()
    assert not Path("executed").exists()
