"""The training loop: the same numbers every time, whatever process group it finds and however often it is stopped."""

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from trainyard import distributed, models, optimizers
from trainyard.checkpoints import CheckpointStore
from trainyard.config import Schedule, Synthetic, Train
from trainyard.datasets import DataError, Staged, stage
from trainyard.distributed import alone
from trainyard.errors import UserError
from trainyard.loading import load, steps_per_epoch, training_batches, validation_batches
from trainyard.training import Diverged, Epoch, Training, epoch_line

SPEC = Train(model="resnet", model_args={"blocks": 2, "width": 4}, epochs=4, batch_size=16, lr=0.05,
             schedule=Schedule(name="cosine", warmup_fraction=0.2))  # fmt: skip

LEARNER = Train(model="cnn", model_args={"width": 8}, epochs=6, batch_size=16, optimizer="adam", lr=0.01)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("data")
    return load(
        stage(Synthetic(source="synthetic", images=70, val_images=23, height=8, width=8), folder), torch.device("cpu")
    )


def train(spec, data, *, store=None, epochs=None):
    training = Training(spec, data, alone(), batch_size=spec.batch_size, store=store)
    for row in training.epochs():
        if row.epoch == epochs:
            break
    return [numbers(row) for row in training.history], training.module.state_dict()


def numbers(row):
    """The part of an epoch that is not a measurement of time."""
    timings = ("seconds", "images_per_second", "step_ms_p50", "step_ms_p95")
    return {name: value for name, value in asdict(row).items() if name not in timings}


def assert_equal_states(one, other):
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_a_training_is_bit_identical_from_run_to_run(data, optimizer):
    spec = SPEC.model_copy(update={"optimizer": optimizer})
    (first, first_state), (second, second_state) = train(spec, data), train(spec, data)
    assert first == second
    assert_equal_states(first_state, second_state)


def test_another_seed_gives_another_training(data):
    assert train(SPEC, data)[0] != train(SPEC.model_copy(update={"seed": 1}), data)[0]


def test_models_learn(data):
    rows, _ = train(LEARNER, data)
    assert rows[-1]["val_accuracy"] > 0.9
    assert rows[-1]["train_loss"] < rows[0]["train_loss"]


@pytest.mark.parametrize("stopped_after", [1, 3])
def test_an_interrupted_training_ends_bit_identical_to_an_uninterrupted_one(data, tmp_path, stopped_after):
    whole, whole_state = train(SPEC, data)
    store = CheckpointStore(tmp_path)
    train(SPEC, data, store=store, epochs=stopped_after)
    resumed, resumed_state = train(SPEC, data, store=store)
    assert resumed == whole
    assert_equal_states(resumed_state, whole_state)
    assert len(list(tmp_path.iterdir())) == 2, "the newest checkpoint and the one before it"


DAMAGE = {
    "cut at 0": lambda content: b"",
    "cut at half": lambda content: content[: len(content) // 2],
    "100 bytes short": lambda content: content[:-100],
    "a flipped byte": lambda content: content[:500] + bytes([content[500] ^ 1]) + content[501:],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before_it(data, tmp_path, caplog, damage):
    store = CheckpointStore(tmp_path)
    whole, _ = train(SPEC, data, store=store)
    newest = max(tmp_path.iterdir())
    newest.write_bytes(damage(newest.read_bytes()))
    assert len(store.latest()["history"]) == SPEC.epochs - 1
    assert "is damaged" in caplog.text
    assert train(SPEC, data, store=store)[0] == whole


def test_a_loss_that_is_not_a_number_stops_the_training(data):
    with pytest.raises(Diverged, match=r"became (nan|inf) in epoch 1"):
        train(SPEC.model_copy(update={"lr": 1e30, "schedule": Schedule()}), data)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lower_precision_learns_too(data, precision):
    assert train(LEARNER.model_copy(update={"precision": precision}), data)[0][-1]["val_accuracy"] > 0.9


def test_training_imports_no_compiler():
    """Importing torch._dynamo takes as long as importing torch: it would double the start of every slot."""
    code = """
import sys
import torch
from trainyard import optimizers
from trainyard.config import Train
for name in ("sgd", "adam", "adamw"):
    model = torch.nn.Linear(2, 2)
    optimizer = optimizers.build(Train(optimizer=name), model)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.zero_grad(), optimizer.step(), optimizer.state_dict()
print("torch._dynamo" in sys.modules)
"""
    scripts = Path(optimizers.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=scripts, text=True, capture_output=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    ("name", "kind"), [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)]
)
def test_our_optimisers_step_as_torchs_do(name, kind):
    spec = Train(optimizer=name, lr=0.1, weight_decay=0.01)
    momentum = {"momentum": 0.9} if name == "sgd" else {}

    def plain(model):
        return kind(model.parameters(), 0.1, weight_decay=0.01, **momentum)

    results = []
    for make in (lambda model: optimizers.build(spec, model), plain):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 3)
        optimizer = make(model)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).pow(2).sum().backward()
            optimizer.step()
        results.append(model.weight)
    assert torch.equal(*results)


