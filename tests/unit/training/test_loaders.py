"""Input of a training: all ways to the device give the same batches."""

import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import tracemalloc
from dataclasses import replace

import numpy as np
import psutil
import pytest
import torch
from loops import GPU_ON_PAPER, LEARNER, SPEC, changed, train
from project import alive
from slurm_cluster.waiting import PATIENCE_SECONDS, wait_until
from trainyard.cluster.stop_request import STOP_SIGNALS, stop_request_of_signals
from trainyard.config.datasets import Python
from trainyard.config.train import Augment
from trainyard.data.python_factory import as_class, as_normalized, as_numbers, as_pixels, cached_datasets
from trainyard.data.staged import DataError, ImageMeta, Staged
from trainyard.data.staging import stage
from trainyard.training import loaders
from trainyard.training.augmentation import Augmenter, shift_images
from trainyard.training.checkpoints import CheckpointStore
from trainyard.training.loaders import LoaderSplit, MappedSplit, ResidentSplit, load_input_data
from trainyard.utils.errors import UserError

CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def _short_waits():
    """torch waits five seconds for each worker of a DataLoader whose consumer has gone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.5)
        yield


def prefetched(staged):
    """The training images of a dataset, as they are read if they do not fit the device."""
    split = staged.split("train")
    return MappedSplit(split.images, split.labels, CPU)


def test_resident_and_prefetched_images_give_the_same_training(staged):
    there = load_input_data(staged, CPU)
    ahead = replace(there, train=prefetched(staged))
    assert isinstance(there.train, ResidentSplit)
    assert train(SPEC, there)[0] == train(SPEC, ahead)[0]


def test_a_batch_stays_uint8_until_it_is_on_the_device(staged):
    for split in (load_input_data(staged, CPU).train, prefetched(staged)):
        batch = next(split.batches([torch.tensor([3, 1])]))
        assert (batch.pixels.dtype, batch.pixels.shape) == (torch.uint8, (2, 8, 8, 3))
        assert np.array_equal(batch.pixels, staged.split("train").images[[3, 1]])


def test_an_exception_while_prefetching_is_raised_in_the_consumer(staged):
    split = prefetched(staged)
    with pytest.raises(IndexError):
        list(split.batches([torch.tensor([0]), torch.tensor([1000])]))


def test_a_generator_closed_early_ends_its_thread(staged):
    feed = prefetched(staged).batches(torch.arange(70).split(1))
    next(feed)
    assert "prefetching_0" in [thread.name for thread in threading.enumerate()]
    feed.close()
    assert "prefetching_0" not in [thread.name for thread in threading.enumerate()]


def test_the_prefetching_thread_uses_the_gpu_of_its_rank(monkeypatch):
    """A thread that chooses none opens a context on GPU 0, which belongs to another rank."""
    calls = []

    def note(what):
        calls.append((threading.current_thread().name, what))
        return what

    monkeypatch.setattr(torch.cuda, "set_device", lambda device: note(str(device)))
    assert list(loaders.prefetched((note(item) for item in "ab"), device=torch.device("cuda", 1))) == ["a", "b"]
    assert calls == [("prefetching_0", "cuda:1"), ("prefetching_0", "a"), ("prefetching_0", "b")]


def test_what_a_step_uploads_comes_from_pinned_memory(staged, monkeypatch):
    """From other memory, the host would wait for the copy."""
    sent, move = [], torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor.clone().as_subclass(Pinned))

    def to(tensor, *given, **options):
        if GPU_ON_PAPER in given:
            sent.append(type(tensor))
        return move(tensor.as_subclass(torch.Tensor) if isinstance(tensor, Pinned) else tensor, *given, **options)

    monkeypatch.setattr(torch.Tensor, "to", to)
    part = staged.split("train")
    resident = ResidentSplit(part.images, part.labels, CPU)
    resident._device = GPU_ON_PAPER
    spec = Augment(resized_crop=0.5, flip=True)
    batch = next(resident.batches([torch.arange(5)]))
    Augmenter(spec, size=70, seed=0, epoch=1, shape=(8, 8))(batch.pixels.as_subclass(OnPaper), batch.indices)
    assert len(sent) >= 3
    assert set(sent) == {Pinned}


class Pinned(torch.Tensor):
    """A tensor in memory that a GPU reads by itself."""


class OnPaper(torch.Tensor):
    """A tensor on a GPU."""

    device = GPU_ON_PAPER


def test_a_training_makes_one_stream_for_each_split(staged, monkeypatch):
    """torch has 32, and the allocator keeps freed memory for each."""
    made = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: made.append(device))
    data = load_input_data(staged, CPU)
    splits = {name: MappedSplit(part.images, part.labels, GPU_ON_PAPER) for name, part in parts(staged).items()}
    for split in splits.values():
        split._device = CPU  # where the batches really go
    train(SPEC, replace(data, **splits))
    assert made == [GPU_ON_PAPER] * 2


def parts(staged):
    return {name: staged.split(name) for name in ("train", "val")}


def test_a_folder_without_a_staged_dataset_is_explained(tmp_path):
    with pytest.raises(UserError, match="run Snakemake's target `data`"):
        load_input_data(Staged(tmp_path), torch.device("cpu"))


# ---- images on a GPU (whose memory is described here, since the machine of the tests may have none)


@pytest.mark.parametrize(
    ("free", "share", "reserved", "kept"),
    [  # of a GPU of 187 images, where there are 70 of the training and 23 of the validation
        (186, 1.0, 0, ["train", "val"]),  # half of the free memory
        (185, 1.0, 0, ["train"]),
        (140, 1.0, 0, ["train"]),
        (139, 1.0, 0, ["val"]),
        (45, 1.0, 0, []),
        (186, 0.5, 0, ["val"]),  # a trial with half of a GPU: the memory of the others is not its own
        (186, 1.0, 1, ["train", "val"]),  # nothing changes for a trial with a whole GPU
    ],
)
def test_images_stay_on_a_gpu_if_they_fit_the_share_of_this_process(staged, monkeypatch, free, share, reserved, kept):
    size = staged.split("train").images[0].nbytes
    found = []
    memory = {"mem_get_info": (free * size, 187 * size), "get_per_process_memory_fraction": share}
    for name, answer in (memory | {"memory_reserved": reserved * size}).items():
        monkeypatch.setattr(torch.cuda, name, lambda device, answer=answer: answer)
    for kind in ("ResidentSplit", "MappedSplit"):
        monkeypatch.setattr(loaders, kind, lambda *given, kind=kind, **options: found.append(kind))
    load_input_data(staged, GPU_ON_PAPER)
    assert found == ["ResidentSplit" if name in kept else "MappedSplit" for name in ("train", "val")]


# ---- a user's own dataset

OWN = """
import gc
import random
import numpy as np
import torch

