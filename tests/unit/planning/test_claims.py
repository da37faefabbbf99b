"""The log of claims decides who runs what, and the fold counts of each journal what the log says."""

import errno
import os

import pytest
from sweep_journals import record_attempt
from trainyard.config.sweep import CommandSweep, Slots
from trainyard.config.trial_status import TrialStatus
from trainyard.packing import shared_order
from trainyard.packing.session_watch import Life
from trainyard.packing.shared_order import GivenUpError, SharedOrder
from trainyard.planning import journal
from trainyard.planning.attempts import Fold, group_by_trial
from trainyard.planning.claims import ClaimLog, Fence
from trainyard.planning.job_marks import RUN
from trainyard.planning.journal import (
    SESSIONS,
    Ended,
    Epoch,
    Journal,
    Left,
    Released,
    Reread,
    SessionStarted,
    Started,
    Suggested,
)
from trainyard.planning.sweep_state import SweepState, TrialSpace
from trainyard.utils.errors import StorageError, UserError

A, B, C = "0-1.0-aa", "1-2.0-bb", "2-3.0-cc"  # sessions
DRAWN = Suggested(search="s", values={"lr": 0.1}, params={"lr": 0.1}, attrs={})


class Written:
    """A journal of a session with a name that the test knows."""

    def __init__(self, folder, session):
        path = folder / SESSIONS / f"{session}.jsonl"
        path.parent.mkdir(exist_ok=True)
        self.session, self._journal = session, Journal(path)
        self.record(SessionStarted(job=session))

    def record(self, event):
        self._journal.record(event)
        return self

    def start(self, trial, attempt=1, **fields):
        return self.record(Started(trial=trial, attempt=attempt, slot=0, **fields))

    def finish(self, trial, attempt=1, **fields):
        fields = {"status": TrialStatus.FINISHED, "seconds": 1.0, "metrics": {"loss": 1.0}} | fields
        return self.record(Ended(trial=trial, attempt=attempt, **fields))

    @property
    def path(self):
        return self._journal.path

    @property
    def bytes(self):
        return self.path.stat().st_size


@pytest.fixture
def write(tmp_path):
    return lambda session: Written(tmp_path, session)


def outcomes(fold):
    return {key: attempt.outcome.value for key, attempt in fold.attempts.items()}


def claims_of(folder):
    return sorted(path.name for path in (folder / "claims").iterdir())


# ---- the log


def test_what_one_appends_another_reads(tmp_path):
    mine, other = ClaimLog(tmp_path), ClaimLog(tmp_path)
    fence = Fence(17, is_gone=True, ends={"t1": 12.5})
    assert mine.append(A, take=["t1", "t2"], draws=[DRAWN])
    assert mine.append(A, fences={C: fence})
    first, second = other.read()
    assert (first.session, first.take, first.draws) == (A, ("t1", "t2"), (DRAWN,))
    assert second.fences == {C: fence}
    assert other.read() == [], "each is read once"
    assert (other.entries, other.draws, other.sessions, other.fences) == (mine.entries, [DRAWN], {A}, {C: fence})
    assert claims_of(tmp_path) == ["00000001.json", "00000002.json"], "and no draft is left"


def test_who_has_not_read_an_entry_cannot_append_the_next_one(tmp_path):
    mine, other = ClaimLog(tmp_path), ClaimLog(tmp_path)
    assert mine.append(A, take=["t"])
    assert not other.append(B, take=["t"])
    assert other.entries == [], "what was lost was not read either"
    assert claims_of(tmp_path) == ["00000001.json"]
    other.read()
    assert other.owner("t").session == A
    assert other.append(B, take=["u"])


def test_a_link_whose_answer_was_lost_has_succeeded(tmp_path, monkeypatch):
    """A network file system sends it again, and then the file exists."""
    link = os.link

    def link_twice(source, target):
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", link_twice)
    log = ClaimLog(tmp_path)
    assert log.append(A, take=["t"])
    assert [entry.take for entry in log.entries] == [("t",)]


