"""Staging of image files, compared with a bare loop that only decodes them: images/s on one and all cores, memory.

    python benchmarks/staging.py
    python benchmarks/staging.py --images 10000 --side 224

The images are generated JPEGs, 500 per folder, in the page cache. The bare loop is
`np.asarray(Image.open(path).convert("RGB"))` for each path, in one process. Staging is the whole program, from start to
end: it lists, decodes and checks the files, and writes and hashes the result. Memory is the largest sum over its
processes, with shared pages counted once (PSS).
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import yaml
from common import ROOT, print_table
from PIL import Image, ImageFilter

BARE = """
import sys, time
import numpy as np
from PIL import Image
paths = open(sys.argv[1]).read().split()
began = time.perf_counter()
for path in paths:
    np.asarray(Image.open(path).convert("RGB"))
print(time.perf_counter() - began)
"""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--side", type=int, default=64, help="pixels")
    parser.add_argument("--turns", type=int, default=3, help="runs of each, of which the fastest counts")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = make_images(folder / "set", arguments.images, arguments.side)
        (folder / "paths").write_text("\n".join(map(str, paths)))
        config = {"datasets": {"set": {"source": "imagefolder", "root": str(folder / "set")}}}
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        cpus = sorted(os.sched_getaffinity(0))
        turns = range(arguments.turns)
        bare = min(bare_seconds(folder, cpus[:1]) for _ in turns)
        one = min(staging(folder, cpus[:1]) for _ in turns)
        every = min(staging(folder, cpus) for _ in turns)
    count = len(paths)
    rows: list[tuple[str, int, float, int | str]]
    rows = [("bare loop", 1, bare, ""), ("staging", 1, *one), ("staging", len(cpus), *every)]
    print_table(
        ["", "cores", "seconds", "images/s", "relative to the bare loop", "memory (MiB)"],
        [
            [what, str(cores), f"{seconds:.1f}", f"{count / seconds:,.0f}", f"{bare / seconds:.2f}", str(mib)]
            for what, cores, seconds, mib in rows
        ],
    )


def make_images(root: Path, count: int, side: int) -> list[Path]:
    """Write JPEGs of smooth noise."""
    generator = np.random.default_rng(0)
    noise = Image.fromarray(generator.integers(0, 256, (1024, 1024, 3), np.uint8)).filter(ImageFilter.GaussianBlur(1.5))
    paths = []
    for index in range(count):
        path = root / f"class{index // 500:04d}" / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        left, top = index % (1024 - side), index * 7 % (1023 - side)
        noise.crop((left, top, left + side, top + side)).save(path, quality=90)
        paths.append(path)
    return paths


def bare_seconds(folder: Path, cpus: list[int]) -> float:
    """Seconds of the bare loop."""
    done = subprocess.run(
        [sys.executable, "-c", BARE, str(folder / "paths")],
        text=True,
        stdout=subprocess.PIPE,
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cpus),
    )
    return float(done.stdout)


def staging(folder: Path, cpus: list[int]) -> tuple[float, int]:
    """Seconds and peak memory (MiB) of the program."""
    command = [sys.executable, str(ROOT / "scripts/stage.py"), "--config", "config.yaml", "--dataset", "set"]
    subprocess.run(["rm", "-rf", "results"], cwd=folder, check=True)
    began, peak = time.perf_counter(), 0
    program = psutil.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, preexec_fn=lambda: os.sched_setaffinity(0, cpus)
    )
    while program.poll() is None:
        peak = max(peak, memory(program))
        time.sleep(0.2)
    if program.returncode:
        raise SystemExit("staging failed")
    return time.perf_counter() - began, peak // 2**20


def memory(program: psutil.Process) -> int:
    """Bytes of a program and its children; 0 if one of them ends meanwhile."""
    try:
        return sum(each.memory_full_info().pss for each in [program, *program.children(recursive=True)])
    except psutil.Error:
        return 0


if __name__ == "__main__":
    main()
