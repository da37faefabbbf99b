"""What the source of a script shows before anything is submitted: wrong options, and what goes wrong in shared jobs."""

import ast
import csv
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
from trainyard.checks.config_checks import check_use
from trainyard.checks.findings import refuse_mistakes
from trainyard.checks.program_checks import CheckedStudy
from trainyard.checks.script_checks import check_script_source
from trainyard.config import trials
from trainyard.config.load import check_config
from trainyard.config.placeholders import build_argv
from trainyard.programs import script_source
from trainyard.programs.script_options import find_switches
from trainyard.utils.errors import UserError

PARSER = "import argparse, os\np = argparse.ArgumentParser()\np.add_argument('--lr', type=float, default=0.1)\n"


@pytest.fixture
def look(tmp_path, monkeypatch, caplog):
    """A function from a script and its sweep to the lines of mistakes and of warnings about the script."""
    monkeypatch.chdir(tmp_path)

    def find(text, **sweep):
        Path("train.py").write_text(text)
        caplog.clear()
        caplog.set_level(logging.WARNING)
        sweep = {"command": "python train.py {args}", "workdir": "trial", "metric": "seconds", **sweep}
        config = check_config({"sweeps": {"s": sweep}})
        mistakes = list[str]()
        try:
            refuse_mistakes(check_use(config, tmp_path / "results"), notify=logging.warning)
        except UserError as error:
            mistakes = [line.strip().removeprefix("sweeps.s.command: ") for line in str(error).splitlines()[1:]]
        warnings = [each.message.removeprefix("sweeps.s.command: ") for each in caplog.records]
        return mistakes, [each for each in warnings if "train" in each or each.startswith("the command")]

    return find


def amp(declared, before=""):
    return f"{PARSER}{before}p.add_argument('--amp', {declared})\na = p.parse_args()\n"


BOOLEANS = {"grid": {"amp": [True, False]}}
NAMED = {**BOOLEANS, "command": "python train.py --amp {amp}"}
LINE = "train.py, line 4: --amp"
TYPE_BOOL = "`type=bool` takes any text for true, also `false`: declare it with action=argparse.BooleanOptionalAction"


@pytest.mark.parametrize(
    ("declared", "sweep", "mistake"),
    [
        ("action='store_true'", BOOLEANS, None),
        ("action='store_true', default=True", BOOLEANS,
         f"{LINE} false: it is on by default, and no option turns it off: add one to the script"),
        ("action=argparse.BooleanOptionalAction, default=True", BOOLEANS, None),
        ("type=bool, default=True", BOOLEANS, f"{LINE} false: {TYPE_BOOL}"),
        ("type=bool, default=True", NAMED, f"{LINE} false: {TYPE_BOOL}"),
        ("type=bool, default=True", {"grid": {"amp": ["yes", "False"]}}, f"{LINE} False: {TYPE_BOOL}"),
        ("type=bool, default=True", {"grid": {"amp": [1, 0]}}, f"{LINE} 0: {TYPE_BOOL}"),
        ("type=bool, default=True", {"grid": {"amp": ["1", ""]}}, None),
        ("default=True", NAMED, f"{LINE} false: its value is text, and the text `false` is true for Python: write the"),
        ("default=True", {"grid": {"amp": ["true", "false"]}}, None),
        ("type=int", NAMED, f"{LINE} false: its value is a number (`type=int`): write `amp: [1, 0]`"),
        ("type=lambda x: x == 'True'", BOOLEANS, None),
        ("type=lambda x: x == 'True'", NAMED,
         f"{LINE} false: its type reads other words: write the words that it reads as text, as in "
         "`amp: ['True', 'False']`"),
        ("type=lambda x: x.lower() == 'true'", NAMED, None),
        ("action='store_true'", NAMED,
         f"{LINE} takes no value, but amp is False: write `amp: [true, false]` and {{args}}"),
        ("action='store_true'", {"grid": {"amp": [1, 2]}}, f"{LINE} takes no value, but amp is 1"),
        ("choices=['no', 'yes']", BOOLEANS, "write the words that it reads as text, as in `amp: ['no', 'yes']`"),
    ],
)  # fmt: skip
def test_a_false_value_is_written_as_the_script_takes_it_or_refused(look, declared, sweep, mistake):
    mistakes, _ = look(amp(declared), **sweep)
    assert [mistake in line for line in mistakes[:1]] == ([True] if mistake else []), mistakes


