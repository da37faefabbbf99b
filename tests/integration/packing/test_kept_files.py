"""A sweep that runs removes what `keep` leaves out, and goes on as if it were there."""

import pandas as pd
import pytest
from drivers import LAUNCHER
from sweep_journals import attempts_in

# Saves a checkpoint and a large file. It resumes from the checkpoint, and says so.
TRIAL = """
import pathlib, sys
folder, x, checkpoint = pathlib.Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
(folder / "large.bin").write_bytes(b"0" * 100_000)
(folder / "last.pt").write_text("state")
print("resumed" if checkpoint else "began", "loss", x, "other", -x)
"""


def test_a_sweep_keeps_its_best_trials_and_can_read_the_outputs_of_all_again(project):
    (project.folder / "trial.py").write_text(TRIAL)
    sweep = {
        "command": "python trial.py {trial_dir} {x}",
        "checkpoint": "*.pt",
        "resume": "{resume_from}",
        "grid": {"x": [4, 1, 3, 2, 5]},
        "metrics": {"pattern": "loss (?P<loss>{number})"},
        "keep": "best 2",
        "slots": {"cpus": 2},
    }

    def run():
        project.write({"sweeps": {"s": sweep}})
        project.run(*project.script("sweep", "--sweep", "s"))
        trials = pd.read_csv(folder / "trials.csv").set_index("x")
        files = {
            x: sorted(path.name for path in (folder / "trials" / name).iterdir()) for x, name in trials.trial.items()
        }
        return trials, files

    folder = project.results / "sweeps/s"
    trials, files = run()
    whole, reduced = ["large.bin", "last.pt", "output-1.log"], ["output-1.log"]
    assert files == {4: reduced, 1: whole, 3: reduced, 2: whole, 5: reduced}
    assert f"Its files: {folder}/trials/{trials.trial[1]}/last.pt" in (folder / "best.yaml").read_text()
    assert not list((folder / "trials").glob(".*.lock"))

    sweep["metrics"] = {"pattern": "other (?P<gain>{number})"}
    trials, files = run()
    assert trials["gain"].to_dict() == {x: -x for x in (4, 1, 3, 2, 5)}
    assert len(attempts_in(folder)) == 5, "nothing ran again"
    assert files == {4: reduced, 1: whole, 3: reduced, 2: whole, 5: reduced}, "gain is highest for the same two"


# Writes events for TensorBoard, and nothing else.
EVENTS = """
import pathlib, sys
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
folder, x = pathlib.Path(sys.argv[1]), float(sys.argv[2])
writer = EventFileWriter(str(folder / "runs/now"))
for epoch in (1, 2):
    value = Summary.Value(tag="val/loss", simple_value=x / epoch)
    writer.add_event(Event(step=epoch, wall_time=epoch, summary=Summary(value=[value])))
writer.close()
(folder / "runs/large.bin").write_bytes(b"0" * 100_000)
"""


def test_event_files_are_metrics_and_stay(project):
    (project.folder / "trial.py").write_text(EVENTS)
    sweep = {"command": "python trial.py {trial_dir} {x}", "grid": {"x": [4, 1]}, "keep": "metrics"}
    sweep |= {"metrics": {"file": "runs/**"}, "slots": {"gpus_per_node": 0}}
    project.write({"sweeps": {"s": sweep}})
    project.run(*project.script("sweep", "--sweep", "s"))
    folder = project.results / "sweeps/s"
    assert pd.read_csv(folder / "trials.csv").set_index("x")["val/loss"].to_dict() == {4: 2, 1: 0.5}
    assert len(pd.read_csv(folder / "epochs.csv")) == 4
    left = [path.name.split(".")[0] for path in folder.glob("trials/*/**/*") if path.is_file()]
    assert sorted(left) == ["events", "events", "output-1", "output-1"]


# Each trial waits until a file of the third one before it is gone.
WAITING = """
import pathlib, sys, time
folder, order = pathlib.Path(sys.argv[1]), pathlib.Path("order.txt")
before = order.read_text().split() if order.exists() else []
order.write_text(" ".join([*before, str(folder)]))
(folder / "large.bin").touch()
began = time.monotonic()
while len(before) > 2 and pathlib.Path(before[-3], "large.bin").exists():
    time.sleep(0.05)
    if time.monotonic() > began + 100:
        sys.exit("the file is still there")
time.sleep(0.4)
"""


@pytest.mark.slow
def test_files_are_removed_while_the_sweep_runs(project):
    (project.folder / "trial.py").write_text(WAITING)
    without_pause = "from trainyard.results import retention\nretention.PASS_SECONDS = 0.0\nlogging.basicConfig("
    (project.folder / "launcher.py").write_text(LAUNCHER.replace("logging.basicConfig(", without_pause))
    slots = {"gpus_per_node": 0}
    sweep = {"command": "python trial.py {trial_dir} {n}", "grid": {"n": [1, 2, 3, 4, 5, 6]}, "keep": "metrics"}
    project.write({"sweeps": {"s": {**sweep, "slots": slots, "retries": 0}}})
    project.run("python", "launcher.py", "0")
    assert {each.outcome for each in attempts_in(project.results / "sweeps/s")} == {"finished"}
