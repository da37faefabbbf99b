"""The options of a script, read from its source; the words for true and false, tried on the libraries themselves."""

import subprocess
import sys
from pathlib import Path

import pytest
from trainyard.config.placeholders import Switch
from trainyard.programs.script_options import ScriptOption, find_switches, read_script
from trainyard.programs.started_scripts import find_started
from trainyard.utils.errors import UserError

ARGPARSE = """
import argparse
from settings.model import add_options

LR = 0.1
parser = argparse.ArgumentParser()
parser.add_argument("data", help="folder of the images")
parser.add_argument("-b", "--batch-size", type=int, default=64)
parser.add_argument("--lr", type=float, default=LR)
parser.add_argument("--optim", choices=["sgd", "adam"], default="sgd")
parser.add_argument("--out-dir", required=True)
parser.add_argument("--amp", action="store_true")
raise SystemExit("it must not run")
"""
CLICK = """
import click

@click.command()
@click.argument("data")
@click.option("--learning-rate", "-l", default=1e-3, help="peak")
@click.option("--opt", type=click.Choice(["sgd", "adam"]))
@click.option("--amp/--no-amp", is_flag=True)
def main(data, learning_rate, opt, amp): ...
"""


def test_options_of_argparse_are_found_also_in_a_module_beside_the_script(tmp_path):
    (tmp_path / "train.py").write_text(ARGPARSE)
    (tmp_path / "settings").mkdir()
    (tmp_path / "settings/model.py").write_text("def add_options(group): group.add_argument('--width', default=16)\n")
    script = read_script(tmp_path / "train.py")
    assert script.options == (
        ScriptOption("data", is_required=True),
        ScriptOption("--batch-size", default=64),
        ScriptOption("--lr"),
        ScriptOption("--optim", default="sgd", choices=("sgd", "adam")),
        ScriptOption("--out-dir", is_required=True),
        ScriptOption("--amp", is_flag=True),
        ScriptOption("--width", default=16),
    )
    assert [option.flag for option in script.options if option.is_output] == ["--out-dir"]
    assert script.options[1].key == "batch_size"


@pytest.mark.parametrize(
    ("line", "suffix"),
    [
        ("", ".pt"),
        ("'last.pth'", ".pth"),
        ("f'{out}/epoch-{n}.pth.tar'", ".pth.tar"),
        ("out / 'a.pt.json'", ".pt"),
    ],
)
def test_the_suffix_of_checkpoints_is_that_of_a_file_that_the_source_names(tmp_path, line, suffix):
    (tmp_path / "train.py").write_text(f"out, n = '', 1\n{line}\n")
    assert read_script(tmp_path / "train.py").checkpoint == suffix


def test_options_of_click_are_found(tmp_path):
    (tmp_path / "train.py").write_text(CLICK)
    assert read_script(tmp_path / "train.py").options == (
        ScriptOption("data", is_required=True),
        ScriptOption("--learning-rate", default=1e-3),
        ScriptOption("--opt", choices=("sgd", "adam")),
        ScriptOption("--amp", is_flag=True),
    )


def test_the_config_of_hydra_is_read_with_its_groups(tmp_path):
    (tmp_path / "train.py").write_text(
        "import hydra\n\n@hydra.main(config_path='conf', config_name='top')\ndef main(c): ...\n"
    )
    (tmp_path / "conf/optimizer").mkdir(parents=True)
    (tmp_path / "conf/top.yaml").write_text(
        "defaults: [_self_, {optimizer: adam}]\nseed: 1\noptimizer: {lr: 1e-3}\nhydra: {job: {name: x}}\n"
    )
    (tmp_path / "conf/optimizer/adam.yaml").write_text("lr: 0.1\nweight_decay: 0\n")
    script = read_script(tmp_path / "train.py")
    assert script.uses_hydra
    assert {option.flag: option.default for option in script.options} == {
        "seed": 1,
        "optimizer.lr": 1e-3,
        "optimizer.weight_decay": 0,
    }


