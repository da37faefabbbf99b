"""Programs that end with exit code 0 before they are `complete`, in sweeps and in scaling studies."""

import json
import os
import signal

import pytest
from project import Project
from sweep_journals import attempts_in, session_of
from trainyard.config.load import check_config
from trainyard.config.scaling import ScriptScaling
from trainyard.config.trial_status import TrialStatus
from trainyard.config.trials import result_digest
from trainyard.config.user_programs import INCOMPLETE, Complete, Metrics
from trainyard.packing.saved_outputs import read_outputs, record_completed
from trainyard.planning import attempts
from trainyard.planning.attempts import ENDLESS, STALLED, Piece, why_given_up
from trainyard.planning.journal import Ended, Started
from trainyard.planning.plan import plan_sweep
from trainyard.programs.metrics import (
    MetricsCollector,
    ParsedOutput,
    join_outputs,
    parse_ended_outputs,
    parse_saved_output,
)
from trainyard.programs.runner import OUT_OF_TIME
from trainyard.programs.trial_messages import TrialEnded
from trainyard.results.retention import reduced_folders
from trainyard.scaling import user_script
from trainyard.scaling.launch_records import Launches
from trainyard.scaling.user_script import UserScript
from trainyard.utils.errors import ContinuedError, UserError

# As Megatron with `--exit-duration-in-mins`: ends after some iterations with exit code 0.
PIECES = """
import json, pathlib, sys
folder, way, pieces = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
state = folder / "latest.json"
first = json.loads(state.read_text()) + 1 if state.exists() and way != "stuck" else 1
last = min(7, first + pieces - 1)
for iteration in range(first, last + 1):
    print(f" iteration {iteration:8d}/       7 | lm loss: {1 / iteration:.6E} |", flush=True)
    state.write_text(json.dumps(iteration))
if last == 7:
    (folder / "done.json").touch()
    print("training complete")
"""
METRICS = {"pattern": r"iteration +(?P<epoch>\d+)/.*lm loss: (?P<lm_loss>{number})"}
WAYS = {"epoch": {"epoch": 7}, "line": {"line": "^training complete$"}, "file": {"file": "done.json"}}


def sweep_of(complete, **options):
    command = "python3 pieces.py {trial_dir} {way} {pieces}"
    args = {"args": {"way": "goes-on", "pieces": 3}, "metrics": METRICS, "checkpoint": "latest.json"}
    return {"command": command, **args, "complete": complete, "retries": 0, "slots": {"cpus": 2}} | options


@pytest.mark.slow
def test_a_program_in_pieces_goes_on_until_it_is_complete_and_uses_up_no_retry(tmp_path):
    project = Project(tmp_path)
    (tmp_path / "pieces.py").write_text(PIECES)
    stuck = {"way": "stuck"}
    sweeps = {name: sweep_of(way) for name, way in WAYS.items()} | {
        "stuck": sweep_of(WAYS["epoch"], args=stuck | {"pieces": 3})
    }
    project.write({"sweeps": sweeps})
    for name in WAYS:
        output = project.run(*project.script("sweep", "--sweep", name)).stdout
        tries = attempts_in(project.results / "sweeps" / name)
        assert [each.outcome for each in tries] == ["interrupted", "interrupted", "finished"], name
        assert "1 trial finished, 0 failed" in output
        epochs = (project.results / "sweeps" / name / "epochs.csv").read_text().splitlines()
        assert [line.split(",")[1] for line in epochs[1:]] == [str(epoch) for epoch in range(1, 8)], "once each"
    project.run(*project.script("sweep", "--sweep", "stuck"), check=False)
    tries = attempts_in(project.results / "sweeps/stuck")
    assert [each.outcome for each in tries] == ["interrupted", "interrupted", "failed"]
    assert tries[-1].error.startswith(
        "it ended with exit code 0 before it was complete: its last epoch is 3, and `complete` says 7; two attempts"
    )


# Saves its last checkpoint again at each end, and reports no epoch; `with-pid`, with other content each time.
SAVES_AGAIN = """
import json, os, pathlib, sys
folder, way = pathlib.Path(sys.argv[1]), sys.argv[2]
state = folder / "latest.json"
done = json.loads(state.read_text())[0] if state.exists() else 0
state.write_text(json.dumps([min(4, done + 1), os.getpid() if way == "with-pid" else 0]))
print("training done" if done == 4 else "ended early")
"""


