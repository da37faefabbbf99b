"""No process of a command outlives its worker, whichever guards are killed, and in whatever order."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import psutil
import pytest
from project import ROOT, alive
from slurm_cluster.waiting import wait_until
from trainyard.programs.output import OutputFile
from trainyard.utils.guard import mark
from trainyard.utils.guarded_process import (
    HOLD_SECONDS,
    GuardedProcess,
    ProcessGuard,
    completed_seconds,
    hold_folder,
)
from trainyard.utils.locks import LockHeldError

PATIENCE = 300.0  # seconds for what takes milliseconds on a quiet machine
# It starts a process in its own session, and a daemon that is detached from its parent and has closed all files. All of
# them ignore SIGTERM.
HOLD = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if len(sys.argv) == 2:
    subprocess.Popen([sys.executable, __file__, sys.argv[1], "in a session of its own"], start_new_session=True)
    if not os.fork():
        os.setsid()
        os.closerange(0, 256)
        if not os.fork():
            os.execv(sys.executable, [sys.executable, __file__, sys.argv[1], "daemon"])
        os._exit(0)
time.sleep(600)
"""
# Claims the folder of a trial.
CLAIM = """
import sys
sys.path.insert(0, {scripts!r})
from pathlib import Path
from trainyard.utils.guarded_process import HOLD_SECONDS, hold_folder
with hold_folder(Path(sys.argv[1]), purpose="trial t1", grace_seconds=-HOLD_SECONDS):
    pass
"""
# Runs a trial as the worker of a slot does, and prints the PIDs of its guards.
OWNER = """
import json, os, sys
sys.path.insert(0, {scripts!r})
from pathlib import Path
from trainyard.utils.guarded_process import ProcessGuard, hold_folder
folder = Path(sys.argv[1])
with hold_folder(folder, purpose="trial t1", grace_seconds=0.5) as claimed:
    line = ["/bin/sh", "-c", f"python3 {{folder}}/hold.py 1 && true"]
    options = dict(cwd=str(folder), environment=os.environ, grace_seconds=0.5, on_output=lambda chunk: None)
    process = ProcessGuard().start(line, folder_lock=claimed, **options)
    print(json.dumps(process.guards), flush=True)
    code = process.wait()
print(code, flush=True)
"""
SAVE = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), open("kept", "w"), sys.exit()))
open("up", "w")
time.sleep(600)
"""
# Hangs with the output that it reads.
RECORDED_END = """
import json, os, sys, time
sys.path.insert(0, {scripts!r})
from pathlib import Path
from trainyard.utils.guarded_process import ProcessGuard
folder = Path(sys.argv[1])
(folder / "output-1.log").touch()
line = ["/bin/sh", "-c", "echo first; while ! test -e go; do sleep 0.1; done; touch gone"]
def hang(chunk):
    (folder / "reading").touch()
    time.sleep(600)
options = dict(cwd=str(folder), environment=os.environ, grace_seconds=1.0, log=folder / "output-1.log")
process = ProcessGuard().start(line, on_output=hang, records_end=True, **options)
print(json.dumps(process.guards), flush=True)
process.wait()
"""
HERE = {"cwd": "/", "environment": os.environ, "on_output": lambda chunk: None}
GUARDS = ("owner", "keeper", "watcher")
ORDERS = [order for count in (1, 2, 3) for order in itertools.permutations(GUARDS, count)]


@pytest.fixture(scope="module", autouse=True)
def busy_machine():
    """Two processes that keep a CPU busy each during these tests, for two minutes at most.

    With `-n`, other tests do that.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        yield
        return
    burn = "import time\nend = time.monotonic() + 120\nwhile time.monotonic() < end: pass"
    burning = [subprocess.Popen([sys.executable, "-c", burn]) for _ in range(2)]
    yield
    for process in burning:
        process.kill()
        process.wait()


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "t1"
    made.mkdir()
    (made / "hold.py").write_text(HOLD)
    return made