@pytest.mark.parametrize(
    ("uses", "is_taken"),
    [
        ("wandb.init(config=a)\nprint(wandb.config.amp)", True),  # where the value of the sweep counts
        ("wandb.init()\nwandb.config.update(vars(a))\nc = wandb.config\nprint(c.amp, a.lr)", True),
        ("wandb.init(config=a)\nprint(a.amp)", False),
        ("wandb.init(config=a)\nprint(a.half)", False),  # its name is given by `dest`
        ("wandb.init(config=a)\ntrain(a)", False),
        ("wandb.init(config=a)\ntrain(**vars(a))", False),
        ("wandb.init(config=a)\nself.a = a", False),
        ("train(p.parse_args())", False),
        ("wandb.init()\np.parse_intermixed_args()", False),
    ],
)
def test_with_wandb_false_as_text_is_refused_only_where_a_script_reads_it(look, uses, is_taken):
    dest = ", dest='half'" * ("half" in uses)
    declared = amp(f"type=bool, default=True{dest}").removesuffix("a = p.parse_args()\n" * ("p.parse" in uses))
    mistakes, _ = look(f"import wandb\n{declared}{uses}\n", metrics="wandb", **BOOLEANS)
    assert [TYPE_BOOL in line for line in mistakes] == ([] if is_taken else [True])


@pytest.mark.parametrize(
    ("text", "command", "uncertain"),
    [
        ("import sys\nprint(sys.argv)\n", "python train.py {args}", True),
        ("", "./train {args}", True),
        ("", "python -m torch.distributed.run --standalone -m package.absent {args:dashes}", True),
        ("import hydra\n@hydra.main()\ndef main(c): ...\n", "python train.py {args:hydra}", False),
        (amp("action='store_true'"), "python -m train {args}", False),
        (amp("action='store_true'"), "mpirun -n 1 accelerate launch --num_processes 1 train.py {args}", False),
        (amp("action='store_true'"), "conda run -n base python -u train.py {args}", False),
        (amp("action='store_true'"), ["python", "train.py", "--lr", "1 #2", "{args}"], False),
        (amp("action='store_true'"), "python train.py --lr '1 #2' {args}  # don't", False),
        (amp("action='store_true'"), "bash -c 'python train.py \"$@\"' train {args}", False),
    ],
)
def test_a_false_value_is_refused_where_the_script_cannot_be_read(look, text, command, uncertain):
    for values in ([True, False], [False]):
        mistakes, _ = look(text, command=command, grid={"amp": values})
        assert any("--amp is turned off: write `null` for false if" in line for line in mistakes) == uncertain
    mistakes, _ = look(text, command=command, grid={"amp": [True, None]})
    assert not any("turned off" in line for line in mistakes)


PAIR = amp("action=argparse.BooleanOptionalAction, default=True") + "print('acc', 0.9 if a.amp else 0.8)\n"
WORDS = amp("type=lambda x: {'true': True, 'false': False}[x.lower()], default=True") + PAIR.splitlines()[-1]


@pytest.mark.parametrize("text", [PAIR, WORDS])
def test_both_values_of_a_flag_that_is_on_by_default_reach_the_script(project, text):
    (project.folder / "train.py").write_text(text)
    sweep = {"command": "python train.py {args}", "env": "trainyard", **BOOLEANS,
             "metrics": {"pattern": "acc (?P<acc>{number})"},
             "slots": {"cpus": 2}}  # fmt: skip
    project.write({"sweeps": {"s": sweep}})
    project.run(*project.script("sweep", "--sweep", "s"))
    with open(project.folder / "results/sweeps/s/trials.csv") as file:
        assert {row["amp"]: float(row["acc"]) for row in csv.DictReader(file)} == {"True": 0.9, "False": 0.8}


@pytest.mark.parametrize(
    ("sweep", "mistake"),
    [
        ({"grid": {"lr": [0.1]}}, None),
        ({"grid": {"learning_rate": [0.1]}}, "--learning_rate is no option of train.py: did you mean --lr?"),
        ({"grid": {"batch_size": [1]}}, "--batch_size is no option of train.py: did you mean --batch-size? "
         "`{args:dashes}` writes it so"),
        ({"grid": {"batch": [1]}}, None),  # argparse takes unique abbreviations
        ({"grid": {"n": [1]}, "command": "N={n} python train.py --lrr 0.1"}, "--lrr is no option of train.py: did you"),
        ({"grid": {"n": [1]}, "command": "echo {n}; python train.py | tee --append log"}, None),
        ({"grid": {"lr": [1]}, "checkpoint": "*.pt", "resume": "--resume {resume_from}"}, "--resume is no option of t"),
    ],
)  # fmt: skip
def test_options_that_a_script_does_not_have_are_named_once(look, sweep, mistake):
    mistakes, _ = look(f"{PARSER}p.add_argument('--batch-size')\np.parse_args()\n", **sweep)
    assert [line[: len(mistake or "")] for line in mistakes] == ([mistake] if mistake else [])
    assert look(f"{PARSER}p.add_argument('--batch-size')\np.parse_known_args()\n", **sweep)[0] == []


def test_an_option_that_a_script_may_ignore_is_a_warning(look):
    script = f"{PARSER}p.add_argument('--batch-size')\na, rest = p.parse_known_args()\n"
    mistakes, (warning,) = look(script, grid={"lr_": [0.1], "batch_size": [1]}, command="python train.py {args:dashes}")
    assert mistakes == []
    assert warning.startswith("--lr- is declared nowhere in train.py: did you mean --lr?")


