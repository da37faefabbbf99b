"""Augmentation on the device is torchvision's, but drawn for each image, from seed, epoch and image only."""

import time
from statistics import fmean

import pytest
import torch
from loops import LEARNER, SPEC, assert_equal_states, changed, numbers, start, train
from torchvision.transforms import v2
from trainyard.config.train import Augment
from trainyard.training.augmentation import CROP_RATIO, Augmenter, Mixer, draw_crops, resize_crops
from trainyard.training.checkpoints import CheckpointStore
from trainyard.training.loaders import ImageBatch
from trainyard.training.loss_and_metrics import main_labels
from trainyard.training.trainer import TrainingInterrupted
from trainyard.utils.errors import UserError

HEIGHT, WIDTH, COUNT = 24, 32, 64
ALL = {"resized_crop": 0.3, "flip": True}


@pytest.fixture(scope="module")
def images():
    return torch.randint(1, 256, (COUNT, HEIGHT, WIDTH, 3), dtype=torch.uint8, generator=generator())


def generator():
    return torch.Generator().manual_seed(0)


def augmenter(*, epoch=1, size=COUNT, **spec):
    return Augmenter(Augment(**spec), size=size, seed=1, epoch=epoch, shape=(HEIGHT, WIDTH))


@pytest.mark.parametrize(
    "spec", [{"resized_crop": 0.3}, {"crop_padding": 4, "flip": True}, ALL], ids=lambda spec: "-".join(spec)
)
def test_what_an_image_gets_does_not_depend_on_its_batch(images, spec):
    """Nor on the rank, or on what was asked before; another epoch has other random numbers."""
    whole = augmenter(**spec)(images, torch.arange(COUNT))
    parts = torch.randperm(COUNT, generator=generator())[: COUNT // 2]
    assert torch.equal(augmenter(**spec)(images[parts], parts), whole[parts])
    assert whole.is_contiguous()
    assert whole.shape == images.shape
    assert not torch.equal(augmenter(**spec, epoch=2)(images, torch.arange(COUNT)), whole)
    one = images[:1].expand(COUNT, -1, -1, -1)
    assert len(torch.unique(augmenter(**spec)(one, torch.arange(COUNT)), dim=0)) > 20, "per image, not per batch"


def test_the_images_of_the_dataset_are_not_changed(images):
    before = images.clone()
    augmenter(**ALL)(images, torch.arange(COUNT))
    assert torch.equal(images, before)


# ---- crops


def test_crops_are_resized_as_by_torchvision(images):
    boxes = draw_crops(COUNT, 0.1, height=HEIGHT, width=WIDTH, generator=generator())
    resized = resize_crops(images, boxes)
    for image, box, ours in zip(images, boxes.tolist(), resized, strict=True):
        theirs = v2.functional.resized_crop(image.permute(2, 0, 1), *box, size=[HEIGHT, WIDTH], antialias=True)
        assert (ours.permute(2, 0, 1).int() - theirs.int()).abs().max() <= 1


def test_a_crop_of_the_whole_image_is_the_image(images):
    boxes = torch.tensor([[0, 0, HEIGHT, WIDTH]]).expand(COUNT, 4)
    assert torch.equal(resize_crops(images, boxes), images)


def test_crops_are_distributed_as_those_of_torchvision():
    count, transform = 4000, v2.RandomResizedCrop((HEIGHT, WIDTH))
    torch.manual_seed(0)
    drawn = (transform.make_params([torch.zeros(3, HEIGHT, WIDTH)]) for _ in range(count))
    theirs = torch.tensor([[box[name] for name in ("top", "left", "height", "width")] for box in drawn])
    ours = draw_crops(count, 0.08, height=HEIGHT, width=WIDTH, generator=generator())
    assert bool(((ours[:, :2] >= 0) & (ours[:, :2] + ours[:, 2:] <= torch.tensor([HEIGHT, WIDTH]))).all())
    for of in (lambda box: box, lambda box: box[:, 2] * box[:, 3], lambda box: box[:, 2] / box[:, 3]):
        for moment in (torch.mean, torch.std):
            found, wanted = (torch.atleast_1d(moment(of(boxes.double()), 0)) for boxes in (ours, theirs))
            assert found.tolist() == pytest.approx(wanted.tolist(), rel=0.07)


def test_an_image_into_which_no_crop_fits_is_cropped_centrally():
    height, width = 4, 400
    boxes = draw_crops(50, 1.0, height=height, width=width, generator=generator())
    central = v2.RandomResizedCrop((height, width), scale=(1, 1)).make_params([torch.zeros(3, height, width)])
    assert boxes.unique(dim=0).tolist() == [list(central.values())]
    assert tuple(v2.RandomResizedCrop(8).ratio) == CROP_RATIO


def test_images_that_cannot_be_augmented_are_explained(images):
    with pytest.raises(UserError, match="augment is for uint8 images"):
        augmenter(flip=True)(images.float(), torch.arange(COUNT))


# ---- mixing


def mixed(data, *, step=0, batch=None, **spec):
    batch = batch or next(data.train.batches([torch.arange(16)]))
    mixer = Mixer(Augment(**spec), data, seed=0, channels_last=False)
    return batch, mixer(batch, epoch=1, step=step)


def test_mixup_mixes_images_and_labels_by_the_same_weight(data):
    batch, made = mixed(data, mixup=1.0)
    plain = data.normalize(batch.pixels, channels_last=False)
    weight = float(made.labels[0, batch.labels[0]])
    assert batch.labels[0] != batch.labels[-1]
    assert 0 < weight < 1
    assert torch.allclose(made.pixels, weight * plain + (1 - weight) * plain.roll(1, 0), atol=1e-6)
    assert torch.allclose(made.labels.sum(1), torch.ones(16))


def test_cutmix_gives_labels_the_share_of_the_pixels(data):
    batch, made = mixed(data, cutmix=1.0)
    plain = data.normalize(batch.pixels, channels_last=False)
    kept = float((made.pixels[0] == plain[0]).double().mean())
    assert 0 < kept < 1
    assert float(made.labels[0, batch.labels[0]]) == pytest.approx(kept)
    assert bool(((made.pixels == plain) | (made.pixels == plain.roll(1, 0))).all())


def test_a_step_draws_the_same_on_all_ranks_and_leaves_the_models_random_numbers_alone(data):
    spec = {"mixup": 0.4, "cutmix": 1.0}
    torch.manual_seed(3)
    state = torch.get_rng_state()
    (_, one), (_, other) = (mixed(data, step=7, **spec) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(4)
    assert torch.equal(mixed(data, step=7, **spec)[1].pixels, one.pixels)
    assert torch.equal(one.labels, other.labels)
    assert len({str(mixed(data, step=step, **spec)[1].labels) for step in range(8)}) == 8, "each step draws again"


def test_without_mixing_a_batch_stays_as_it_is(data):
    batch, made = mixed(data)
    assert made is batch


def test_accuracy_counts_the_label_with_the_largest_share():
    assert main_labels(torch.tensor([[0.3, 0.7], [0.6, 0.4]])).tolist() == [1, 0]
    assert main_labels(torch.tensor([1, 0])).tolist() == [1, 0]


# ---- in a training

EVERYTHING = {**ALL, "mixup": 0.2, "cutmix": 1.0}


def test_an_augmented_training_stopped_at_every_step_ends_bit_identical(data, tmp_path):
    spec = changed(SPEC, epochs=2, augment=EVERYTHING, label_smoothing=0.1)
    whole, whole_state = train(spec, data)
    store = CheckpointStore(tmp_path)
    while True:
        training = start(spec, data, store=store, deadline=time.time())
        try:
            list(training.epochs())
        except TrainingInterrupted:
            continue
        break
    assert [numbers(row) for row in training.history] == whole
    assert_equal_states(training.module.state_dict(), whole_state)


def test_mixing_in_micro_batches_draws_the_same_weights(data):
    batch = next(data.train.batches([torch.arange(16)]))
    half = ImageBatch(batch.pixels[:8], batch.labels[:8], batch.indices[:8])
    (_, whole), (_, part) = mixed(data, batch=batch, mixup=1.0), mixed(data, batch=half, mixup=1.0)
    assert torch.equal(whole.labels[1:8], part.labels[1:])


def test_a_mixed_training_learns(data):
    rows, _ = train(changed(LEARNER, augment={"mixup": 0.2, "resized_crop": 0.8}, epochs=10), data)
    assert rows[-1]["val_accuracy"] > 0.6
    assert fmean(row["train_loss"] for row in rows[-2:]) < rows[0]["train_loss"]