def tree(folder):
    """The living processes of the command."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        said = " ".join(process.info["cmdline"] or [])
        if f"{folder}/hold.py" in said and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


@pytest.fixture
def running(folder):
    """The guards of a command by name."""
    code = textwrap.dedent(OWNER).format(scripts=str(ROOT / "scripts"))
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    line = [sys.executable, "-c", code, str(folder)]
    owner = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        keeper, watcher = json.loads(owner.stdout.readline())
        what = "shell, program, session and daemon"
        wait_until(lambda: len(tree(folder)) == 4, timeout_seconds=PATIENCE, what=what, while_running=owner)
        yield {"owner": owner, "keeper": keeper, "watcher": watcher}
    finally:
        owner.kill()
        owner.wait()
        for process in tree(folder):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def kill(running, name):
    if name == "owner":
        running["owner"].kill()
    else:
        os.kill(running[name], signal.SIGKILL)


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_no_process_outlives_its_guards_and_no_other_attempt_starts_beside_it(folder, running, order):
    for name in order:
        kill(running, name)
    if order == ("keeper",):  # the command goes on
        os.kill(running["watcher"], 0)
        assert len(tree(folder)) == 4
        kill(running, "owner")
    elif len(order) == 2:  # otherwise the next attempt waits for the end of the command, or kills it after all three
        wait_until(lambda: not tree(folder), timeout_seconds=PATIENCE, what="the end of the command")
    with hold_folder(folder, purpose="trial t1", grace_seconds=PATIENCE):
        assert tree(folder) == []
    assert not folder.with_name(".t1.lock").exists()


@pytest.mark.parametrize("stopped", ["watcher", "keeper"])
def test_a_guard_that_was_stopped_ends_the_program_of_a_killed_owner(folder, running, stopped):
    guards = [psutil.Process(running[name]) for name in ("keeper", "watcher")]
    os.kill(running[stopped], signal.SIGSTOP)
    kill(running, "owner")
    wait_until(lambda: not tree(folder), timeout_seconds=60.0, what="the end of the command")
    with hold_folder(folder, purpose="trial t1", grace_seconds=60.0 - HOLD_SECONDS):
        assert tree(folder) == []
    wait_until(lambda: not alive(guards), timeout_seconds=60.0, what="the end of the guards")


@pytest.mark.parametrize("guard", [0, 1], ids=["keeper", "watcher"])
def test_the_end_of_a_program_is_reported_although_a_guard_was_stopped(guard):
    process = ProcessGuard().start(["sleep", "600"], **HERE, grace_seconds=1.0)
    os.kill(process.guards[guard], signal.SIGSTOP)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(60.0) == -signal.SIGTERM


@pytest.mark.parametrize(
    ("command", "is_recorded"),
    [("echo done", True), ("echo done; exit 3", False), ("kill -9 $$", False), ("echo done; kill -USR1 $PPID", False)],
    ids=["ended by itself", "failed", "killed", "with its job"],
)
def test_a_guard_records_that_a_program_has_ended_by_itself(folder, command, is_recorded):
    log = folder / "output-1.log"
    log.with_suffix(".ended").write_text("of an earlier attempt")
    output = OutputFile(log)
    options = {"cwd": str(folder), "environment": os.environ, "grace_seconds": 1.0, "records_end": True}
    process = ProcessGuard().start(["/bin/sh", "-c", command], **options, on_output=output.write, log=log)
    process.wait(60.0)
    assert (completed_seconds(log) is not None) == is_recorded
    assert log.with_suffix(".ended").exists() == is_recorded
    log.write_text(log.read_text()[:-1])
    assert completed_seconds(log) is None, "its output is not whole"


def test_a_guard_records_no_end_whose_output_the_owner_has_not_saved(folder):
    """The owner was killed with a part of it that is not in the log."""
    code = RECORDED_END.format(scripts=str(ROOT / "scripts"))
    owner = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True)
    guards = [psutil.Process(pid) for pid in json.loads(owner.stdout.readline())]
    wait_until((folder / "reading").exists, timeout_seconds=60.0, what="the output")
    (folder / "go").touch()
    wait_until((folder / "gone").exists, timeout_seconds=60.0, what="the end of the program")
    owner.kill()
    owner.wait()
    wait_until(lambda: not alive(guards), timeout_seconds=60.0, what="the end of the guards")
    assert not (folder / "output-1.ended").exists()


# Saves at SIGUSR1, as an epoch ends; a child that it has forked, such as a DataLoader's, has its handler, too. Both
# write each line in one piece, which `print` does not where Python is unbuffered.
SAVES_AT_USER_SIGNAL = """
import os, signal, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"bypassing SIGTERM\\n"))
signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))
worker = os.fork()
os.write(1, b"up\\n")
while not asked:
    time.sleep(0.01)
