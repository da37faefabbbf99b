"""Downloads from a server that drops, truncates, corrupts, redirects and refuses: a file is whole or not kept."""

import gzip
import hashlib
import json
import subprocess
import sys
from argparse import Namespace
from types import SimpleNamespace

import numpy as np
import pooch
import pytest
import torchvision
import weights
from httpserver import Faulty
from imagesets import pack, pixels, write_mnist, write_tree
from project import ROOT
from slurm_cluster.waiting import PATIENCE_SECONDS
from small_disk import mount_small_disk
from trainyard.config.config import Data
from trainyard.config.datasets import ImageFolder, Torchvision
from trainyard.data import torchvision_datasets
from trainyard.data.downloads import RETRIES, DownloadError, RemoteFile, download
from trainyard.data.staged import StagedImageMeta
from trainyard.data.staging import stage

CONTENT = np.random.default_rng(0).bytes(3_000_000)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture(autouse=True)
def waits(monkeypatch):
    """The waits between retries in seconds; the tests skip them."""
    seconds = []
    monkeypatch.setattr(pooch.core, "time", SimpleNamespace(sleep=seconds.append))
    return seconds


@pytest.fixture
def server():
    with Faulty({"/file.bin": CONTENT}).serving() as faulty:
        yield faulty


def remote(server, *paths, content=CONTENT, algorithm="sha256"):
    urls = tuple(f"{server.url}{path}" for path in paths or ["/file.bin"])
    return RemoteFile("file.bin", urls, f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}")


def get(server, folder, *paths, **options):
    return download(remote(server, *paths, **options), folder)