def test_an_entry_that_is_there_but_not_seen_yet_is_a_lost_race(tmp_path, monkeypatch):
    ClaimLog(tmp_path).append(A, take=["t"])
    log = ClaimLog(tmp_path)
    with monkeypatch.context() as stale:
        stale.setattr(ClaimLog, "_open", lambda *_: None)
        assert not log.append(B, take=["t"])
    assert [entry.session for entry in log.read()] == [A]


NEWER = b'{"n":1,"session":"a","token":"t","take":["t"],"draw":[],"fence":{"b":{"bytes":1,"why":"x"}},"end":[]}'


@pytest.mark.parametrize("content", [b"", b"\0" * 80, b"[]", b"{}", b'{"n":1,"sess', NEWER, b"null"])
def test_an_entry_that_cannot_be_read_is_an_error_with_its_file_and_a_remedy(tmp_path, content):
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims/00000001.json").write_bytes(content)
    with pytest.raises(UserError, match=r"claims/00000001\.json: .*remove this file") as caught:
        Fold(tmp_path).update()
    assert "\n" not in str(caught.value)
    (tmp_path / "claims/00000001.json").unlink()
    assert ClaimLog(tmp_path).append(A, take=["t"])


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_hard_links_is_an_error_with_advice(tmp_path, monkeypatch, number):
    def link(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(StorageError, match=r"no hard links.*--directory") as caught:
        ClaimLog(tmp_path).append(A, take=["t"])
    assert "\n" not in str(caught.value)
    assert claims_of(tmp_path) == []


def test_a_draft_that_a_killed_process_left_changes_nothing(tmp_path):
    log = ClaimLog(tmp_path)
    log.append(A, take=["t"])
    for name in (".0123456789abcdef.tmp", ".00000002.json.tmp"):
        (tmp_path / "claims" / name).write_bytes(b'{"n":2,"sess')
    assert log.append(A, take=["u"])
    assert [entry.take for entry in ClaimLog(tmp_path).read()] == [("t",), ("u",)]


def test_a_process_killed_after_its_link_has_claimed(tmp_path, monkeypatch):
    """The draft is another name of the entry: whoever comes next must not write into it."""

    class Killed(BaseException):
        pass

    def killed(*_):
        raise Killed

    log = ClaimLog(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("trainyard.planning.claims.sync_folder", killed)
        patched.setattr("pathlib.Path.unlink", lambda *_, **__: None)
        with pytest.raises(Killed):
            log.append(A, take=["t"])
    assert len(claims_of(tmp_path)) == 2, "an entry and its draft"
    again = ClaimLog(tmp_path)
    again.read()
    assert again.owner("t").session == A
    assert again.append(B, take=["u"])
    assert [entry.take for entry in ClaimLog(tmp_path).read()] == [("t",), ("u",)]


def test_a_full_disk_claims_nothing_and_leaves_nothing(small_disk):
    log = ClaimLog(small_disk.folder)
    assert log.append(A, take=["t"])
    filler = small_disk.fill()
    with pytest.raises(StorageError, match="make room"):
        log.append(A, take=[f"t{number}" for number in range(1000)])
    assert claims_of(small_disk.folder) == ["00000001.json"]
    assert len(log.entries) == 1
    filler.unlink()
    assert log.append(A, take=["u"]), "with room again"


def test_the_folder_of_a_trial_is_new_after_a_takeover_from_a_process_that_may_still_write(tmp_path):
    log = ClaimLog(tmp_path)
    log.append(A, take=["silent", "gone"])
    log.append(B, fences={A: Fence(0, is_gone=False)})
    log.append(B, take=["silent"])
    assert log.takeovers == {"silent": 3}
    log.append(C, fences={B: Fence(0, is_gone=True)})
    log.append(C, take=["silent", "gone"])
    assert log.takeovers == {"silent": 3, "gone": 5}, "of A, whose end nobody has seen; B is gone: its folder goes on"


def test_the_first_fence_of_a_session_counts(tmp_path):
    log = ClaimLog(tmp_path)
    log.append(B, fences={A: Fence(10)})
    log.append(C, fences={A: Fence(20)})
    assert log.fences == {A: Fence(10)}


# ---- the fold


def test_a_fence_cuts_what_was_already_read(tmp_path, write):
    journal = write(A).start("t1").finish("t1")
    cut = journal.bytes
    journal.start("t2").finish("t2").record(Left())
    fold = Fold(tmp_path)
    assert len(fold.news()) == 6
    assert outcomes(fold) == {("t1", 1): "finished", ("t2", 1): "finished"}
    assert A in fold.left
    ClaimLog(tmp_path).append(B, fences={A: Fence(cut)})
    assert fold.news() == [], "the same events are not returned again"
    assert outcomes(fold) == {("t1", 1): "finished"}
    assert A not in fold.left
    journal.finish("t3")
    assert fold.news() == []
    assert outcomes(fold) == outcomes(Fold(tmp_path).update()) == {("t1", 1): "finished"}


def test_after_a_cut_new_events_of_others_are_returned_once(tmp_path, write):
    zombie, other = write(A).start("t1"), write(B).start("t2")
    cut = zombie.bytes
    zombie.finish("t1")
    fold = Fold(tmp_path)
    fold.news()
    ClaimLog(tmp_path).append(B, fences={A: Fence(cut)})
    other.finish("t2")
    assert [(name, type(event)) for name, event in fold.news()] == [(B, Ended)]
    assert outcomes(fold) == {("t1", 1): "interrupted", ("t2", 1): "finished"}


def test_a_fold_is_behind_until_it_has_read_a_journal_up_to_its_fence(tmp_path, write):
    journal = write(A).start("t1")
    seen = journal.path.read_bytes()
    journal.finish("t1")
    all_of_it = journal.path.read_bytes()
    ClaimLog(tmp_path).append(B, take=["u"], fences={A: Fence(len(all_of_it))})
    journal.path.write_bytes(seen)  # as a cache shows it
    fold = Fold(tmp_path).update()
    assert fold.behind() == {A}
    assert outcomes(fold) == {("t1", 1): "running"}, "it is not closed before its end is known"
    with open(journal.path, "ab") as file:
        file.write(all_of_it[len(seen) :])
    assert fold.update().behind() == set()
    assert outcomes(fold) == {("t1", 1): "finished"}


def test_open_attempts_of_a_session_that_was_given_up_end_with_their_last_output(tmp_path, write):
    journal = write(A).start("t1").start("t2").record(Epoch(trial="t2", attempt=1, metrics={"epoch": 1}))
    last = Fold(tmp_path).update().attempts["t2", 1].end
    ClaimLog(tmp_path).append(B, fences={A: Fence(journal.bytes, ends={"t1": last + 60})})
    first, second = Fold(tmp_path).update().attempts.values()
    assert (first.outcome, first.end) == (TrialStatus.INTERRUPTED, last + 60)
    assert (second.outcome, second.end) == (TrialStatus.INTERRUPTED, last)


def test_a_session_that_leaves_ends_its_open_attempts(tmp_path, write):
    journal, fold = write(A).start("t1"), Fold(tmp_path)
    assert outcomes(fold.update()) == {("t1", 1): "running"}
    journal.record(Left())
    assert outcomes(fold.update()) == {("t1", 1): "interrupted"}


def test_the_claim_that_was_released_is_known(tmp_path, write):
    write(A).start("t1").finish("t1", status=TrialStatus.FAILED, error="x", retried=True).record(
        Released(trial="t1", claim=4)
    )
    fold = Fold(tmp_path).update()
    assert fold.released == {("t1", 4)}
    assert fold.closed == set()
    assert fold.failed == {}


@pytest.mark.parametrize("order", [(A, B), (B, A)])
def test_a_reread_counts_also_if_it_arrives_before_the_end_of_the_attempt(tmp_path, write, order):
    reread = Reread(
        trial="t1", attempt=1, outcome="finished", error="", rows=[], metrics={"loss": 0.5}, metrics_digest="d"
    )
    first, second = order
    write(first).start("t1").finish("t1")
    write(second).record(reread)
    fold = Fold(tmp_path).update()
    assert fold.attempts["t1", 1].metrics == {"loss": 0.5}


def test_a_reread_waits_for_the_end_of_its_attempt(tmp_path, write):
    reread = Reread(
        trial="t1", attempt=1, outcome="finished", error="", rows=[], metrics={"loss": 0.5}, metrics_digest="d"
    )
    write(A).record(reread)
    fold = Fold(tmp_path).update()
    assert fold.attempts == {}
    other = write(B).start("t1")
    assert fold.update().attempts["t1", 1].outcome is TrialStatus.RUNNING
    other.finish("t1")
    attempt = fold.update().attempts["t1", 1]
    assert (attempt.outcome, attempt.metrics) == (TrialStatus.FINISHED, {"loss": 0.5})


@pytest.mark.parametrize("order", [(A, B), (B, A)])
def test_the_last_reread_counts_whatever_the_clocks_of_the_nodes(tmp_path, write, order, monkeypatch):
    """The second one has read the first one; its clock is an hour behind."""
    written = {session: write(session) for session in order}
    written[A].start("t1").finish("t1")
    for session, clock, loss in ((A, 7200.0, 0.5), (B, 3600.0, 0.25)):
        number = Fold(tmp_path).update().attempts["t1", 1].reread[0] + 1
        content = {"outcome": "finished", "error": "", "rows": [], "metrics": {"loss": loss}, "metrics_digest": "d"}
        monkeypatch.setattr(journal, "read_clock", lambda clock=clock: clock)
        written[session].record(Reread(trial="t1", attempt=1, number=number, **content))
    assert Fold(tmp_path).update().attempts["t1", 1].metrics == {"loss": 0.25}


def test_all_of_an_old_journal_counts_and_its_open_attempts_have_ended(tmp_path, write):
    old = (
        '{"event":"session","time":1.0,"job":"7"}\n'
        '{"event":"started","time":2.0,"trial":"t1","attempt":1}\n'
        '{"event":"finished","time":3.0,"trial":"t1","attempt":1,"seconds":1.0,"metrics":{}}\n'
        '{"event":"started","time":4.0,"trial":"t2","attempt":1}\n'
    )
    (tmp_path / "journal.jsonl").write_text(old)
    fold = Fold(tmp_path).update()
    assert outcomes(fold) == {("t1", 1): "finished", ("t2", 1): "interrupted"}
    write(A).start("t2", attempt=2)
    assert outcomes(fold.update())["t2", 2] == "running"
    assert [run.info.job for run in fold.sessions] == ["7", A]


@pytest.mark.parametrize("order", [(A, B), (B, A)])
def test_who_has_failed_for_good_does_not_depend_on_the_order_of_the_journals(tmp_path, write, order):
    for session in order:
        write(session).start("t1").finish("t1", status=TrialStatus.FAILED, error="x", retried=False)
    assert Fold(tmp_path).update().failed == {"t1": {A, B}}


# ---- what a job may claim by them


class Watch:
    """Says that all others run."""

    life = Life.RUNS
    sees = False

    def life_of(self, session):
        return self.life

    def sees_process(self, session):
        return self.sees

    def describe(self, session):
        return session

    def only(self, sessions):
        pass

    def forget(self, session):
        pass


SWEEP = CommandSweep.model_validate({"command": "true {x}", "grid": {"x": [1, 2, 3]}, "slots": {"jobs": 3}})


@pytest.fixture
def order_of(tmp_path):
    def make(written, sweep=SWEEP):
        fold = Fold(tmp_path).update()
        space = TrialSpace(sweep, "no dataset", fold.suggested)
        state = SweepState("s", sweep, space, tmp_path, attempts=group_by_trial(fold.attempts.values()))
        return SharedOrder(state, written._journal, Watch(), fold)

    return make


@pytest.fixture
def trials():
    return list(TrialSpace(SWEEP, "no dataset").trials)


def test_what_another_job_has_claimed_and_ended_since_is_not_claimed_again(write, order_of, trials):
    mine, other = order_of(write(A)), write(B)
    assert order_of(other).claim(trials[:2])
    other.start(trials[0]).finish(trials[0])
    assert not mine.claim(trials)
    taken, opened = mine.take_changes()
    assert (taken, opened) == (set(trials[:2]), [])
    assert mine.claim(trials[2:])


@pytest.fixture
def while_awaited(tmp_path, write, monkeypatch):
    """Calls a function while others wait for the journal of C, which was given up and of which they see too little."""

    def prepare(do):
        dead, log = write(C), ClaimLog(tmp_path)
        content = dead.start("other").path.read_bytes()
        log.read()
        log.append(B, fences={C: Fence(len(content))})
        dead.path.write_bytes(content[:10])

        def sleep(_):
            dead.path.write_bytes(content)
            do()

        monkeypatch.setattr(shared_order.time, "sleep", sleep)

    return prepare


def test_what_is_given_back_while_a_journal_is_awaited_is_seen(write, order_of, trials, while_awaited):
    mine, theirs = order_of(write(A)), order_of(write(B))
    assert theirs.claim(trials[:1])
    mine.refresh()
    assert mine.take_changes() == ({trials[0]}, [])
    while_awaited(lambda: theirs.release(trials[0]))
    mine.refresh()
    assert [task.trial for task in mine.take_changes()[1]] == trials[:1]


def test_nobody_hears_of_what_a_fence_cuts_off_while_a_journal_is_awaited(tmp_path, write, order_of, while_awaited):
    mine, zombie, heard = order_of(write(A)), write(B), []
    mine.listener = lambda event, attempt: heard.append(event.trial)
    cut = zombie.start("before").bytes

    def give_up():
        log = ClaimLog(tmp_path)
        log.read()
        log.append("3-4.0-dd", fences={B: Fence(cut)})

    while_awaited(give_up)
    zombie.start("after")
    mine.refresh()
    assert "before" in heard
    assert "after" not in heard


def test_what_is_given_back_before_its_claim_is_seen_is_open_once_it_is(tmp_path, write, order_of, trials):
    mine, other = order_of(write(A)), write(B)
    theirs = order_of(other)
    assert theirs.claim(trials[:1])
    theirs.release(trials[0])
    hidden = (tmp_path / "claims").rename(tmp_path / "hidden")
    mine.refresh()
    hidden.rename(tmp_path / "claims")
    mine.refresh()
    taken, opened = mine.take_changes()
    assert (taken, [task.trial for task in opened]) == ({trials[0]}, trials[:1])


def test_a_trial_is_open_only_if_all_its_claims_are_seen_to_be_closed(tmp_path, write, order_of, trials):
    """Otherwise its next attempt would have the number of one that was not read yet."""
    first, second = write(A), write(B)
    assert order_of(first).claim(trials[:1])
    first.start(trials[0]).record(Left())
    assert order_of(second).claim(trials[:1])
    log = ClaimLog(tmp_path)
    log.read()
    log.append(C, fences={B: Fence(second.bytes)})
    content = first.path.read_bytes()
    first.path.write_bytes(b"")  # as a cache shows it
    mine = order_of(write(C))
    assert not mine.may_run(trials[0])
    first.path.write_bytes(content)
    mine.refresh()
    (task,) = mine.take_changes()[1]
    assert [attempt.number for attempt in task.earlier] == [1]


def test_who_was_given_up_learns_it_when_it_looks(tmp_path, write, order_of, trials):
    mine = order_of(write(A))
    assert mine.claim(trials[:1])
    log = ClaimLog(tmp_path)
    log.read()
    log.append(B, fences={A: Fence(0)})
    with pytest.raises(GivenUpError):
        mine.claim(trials[1:])


def test_the_end_of_a_journal_that_a_server_has_lost_is_awaited_once(tmp_path, write, order_of, trials, monkeypatch):
    mine, dead, slept = order_of(write(A)), write(C), []
    log = ClaimLog(tmp_path)
    log.append(B, take=trials[:1], fences={C: Fence(dead.bytes + 100)})
    monkeypatch.setattr(shared_order, "FENCE_SECONDS", 0.2)
    monkeypatch.setattr(shared_order, "POLL_SECONDS", 0.05)
    mine.refresh()
    monkeypatch.setattr(shared_order.time, "sleep", slept.append)
    mine.refresh()
    assert not slept


def test_what_has_failed_for_good_in_a_run_of_snakemake_is_not_claimed_by_its_later_jobs(tmp_path, trials, monkeypatch):
    """Also before they have recorded their start, when they decide whether there is work."""
    with Journal.of_new_session(tmp_path) as journal:
        journal.record(SessionStarted(run="this"))
        record_attempt(journal, trials[0], status=TrialStatus.FAILED, error="x", retried=False)
        journal.leave()
    fold = Fold(tmp_path).update()
    state = SweepState("s", SWEEP, TrialSpace(SWEEP, "no dataset"), tmp_path)
    for run, may_run in (("this", False), ("another", True)):
        monkeypatch.setenv(RUN, run)
        with Journal.of_new_session(tmp_path) as later:
            assert SharedOrder(state, later, Watch(), fold).may_run(trials[0]) == may_run


def test_whether_a_trial_may_run_does_not_take_longer_the_more_trials_have_failed(write, order_of, trials):
    class Looked(dict):
        def __iter__(self):
            raise AssertionError("all trials that have failed are looked at for each trial")

        items = values = keys = __iter__

    write(A).start(trials[0]).finish(trials[0], status=TrialStatus.FAILED, error="x", retried=False)
    order = order_of(write(B))
    order._fold.failed = Looked(order._fold.failed)
    assert not order.is_taken()
    assert order.may_run(trials[0])


def test_what_fails_for_good_beside_a_session_is_left_to_the_next_one_whatever_the_clocks(write, order_of, trials):
    mine, other = order_of(write(A)), write(B)
    assert order_of(other).claim(trials[:1])
    other.start(trials[0]).finish(trials[0], status=TrialStatus.FAILED, error="x", retried=False)
    mine.refresh()
    assert not mine.may_run(trials[0])
    assert order_of(write(C)).may_run(trials[0])


@pytest.mark.parametrize(
    ("first", "jobs", "waits"),
    [("0-7.1-bb", 1, True), ("0-7.1-bb", 2, False), ("0-7.0-bb", 1, False), ("0-8.0-bb", 1, False)],
    ids=["the same job", "slots for two", "before it was requeued", "another job"],
)
def test_a_second_program_in_a_job_takes_no_trial_while_the_first_one_uses_its_gpus(
    write, order_of, trials, monkeypatch, first, jobs, waits
):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    sweep = SWEEP.model_copy(update={"slots": Slots(jobs=jobs)})
    earlier = order_of(write(first), sweep)
    assert earlier.claim(trials[:1])
    second = order_of(write("0-7.1-aa"), sweep)
    assert (second.is_held, second.claim(trials[1:2])) == (waits, not waits)
    assert second.others_are_here() == first.startswith("0-7.1-")
    assert earlier.claim(trials[2:]), "it began before"


@pytest.mark.parametrize("sees", [True, False])
def test_a_silent_program_before_this_one_works_if_its_process_is_seen(write, order_of, trials, monkeypatch, sees):
    """It was stopped by Ctrl-Z, and its trials use the GPUs; unseen, it ran on a node that may be down."""
    sweep = SWEEP.model_copy(update={"slots": Slots(jobs=1)})
    assert order_of(write("0-local.0-bb"), sweep).claim(trials[:1])
    monkeypatch.setattr(Watch, "life", Life.UNKNOWN)
    monkeypatch.setattr(Watch, "sees", sees)
    assert order_of(write("0-local.0-aa"), sweep).is_held == sees
