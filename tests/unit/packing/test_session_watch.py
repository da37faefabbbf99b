"""What a session learns about others from their signs of life, on this node and on others."""

import errno
import os
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from slurm_cluster.waiting import wait_until
from trainyard.packing import session_watch
from trainyard.packing.session_watch import ENDED_LOOKS, SILENT_LOOKS, Life, SessionWatch
from trainyard.utils.locks import Holder, start_ticks

OTHER = "1-7.0-0000"  # of another job of the sweep
EARLIER = "0-7.0-0000"  # of the job that this one follows
ELSEWHERE = replace(Holder.this_process(), namespace="of another node", job="7", cluster="c")


@pytest.fixture
def watch(tmp_path):
    """The watch of a session of job 0, which looks only when it is told."""
    found = SessionWatch(tmp_path, "0-8.0-1111")
    found.only([OTHER, EARLIER])
    return found


def beat(folder, session, holder, *, at=1.0):
    path = folder / f"{session}.beat"
    path.write_bytes(holder.encode() if isinstance(holder, Holder) else holder)
    os.utime(path, (at, at))


def test_a_process_on_this_node_runs_until_it_is_gone(watch, tmp_path):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        beat(tmp_path, OTHER, replace(Holder.this_process(), process=process.pid, started=start_ticks(process.pid)))
        assert watch.life_of(OTHER) is Life.RUNS
    assert watch.life_of(OTHER) is Life.GONE


def test_a_process_on_another_node_runs_once_it_gives_a_sign_of_life(watch, tmp_path):
    beat(tmp_path, OTHER, ELSEWHERE)
    watch.look()
    assert watch.life_of(OTHER) is Life.UNKNOWN
    beat(tmp_path, OTHER, ELSEWHERE, at=6.0)
    watch.look()
    assert watch.life_of(OTHER) is Life.RUNS


def test_the_word_of_slurm_counts_only_without_signs_of_life(watch, tmp_path, slurm, monkeypatch):
    """A node that Slurm has lost may run on."""
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "c")
    slurm.prints("squeue", "")
    beat(tmp_path, OTHER, ELSEWHERE)
    for look in range(2 * ENDED_LOOKS):
        beat(tmp_path, OTHER, ELSEWHERE, at=10.0 + look)
        watch.look()
    assert watch.life_of(OTHER) is Life.RUNS
    for _ in range(ENDED_LOOKS):
        watch.look()
    wait_until(lambda: watch.life_of(OTHER) is Life.ENDED, what="Slurm's answer")
    beat(tmp_path, OTHER, ELSEWHERE, at=99.0)
    watch.look()
    assert watch.life_of(OTHER) is Life.RUNS


def test_without_slurm_a_silent_session_counts_as_dead_after_a_minute(watch, tmp_path):
    beat(tmp_path, OTHER, replace(ELSEWHERE, job=""))
    watch.look()
    for _ in range(SILENT_LOOKS - 1):
        watch.look()
        assert watch.life_of(OTHER) is Life.UNKNOWN
    watch.look()
    assert watch.life_of(OTHER) is Life.SILENT


def test_a_session_that_falls_silent_is_not_known_to_run(watch, tmp_path):
    """A job without work waits for its trials instead of leaving them to a job that may be suspended for hours."""
    suspended = replace(Holder.this_process(), process=os.getppid(), started=start_ticks(os.getppid()))
    beat(tmp_path, OTHER, suspended)
    for _ in range(1 + ENDED_LOOKS):
        watch.look()
    assert watch.life_of(OTHER) is Life.UNKNOWN
    beat(tmp_path, OTHER, suspended, at=99.0)
    watch.look()
    assert watch.life_of(OTHER) is Life.RUNS


def test_a_job_follows_its_silent_predecessor_soon(watch, tmp_path):
    beat(tmp_path, EARLIER, replace(ELSEWHERE, job=""))
    watch.look()
    for _ in range(ENDED_LOOKS):
        assert watch.life_of(EARLIER) is Life.UNKNOWN
        watch.look()
    assert watch.life_of(EARLIER) is Life.ENDED


def test_a_stopped_predecessor_that_is_seen_on_this_node_has_not_ended(watch, tmp_path):
    """As after Ctrl-Z in another terminal: it counts as silent after a minute, as any that is suspended."""
    stopped = replace(Holder.this_process(), process=os.getppid(), started=start_ticks(os.getppid()))
    beat(tmp_path, EARLIER, stopped)
    for _ in range(SILENT_LOOKS):
        watch.look()
        assert watch.life_of(EARLIER) in (Life.RUNS, Life.UNKNOWN)
    watch.look()
    assert watch.life_of(EARLIER) is Life.SILENT