def left(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


RECOVERED = [
    [],
    [("drop", 1_200_000)],
    [("drop", 0)] * RETRIES,
    [("short", 2_000_000)],  # a whole response of a file that is not whole
    ["corrupt"],
    [503, 503],
    [408, 429, 500, 504],
    [("drop", 1_200_000), 503, "corrupt"],
]


@pytest.mark.parametrize("faults", RECOVERED, ids=str)
def test_a_download_is_retried_until_it_is_whole(server, tmp_path, waits, faults):
    server.faults["/file.bin"] = list(faults)
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert left(tmp_path) == ["file.bin"]
    assert len(server.requests) == len(faults) + 1
    assert waits == list(range(1, len(faults) + 1))


def test_a_gz_file_stays_compressed_if_the_server_declares_that_as_its_encoding(tmp_path):
    content = gzip.compress(CONTENT)
    with Faulty({"/file.gz": content}).serving() as server:
        server.headers["Content-Encoding"] = "x-gzip"  # as Apache with `AddEncoding x-gzip .gz`, whatever is accepted
        server.faults["/file.gz"] = [("drop", 1_200_000)]
        assert get(server, tmp_path, "/file.gz", content=content).read_bytes() == content


def test_a_redirect_is_followed(server, tmp_path):
    server.faults["/file.bin"] = [("redirect", "/file.bin")]
    assert get(server, tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("algorithm", ["md5", "sha256"])
def test_md5_and_sha256_are_verified(server, tmp_path, algorithm):
    assert get(server, tmp_path, algorithm=algorithm).read_bytes() == CONTENT


def test_the_begin_of_a_checksum_suffices(server, tmp_path):
    whole = remote(server)
    begun = RemoteFile(whole.name, whole.urls, whole.checksum[: len("sha256:") + 8])
    assert [download(begun, tmp_path).read_bytes() for _ in range(2)] == [CONTENT] * 2
    assert len(server.requests) == 1, "the second time it was there"
    with pytest.raises(DownloadError, match=r"its checksum is not sha256:0000000: remove it"):
        download(RemoteFile(whole.name, whole.urls, "sha256:0000000"), tmp_path)


# the server's faults, the mirrors, the number of requests, and the reason in the message
LOST = [
    ({"/file.bin": [404]}, ["/file.bin"], 1, r"file.bin: HTTP status 404 \(Not Found\)"),
    ({"/file.bin": [403]}, ["/file.bin"], 1, r"file.bin: HTTP status 403 \(Forbidden\)"),
    ({"/file.bin": [503] * 9}, ["/file.bin"], RETRIES + 1, "HTTP status 503"),
    # The same wrong content twice: the file at this address is another one.
    ({"/file.bin": ["corrupt"] * 9}, ["/file.bin"], 2, "its checksum is sha256:[0-9a-f]*, not sha256:"),
    ({"/file.bin": [("short", 9 + n) for n in range(9)]}, ["/file.bin"], RETRIES + 1, "its checksum is sha256:"),
    ({"/file.bin": [("drop", 9)] * 9}, ["/file.bin"], RETRIES + 1, "IncompleteRead"),
    ({}, ["/nothing", "/nowhere"], 2, "/nothing: HTTP status 404 .*; .*/nowhere: HTTP status 404"),
]


@pytest.mark.parametrize(("faults", "paths", "requests", "reason"), LOST)
def test_a_failed_download_names_url_reason_and_remedy_and_keeps_nothing(
    server, tmp_path, faults, paths, requests, reason
):
    server.faults = {path: list(each) for path, each in faults.items()}
    message = rf"^file.bin cannot be downloaded \(.*{reason}.*\): copy it to {tmp_path} from .* or set `root`.*$"
    with pytest.raises(DownloadError, match=message) as caught:
        get(server, tmp_path, *paths)
    assert "\n" not in str(caught.value)
    assert left(tmp_path) == []
    assert len(server.requests) == requests


def test_without_a_network_the_error_is_one_line(tmp_path):
    with Faulty({}).serving() as server:
        gone = remote(server)
    with pytest.raises(DownloadError, match=r"cannot be downloaded \(.*Connection refused\): copy it to") as caught:
        download(gone, tmp_path)
    assert "\n" not in str(caught.value)


def test_the_next_mirror_is_tried(server, tmp_path):
    assert get(server, tmp_path, "/nothing", "/file.bin").read_bytes() == CONTENT


def test_a_file_that_exists_is_verified_and_not_downloaded_again(server, tmp_path):
    get(server, tmp_path)
    get(server, tmp_path)
    assert len(server.requests) == 1
    (tmp_path / "file.bin").write_bytes(CONTENT[:-1])
    with pytest.raises(DownloadError, match=r"file.bin: its checksum is not sha256:.*: remove it"):
        get(server, tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT[:-1]


def test_a_whole_file_is_used_where_no_lock_can_be_made(server, tmp_path):
    """In a folder that another user has filled, or that is read-only."""
    with mount_small_disk(tmp_path / "disk", "8m") as disk:
        path = get(server, disk.folder)
        disk.remount("ro")
        assert get(server, disk.folder) == path
    assert len(server.requests) == 1


def test_what_a_killed_download_left_is_removed(server, tmp_path):
    (tmp_path / ".file.bin.part").mkdir()
    (tmp_path / ".file.bin.part/tmp1").write_bytes(CONTENT[:1000])
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert left(tmp_path) == ["file.bin"]


PROGRAM = """
import sys; sys.path.insert(0, {scripts!r})
from pathlib import Path
from trainyard.data.downloads import RemoteFile, download
download(RemoteFile("file.bin", ({url!r},), {checksum!r}), Path({folder!r}))
"""


def test_concurrent_processes_download_a_file_once(server, tmp_path):
    wanted = remote(server)
    code = PROGRAM.format(
        scripts=str(ROOT / "scripts"), url=wanted.urls[0], checksum=wanted.checksum, folder=str(tmp_path)
    )
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL) for _ in range(4)]
    assert [process.wait(PATIENCE_SECONDS) for process in started] == [0] * 4
    assert len(server.requests) == 1


def test_a_download_that_does_not_fit_the_disk_is_an_error(server, small_disk):
    with pytest.raises(DownloadError, match=rf"^{small_disk.folder}: file.bin needs 3 MiB, 1 MiB are free$"):
        get(server, small_disk.folder)
    assert left(small_disk.folder) == []
    assert len(server.requests) == 1


def test_a_disk_that_is_full_in_the_middle_of_a_download_is_an_error_of_one_line(server, tmp_path):
    """It is found while writing if the limit is a quota, or if the server does not tell the size."""
    wanted = remote(server)
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))\n" + PROGRAM.format(
        scripts=str(ROOT / "scripts"), url=wanted.urls[0], checksum=wanted.checksum, folder=str(tmp_path)
    )
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"trainyard.utils.errors.StorageError: {tmp_path}/file.bin: file too large: raise the limit")
    assert left(tmp_path) == []
    assert len(server.requests) == 1, "a retry would not help"


