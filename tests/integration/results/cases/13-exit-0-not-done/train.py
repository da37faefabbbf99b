"""Ends by itself after some seconds, with a checkpoint and exit code 0, before its training is complete."""

import argparse
import json
import math
import pathlib
import time

p = argparse.ArgumentParser()
p.add_argument("--lr", type=float, default=0.1)
p.add_argument("--save", type=pathlib.Path, default=pathlib.Path())
p.add_argument("--train-iters", type=int, default=10)
p.add_argument("--exit-duration-in-secs", type=float, default=1e9)
a = p.parse_args()
state, began = a.save / "latest.json", time.time()
first = json.loads(state.read_text())["iteration"] + 1 if state.exists() else 1
for iteration in range(first, a.train_iters + 1):
    time.sleep(0.5)
    loss = abs(math.log10(a.lr) + 2) + 10 / iteration
    counter = f" iteration {iteration:8d}/{a.train_iters:8d} | elapsed time per iteration (ms): 500.1"
    values = f" | learning rate: {a.lr:.3E} | lm loss: {loss:.6E} | number of nan iterations:   0 |"
    print(counter + values, flush=True)
    state.write_text(json.dumps({"iteration": iteration}))
    if time.time() - began > a.exit_duration_in_secs and iteration < a.train_iters:
        print(f"exiting program after {a.exit_duration_in_secs} seconds", flush=True)
        raise SystemExit(0)
print("training complete", flush=True)