@pytest.mark.parametrize(("text", "message"), [(None, "cannot be read"), ("def", "is not a Python script")])
def test_what_is_no_script_is_refused(tmp_path, text, message):
    if text is not None:
        (tmp_path / "train.py").write_text(text)
    with pytest.raises(UserError, match=message):
        read_script(tmp_path / "train.py")


PARSED = "\na = p.parse_args()\nprint(bool(a.amp), type(a.amp).__name__)\n"
CLICKED = "\ndef main(amp): print(amp, type(amp).__name__)\n\nmain()\n"
# Declarations of an option that is a boolean, and whether it can be turned on and off for certain.
SWITCHES = {
    "p.add_argument('--amp', action='store_true')": True,
    "p.add_argument('-a', '--amp', action='store_true', default=False)": True,
    "p.add_argument('--amp', action='store_true', default=True)": False,
    "p.add_argument('--amp', action='store_true', default=len(__name__) > 3)": False,
    "p.add_argument('--amp', action='store_true'); p.set_defaults(amp=True)": False,
    "p.add_argument('--amp', action='store_true'); p.set_defaults(**{'amp': True})": False,
    "p.add_argument('--amp', action=argparse.BooleanOptionalAction, default=True)": True,
    "p.add_argument('--amp', action='store_true'); p.add_argument('--no-amp', dest='amp', action='store_false'); "
    "p.set_defaults(amp=True)": True,
    "p.add_argument('--amp', action='store_false')": True,
    "p.add_argument('--amp', type=bool, default=True)": False,
    "p.add_argument('--amp', default=True)": False,
    "p.add_argument('--amp', type=int, default=1)": False,
    "p.add_argument('--amp', type=lambda x: x.lower() == 'true', default=True)": True,
    "p.add_argument('--amp', type=lambda x: {'true': True, 'false': False}[x.lower()], default=True)": True,
    "p.add_argument('--amp', type=lambda x: x == 'True', nargs='?', const=True, default=True)": True,
    "p.add_argument('--amp', type=eval, default=True)": True,
    "p.add_argument('--amp', type=lambda x: x in 'yY1', default=True)": False,
    "p.add_argument('--amp', type=str2bool, nargs='?', const=True, default=True)": True,
}
STR2BOOL = """
def str2bool(v):
    if v.lower() in ('yes', 'true', 't'): return True
    if v.lower() in ('no', 'false', 'f'): return False
    raise argparse.ArgumentTypeError('boolean expected')
"""
CLICK_SWITCHES = {
    "@click.option('--amp/--no-amp', default=True)": True,
    "@click.option('--amp', is_flag=True)": True,
    "@click.option('--amp', default=True)": True,
    "@click.option('--amp', type=bool, default=True)": True,
    "@click.option('--amp', is_flag=True, default=True)": False,
    "@click.option('--amp/--off', ' /-N', default=True)": True,
}


def outcomes(path, switch):
    """What a script prints when it is turned on, and when it is turned off."""
    lines = ([sys.executable, str(path), *words] for words in (switch.on, switch.off))
    return [subprocess.run(line, capture_output=True, text=True, check=True).stdout.split() for line in lines]


@pytest.mark.parametrize("declared", SWITCHES)
def test_argparse_turns_an_option_on_and_off_by_the_words_that_are_read_from_the_source(tmp_path, declared):
    path = tmp_path / "train.py"
    path.write_text(f"import argparse\n{STR2BOOL}\np = argparse.ArgumentParser()\n{declared}{PARSED}")
    option = read_script(path).find("--amp")
    assert (option.switch is not None) == SWITCHES[declared]
    assert option.switch or option.problem
    if option.switch:
        assert outcomes(path, option.switch) == [["True", "bool"], ["False", "bool"]]


