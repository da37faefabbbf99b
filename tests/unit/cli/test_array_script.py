"""The script of a job array as a sweep: each trial does what a task of the array did, and importing does nothing."""

import json
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
SRUN = '#!/bin/bash\nwhile [[ $1 == -* || $1 == [0-9]* ]]; do shift; done\nexec "$@"\n'

# Scripts as they are found in public repositories: the lines after the #SBATCH ones, and the keys of the trials.
GRID = """
module load cuda/12.1
lrs=(0.1 0.01 1e-3)
optimizers=("sgd" "adam w")
n=${#optimizers[@]}
lr=${lrs[$((SLURM_ARRAY_TASK_ID / n))]}
optimizer=${optimizers[$(( SLURM_ARRAY_TASK_ID % ${#optimizers[@]} ))]}
echo "task $SLURM_ARRAY_TASK_ID: $lr"
OUT=runs/${lr}_$optimizer
srun --ntasks=1 -c 4 python train.py --lr "$lr" --optimizer "$optimizer" \\
    --out "$OUT"
echo "done"
"""
LINE_OF_OPTIONS = """
set -euo pipefail
source ~/.bashrc
export HF_HOME=$PWD/hf
PARAMS=$(sed -n "${SLURM_ARRAY_TASK_ID}p" params.txt)
python train.py $PARAMS --threads $SLURM_CPUS_PER_TASK
"""
COLUMNS = """
LINE=$(awk "NR==$((SLURM_ARRAY_TASK_ID + 1))" table.csv)
IFS=, read -r lr batch <<< "$LINE"
name=$(echo "$LINE" | cut -d, -f3)
python train.py --lr=$lr --batch=$batch --dataset ${name} > "log_$name.txt"
"""
CASES = """
case $SLURM_ARRAY_TASK_ID in
    1) BETA=0.5; KIND=small ;;
    2) BETA=1.0; KIND=small ;;
    *) BETA=2.0
       KIND=large ;;
esac
python train.py --beta ${BETA} --kind ${KIND}
"""
LOOPS = """
declare -a subjects rois
index=0
for s in N F; do
  for r in V1 IT; do
    subjects[$index]=$s
    rois[$index]=$r
    ((index=index+1))
  done
done
FOLD=$(( (SLURM_ARRAY_TASK_ID % 2) + 1 ))
python train.py --subject ${subjects[$SLURM_ARRAY_TASK_ID]} --roi "${rois[$SLURM_ARRAY_TASK_ID]}" --fold $FOLD
"""
OVERRIDES = """
CONFIGS=(
  "model.lr=0.1 model.depth=3"
  "model.lr=0.2 model.depth=3"
)
CFG="${CONFIGS[$SLURM_ARRAY_TASK_ID]}"
python train.py $CFG +name=run_$SLURM_ARRAY_TASK_ID
"""
INLINE = """
mapfile -t FILES < files.txt
python train.py ${FILES[SLURM_ARRAY_TASK_ID]} $(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" params.txt)
"""
HERE_DOCUMENT = """
SEEDS=($(seq 10 10 30))
# the config
cat > cfg.txt <<END
# a comment of the file
seed ${SEEDS[$SLURM_ARRAY_TASK_ID]}

END
python train.py "$(cat cfg.txt)"
"""
FILE = """
LRS=(1 2)
lr=${LRS[$SLURM_ARRAY_TASK_ID]}
OPTIONS=$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" params.txt)
echo "lr: $lr" > cfg.txt
python train.py $(cat cfg.txt) $OPTIONS
"""
VARIABLES = """
LRS=(1 2)
date=$(date +2026)
printf -v tag 'lr_%s' ${LRS[$SLURM_ARRAY_TASK_ID]}
echo "task $SLURM_ARRAY_TASK_ID on $(hostname) at $(date +%T)"
echo $(python note.py)
python train.py --out $date-$tag
"""
NOT_IN_THE_FIRST = """
case $SLURM_ARRAY_TASK_ID in
    0) OPTIONS="" ;;
    1) OPTIONS="--aug"; EXTRA="--epochs 20"; export HF_HOME=hf ;;
esac
python train.py $OPTIONS $EXTRA
"""
LATER = """
LRS=(0.1 0.2)
AUG=""
if ((SLURM_ARRAY_TASK_ID == 1)); then AUG="--aug"; fi
OPTIONS="--lr ${LRS[$SLURM_ARRAY_TASK_ID]} $AUG"
python train.py $OPTIONS
"""
PRINTED = """
LRS=(0.1 0.2)
if ((SLURM_ARRAY_TASK_ID < 2)); then
    LR=${LRS[$SLURM_ARRAY_TASK_ID]}
    echo "chosen: $LR"
fi
python train.py --lr $LR
"""
NOT_EVALUATED = """
LRS=(0.1 0.2)
AUG=0
if ((SLURM_ARRAY_TASK_ID == 1)); then AUG=$(python choose.py); fi
OPTIONS="--lr ${LRS[$SLURM_ARRAY_TASK_ID]} --aug $AUG"
python train.py $OPTIONS
"""
READ = NOT_EVALUATED.replace("AUG=$(python choose.py)", "read AUG < <(python choose.py; echo 1)")
SOURCED = NOT_EVALUATED.replace("AUG=$(python choose.py)", "source choose.sh; python choose.py")
ACTIVATED = "LRS=(0.1 0.2)\nsource bin/activate\nLR=${LRS[$SLURM_ARRAY_TASK_ID]}\npython train.py --lr $LR\n"
RARELY = """
case $SLURM_ARRAY_TASK_ID in 1) OPTIONS="--aug"; EXTRA="--epochs 20";; *) OPTIONS="--seed $SLURM_ARRAY_TASK_ID";; esac
python train.py $OPTIONS ${EXTRA-}
"""
FROM_0 = "I=0\nI=$SLURM_ARRAY_TASK_ID\nSEED=$((I + SLURM_ARRAY_TASK_ID / 2))\npython train.py --seed $SEED\n"
SAME_NAME = "lr=(0.1 0.2)\npython prepare.py --lr=3\npython train.py --lr=${lr[$SLURM_ARRAY_TASK_ID]}\n"
ARRAY = """
LRS=(0.1 0.2)
ARGUMENTS=(--epochs 5)
if ((SLURM_ARRAY_TASK_ID == 1)); then ARGUMENTS=(--aug "a b"); fi
python train.py --lr ${LRS[$SLURM_ARRAY_TASK_ID]} "${ARGUMENTS[@]}"
"""
BY_TASK = "X=$(python choose.py)\npython train.py $SLURM_ARRAY_TASK_ID\n"
BRACES = "LRS=(1 2)\nLR=${LRS[$SLURM_ARRAY_TASK_ID]}\nawk '{print}' table.csv | python train.py --lr $LR\n"
SCRIPTS = {
    "grid": ("0-5", GRID, {"lr": [0.1, 0.01, 1e-3], "optimizer": ["sgd", "adam w"]}),
    "options": ("1-3%2", LINE_OF_OPTIONS, {"lr", "batch_size"}),
    "columns": ("0-2", COLUMNS, {"lr", "batch", "name"}),
    "cases": ("1-3", CASES, {"BETA", "KIND"}),
    "loops": ("0-3", LOOPS, {"subject", "roi", "FOLD"}),
    "overrides": ("0,1", OVERRIDES, {"model.lr", "task"}),
    "inline": ("0-2", INLINE, {"files", "lr", "batch_size"}),
    "here-document": ("0-2", HERE_DOCUMENT, {"seeds"}),
    "file": ("0-1", FILE, {"lr", "lr_", "batch_size"}),
    "variables": ("0-1", VARIABLES, {"tag"}),
    "not-in-the-first": ("0-1", NOT_IN_THE_FIRST, {"OPTIONS", "EXTRA", "HF_HOME"}),
    "later": ("0-1", LATER, {"OPTIONS"}),
    "printed": ("0-1", PRINTED, {"LR"}),
    "not-evaluated": ("0-1", NOT_EVALUATED, {"lr", "task"}),
    "not-evaluated-read": ("0-1", READ, {"lr", "task"}),
    "not-evaluated-source": ("0-1", SOURCED, {"task"}),
    "activated": ("0-1", ACTIVATED, {"LR"}),
    "from-0": ("0-3", FROM_0, {"SEED"}),
    "rarely": ("0-99", RARELY, {"OPTIONS", "EXTRA"}),
    "same-name": ("0-1", SAME_NAME, {"lr_"}),
    "array": ("0-1", ARRAY, {"lr", "task"}),
    "by-task": ("2-8:3", BY_TASK, {"task"}),
    "braces": ("0-1", BRACES, {"task"}),
}
FILES = {
    "params.txt": "--lr 0.1 --batch-size=32 --epochs 5\n--lr 1e-3 --batch-size=64 --epochs 5\n"
    "--lr -2 --batch-size=8 --epochs 5\n",
    "table.csv": "0.1,32,mnist\n0.2,64,cifar 10\n0.3,32,svhn\n",
    "files.txt": "a.wav\nb.wav\nc d.wav\n",
    ".bashrc": "",
    "choose.sh": "",
}


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A folder with the files of the scripts, and programs that record how they are started."""
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/activate").touch()
    for name in ("python", "module", "srun"):
        (tmp_path / "bin" / name).write_text(SRUN if name == "srun" else STUB)
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


def ran(commands, **environment):
    """What the programs record while the commands run, one line each."""
    record = Path("record.txt")
    record.unlink(missing_ok=True)
    path = f"{Path('bin').absolute()}:{os.environ['PATH']}"
    for command, own in commands:
        whole = {**os.environ, "PATH": path, "RECORD": str(record.absolute()), **environment, **own}
        subprocess.run(command, env=whole, check=True, capture_output=True)
    return sorted(record.read_text().splitlines())


def trials_of(found):
    return expand(check_config({"sweeps": {"s": found.sweep}}).sweeps["s"]).trials


@pytest.mark.parametrize(("array", "body", "keys"), SCRIPTS.values(), ids=SCRIPTS.keys())
def test_the_trials_do_what_the_tasks_of_the_array_did(work, array, body, keys):
    script = write(body, f"--array={array}", "--cpus-per-task=4", "--job-name=my job")
    tasks = parse_array(array)
    job = {"SLURM_JOB_ID": "77", "SLURM_SUBMIT_DIR": str(work)}
    of_task = {"SLURM_ARRAY_JOB_ID": "77", "SLURM_CPUS_PER_TASK": "4"}
    tasks_ran = ran([(["bash", script], {**of_task, "SLURM_ARRAY_TASK_ID": str(task)}) for task in tasks], **job)
    found = import_array_script(script)
    trials = trials_of(found)
    findings = check_use(check_config({"sweeps": {"s": found.sweep}}), work / "results")
    assert [each.name for each in findings if each.verdict == "warns"] == ["sweeps.s.metrics"]
    assert set(keys) == set(trials[0].values)
    if isinstance(keys, dict):
        assert found.sweep["grid"] == keys
    predefined = {"cpus": 4, "trial_dir": ".", "trial": "t"}
    commands = [(build_argv(trial.spec.command, trial.spec.args, predefined), {}) for trial in trials]
    assert ran(commands, **job) == sorted(line.replace("1e-3", "0.001") for line in tasks_ran)


def test_only_lines_that_choose_parameters_are_evaluated(work):
    body = """
