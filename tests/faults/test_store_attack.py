"""Other users of a host can reach the ports of a training, but nothing that they write is unpickled."""

import shutil
import sys

import psutil
import pytest
from project import ROOT, TINY, WAITING, Project
from slurm_cluster.waiting import PATIENCE_SECONDS, finished, wait_until

pytestmark = pytest.mark.slow

# Python imports it at its start. It records each class or function that any process of the training unpickles.
WITNESS = """
import sys

def record(event, arguments):
    if event == "pickle.find_class":
        with open("unpickled", "a") as file:
            print(sys.argv, *arguments, file=file)

sys.addaudithook(record)
"""


@pytest.fixture
def project(tmp_path):
    made = Project(tmp_path)
    train = {"model": "waiting:build", "batch_size": 8, "epochs": 2}
    made.write({**TINY, "scaling": {"s": {"dataset": "tiny", "train": train, "scales": ["1x2"]}}})
    made.stage()
    for name, text in {"waiting.py": WAITING, "sitecustomize.py": WITNESS}.items():
        (tmp_path / name).write_text(text)
    return made


def listening(process: psutil.Process) -> list[tuple[str, int]]:
    return [each.laddr for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN]


def test_a_training_on_one_node_listens_on_loopback_and_unpickles_nothing(project, tmp_path):
    training = project.start(*project.script("train", "--study", "s", "--scale", "1x2"))
    try:
        wait_until(lambda: len(list(tmp_path.glob("started-*"))) == 2, what="both ranks", while_running=training)
        agent = psutil.Process(training.pid).children()[0]
        ports = [listening(process) for process in (agent, *agent.children())]
        assert [len(each) for each in ports] == [1, 1, 1], "the store and the ranks' gloo"
        assert {address for each in ports for address, _ in each} == {"127.0.0.1"}
        shutil.copy(ROOT / "tests/store_attack.py", tmp_path)
        attack = finished([sys.executable, str(tmp_path / "store_attack.py"), "127.0.0.1", str(ports[0][0][1])])
        assert "default_pg" in attack.stdout, "it has written to the store of the process group"
    finally:
        (tmp_path / "go").touch()
        output, _ = training.communicate(timeout=PATIENCE_SECONDS)
    assert training.returncode == 0, output
    assert not (tmp_path / "unpickled").exists()
    assert not (tmp_path / "pickle-was-loaded").exists()
