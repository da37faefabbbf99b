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
    assert [step for _, step, _ in steps] == [*range(1, 17), 32]
    assert steps[0][2] > steps[-1][2] > float(printed) > 0
    assert run("import torch") == ("", [])
    assert run(TRAINING, RANK="1") == (printed, None)
    looks_first = 'import importlib.util; assert importlib.util.find_spec("torch")'  # as Transformers does
    assert run(f"{looks_first}\n{TRAINING}")[0] == printed


# Two processes, as of `mp.spawn`; a process group tells them apart, if there is one.
PROCESSES = """
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp

def train(rank, group):
    if group:
        dist.init_process_group("gloo", init_method=f"file://{group}", rank=rank, world_size=2)
    w = torch.nn.Parameter(torch.full((3,), 1.0 + rank))
    optimizer = torch.optim.SGD([w], lr=0.1)
    for step in range(4):
        optimizer.zero_grad(); w.square().sum().backward(); optimizer.step()

mp.start_processes(train, (os.environ.get("GROUP"),), nprocs=2, start_method="fork")
"""


@pytest.mark.slow
def test_of_the_ranks_of_a_group_the_first_one_is_recorded(run, tmp_path):
    _, steps = run(PROCESSES, GROUP=str(tmp_path / "group"))
    assert [step for _, step, _ in steps] == [1, 2, 3, 4]
    assert steps[0][2] == pytest.approx(0.8 * 3**0.5)


@pytest.mark.slow
def test_processes_without_a_group_are_told_apart(run):
    _, steps = run(PROCESSES)
    by_process = {process: [step for each, step, _ in steps if each == process] for process, *_ in steps}
    assert [*by_process.values()] == [[1, 2, 3, 4]] * 2
