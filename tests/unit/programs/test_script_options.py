"""The options of a script, read from its source."""

import pytest
from trainyard.programs.script_options import ScriptOption, read_script
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
        ("load('old.ckpt'); torch.save(out, f'{out}/last.pth')", ".pth"),
    ],
)
def test_the_suffix_of_checkpoints_is_that_of_a_file_that_the_source_names(tmp_path, line, suffix):
    (tmp_path / "train.py").write_text(f"out, n = '', 1\n{line}\n")
    assert read_script(tmp_path / "train.py").checkpoint == suffix


def test_options_of_click_are_found(tmp_path):
    (tmp_path / "train.py").write_text(CLICK)
    assert read_script(tmp_path / "train.py").options == (
        ScriptOption("--learning-rate", default=1e-3),
        ScriptOption("--opt", choices=("sgd", "adam")),
        ScriptOption("--amp", is_flag=True),
        ScriptOption("data", is_required=True),
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
