"""What all tests share: the project of a user, and the groups into which pytest-xdist puts them."""

import gc
import os
import random
import signal
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from left_behind import Surroundings, receive_interrupts
from project import Project
from slurm_commands import SlurmCommands
from small_disk import SmallDisk, mount_small_disk
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from trainyard.data.staged import Staged
    from trainyard.training.loaders import InputData

TESTS = Path(__file__).parent
# Tests run beside each other: threads of OpenMP must not take the CPU while they wait. Libraries read it once.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
receive_interrupts()
settings.load_profile("ci")  # no time limit of an example (otherwise 200 ms), and the same examples in each run

# Where tests run with `-n`: the first path (below tests/) that a test's own begins with decides. The tests of a named
# group run one after another in one process; without a name, each file is a group. Groups start in this order.
GROUPS = {
    "cluster/test_soak.py": None,
    "cluster/test_faults.py": "faults",
    "workflow/test_workflow.py": "done",
    "workflow/test_documents.py": "done",  # these look at the results of test_workflow.py
    "workflow/test_demo.py": "done",
    "cluster": None,
    "faults": None,
    "workflow": None,
    "integration/training": None,
    "integration": None,
    "unit/training": None,
    "unit": None,
}
PARTS = {"faults": 4}  # whose tests are independent: so many groups of a name


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """What a test leaves in its process is an error, and is taken back, as is what it leaves in the environment."""
    before = Surroundings.now()
    yield
    left = before.left_since()
    before.restore()
    if left:
        pytest.fail(f"the test leaves behind: {', '.join(left)}")


@pytest.fixture
def as_process() -> Iterator[None]:
    """For what ends with its process: what the test leaves is taken back, and is no error."""
    before = Surroundings.now()
    yield
    before.restore()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A file system of 1 MiB."""
    with mount_small_disk(tmp_path / "disk", "1m") as disk:
        yield disk


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmCommands:
    """Slurm's commands, which find no controller."""
    (tmp_path / "slurm").mkdir()
    return SlurmCommands(tmp_path / "slurm", monkeypatch)


@pytest.fixture
def handlers() -> Iterator[None]:
    """After the test, the handlers of signals are as before it."""
    numbers = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
    before = {number: handler for number in numbers if (handler := signal.getsignal(number)) is not None}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def staged(tmp_path_factory: pytest.TempPathFactory) -> "Staged":
    """70 training images and 23 validation images of 8x8 pixels."""
    from loops import stage_images  # imports torch

    return stage_images(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def data(staged: "Staged") -> "InputData":
    from loops import load_images

    return load_images(staged)


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    from browser import browser_or_skip  # imports playwright

    with browser_or_skip() as running:
        yield running


def rank_of(path: str) -> int:
    """The place in GROUPS of a test file, given relative to the tests' folder or to the repository."""
    return next(number for number, start in enumerate(GROUPS) if path.removeprefix("tests/").startswith(start))


class GroupScheduling(LoadScopeScheduling):
    """Sends each group to one process.

    xdist 3.8 appends the groups of `--dist=loadgroup` to the ids of tests; pytest 9.2 drops them.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.split("::")[0]
        group = list(GROUPS.values())[rank_of(path)] or path
        return f"{group} {zlib.crc32(nodeid.encode()) % PARTS[group]}" if group in PARTS else group


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> GroupScheduling:
    return GroupScheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Collect without garbage collection, and spare it what stays until the end: libraries and tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_unconfigure() -> None:
    """At the end, libraries are released as usual; otherwise triton reports leaks."""
    gc.unfreeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--random-order-seed", type=int, help="shuffle the files, and the tests of each file, by this seed"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start the groups that take longest first."""
    seed = config.getoption("random_order_seed")
    if seed is not None:
        order = {path: random.Random(f"{seed} {path}").random() for path in {item.path for item in items}}
        random.Random(seed).shuffle(items)
        items.sort(key=lambda item: order[item.path])
    items.sort(key=lambda item: rank_of(item.path.relative_to(TESTS).as_posix()))