os.write(1, b"saved\\n" if worker else b"saved by the worker\\n")
os.kill(worker, signal.SIGKILL)
"""


def end_by_request(line, stop_signal, *, ready, shell="/bin/bash"):
    """Start a line of a shell, and request its end once it wrote `up` so often; returns its exit code and its words."""
    output = []
    environment = HERE["environment"] | {"PROGRAM": SAVES_AT_USER_SIGNAL}
    process = ProcessGuard().start(
        [shell, "-c", line],
        **HERE | {"on_output": output.append, "environment": environment},
        grace_seconds=PATIENCE,
        stop_signal=stop_signal,
    )
    # A shell that is about to start a program would die without it, and the program would have the grace period.
    wait_until(lambda: b"".join(output).count(b"up") == ready, timeout_seconds=PATIENCE, what="the program")
    process.request_end(PATIENCE)
    return process.wait(PATIENCE), b"".join(output).split()


def test_a_user_signal_reaches_the_program_behind_a_shell_and_ends_nothing_before_it():
    """Neither the filter of its output, nor its workers; what the shell would start next does not run on."""
    line = f'{sys.executable} -c "$PROGRAM" 2>&1 | tee /dev/null; echo evaluating; sleep 600'
    _, words = end_by_request(line, "USR1", ready=2)
    assert words in ([b"up", b"up", b"saved"], [b"up", b"up", b"saved", b"evaluating"])


@pytest.mark.parametrize("trap", ["trap : USR1", "trap 'echo cleaned' EXIT"])
def test_a_shell_with_a_trap_keeps_no_user_signal_from_the_program_behind_it(trap):
    """With a trap of EXIT, bash would handle the signal, too, and end at once."""
    _, words = end_by_request(f'{trap}; {sys.executable} -c "$PROGRAM"; true', "USR1", ready=2)
    assert words in ([b"up", b"up", b"saved"], [b"up", b"up", b"saved", b"cleaned"])


def test_a_program_without_a_handler_of_its_stop_signal_gets_sigterm():
    code, _ = end_by_request("sleep 600 & echo up; wait", "USR2", ready=1, shell="/bin/sh")
    assert code == -signal.SIGTERM


def test_an_owner_whose_guards_were_killed_can_start_the_next_program():
    guard = ProcessGuard()
    for kills in (["watcher"], ["keeper"], ["keeper", "watcher"], []):
        line = ["/bin/sh", "-c", "sleep 600 && true" if "watcher" in kills else "sleep 0.5; exit 3"]
        process = guard.start(line, **HERE, grace_seconds=1.0)
        for name in kills:
            os.kill(dict(zip(("keeper", "watcher"), process.guards, strict=True))[name], signal.SIGKILL)
        assert process.wait(PATIENCE) == (-signal.SIGKILL if "watcher" in kills else 3)


def test_a_signal_to_a_program_whose_guard_could_not_start_it_reaches_no_process(monkeypatch):
    """Its PID is unknown, and a PID of -1 would mean all processes of the user."""
    guard, sent, receive = ProcessGuard(), [], GuardedProcess._receive
    first = guard.start(["/bin/sh", "-c", "exit 3"], **HERE, grace_seconds=1.0)
    assert first.wait(PATIENCE) == 3
    keeper = str(first.guards[0])
    subprocess.run(["kill", "-STOP", keeper], check=True)
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(pid))

    def receive_after_its_end(process):
        monkeypatch.setattr(GuardedProcess, "_receive", receive)
        subprocess.run(["kill", "-KILL", keeper], check=True)
        return receive(process)

    monkeypatch.setattr(GuardedProcess, "_receive", receive_after_its_end)
    process = guard.start(["/bin/sh", "-c", "exit 3"], **HERE, grace_seconds=1.0)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(PATIENCE) == -signal.SIGKILL
    assert sent == []


def test_a_guard_serves_programs_one_after_another_with_nothing_left_of_the_last():
    """Neither descriptors, nor a signal by which the last one was ended."""
    guard, keepers, fds = ProcessGuard(), [], []

    def run(*line):
        output = []
        process = guard.start(line, **HERE | {"on_output": output.append}, grace_seconds=PATIENCE)
        if line[-1] == "wait":
            wait_until(lambda: output, timeout_seconds=PATIENCE, what="the program")
            os.kill(process.guards[1], signal.SIGTERM)
            process.end(0.0)
        code = process.wait(PATIENCE)
        keepers.append(psutil.Process(process.guards[0]))
        fds.append(keepers[-1].num_fds())
        return code

    assert run("/bin/sh", "-c", "exit 3") == 3
    assert run("/bin/sh", "-c", "echo up; sleep 600", "wait") == -signal.SIGKILL
    # What it leaves behind has the grace period if the job ends, and is killed at once if not.
    assert run("/bin/sh", "-c", "(trap 'echo saved' TERM; sleep 600 & wait) >/dev/null & exit 4") == 4
    with pytest.raises(FileNotFoundError):
        run("no-such-program")
    assert run("/bin/sh", "-c", "exit 5") == 5
    assert len(set(keepers)) == len(set(fds)) == 1
    keepers[0].kill()
    keepers[0].wait(PATIENCE)
    assert run("/bin/sh", "-c", "exit 6") == 6


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_user_signal_to_all_processes_of_a_job_ends_no_guard(tmp_path, number):
    """As `--signal=USR1@60` of sbatch sends it at sites without proctrack/cgroup."""
    line = f"until test -e {tmp_path}/go; do sleep 0.05; done; exit 3"
    process = ProcessGuard().start(["/bin/sh", "-c", line], **HERE, grace_seconds=PATIENCE)
    for pid in process.guards:
        os.kill(pid, number)
    (tmp_path / "go").touch()
    assert process.wait(PATIENCE) == 3


# Starts processes as Ray starts its daemons: below nobody, in an environment with the mark of their owner. One sets its
# title, as Ray's agents do, for which it has no room but in its environment.
MARKS = """
import os, subprocess, sys
sys.path.insert(0, {scripts!r})
from trainyard.utils.guarded_process import processes_ended
with processes_ended(folders=[sys.argv[1] + "/*-files"], command=["touch", sys.argv[1] + "/quit"]) as mark:
    environment = mark | os.environ
    sleep = ["/bin/sh", "-c", "setsid sleep 600 >/dev/null & echo $!"]
    title = 'import os, time, ray._raylet; ray._raylet.setproctitle("ray::" + 99 * "."); print(os.getpid(), flush=True)'
    titled = [sys.executable, "-c", title + "; time.sleep(600)"]
    print(subprocess.run(sleep, env=environment, stdout=subprocess.PIPE, text=True).stdout.strip(), flush=True)
    subprocess.Popen(titled, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
    sys.stdin.readline()
"""


def keepers_of(folder):
    """The keepers of the owner that has this folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cmdline()[1:3] == ["-I", "-S"] and process.environ().get("OWNER_OF") == str(folder):
                found.append(process)
    return found


@pytest.mark.parametrize("how", ["killed", "keeper killed", "ended"])
def test_marked_processes_end_with_their_owner(folder, how):
    """If it is killed, their folders are removed, too, once nobody holds them. Otherwise, it removes them itself."""
    (folder / "ray-files").mkdir()
    code, streams = textwrap.dedent(MARKS).format(scripts=str(ROOT / "scripts")), {"stdin": -1, "stdout": -1}
    environment = os.environ | {"OWNER_OF": str(folder)}
    line = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(line, text=True, env=environment, **streams) as owner:
        marked = [psutil.Process(int(owner.stdout.readline())) for _ in range(2)]
        if how == "keeper killed":
            (keeper,) = keepers_of(folder)
            keeper.kill()
            keeper.wait()
        if how == "killed":
            owner.kill()
        else:
            assert len(alive(marked)) == 2
            owner.communicate("\n", timeout=PATIENCE)
            assert owner.returncode == 0
            assert not alive(marked)
    wait_until(lambda: not alive(marked), timeout_seconds=PATIENCE, what="the end of the marked processes")
    is_removed = how == "killed"
    wait_until(
        lambda: (folder / "ray-files").exists() != is_removed, timeout_seconds=PATIENCE, what="the end of the folder"
    )
    assert (folder / "quit").exists()


def test_what_a_killed_attempt_has_left_is_killed_also_in_a_folder_whose_name_is_not_utf_8(tmp_path):
    folder = tmp_path / os.fsdecode(b"\xff") / "t1"
    lock = folder.with_name(".t1.lock")
    folder.mkdir(parents=True)
    lock.write_text("{}")
    with subprocess.Popen(["sleep", "600"], env=os.environ | mark(str(lock))) as left:
        try:
            with hold_folder(folder, purpose="trial t1", grace_seconds=0.0):
                assert left.wait(PATIENCE) == -signal.SIGKILL
        finally:
            left.kill()


def test_the_error_of_a_second_attempt_names_the_process_in_its_folder(folder, running):
    with pytest.raises(LockHeldError) as error, hold_folder(folder, purpose="trial t1", grace_seconds=-HOLD_SECONDS):
        pass
    owner = running["owner"].pid
    assert str(error.value).startswith(f"{folder} is in use by process {owner} on {os.uname().nodename}, since ")
    assert str(error.value).endswith(" (trial t1): wait until it ends, or end it, then run this again")


def test_guards_in_a_container_are_not_taken_for_dead(folder, running):
    """Their PIDs are those of another namespace, although the container may have the name of the host."""
    if os.geteuid():
        pytest.skip("only root can make a namespace of PIDs")
    code = textwrap.dedent(CLAIM).format(scripts=str(ROOT / "scripts"))
    container = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code, str(folder)]
    done = subprocess.run(container, text=True, capture_output=True, check=False)
    assert "LockHeldError" in done.stderr
    assert len(tree(folder)) == 4


