"""The patches of torch and Ray: applied to the releases that they were written for, unless they are turned off."""

import os
import subprocess
import sys

import pytest
from project import ROOT
from trainyard.cluster.ray.quick_start import SWITCH, TESTED

TRAIN = """
import sys
import torch
torch.__version__ = sys.argv[1] or torch.__version__
from trainyard.config.train import Train
from trainyard.training import flops, optimizers
from trainyard.cluster.ray.quick_start import distributed_data_parallel
for name in ("sgd", "adam", "adamw"):
    model = torch.nn.Linear(2, 2)
    optimizer = optimizers.build_optimizer(Train(optimizer=name), model)
    before = model.weight.detach().clone()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step(), optimizer.zero_grad(), optimizer.state_dict()
    assert not torch.equal(model.weight, before)
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
model = distributed_data_parallel(torch.nn.Linear(2, 2), static_graph=True)
model(torch.ones(1, 2)).sum().backward()
assert flops.model_cost(Train(model="resnet18"), shape=(32, 32, 3), classes=2, precision="fp32").flops > 1e7
print("torch._dynamo" in sys.modules)
assert sys.modules["torchvision.ops.roi_align"].is_compile_supported("cpu")
"""

AGENT = """
import sys
from importlib import metadata
version = metadata.version
metadata.version = lambda name: version("not-installed") if sys.argv[1] == "unknown" else sys.argv[1] or version(name)
from trainyard.cluster.ray.quick_start import torch_without_meta_kernels
with torch_without_meta_kernels():
    print("torch._meta_registrations" in sys.modules)
assert "torch._meta_registrations" not in sys.modules
"""

PATCHED = """
import sys
import ray
from ray._private import node, services, worker
from trainyard.cluster.ray.quick_start import trimmed_ray_init, trimmed_ray_shutdown
ray.__version__ = sys.argv[1] or ray.__version__

def functions():
    return [node.Node.start_api_server, node.Node.start_monitor, node.Node.start_log_monitor,
            worker.listen_error_messages, services.get_node, services.start_ray_process, node.Node.kill_all_processes]

before = functions()
with trimmed_ray_init():
    within = functions()
assert functions() == before
with trimmed_ray_shutdown():
    within[-1] = node.Node.kill_all_processes
assert functions() == before
print(sum(one is not other for one, other in zip(before, within)))
"""

START = """
from trainyard.cluster.ray.start import local_ray
with local_ray(gpus=1, cpus=1):
    import ray
    print(ray.get(ray.remote(num_gpus=1)(lambda: 6 * 7).remote()))
"""


def output(code, *arguments, switch=None):
    environment = {name: value for name, value in os.environ.items() if name != SWITCH}
    environment |= {SWITCH: switch} if switch else {}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=ROOT / "scripts", env=environment, text=True, capture_output=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("version", "switch", "imported"), [("", None, "False"), ("", "0", "True"), ("9.9.0", None, "True")]
)
def test_a_training_imports_the_compiler_only_without_the_patches(version, switch, imported):
    """Importing torch._dynamo takes longer than importing torch: it would double the start of every slot and rank."""
    assert output(TRAIN, version, switch=switch) == imported


@pytest.mark.parametrize(
    ("version", "switch", "replaced"),
    [("", None, "True"), ("", "0", "False"), ("9.9.0", None, "False"), ("unknown", None, "False")],
)
def test_the_meta_kernels_of_torch_are_replaced_only_while_torchrun_imports_it(version, switch, replaced):
    """All trainings of other tests run with this replacement."""
    assert output(AGENT, version, switch=switch) == replaced


@pytest.mark.parametrize(("version", "switch", "patched"), [("", None, "7"), ("", "0", "0"), ("9.9.0", None, "0")])
def test_ray_is_patched_only_while_it_starts_and_ends(version, switch, patched):
    assert output(PATCHED, version, switch=switch) == patched


def test_ray_starts_without_the_patches():
    assert output(START, switch="0") == "42"


WORKER_COMMAND = """
import sys
from pathlib import Path
import ray
from trainyard.cluster.ray.quick_start import _with_worker_program
program = Path(ray.__file__).parent / "_private/workers/setup_worker.py"
assert program.exists()
print(_with_worker_program(f"--python_worker_command={sys.executable} {program} x --y=z", ["a b", "c"]))
"""


def test_the_program_of_a_worker_is_replaced_and_its_arguments_are_kept():
    assert output(WORKER_COMMAND) == '--python_worker_command="a b" c x --y=z'


@pytest.mark.parametrize("library", TESTED)
def test_the_patches_apply_to_the_pinned_release(library):
    pins = (ROOT / "envs/requirements.txt").read_text().splitlines()
    version = next(line.split("==")[1] for line in pins if line.startswith(f"{library}=="))
    assert version.split()[0].rpartition(".")[0] in TESTED[library]