@pytest.mark.parametrize("declared", CLICK_SWITCHES)
def test_click_turns_an_option_on_and_off_by_the_words_that_are_read_from_the_source(tmp_path, declared):
    path = tmp_path / "train.py"
    path.write_text(f"import click\n\n@click.command()\n{declared}{CLICKED}")
    switch = read_script(path).find("--amp").switch
    assert (switch is not None) == CLICK_SWITCHES[declared]
    if switch:
        assert outcomes(path, switch) == [["True", "bool"], ["False", "bool"]]


def test_absl_turns_a_flag_off_by_its_no(tmp_path):
    pytest.importorskip("absl")
    path = tmp_path / "train.py"
    path.write_text(
        "from absl import app, flags\nflags.DEFINE_bool('use_amp', True, 'x')\nflags.DEFINE_float('lr', 0.1, 'y')\n"
        "app.run(lambda _: print(flags.FLAGS.use_amp))\n"
    )
    script = read_script(path)
    assert [(option.flag, option.default) for option in script.options] == [("--use_amp", True), ("--lr", 0.1)]
    assert outcomes(path, script.switch("--use_amp")) == [["True"], ["False"]]


def test_the_option_of_absl_is_its_name_however_it_is_given(tmp_path):
    path = tmp_path / "train.py"
    declared = "flags.DEFINE_integer(name='epochs', default=3, help='n')\nflags.DEFINE_float(KEY, 0.1, 'a rate')\n"
    path.write_text(f"from absl import app, flags\n{declared}app.run(print)\n")
    assert [(option.flag, option.default) for option in read_script(path).options] == [("--epochs", 3)]


CONFIG = "@dataclass\nclass Net:\n    depth: int = 18\n    norm: bool = True\n\n@dataclass\nclass Config:\n"
CONFIG += "    lr0: float = 0.1\n    batch_size: int = 64\n    amp: bool = True\n    name: str = field(default='x')\n"
DATACLASS = f"from dataclasses import dataclass, field\n{CONFIG}    net: Net = field(default_factory=Net)\n\n"
NESTED = ["--lr0", "--batch-size", "--amp", "--name", "--net.depth", "--net.norm"]
FLAT = ["--lr0", "--batch_size", "--amp", "--name", "--net", "--depth", "--norm"]
SIGNATURES = {
    "import tyro\n" + DATACLASS + "tyro.cli(Config)": (NESTED, Switch(("--amp",), ("--no-amp",))),
    "from transformers import HfArgumentParser\n" + DATACLASS + "HfArgumentParser((Config, Net))":
        (FLAT, Switch(("--amp", "true"), ("--amp", "false"))),
    "import fire\ndef main(lr0=0.1, *, batch_size: int = 64, amp=True): ...\nfire.Fire(main)":
        (["--lr0", "--batch_size", "--amp"], Switch(("--amp=True",), ("--amp=False",))),
    "import typer\napp = typer.Typer()\n@app.command()\ndef main(data: str, lr0: float = 0.1, batch_size: int = "
    "typer.Option(64, '-b', '--batch'), amp: bool = True): ...\napp()":
        (["data", "--lr0", "--batch", "--amp"], Switch(("--amp",), ("--no-amp",))),
    "import typer\nfrom typing import Annotated\ndef main(lr: Annotated[float, typer.Option('--learning-rate')] = 0.1, "
    "amp: Annotated[bool, typer.Option('--amp')] = False): ...\ntyper.run(main)":
        (["--learning-rate", "--amp"], Switch(("--amp",), ())),
}  # fmt: skip


@pytest.mark.parametrize("text", SIGNATURES)
def test_fields_and_parameters_are_options_where_a_library_makes_options_of_them(tmp_path, text):
    (tmp_path / "train.py").write_text(text)
    script, (flags, switch) = read_script(tmp_path / "train.py"), SIGNATURES[text]
    assert [option.flag for option in script.options] == flags
    assert script.switch("--amp") == switch


