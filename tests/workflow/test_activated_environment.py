"""Commands and scripts run in the environment in which Snakemake was started, whatever Trainyard's own is."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

WHERE = """
import json, os, pathlib, sys
names = ("PATH", "VIRTUAL_ENV", "PYTHONPATH", "LD_LIBRARY_PATH", "PYTHONBREAKPOINT", "MAKEFLAGS", "CONFIG",
         "OMP_NUM_THREADS")
found = {"python": sys.executable} | {name: os.environ.get(name) for name in names}
pathlib.Path(sys.argv[1], "found.json").write_text(json.dumps(found))
"""
LAUNCHER = "import runpy, sys\ndel sys.argv[: sys.argv.index('where.py')]\nrunpy.run_path('where.py')\n"
CONFIG = {
    "sweeps": {
        "own": {"command": "python where.py {trial_dir} {args}", "grid": {"n": [1, 2]}, "slots": {"cpus_per_trial": 2}}
    },
    "scaling": {"own": {"script": "where.py {out_dir}", "scales": ["1x1"], "cpus_per_gpu": 2}},
}


@pytest.fixture
def activated(project):
    """A project in whose shell a virtual environment with a launcher is activated, below `make`."""
    venv = project.folder / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (packages,) = venv.glob("lib/python*/site-packages")
    for package in (packages / "torch", packages / "torch/distributed"):
        package.mkdir()
        (package / "__init__.py").touch()
    (packages / "torch/distributed/run.py").write_text(LAUNCHER)
    (project.folder / "where.py").write_text(WHERE)
    shell = {"PATH": f"{venv}/bin:/usr/bin:/bin", "VIRTUAL_ENV": str(venv), "MAKEFLAGS": "w", "CONFIG": "my.yaml"}
    hidden = ("LD_LIBRARY_PATH", "PYTHONPATH")
    project.environment = {name: value for name, value in os.environ.items() if name not in hidden} | shell
    return project


def test_programs_run_in_the_environment_in_which_snakemake_was_started(activated):
    project, venv = activated, activated.folder / "env"
    project.write(CONFIG)
    output = project.snakemake("--", "results/sweeps/own/trials.csv", "results/scaling/own/1x1/summary.json")
    assert output.count(f"; python is {venv}/bin/python") == 1, "in the study's plan; the sweep's is in its log"
    found = [json.loads(path.read_text()) for path in project.results.rglob("found.json")]
    assert len(found) == 3
    for each in found:
        assert each == {
            "python": f"{venv}/bin/python", "PATH": f"{venv}/bin:/usr/bin:/bin", "VIRTUAL_ENV": str(venv),
            "PYTHONPATH": None, "LD_LIBRARY_PATH": None, "PYTHONBREAKPOINT": None, "MAKEFLAGS": None,
            "CONFIG": "my.yaml", "OMP_NUM_THREADS": "2",
        }  # fmt: skip