TYPER = (
    "import typer\ndef main(lr: float = 0.1, amp: Annotated[bool, typer.Option('--amp')] = True): ...\ntyper.run(main)"
)
CLICK = (
    "import click\n@click.command()\n@click.option('--amp', is_flag=True, default=True)\ndef main(amp): ...\nmain()\n"
)


@pytest.mark.parametrize(
    ("text", "sweep", "remedy"),
    [
        (TYPER, BOOLEANS, "add one to the script: declare it as `--amp/--no-amp`"),
        (CLICK, BOOLEANS, "add one to the script: declare it as `--amp/--no-amp`"),
        ("import fire\ndef main(amp=True): ...\nfire.Fire(main)\n", NAMED,
         "write `--amp={amp}` in the command, and `amp: ['True', 'False']`"),
        (f"{PARSER}p.add_argument('--no-amp', action='store_true')\np.parse_args()\n", BOOLEANS,
         "it has --lr, --no-amp"),
        (f"{PARSER}p.add_argument('--no-amp', action='store_true')\np.parse_args()\n", {"grid": {"no_amb": [True]}},
         "did you mean --no-amp?"),
    ],
)  # fmt: skip
def test_a_remedy_is_one_of_the_library_and_not_the_opposite(look, text, sweep, remedy):
    mistake = look(text, **sweep)[0][-1]
    assert remedy in mistake


NO_LOG = "import click\n@click.command()\n@click.option('--no-log', is_flag=True)\ndef main(no_log): ...\nmain()\n"


@pytest.mark.parametrize("style", ["{args}", "{args:dashes}"])
def test_no_option_is_named_that_a_script_does_not_have(look, style):
    (mistake,) = look(NO_LOG, command=f"python train.py {style}", grid={"log": [True, False]})[0]
    assert mistake == ("train.py: it has --no-log, and no --log: write `no_log: [true, null]` and {args:dashes}")


HYDRA = "import hydra\n@hydra.main(config_path='.', config_name='c')\ndef main(c): ...\n"
FIRE = "import fire\ndef main(amp=True): ...\nfire.Fire(main)\n"
STR2BOOL = "def str2bool(v): return v.lower() in ('true', 'false')\n"


@pytest.mark.parametrize(
    ("text", "command", "is_refused"),
    [
        (HYDRA, "python train.py {args:hydra}", True),
        (HYDRA, "python train.py amp={amp}", True),
        (FIRE, "python train.py {args}", True),
        (amp("type=str2bool, default=True", STR2BOOL), "python train.py {args}", True),
        (amp("type=str2bool, default=True", STR2BOOL), "python train.py --amp {amp}", True),
        (amp("type=eval, default=True"), "python train.py {args}", False),
        (amp("type=float, default=False"), "python train.py {args}", False),
    ],
)
def test_numbers_are_refused_for_an_option_that_is_true_or_false(look, text, command, is_refused):
    Path("c.yaml").write_text("amp: true\nlr: 0.1\n")
    mistakes, _ = look(text, command=command, grid={"amp": [0.1, 0.5]})
    assert any("is true or false, but amp is 0.1" in line for line in mistakes) == is_refused, mistakes
    assert look(text, command=command, grid={"amp": [1, 0]})[0] == []


ONE_WORD = (
    "train.py, line 4: --x takes one word, but x is [1, 2]: declare it with nargs='+', or write `--x {x}` in the "
    "command if it reads JSON"
)
LISTS = {"grid": {"x": [[1, 2], [1]]}}


@pytest.mark.parametrize(
    ("declared", "sweep", "mistake"),
    [
        ("type=float", LISTS, ONE_WORD),
        ("action='append'", LISTS, None),
        (
            "action='append'",
            {**LISTS, "command": "python train.py --x {x}"},
            "train.py, line 4: --x takes one word, but x is [1, 2]: write {args} in place of it, which",
        ),
        ("type=float", {"args": {"x": [1, 2]}}, ONE_WORD),
        ("type=float", {"grid": {"x": [[1]]}}, None),
        ("nargs='+'", LISTS, None),
        ("type=int, nargs='+'", LISTS, None),
        (
            "type=int, nargs='+'",
            {"grid": {"x": [[1, 8.5]]}},
            "train.py, line 4: --x 8.5: its value is a number (`type=int`): write numbers that type=int reads",
        ),
        (
            "type=float",
            {"grid": {"x": ["0.1", "big"]}},
            "train.py, line 4: --x big: its value is a number (`type=float`): write numbers that type=float reads",
        ),
        ("type=float", {"grid": {"x": ["0.1", "1e-3", "inf"]}}, None),
        ("nargs=2", LISTS, None),
        ("action=Own", LISTS, None),
        ("**more", LISTS, None),
        ("type=json.loads", {**LISTS, "command": "python train.py --x {x}"}, None),
    ],
)
def test_a_list_for_an_option_of_one_word_is_a_mistake(look, declared, sweep, mistake):
    mistakes, _ = look(f"{PARSER}p.add_argument('--x', {declared})\na = p.parse_args()\n", **sweep)
    assert [line[: len(mistake or "")] for line in mistakes] == ([mistake] if mistake else [])


