"""Downloads from a server that drops, truncates, corrupts, redirects and refuses: what arrives is whole, or nothing."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from httpserver import Faulty
from imagesets import pack, pixels, write_mnist, write_tree
from trainyard.config.config import Data
from trainyard.config.datasets import ImageFolder, Torchvision
from trainyard.data import torchvision_datasets
from trainyard.data.downloads import DownloadError, Remote, fetch
from trainyard.data.staging import stage
from yard import ROOT

CONTENT = np.random.default_rng(0).bytes(3_000_000)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def server():
    with Faulty({"/file.bin": CONTENT}).serving() as faulty:
        yield faulty


def remote(server, *paths, content=CONTENT, algorithm="sha256"):
    urls = tuple(f"{server.url}{path}" for path in paths or ["/file.bin"])
    return Remote("file.bin", urls, f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}")


def get(server, folder, *paths, **options):
    return fetch(remote(server, *paths, **options), folder, first_wait_seconds=0.01)


def left(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


# faults of the answers in turn; the ranges that are asked for; in words
RECOVERED = [
    ([], [None]),
    ([("drop", 1_200_000)], [None, "bytes=1"]),  # goes on within the last of the chunks that arrived
    ([("drop", 1_200_000), ("drop", 1_100_000)], [None, "bytes=1", "bytes=2"]),
    ([("drop", 0)] * 4, [None] * 5),
    ([("short", 2_000_000)], [None, None]),  # looks whole, so that its checksum is wrong: from the beginning
    (["corrupt"], [None, None]),
    ([503, 503], [None] * 3),
    ([429, 500, 502, 504], [None] * 5),
    ([("redirect", "/file.bin")], [None, None]),
    ([("drop", 1_200_000), 503, "corrupt"], [None, "bytes=1", "bytes=1", None]),
]


@pytest.mark.parametrize(("faults", "ranges"), RECOVERED)
def test_what_goes_wrong_on_the_way_is_made_up_for(server, tmp_path, faults, ranges):
    server.faults["/file.bin"] = list(faults)
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert left(tmp_path) == ["file.bin"]
    asked = [wanted for _, wanted in server.requests]
    assert len(asked) == len(ranges)
    for wanted, expected in zip(asked, ranges, strict=True):
        assert wanted == expected or (expected and wanted.startswith(expected))


def test_a_server_without_ranges_is_asked_for_all_again(tmp_path):
    with Faulty({"/file.bin": CONTENT}, ranges=False).serving() as server:
        server.faults["/file.bin"] = [("drop", 1_200_000)]
        assert get(server, tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("algorithm", ["md5", "sha256"])
def test_both_checksums_are_known(server, tmp_path, algorithm):
    assert get(server, tmp_path, algorithm=algorithm).read_bytes() == CONTENT


LOST = [
    ({"/file.bin": [404]}, ["/file.bin"], "answered 404"),
    ({"/file.bin": [403]}, ["/file.bin"], "answered 403"),
    ({"/file.bin": [503] * 9}, ["/file.bin"], "answered 503"),
    ({"/file.bin": ["corrupt", "corrupt"]}, ["/file.bin"], "what comes has the checksum"),
    ({}, ["/nothing", "/nowhere"], "/nothing: answered 404 .*; .*/nowhere: answered 404"),
]


@pytest.mark.parametrize(("faults", "paths", "reason"), LOST)
def test_what_cannot_be_had_is_told_with_what_to_put_where_and_nothing_is_kept(server, tmp_path, faults, paths, reason):
    server.faults = {path: list(each) for path, each in faults.items()}
    with pytest.raises(DownloadError, match=f"file.bin cannot be downloaded here .*{reason}.*: put it into {tmp_path}"):
        get(server, tmp_path, *paths)
    assert left(tmp_path) == []


def test_offline_is_one_line(tmp_path):
    with Faulty({}).serving() as server:
        gone = remote(server)
    with pytest.raises(DownloadError, match=r"cannot be downloaded here \(.*Connection refused\): put it") as caught:
        fetch(gone, tmp_path, first_wait_seconds=0.01)
    assert "\n" not in str(caught.value)


def test_the_next_mirror_is_asked(server, tmp_path):
    assert get(server, tmp_path, "/nothing", "/file.bin").read_bytes() == CONTENT


def test_what_is_there_is_checked_and_not_fetched_again(server, tmp_path):
    get(server, tmp_path)
    get(server, tmp_path)
    assert len(server.requests) == 1
    (tmp_path / "file.bin").write_bytes(CONTENT[:-1])
    with pytest.raises(DownloadError, match=r"is not the published file .*: remove it"):
        get(server, tmp_path)


def test_a_part_that_was_left_is_continued_and_a_wrong_one_begun_anew(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:1000])
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.requests == [("/file.bin", "bytes=1000-")]
    (tmp_path / "file.bin").unlink()
    (tmp_path / "file.bin.part").write_bytes(b"x" * (len(CONTENT) + 5))
    assert get(server, tmp_path).read_bytes() == CONTENT


FETCH = """
import sys; sys.path.insert(0, {scripts!r})
from pathlib import Path
from trainyard.data.downloads import Remote, fetch
fetch(Remote("file.bin", ({url!r},), {checksum!r}), Path({folder!r}))
"""


def test_two_workflows_at_once_download_once(server, tmp_path):
    wanted = remote(server)
    code = FETCH.format(
        scripts=str(ROOT / "scripts"), url=wanted.urls[0], checksum=wanted.checksum, folder=str(tmp_path)
    )
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL) for _ in range(4)]
    assert [process.wait(60) for process in started] == [0] * 4
    assert len(server.requests) == 1


# ---- datasets that come that way


def test_an_archive_is_downloaded_and_staged(tmp_path, server):
    images, labels = pixels(8, (6, 6, 3)), np.arange(8) % 2
    packed = pack(write_tree(tmp_path / "set", images, labels), tmp_path / "set.zip").read_bytes()
    server.files["/some/set.zip"] = packed
    dataset = ImageFolder(source="imagefolder", url=f"{server.url}/some/set.zip",
                          checksum=f"md5:{hashlib.md5(packed).hexdigest()}")  # fmt: skip
    data = Data(downloads=str(tmp_path / "downloads"))
    staged = stage(dataset, tmp_path / "staged", data)
    assert sum(map(sum, staged.meta["counts"].values())) == 8
    stage(dataset, tmp_path / "again", data)
    assert len(server.requests) == 1


def test_torchvisions_files_come_from_its_addresses_with_its_checksums(tmp_path, server, monkeypatch):
    train, val = (pixels(20, (28, 28)), np.arange(20) % 10), (pixels(10, (28, 28), 1), np.arange(10))
    write_mnist(tmp_path / "mnist", train, val, suffix=".gz")
    known = torchvision_datasets.remotes(Torchvision(source="torchvision", name="MNIST"))
    assert sorted(each.name for each in known) == sorted(path.name for path in (tmp_path / "mnist").iterdir())
    assert all(url.startswith("http") for each in known for url in each.urls)
    assert {each.checksum for each in known if each.name == "train-images-idx3-ubyte.gz"} == {
        "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873"
    }
    kind = torchvision_datasets._torchvision("MNIST")
    made = {path.name: path.read_bytes() for path in (tmp_path / "mnist").iterdir()}
    server.files = {f"/mnist/{name}": content for name, content in made.items()}
    monkeypatch.setattr(kind, "mirrors", [f"{server.url}/gone/", f"{server.url}/mnist/"])
    monkeypatch.setattr(kind, "resources", [(name, hashlib.md5(content).hexdigest()) for name, content in made.items()])
    dataset, data = Torchvision(source="torchvision", name="MNIST"), Data(downloads=str(tmp_path / "downloads"))
    staged = stage(dataset, tmp_path / "staged", data)
    assert np.array_equal(staged.split("train").images[..., 0], train[0])
    assert staged.meta["problems"] == {}
    server.files["/mnist/t10k-labels-idx1-ubyte.gz"] += b"?"
    (tmp_path / "downloads/MNIST/t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DownloadError, match=r"t10k-labels-idx1-ubyte.gz cannot be downloaded here .* checksum"):
        stage(dataset, tmp_path / "other", data)
    assert not list((tmp_path / "other").glob("*.npy"))
    assert os.listdir(tmp_path / "downloads/MNIST").count("t10k-labels-idx1-ubyte.gz.part") == 0