def test_after_a_pause_of_the_watching_process_all_counts_begin_again(watch, tmp_path, monkeypatch):
    """It was suspended: to it, all others seem silent."""
    beat(tmp_path, EARLIER, ELSEWHERE)
    for _ in range(ENDED_LOOKS):
        watch.look()
    monkeypatch.setattr(session_watch, "BEAT_SECONDS", -1.0)  # the last look was too long ago
    watch.look()
    assert watch.life_of(EARLIER) is Life.UNKNOWN


def test_a_silent_session_is_given_up_also_where_a_look_at_all_of_them_takes_longer_than_a_beat(
    watch, tmp_path, monkeypatch
):
    """With 16 jobs on a slow file system, a look takes 5.4 seconds."""
    others = [OTHER, *(f"{number}-{number}.0-0000" for number in range(20, 35))]
    watch.only(others)
    for session in others:
        beat(tmp_path, session, replace(ELSEWHERE, job=""))
    now, find = [0.0], session_watch.beat_file

    def find_slowly(folder, session):
        now[0] += 0.34
        return find(folder, session)

    monkeypatch.setattr(session_watch.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(session_watch, "beat_file", find_slowly)
    for _ in range(1 + SILENT_LOOKS):
        now[0] += session_watch.BEAT_SECONDS
        watch.look()
    assert {watch.life_of(session) for session in others} == {Life.SILENT}


def test_a_session_gives_signs_of_life_while_a_look_at_others_takes_long(tmp_path, monkeypatch):
    monkeypatch.setattr(session_watch, "BEAT_SECONDS", 0.05)
    looks, goes_on = threading.Event(), threading.Event()

    def hang(watch):
        looks.set()
        goes_on.wait()

    monkeypatch.setattr(SessionWatch, "look", hang)
    path = session_watch.beat_file(tmp_path, "0-8.0-1111")
    with SessionWatch(tmp_path, "0-8.0-1111"):
        assert looks.wait(60)
        os.utime(path, (1.0, 1.0))
        wait_until(lambda: path.stat().st_mtime > 1.0, what="a sign of life")
        goes_on.set()


def test_the_driver_waits_for_no_look_at_others(watch, tmp_path, monkeypatch):
    """The file system may take a while for one of them."""
    beat(tmp_path, OTHER, Holder.this_process())
    assert watch.life_of(OTHER) is Life.RUNS
    looks, goes_on, find = threading.Event(), threading.Event(), session_watch.beat_file

    def hang(folder, session):
        looks.set()
        goes_on.wait()
        return find(folder, session)

    monkeypatch.setattr(session_watch, "beat_file", hang)
    looking = threading.Thread(target=watch.look)
    looking.start()
    assert looks.wait(60)
    answers = []
    asking = threading.Thread(target=lambda: answers.append(watch.life_of(OTHER)), daemon=True)
    asking.start()
    asking.join(60)
    goes_on.set()
    looking.join()
    assert answers == [Life.RUNS]


def test_the_watch_goes_on_after_an_error_in_a_look(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(session_watch, "BEAT_SECONDS", 0.05)
    looks = []

    def fail(watch):
        looks.append(1)
        raise OSError(errno.ESHUTDOWN, "Cannot send after transport endpoint shutdown")

    monkeypatch.setattr(SessionWatch, "look", fail)
    with SessionWatch(tmp_path, "0-8.0-1111"):
        wait_until(lambda: len(looks) > 2, what="a look after an error")
    assert caplog.text.count("Cannot send after transport endpoint shutdown") == 1


def test_a_pause_counts_as_soon_as_the_process_goes_on(watch, monkeypatch):
    """The thread that gives signs of life may go on after the one that looks at deadlines."""
    now, seen = [100.0], []
    monkeypatch.setattr(session_watch.time, "monotonic", lambda: now[0])

    def wait(seconds):
        now[0] += seconds + 3600
        seen.append(watch.paused_seconds)

    monkeypatch.setattr(watch._ended, "wait", wait)
    watch._wait()
    now[0] += 60
    assert (seen, watch.paused_seconds) == ([3600], 3600)


def test_a_sign_of_life_that_is_read_while_it_is_written_is_read_again(watch, tmp_path):
    beat(tmp_path, OTHER, b"")
    watch.look()
    beat(tmp_path, OTHER, replace(Holder.this_process(), process=2**22, started=1))
    watch.look()
    assert watch.life_of(OTHER) is Life.GONE


def test_slurm_is_not_asked_about_sessions_that_are_over(watch, tmp_path, slurm):
    asked = tmp_path / "asked"
    slurm.runs("squeue", f"echo asked >> {asked}")
    beat(tmp_path, OTHER, ELSEWHERE)
    watch.only([])
    for _ in range(2 * SILENT_LOOKS):
        watch.look()
    assert not asked.exists()
    watch.forget(OTHER)
    assert not (tmp_path / f"{OTHER}.beat").exists()