@pytest.mark.parametrize(
    "text",
    [
        "import fire\ndef main(lr=0.1, x=None): ...\nfire.Fire(main)",
        "import click\n@click.command()\n@click.option('--x')\ndef main(x): ...\nmain()",
        "from absl import app, flags\nflags.DEFINE_list('x', [], '')\napp.run(print)",
    ],
)
def test_a_list_is_a_mistake_where_a_library_takes_its_second_word_for_something_else(look, text):
    (mistake,) = look(text, **LISTS)[0]
    assert "--x takes one word, but x is [1, 2]" in mistake


@pytest.mark.parametrize(
    "text",
    [
        f"{PARSER}p.add_argument('--x', action='append', type=int)\nprint(p.parse_args().x)",
        "import click\n@click.command()\n@click.option('--x', type=int, multiple=True)\n"
        "def main(x): print(list(x))\nmain()",
        "from absl import app, flags\nflags.DEFINE_multi_integer('x', [], '')\napp.run(lambda _: print(flags.FLAGS.x))",
    ],
    ids=["argparse", "click", "absl"],
)
def test_an_option_is_repeated_for_a_list_where_the_script_takes_it_so(look, text):
    assert look(text, **LISTS)[0] == []
    command = [sys.executable, "train.py", "{args}"]
    argv = build_argv(command, {"x": [1, -2]}, switch_of=find_switches(command, Path()))
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "[1, -2]\n"


def test_an_option_of_typer_is_repeated_for_a_list(look):
    """Which is not installed here."""
    assert look("import typer\ndef main(x: list[int] = []): ...\ntyper.run(main)", **LISTS)[0] == []
    assert build_argv(["{args}"], {"x": [1, 2]}, switch_of=find_switches("python train.py {args}", Path())) == [
        "--x", "1", "--x", "2"]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "is_refused"),
    [("train.py --amp {amp}", True), ("train.py --amp={amp}", False), ("train.py {args}", False)],
)
def test_absl_takes_the_word_after_a_boolean_for_something_else(look, command, is_refused):
    """`--amp false` is true."""
    text = "from absl import app, flags\nflags.DEFINE_bool('amp', True, '')\napp.run(print)\n"
    mistakes, _ = look(text, command=f"python {command}", grid={"amp": [True, False]})
    assert [line.partition(": write")[0] for line in mistakes] == [
        "train.py, line 2: --amp takes no value, but amp is False"
    ] * is_refused


FROM_CLI = "from omegaconf import OmegaConf\nc = OmegaConf.from_cli()\n"
UNKNOWN = PARSER + "from omegaconf import OmegaConf\n_, rest = p.parse_known_args()\nOmegaConf.from_dotlist(rest)\n"


@pytest.mark.parametrize(
    ("text", "command", "is_said"),
    [(FROM_CLI, "{args}", True), (FROM_CLI, "--net.width={net.width}", True), (FROM_CLI, "{args:hydra}", False),
     (FROM_CLI, "net.width={net.width}", False), (UNKNOWN, "{args}", True), (UNKNOWN, "{args:hydra}", False)],
)  # fmt: skip
def test_an_option_for_a_script_that_reads_pairs_is_said(look, text, command, is_said):
    """OmegaConf takes `--net.width` and `64` for keys of their own, so that all trials are equal."""
    mistakes, warnings = look(text, command=f"python train.py {command}", grid={"net.width": [64, 128]})
    assert mistakes == []
    said = "--net.width is ignored by train.py, which reads `lr=0.1`"
    assert [said in line for line in warnings] == [True] * is_said, warnings


GPU = PARSER + "p.add_argument('--gpu', default='0')\na = p.parse_args()\n"
OWN_GPU = "--gpu', default='0')\na = p.parse_args()\nos.environ['CUDA_VISIBLE_DEVICES'] = a.gpu\n"
ALONE, ON_GPUS = {"gpus_per_node": 0}, {"gpus_per_node": 4}
WANDB = "import wandb\nrun = wandb.init(config={'lr': 0.1})\nlr = wandb.config.lr"
FROM_CONFIG = "train.py, line 2: takes its settings from `wandb.config`, and nothing of the command line:"
UNREAD = "train.py, line 1: reads nothing of the command line, to which the command adds settings:"
DEVICES = "os.environ['CUDA_VISIBLE_DEVICES']"


