"""Metrics of a user's program are rows of numbers, also while they are being written."""

import pytest
from trainyard.errors import UserError
from trainyard.ownspec import Metrics
from trainyard.reported import Reported, as_row


def reported(folder, **where):
    return Reported(Metrics.model_validate(where), folder)


def test_lines_of_the_output_are_rows(tmp_path):
    found = reported(tmp_path, pattern=r"epoch (?P<epoch>\d+): loss (?P<loss>\S+)")
    for line in ("hello", "epoch 1: loss 0.5", "epoch 2: loss nan", "epoch 3: loss bad"):
        found.hear(line)
    assert found.look() == [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": None}, {"epoch": 3}]
    assert found.look() == []


def test_a_row_of_several_patterns_is_whole_when_each_was_seen(tmp_path):
    found = reported(tmp_path, pattern=[r"train (?P<train_loss>\S+)", r"val (?P<val_loss>\S+)"])
    for line in ("train 3", "val 4", "train 2", "train 1", "val 1"):
        found.hear(line)
    assert found.look() == [
        {"epoch": 1, "train_loss": 3, "val_loss": 4},
        {"epoch": 2, "train_loss": 2},
        {"epoch": 3, "train_loss": 1, "val_loss": 1},
    ]
    found.hear("train 7")
    assert found.look() == []
    assert found.look(last=True) == [{"epoch": 4, "train_loss": 7}]


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("m.jsonl", '{"epoch": 1, "acc": 0.5, "note": "x"}\n{"epo', 'ch": 2, "acc": 0.75}\n'),
        ("m.csv", "epoch,acc,note\n1,0.5,x\n2,0.", "75,y\n"),
    ],
)
def test_a_row_that_is_half_written_is_waited_for(tmp_path, name, first, second):
    found = reported(tmp_path, file=name)
    assert found.look() == []
    (tmp_path / name).write_text(first)
    assert found.look() == [{"epoch": 1, "acc": 0.5}]
    (tmp_path / name).write_text(first + second)
    assert found.look() == [{"epoch": 2, "acc": 0.75}]
    assert found.look(last=True) == []


def test_json_is_a_row_each_time_it_is_written_or_a_list_that_grows(tmp_path):
    found, path = reported(tmp_path, file="m.json"), tmp_path / "m.json"
    path.write_text('{"acc": 1}')
    assert found.look() == [{"epoch": 1, "acc": 1}]
    path.write_text('{"acc":')
    assert found.look() == []
    path.write_text('{"acc": 2}')
    assert found.look() == [{"epoch": 2, "acc": 2}]
    path.write_text('[{"acc": 2}, {"acc": 3}]')
    assert found.look() == [{"epoch": 3, "acc": 3}]


def test_what_an_earlier_attempt_told_does_not_count_unless_it_is_continued(tmp_path):
    (tmp_path / "m.jsonl").write_text('{"acc": 1}\n')
    assert Reported(Metrics(file="m.jsonl"), tmp_path, goes_on=True).look() == [{"epoch": 1, "acc": 1}]
    assert Reported(Metrics(file="m.jsonl"), tmp_path).look() == []
    assert (tmp_path / "m.jsonl.before").read_text() == '{"acc": 1}\n', "it is kept all the same"


@pytest.mark.parametrize(
    ("content", "message"), [("[1, 2]\n", "a row must be a mapping"), ("{]\n", "cannot be read as jsonl")]
)
def test_what_is_no_row_is_an_error_at_the_end(tmp_path, content, message):
    found = reported(tmp_path, file="m.jsonl")
    (tmp_path / "m.jsonl").write_text(content)
    assert found.look() == []
    with pytest.raises(UserError, match=message):
        found.look(last=True)


def test_only_numbers_are_metrics():
    class Scalar:
        def item(self):
            return 2.5

    assert as_row({"a": True, "b": "x", "c": Scalar(), "d": float("inf"), "e": "7", "f": "1e-3"}) == {
        "a": 1, "c": 2.5, "d": None, "e": 7, "f": 0.001,
    }  # fmt: skip
