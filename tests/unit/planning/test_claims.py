"""The log of claims decides who runs what, and the fold counts of each journal what the log says."""

import errno
import os

import pytest
from sweep_journals import record_attempt
from trainyard.config.sweep import CommandSweep, Slots
from trainyard.config.trial_status import TrialStatus
from trainyard.packing.session_watch import Life
from trainyard.packing.trial_claims import Standing, TrialClaims
from trainyard.planning.attempts import Fold
from trainyard.planning.claims import ClaimLog, GivenUp, Take
from trainyard.planning.history import History
from trainyard.planning.job_marks import RUN
from trainyard.planning.journal import (
    SESSIONS,
    Ended,
    Epoch,
    Journal,
    Left,
    Released,
    SessionStarted,
    Started,
    Suggested,
    encode,
)
from trainyard.planning.trial_space import TrialSpace
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
    given_up = GivenUp(is_gone=True, ends={"t1": 12.5})
    end = Ended(time=1.0, trial="t1", attempt=1, status=TrialStatus.FINISHED, metrics={"loss": 0.5})
    assert mine.append(A, take={"t1": 1, "t2": 1}, draws=[DRAWN])
    assert mine.append(A, ends=[end], given_up={C: given_up})
    first, second = other.read()
    assert (first.session, first.take, first.draws) == (A, {"t1": 1, "t2": 1}, (DRAWN,))
    assert [encode(each) for each in second.ends] == [encode(end)]
    assert second.given_up == {C: given_up}
    assert other.read() == [], "each is read once"
    assert (other.draws, other.sessions, other.given_up) == ([DRAWN], {A}, {C: (2, given_up)})
    assert (other.owners, list(other.ends)) == ({"t1": Take(1, A, 1), "t2": Take(1, A, 1)}, [("t1", 1)])
    assert claims_of(tmp_path) == ["00000001.json", "00000002.json"], "and no draft is left"


def test_who_has_not_read_an_entry_cannot_append_the_next_one(tmp_path):
    mine, other = ClaimLog(tmp_path), ClaimLog(tmp_path)
    assert mine.append(A, take={"t": 1})
    assert not other.append(B, take={"t": 1})
    assert other.entries == [], "what was lost was not read either"
    assert claims_of(tmp_path) == ["00000001.json"]
    other.read()
    assert other.owners["t"].session == A
    assert other.append(B, take={"u": 1})


def test_a_link_whose_answer_was_lost_has_succeeded(tmp_path, monkeypatch):
    """A network file system sends it again, and then the file exists."""
    link = os.link

    def link_twice(source, target):
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", link_twice)
    log = ClaimLog(tmp_path)
    assert log.append(A, take={"t": 1})
    assert [entry.take for entry in log.entries] == [{"t": 1}]


def test_an_entry_that_is_there_but_not_seen_yet_is_a_lost_race(tmp_path, monkeypatch):
    ClaimLog(tmp_path).append(A, take={"t": 1})
    log = ClaimLog(tmp_path)
    with monkeypatch.context() as stale:
        stale.setattr(ClaimLog, "_open", lambda *_: None)
        assert not log.append(B, take={"t": 1})
    assert [entry.session for entry in log.read()] == [A]


NEWER = b'{"n":1,"session":"a","token":"t","end":[],"take":{"t":1},"draw":[],"give_up":{"b":{"bytes":1}}}'


