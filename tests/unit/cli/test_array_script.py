"""The script of a job array as a sweep: each trial does what a task of the array did, and importing does nothing."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from trainyard.checks.config_checks import check_use
from trainyard.cli.array_script import import_array_script, parse_array
from trainyard.config.load import check_config
from trainyard.config.placeholders import build_argv
from trainyard.config.trials import expand
from trainyard.utils.errors import UserError

# Programs that record with which arguments they run, and the option of srun.
STUB = """#!/bin/bash
printf '%s|' "$(basename "$0")" "$@" "HF_HOME=${HF_HOME-}" "GPU=${CUDA_VISIBLE_DEVICES-}" >> "$RECORD"
echo >> "$RECORD"
"""

# Lines of options in a file, an array in the script, variables of the job, strict mode.
SCRIPT = """
set -euo pipefail
source ~/.bashrc
module load cuda/12.1
export HF_HOME=$PWD/hf
NAMES=("sgd" "adam w" "lion")
PARAMS=$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" params.txt)
python train.py $PARAMS --name "${NAMES[$SLURM_ARRAY_TASK_ID]}" --threads $SLURM_CPUS_PER_TASK --ranks $SLURM_NTASKS
"""
FILES = {"params.txt": "--lr 0.1 --batch-size=32\n--lr 1e-3 --batch-size=64\n--lr -2\n", ".bashrc": ""}


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A folder with the files of the scripts, and programs that record how they are started."""
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "bin").mkdir()
    for name in ("python", "module"):
        (tmp_path / "bin" / name).write_text(STUB)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    for name in ("HF_HOME", "CUDA_VISIBLE_DEVICES", *(name for name in os.environ if name.startswith("SLURM_"))):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def write(body, *lines):
    header = "".join(f"#SBATCH {line}\n" for line in lines)
    Path("job.sbatch").write_text(f"#!/bin/bash\n{header}{body}")
    return Path("job.sbatch")


def array_of(count, first, last, step=1, *, name="job.sbatch"):
    return (
        f"SLURM_ARRAY_TASK_ID={{task}} SLURM_JOB_NAME={name} SLURM_ARRAY_TASK_COUNT={count} "
        f"SLURM_ARRAY_TASK_MIN={first} SLURM_ARRAY_TASK_MAX={last} SLURM_ARRAY_TASK_STEP={step}"
    )


def ran(commands):
    """What the programs record while the commands run, one line each."""
    record = Path("record.txt")
    record.unlink(missing_ok=True)
    path = f"{Path('bin').absolute()}:{os.environ['PATH']}"
    for command, own in commands:
        whole = {**os.environ, "PATH": path, "RECORD": str(record.absolute()), **own}
        subprocess.run(command, env=whole, check=True, capture_output=True)
    return sorted(record.read_text().splitlines())


def trials_of(found):
    return expand(check_config({"sweeps": {"s": found.sweep}}).sweeps["s"]).trials


def test_the_trials_do_what_the_tasks_of_the_array_did(work):
    script = write(SCRIPT, "--array=0-2%2", "--cpus-per-task=4", "--job-name=my job")
    of_task = {"SLURM_CPUS_PER_TASK": "4", "SLURM_NTASKS": "1"}
    tasks_ran = ran([(["bash", script], {**of_task, "SLURM_ARRAY_TASK_ID": str(task)}) for task in range(3)])
    found = import_array_script(script)
    assert found.sweep["grid"] == {"task": [0, 1, 2]}
    findings = check_use(check_config({"sweeps": {"s": found.sweep}}), work / "results")
    assert [each.name for each in findings if each.verdict == "warns"] == ["sweeps.s.metrics"]
    predefined = {"cpus": 4, "trial_dir": ".", "trial": "t"}
    trials = trials_of(found)
    assert ran([(build_argv(trial.spec.command, trial.spec.args, predefined), {}) for trial in trials]) == tasks_ran


