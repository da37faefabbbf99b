"""Logs one trial to Weights & Biases; all of its attempts continue one run. docs/trackers.md"""

import argparse

import wandb

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--trial")
parser.add_argument("--dir")
args = parser.parse_args()

settings = {"id": args.trial, "name": args.trial, "resume": "allow", "dir": args.dir}
with wandb.init(project="mine", config={"lr": args.lr}, **settings) as run:
    for epoch in range(1, 4):
        loss = 1 / (epoch + args.lr)  # your training
        run.log({"loss": loss}, step=epoch)
        print(f"epoch {epoch} loss {loss:.4f}", flush=True)
