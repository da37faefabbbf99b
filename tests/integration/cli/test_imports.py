"""What the programs import before they do anything: each module takes its time at each start."""

import subprocess
import sys

import pytest
from project import ROOT

SLOW = {"matplotlib", "numpy", "optuna", "pandas", "ray", "rich", "sklearn", "snakemake", "torch", "torchvision"}


def imported(code):
    """Those of the slow modules that this code imports."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*{SLOW} & {{*sys.modules}})"],
        cwd=ROOT / "scripts",
        capture_output=True,
        text=True,
        check=True,
    )
    return {*done.stdout.split()}


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("trainyard.cli.commands", set()),
        ("sweep", set()),
        ("init", {"numpy"}),
        ("check", {"numpy"}),
        ("control", {"numpy"}),
        ("status", {"numpy", "rich"}),
        ("tables", {"numpy", "pandas"}),
    ],
)
def test_a_program_imports_no_slow_module_before_it_needs_it(program, expected):
    assert imported(f"import {program}") <= expected


def test_the_driver_of_a_sweep_imports_neither_torch_nor_what_writes_tables():
    """Its workers import torch while it starts Ray; it writes the tables at the end."""
    assert imported("import trainyard.packing.driver, trainyard.kinds.train") <= {"numpy", "rich"}
