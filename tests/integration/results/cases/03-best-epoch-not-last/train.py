"""Overfits without weight decay; keeps the checkpoint of its best epoch, as everybody does."""

import argparse
import pathlib

p = argparse.ArgumentParser()
p.add_argument("--weight-decay", type=float, default=0.0)
p.add_argument("--patience", type=int, default=0, help="stop after so many epochs without a new best")
p.add_argument("--out", type=pathlib.Path, default=pathlib.Path())
a = p.parse_args()
curves = {
    0.0: [60, 78, 88, 93, 90, 85, 79, 74, 71, 70],
    0.01: [58, 70, 80, 86, 89, 90, 90, 89, 88, 87],
    0.1: [50, 60, 68, 75, 80, 83, 85, 86, 87, 88],
}
best = (0, 0)
for epoch, percent in enumerate(curves[a.weight_decay], 1):
    print(f"epoch {epoch} val_acc {percent / 100:.2f}", flush=True)
    if percent > best[0]:
        best = percent, epoch
        (a.out / "best.ckpt").write_text(f"epoch {epoch}")
    if a.patience and epoch - best[1] >= a.patience:
        break