touch evil-1
A=$(touch evil-2; echo 1)
B=$SLURM_ARRAY_TASK_ID; echo evil > evil-3
C=x$SLURM_ARRAY_TASK_ID; sed -i s/lr/rl/ params.txt
D=$(awk '{print > "evil-4"}' params.txt)
E=$(/usr/bin/touch evil-5)
F=$(find . -name params.txt -delete)
read -r G < <(touch evil-6; echo 2)
function H { touch evil-7; }
I=$(H)
cd bin && J=1
python train.py $A $B $C $D $E $F $G $I
"""
    script, before = write(body, "-a 0-3"), {path.name for path in Path().iterdir()}
    import_array_script(script)
    assert {path.name for path in Path().iterdir()} - before == set()
    assert Path("params.txt").read_text() == FILES["params.txt"]


def test_what_the_job_requested_becomes_slots_limits_and_notes(work):
    options = """-J 'deep: net'|-a 0-1%8|-c4|--gres=gpu:a100:2|-t 1-02:30|--mem-per-cpu=4G|-p gpu,long|--account=mine|\
--signal=B:USR1@90|--mail-user=me@example.org # mine|--exclusive"""
    body = "export CUDA_VISIBLE_DEVICES=0,1\nX=(1 2)\nsrun -n 1 python t.py ${X[$SLURM_ARRAY_TASK_ID]}\n"
    found = import_array_script(write(body, *options.split("|")))
    assert found.sweep == {
        "command": "x={x}\npython t.py ${x}\n",
        "workdir": "keep",
        "grid": {"x": [1, 2]},
        "slots": {"jobs": 8, "gpus_per_node": 2, "gpus_per_trial": 2, "cpus_per_trial": 4},
        "timeout_minutes": 26 * 60 + 30,
        "grace_seconds": 90,
    }
    notes = "\n".join(found.notes)
    rest = "--mail-user=me@example.org --exclusive --account=mine --partition=gpu,long --mem-per-cpu=4096 --gres=gpu:"
    for expected in (
        f"not carried over: {rest}a100:2; what",
        "`srun` was removed",
        "`CUDA_VISIBLE_DEVICES` was removed",
    ):
        assert expected in notes
    assert found.text(Path("job.sbatch")).startswith("# Imported from job.sbatch.\n# What to look at")
    assert "\n  deep-net:\n" in found.text(Path("job.sbatch"))


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


