"""`commands`: each line of a file is a trial, which bash runs as it is written."""

import pytest
from trainyard.checks.config_checks import check_use
from trainyard.config.load import ConfigError, as_given, check_config
from trainyard.config.placeholders import build_argv
from trainyard.config.trials import expand

LINES = """# jobs of May
python train.py --lr {lr} --out 'a {b}' | tee log

  X=1 python train.py --tag "it's"  # don't
for lr in {1..3}; do python train.py --lr $lr; done
  # python train.py --lr 9
cd runs && source env.sh && python train.py
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sweep_of(folder, text, **options):
    (folder / "jobs.txt").write_text(text)
    return check_config({"sweeps": {"s": {"commands": "jobs.txt", **options}}})


def names_in(config):
    return [trial.identity("") for trial in expand(config.sweeps["s"]).trials]


def test_each_line_is_a_trial_that_bash_gets_as_it_is(folder):
    config = sweep_of(folder, LINES)
    lines = [LINES.splitlines()[number] for number in (1, 3, 4, 6)]
    trials = expand(config.sweeps["s"]).trials
    assert [trial.values for trial in trials] == [{"command": line} for line in lines]
    for trial, line in zip(trials, lines, strict=True):
        assert build_argv(trial.spec.command, trial.spec.args) == ["bash", "-o", "pipefail", "-c", line]
    assert names_in(check_config(as_given(config))) == names_in(config), "jobs do not read the file again"


def test_a_trial_is_its_text_wherever_it_stands_and_a_line_that_is_there_twice_runs_once_with_a_word(folder):
    first = sweep_of(folder, "echo 1\necho 2\n")
    second = sweep_of(folder, "\necho 3\r\necho 2\n# text\necho 1\necho 3\n")
    assert set(names_in(first)) < set(names_in(second))
    assert len(names_in(second)) == 3
    warnings = [each.message for each in check_use(second, folder) if each.verdict == "warns"]
    assert "1 more are equal to one of them, and do not run again" in warnings


def test_the_scripts_of_the_lines_are_checked(folder):
    (folder / "train.py").write_text("import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr')\n"
                                     "p.parse_args()\n")  # fmt: skip
    text = "python train.py --lr 1\nCUDA_VISIBLE_DEVICES=1 python train.py --lrr 2\n"
    found = [(each.verdict, each.message) for each in check_use(sweep_of(folder, text), folder)]
    assert ("fails", "jobs.txt, line 2: --lrr is no option of train.py") in found
    assert any(verdict == "warns" and "jobs.txt, line 2: CUDA_VISIBLE_D" in message for verdict, message in found)
    assert any(verdict == "warns" and "2 trials run in one folder" in message for verdict, message in found)
    found = check_use(sweep_of(folder, "python train.py > $TRAINYARD_TRIAL_DIR/a\necho\n"), folder)
    assert not any("one folder" in each.message for each in found)
    (folder / "own.py").write_text("import os\nopen(os.environ['TRAINYARD_TRIAL_DIR'] + '/done', 'w')\n")
    found = check_use(sweep_of(folder, "python own.py 1\npython own.py 2\n", complete={"file": "done"}), folder)
    assert not any("one folder" in each.message or "counts in" in each.message for each in found)
    found = check_use(sweep_of(folder, "# $TRAINYARD_TRIAL_DIR\necho 1\necho 2\n", complete={"file": "done"}), folder)
    assert [each.name for each in found if each.verdict == "warns"][1:] == [
        "sweeps.s.workdir",
        "sweeps.s.complete.file",
    ]


def test_a_finding_names_the_first_line_where_it_is(folder):
    (folder / "train.py").write_text("import argparse\np = argparse.ArgumentParser()\np.parse_args()\n")
    (folder / "runs").mkdir()
    (folder / "runs" / "in.py").write_text("")
    text = "# jobs\n\npython in.py\npython train.py --lr 1\npython in.py\npython train.py --lr 2\n"
    found = [str(each) for each in check_use(sweep_of(folder, text), folder) if each.verdict in ("fails", "warns")]
    for wanted in ("jobs.txt, line 3: in.py: no such file: a", "jobs.txt, line 4: --lr is no option of train.py: it"):
        assert [wanted in each for each in found].count(True) == 1
    text = "cd runs && python in.py\ncd runs && python in.py > log; echo done\n"
    found = [each.message for each in check_use(sweep_of(folder, text), folder)]
    assert [each for each in found if each.endswith("is there")] == ["runs/in.py is there"]
    assert any(each.startswith("jobs.txt, line 2: `; echo done` hides whether") for each in found)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("echo\npython train.py \\\n  --lr 1\n", "jobs.txt, line 2: .* is only a part of a command: write each"),
        ("for x in 1 2; do\npython train.py $x\ndone\n", "jobs.txt, line 1: 'for x in 1 2; do' is only a part"),
        ("--lr 0.1\n--lr 0.2\n", "line 1: '--lr 0.1' is only a part of a command"),
        ("# x\nsource env/bin/activate\n", "line 2: 'source env/bin/activate' changes nothing for other lines"),
        ("export DATA=/data\n", "line 1: .* changes nothing"),
        ("cd runs\n", "changes nothing"),
        ("LR=1\n", "changes nothing"),
        ("python a.py > log 2>&1 &\n", "line 1: .* ends with &: its trial would end at once; remove it"),
        ("(python a.py &)\n", "line 1: .* ends with &: its trial would end at once; remove it"),
        ("python - <<'EOF'\nprint(1)\nEOF\n", "line 1: .* is only a part of a command"),
        ("echo 'a\n", "line 1: .* has no closing quotation"),
        ("# nothing\n\n", "jobs.txt has no command"),
    ],
)
def test_a_line_that_is_no_command_of_its_own_is_an_error_with_its_number(folder, text, message):
    with pytest.raises(ConfigError, match=message):
        sweep_of(folder, text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grid": {"lr": [1]}}, "commands run as they are written, so grid has no place: write it in their lines"),
        ({"resume": "--resume {resume_from}"}, "so resume has no place"),
        ({"command": "x"}, "so command has no place"),
        ({"commands": "absent.txt"}, "absent.txt cannot be read"),
        ({"comands": "x"}, "comands"),
    ],
)
def test_what_has_no_place_in_the_lines_is_an_error(folder, options, message):
    with pytest.raises(ConfigError, match=message):
        sweep_of(folder, "echo\n", **options)
