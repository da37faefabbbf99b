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


def test_snakemake_starts_without_pandas():
    """A report of its Slurm plugin needs it, which is seldom requested."""
    code = """
from trainyard.cli import commands
sys.argv = ["trainyard", "--version"]
try:
    commands._run_snakemake()
except SystemExit:
    pass
"""
    assert imported(code) & SLOW <= {"snakemake", "numpy"}


def test_snakemake_records_a_parameter_as_before_also_a_table():
    code = """
from trainyard.cli.without_pandas import import_snakemake
import_snakemake()
from snakemake.persistence.file import FilePersistence
records = object.__new__(FilePersistence)
assert records._serialize_param(["a", 1]) == "['a', 1]"
assert "pandas" not in sys.modules
import pandas
first, second = (records._serialize_param(pandas.DataFrame({"n": [n]})) for n in (1, 2))
assert first != second and first == repr(pandas.util.hash_pandas_object(pandas.DataFrame({"n": [1]})).tolist())
"""
    imported(code)


def test_the_efficiency_report_of_the_slurm_plugin_is_its_own(tmp_path):
    sacct = tmp_path / "sacct"
    job, step = "7|a|rule|00:00:10|00:00:05|1|1||100M", "7.0|a||00:00:10|00:00:05|1|1|50M|"
    sacct.write_text(f"#!/bin/sh\nprintf '{job}\\n{step}\\n'\n")
    sacct.chmod(0o755)
    code = f"""
import logging, os
from trainyard.cli.without_pandas import import_snakemake
import_snakemake()
import snakemake_executor_plugin_slurm as plugin
assert "pandas" not in sys.modules
os.environ["PATH"] = {str(tmp_path)!r} + ":" + os.environ["PATH"]
report = dict(e_threshold=0.8, run_uuid="u", e_report_path={str(tmp_path)!r}, logger=logging.getLogger())
plugin.create_efficiency_report(**report)
plugin.create_efficiency_report(**report)
"""
    assert "pandas" in imported(code)
    (report,) = tmp_path.glob("*.csv")
    assert "50.0" in report.read_text()


def test_another_name_of_the_module_of_the_report_is_its_own():
    code = """
from trainyard.cli.without_pandas import import_snakemake
import_snakemake()
from snakemake_executor_plugin_slurm.efficiency_report import parse_maxrss
assert parse_maxrss("2048K") == 2
"""
    assert "pandas" in imported(code)