@pytest.mark.parametrize(
    ("text", "sweep", "warning"),
    [
        (f"{GPU}{DEVICES} = a.gpu", {}, "train.py, line 6: CUDA_VISIBLE_DEVICES is overwritten with '0', so that all "
         "trials run on the same GPU: write `--gpu $CUDA_VISIBLE_DEVICES` in the command, or remove the line"),
        (f"{GPU}{DEVICES} = str(a.gpu)", {"command": "python train.py {args} --gpu $CUDA_VISIBLE_DEVICES"}, None),
        (f"{GPU}{DEVICES} = a.gpu", {"slots": ALONE}, None),
        (f"{GPU.replace(chr(39) + '0' + chr(39), 'None')}if a.gpu: {DEVICES} = a.gpu", {}, None),
        (f"import os\n{DEVICES} = '0'", {}, "train.py, line 2: CUDA_VISIBLE_DEVICES is overwritten with '0'"),
        (f"import os\nif 'CUDA_VISIBLE_DEVICES' not in os.environ: {DEVICES} = '0'", {}, None),
        ("import os\nos.environ.update({'CUDA_VISIBLE_DEVICES': '1'})", {}, "train.py, line 2: CUDA_VISIBLE"),
        (f"import os\n{DEVICES} = str(pick_gpu())", {},
         "train.py, line 2: CUDA_VISIBLE_DEVICES is overwritten, whatever GPUs the trial has: remove the line"),
        (f"import os\ngpus = {DEVICES}.split(',')\n{DEVICES} = gpus[0]", {}, None),
        (f"import os\n{DEVICES} = str(local_rank)", {}, None),
        ("", {"command": "export CUDA_VISIBLE_DEVICES=$(nvidia-smi -x | sort); python train.py {args}"},
         "the command: CUDA_VISIBLE_DEVICES is set to $(nvidia-smi -x , whatever GPUs the trial has"),
        ("", {"command": "GPU=${G:-0}; CUDA_VISIBLE_DEVICES=\"$GPU\" python train.py {args}"},
         "the command: CUDA_VISIBLE_DEVICES is set to $GPU, whatever GPUs the trial has"),
        ("", {"command": "CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES%%,*} python train.py {args}"}, None),
        ("", {"command": "[ -z $CUDA_VISIBLE_DEVICES ] && export CUDA_VISIBLE_DEVICES=0; ./t {args}"}, None),
        ("", {"command": "GPU=${CUDA_VISIBLE_DEVICES%%,*}; CUDA_VISIBLE_DEVICES=$GPU python train.py {args}"}, None),
        ("", {"command": "echo a=$CUDA_VISIBLE_DEVICES; CUDA_VISIBLE_DEVICES=0 python train.py {args}"},
         "the command: CUDA_VISIBLE_DEVICES is set to 0, so that all trials run on that GPU"),
        ("", {"command": "accelerate launch --gpu_ids 0 train.py {args}"},
         "the command: CUDA_VISIBLE_DEVICES is set to 0, so that all trials run on that GPU"),
        ("", {"command": "deepspeed --include localhost:0,1 --master_port {port} train.py {args}"},
         "the command: CUDA_VISIBLE_DEVICES is set to 0,1, so that all trials run on that GPU"),
        ("", {"command": "accelerate launch --gpu_ids all train.py {args}"}, None),
        ("", {"command": "CUDA_VISIBLE_DEVICES= python train.py {args}"}, None),
        ("import os\nos.environ.setdefault('CUDA_VISIBLE_DEVICES', '0')", {}, None),
        ("", {"command": "CUDA_VISIBLE_DEVICES=0 python train.py {args}"},
         "the command: CUDA_VISIBLE_DEVICES is set to 0, so that all trials run on that GPU"),
        ("import os\nos.environ['MASTER_PORT'] = '29500'", {"slots": ON_GPUS}, "train.py, line 2: port 29500 is"),
        ("import os\nos.environ['MASTER_PORT'] = '29500'", {}, None),  # one trial at a time
        ("import os\nos.environ['MASTER_PORT'] = str(port)", {"slots": ON_GPUS}, None),
        ("import os\nos.environ.setdefault('MASTER_PORT', '29500')", {"slots": ON_GPUS}, None),
        ("", {"command": "torchrun --nproc-per-node 1 train.py {args}", "slots": ON_GPUS}, "the command: torchrun"),
        ("", {"command": "torchrun --standalone train.py {args}", "slots": ON_GPUS}, None),
        ("", {"command": "deepspeed train.py {args}", "slots": ON_GPUS}, "the command: deepspeed takes port 29500"),
        ("", {"command": "python train.py {args} --strategy deepspeed --x", "slots": ON_GPUS}, None),
        ("", {"command": "conda activate deepspeed && python train.py {args}", "slots": ON_GPUS}, None),
        ("dist.init_process_group(init_method='tcp://localhost:12355')", {"slots": ON_GPUS}, "train.py, line 1: port"),
        ("", {"command": "torchrun --master_port=29501 train.py {args}", "slots": ON_GPUS}, "the command: port 29501"),
        ("", {"command": "torchrun --master_port {port} train.py {args}", "slots": ON_GPUS}, None),
        ("import subprocess\nsubprocess.run(['scontrol', 'requeue', job])", {}, "train.py, line 2: puts its"),
        ("import signal as s\ns.signal(s.SIGUSR1, handle)", {},
         "train.py, line 2: handles SIGUSR1, which a trial gets only with `stop_signal: USR1`"),
        ("import signal as s\ns.signal(s.SIGUSR1, handle)", {"stop_signal": "USR1"}, None),
        ("import signal\nsignal.signal(signal.SIGTERM, handle)", {}, None),
        ("import faulthandler, signal\nfaulthandler.register(signal.SIGUSR1)", {}, None),
        (WANDB, {}, f"{FROM_CONFIG} all trials are equal"),
        (WANDB, {"command": "PYTHONPATH=lib python train.py {args}"},
         f"{FROM_CONFIG} all trials are equal"),
        (WANDB, {"command": "A={lr} B={wd} C=$X D={port} python train.py {args}", "grid": {"wd": [1], "lr": [1, 2]}},
         f"{FROM_CONFIG} trials differ in the variables A, B alone"),
        (WANDB, {"command": "A={lr} python train.py"}, None),
        ("lr = 0.1\nprint(lr)", {}, f"{UNREAD} all trials are equal: read them in the script, as by argparse"),
        ("lr = 0.1", {"command": "python train.py --lr {lr}"}, f"{UNREAD} all trials are equal"),
        ("lr = 0.1", {"command": "LR={lr} python train.py --out {trial_dir}"}, None),
        ("import torch, sys, util\nprint(util.LR)", {}, f"{UNREAD} all trials are equal"),
        ("from lab.options import parse_options\nlr = parse_options().lr", {}, None),
        ("from lab.training import main\nmain()", {}, None),
        ("from torchtune import config\n@config.parse\ndef main(cfg):\n    ...\nmain()", {}, None),
        ("import wandb\nwandb.init()\nlr = wandb.config.lr", {"metrics": "wandb"}, None),
        ("import wandb\nwandb.init()\nlr = wandb.config.lr", {"metrics": "wandb", "command": "python train.py"}, None),
        (f"import wandb\n{PARSER}a = p.parse_args()\nwandb.init(config=vars(a))",
         {"metrics": "wandb", "command": "python train.py"},
         "train.py, line 4: where it reads --lr instead of `wandb.config`, all trials are equal: add {args}"),
        (f"import wandb\n{PARSER}a = p.parse_args()\nwandb.init(config=vars(a))", {}, None),
        ("import wandb\ndef train():\n  wandb.init()\nif __name__ == '__main__':\n  wandb.agent('id', train)", {},
         "train.py, line 5: `wandb.agent` takes settings from W&B's server, and none of a trial"),
        ("import wandb\nfor sweep in FOUND:\n  if sweep:\n    wandb.agent(sweep)", {}, None),
        ("import wandb\nexec(open('configurator.py').read())\nwandb.init(config=config)", {}, None),
        ("import sys\nlr = sys.argv[1]\namp = bool(sys.argv[2])", {"command": "python train.py {lr} off"},
         "train.py, line 3: `bool` takes any text for true, also `off`: compare the text"),
        ("import os\namp = bool(os.environ['AMP'])", {"command": "AMP=off LR={lr} python train.py"},
         "train.py, line 2: `bool` takes any text for true, also `off`: compare the text"),
        ("import os\namp = bool(os.getenv('AMP', ''))", {"command": "export AMP=off; python train.py {lr}"},
         "train.py, line 2: `bool` takes any text for true"),
        ("import os\namp = bool(os.environ.get('AMP'))", {"command": "LR={lr} python train.py"}, None),
        ("import os\namp = bool(int(os.environ['AMP']))", {"command": "AMP=0 LR={lr} python train.py"}, None),
        ("import jax", {"slots": {"gpus_per_node": 1, "gpus_per_trial": 0.5}}, None),
    ],
)  # fmt: skip
def test_what_a_script_does_to_other_trials_is_said_before_it_runs(look, text, sweep, warning):
    sweep = {"grid": {"lr": [0.1, 0.2]}, "slots": {"gpus_per_node": 1}, **sweep}
    Path("lib").mkdir()
    Path("lib/wandb.py").write_text("import sys\ndef init(**kwargs):\n    print(sys.argv)\n")
    Path("util.py").write_text("LR = 0.1\n")
    reads = (
        ""
        if text == WANDB or text.startswith(("lr =", "import torch, sys", "from lab", "from torchtune"))
        else "\nprint(sys.argv)"
    )
    mistakes, warnings = look(text + reads, **sweep)
    assert not any("no option" in line for line in mistakes)
    assert [line[: len(warning or "")] for line in warnings] == ([warning] if warning else []), warnings


