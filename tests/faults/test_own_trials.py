"""Users' own programs, searches and early stops survive what kills a sweep."""

import pandas as pd
import psutil
from trainyard.journal import attempts, read_events
from waiting import wait_until
from yard import Yard

# Each trial takes a moment, so that a kill finds one running.
FUNCTION = """
import time
def run(config, context):
    for epoch in range(1, 4):
        time.sleep(0.1)
        context.report(val_accuracy=(1 - (config["x"] - 0.3) ** 2) * (1 - 0.5 ** epoch))
"""
SEARCH = {
    "function": "mine:run",
    "search": {"method": "tpe", "trials": 14, "values": {"x": {"low": 0, "high": 1}, "kind": ["a", "b"]}},
    "stop": {"method": "asha", "epochs": 3},
}
# A program that counts to sixty, and goes on from where its file says that it was.
COUNTING = """
import sys, time
path, start = sys.argv[1], int(open(sys.argv[2]).read()) if sys.argv[2:] else 0
for step in range(start + 1, 61):
    time.sleep(0.1)
    open(path, "w").write(str(step))
    print("step", step, "score", step / 60, flush=True)
"""


def events_of(yard, *kinds):
    return [event for event in read_events(yard.results / "sweeps/s/journal.jsonl") if event["event"] in kinds]


def drawn(yard):
    return [event["values"] for event in events_of(yard, "suggested")]


def test_a_killed_search_goes_on_with_the_suggestions_of_one_that_was_not(tmp_path_factory):
    whole, killed = (Yard(tmp_path_factory.mktemp("search")) for _ in range(2))
    for yard in (whole, killed):
        (yard.folder / "mine.py").write_text(FUNCTION)
        yard.write({"sweeps": {"s": SEARCH}})
    whole.run(*whole.script("sweep", "--sweep", "s"))
    started = killed.start(*killed.script("sweep", "--sweep", "s"))
    wait_until(lambda: len(drawn(killed)) == 6, timeout_seconds=60, what="the sixth trial")
    killed.kill_session(started)
    said = killed.run(*killed.script("sweep", "--sweep", "s")).stdout
    assert drawn(killed) == drawn(whole)
    ends = [[(each["trial"], each["event"]) for each in events_of(yard, "finished", "stopped")]
            for yard in (whole, killed)]  # fmt: skip
    assert ends[0] == ends[1], "the same ones were stopped early, too"
    assert {event for _, event in ends[0]} == {"finished", "stopped"}
    assert "trials finished" in said
    again = next(attempt.trial for attempt in attempts(events_of(whole, "started", "finished")) if attempt.metrics)
    whole.write({"sweeps": {"s": {**SEARCH, "retrain": {again: 1}}}})
    whole.run(*whole.script("sweep", "--sweep", "s"))
    assert drawn(whole) == drawn(killed), "a trial of the search was retrained, and the search is the same"
    assert [attempt.trial for attempt in attempts(events_of(whole, "started")) if attempt.generation] == [again]


def test_a_function_that_never_ends_is_ended_with_its_process(yard):
    code = "import time\ndef run(config, context):\n    time.sleep(config['lasts'])\n"
    (yard.folder / "mine.py").write_text(code)
    trials = [{"lasts": 600}, {"lasts": 0}]
    yard.write({"sweeps": {"s": {"function": "mine:run", "trials": trials, "timeout_minutes": 0.03, "retries": 0}}})
    said = yard.run(*yard.script("sweep", "--sweep", "s")).stdout
    assert "gave up): it took longer than its timeout_minutes, 0.03" in said
    assert [attempt.outcome for attempt in attempts(events_of(yard, "started", "failed", "finished"))] == [
        "failed", "finished",
    ]  # fmt: skip