class Blocks(torch.utils.data.Dataset):
    '''Images whose brightness tells their class.'''
    def __init__(self, count, kind):
        self.count, self.kind = count, kind
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        if self.kind == "first":
            raise KeyError("no file")
        if self.kind == "raises" and index == 3:
            raise KeyError(index)
        if self.kind == "collected":
            assert gc.isenabled()
        label = -1 if self.kind == "negative" and index == 3 else index % 3
        image = np.full((6, 5, 3), 80 * label + index % 7, np.uint8)
        if self.kind == "random":
            image[0] = torch.randint(256, (5, 3)).numpy()
            image[1:3] = np.random.randint(256, size=(2, 5, 3))
            image[3] = random.randrange(256)
        if self.kind == "float":
            image = torch.from_numpy(image).permute(2, 0, 1) / 255 - 0.5
        if self.kind in ("float64", "float16", "bfloat16", "array"):
            image = torch.from_numpy(image).permute(2, 0, 1) / 255 - 0.5
            image = image.numpy() if self.kind == "array" else image.to(getattr(torch, self.kind))
        if self.kind == "channels first":
            image = torch.zeros(3, 20, 30, dtype=torch.uint8)
        if self.kind == "channels last":
            image = np.zeros((20, 30, 3))
        if self.kind == "transforms":
            from torchvision.transforms import v2
            operations = [v2.ToImage(), v2.RandAugment(), v2.ToDtype(torch.float32), v2.RandomErasing(p=1)]
            image = v2.Compose(operations)(image)
        if self.kind == "flat":
            image = torch.rand(6, 5)
        if self.kind == "sizes":
            image = image[: 5 + index % 2]
        return image, label

