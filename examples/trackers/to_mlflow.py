"""Copies a sweep to MLflow, after it has run: python examples/trackers/to_mlflow.py results/sweeps/depth"""

import sys

import mlflow
from runs import read_runs

mlflow.set_experiment("mine")
for trial, settings, epochs in read_runs(sys.argv[1]):
    if not mlflow.search_runs(filter_string=f"tags.trial = '{trial}'", output_format="list"):
        with mlflow.start_run(run_name=trial, tags={"trial": trial}):
            mlflow.log_params(settings)
            for number, metrics in epochs:
                mlflow.log_metrics(metrics, step=number)