@pytest.mark.parametrize(
    ("command", "text", "where"),
    [
        ("srun -n 1 python train.py", "", "the command"),
        ("module load x; OMP_NUM_THREADS=2 srun --mpi=pmix ./train", "", "the command"),
        ("bash train.sh", "", "train.sh, line 3"),
        ("python train.py", "import subprocess\nsubprocess.run(['srun', '-n', '2', 'x'])\n", "train.py, line 2"),
        ("srun --overlap --jobid $TRAINYARD_JOB_ID ./report", "", None),
        ("echo remove srun here", "# srun x\nmessage = 'srun x'\n", None),
    ],
)
def test_srun_in_a_trial_is_refused_before_a_job_is_queued(tmp_path, monkeypatch, command, text, where):
    """It would look for the job by SLURM_JOB_ID, which is the trial's own."""
    monkeypatch.chdir(tmp_path)
    Path("train.sh").write_text("#!/bin/bash\n# srun x\nsrun python train.py\n")
    Path("train.py").write_text(text)
    sweep = check_config({"sweeps": {"s": {"command": command}}}).sweeps["s"]
    found = [each for each in check_script_source(CheckedStudy("s", sweep)) if "srun" in each.message]
    assert [each.message.partition(":")[0] for each in found] == ([where] if where else [])
    assert all(each.verdict == "fails" and "torchrun --nproc-per-node {gpus}" in each.remedy for each in found)