def test_many_parameters_of_many_tasks_are_not_combined(work):
    numbers, names = " ".join(map(str, range(20))), [f"x{number}" for number in range(12)]
    lines = [f"{name}S=({numbers})\n{name}=${{{name}S[$SLURM_ARRAY_TASK_ID]}}\n" for name in names]
    script = write("".join([*lines, "python train.py ", *(f" ${name}" for name in names)]), "-a 0-19")
    assert import_array_script(script).sweep["trials"] == [dict.fromkeys(names, task) for task in range(20)]


@pytest.mark.parametrize("time", ["UNLIMITED", "infinite"])
def test_a_job_without_a_time_limit_gives_trials_none(work, time):
    found = import_array_script(write("python train.py $SLURM_ARRAY_TASK_ID\n", "-a 0-1", f"--time={time}"))
    assert "timeout_minutes" not in found.sweep


def test_a_script_whose_parameters_cannot_be_found_runs_as_it_is(work):
    body = 'P=$(sed -n "${SLURM_ARRAY_TASK_ID}p" absent.txt)\npython train.py $P --threads $SLURM_CPUS_PER_TASK\n'
    found = import_array_script(write(body, "-a 1-2"))
    assert found.sweep["command"] == "SLURM_ARRAY_TASK_ID={task} SLURM_CPUS_PER_TASK={cpus} bash job.sbatch"
    assert found.sweep["grid"] == {"task": [1, 2]}
    assert "absent.txt)`). job.sbatch and files that it reads are still needed" in "\n".join(found.notes)


@pytest.mark.parametrize(
    ("array", "message"),
    [(None, "has no line `#SBATCH --array=`"), ("1-", "'1-' is neither a task ID nor a"), ("a,2", "'a' is neither")],
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
    assert json.dumps(parse_array("7")) == "[7]"


def test_what_a_script_does_to_other_trials_is_noted_with_its_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(
        "import argparse, os\nos.environ['CUDA_VISIBLE_DEVICES'] = '0'\np = argparse.ArgumentParser()\n"
        "p.add_argument('--rate')\np.parse_args()\n"
    )
    Path("job.sh").write_text(
        "#SBATCH --array=0-1\n#SBATCH --gres=gpu:1\nlrs=(0.1 0.2)\n"
        "python train.py --lrate ${lrs[$SLURM_ARRAY_TASK_ID]}\n"
    )
    text = import_array_script(Path("job.sh")).text(Path("job.sh")).replace("\n#   ", " ")
    assert "# - train.py, line 2: CUDA_VISIBLE_DEVICES is overwritten with '0'" in text
    assert "# - --lrate is no option of train.py: did you mean --rate?" in text