@pytest.mark.parametrize(
    ("way", "line", "count", "why"),
    [
        ("goes-on", "training done", 5, None),
        ("goes-on", "training complete", 6, "without epochs saved no other checkpoint"),
        ("with-pid", "training complete", 3, "attempts in a row have reported no epoch"),
    ],
)
def test_without_epochs_a_checkpoint_that_is_only_saved_again_is_no_progress(
    tmp_path, monkeypatch, handlers, way, line, count, why
):
    (tmp_path / "again.py").write_text(SAVES_AGAIN)
    options = {"script": "again.py", "checkpoint": "latest.json", "scales": ["1x1"], "args": {}}
    study = ScriptScaling.model_validate(options | {"complete": {"line": line}})
    out = tmp_path / "1x1/out" / result_digest(study, "1x1", "no dataset")
    command = ["python3", str(tmp_path / "again.py"), str(out), way]
    monkeypatch.setattr(user_script, "script_command", lambda *_, **__: command)
    if way == "with-pid":
        monkeypatch.setattr(attempts, "MOST_PIECES", count)
    script = UserScript(study, "1x1", tmp_path, tmp_path)
    if why:
        with pytest.raises(UserError, match=why):
            script.run()
    else:
        script.run()
    assert len(script._launches.earlier_outputs) + 1 == count


@pytest.mark.parametrize(
    ("epochs", "saves", "error", "said"),
    [
        ([1, 2, None, 3], True, ContinuedError, "continues"),
        ([None], False, UserError, "it has saved no checkpoint"),
        ([3, 3], True, ContinuedError, "continues"),
        ([3, 3, 3], True, UserError, "two attempts in a row"),
    ],
)
def test_a_script_that_is_longer_than_the_walltime_goes_on_if_it_got_further(
    tmp_path, monkeypatch, handlers, epochs, saves, error, said
):
    options = {"script": "long.py", "checkpoint": "*.json", "scales": ["1x1"], "args": {}}
    script = UserScript(ScriptScaling.model_validate(options), "1x1", tmp_path, tmp_path)
    for number, epoch in enumerate(epochs):

        def end_at_the_deadline(*_, number=number, epoch=epoch, **__):
            if saves:
                (script._out / f"{number}.json").write_text("state")
            if epoch:
                script._launches.add({"epoch": epoch})
            return TrialEnded(status=TrialStatus.INTERRUPTED, error=OUT_OF_TIME)

        monkeypatch.setattr(script, "_monitor", end_at_the_deadline)
        with pytest.raises(UserError, match="before the end of the walltime") as raised:
            script.run()
    assert raised.type is error
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        ([(3, False), (3, True), (2, True)], STALLED),
        ([(3, False), (None, True), (None, True), (4, False)], ""),
        ([(None, False), (None, True), (None, False)], ""),
        ([(None, False), (None, False)], STALLED),
        ([(0, False), (0, False), (1, False)], ""),
        ([(1, False), *[(None, True)] * 19], ""),
        ([(1, False), *[(None, True)] * 20], ENDLESS),
    ],
)
def test_a_later_epoch_or_without_epochs_another_checkpoint_is_progress(pieces, why):
    assert why_given_up([Piece(*each) for each in pieces]) == why


# Fails on a damaged checkpoint, as a program does that is killed while it saves.
FAILS_ON_DAMAGED = """
import json, pathlib, sys
folder, resume = pathlib.Path(sys.argv[1]), sys.argv[2:]
epoch = json.loads(pathlib.Path(resume[0]).read_text()) if resume else 0
print(f"from {epoch}", file=open(folder / "starts", "a"))
(folder / f"{epoch + 1}.json").write_text(json.dumps(epoch + 1))
print(f"iteration {epoch + 1}/2 | lm loss: 0.5")
sys.exit(0 if (folder / "healthy").exists() else 1)
"""


@pytest.mark.parametrize(("damaged", "starts"), [(["3"], "from 2\n"), (["3", "2"], "from 0\n"), ([], "from 3\n")])
def test_a_scale_that_fails_on_a_damaged_checkpoint_goes_on_from_the_one_before(
    tmp_path, monkeypatch, handlers, damaged, starts
):
    (tmp_path / "fails.py").write_text(FAILS_ON_DAMAGED)
    options = {"script": "fails.py", "checkpoint": "?.json", "scales": ["1x1"], "metrics": METRICS, "args": {}}
    study = ScriptScaling.model_validate(options)
    out = tmp_path / "1x1/out" / result_digest(study, "1x1", "no dataset")
    out.mkdir(parents=True)
    for name in "123":
        (out / f"{name}.json").write_text("" if name == "1" else "{" if name in damaged else name)
    script = UserScript(study, "1x1", tmp_path, tmp_path)

    def command(self, checkpoint, *_):
        return ["python3", str(tmp_path / "fails.py"), str(out), *([str(checkpoint)] if checkpoint else [])]

    monkeypatch.setattr(UserScript, "_command", command)
    if damaged:
        (out / "healthy").touch()
        script.run()
    else:
        with pytest.raises(UserError, match="the script failed: exit code 1"):
            script.run()
    assert (out / "starts").read_text() == starts, "an error after a row of metrics is not the checkpoint's"