@pytest.mark.parametrize("content", [b"", b"\0" * 80, b"[]", b"{}", b'{"n":1,"sess', NEWER, b"null"])
def test_an_entry_that_cannot_be_read_is_an_error_with_its_file_and_a_remedy(tmp_path, content):
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims/00000001.json").write_bytes(content)
    with pytest.raises(UserError, match=r"claims/00000001\.json: .*remove this file") as caught:
        Fold(tmp_path).update()
    assert "\n" not in str(caught.value)
    (tmp_path / "claims/00000001.json").unlink()
    assert ClaimLog(tmp_path).append(A, take={"t": 1})


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_hard_links_is_an_error_with_advice(tmp_path, monkeypatch, number):
    def link(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(StorageError, match=r"no hard links.*--directory") as caught:
        ClaimLog(tmp_path).append(A, take={"t": 1})
    assert "\n" not in str(caught.value)
    assert claims_of(tmp_path) == []


def test_a_draft_that_a_killed_process_left_changes_nothing(tmp_path):
    log = ClaimLog(tmp_path)
    log.append(A, take={"t": 1})
    for name in (".0123456789abcdef.tmp", ".00000002.json.tmp"):
        (tmp_path / "claims" / name).write_bytes(b'{"n":2,"sess')
    assert log.append(A, take={"u": 1})
    assert [entry.take for entry in ClaimLog(tmp_path).read()] == [{"t": 1}, {"u": 1}]


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
            log.append(A, take={"t": 1})
    assert len(claims_of(tmp_path)) == 2, "an entry and its draft"
    again = ClaimLog(tmp_path)
    again.read()
    assert again.owners["t"].session == A
    assert again.append(B, take={"u": 1})
    assert [entry.take for entry in ClaimLog(tmp_path).read()] == [{"t": 1}, {"u": 1}]


def test_a_full_disk_claims_nothing_and_leaves_nothing(small_disk):
    log = ClaimLog(small_disk.folder)
    assert log.append(A, take={"t": 1})
    filler = small_disk.fill()
    with pytest.raises(StorageError, match="make room"):
        log.append(A, take={f"t{number}": 1 for number in range(1000)})
    assert claims_of(small_disk.folder) == ["00000001.json"]
    assert len(log.entries) == 1
    filler.unlink()
    assert log.append(A, take={"u": 1}), "with room again"


def test_the_folder_of_a_trial_is_new_after_a_takeover_from_a_process_that_may_still_write(tmp_path):
    log = ClaimLog(tmp_path)
    log.append(A, take={"silent": 1, "gone": 1})
    log.append(B, given_up={A: GivenUp(is_gone=False)})
    log.append(B, take={"silent": 2})
    assert log.takeovers == {"silent": 3}
    log.append(C, given_up={B: GivenUp(is_gone=True)})
    log.append(C, take={"silent": 3, "gone": 2})
    assert log.takeovers == {"silent": 3, "gone": 5}, "of A, whose end nobody has seen; B is gone: its folder goes on"


def end_of(trial, attempt, loss=1.0, **fields):
    metrics = {"loss": loss}
    return Ended(trial=trial, attempt=attempt, status=TrialStatus.FINISHED, seconds=1.0, metrics=metrics, **fields)


def test_the_first_end_of_the_attempt_for_which_a_trial_was_taken_last_counts(tmp_path):
    log = ClaimLog(tmp_path)
    log.append(A, take={"t": 1})
    log.append(B, take={"t": 2})
    log.append(A, ends=[end_of("t", 1)])
    assert log.ends == {}
    for loss in (0.5, 0.25):
        log.append(B, ends=[end_of("t", 2, loss)])
    log.append(C, take={"t": 3})
    log.append(C, ends=[end_of("t", 2, 0.125)])
    assert [(key, end.metrics) for key, end in log.ends.items()] == [(("t", 2), {"loss": 0.5})]


def test_who_takes_a_trial_after_it_was_given_up_is_not_given_up(tmp_path):
    log = ClaimLog(tmp_path)
    log.append(A, take={"t": 1, "u": 1})
    log.append(B, given_up={A: GivenUp()})
    assert A not in log.live
    log.append(A, take={"u": 2})
    assert (log.is_given_up(log.owners["t"]), log.is_given_up(log.owners["u"])) == (True, False)
    assert A in log.live


# ---- the fold


def test_the_end_of_an_attempt_does_not_count_once_others_have_taken_the_trial(tmp_path, write):
    """Its session was given up, and goes on."""
    log, zombie = ClaimLog(tmp_path), write(A)
    log.append(A, take={"t1": 1, "t2": 1})
    zombie.start("t1").finish("t1").start("t2")
    fold = Fold(tmp_path).update()
    assert outcomes(fold) == {("t1", 1): "finished", ("t2", 1): "running"}
    log.append(B, given_up={A: GivenUp()})
    assert outcomes(fold.update()) == {("t1", 1): "finished", ("t2", 1): "interrupted"}
    log.append(B, take={"t1": 2})
    zombie.finish("t2")
    for known in (fold.update(), Fold(tmp_path).update()):
        assert outcomes(known) == {("t1", 1): "interrupted", ("t2", 1): "finished"}
        assert known.attempts["t1", 1].metrics == {}
        assert [end.trial for end in known.uncommitted()] == ["t2"]


def test_an_end_counts_for_ever_once_an_entry_has_it_also_if_its_journal_is_lost(tmp_path, write):
    log, journal = ClaimLog(tmp_path), write(A)
    log.append(A, take={"t1": 1})
    content = journal.start("t1").path.read_bytes()
    journal.finish("t1", metrics={"loss": 0.25})
    fold = Fold(tmp_path)
    fold.commit(B)
    journal.path.write_bytes(content)
    log.read()
    log.append(C, take={"t1": 2})
    for known in (fold.update(), Fold(tmp_path).update()):
        (attempt,) = known.attempts.values()
        assert (attempt.outcome, attempt.metrics, attempt.seconds) == (TrialStatus.FINISHED, {"loss": 0.25}, 1.0)


@pytest.mark.parametrize("is_gone", [True, False])
def test_an_attempt_has_the_number_of_one_before_it_only_if_that_is_known_not_to_have_begun(tmp_path, write, is_gone):
    log, fold = ClaimLog(tmp_path), Fold(tmp_path)
    log.append(A, take={"begun": 1, "open": 1, "given back": 1})
    write(A).start("begun").record(Released(trial="given back", claim=1))
    log.append(B, given_up={A: GivenUp(is_gone, ends={"begun": 7.0})})
    fold.update()
    assert [fold.next_attempt(trial) for trial in ("new", "given back", "begun")] == [1, 1, 2]
    assert fold.next_attempt("open") == (1 if is_gone else 2)


def test_open_attempts_of_a_session_that_was_given_up_end_with_their_last_output(tmp_path, write):
    write(A).start("t1").start("t2").record(Epoch(trial="t2", attempt=1, metrics={"epoch": 1}))
    last = Fold(tmp_path).update().attempts["t2", 1].end
    log = ClaimLog(tmp_path)
    log.append(A, take={"t1": 1, "t2": 1})
    log.append(B, given_up={A: GivenUp(ends={"t1": last + 60})})
    first, second = Fold(tmp_path).update().attempts.values()
    assert (first.outcome, first.end) == (TrialStatus.INTERRUPTED, last + 60)
    assert (second.outcome, second.end) == (TrialStatus.INTERRUPTED, last)


@pytest.mark.parametrize(("dead", "other"), [(A, B), (B, A)])
@pytest.mark.parametrize("has_recorded", [True, False])
def test_what_another_session_has_recorded_as_the_end_of_an_attempt_counts(tmp_path, write, dead, other, has_recorded):
    """Its program had ended by itself, while its session was stopped or killed."""
    log, journal, fold = ClaimLog(tmp_path), write(dead), Fold(tmp_path)
    log.append(dead, take={"t1": 1})
    journal.start("t1")
    fold.update()
    if has_recorded:
        journal.record(Ended(trial="t1", attempt=1, status=TrialStatus.INTERRUPTED))
    log.append(other, given_up={dead: GivenUp(is_gone=True)})
    write(other).finish("t1", seconds=7.0)
    for known in (fold.update(), Fold(tmp_path).update()):
        (attempt,) = known.attempts.values()
        assert (attempt.outcome, attempt.seconds) == (TrialStatus.FINISHED, 7.0)


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
        state = History("s", sweep, "no dataset", tmp_path, fold)
        return TrialClaims(state, written._journal, Watch())

    return make


@pytest.fixture
def trials():
    return list(TrialSpace(SWEEP, "no dataset").trials)


def test_what_another_job_has_claimed_and_ended_since_is_not_claimed_again(write, order_of, trials):
    mine, other = order_of(write(A)), write(B)
    assert order_of(other).claim(trials[:2])
    other.start(trials[0]).finish(trials[0])
    assert not mine.claim(trials)
    taken, opened = mine.take_changes(set(trials))
    assert (taken, opened) == (set(trials[:2]), [])
    assert mine.claim(trials[2:])


def test_what_is_given_back_before_its_claim_is_seen_is_open_once_it_is(tmp_path, write, order_of, trials):
    mine, other = order_of(write(A)), write(B)
    theirs = order_of(other)
    assert theirs.claim(trials[:1])
    theirs.release(trials[0])
    hidden = (tmp_path / "claims").rename(tmp_path / "hidden")
    mine.refresh()
    hidden.rename(tmp_path / "claims")
    mine.refresh()
    taken, opened = mine.take_changes(set(trials))
    assert (taken, [task.trial for task in opened]) == ({trials[0]}, trials[:1])


def test_the_end_of_a_session_that_was_given_up_is_committed_in_place_of_taking_its_trial(write, order_of, trials):
    mine, dead = order_of(write(A)), write(B)
    assert order_of(dead).claim(trials[:1])
    dead.start(trials[0]).finish(trials[0])
    log = mine._fold.claims
    mine.refresh()
    assert log.append(A, given_up={B: GivenUp()})
    assert mine.claim(trials[1:2])
    assert list(log.ends) == [(trials[0], 1)]
    assert mine.standing(trials[0]) is Standing.DONE


def test_who_was_given_up_goes_on_with_what_nobody_has_taken(tmp_path, write, order_of, trials):
    journal = write(A)
    mine = order_of(journal)
    assert mine.claim(trials)
    for trial in trials[:2]:
        journal.start(trial, mine.start(trial))
    log = ClaimLog(tmp_path)
    log.read()
    log.append(B, given_up={A: GivenUp()})
    log.append(B, take={trials[0]: 2})
    mine.refresh()
    assert [mine.has_lost(trial, 1) for trial in trials] == [True, False, False]
    assert [mine.standing(trial) for trial in trials] == [Standing.TAKEN, Standing.TAKEN, Standing.FREE]
    assert mine.claim(trials[2:])


def test_a_failed_attempt_leaves_its_trial_to_whoever_takes_it_first(write, order_of, trials):
    journal, other = write(A), order_of(write(B))
    mine = order_of(journal)
    assert mine.claim(trials[:1])
    journal.start(trials[0], mine.start(trials[0]))
    other.refresh()
    assert other.standing(trials[0]) is Standing.TAKEN
    journal.finish(trials[0], status=TrialStatus.FAILED, error="x", retried=True)
    other.refresh()
    assert [task.trial for task in other.take_changes(set(trials[1:]))[1]] == trials[:1]
    assert mine.claim(trials[:1])
    assert mine.start(trials[0]) == 2
    assert not other.claim(trials[:1])


def test_what_has_failed_for_good_in_a_run_of_snakemake_is_not_claimed_by_its_later_jobs(tmp_path, trials, monkeypatch):
    """Also before they have recorded their start, when they decide whether there is work."""
    with Journal.of_new_session(tmp_path) as journal:
        journal.record(SessionStarted(run="this"))
        record_attempt(journal, trials[0], status=TrialStatus.FAILED, error="x", retried=False)
        journal.leave()
    fold = Fold(tmp_path).update()
    state = History("s", SWEEP, "no dataset", tmp_path, fold)
    for run, may_run in (("this", False), ("another", True)):
        monkeypatch.setenv(RUN, run)
        with Journal.of_new_session(tmp_path) as later:
            assert TrialClaims(state, later, Watch()).may_run(trials[0]) == may_run


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
