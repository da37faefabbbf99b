"""One cluster for all tests of this folder, started for the first of them."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster.cluster import Cluster
from slurm_cluster.site import SECOND
from slurm_cluster.waiting import wait_until
from submitting import NO_CLUSTER, cluster_or_skip


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A Slurm cluster of four hosts; on machines that cannot run one, tests are skipped or, under CI, fail."""
    with cluster_or_skip() as running:
        yield running


@pytest.fixture(scope="session")
def second_site() -> Iterator[Cluster]:
    """A site besides the one of `cluster`, which differs from it in everything that `Site` has."""
    with cluster_or_skip(SECOND, name="second") as running:
        yield running


@pytest.fixture(autouse=True)
def whole_cluster(request: pytest.FixtureRequest) -> Iterator[None]:
    """Repair the cluster after each test, and check that the test left no process and no allocated GPU."""
    sites = ("cluster", "second_site", "mixed_site")
    used = [request.getfixturevalue(site) for site in sites if site in request.fixturenames]
    yield
    for running in used:
        running.repair()
        wait_until(lambda site=running: not site.processes_left(), what="all processes to end")
        assert running.gpus_allocated() == 0


@pytest.fixture
def shared_dir(cluster: Cluster) -> Iterator[Path]:
    """An empty folder that the test and all hosts share, unlike tmp_path, as each host has its own /tmp."""
    with tempfile.TemporaryDirectory(dir=cluster.shared) as folder:
        yield Path(folder)


@pytest.fixture
def second_dir(second_site: Cluster) -> Iterator[Path]:
    """The same on the second site."""
    with tempfile.TemporaryDirectory(dir=second_site.shared) as folder:
        yield Path(folder)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report at the end of a run that tests were skipped because there was no cluster."""
    reasons = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", [])]
    unmet = [reason.removeprefix("Skipped: ") for reason in reasons if NO_CLUSTER in reason]
    if unmet:
        terminalreporter.section("CLUSTER TESTS SKIPPED", sep="!", yellow=True, bold=True)
        terminalreporter.line(f"{len(unmet)} tests did not run: {unmet[0]}", yellow=True, bold=True)
