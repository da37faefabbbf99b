"""The memory of the processes that stage a dataset."""

import subprocess
import sys

from project import ROOT

MEASURED = """
import resource, sys
sys.path.insert(0, {scripts!r})
from pathlib import Path
from trainyard.config.datasets import Synthetic
from trainyard.data.staging import stage
if __name__ == "__main__":
    stage(Synthetic(source="synthetic", images={images}, height=64, width=64), Path({folder!r}))
    own = next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]
    print(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def test_memory_does_not_grow_with_the_dataset(tmp_path):
    """Compares the peak RSS in KiB with 24 and with 172 MB of pixels."""
    peaks = []
    for images in (2_000, 14_000):
        program = tmp_path / f"{images}.py"
        folder = str(tmp_path / str(images))
        program.write_text(MEASURED.format(scripts=str(ROOT / "scripts"), images=images, folder=folder))
        said = subprocess.run([sys.executable, str(program)], text=True, stdout=subprocess.PIPE, check=True).stdout
        peaks.append(max(map(int, said.split())))
    assert peaks[1] < peaks[0] + 50 * 1024
    assert peaks[1] < 250 * 1024