@pytest.mark.parametrize("name", ["done.json", ".done", "final/weights.bin"])
@pytest.mark.parametrize("resumes", [True, False])
@pytest.mark.parametrize(
    ("writes", "is_complete"), [(["model.pt"], False), ([], True), (["DONE"], True), (["model.pt", "DONE"], True)]
)
def test_a_file_of_an_earlier_attempt_completes_a_program_only_if_nothing_was_left_to_do(
    tmp_path, name, resumes, writes, is_complete
):
    done, complete = tmp_path / name, Complete(file=name)
    done.parent.mkdir(exist_ok=True)
    done.write_text("of an earlier attempt")
    os.utime(done, (1000, 1000))
    collector = MetricsCollector(None, tmp_path, complete=complete, resumes=resumes)
    for each in writes:
        (done if each == "DONE" else tmp_path / each).write_text("new")
    collector.new_rows(final=True)
    assert (collector.incomplete == "") == is_complete
    (tmp_path / "output-2.log").touch()
    parsed = parse_saved_output(
        None, tmp_path, tmp_path / "output-2.log", complete=complete, seconds=1.0, resumed=resumes, began=2000.0
    )
    assert parsed.incomplete == collector.incomplete, "it is judged the same later"


def test_a_program_that_counts_epochs_from_0_is_told_its_last_one(tmp_path):
    output = tmp_path / "output-1.log"
    output.write_text("".join(f"iteration {epoch}/10 | lm loss: 0.5\n" for epoch in range(10)))
    (tmp_path / "output-2.log").touch()
    outputs = [tmp_path / "output-2.log", output]
    ended = parse_ended_outputs(Metrics(**METRICS), tmp_path, outputs, complete=Complete(epoch=10))
    parsed = join_outputs(ParsedOutput(incomplete="it has reported no epoch", had_nothing_to_do=True), ended)
    assert parsed.incomplete.endswith(
        "its last epoch is 9, and `complete` says 10; if it counts from 0, write {epoch: 9}"
    )


@pytest.mark.slow
def test_a_trial_that_only_saves_its_checkpoint_again_fails(tmp_path):
    project = Project(tmp_path)
    (tmp_path / "again.py").write_text(SAVES_AGAIN)
    options = {"command": "python3 again.py {trial_dir} {way}", "args": {"way": "goes-on"}, "metrics": None}
    project.write({"sweeps": {"s": sweep_of({"line": "training complete"}, **options)}})
    project.run(*project.script("sweep", "--sweep", "s"), check=False)
    tries = attempts_in(project.results / "sweeps/s")
    assert [each.outcome for each in tries] == ["interrupted"] * 5 + ["failed"]


def state_with(results, complete, **options):
    config = check_config({"sweeps": {"s": sweep_of(complete, **options)}})
    return plan_sweep(config, "s", results).state


def ended(results, output, *, complete=None, recorded=None, **end):
    """A trial with an attempt that ended so and left this output; returns the trial and its folder."""
    state = state_with(results, complete)
    (trial,) = state.trials
    with session_of(results / "sweeps/s") as journal:
        journal.record(Started(trial=trial, attempt=1))
        journal.record(
            Ended(
                trial=trial,
                attempt=1,
                metrics_digest=state.metrics_digest,
                **end | {"status": TrialStatus(end["status"])},
            )
        )
    log = results / "sweeps/s/trials" / trial / "output-1.log"
    log.parent.mkdir(parents=True)
    log.write_text(output)
    if recorded:
        log.with_suffix(".ended").write_text(json.dumps({"bytes": len(output), "seconds": 7.0}))
    return trial, log.parent


ITERATIONS = "".join(f"iteration {number}/7 | lm loss: {1 / number}\n" for number in range(1, 5))
FINISHED = {"status": "finished", "metrics": {"lm_loss": 0.25}, "seconds": 7.0, "exit_code": 0}


@pytest.mark.parametrize(
    ("before", "end", "now", "status"),
    [
        (None, FINISHED, {"epoch": 7}, "interrupted"),
        (None, FINISHED, {"epoch": 4}, "finished"),
        (None, FINISHED, {"line": "iteration 4/"}, "finished"),
        (None, FINISHED, {"file": "done.json"}, "interrupted"),
        (None, FINISHED | {"status": "stopped", "why": "others were better"}, {"epoch": 7}, "stopped"),
        ({"epoch": 7}, {"status": "interrupted", "error": INCOMPLETE}, None, "finished"),
        ({"line": "compleet"}, {"status": "failed", "error": INCOMPLETE}, {"epoch": 4}, "finished"),
        ({"epoch": 7}, {"status": "interrupted", "error": "it was interrupted"}, {"epoch": 4}, "interrupted"),
    ],
)  # fmt: skip
def test_another_complete_judges_kept_outputs_again(tmp_path, before, end, now, status):
    trial, _ = ended(tmp_path, ITERATIONS, complete=before, **end)
    with session_of(tmp_path / "sweeps/s") as journal:
        read_outputs(journal, state_with(tmp_path, now))
    state = state_with(tmp_path, now)
    assert state.record(trial).status == status
    assert (trial in state.unfinished) == (status != "finished"), "what was stopped has no rule any more"