def test_weights_of_torchvision_are_downloaded_with_the_checksum_in_their_name(server, tmp_path, monkeypatch):
    kept = f"model-{hashlib.sha256(CONTENT).hexdigest()[:8]}.pth"
    server.files[f"/{kept}"] = CONTENT
    url = SimpleNamespace(url=f"{server.url}/{kept}")
    monkeypatch.setattr(
        torchvision.models, "get_model_weights", lambda name: SimpleNamespace(__members__={"IMAGENET1K_V1": url})
    )
    config, results = tmp_path / "config.json", tmp_path / "results"
    config.write_text(json.dumps({"data": {"downloads": str(tmp_path / "cache")}}))
    weights.main(Namespace(config=config, results=results, model="resnet18", weights="IMAGENET1K_V1"))
    assert (tmp_path / "cache/weights" / kept).read_bytes() == CONTENT
    receipt = json.loads((results / "weights/resnet18-IMAGENET1K_V1.json").read_text())
    assert receipt["path"] == str(tmp_path / "cache/weights" / kept)
    server.files.clear()
    (tmp_path / "cache/weights" / kept).unlink()
    with pytest.raises(DownloadError, match=r"from a machine with access, or give `pretrained` the path of a copy$"):
        weights.main(Namespace(config=config, results=results, model="resnet18", weights="IMAGENET1K_V1"))


# ---- datasets that are downloaded


def test_an_archive_is_downloaded_and_staged(tmp_path, server):
    images, labels = pixels(8, (6, 6, 3)), np.arange(8) % 2
    packed = pack(write_tree(tmp_path / "set", images, labels), tmp_path / "set.zip").read_bytes()
    server.files["/some/set.zip"] = packed
    url = f"{server.url}/some/set.zip#md5={hashlib.md5(packed).hexdigest()}"
    dataset = ImageFolder(source="imagefolder", url=url)
    data = Data(downloads=str(tmp_path / "downloads"))
    staged = stage(dataset, tmp_path / "staged", data)
    assert sum(map(sum, staged.require(StagedImageMeta).counts.values())) == 8
    stage(dataset, tmp_path / "again", data)
    assert len(server.requests) == 1


def test_files_of_torchvision_have_its_addresses_and_checksums(tmp_path, server, monkeypatch):
    train, val = (pixels(20, (28, 28)), np.arange(20) % 10), (pixels(10, (28, 28), 1), np.arange(10))
    write_mnist(tmp_path / "mnist", train, val, suffix=".gz")
    known = torchvision_datasets.published_files(Torchvision(source="torchvision", name="MNIST"))
    assert sorted(each.name for each in known) == sorted(path.name for path in (tmp_path / "mnist").iterdir())
    assert all(url.startswith("http") for each in known for url in each.urls)
    assert {each.checksum for each in known if each.name == "train-images-idx3-ubyte.gz"} == {
        "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873"
    }
    kind = torchvision.datasets.MNIST
    made = {path.name: path.read_bytes() for path in (tmp_path / "mnist").iterdir()}
    server.files = {f"/mnist/{name}": content for name, content in made.items()}
    checksums = [(name, hashlib.md5(content).hexdigest()) for name, content in made.items()]
    published = {"mirrors": [f"{server.url}/gone/", f"{server.url}/mnist/"], "resources": checksums}
    for name, value in published.items():
        monkeypatch.setattr(kind, name, value)
    dataset, data = Torchvision(source="torchvision", name="MNIST"), Data(downloads=str(tmp_path / "downloads"))
    staged = stage(dataset, tmp_path / "staged", data)
    assert np.array_equal(staged.split("train").images[..., 0], train[0])
    assert staged.require(StagedImageMeta).problems == {}
    server.files["/mnist/t10k-labels-idx1-ubyte.gz"] += b"?"
    (tmp_path / "downloads/MNIST/t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DownloadError, match=r"t10k-labels-idx1-ubyte.gz cannot be downloaded .* its checksum is md5:"):
        stage(dataset, tmp_path / "other", data)
    assert not list((tmp_path / "other").glob("*.npy"))
    assert len(left(tmp_path / "downloads/MNIST")) == 3
