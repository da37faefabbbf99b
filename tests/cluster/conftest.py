"""One cluster for all tests of this folder, started by the first that asks for it."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster.cluster import Cluster
from slurm_cluster.waiting import wait_until
from submitting import NO_CLUSTER, cluster_or_skip


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A Slurm of four hosts; where the machine cannot hold one, tests that ask for it are skipped, or fail under CI."""
    with cluster_or_skip() as running:
        yield running


@pytest.fixture(autouse=True)
def whole_cluster(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test did to the cluster, the next one finds all hosts idle; and no test leaves anything running."""
    running = request.getfixturevalue("cluster") if "cluster" in request.fixturenames else None
    yield
    if running:
        running.repair()
        wait_until(lambda: not running.processes_left(), what="no process is left")
        assert running.gpus_allocated() == 0


@pytest.fixture
def shared_dir(cluster: Cluster) -> Iterator[Path]:
    """A fresh folder that the test and all hosts see, unlike tmp_path: each host has its own /tmp."""
    folder = Path(tempfile.mkdtemp(dir=cluster.shared))
    yield folder
    shutil.rmtree(folder)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A green run must not hide that the cluster was never tried."""
    reasons = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", [])]
    unmet = [reason.removeprefix("Skipped: ") for reason in reasons if NO_CLUSTER in reason]
    if unmet:
        terminalreporter.section("CLUSTER TESTS SKIPPED", sep="!", yellow=True, bold=True)
        terminalreporter.line(f"{len(unmet)} tests did not run: {unmet[0]}", yellow=True, bold=True)
