"""The effect check on small programs: flags that are read, and flags that are not."""

import re

import pytest

# Gradient descent, which `amp` does not change, though it is printed.
PROGRAM = """
import argparse, os, pathlib, random, time

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--amp", action="store_true")
parser.add_argument("--epochs", type=int, default=3)
options = parser.parse_args()
print(options, os.getpid(), time.time())
(pathlib.Path("traces") / f"{os.getpid()}-{options.amp}").touch()
noise, w = random.Random(0), 10.0
for epoch in range(1, options.epochs + 1):
    w -= options.lr * (2 * (w - 3) + noise.gauss(0, 1))
    print(f"epoch {epoch} loss {(w - 3) ** 2:.6f} after {time.time():.2f} s", flush=True)
"""
# Without a seed: what it prints differs from run to run. It reads neither `amp` nor `seed`.
UNSEEDED = """
import argparse, random

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--amp", action="store_true")
parser.add_argument("--seed", type=int)
options = parser.parse_args()
for epoch in range(1, 6):
    print(f"epoch {epoch} loss {random.gauss(1, 0.1) * options.lr:.6f}", flush=True)
"""
FUNCTION = """
def run(config, context):
    for epoch in range(1, 5):
        context.report(epoch=epoch, loss=1 / (epoch + 0.7317 * config["width"]))
"""
METRICS = {"pattern": r"epoch (?P<epoch>\d+) loss (?P<loss>{number})"}


@pytest.fixture
def effects(project):
    """Runs the effect check; returns verdict and message by sweep and key, and the exit code."""

    def run(sweeps, *options):
        project.write({"sweeps": sweeps})
        done = project.run(*project.script("check", "--effect", *options), check=False)
        print(done.stdout, done.stderr)
        found = {name: {} for name in sweeps}
        pattern = r"^sweeps\.(\S+) +(ok|warning|FAILS|unknown) +`(\S+)` (.*(?:\n {10}.*)*)"
        for sweep, verdict, key, text in re.findall(pattern, done.stdout, re.M):
            found[sweep][key] = verdict, " ".join(text.split())
        return found, done.returncode

    (project.folder / "train.py").write_text(PROGRAM)
    (project.folder / "unseeded.py").write_text(UNSEEDED)
    (project.folder / "mine.py").write_text(FUNCTION)
    (project.folder / "traces").mkdir()
    return run


@pytest.mark.slow
@pytest.mark.parametrize("metrics", [{"metrics": METRICS}, {}])
def test_a_flag_that_is_parsed_and_not_read_fails_and_leaves_no_results(effects, project, metrics):
    command = {"command": "python train.py {args}", **metrics}
    found, code = effects({"own": {**command, "grid": {"lr": [0.01, 0.02], "amp": [True, False]}}})
    (verdict, message), (other_verdict, other_message) = found["own"]["lr"], found["own"]["amp"]
    assert verdict == "ok"
    assert re.search(r"changes results \(\w+ \S+ -> \S+ at \w+ 1\)", message)
    assert other_verdict == "FAILS"
    assert "has no effect: true and false give the same" in other_message
    assert code == 1
    assert len(list((project.folder / "traces").iterdir())) == 4
    assert not list(project.folder.glob("results/sweeps/*"))


@pytest.mark.slow
def test_a_program_that_sets_no_seed_is_given_one(effects):
    grid = {"lr": [0.01, 0.02], "amp": [True, False], "seed": [1, 2]}
    found, code = effects({"own": {"command": "python unseeded.py {args}", "metrics": METRICS, "grid": grid}})
    assert {key: verdict for key, (verdict, _) in found["own"].items()} == {"lr": "ok", "amp": "FAILS", "seed": "FAILS"}
    assert code == 1


@pytest.mark.slow
def test_a_program_that_takes_long_is_ended(effects):
    sweep = {
        "command": "python train.py {args}; sleep 3600",
        "args": {"lr": 0.01, "epochs": 6},
        "grid": {"amp": [True, False]},
    }
    found, code = effects({"own": {**sweep, "metrics": METRICS}, "other": sweep}, "0.5")
    assert (found["own"]["amp"][0], found["other"]["amp"][0], code) == ("FAILS", "unknown", 1)


@pytest.mark.slow
def test_functions_are_tried_too(effects):
    found, code = effects({"own": {"function": "mine:run", "grid": {"width": [1, 2], "depth": [1, 2]}}})
    assert (found["own"]["width"][0], found["own"]["depth"][0], code) == ("ok", "FAILS", 1)