def test_a_killed_program_leaves_nothing_and_goes_on_from_what_it_has_kept(yard):
    (yard.folder / "count.py").write_text(COUNTING)
    command = "python count.py {trial_dir}/at.txt"
    sweep = {"command": command, "checkpoint": "at.txt", "resume": "{resume_from}"}
    yard.write({"sweeps": {"s": {**sweep, "metrics": {"pattern": r"step (?P<epoch>\d+) score (?P<score>\S+)"}}}})
    started = yard.start(*yard.script("sweep", "--sweep", "s"))
    wait_until(lambda: len(events_of(yard, "epoch")) == 4, timeout_seconds=60, what="the fourth step")
    driver = psutil.Process(started.pid)
    driver.kill()
    started.wait()

    def counting():
        return [
            process for process in psutil.process_iter(["cmdline"]) if "count.py" in (process.info["cmdline"] or [])
        ]

    wait_until(lambda: not counting(), timeout_seconds=10, what="the program has ended with the driver")
    yard.run(*yard.script("sweep", "--sweep", "s"))
    first, second = attempts(read_events(yard.results / "sweeps/s/journal.jsonl"))
    assert first.outcome == "interrupted"
    assert (second.outcome, second.metrics) == ("finished", {"score": 1.0})
    kept = second.epochs[0]["epoch"]
    assert 5 <= kept < 60, "what was done is not done again"
    assert [row["epoch"] for row in second.epochs] == list(range(kept, 61))


NUMBERS = """
def run(config, context):
    context.report(score=config["score"])
    return {"size": 3}
"""


def test_a_trial_whose_metric_is_no_number_has_diverged_and_is_not_tried_again(yard):
    (yard.folder / "mine.py").write_text(NUMBERS)
    trials = [{"score": 0.5}, {"score": "nan"}, {"score": 0.25}]
    sweep = {"function": "mine:run", "trials": trials, "stop": {"method": "asha", "metric": "score", "grace": 9}}
    yard.write({"sweeps": {"s": sweep}})
    said = yard.run(*yard.script("sweep", "--sweep", "s")).stdout
    assert "DIVERGED, not tried again: score became NaN or infinite" in said
    assert "2 trials finished, 0 stopped early, 1 diverged, 0 failed" in said
    rows = pd.read_csv(yard.results / "sweeps/s/trials.csv")
    assert rows["status"].tolist() == ["finished", "diverged", "finished"]
    assert rows["attempts"].tolist() == [1, 1, 1]
    assert rows["size"].isna().tolist() == [False, True, False], "it takes part in no comparison"
    assert "0 of 3 trials pending" in yard.run(*yard.script("sweep", "--sweep", "s")).stdout
    status = yard.run(*yard.script("status")).stdout
    assert "diverged" in status


def test_a_search_for_a_metric_that_nobody_tells_ends_after_the_first_trial(yard):
    (yard.folder / "mine.py").write_text(NUMBERS)
    search = {"trials": 20, "metric": "accuracy", "values": {"score": {"low": 0, "high": 1}}}
    yard.write({"sweeps": {"s": {"function": "mine:run", "search": search}}})
    done = yard.run(*yard.script("sweep", "--sweep", "s"), check=False)
    assert done.returncode == 1
    assert "tells no accuracy, by which trials are compared; it tells score, size: let the function" in done.stdout
    assert len(events_of(yard, "finished")) == 1
    assert not (yard.results / "sweeps/s/trials.csv").exists()


def test_a_sweep_of_which_most_has_failed_is_an_error_that_names_the_commonest_cause(yard):
    code = "def run(config, context):\n    assert config['n'] < 2, 'too many'\n    return {'score': 1 / config['n']}\n"
    (yard.folder / "mine.py").write_text(code)
    sweep = {"function": "mine:run", "grid": {"n": [0, 1, 2, 3]}, "retries": 0}
    yard.write({"sweeps": {"s": sweep}})
    done = yard.run(*yard.script("sweep", "--sweep", "s"), check=False)
    assert done.returncode == 1
    assert (
        "3 of 4 trials failed for good, 2 of them with: AssertionError: too many. Results so far (1) are kept"
        in done.stdout
    )
    assert "run the same command" in done.stdout
    assert not (yard.results / "sweeps/s/trials.csv").exists()
    yard.write({"sweeps": {"s": {**sweep, "max_failed_fraction": 0.75}}})
    assert "1 trials finished, 3 failed" in yard.run(*yard.script("sweep", "--sweep", "s")).stdout
