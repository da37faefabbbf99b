"""A stop request reaches the ranks, and a rank that torchrun ends does not wait for one."""

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from project import ROOT
from slurm_cluster.waiting import PATIENCE_SECONDS, wait_until

# An agent with one rank, which waits as in a collective whose peer has died.
AGENT = """
import os, subprocess, sys
from trainyard.cluster.stop_request import block_stop_signals, forward_to_ranks

block_stop_signals()
forward_to_ranks()
if sys.argv[1:] == ["waits"]:
    print("waits", flush=True)
    sys.stdin.readline()
rank = subprocess.Popen([sys.executable, "rank.py"], env=os.environ | {"LOCAL_RANK": "1", "WORLD_SIZE": "2"})
print(rank.pid, flush=True)
sys.exit(rank.wait())
"""
RANK = """
import sys, threading, time
from trainyard.cluster import stop_request

stop_request.AGENT_SECONDS = 0.1
request = stop_request.stop_request_of_rank()
print("ready", flush=True)
while not request.is_made:
    time.sleep(0.01)
if sys.argv[1:] == ["hangs"]:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
sys.exit(7)
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "rank.py").write_text(RANK)
    return tmp_path


def start(folder: Path, *words: str, **variables: str) -> subprocess.Popen[str]:
    environment = {"PYTHONPATH": str(ROOT / "scripts"), "WORLD_SIZE": "2", "PATH": "/usr/bin:/bin", **variables}
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=1,
    )


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_an_agent_forwards_the_request_to_its_ranks_and_waits_for_them(programs, sent):
    with start(programs, "agent.py") as agent:
        assert agent.stdout.readline().strip().isdigit()
        assert agent.stdout.readline() == "ready\n"
        agent.send_signal(sent)
        assert agent.wait(PATIENCE_SECONDS) == 7, "the exit code of its rank"


def test_a_rank_that_starts_after_the_request_gets_it_too(programs):
    with start(programs, "agent.py", "waits") as agent:
        assert agent.stdout.readline() == "waits\n"
        agent.send_signal(signal.SIGTERM)
        wait_until(lambda: not pending_signals(agent.pid), what="the agent to take the signal", while_running=agent)
        agent.stdin.write("\n")
        agent.stdin.flush()
        assert agent.wait(PATIENCE_SECONDS) == 7, "the exit code of its rank"


def pending_signals(pid: int) -> int:
    """The mask of the signals that a process has got but not taken."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("ShdPnd")), 16)


def test_no_thread_of_a_library_takes_the_signal_of_an_agent(programs):
    """With OMP_NUM_THREADS, importing torch starts threads. One with the signal unblocked runs torchrun's handler."""
    (programs / "config.json").write_text("{}")
    options = [str(programs), "here", "1", "rank.py", "--config", "config.json"]
    with start(programs, str(ROOT / "scripts/trainyard"), "scaling.agent", *options, OMP_NUM_THREADS="4") as agent:
        assert agent.stdout.readline() == "ready\n"
        wait_until(lambda: takers(agent.pid) == 1, timeout_seconds=60.0, what="one thread, which waits for it")
        agent.terminate()
        agent.wait(PATIENCE_SECONDS)


def takers(pid: int) -> int:
    """How many threads of a process do not block SIGTERM."""
    masks = list[int]()
    for path in Path(f"/proc/{pid}/task").glob("*/status"):
        with suppress(OSError):  # a thread that has just ended
            masks += [int(line.split()[1], 16) for line in path.read_text().splitlines() if "SigBlk" in line]
    return sum(not mask >> (signal.SIGTERM - 1) & 1 for mask in masks)


@pytest.mark.parametrize("agent_requests", [True, False])
def test_a_rank_that_gets_sigterm_ends_unless_its_agent_requests_it(programs, agent_requests):
    """Without a request, it is torchrun that ends it: another rank has failed, and this one may wait for that."""
    with start(programs, "rank.py", "hangs") as rank:
        assert rank.stdout.readline() == "ready\n"
        if agent_requests:
            rank.send_signal(signal.SIGUSR1)
        rank.terminate()
        if agent_requests:
            with pytest.raises(subprocess.TimeoutExpired):
                rank.wait(1.0)
            rank.kill()
        else:
            assert rank.wait(PATIENCE_SECONDS) == 128 + signal.SIGTERM


def test_ranks_end_with_an_agent_that_is_killed(programs):
    import psutil

    with start(programs, "agent.py") as agent:
        rank = psutil.Process(int(agent.stdout.readline()))
        assert agent.stdout.readline() == "ready\n"
        agent.kill()
        agent.wait()
        rank.wait(PATIENCE_SECONDS)
