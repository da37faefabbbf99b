"""Missing packages are installed, also while another apt-get holds its locks."""

import fcntl
import shutil
import threading

import pytest
from slurm_cluster import prerequisites
from slurm_cluster.prerequisites import SYSTEM_PATH, PrerequisiteMissing
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


def test_apt_get_waits_for_another_apt_get(lock, capfd):
    fcntl.lockf(lock, fcntl.LOCK_EX)
    updating = threading.Thread(target=prerequisites._apt_get, args=["update"], kwargs={"packages": ["munge"]})
    updating.start()
    wait_until(lambda: "waiting for another apt-get to end" in capfd.readouterr().out, what="the message")
    assert updating.is_alive()
    fcntl.lockf(lock, fcntl.LOCK_UN)
    updating.join()


def test_a_timeout_names_the_holder_of_the_lock(lock):
    fcntl.lockf(lock, fcntl.LOCK_EX)
    with pytest.raises(PrerequisiteMissing, match=r"needs munge; 'apt-get update' failed: .*Could not get lock"):
        prerequisites._apt_get("update", packages=["munge"], timeout_seconds=0)


def test_an_apt_get_that_fails_is_not_repeated(lock):
    with pytest.raises(PrerequisiteMissing, match=r"'apt-get install' failed: E: Unable to"):
        prerequisites._apt_get("install", "no-such-package", packages=["munge"])
