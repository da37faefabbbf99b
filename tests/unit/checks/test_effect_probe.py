"""The module that programs run first in the effect check: seeds, steps of optimizers, and what it hides."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from trainyard.checks import effect_probe


@pytest.fixture
def run(tmp_path):
    """Runs a program with the probe; returns what it prints, and the recorded steps."""
    folder = tmp_path / "probe"
    folder.mkdir()
    shutil.copyfile(effect_probe.__file__, folder / "sitecustomize.py")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import builtins; builtins.own = True\n")

    def run(program, **variables):
        record = folder / effect_probe.RECORD.name
        record.unlink(missing_ok=True)
        environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{tmp_path / 'own'}", **variables}
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        steps = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else None
        assert not done.stderr
        return done.stdout, steps

    return run


def test_random_numbers_that_nobody_seeds_are_the_same(run):
    program = "import random, numpy as np; print(random.random(), np.random.rand(), np.random.default_rng().random())"
    first, _ = run(program)
    assert run(program)[0] == first
    assert len({*first.split()}) == 3


def test_two_generators_without_a_seed_differ(run):
    found, _ = run("import numpy as np; print(*(np.random.default_rng().random() for _ in range(2)))")
    assert len({*found.split()}) == 2


def test_the_module_of_the_environment_that_it_hides_runs_too(run):
    assert run("print(own)")[0] == "True\n"


TRAINING = """
import torch
w = torch.nn.Parameter(torch.randn(3)); b = torch.nn.Parameter(torch.randn(()))
optimizer = torch.optim.SGD([w, b], lr=0.1)
for step in range(40):
    optimizer.zero_grad(); (w.square().sum() + b.square()).backward(); optimizer.step()
print(float(w.detach().norm() + b.detach().abs()))
"""


@pytest.mark.slow
def test_the_parameters_after_steps_are_recorded(run):
    printed, steps = run(TRAINING)
    assert [step for step, _ in steps] == [*range(1, 17), 32]
    assert steps[0][1] > steps[-1][1] > float(printed) > 0
    assert run("import torch") == ("", [])
    assert run(TRAINING, RANK="1") == (printed, None)
    looks_first = 'import importlib.util; assert importlib.util.find_spec("torch")'  # as Transformers does
    assert run(f"{looks_first}\n{TRAINING}") == (printed, steps)
