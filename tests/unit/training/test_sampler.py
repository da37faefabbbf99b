"""The images of each rank and step."""

import pytest
from hypothesis import given
from hypothesis import strategies as some
from trainyard.config.train import Train
from trainyard.data.staged import DataError
from trainyard.training.sampler import BatchSizes, batch_sizes, steps_per_epoch, training_batches, validation_batches
from trainyard.utils.errors import UserError


def indices_by_step(batch, *, size=70, seed=3, epoch=2, first_step=0):
    """The images of all ranks for each step, sorted."""
    shares = [
        list(training_batches(size, batch, rank=rank, seed=seed, epoch=epoch, first_step=first_step))
        for rank in range(batch.world_size)
    ]
    parts = batch.accumulation
    steps = range(0, len(shares[0]), parts)
    return [sorted(int(i) for share in shares for part in share[at : at + parts] for i in part) for at in steps]


@given(
    world_size=some.sampled_from([1, 2, 3, 4]),
    micro=some.integers(1, 12),
    size=some.integers(12, 100),
    seed=some.integers(0),
)
def test_the_images_of_a_step_do_not_depend_on_ranks_and_micro_batches(world_size, micro, size, seed):
    batch = BatchSizes(per_rank=12 // world_size, micro=min(micro, 12 // world_size), world_size=world_size)
    taken = indices_by_step(batch, size=size, seed=seed)
    assert taken == indices_by_step(BatchSizes(per_rank=12, micro=12), size=size, seed=seed)
    assert len(taken) == size // 12
    images = [image for step in taken for image in step]
    assert len(set(images)) == len(images)
    assert indices_by_step(batch, size=size, seed=seed, first_step=1) == taken[1:]


@given(per_rank=some.integers(2, 200), micro=some.integers(2, 200))
def test_micro_batches_are_even(per_rank, micro):
    """A rest of one image is too few for batch normalization, whose layers of one pixel raise an error."""
    batch = BatchSizes(per_rank=per_rank, micro=min(micro, per_rank))
    sizes = [len(part) for part in training_batches(per_rank, batch, rank=0, seed=0, epoch=1)]
    assert len(sizes) == batch.accumulation
    assert sum(sizes) == per_rank
    assert max(sizes) <= batch.micro
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) > 1 or batch.micro == 2


def test_every_epoch_is_shuffled_anew():
    batch = BatchSizes(per_rank=16, micro=16)
    assert indices_by_step(batch, epoch=1) != indices_by_step(batch, epoch=2)


@given(size=some.integers(1, 50), world_size=some.integers(1, 6), batch=some.integers(1, 9))
def test_every_image_is_validated_once(size, world_size, batch):
    shares = [validation_batches(size, batch=batch, rank=rank, world_size=world_size) for rank in range(world_size)]
    parts = [list(share) for share in shares]
    assert sorted(int(i) for share in parts for part in share for i in part) == list(range(size))
    assert all(len(part) for share in parts for part in share), "the loss of an empty batch is NaN"


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(DataError, match="global batch of 128 images is larger than the 70 training images"):
        steps_per_epoch(70, BatchSizes(per_rank=64, micro=64, world_size=2))


@pytest.mark.parametrize(
    ("spec", "mode", "per_rank", "micro"),
    [
        ({"batch_size": 32}, "weak", 32, 32),
        ({"batch_size": 32, "accumulation": 4}, "weak", 128, 32),
        ({"batch_size": 32}, "strong", 8, 8),
        ({"batch_size": 32, "accumulation": 4}, "strong", 8, 2),
        ({"batch_size": 32, "accumulation": 2}, "strong", 8, 4),
    ],
)
def test_batch_sizes_on_four_ranks(spec, mode, per_rank, micro):
    batch = batch_sizes(Train(**spec), world_size=4, mode=mode)
    assert (batch.per_rank, batch.micro, batch.images) == (per_rank, micro, 4 * per_rank)


def test_an_indivisible_batch_is_refused():
    with pytest.raises(UserError, match="global batch of 30 images cannot be shared evenly by 4 ranks"):
        batch_sizes(Train(batch_size=30), world_size=4, mode="strong")


def test_halving_keeps_the_step():
    batch = BatchSizes(per_rank=14, micro=14)
    sizes = []
    while batch.micro > 1:
        batch = batch.halved()
        sizes.append([len(part) for part in training_batches(14, batch, rank=0, seed=0, epoch=1)])
    assert sizes == [[7, 7], [4, 4, 3, 3], [2] * 7, [1] * 14]
    with pytest.raises(UserError, match="one image"):
        batch.halved()