def test_the_epoch_line_is_that_of_the_reference():
    row = Epoch(3, 0.001, 5.149, 0.0216, 5.664, 0.0098, 704.9, 1.0, 1.0, 1.0)
    assert epoch_line(row, 3) == (
        "Epoch [3/3] LR: 0.001000 | Loss (train, val): 5.149, 5.664 | Accuracy (train, val): 2.16%, 0.98% | "
        "Throughput: 704.9 img/s"
    )


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (Schedule(), [1, 1, 1, 1]),
        (Schedule(name="step", step_size=1, gamma=0.1), [1, 1, 0.1, 0.1]),
        (Schedule(name="cosine"), [1, 0.853553, 0.5, 0.146447]),
        (Schedule(name="cosine", warmup_fraction=0.5), [1 / 3, 2 / 3, 1, 0.5]),
    ],
)
def test_schedules_follow_their_formula(schedule, factors):
    factor = optimizers.lr_factor(schedule, steps=2, epochs=2)
    assert [factor(step) for step in range(4)] == pytest.approx(factors, abs=1e-6)


def test_a_gpu_that_is_not_there_is_not_replaced_by_a_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr(distributed, "NODE_GPUS", tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert alone().device.type == "cpu", "a node without GPUs: slots are only counted"
    (tmp_path / "0000:01:00.0").mkdir()
    with pytest.raises(UserError, match="GPU 3 was given to this process"):
        alone()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert alone().device.type == "cpu", "a job without GPUs on a node that has some"


# ---- who takes which images


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_all_ranks_together_take_the_same_images_whatever_their_number(world_size):
    def taken(ranks):
        shares = [
            training_batches(70, global_batch=16, rank=rank, world_size=ranks, seed=3, epoch=2) for rank in range(ranks)
        ]
        return [sorted(int(i) for share in step for i in share) for step in zip(*shares, strict=True)]

    assert taken(world_size) == taken(1)
    assert len(taken(world_size)) == 70 // 16
    images = [image for step in taken(world_size) for image in step]
    assert len(set(images)) == len(images)


def test_every_epoch_has_an_order_of_its_own():
    first, second = (
        [
            int(i)
            for step in training_batches(70, global_batch=16, rank=0, world_size=1, seed=0, epoch=epoch)
            for i in step
        ]
        for epoch in (1, 2)
    )
    assert first != second


@pytest.mark.parametrize(("size", "world_size"), [(23, 1), (23, 2), (3, 4)])
def test_every_image_is_validated_once(size, world_size):
    shares = [validation_batches(size, batch=5, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert sorted(int(i) for share in shares for batch in share for i in batch) == list(range(size))


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(DataError, match="global batch of 128 images is larger than the 70 training images"):
        steps_per_epoch(70, 128)


# ---- models


@pytest.mark.parametrize("name", ["resnet", "cnn", "resnet18"])
def test_models_map_images_to_classes(name):
    model = models.build(name, channels=3, classes=7, arguments={})
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("resnot", {}, "model 'resnot' is not known: use resnet, cnn"),
        ("resnet", {"depth": 3}, "cannot be built with {'depth': 3}"),
        ("nowhere.models:build", {}, "cannot be imported: No module named 'nowhere'"),
        ("trainyard.models:nothing", {}, "cannot be imported"),
    ],
)
def test_a_model_that_cannot_be_built_is_explained(name, arguments, message):
    with pytest.raises(models.ModelError, match=message.replace("{", r"\{")):
        models.build(name, channels=1, classes=2, arguments=arguments)


def test_a_dotted_path_is_called_with_channels_and_classes():
    model = models.build("trainyard.models:SmallConvNet", channels=1, classes=2, arguments={"width": 4})
    assert model(torch.zeros(1, 1, 8, 8)).shape == (1, 2)


def test_a_folder_without_a_staged_dataset_is_explained(tmp_path):
    with pytest.raises(DataError, match="run `snakemake data` first"):
        load(Staged(tmp_path), torch.device("cpu"))
