"""The patches of Ray: applied to the releases that they were written for, unless they are turned off."""

import os
import subprocess
import sys

import pytest
from project import ROOT
from trainyard.cluster.ray.patches import SWITCH, TESTED

PATCHED = """
import sys
import ray
from ray._private import node, services, worker
from trainyard.cluster.ray.patches import trimmed_ray_init
ray.__version__ = sys.argv[1] or ray.__version__

def functions():
    return [node.Node.start_api_server, node.Node.start_monitor, node.Node.start_log_monitor,
            worker.listen_error_messages, services.get_node, services.start_ray_process]

before = functions()
with trimmed_ray_init():
    within = functions()
assert functions() == before
print(sum(one is not other for one, other in zip(before, within)))
"""

START = """
from trainyard.cluster.ray.start import start_ray
with start_ray(gpus=1, cpus=1):
    import ray
    print(ray.get(ray.remote(num_gpus=1)(lambda: 6 * 7).remote()))
"""


def output(code, *arguments, switch=None):
    environment = {name: value for name, value in os.environ.items() if name != SWITCH}
    environment |= {SWITCH: switch} if switch else {}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=ROOT / "scripts", env=environment, text=True, capture_output=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(("version", "switch", "patched"), [("", None, "6"), ("", "0", "0"), ("9.9.0", None, "0")])
def test_ray_is_patched_only_while_it_starts(version, switch, patched):
    assert output(PATCHED, version, switch=switch) == patched


def test_ray_starts_without_the_patches():
    assert output(START, switch="0") == "42"


WORKER_COMMAND = """
import sys
from pathlib import Path
import ray
from trainyard.cluster.ray.patches import _trimmed_option
program = Path(ray.__file__).parent / "_private/workers/setup_worker.py"
assert program.exists()
print(_trimmed_option(f"--python_worker_command={sys.executable} {program} x --y=z", ["a b", "c"]))
"""


def test_the_program_of_a_worker_is_replaced_and_its_arguments_are_kept():
    assert output(WORKER_COMMAND) == '--python_worker_command="a b" c x --y=z'


def test_the_patches_apply_to_the_pinned_release():
    pins = (ROOT / "envs/requirements.txt").read_text().splitlines()
    version = next(line.split("==")[1] for line in pins if line.startswith("ray=="))
    assert version.split()[0].rpartition(".")[0] in TESTED