def build(count, kind="uint8"):
    if kind == "call":
        raise KeyError("no file")
    return Blocks(count, kind), Blocks(0 if kind == "alone" else count // 2, kind)

def odd():
    return 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "own_blocks", None)
    del sys.modules["own_blocks"]
    (tmp_path / "own_blocks.py").write_text(OWN)
    return lambda **more: Python(source="python", factory="own_blocks:build", **more)


def load_with_workers(staged, workers):
    """A dataset of own code whose DataLoaders have so many workers: one for each thread of torch but one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(workers + 1)
    try:
        return load_input_data(staged, CPU)
    finally:
        torch.set_num_threads(threads)


def test_images_of_own_code_are_staged_once_or_made_on_the_fly(own, tmp_path):
    """Both trainings are equal but for the normalization, which is computed from a sample."""
    once = stage(own(args={"count": 60}), tmp_path / "once")
    fly = stage(own(args={"count": 60}, on_the_fly=True, classes=["a", "b", "c"]), tmp_path / "fly")
    assert once.meta.classes == ["0", "1", "2"]
    images = [staged.require(ImageMeta) for staged in (once, fly)]
    assert [each.shape for each in images] == [(6, 5, 3)] * 2
    assert images[0].mean == pytest.approx(images[1].mean)
    assert not list((tmp_path / "fly").glob("*.npy"))
    own_feed = load_with_workers(fly, 2)
    assert isinstance(own_feed.train, LoaderSplit)
    spec = changed(LEARNER, epochs=2)
    for row, same in zip(train(spec, own_feed)[0], train(spec, load_input_data(once, CPU))[0], strict=True):
        assert row == pytest.approx(same, abs=1e-6)


@pytest.mark.parametrize("kind", ["random", "transforms"])
def test_random_numbers_of_own_code_depend_on_neither_workers_nor_interruptions(own, tmp_path, kind):
    """As Trainyard's augmentation, they differ between images and epochs; RandAugment and random erasing as well."""
    section = own(args={"count": 60, "kind": kind}, on_the_fly=True, classes=["a", "b", "c"])
    staged = stage(section, tmp_path / "data")

    def rows(workers, **options):
        return train(changed(LEARNER, epochs=2), load_with_workers(staged, workers), **options)[0]

    whole, store = rows(1), CheckpointStore(tmp_path / "store")
    assert rows(2) == whole
    rows(1, store=store, epochs=1)
    assert rows(1, store=store) == whole
    split = load_with_workers(staged, 1).train
    one, same, other = (next(split.batches([torch.tensor([1, 22])], seed=seed)).pixels for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert not torch.equal(one[0, :4], one[1, :4])


def test_the_garbage_of_own_code_is_collected_in_its_workers(own, tmp_path):
    """They start within an epoch, where the training itself collects at fixed steps only."""
    section = own(args={"count": 60, "kind": "collected"}, on_the_fly=True, classes=["a", "b", "c"])
    assert train(LEARNER, load_with_workers(stage(section, tmp_path / "data"), 1))[0]


@pytest.mark.parametrize("kind", ["float", "float64", "float16", "bfloat16", "array"])
def test_own_images_that_are_normalized_already_are_taken_as_they_are(own, tmp_path, kind):
    staged = stage(own(args={"count": 60, "kind": kind}, on_the_fly=True, classes=["a", "b", "c"]), tmp_path / "data")
    data = load_with_workers(staged, 1)
    batch = next(data.train.batches([torch.tensor([2])]))
    assert torch.equal(data.normalize(batch.pixels, channels_last=False), batch.pixels)
    assert train(LEARNER, data)[0][-1]["val_accuracy"] == 1.0


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("flat", r"^image 0 is float32 of shape \(6, 5\): return the shape \(C, H, W\)$"),
        (
            "channels first",
            r"^image 0 is uint8 of shape \(3, 20, 30\): return \(H, W, C\), as of `permute\(1, 2, 0\)`$",
        ),
        ("channels last", r"^image 0 is float64 of shape \(20, 30, 3\): return the shape \(C, H, W\)$"),
        ("sizes", "^image 1 has 6x5x3 uint8, but image 0 5x5x3 uint8: all must be alike$"),
    ],
)
def test_own_images_that_fit_no_batch_are_found_before_the_training(own, tmp_path, kind, message):
    with pytest.raises(DataError, match=message):
        stage(own(args={"count": 60, "kind": kind}, on_the_fly=True, classes=["a", "b", "c"]), tmp_path / "data")


