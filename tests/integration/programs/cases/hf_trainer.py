"""Prints what transformers' Trainer does since version 5: bars with carriage returns, dictionaries, quoted numbers."""

import argparse
import sys
import time

p = argparse.ArgumentParser()
p.add_argument("--learning_rate", type=float, default=2e-5)
p.add_argument("--num_train_epochs", type=float, default=3.0)
a = p.parse_args()
quality = {2e-5: 0.88, 5e-5: 0.91, 1e-4: 0.85}.get(a.learning_rate, 0.5)
steps = int(a.num_train_epochs * 40)
for step in range(1, steps + 1):
    epoch = step / 40
    print(
        f"\r{step * 100 // steps:3d}%|{'#' * (step * 10 // steps):<10}| {step}/{steps} [00:0{step % 9}, 41.2it/s]",
        end="",
        file=sys.stderr,
    )
    if step % 10 == 0:
        lr = a.learning_rate * (1 - step / steps)
        print(
            {
                "loss": f"{2 / (1 + epoch):.4g}",
                "grad_norm": f"{3.1 / (1 + epoch):.4g}",
                "learning_rate": f"{lr:.4g}",
                "epoch": f"{epoch:.4g}",
            }
        )
    if step % 20 == 0:  # --eval_strategy steps: twice per epoch
        accuracy = quality * (1 - 0.5 ** (2 * epoch))
        print(
            {
                "eval_loss": f"{1 / (1 + epoch):.4g}",
                "eval_accuracy": f"{accuracy:.4g}",
                "eval_runtime": "0.0412",
                "eval_samples_per_second": "9710",
                "epoch": f"{epoch:.4g}",
            }
        )
    time.sleep(0.005)
print(
    {
        "train_runtime": "1.23",
        "train_samples_per_second": "975.6",
        "train_loss": "0.9021",
        "epoch": f"{a.num_train_epochs:g}",
    }
)
print("***** eval metrics *****")
print(f"  epoch                   =        {a.num_train_epochs}")
print(f"  eval_accuracy           =     {accuracy:.4f}")
print(f"  eval_loss               =     {1 / (1 + a.num_train_epochs):.4f}")
print("  eval_runtime            = 0:00:00.04")
