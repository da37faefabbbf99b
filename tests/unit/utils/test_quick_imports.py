"""Programs collect no garbage while they import, and do afterwards."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[3] / "scripts"
PROBE = """
import gc, runpy, sys
from trainyard.cli import command_line

was_enabled = []
def probe(main, arguments):
    was_enabled.append(gc.isenabled())
    original(lambda _: was_enabled.append(gc.isenabled()) or 0, arguments)

original, command_line.run_program = command_line.run_program, probe
sys.argv[:] = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    print(was_enabled)
"""


SPAWNING = """
import trainyard.utils.quick_imports
import gc
import multiprocessing

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print([gc.isenabled(), pool.apply(gc.isenabled)])
"""


def test_processes_that_a_program_spawns_collect_garbage(tmp_path):
    """They import the program, too, but do not run it."""
    program = tmp_path / "program.py"
    program.write_text(SPAWNING)
    command = [sys.executable, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(SCRIPTS)})
    assert done.stdout == "[False, True]\n", done.stderr


@pytest.mark.parametrize("options", [["sweep", "--sweep=a", "--tables"], ["tables", "--name=a", "--kind=sweeps"]])
def test_no_garbage_is_collected_during_the_imports_of_a_program(options, tmp_path):
    name, *others = options
    command = [sys.executable, "-c", PROBE, f"{SCRIPTS}/{name}.py", *others]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": str(SCRIPTS)})
    assert done.stdout.splitlines()[-1:] == ["[False, True]"], done.stderr
