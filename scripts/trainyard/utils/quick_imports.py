"""Imported first, so that Python collects no garbage during the imports that follow: a tenth of a second less.

Whoever imports it calls `gc.freeze()` after them, since what modules define stays, and `gc.enable()`. A process that
multiprocessing spawns imports the program, too, but does not run it.
"""

import gc
import sys

if "__mp_main__" not in sys.modules:
    gc.disable()