def test_what_the_job_requested_becomes_slots_limits_and_notes(work):
    options = """-J 'deep: net'|-a 0-1%8|-c4|--gres=gpu:a100:2|-t 1-02:30|--mem-per-cpu=4G|-p gpu,long|--account=mine|\
--signal=B:USR1@90|--mail-user=me@example.org # mine|--exclusive"""
    body = "export CUDA_VISIBLE_DEVICES=0,1\nX=(1 2)\nsrun -n 1 python t.py ${X[$SLURM_ARRAY_TASK_ID]}\n"
    found = import_array_script(write(body, *options.split("|")))
    named = array_of(2, 0, 1, name="'deep: net'")
    assert found.sweep == {
        "command": f"{named} /bin/bash -o pipefail job.sbatch",
        "workdir": "keep",
        "grid": {"task": [0, 1]},
        "slots": {"jobs": 8, "gpus_per_node": 2, "gpus_per_trial": 2, "cpus_per_trial": 4},
        "timeout_minutes": 26 * 60 + 30,
        "stop_signal": "USR1",
        "grace_seconds": 90,
    }
    notes = "\n".join(found.notes)
    rest = "--mail-user=me@example.org --exclusive --account=mine --partition=gpu,long --mem-per-cpu=4096 --gres=gpu:"
    for expected in (f"not carried over: {rest}a100:2; what", "remove `srun` in job.sbatch"):
        assert expected in notes
    assert found.text(Path("job.sbatch")).startswith("# Imported from job.sbatch.\n# What to look at")
    assert "\n  deep-net:\n" in found.text(Path("job.sbatch"))


def test_lines_that_do_not_mention_the_task_are_named_for_setup(work):
    body = """set -e
module load cuda
export DATA=$TMPDIR/d  # the task is not here
tar xf /shared/data.tar \\
  -C $TMPDIR
LR=${LRS[$SLURM_ARRAY_TASK_ID]}
mkdir -p out/$LR
mkdir -p runs/$SLURM_ARRAY_JOB_ID
for file in a b; do
  cp $file $DATA
done
python train.py \\
  --lr $LR
echo done
"""
    (note,) = [note for note in import_array_script(write(body, "-a 0-1")).notes if "`setup`" in note]
    lines = "module load cuda; tar xf /shared/data.tar    -C $TMPDIR; cp $file $DATA"
    assert note.endswith(f"prepare for all trials: {lines}")


@pytest.mark.parametrize(
    ("options", "rest"),
    [
        (["--nodes=2", "--gres=gpu:2,shard:1"], ["--nodes=2 --gres=gpu:2,shard:1"]),
        (["--nodes=1", "--gres=gpu:2"], []),
        (["--gpus=a100:2"], ["--gpus=a100:2"]),
    ],
)
def test_what_became_no_slots_is_named(work, options, rest):
    body = "python train.py $SLURM_ARRAY_TASK_ID\n"
    found = import_array_script(write(body, "-a 0-1", "--cpus-per-gpu=4", *options))
    assert re.findall(r"not carried over: (.*);", "\n".join(found.notes)) == rest
    assert found.sweep["slots"]["gpus_per_node"] == 2
    assert found.sweep["slots"]["cpus_per_trial"] == 8


@pytest.mark.parametrize("time", ["UNLIMITED", "infinite"])
def test_a_job_without_a_time_limit_gives_trials_none(work, time):
    found = import_array_script(write("python train.py $SLURM_ARRAY_TASK_ID\n", "-a 0-1", f"--time={time}"))
    assert "timeout_minutes" not in found.sweep


def test_a_script_runs_in_the_folder_that_it_names(work):
    found = import_array_script(write("python train.py\n", "-a 0-1", "--chdir=runs"))
    assert found.sweep["command"] == (f"cd runs && {array_of(2, 0, 1)} /bin/bash -o pipefail {work}/job.sbatch")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (None, "has no line `#SBATCH --array=`"),
        ("1-", "'1-' is neither a task ID nor a"),
        ("a,2", "'a' is neither"),
        ("3-1", "--array 3-1: the range '3-1' has no task IDs"),
        ("0-3:0", "--array 0-3:0: the range '0-3:0' has no task IDs"),
    ],
)
def test_without_task_ids_there_is_one_clear_error(work, array, message):
    with pytest.raises(UserError, match=re.escape(message)):
        import_array_script(write("python train.py\n"), array)


def test_an_option_that_sbatch_refuses_is_one_clear_error(work):
    with pytest.raises(
        UserError, match=r"job\.sbatch: #SBATCH: argument -c/--cpus-per-task: invalid int value: 'four'"
    ):
        import_array_script(write("python train.py\n", "-a 0-1", "-c four"))


def test_task_ids_are_those_of_slurm():
    assert parse_array("0-15:4%2") == [0, 4, 8, 12]
    assert parse_array("1,3,5-7") == [1, 3, 5, 6, 7]
    assert parse_array("7") == [7]


@pytest.mark.parametrize(
    ("array", "expected"), [("0-15:4%2", (4, 0, 12, 4)), ("1,3,5-7", (5, 1, 7, 1)), ("7", (1, 7, 7, 1))]
)
def test_a_trial_knows_of_its_array_what_a_task_does(work, array, expected):
    found = import_array_script(write("python train.py\n"), array)
    assert found.sweep["command"].startswith(f"{array_of(*expected)} ")


