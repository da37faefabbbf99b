"""`snakemake data` alone: files of every kind are downloaded, staged and plotted; bad files are listed."""

import hashlib

import numpy as np
import pandas as pd
import pytest
from httpserver import Faulty
from imagesets import pack, pixels, write_tree

pytestmark = pytest.mark.slow


@pytest.fixture
def sources(project, monkeypatch):
    """The server, and the config of a folder with a bad image, an archive on the server and a table."""
    project.environment["no_proxy"] = "*"
    images, labels = pixels(20, (12, 12, 3)), np.arange(20) % 4
    tree = write_tree(project.folder / "tree", images, labels)
    (tree / "train/class1/00001.png").write_bytes(b"no image")
    packed = pack(write_tree(project.folder / "remote", images, labels), project.folder / "remote.zip")
    pd.DataFrame({"size": range(20), "price": np.linspace(0, 1, 20)}).to_csv(project.folder / "prices.csv", index=False)
    with Faulty({"/remote.zip": packed.read_bytes()}).serving() as server:
        server.faults["/remote.zip"] = [("drop", 1000)]
        checksum = hashlib.sha256(packed.read_bytes()).hexdigest()
        yield (
            server,
            {
                "tree": {"source": "imagefolder", "root": "tree"},
                "remote": {
                    "source": "imagefolder",
                    "url": f"{server.url}/remote.zip#sha256={checksum}",
                },
                "prices": {"source": "table", "path": "prices.csv", "target": "price"},
            },
        )


def test_datasets_of_every_kind_are_downloaded_staged_and_plotted(project, sources):
    server, datasets = sources
    config = {"datasets": datasets, "data": {"downloads": str(project.folder / "downloads")}}
    project.write(config)
    output = project.snakemake("--retries", "0", "--", "data", check=False)
    assert "1 x not an image" in output
    assert "train/class1/00001.png" in output
    assert "on_bad_image: skip" in output
    for line in (
        "Trainyard: ended before everything was done, after ",
        "  finished  dataset prices, dataset remote\n",
        "  failed    dataset tree: results/logs/stage/tree.log ends with: ",
        "  next      correct the cause, then go on with what has finished: ",
    ):
        assert line in output, "the summary at the end"
    assert not (project.results / "data/tree/meta.json").exists()
    for name in ("remote", "prices"):
        assert (project.results / f"data/{name}/meta.json").exists(), "one bad dataset keeps no other from being staged"
    datasets["tree"]["on_bad_image"] = "skip"
    project.write(config)
    project.snakemake("--", "data", "results/plots/data/tree/samples.svg")
    for picture in ("samples.svg", "samples.png", "classes.svg", "classes.png"):
        assert (project.results / "plots/data/tree" / picture).stat().st_size > 2000
    rows = pd.read_csv(project.results / "data/tree/problems.csv")
    listed = rows[["file", "problem"]].to_numpy().tolist()
    assert listed == [["train/class1/00001.png", "not an image"]]
    assert len(server.requests) == 2, "dropped once, and retried"
