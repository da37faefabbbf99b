"""Missing packages are installed, also while another apt-get holds its locks."""

import fcntl
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from slurm_cluster import prerequisites
from slurm_cluster.prerequisites import SYSTEM_PATH, PrerequisiteMissing, install_packages
from slurm_cluster.waiting import wait_until

# A real apt-get whose package lists are in a folder of the test, without any sources.
APT_CONFIG = 'Dir::State "{folder}"; Dir::Cache "{folder}"; Dir::Etc "{folder}";'


@pytest.fixture
def lock(tmp_path, monkeypatch):
    """The lock file that an apt-get holds while it updates its lists."""
    if not shutil.which("apt-get", path=SYSTEM_PATH):
        pytest.skip("there is no apt-get")
    (tmp_path / "apt.conf").write_text(APT_CONFIG.format(folder=tmp_path))
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    (tmp_path / "lists/partial").mkdir(parents=True)
    with open(tmp_path / "lists/lock", "w") as file:
        yield file


def test_apt_get_waits_for_another_apt_get_and_is_not_repeated_if_it_fails(lock, capfd):
    fcntl.lockf(lock, fcntl.LOCK_EX)
    with ThreadPoolExecutor(1) as pool:
        installing = pool.submit(install_packages, ["no-such-package"])
        wait_until(lambda: "waiting for another apt-get to end" in capfd.readouterr().out, what="the message")
        assert not installing.done()
        fcntl.lockf(lock, fcntl.LOCK_UN)
        with pytest.raises(PrerequisiteMissing, match=r"'apt-get install' failed: E: Unable to"):
            installing.result()


def test_a_timeout_names_the_holder_of_the_lock(lock, monkeypatch):
    monkeypatch.setattr(prerequisites, "PATIENCE_SECONDS", 0)
    fcntl.lockf(lock, fcntl.LOCK_EX)
    with pytest.raises(PrerequisiteMissing, match=r"needs munge; 'apt-get update' failed: .*Could not get lock"):
        install_packages(["munge"])
