"""Logs one trial to MLflow; all of its attempts continue one run. docs/trackers.md"""

import argparse

import mlflow

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--trial")
args = parser.parse_args()

mlflow.set_experiment("mine")
known = mlflow.search_runs(filter_string=f"tags.trial = '{args.trial}'", output_format="list")
with mlflow.start_run(run_id=known[0].info.run_id if known else None, run_name=args.trial, tags={"trial": args.trial}):
    mlflow.log_params({"lr": args.lr})
    for epoch in range(1, 4):
        loss = 1 / (epoch + args.lr)  # your training
        mlflow.log_metrics({"loss": loss}, step=epoch)
        print(f"epoch {epoch} loss {loss:.4f}", flush=True)