def test_the_guard_of_a_killed_owner_starts_no_file_of_output(folder):
    """The owner has renamed the file of which it could not keep a part: the rest would look like the whole output."""
    (folder / "talk.py").write_text(TALK)
    code = TALKED_TO.format(scripts=str(ROOT / "scripts"))
    owner = subprocess.Popen([sys.executable, "-c", code, str(folder)])
    wait_until((folder / "up").exists, timeout_seconds=PATIENCE, what="the program", while_running=owner)
    owner.kill()
    owner.wait()
    wait_until((folder / "kept").exists, timeout_seconds=PATIENCE, what="the checkpoint")
    assert not (folder / "said.log").exists()


def test_all_processes_have_the_grace_period_not_only_the_shell(folder):
    """The shell ends at SIGTERM at once; the program behind it still writes its checkpoint."""
    (folder / "save.py").write_text(SAVE)
    line = ["/bin/sh", "-c", f"{sys.executable} save.py && true"]
    process = ProcessGuard().start(line, **HERE | {"cwd": str(folder)}, grace_seconds=PATIENCE)
    wait_until((folder / "up").exists, timeout_seconds=PATIENCE, what="the program")
    threading.Thread(target=process.end, args=(20 * PATIENCE,)).start()
    assert process.wait(PATIENCE) == -signal.SIGTERM, "it does not wait for the rest of the grace period"
    assert (folder / "kept").exists()


