"""Run one of the library's own helper programs, from any folder: `python scripts/trainyard scaling.agent ...`.

The programs that people start are in `scripts/`. What this starts has only `scripts/` on its path, and passes no
PYTHONPATH on to what it starts itself, so that users' programs find their own modules and no others.
"""

import runpy
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])
runpy.run_module(f"trainyard.{sys.argv.pop(1)}", run_name="__main__", alter_sys=True)