@pytest.mark.parametrize(("complete", "count"), [({"epoch": 7}, 0), ({"epoch": 4}, 1)])
def test_a_program_that_was_not_complete_while_its_driver_was_killed_goes_on(tmp_path, complete, count):
    ended(tmp_path, ITERATIONS, complete=complete, recorded=True, status="interrupted")
    state = state_with(tmp_path, complete)
    with session_of(tmp_path / "sweeps/s") as journal:
        assert len(record_completed(journal, state, state.unfinished)) == count


def test_the_file_that_makes_a_trial_complete_is_kept(tmp_path):
    trial, folder = ended(tmp_path, ITERATIONS, complete=WAYS["file"], **FINISHED)
    (folder / "done.json").touch()
    state = state_with(tmp_path, WAYS["file"])
    assert reduced_folders(state, "metrics")[trial] == {folder: [folder / "done.json"]}


def test_a_script_in_pieces_is_launched_until_it_is_complete(tmp_path, monkeypatch, handlers):
    (tmp_path / "pieces.py").write_text(PIECES)
    options = {"script": "pieces.py", "checkpoint": "latest.json", "scales": ["1x1"], "metrics": METRICS}
    options["setup"] = f"echo prepared >> {tmp_path}/prepared"
    for way, pieces in (("goes-on", 3), ("stuck", 3)):
        study = ScriptScaling.model_validate(
            options | {"complete": {"epoch": 7}, "args": {}, "retrain": pieces + (way == "stuck")}
        )
        out = tmp_path / "1x1/out" / result_digest(study, "1x1", "no dataset")
        line = ["python3", str(tmp_path / "pieces.py"), str(out), way, str(pieces)]
        monkeypatch.setattr(user_script, "script_command", lambda *_, line=line, **__: line)
        script = UserScript(study, "1x1", tmp_path, tmp_path)
        if way == "stuck":
            with pytest.raises(UserError, match="its last epoch is 3, and `complete` says 7; two attempts in a row"):
                script.run()
            continue
        script.run()
        assert (tmp_path / "prepared").read_text() == "prepared\n", "once per job"
        history = (tmp_path / "1x1/history.csv").read_text().splitlines()
        assert len(history) == 1 + 7, "each epoch once"
        assert script.has_ended
        other = ScriptScaling.model_validate({**study.model_dump(exclude_unset=True), "complete": {"line": "never"}})
        assert not UserScript(other, "1x1", tmp_path, tmp_path).has_ended


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_between_two_launches_of_a_script_starts_no_other(tmp_path, monkeypatch, handlers, number):
    monkeypatch.setattr(user_script, "script_command", lambda *_, **__: ["true"])
    monkeypatch.setattr(Launches, "last_rows", lambda _: os.kill(os.getpid(), number) or [{"epoch": 1, "lm_loss": 1.0}])
    options = {"script": "pieces.py", "scales": ["1x1"], "metrics": METRICS, "complete": {"epoch": 7}, "args": {}}
    script = UserScript(ScriptScaling.model_validate(options), "1x1", tmp_path, tmp_path)
    with pytest.raises(UserError, match="ended by a signal: the same command continues"):
        script.run()


@pytest.mark.parametrize(
    ("complete", "metrics", "error"),
    [
        ({}, METRICS, "give one of epoch, line and file"),
        ({"epoch": 3, "line": "x"}, METRICS, "give one of epoch, line and file"),
        ({"line": "("}, METRICS, "( is not a regular expression"),
        ({"file": "/tmp/done"}, METRICS, "/tmp/done would be shared by all trials"),
        ({"file": "{trial_dir}/done"}, METRICS, "nothing in braces is replaced"),
        ({"epoch": 3}, None, "epoch needs `metrics` that find the epoch"),
        ({"epoch": 3}, {"pattern": "a=(?P<a>{number})"}, "epoch needs `metrics` that find the epoch"),
    ],
)
def test_what_cannot_say_when_a_program_is_complete_is_refused(complete, metrics, error):
    with pytest.raises(UserError) as refused:
        check_config({"sweeps": {"s": sweep_of(complete, metrics=metrics)}})
    assert error in str(refused.value)