def test_series_with_many_channels_are_images_of_one_column():
    assert as_normalized(np.zeros((64, 1000, 1)), 0).shape == (64, 1000, 1)


@pytest.mark.parametrize("pixels", [1, 3, 4])
def test_a_few_pixels_may_have_many_channels(pixels):
    """As feature maps of another model, or patches of a hyperspectral image."""
    assert as_normalized(np.zeros((512, pixels, pixels)), 0).shape == (512, pixels, pixels)
    assert as_pixels(np.zeros((pixels, pixels, 200), np.uint8), 0).shape == (pixels, pixels, 200)


def test_staged_images_with_the_channels_first_are_an_error(own, tmp_path):
    """As of torchvision.io.read_image: they would be images of three pixels' height with many channels."""
    with pytest.raises(DataError, match=r"image 0 is uint8 of shape \(3, 20, 30\): return \(H, W, C\)"):
        stage(own(args={"count": 6, "kind": "channels first"}), tmp_path / "data")


def test_measuring_own_images_takes_the_memory_of_one(own, tmp_path):
    """1,024 images of 512x512 pixels have 0.8 GB, and eight times as much as float64."""
    section = own(args={"count": 900}, on_the_fly=True, classes=["a", "b", "c"])
    stage(section, tmp_path / "imports")
    tracemalloc.start()
    try:
        stage(section, tmp_path / "data")
        assert tracemalloc.get_traced_memory()[1] < 900 * 6 * 5 * 3 * 8
    finally:
        tracemalloc.stop()


def test_own_code_is_staged_again_when_its_file_changes(own, tmp_path):
    first = stage(own(args={"count": 6}), tmp_path / "data").digest
    assert stage(own(args={"count": 6}), tmp_path / "data").digest == first
    path = tmp_path / "own_blocks.py"
    # Of another length: bytecode of the same second would do for a file of the same.
    path.write_text(OWN.replace("80 * label", "8 * label"))
    del sys.modules["own_blocks"]  # another run has nothing in memory
    cached_datasets.cache_clear()
    assert stage(own(args={"count": 6}), tmp_path / "data").digest != first


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"factory": "own_blocks:nothing"}, "dataset 'own_blocks:nothing' cannot be imported"),
        ({"factory": "own_blocks:odd"}, "must return two torch datasets with a length"),
        (
            {"factory": "own_blocks:build", "args": {"count": 6, "kind": "float"}},
            r"image 0 is .* return uint8 of shape",
        ),
        ({"factory": "own_blocks:build", "args": {"count": 6}, "classes": ["a"]}, "label 2, but `classes` has 1 names"),
        ({"factory": "own_blocks:build", "args": {"count": 6}, "on_the_fly": True}, "needs the names of the `classes`"),
    ],
)
def test_own_code_that_cannot_be_used_is_explained(own, tmp_path, section, message):
    own()
    with pytest.raises(UserError, match=message):
        stage(Python(source="python", **section), tmp_path / "data")


class Faulty(torch.utils.data.Dataset):
    """Images of which the fourth is faulty."""

    def __init__(self, fault):
        self._fault = fault

    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index != 3:
            return np.zeros((8, 8, 3), np.uint8), 2
        if self._fault == "raises":
            raise KeyError("no annotation")
        if self._fault == "quits":
            sys.exit(0)
        return np.zeros((8, 9 if self._fault == "wide" else 8, 3), np.uint8), LABELS.get(self._fault, 0)


