"""Checkpoints: a training resumes from an intact one, even if the latest is damaged."""

import pytest
from loops import SPEC, changed, train
from trainyard.training.checkpoints import CheckpointStore, differences
from trainyard.utils.errors import StorageError, UserError

DAMAGE = {
    "cut at 0": lambda content: b"",
    "cut at half": lambda content: content[: len(content) // 2],
    "100 bytes short": lambda content: content[:-100],
    "a flipped byte": lambda content: content[:500] + bytes([content[500] ^ 1]) + content[501:],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_checkpoint_is_skipped_for_the_previous_one(data, tmp_path, caplog, damage):
    store = CheckpointStore(tmp_path)
    whole, _ = train(SPEC, data, store=store)
    newest = max(tmp_path.glob("*.pt"))
    newest.write_bytes(damage(newest.read_bytes()))
    assert len(store.latest()["history"]) == SPEC.epochs - 1
    assert "is damaged" in caplog.text
    assert train(SPEC, data, store=store)[0] == whole


def test_the_last_two_and_the_best_checkpoint_are_kept(tmp_path):
    store = CheckpointStore(tmp_path)
    for epoch in range(1, 7):
        store.save({"epoch": epoch}, epoch=epoch, best_epoch=min(epoch, 3))
    assert [path.name.split(".")[0] for path in sorted(tmp_path.glob("*.pt"))] == [
        "epoch-0003-step-000000",
        "epoch-0005-step-000000",
        "epoch-0006-step-000000",
    ]
    store.save({"epoch": 6.5}, epoch=6, step=20, best_epoch=3)
    assert store.latest() == {"epoch": 6.5}, "steps into an epoch come after it"
    assert len(list(tmp_path.glob("*.pt"))) == 3


def test_all_checkpoints_of_complete_epochs_are_kept_if_asked_for(tmp_path):
    store = CheckpointStore(tmp_path, keep_all=True)
    for epoch in range(1, 5):
        store.save({"epoch": epoch - 0.5}, epoch=epoch - 1, step=10)
        store.save({"epoch": epoch}, epoch=epoch, best_epoch=1)
    assert store.epochs() == {1, 2, 3, 4}
    assert len(list(tmp_path.glob("*.pt"))) == 4 + 1, "and the latest one before, within epoch 4"
    assert store.latest() == {"epoch": 4}


def test_damaged_checkpoints_do_not_take_the_place_of_intact_ones(tmp_path):
    """A training that goes on from the best epoch writes new checkpoints before the place of the damaged ones."""
    store = CheckpointStore(tmp_path)
    for epoch in range(1, 7):
        store.save({"epoch": epoch}, epoch=epoch, best_epoch=2)
    for path in sorted(tmp_path.glob("*.pt"))[-2:]:
        path.write_bytes(b"damaged")
    assert store.latest() == {"epoch": 2}
    store.save({"epoch": 3}, epoch=3, best_epoch=2)
    assert store.latest() == {"epoch": 3}
    newest = store.save({"epoch": 4}, epoch=4, best_epoch=4)
    newest.write_bytes(b"damaged")
    store.save({"epoch": 4, "again": True}, epoch=4, best_epoch=4)
    assert len(list(tmp_path.glob("*.pt"))) == 2
    assert store.latest() == {"epoch": 4, "again": True}
    max(tmp_path.glob("*.pt")).unlink()
    assert store.latest() == {"epoch": 3}


def test_without_an_intact_checkpoint_a_training_starts_anew(tmp_path, caplog):
    store = CheckpointStore(tmp_path)
    assert store.latest() is None
    store.save({}, epoch=1).write_bytes(b"")
    assert store.latest() is None
    assert "is damaged" in caplog.text


def test_a_checkpoint_of_another_spec_is_refused_and_the_difference_named(tmp_path):
    CheckpointStore(tmp_path, {"train": {"lr": 0.1, "seed": 3}, "scale": "1x1"}).save({}, epoch=1)
    with pytest.raises(UserError, match=r"train.lr is 0.1 there and 0.05 here, train.seed is 3 there and the default"):
        CheckpointStore(tmp_path, {"train": {"lr": 0.05}, "scale": "1x1"}).latest()


def test_sibling_trainings_are_named_with_their_differences(tmp_path):
    CheckpointStore(tmp_path / "a", {"lr": 0.1}).save({}, epoch=1)
    assert list(CheckpointStore(tmp_path / "b", {"lr": 0.2}).others()) == [
        f"{tmp_path / 'a'} holds checkpoints of another training: lr is 0.1 there and 0.2 here"
    ]


def test_equal_specs_do_not_differ():
    assert differences({"a": {"b": 1}}, {"a": {"b": 1}}) == ""


def test_what_a_kill_left_is_removed_by_the_next_save(tmp_path):
    """Each would take the space of a checkpoint for good."""
    (tmp_path / ".epoch-0001-step-000000.node7.4242.tmp").write_bytes(b"part of a checkpoint")
    CheckpointStore(tmp_path).save({}, epoch=1)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".pt"]


def test_a_full_disk_is_reported_and_costs_no_checkpoint(data, small_disk):
    store = CheckpointStore(small_disk.folder)
    train(SPEC, data, store=store, epochs=2)
    before = sorted(path.name for path in small_disk.folder.glob("*.pt"))
    filler = small_disk.fill(leave=4096)
    with pytest.raises(StorageError, match=r"a checkpoint of .* cannot be written: .*: no space left .* make room"):
        train(SPEC, data, store=store)
    assert sorted(path.name for path in small_disk.folder.glob("*.pt")) == before, "and nothing half-written is left"
    filler.unlink()
    assert train(SPEC, data, store=store)[0] == train(SPEC, data)[0]


def test_a_changed_seed_is_another_training(data, tmp_path):
    train(SPEC, data, store=CheckpointStore(tmp_path, {"seed": 0}), epochs=1)
    with pytest.raises(UserError, match="seed is 0 there and 1 here"):
        train(changed(SPEC, seed=1), data, store=CheckpointStore(tmp_path, {"seed": 1}))


@pytest.mark.parametrize("arguments", [{"blocks": 1, "width": 4}, {"blocks": 3, "width": 4}, {"blocks": 2, "width": 8}])
def test_a_checkpoint_of_a_model_whose_code_has_changed_is_explained(data, tmp_path, arguments):
    """The code of a user's model is not part of the spec."""
    train(SPEC, data, store=CheckpointStore(tmp_path), epochs=1)
    message = rf"^the checkpoint in {tmp_path} does not fit the model \(.*\): if the code .* increase `retrain` .*$"
    with pytest.raises(UserError, match=message):
        train(changed(SPEC, model_args=arguments), data, store=CheckpointStore(tmp_path))


OWN_LOSS = """
from torch import nn, zeros

class Before(nn.CrossEntropyLoss):
    def __init__(self):
        super().__init__()
        self.center = nn.Module()
        self.center.register_buffer("mean", zeros(1))

class After(nn.CrossEntropyLoss):
    pass
"""


def test_a_checkpoint_of_a_loss_whose_code_has_changed_is_explained(data, tmp_path, monkeypatch):
    (tmp_path / "own_loss.py").write_text(OWN_LOSS)
    monkeypatch.syspath_prepend(tmp_path)
    train(changed(SPEC, loss="own_loss:Before"), data, store=CheckpointStore(tmp_path / "store"), epochs=1)
    with pytest.raises(UserError, match=r"does not fit the model \(.* `center`\): if the code .* or the loss"):
        train(changed(SPEC, loss="own_loss:After"), data, store=CheckpointStore(tmp_path / "store"))
