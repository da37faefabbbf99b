"""Staging that is killed, runs out of disk or runs twice: finished shards are kept, and nothing else is used."""

import io
import os
import tarfile

import numpy as np
import psutil
import pytest
from imagesets import pixels, write_tree
from project import alive
from slurm_cluster.waiting import PATIENCE_SECONDS, wait_until
from small_disk import mount_small_disk
from trainyard.utils.files import file_digest

SHARDS = 5
# Datasets whose third shard and those after it wait for a file, so that a test can break something meanwhile.
WAITING = """
import time
from pathlib import Path
import numpy as np

class Images:
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        while index >= 2 * 1365 and not Path(__file__).with_name("go").exists():
            time.sleep(0.01)
        return np.random.default_rng(index).integers(0, 256, (64, 64, 3), np.uint8), index % 4

def build():
    return Images(5000), Images(100)
"""


@pytest.fixture
def waiting(project):
    """A project with a dataset that waits."""
    (project.folder / "waiting.py").write_text(WAITING)
    project.write({"datasets": {"set": {"source": "python", "factory": "waiting:build"}}})
    return project


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The digests of the dataset's files after a run on one CPU that nothing disturbs."""
    from project import Project

    project = Project(tmp_path_factory.mktemp("undisturbed"))
    (project.folder / "waiting.py").write_text(WAITING)
    (project.folder / "go").touch()
    project.write({"datasets": {"set": {"source": "python", "factory": "waiting:build"}}})
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [min(cpus)])
    try:
        project.run(*project.script("stage", "--dataset", "set"))
    finally:
        os.sched_setaffinity(0, cpus)
    return digests(project.results)


def digests(results):
    """Of the arrays; `meta.json` has the path of the source."""
    return {path.name: file_digest(path) for path in sorted((results / "data/set").glob("*.npy"))}


def shards_done(results):
    path = results / "data/set/.staging/shards.jsonl"
    return path.read_text().count('"event":"shard"') if path.exists() else 0


def start_and_wait(project, *, inside=lambda *command: command, results=None):
    """A staging that waits for the file `go`, with all shards done that do not."""
    started = project.start(*inside(*project.script("stage", "--dataset", "set")))
    wait_until(lambda: shards_done(results or project.results) >= 2, what="shards are done", while_running=started)
    return started


def end_of(started):
    """The exit code, and the lines of the output."""
    output = started.communicate(timeout=PATIENCE_SECONDS)[0]
    assert "Traceback" not in output
    return started.returncode, output.splitlines()


def test_a_killed_staging_leaves_no_process_and_continues(waiting, expected):
    for _ in range(2):
        started = start_and_wait(waiting)
        helpers = psutil.Process(started.pid).children(recursive=True)
        started.kill()
        started.communicate()
        psutil.wait_procs(helpers, timeout=PATIENCE_SECONDS)
        assert not alive(helpers)
        folder = waiting.results / "data/set"
        receipts = [path for path in folder.glob("made_for/*") if path.read_text()]  # empty while data is staged
        assert not [*receipts, *folder.glob("[!.]*.*")], "nothing is taken for complete"
    done = shards_done(waiting.results)
    (waiting.folder / "go").touch()
    output = waiting.run(*waiting.script("stage", "--dataset", "set")).stdout
    assert f"set: {done} of {SHARDS} shards are already staged" in output
    assert digests(waiting.results) == expected
    assert not (waiting.results / "data/set/.staging").exists()


@pytest.mark.slow
def test_a_disk_that_is_full_in_the_middle_is_one_error_and_the_next_run_continues(waiting, expected):
    with mount_small_disk(waiting.folder / "disk", "80m") as disk:
        waiting.results = disk.mount
        started = start_and_wait(waiting, inside=disk.inside, results=disk.folder)
        filler = disk.fill()
        (waiting.folder / "go").touch()
        code, lines = end_of(started)
        assert code == 1
        assert f"{disk.mount}/data/set/.staging/" in lines[-1]
        assert "no space left on device: make room on this file system" in lines[-1]
        assert lines[-1].endswith(" MiB are still to be written")
        assert not list((disk.folder / "data/set").glob("[!.]*.*")), "nothing is taken for complete"
        done = shards_done(disk.folder)
        assert done >= 2
        filler.unlink()
        output = waiting.run(*disk.inside(*waiting.script("stage", "--dataset", "set"))).stdout
        assert f"set: {done} of {SHARDS} shards are already staged" in output
        assert digests(disk.folder) == expected


@pytest.mark.slow
def test_of_two_stagings_at_once_one_waits_and_uses_what_the_other_has_staged(waiting, expected):
    first = start_and_wait(waiting)
    second = waiting.start(*waiting.script("stage", "--dataset", "set"))
    assert f"waiting for {waiting.results}/data/set, in use by process {first.pid} on " in second.stdout.readline()
    (waiting.folder / "go").touch()
    (code, _), (other_code, lines) = end_of(first), end_of(second)
    assert (code, other_code) == (0, 0)
    assert len(lines) == 1, "it does not stage them again"
    assert digests(waiting.results) == expected


@pytest.mark.slow
def test_a_disk_that_is_full_when_bad_images_are_left_out_is_one_error(project):
    """The copy without them is written last. Through a memory map, a full disk would kill the process."""
    root = write_tree(project.folder / "images", pixels(24, (256, 256, 3)), np.arange(24) % 3)
    (root / "train/class0/00000.png").write_bytes(b"no image")
    project.write({"datasets": {"set": {"source": "imagefolder", "root": str(root), "on_bad_image": "skip"}}})
    project.run(*project.script("stage", "--dataset", "set"))
    expected = digests(project.results)
    with mount_small_disk(project.folder / "disk", "7m") as disk:
        project.results = disk.mount
        failed = project.run(*disk.inside(*project.script("stage", "--dataset", "set")), check=False)
        assert (failed.returncode, failed.stderr) == (1, "")
        last = failed.stdout.splitlines()[-1]
        assert last.startswith(f"{disk.mount}/data/set/.staging/good-train-images.npy: no space left on device: make")
        disk.remount("size=30m")
        project.run(*disk.inside(*project.script("stage", "--dataset", "set")))
        assert digests(disk.folder) == expected


@pytest.mark.slow
def test_a_compressed_tar_that_does_not_fit_the_disk_is_one_error(project):
    with tarfile.open(project.folder / "set.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("train/class0/noise.png")
        member.size = 2**23
        archive.addfile(member, io.BytesIO(np.random.default_rng(0).bytes(2**23)))
    project.write({"datasets": {"set": {"source": "imagefolder", "root": str(project.folder / "set.tar.gz")}}})
    with mount_small_disk(project.folder / "disk", "5m") as disk:
        project.results = disk.mount
        failed = project.run(*disk.inside(*project.script("stage", "--dataset", "set")), check=False)
        (line,) = failed.stdout.splitlines()
        assert (failed.returncode, failed.stderr) == (1, "")
        target = f"{disk.mount}/data/set/.staging/set.tar.gz-"
        assert line.startswith(f"{project.folder}/set.tar.gz cannot be decompressed: {target}")
        assert "no space left on device: make room on this file system" in line
        assert line.endswith("; or extract it elsewhere and use that folder as `root`")
        assert list((disk.folder / "data/set/.staging").iterdir()) == []