LABELS = {
    "negative": -1,
    "high": 3,
    "half": 0.5,
    "infinite": float("inf"),
    "one-hot tensor": torch.eye(3)[1],
    "long one-hot array": np.eye(100)[1],
}
FAULTS = {
    "raises": r"^item 3 of the dataset: KeyError: 'no annotation' \(.*test_loaders.py, line \d+\)$",
    "negative": "^the label of image 3 is -1, but `classes` has 3 names: return the class index, counted from 0$",
    "high": "^the label of image 3 is 3, but",
    "half": "^the label of image 3 is 0.5, but `classes` has 3 names: return the class index, counted from 0$",
    "infinite": "^the label of image 3 is inf, but",
    "one-hot tensor": r"^the label of image 3 is tensor\(\[0., 1., 0.\]\), but",
    "long one-hot array": r"^the label of image 3 is array\(\[0., 1., 0., 0., .* \.\.\., but",
    "quits": r"^item 3 of the dataset: it calls sys.exit\(0\) \(.*test_loaders.py, line \d+\)$",
    "wide": r"^RuntimeError: .* \[8, 9, 3\] at entry 1$",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_item_of_own_images_is_one_line(fault):
    split = LoaderSplit(Faulty(fault), CPU, outputs=3)
    with pytest.raises(DataError, match=FAULTS[fault]):
        list(split.batches([torch.tensor([0, 1]), torch.tensor([2, 3])]))


@pytest.mark.parametrize("fault", ["raises", "negative"])
def test_a_faulty_item_is_found_when_own_images_are_staged(own, tmp_path, fault):
    dataset = own(args={"count": 6, "kind": fault})
    with pytest.raises(DataError, match=r"image 3 is -1: return|item 3 of the dataset: .*own_blocks.py, line"):
        stage(dataset, tmp_path / "data")


@pytest.mark.parametrize("label", ["none", [1.0], [1.0, float("nan")], [[1.0], [2.0, 3.0]]])
def test_a_faulty_label_of_numbers_is_one_line(label):
    with pytest.raises(DataError, match=r"^the label of image 7 is .*, but `targets` names 2, which must be finite$"):
        as_numbers(label, 7, 2)


@pytest.mark.parametrize("label", [3, 3.0, "3", True, np.uint8(3), np.array(3), torch.tensor(3)])
def test_the_number_of_a_class_may_have_any_type(label):
    assert as_class(label, 0, 4) == (1 if label is True else 3)


@pytest.mark.parametrize(
    ("kind", "fails"), [("first", "item 0 of the dataset"), ("call", "dataset 'own_blocks:build'")]
)
@pytest.mark.parametrize("fly", [True, False])
def test_an_error_of_the_first_image_or_of_the_function_is_one_line(own, tmp_path, kind, fails, fly):
    options = {"on_the_fly": True, "classes": ["a", "b", "c"]} if fly else {}
    with pytest.raises(DataError, match=rf"^{fails}: KeyError: 'no file' \(.*own_blocks.py, line \d+\)$"):
        stage(own(args={"count": 6, "kind": kind}, **options), tmp_path / "data")


def test_own_images_without_validation_are_an_error(own, tmp_path):
    with pytest.raises(DataError, match="the validation dataset is empty"):
        stage(own(args={"count": 6, "kind": "alone"}, on_the_fly=True, classes=["a", "b", "c"]), tmp_path / "data")


def loading(split):
    """The batches of a split, and the processes of the workers that make them."""
    before = set(psutil.Process().children())
    batches = split.batches([torch.tensor([index % 3]) for index in range(60)])
    first = next(batches)
    return itertools.chain([first], batches), set(psutil.Process().children()) - before


def test_a_signal_that_all_processes_of_a_job_get_does_not_end_the_workers(handlers):
    """Without them, a training could not save its state."""
    stop_request_of_signals()
    split = LoaderSplit(Faulty("raises"), CPU, outputs=3)
    batches, workers = loading(split)
    assert workers
    for number in STOP_SIGNALS:  # of another process, as Slurm
        subprocess.run(["kill", f"-{int(number)}", *(str(worker.pid) for worker in workers)], check=True)
    assert len(list(batches)) == 60
    assert all(worker.is_running() for worker in workers), "they are there for the next epoch"


def test_the_workers_end_with_what_they_load_for():
    split = LoaderSplit(Faulty("raises"), CPU, outputs=3)
    batches, workers = loading(split)
    list(batches)
    del split, batches
    gc.collect()
    wait_until(lambda: not alive(workers), what="their end")


# For each of the ways in which a process ends, one that loads prints the way, its PID and those of its workers. All go
# on once standard input is closed. The exit codes follow.
LOADING = """
import os
import sys
import time
import psutil
import torch
from trainyard.cluster.stop_request import stop_request_of_signals
from trainyard.training.loaders import LoaderSplit

class Slow:
    def __len__(self):
        return 10_001

    def __getitem__(self, index):
        time.sleep(index)
        return torch.zeros(3, 8, 8), 0

def load(way):
    torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 0.5
    stop_request_of_signals()
    batches = LoaderSplit(Slow(), torch.device("cpu"), outputs=3).batches([torch.tensor([0]), torch.tensor([10_000])])
    next(batches)
    sys.keep = batches if way == "kept" else None
    pids = " ".join(str(each.pid) for each in [psutil.Process(), *psutil.Process().children()])
    os.write(1, f"{way} {pids}\\n".encode())  # at once: with PYTHONUNBUFFERED, print writes word by word
    sys.stdin.read()
    if way == "failed":
        raise RuntimeError("no space left")

if __name__ == "__main__":
    started = {}
    for way in sys.argv[1:]:
        process = os.fork()
        if not process:
            load(way)
            break
        started[way] = process
    else:
        for way, process in started.items():
            print(way, os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
"""
ENDS = {"kept": 0, "dropped": 0, "failed": 1, "killed": -signal.SIGKILL}


def test_the_workers_end_with_their_process(tmp_path):
    """Also while they make an image, which takes hours."""
    (tmp_path / "loading.py").write_text(LOADING)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, tmp_path / "loading.py", *ENDS], env=environment, **pipes) as main:
        lines = [main.stdout.readline().split() for _ in ENDS]
        loading = {way: [psutil.Process(int(pid)) for pid in pids] for way, *pids in lines}
        loading["killed"][0].kill()
        said = main.communicate(timeout=PATIENCE_SECONDS)[0]
    assert said.splitlines() == [f"{way} {int(code)}" for way, code in ENDS.items()]
    assert all(len(processes) > 1 for processes in loading.values()), "they have workers"
    wait_until(lambda: not alive(itertools.chain(*loading.values())), what="their end")