def test_a_field_of_a_class_that_is_not_in_the_source_is_turned_off_as_its_library_does_it(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("from transformers import HfArgumentParser, TrainingArguments as T\nHfArgumentParser(T)\n")
    assert read_script(path).switch("--fp16") == Switch(("--fp16", "true"), ("--fp16", "false"))
    path.write_text("import tyro, models\ntyro.cli(models.Config)\n")
    assert read_script(path).switch("--net.fast") == Switch(("--net.fast",), ("--net.no-fast",))
    path.write_text(
        "from absl import flags\nfrom ml_collections import config_flags\nflags.DEFINE_float('lr', 0, '')\n"
    )
    assert read_script(path).switch("--config.ema") == Switch(("--config.ema",), ("--noconfig.ema",))
    path.write_text("import sys\nmain(sys.argv)\n")
    assert read_script(path).switch("--amp") is None


def test_a_boolean_of_jsonargparse_takes_the_word_false_for_false(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("import jsonargparse\np = jsonargparse.ArgumentParser()\np.add_argument('--amp', type=bool)\n")
    (option,) = read_script(path).options
    assert (option.switch, option.problem) == (Switch(("--amp", "true"), ("--amp", "false")), "")


PARSER = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr')\n"


@pytest.mark.parametrize(
    ("text", "is_strict"),
    [
        (PARSER + "p.parse_args()", True),
        ("import sys\n" + PARSER + "p.parse_args(sys.argv[1:])", True),
        (PARSER + "g = p.add_argument_group()\ng.add_argument('--x')\np.parse_args()", True),
        (PARSER + "def add(q): q.add_argument('--x')\nadd(p)\np.parse_args()", False),
        (PARSER + "a = p.parse_args()\ndef loss_of(x): ...\nloss = loss_of(1)\nprint(loss)", True),
        (PARSER + "a = argparse.ArgumentParser.parse_args(p)", False),
        (PARSER + "s = p.add_subparsers()\ns.required = True\ns.add_parser('a')\np.parse_args()", False),
        ("import argparse\ndef make():\n    made = argparse.ArgumentParser()\n    return made\n"
         "words = make().parse_args()", False),
        ("import argparse\nclass Options:\n    def __init__(self):\n        self.parser = argparse.ArgumentParser()\n"
         "        self.fill(self.parser)\n    def fill(self, taken): taken.add_argument('--lr')\n"
         "    def read(self): return self.parser.parse_args()", False),
        (PARSER + "arg = p.add_argument\narg('--x')\np.parse_args()", False),
        (PARSER + "add = functools.partial(p.add_argument, type=float)\nadd('--x')\np.parse_args()", False),
        (PARSER + "getattr(p, 'add_argument')('--x')\np.parse_args()", False),
        (PARSER + "[part.add_argument('--x') for part in (p,)]\nlib.add([p])\np.parse_args()", False),
        (PARSER + "g = p.add_argument_group()\nlib.fill(to=g)\np.parse_args()", False),
        (PARSER + "lib.fill(p.add_argument_group())\np.parse_args()", False),
        (PARSER + "import lib\ndef fill(q): lib.fill(q)\nfill(p)\np.parse_args()", False),
        (PARSER + "def fill(*q): lib.fill(*q)\nfill(p)\np.parse_args()", False),
        (PARSER + "p._add_action(lib.action)\np.parse_args()", False),
        ("import argparse\ndef make(): return argparse.ArgumentParser()\nlib.fill(make())\nmake().parse_args()", False),
        ("import sys\n" + PARSER + "sys.argv = [new_name(word) for word in sys.argv]\np.parse_args()", False),
        ("import sys\n" + PARSER + "sys.argv.remove('--x')\np.parse_args()", False),
        (PARSER + "p.parse_known_args()", False),
        (PARSER + "for name in names: p.add_argument(f'--{name}')\np.parse_args()", False),
        (PARSER + "p.add_argument(*names)\np.parse_args()", False),
        (PARSER + "p.add_argument('rest', nargs=argparse.REMAINDER)\np.parse_args()", False),
        (PARSER + "import other\nother.add_options(p)\np.parse_args()", False),
        (PARSER + "p.parse_args(read_words())", False),
        (PARSER + "import sys\nprint(sys.argv)\np.parse_args()", True),
        (PARSER + "import sys\nif '--x' in sys.argv: sys.argv.remove('--x')\np.parse_args()", False),
        (PARSER + "import sys\nsys.argv = [each for each in sys.argv if each != '--x']\np.parse_args()", False),
        (PARSER + "import sys\ndel sys.argv[1]\np.parse_args()", False),
        (PARSER + "add = p.add_argument\nadd('--x')\np.parse_args()", False),
        (PARSER + "import lib\nself.p = p\nlib.add_options(self.p)\np.parse_args()", False),
        ("import argparse, lib\np = argparse.ArgumentParser(parents=[lib.parser])\np.parse_args()", False),
        ("from lib import parser\nparser.add_argument('--lr')\nparser.parse_args()", False),
        ("import argparse\nclass P(argparse.ArgumentParser): ...\np = P()\np.parse_args()", False),
        ("import click\n@click.command()\n@click.option('--lr')\ndef main(lr): ...", False),
        ("import tyro\ntyro.cli(Config)", False),
    ],
)  # fmt: skip
def test_a_script_is_strict_only_if_all_of_its_options_are_certain(tmp_path, text, is_strict):
    (tmp_path / "train.py").write_text(text)
    assert read_script(tmp_path / "train.py").is_strict == is_strict


def test_data_classes_that_name_each_other_are_read_once(tmp_path):
    classes = "@dataclass\nclass A:\n    lr: float\n    b: 'B'\n@dataclass\nclass B:\n    width: int\n    a: 'A'\n"
    (tmp_path / "train.py").write_text(f"import tyro\nfrom dataclasses import dataclass\n{classes}tyro.cli(A)\n")
    assert [option.flag for option in read_script(tmp_path / "train.py").options] == ["--lr", "--b.width"]


@pytest.mark.parametrize(
    "command", ["python ~nobody-known/train.py", f"python {'x' * 300}.py", f"bash {'x' * 300}.sh", "bash locked.sh"]
)
def test_a_command_whose_script_cannot_be_opened_starts_none_that_is_known(tmp_path, command):
    (tmp_path / "locked.sh").mkdir()
    assert find_started(command, tmp_path).scripts == ()


def test_options_of_a_package_are_read_through_its_relative_imports_but_not_its_own_main(tmp_path):
    (tmp_path / "train.py").write_text("from options.train import Options\nOptions().parse()\n")
    (tmp_path / "options").mkdir()
    (tmp_path / "options/__init__.py").write_text("")
    (tmp_path / "options/train.py").write_text("from .base import (\n    Base,\n)\nclass Options(Base): ...\n")
    (tmp_path / "options/base.py").write_text(
        f"{PARSER}\nclass Base:\n    def parse(self): p.parse_args()\n"
        "if __name__ == '__main__': p.add_argument('--x')\n"
    )
    script = read_script(tmp_path / "train.py")
    assert [option.flag for option in script.options] == ["--lr"]
    assert script.is_strict


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python train.py {args}", True),
        ("cd sub && python ../train.py {args} 2>&1 | tee log.txt", True),
        ("A=1 torchrun --nproc-per-node 2 --master-port {port} train.py {args}", True),
        (["python", "train.py", "{args}"], True),
        ("bash train.sh {args}", True),
        ("python other.py {args}; python train.py", False),
        ("python train.py {args}; python train.py {args:dashes}", False),
        ("./train {args}", False),
    ],
)
def test_the_script_that_gets_all_arguments_says_how_they_are_turned_off(tmp_path, command, expected):
    (tmp_path / "sub").mkdir()
    (tmp_path / "other.py").write_text("import sys\n")
    (tmp_path / "train.sh").write_text('set -e\npython -u train.py "$@"\n')
    declared = "p.add_argument('--amp', action='store_true')\np.parse_args()\n"
    (tmp_path / "train.py").write_text(f"{PARSER}{declared}")
    assert (find_switches(command, Path(tmp_path))("--amp") == Switch(("--amp",), ())) == expected