def test_a_script_that_no_python_can_read_is_named_with_its_line(look):
    mistakes, warnings = look("for x in range(3):\nprint(x)\n")
    assert not mistakes
    assert [each for each in warnings if "train.py: is not a Python script" in each and "train.py, line 2" in each]


def test_lines_of_a_script_for_a_shell_are_read_too(look):
    lines = "#!/bin/bash\n# MASTER_PORT=1\nexport MASTER_PORT=12345\nscontrol requeue $1\n"
    Path("train.sh").write_text(lines + "trap 'save' USR1\nCUDA_VISIBLE_DEVICES=1 python train.py --lr $1\n")
    _, warnings = look(f"{PARSER}p.parse_args()", command="bash train.sh {lr}", grid={"lr": [1, 2]}, slots=ON_GPUS)
    assert [line.partition(" ")[0] + line.partition(",")[2].partition(":")[0] for line in warnings] == [
        "train.sh, line 3",
        "train.sh, line 4",
        "train.sh, line 5",
        "train.sh, line 6",
    ]


@pytest.mark.parametrize(
    ("lines", "command", "number"),
    [
        ("python train.py --lr $1\necho Finished\n", "bash train.sh {lr}", 3),
        ("srun ./train $1\nexit 0\n", "./train.sh {lr}", 3),
        ("for x in 1 2; do\n  python train.py --lr $1\ndone\ncp -r out $1\n\n", "bash train.sh {lr}", 5),
        ("python train.py --lr $1\necho code $?\n", "bash train.sh {lr}", 3),
        ("set -e\npython train.py --lr $1 2>&1 | tee log.txt\n", "bash train.sh {lr}", 3),
        ("python train.py --lr $1 | tee log.txt\n", "bash -o pipefail train.sh {lr}", None),
        ("set -euo pipefail\npython train.py --lr $1 | tee log.txt\necho Finished\n", "bash train.sh {lr}", None),
        ("python train.py --lr $1\necho Finished\n", "bash -eo pipefail train.sh {lr}", None),
        ("python train.py --lr $(sed 1p lrs.txt)\n", "bash train.sh {lr}", None),
        ("python train.py --lr $1 || exit 1\necho Finished\n", "bash train.sh {lr}", None),
        ("python train.py --lr $1\ncode=$?\necho Finished\nexit $code\n", "bash train.sh {lr}", None),
        ("if true; then\n  python train.py --lr $1\nfi\n", "bash train.sh {lr}", None),
        ("python train.py \\\n  --lr $1 \\\n  --x\n# the end\n", "bash train.sh {lr}", None),
        ("run() {\n  python train.py --lr $1\n}\nrun $1\n", "bash train.sh {lr}", None),
        ("module load python\n./train $1\n", "bash train.sh {lr}", None),
    ],
)
def test_a_script_for_a_shell_that_hides_a_failed_training_is_found(look, lines, command, number):
    Path("train.sh").write_text(f"#!/bin/bash\n{lines}")
    _, warnings = look("import sys\n", command=command, grid={"lr": [1, 2]})
    found = [line.partition(":")[0] for line in warnings if "would count as finished" in line]
    assert found == ([f"train.sh, line {number}"] if number else [])