@pytest.mark.parametrize(
    ("first", "command"),
    [
        ("#!/bin/bash -l", "/bin/bash -l -o pipefail"),
        ("#!/usr/bin/env bash", "/usr/bin/env bash -o pipefail"),
        ("#!/bin/bash -", "/bin/bash -o pipefail"),
        ("#! /bin/tcsh", "/bin/tcsh"),
        ("#!/bin/zsh", "/bin/zsh -o pipefail"),
        ("#!/usr/bin/env python", "/usr/bin/env python"),
        ("# a script", "bash -o pipefail"),
    ],
)
def test_a_script_runs_in_the_program_of_its_first_line(work, first, command):
    Path("job.sbatch").write_text(f"{first}\n#SBATCH --array=0-1\npython train.py\n")
    found = import_array_script(Path("job.sbatch"))
    assert found.sweep["command"] == f"{array_of(2, 0, 1)} {command} job.sbatch"


def test_options_after_the_first_command_are_read_no_more_than_by_sbatch(work):
    body = "\n # a comment\n#SBATCH -c 2\npython train.py\n#SBATCH --array=5-6\n#SBATCH -c 8\n"
    found = import_array_script(write(body, "--array=0-1"))
    assert found.sweep["grid"] == {"task": [0, 1]}
    assert found.sweep["slots"]["cpus_per_trial"] == 2


def test_a_training_that_fails_in_a_pipe_fails_the_trial(work):
    (work / "bin/python").write_text("#!/bin/bash\nexit 3\n")
    found = import_array_script(write("python train.py 2>&1 | tee log.txt\n", "--array=0-0"))
    (trial,) = trials_of(found)
    with pytest.raises(subprocess.CalledProcessError) as caught:
        ran([(build_argv(trial.spec.command, trial.spec.args, {"trial_dir": ".", "trial": "t"}), {})])
    assert caught.value.returncode == 3
    assert "`pipefail`: a pipe such as `| tee` in job.sbatch fails" in "\n".join(found.notes)


def test_a_last_line_that_hides_a_failed_training_is_noted(work):
    script = write("python train.py --lr 0.$SLURM_ARRAY_TASK_ID\necho Finished\n", "--array=0-1")
    text = import_array_script(script).text(script).replace("\n#   ", " ")
    assert (
        "# - job.sbatch, line 4: the exit code of the script is that of its last line `echo Finished`: a training that "
        "fails before it would count as finished: add `set -e` to its beginning"
    ) in text


@pytest.mark.parametrize("name", ["job.sh", "job.sbatch"])
def test_what_a_script_does_to_other_trials_is_noted_with_its_line(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(
        "import argparse, os\nos.environ['CUDA_VISIBLE_DEVICES'] = '0'\np = argparse.ArgumentParser()\n"
        "p.add_argument('--rate')\np.parse_args()\n"
    )
    Path(name).write_text(
        "#SBATCH --array=0-1\n#SBATCH --gres=gpu:1\nlrs=(0.1 0.2)\n"
        "python train.py --lrate ${lrs[$SLURM_ARRAY_TASK_ID]}\nscontrol requeue $SLURM_JOB_ID\n"
    )
    text = import_array_script(Path(name)).text(Path(name)).replace("\n#   ", " ")
    assert "# - train.py, line 2: CUDA_VISIBLE_DEVICES is overwritten with '0'" in text
    assert "# - --lrate is no option of train.py: did you mean --rate?" in text
    assert f"# - {name}, line 5: puts its job back into the queue, which a trial cannot" in text


@pytest.mark.parametrize(
    ("value", "note"),
    [
        (
            "$((SLURM_ARRAY_TASK_ID % 4))",
            "line 4: CUDA_VISIBLE_DEVICES is set to $((SLURM_ARRAY_TASK_ID % 4)), what",
        ),
        ("0", "line 4: CUDA_VISIBLE_DEVICES is set to 0"),
    ],
)
def test_the_choice_of_a_gpu_is_noted(tmp_path, monkeypatch, value, note):
    monkeypatch.chdir(tmp_path)
    script = write(f"export CUDA_VISIBLE_DEVICES={value}\npython train.py\n", "--array=0-1", "--gres=gpu:1")
    text = import_array_script(script).text(script)
    assert note in text
    assert text.count("CUDA_VISIBLE_DEVICES") == 1