# ---- crops and flips


def cropped(image, row, column, padding):
    """As torchvision's RandomCrop: black padding, then a crop."""
    framed = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
    return framed[row : row + image.shape[0], column : column + image.shape[1]]


@pytest.mark.parametrize(("shape", "padding"), [((5, 4, 3), 1), ((8, 8, 1), 3), ((3, 7, 3), 4)])
def test_every_shift_is_a_crop_of_the_padded_image(shape, padding):
    places = (2 * padding + 1) ** 2
    images = torch.from_numpy(np.random.default_rng(0).integers(1, 256, (places, *shape), np.uint8))
    result = shift_images(images, torch.arange(places), padding)
    for place in range(places):
        row, column = divmod(place, 2 * padding + 1)
        assert np.array_equal(result[place], cropped(images[place].numpy(), row, column, padding))


def test_the_augmentation_of_an_image_does_not_depend_on_its_batch():
    """Nor on the rank; another epoch has other random numbers."""
    images = torch.randint(1, 256, (64, 6, 6, 3), dtype=torch.uint8)
    spec = Augment(crop_padding=2, flip=True)
    augmented = Augmenter(spec, size=64, seed=1, epoch=1)
    whole = augmented(images, torch.arange(64))
    parts = torch.randperm(64)
    assert torch.equal(augmented(images[parts], parts), whole[parts])
    assert torch.equal(Augmenter(spec, size=64, seed=1, epoch=1)(images, torch.arange(64)), whole)
    assert not torch.equal(Augmenter(spec, size=64, seed=1, epoch=2)(images, torch.arange(64)), whole)
    one = images[:1].expand(64, -1, -1, -1)
    assert len(torch.unique(augmented(one, torch.arange(64)), dim=0)) > 20, "per image, not per batch"


def test_half_of_the_images_are_flipped():
    images = torch.randint(1, 256, (1000, 2, 3, 1), dtype=torch.uint8)
    flipped = Augmenter(Augment(flip=True), size=1000, seed=0, epoch=1)(images, torch.arange(1000))
    same = (flipped == images).all(dim=(1, 2, 3))
    mirrored = (flipped == images.flip(2)).all(dim=(1, 2, 3))
    assert (same | mirrored).all()
    assert 400 < int(mirrored.sum()) < 600


def test_without_augmentation_images_stay_as_they_are():
    images = torch.randint(0, 256, (4, 5, 5, 3), dtype=torch.uint8)
    assert Augmenter(Augment(), size=4, seed=0, epoch=1)(images, torch.arange(4)) is images