@pytest.mark.parametrize(
    ("command", "hides"),
    [
        ("python t.py --lr {lr}; echo done", "`; echo done` hides"),
        ("python t.py --lr {lr} || true", "`|| true` hides"),
        ("python t.py --lr {lr} && echo done", ""),
        ("set -e; python t.py --lr {lr}; echo done", ""),
        ("echo begins; python t.py --lr {lr}", ""),
        ("python t.py --lr {lr} || exit 1", ""),
    ],
)
def test_a_command_that_hides_a_failed_training_is_found(look, command, hides):
    _, warnings = look("import sys\n", command=command, grid={"lr": [1, 2]})
    found = [line for line in warnings if "would count as finished" in line]
    assert len(found) == bool(hides)
    assert all(hides in line for line in found)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("python train.py --lr $1 &\necho started", "2: the program runs in the background"),
        ("(python train.py --lr $1 &)", "2: the program runs in the background"),
        ("nohup python train.py --lr $1 > log.txt 2>&1 &\nPID=$!", "2: the program runs in the background"),
        ("python train.py --lr $1 &\npython train.py --lr $1 --x &\nwait", "3: `wait` alone succeeds"),
        ("for x in 1 2; do\n  python train.py --lr $1 $x &\ndone; wait; echo done", "3: `wait` alone succeeds"),
        ("tmux new-session -d -s a 'python train.py --lr $1'", "2: `tmux new-session` returns at once"),
        ("sbatch job.sh $1", "2: `sbatch` returns at once"),
        ("sbatch --wait job.sh $1", ""),
        ("python train.py --lr $1\nsbatch next.sh", ""),
        ("sbatch --dependency=afterany:1 again.sh\npython train.py --lr $1", ""),
        ("python train.py --lr $1 &\nwait $!", ""),
        ("trap 'kill $PID' TERM\npython train.py --lr $1 & PID=$!\nwait $PID", ""),
        ("python train.py --lr $1 > log.txt 2>&1 && echo done", ""),
        ("python server.py &\npython train.py --lr $1", ""),
        ("python server.py &\n./client $1", ""),
    ],
)
@pytest.mark.parametrize("is_script", [True, False])
def test_a_program_in_the_background_is_found(look, is_script, lines, message):
    Path("train.sh").write_text(f"#!/bin/bash\n{lines}\n")
    command = "bash train.sh {lr}" if is_script else lines.replace("$1", "{lr}").replace("'", "")
    _, warnings = look("import sys\n", command=command, grid={"lr": [1, 2]})
    found = [line for line in warnings if re.search("background|`wait` alone|at once", line)]
    assert len(found) == bool(message), warnings
    assert not is_script or all(line.startswith(f"train.sh, line {message}") for line in found)


def test_a_script_is_parsed_once_and_no_trial_is_expanded(look, monkeypatch):
    Path("train.py").write_text(amp("action='store_true'"))
    grid = {"amp": [True, False], "lr": [n / 5000 for n in range(5000)]}
    sweep = {"command": "python train.py {args}", "grid": grid}
    study = check_config({"sweeps": {"s": sweep}}).sweeps["s"]
    parsed = list[object]()
    monkeypatch.setattr(script_source, "parse", lambda path: parsed.append(path) or ast.parse(path.read_bytes()))
    monkeypatch.setattr(trials, "_expand", lambda sweep: pytest.fail("expanded"))
    assert [each.verdict for each in check_script_source(CheckedStudy("sweeps.s", study))] == ["ok"]
    assert parsed == [Path("train.py")]


@pytest.mark.parametrize(
    ("script", "values"),
    [
        ("import click\n@click.command()\n@click.option('--amp', is_flag=True, default=True)\ndef main(amp): ...",
         [True]),
        ("import click\nON = 1\n@click.command()\n@click.option('--amp/--no-amp', default=ON)\ndef main(amp): ...",
         [True, False]),
        (f"{PARSER}class Turn(argparse.Action): ...\np.add_argument('--amp', nargs=0, action=Turn)\np.parse_args()",
         [True]),
    ],
)  # fmt: skip
def test_no_flag_that_is_written_as_the_script_reads_it_is_a_mistake(look, script, values):
    assert look(script, grid={"amp": values}) == ([], [])


def test_a_command_is_read_with_the_lines_that_continue_it(look):
    command = "python -m torch.distributed.run \\\n  --standalone --nproc-per-node 1 \\\n  train.py --lr {lr}"
    slots = {"cpus": 2}
    script = f"{PARSER}a = p.parse_args()\n"
    assert look(script, command=command, grid={"lr": [0.1, 0.2]}, slots=slots) == ([], [])
    (warning,) = look(script, command=command.replace("--standalone", ""), grid={"lr": [0.1, 0.2]}, slots=slots)[1]
    assert "torchrun takes port 29500" in warning


def test_a_script_with_many_statements_is_read_in_time_that_grows_with_it(look, monkeypatch):
    """What the whole source says is asked only where a library that takes all memory is imported."""
    asked = []
    texts = script_source.SourceFile.texts
    monkeypatch.setattr(script_source.SourceFile, "texts", lambda file, node: asked.append(node) or texts(file, node))
    script = f"{PARSER}{''.join(f'x{n} = {n}' + chr(10) for n in range(100))}a = p.parse_args()\n"
    assert look(script, grid={"lr": [0.1]}) == ([], [])
    assert len([node for node in asked if isinstance(node, ast.Module)]) < 10


def test_an_expression_of_many_terms_is_read(look):
    terms = " + ".join(["1"] * 1200)
    assert "wandb" in look(f"import wandb\nx = {terms}\nwandb.init(config={{'lr': 1}})\n", grid={"lr": [0.1]})[1][0]