def test_at_the_end_of_the_job_the_program_behind_a_shell_has_its_grace_period(folder):
    """The signal of the job kills the shell at once, before the owner asks the guard to end the program."""
    (folder / "save.py").write_text(SAVE)
    line = ["/bin/sh", "-c", f"{sys.executable} save.py && true"]
    process = ProcessGuard().start(line, **HERE | {"cwd": str(folder)}, grace_seconds=20 * PATIENCE)
    wait_until((folder / "up").exists, timeout_seconds=PATIENCE, what="the program")
    shell = psutil.Process(process.pid)
    for pid in (*process.guards, shell.children()[0].pid, shell.pid):
        os.kill(pid, signal.SIGTERM)
    assert process.wait(PATIENCE) == -signal.SIGTERM
    assert (folder / "kept").exists()


# While it writes a checkpoint, it prints more than a pipe holds. Its owner, which reads the pipe, is killed.
TALK = """
import signal, sys, time
def save(*_):
    print("saving", "." * 200000, flush=True)
    open("kept", "w")
    print("saved", flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, save)
open("up", "w")
time.sleep(600)
"""
TALKED_TO = """
import os, sys
sys.path.insert(0, {scripts!r})
from pathlib import Path
from trainyard.utils.guarded_process import ProcessGuard
folder = sys.argv[1]
line = ["/bin/sh", "-c", f"{{sys.executable}} talk.py && true"]
log = Path(folder, "said.log")
options = dict(cwd=folder, environment=os.environ, grace_seconds=60.0, on_output=lambda chunk: None)
process = ProcessGuard().start(line, log=log, **options)
process.wait()
"""


def test_a_program_whose_owner_is_killed_can_print_while_it_writes_a_checkpoint(folder):
    (folder / "talk.py").write_text(TALK)
    (folder / "said.log").write_text("before\n")
    code = TALKED_TO.format(scripts=str(ROOT / "scripts"))
    owner = subprocess.Popen([sys.executable, "-c", code, str(folder)])
    wait_until((folder / "up").exists, timeout_seconds=PATIENCE, what="the program", while_running=owner)
    owner.kill()
    owner.wait()
    log = folder / "said.log"
    wait_until(lambda: log.read_text().endswith("saved\n"), timeout_seconds=PATIENCE, what="all that it says")
    assert log.read_text() == f"before\nsaving {'.' * 200000}\nsaved\n"
    assert (folder / "kept").exists()
