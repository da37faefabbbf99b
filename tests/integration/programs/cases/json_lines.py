"""A log of JSON lines whose name ends in .json, with the time of the start in it; its first line is no row."""

import argparse
import json
import pathlib
import time

p = argparse.ArgumentParser()
p.add_argument("--lr", type=float, default=0.02)
p.add_argument("--work-dir", type=pathlib.Path, default=pathlib.Path("work_dirs"))
a = p.parse_args()
a.work_dir.mkdir(parents=True, exist_ok=True)
with open(a.work_dir / f"{time.strftime('%Y%m%d_%H%M%S')}.log.json", "w") as log:
    rows = [{"env_info": "sys.platform: linux\nPython: 3.11", "seed": None, "exp_name": "retina.py"}]
    for epoch in (1, 2, 3):
        rows += [
            {"mode": "train", "epoch": epoch, "iter": at, "lr": a.lr, "memory": 4123, "loss": 3 / (epoch + at / 100)}
            for at in (50, 100)
        ]
        rows += [
            {
                "mode": "val",
                "epoch": epoch,
                "iter": 12,
                "lr": a.lr,
                "bbox_mAP": {0.02: 0.12, 0.005: 0.10}[a.lr] * epoch,
                "bbox_mAP_copypaste": "0.36 0.55 0.39",
            }
        ]
    for row in rows:
        log.write(json.dumps(row) + "\n")
        log.flush()
        time.sleep(0.05)
