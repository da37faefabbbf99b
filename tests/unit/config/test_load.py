"""A config is validated as a whole: all errors are reported at once, with place, reason and remedy."""

import copy
import datetime
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import jsonschema
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from trainyard.cli.workflow import Workflow
from trainyard.config.load import ConfigError, check_config, compose, read_config
from trainyard.config.parser import parse_value, read_file
from trainyard.config.sweep import AnySweep, Slots, TrainSweep
from trainyard.config.trials import expand
from trainyard.planning.trial_space import TrialSpace
from trainyard.utils.files import write_json

ROOT = Path(__file__).parents[3]

GOOD = {
    "datasets": {"digits": {"source": "digits"}, "table": {"source": "table", "path": "x.csv", "target": "y"}},
    "sweeps": {
        "depth": {"dataset": "digits", "grid": {"lr": [0.1, 0.2]}},
        "trees": {"dataset": "table", "trees": {"library": "lightgbm"}},
    },
    "scaling": {"study": {"dataset": "digits", "scales": ["1x1", "1x2"]}},
}

# One error each, by its place: the value there, and a part of the message, which follows the place if it begins with :
# or a dot.
MISTAKES = {
    "datasets.table.tsk": [(1, ": unknown key; did you mean 'task'?")],
    "datasets.table.seed": [(1, ": is no longer an option: the split is the same each time")],
    "datasets.digits.source": [("digit", "datasets.digits: 'digit' is not known; did you mean 'digits'?")],
    "datasets.a/b": [({"source": "digits"}, "'a/b' is not valid; a name is used for a folder")],
    "env_modules": [(["cuda 13"], ".0: 'cuda 13' is not valid; an environment module is named as in")],
    "datasets.table.path": [("x.txt", ": 'x.txt' is not valid; a table must end in .csv")],
    "datasets.photos": [
        ({"source": "imagefolder"}, ": give either root or url"),
        ({"source": "imagefolder", "root": "x", "url": f"http://x/y.zip#md5={32 * '0'}"}, "either root or url"),
        ({"source": "imagefolder", "url": "http://x/y.zip"}, "and its checksum, #md5=... or #sha256=..."),
        ({"source": "imagefolder", "url": "x.zip"}, "'x.zip' is not valid; a URL begins with http"),
        ({"source": "imagefolder", "root": "x", "width": 3}, "give both height and width, or neither"),
        ({"source": "imagefolder", "root": "x", "hight": 3}, "unknown key; did you mean 'height'?"),
    ],
    "datasets.mnist": [({"source": "torchvision", "name": "MINST"}, "'MINST' is not known; did you mean 'MNIST'?")],
    "sweeps.depth.dataset": [
        ("digit", ": there is no dataset 'digit'; did you mean 'digits'?"),
        ("table", "'table' is a table, which `train` cannot use, but `trees` can"),
    ],
    "sweeps.depth.train.epochs": [("two", ": input should be a valid integer")],
    "sweeps.depth.train.lr": [
        ("1e-3", ": text instead of a number: write it without quotes (is '1e-3')"),
        (-1, ": input should be greater than 0 (is -1)"),
    ],
    "sweeps.depth.train.augment": [
        ({"erasing": 0.5}, ".erasing: is no longer an option: augment in your own dataset"),
        ({"resized_crop": True}, "augment.resized_crop: true instead of a number (is True)"),
        ({"crop_padding": 2, "resized_crop": 0.5}, "give crop_padding or resized_crop, not"),
    ],
    "sweeps.depth.train.lr_scale": [
        ({"*": True}, ": true instead of a number"),
        ({"*": 0}, ".*: input should be greater than 0"),
    ],
    "sweeps.depth.slots": [
        ({"cpus_per_trial": True}, "slots.cpus_per_trial: true instead of a number (is True)"),
        ({"mps": "always"}, ".mps: 'always' is not known; known: off, auto"),
        ({"gpus_per_trial": "0.5"}, ".gpus_per_trial: text instead of a number"),
        ({"gpus_per_node": 2, "gpus_per_trial": 4}, "does not fit a node of 2"),
        ({"gpus_per_trial": "auto"}, ".gpus_per_trial: is no longer measured: give a number, such as 0.5"),
        (
            {"nodes_per_trial": 2, "gpus_per_node": 4, "gpus_per_trial": 2},
            ": a trial takes all GPUs of its 2 nodes: give gpus_per_node, not gpus_per_trial",
        ),
        ({"nodes_per_trial": 2, "gpus_per_node": 0}, "a trial takes all GPUs of its 2 nodes: give"),
        (
            {"nodes_per_trial": 3, "gpus_per_node": 1},
            "sweeps.depth.grid: batch_size 128 cannot be shared evenly by the 3 GPUs of a trial (nodes_per_trial)",
        ),
        ({"nodes": 2}, ".nodes: is no longer an option: give `jobs`: a job has the nodes of one trial"),
        ({"jobs": 0}, ".jobs: "),
        ({"jobs": "many"}, ".jobs: "),
        ({"jobs": "auto"}, ".jobs: auto is no longer a value: give the most jobs, and a goal"),
        ({"jobs": 101}, ".jobs: "),
        ({"gpus_per_node": 4, "gpus_per_trial": 1.5}, "whole number of GPUs"),
        ({"gpus_per_node": 0, "gpus_per_trial": 0}, "gpus_per_trial: must be above 0: for trials"),
        ({"gpus_per_node": -1}, ".gpus_per_node: input should be greater than or"),
        (
            {"gpus_per_node": 0, "gpus_per_trial": 0.5},
            ": gpus_per_trial is about GPUs, but gpus_per_node is 0: remove it, and give cpus",
        ),
        ({"gpus_per_node": 0, "mps": "auto"}, "slots: mps is about GPUs, but gpus_per_node is 0"),
        (
            {"gpus_per_node": 2, "cpus": 4},
            ": cpus is for jobs without GPUs; with GPUs, give gpus_per_node and cpus_per_trial",
        ),
        ({"cpus": 100_001}, ".cpus: input should be less than or equal to 100000 (is 100001)"),
        ({"cpus": 7, "cpus_per_trial": 2}, "trials of 2 CPUs cannot share 7 evenly: give a multiple"),
        ({"slots_per_node": 4}, "slots_per_node: is no longer an option: give `cpus`, of which each trial has"),
        (
            {"gpus_per_node": 3, "gpus_per_trial": 3},
            "sweeps.depth.grid: batch_size 128 cannot be shared evenly by the 3 GPUs of a trial (gpus_per_trial)",
        ),
    ],
    "sweeps.depth.train.pretrained": [
        ("no.pt", "no.pt: cannot be read (No such file or directory): give a file that"),
        (__file__, "test_load.py: is not a file of torch.save: it begins with b'"),
        ("DEFAULT", "DEFAULT depends on the version of torchvision"),
        ("IMAGENET1K_V1", "a torchvision model, and resnet is not one: give a file"),
        ("VGG11_Weights.IMAGENET1K_V1", "includes the name of the model: write IMAGENET1K_V1"),
    ],
    "scaling.study.train.pretrained": [
        (str(Path(__file__).parent), "config: cannot be read (Is a directory)"),
        ("no.pt", ": /"),
    ],
    "sweeps.depth.train": [
        ({"model": "vgg11", "pretrained": "IMAGENET1K_V1", "small_images": True}, "leave out small_i")
    ],
    "sweeps.depth.train.augment.resized_crop": [(8, "augment.resized_crop: input should be less than or equal to 1")],
    "sweeps.depth.guess": [({"lr": 0.1}, ": is for the values of one key: {low: 0.001, high: 0.1, g")],
    "sweeps.depth.grid.guess": [(0.1, ": is for the values of one key: {low: 0.001, high: 0.1")],
    "sweeps.depth.train.freeze": [("conv1", ': must be a list: write ["conv1"]')],
    "sweeps.depth.grid.lr": [
        ([0.1, "0.2"], ": text instead of a number"),
        ({"start": 0.1, "stop": "0.2"}, ".stop: text instead of a number"),
        ([], "sweeps.depth.grid.lr"),
        ({"start": 3, "stop": 1}, "stop (1) is below start (3)"),
        ({"start": 3, "stop": 4, "stepp": 1}, ".stepp: unknown key; did you mean 'step'?"),
        (
            {"min": 0.1, "max": 1, "log": True},
            ": a grid has no ranges: list values, give {start: , stop: , step: }, or",
        ),
        ({"low": 0.1, "high": 1}, "step: }, or `search: {values: {lr: {low: , high: }}}` (or `sample`)"),
        ({"start": 0.1, "end": 1}, ".end: unknown key; known: start, step, stop, when"),
    ],
    "sweeps.depth.sample": [
        ({"count": 2, "values": {"lr": {"low": "1e-5", "high": 1}}}, "values.lr.low: text instead"),
        ({"count": 2, "values": {"lr": {"low": 0, "high": 1, "log": True}}}, "with log, low must be above 0, not 0.0"),
        (
            {"count": 2, "values": {"batch_size": {"low": 0.2, "high": 0.8, "integer": True}}},
            ".values.batch_size: there is no integer from 0.2 to 0.8",
        ),
    ],
    "sweeps.depth.retrain": [
        ("1", ": text instead of a number"),
        ({"0123456789": 1}, ": is one number, for all trials of the sweep"),
    ],
    "sweeps.depth.train.seed": [(-1, ": input should be greater than or equal to 0 (is -1)")],
    "sweeps.depth.train.modle": [("x", ": unknown key; did you mean 'model'?")],
    "sweeps.depth.grid": [({}, "sweeps.depth: has no trials; give `grid`, `trials`, `sample` or `search`")],
    "sweeps.depth.grid.lrr": [([1], ": unknown key; did you mean 'lr'?")],
    "sweeps.depth.grid.model_args..x": [([1], ": 'model_args..x' is not valid; write names joined by dots")],
    "sweeps.own": [
        (
            {"command": "x {args:hydra}", "grid": {"+net.k": [1]}},
            ".grid.+net.k: '+net.k' is not valid; write names joined by dots",
        ),
        (
            {"command": "x {args:hydra}", "trials": [{"db/opt": "a"}]},
            "of a key of Hydra such as `+net.k` or `db/opt`, write `net.k` here, and `+net.k={net.k}` in the command",
        ),
        (
            {"command": "x", "slots": {"nodes_per_trial": 2}},
            ": nodes_per_trial is for `train`; a trial with your own program has one node",
        ),
        (
            {"command": "x", "metric": {"pattern": "acc (?P<acc>{number})"}},
            ".metric: names the metric that ranks trials; a mapping with pattern or file is `metrics`",
        ),
        ({"command": "./x {n}", "args": {"n": "8"}, "cost": "n"}, "cost: 'n' cannot be evaluated: n is '8'"),
        (
            {"function": "a:b", "search": {"trials": 2, "values": {"n": [1, "two", 3]}}, "cost": "n * 2"},
            ".cost: 'n * 2' cannot be evaluated for n = 'two': n is 'two', not a number",
        ),
        ({"command": "./x", "train": {"lr": 1}}, ".train: give train or command, not both"),
        ({"command": "./x {lr}"}, "the command has {lr}, which is neither an argument nor predefined; known: "),
        ({"command": "./x {out_dir}"}, "nor predefined; did you mean 'trial_dir'?"),
        ({"command": "./x {rate}", "args": {"lr": 1}}, "known: lr, trial_dir, trial, attempt, resume_from"),
        (
            {"command": "./x\n  --lr {lr}\n", "args": {"lr": 1}},
            ".command: the shell would take --lr for a command, since it begins a line: in YAML, indent all",
        ),  # as of `>` with lines that are indented more
        ({"command": "cat <<E\n- x\nE\n-o {trial_dir}"}, "the shell would take -o for a command"),
        ({"command": "./x", "grid": {"lr": [1]}}, "lr is not in the command: write {lr} where it belongs"),
        (
            {"command": "./x {width}", "args": {"epochs": 1}, "grid": {"lr": [1], "width": [2]}},
            "epochs, lr are not in the command: write {epochs} {lr} where they belong, or {args}",
        ),
        ({"command": "./x", "slots": 4}, ".slots: must be a mapping, not 4; known: cpus, cpus_per"),
        (
            {"command": "./x", "metrics": {"pattern": "acc (?P<acc>{numbr})"}},
            ".metrics: {numbr} would match only these very characters; did you mean {number}?",
        ),
        ({"command": "./x {seconds}", "grid": {"seconds": [1]}}, "seconds is a column of the tables"),
        ({"command": "./x {trial}", "args": {"trial": 1}}, "trial is a column of the tables"),
        ({"command": "./x {resume_from}"}, "`resume_from` needs `checkpoint`"),
        (
            {"command": "./x '{n}'", "args": {"n": 1}},
            ".command: {n} is in single quotes: write {n} without quotes, since Trainyard quotes values",
        ),
        ({"command": 'sh -c "x {n}"', "args": {"n": 1}}, ".command: {n} is in double quotes"),
        ({"command": "x | awk '{print}'"}, "literal braces need a space, as in '{ x }'"),
        ({"command": "x `y {n}`", "args": {"n": 1}}, "{n} is in backticks: write $(...) instead"),
        (
            {"command": "x <<E\n{n}\nE", "args": {"n": 1}},
            "assign it to a variable first, as in x={n}, and write $x there",
        ),
        (
            {"command": "x {settings}", "settings": "json", "args": {"out": "{trial_dir}/a"}},
            ".args: out: {trial_dir} is not replaced within a value: write it in the command, or",
        ),
        (
            {"command": "x {out}", "args": {"out": "{name}/{trial_dir}"}},
            ".args: out: {trial_dir} is not replaced within a value",
        ),
        (
            {"command": "x $(({n} * 2))", "grid": {"n": [1, "a"]}},
            ".grid: {n} is in $((...)), but 'a' is not a number: assign it to a variable first, as in x={n}",
        ),
        (
            {"command": "x", "checkpoint": "*", "resume": "--from '{resume_from}'"},
            ": {resume_from} is in single quotes",
        ),
        (
            {"command": "x\ny", "resume": "--resume"},
            "`resume` cannot be added at the end, after a line break: write {resume} in the command",
        ),
        ({"command": "x | tee y", "resume": "--resume"}, "at the end, after |: write {resume} in the command"),
        ({"command": "x && y", "resume": "--resume"}, "at the end, after &&: write {resume} in the command"),
        ({"command": "x # y", "resume": "--resume"}, "at the end, after a comment: write {resume} in the command"),
        ({"command": "x '{resume}'", "resume": "-r"}, ".command: {resume} is in single quotes"),
        ({"command": "x {resume}"}, "the command has {resume}, which is neither an argument nor predefined; or give"),
        ({"command": "x", "resume": "{resume}"}, "`resume` cannot contain {resume}"),
        ({"command": ["x"], "resume": "-r 'a"}, "`resume`: no closing quotation"),
        ({"command": ["bash", "-c", "x"], "resume": "-r"}, "after the script of a shell's -c: write the script"),
        ({"command": "env A=1 sh -c 'x | y'", "resume": "-r"}, "after the script of a shell's -c"),
        (
            {"command": ["/bin/bash", "-lc", "x {n}"], "grid": {"n": ["a", "$(y)"]}},
            ".command: {n} is in the script of a shell's -c, and the shell would interpret its value: write the",
        ),
        ({"command": ["bash", "-ce", "x {n}"], "args": {"n": "$(y)"}}, "the shell would interpret"),
        (
            {"command": ["srun", "bash", "-c", "-o", "pipefail", "--", "x {n}"], "args": {"n": "$(y)"}},
            "the shell would interpret",
        ),
        ({"command": ["x", "-{resume}"], "resume": "-r"}, "in a list, {resume} must be a word of its own"),
        ({"command": "./x", "stop": {"method": "asha"}}, "search and stop need the metrics of a command"),
        ({"command": "./x", "metrics": {"pattern": "acc ([0-9"}}, "is not a regular expression"),
        ({"command": "./x", "metrics": {"pattern": "(?P<a>{number}))"}}, "parenthesis at position 15"),
        ({"command": "./x", "metrics": {"pattern": "acc .*"}}, "names no metric: write a group as"),
        ({"command": "./x", "metrics": {"pattern": "Acc .*"}}, ".metrics: Acc .* names no metric"),
        (
            {"command": "./x {args:dashes}", "grid": {"batch-size": [1]}},
            "write `batch_size` here, and {args:dashes} in",
        ),
        ({"command": "./x", "metrics": {"pattern": "epoch ^acc (?P<acc>{number})"}}, "^ is the start of a line, and"),
        ({"command": "./x", "metrics": {"file": "m.xls"}}, "'m.xls' is not valid; a metrics file"),
        (
            {"command": "./x {n}", "grid": {"n": [1, 2]}, "metrics": {"file": "/tmp/m.csv"}},
            ".metrics.file: /tmp/m.csv would be shared by all trials: give a path relative to the program's folder, "
            "and let your program write it there: it is {trial_dir}, in a study {out_dir}",
        ),
        (
            {
                "command": "./x {n}",
                "search": {"trials": 2, "values": {"n": [1, 2]}},
                "metrics": {"file": "a/../../m.csv"},
            },
            ".metrics.file: a/../../m.csv would be shared by all trials",
        ),
        ({"function": "train"}, "'train' is not valid; a function is package.module:name"),
        ({}, ".dataset: is required for a training; or give a `command` or a `function`"),
        ({"function": "a:b", "grace_seconds": 5}, "own.grace_seconds: is for `command`, not for `function`"),
        ({"function": "a:b", "env": "x"}, "for `command`, not for `function`: a function runs in"),
        ({"command": "x", "python": "a"}, "own.python: is no longer an option: give `env`, which may also be"),
        (
            {"dataset": "digits", "search": {"trials": 2, "values": {"lr": [1]}}, "metric": "rmse"},
            ": metric is rmse, which no trial reports; known: epoch, lr, train_loss",
        ),
        (
            {"command": "./x", "metrics": {"pattern": "acc (?P<acc>.*)"}, "stop": {"method": "asha"}},
            ": metric is val_accuracy, which no trial reports; known: acc",
        ),
        (
            {"dataset": "digits", "trials": [{}], "stop": {"method": "asha"}, "metric": "best_val_accuracy"},
            ": metric is best_val_accuracy, which no epoch reports; known: epoch, lr, train_loss",
        ),
        (
            {"command": "./x", "search": {"method": "bayes", "trials": 2, "values": {"lr": [0.1]}}},
            ".search.method: 'bayes' is not known; did you mean 'tpe'?",
        ),
        (
            {"command": "./x", "search": {"trials": 2, "values": {"lr": {"min": 0.1, "high": 1}}}},
            ".search.values.lr.min: unknown key; did you mean 'low'?",
        ),
        ({"command": "./x {lr}", "slots": {"gpus": 4}}, ".slots.gpus: unknown key; did you mean 'gpus_per_node'?"),
        ({"command": "./x", "walltime": "6 hours"}, ".walltime: '6 hours' is not valid; write it as 90min, 6h or 2d"),
        ({"command": "./x", "walltime": "0h"}, ".walltime: 0h is too short: a job needs 1min at least"),
        ({"command": "./x", "walltime": "0.5min"}, ".walltime: 0.5min is too short: a job needs 1min at least"),
        ({"command": "./x", "time": "6h"}, "did you mean 'walltime'?"),
        ({"command": "./x", "walltime": 360}, ".walltime: 360 is not valid; write it as 90min, 6h or 2d"),
        ({"dataset": "digits", "comand": "./x"}, ".comand: unknown key; did you mean 'command'?"),
        ({"dataset": "digits", "funktion": "a:b"}, "funktion: unknown key; did you mean 'function'?"),
        ("x", ": must be a mapping, not 'x'; known: args, average, budget, checkpoint, code, comm"),
    ],
    "sweeps.depth.grid.epochs.x": [([1], "epochs")],
    "sweeps.depth.trials": [([{"lr": 0.1}, {"batch_size": 0}], ".1.batch_size")],
    "sweeps.depth.cost": [
        (
            "epoch * batch_size",
            ": 'epoch * batch_size' cannot be evaluated for lr = 0.1: there is no key 'epoch'; did you mean 'epochs'?",
        ),
        ("model_args.blocks", "there is no key 'model_args.blocks'; known: "),
        ("2 * model", "cost: '2 * model' cannot be evaluated for lr = 0.1: model is 'resnet'"),
        ("epochs *", ": 'epochs *' cannot be evaluated for lr = 0.1: invalid syntax"),
        ("epochs / (0.2 - lr)", "cannot be evaluated for lr = 0.2: "),
        ("9 ** 9 ** 9 ** 9", "cannot be evaluated"),
        ("1e400", ": '1e400' cannot be evaluated for lr = 0.1: it is inf"),
    ],
    "sweeps.found": [
        (
            {
                "dataset": "digits",
                "search": {"trials": 2, "values": {"optimizer": ["sgd", "addam", "adam"], "lr": [1]}},
            },
            ".search.optimizer: 'addam' is not known; did you mean 'adam'?",
        ),
        (
            {
                "dataset": "digits",
                "search": {"trials": 2, "values": {"batch_size": {"low": 8, "high": 64, "integer": True}}},
                "slots": {"gpus_per_node": 2, "gpus_per_trial": 2},
            },
            "search draws batch_size from a range, and 2 GPUs cannot share each size evenly: give a list",
        ),
    ],
    "scaling.study.scales": [
        (["1x1", "2by2"], ".1: '2by2' is not valid; a scale is"),
        (["1x1", "1x1"], "a scale is listed twice"),
    ],
    "scaling.study.mode": [("strog", ": 'strog' is not known; did you mean 'strong'?")],
    "trees": [({"t": {"dataset": "table"}}, ": is no longer an option: write a sweep: {dataset: ")],
    "sweeps.trees.trees.library": [("xgbost", ": 'xgbost' is not known; did you mean 'xgboost'?")],
    "sweeps.trees.trees.class_weights": [({0: "2"}, ": text instead of a number")],
    "sweeps.trees.trees.folds": [(1, ": input should be greater than or equal to 2")],
    "sweeps.trees.trees": [
        ({"eta": 0.1, "learning_rate": 0.3}, ": eta and learning_rate are two names of one parameter: give one"),
        ({"lambda": 1, "reg_lambda": 1}, ": lambda and reg_lambda are two names of one parameter: give one"),
        ({"booster": "gblinear", "early_stopping": 3}, ": gblinear cannot go back to its best round: remove "),
    ],
    "sweeps.trees.trees.n_jobs": [(2, "sweeps.trees.trees: give `slots.cpus_per_trial` instead of n_jobs")],
    "sweeps.trees.grid": [
        ({"rounds": [9, 0]}, ".rounds: input should be greater than 0 (is 0)"),
        ({"library": ["xgbost"]}, ".library: 'xgbost' is not known; did you mean 'xgboost'?"),
        ({"n_estimators": [9]}, ": give `rounds` instead of n_estimators"),
        ({"num_iterations": [9]}, ": give `rounds` instead of num_iterations"),
        ({"n_iter": [9]}, ": give `rounds` instead of n_iter"),
        ({"early_stopping_round": [9]}, ": give `early_stopping` instead of early_stopping_round"),
    ],
    "sweeps.trees.metric": [("rmse", "metric is rmse, which no trial reports; known: val_accuracy, val_log_loss, ")],
    "sweeps.trees.train": [({}, ": give train or trees, not both")],
    "sweeps.trees.dataset": [("tabel", ": there is no dataset 'tabel'; did you mean 'table'?")],
    "pricing.gpu_hour": [(-1, ": input should be greater than or equal to 0")],
    "sweeps.depth.metrics": [({"file": "m.json"}, ": is for `command`, not for `train`")],
    "sweeps.depth.metric": [
        ("rmse", "sweeps.depth: metric is rmse, which no trial reports; known: epoch, lr, train_loss")
    ],
    "scaling.own": [
        (
            {"script": "t.py", "args": {"a": 1, "b": 2}, "scales": ["1x1"]},
            "a, b are not in the script: write {a} {b} where they belong, or {args}",
        ),
        ({"script": "t.py '{seed}'", "scales": ["1x1"]}, ".script: {seed} is in single quotes"),
        (
            {"script": "t.py", "scales": ["1x1", "1x2"], "metrics": {"file": "/tmp/m.csv"}},
            ".metrics.file: /tmp/m.csv would be shared by all trials",
        ),
        ({"script": "t.py", "scales": ["1x1"], "checkpoint": "/tmp/*.pt"}, ".checkpoint: /tmp/*.pt would be shared"),
        ({"dataset": "digits", "grace_seconds": 5, "scales": ["1x1"]}, "grace_seconds: is for `script`, not"),
        ({"script": "t.py", "train": {"lr": 1}, "scales": ["1x1"]}, "give train or script, not both"),
        (
            {"script": "t.py", "ddp": {"timeout_minutes": 5}, "scales": ["1x1"]},
            "ddp: is for `train`, not for `script`: a script sets up DDP itself",
        ),
        (
            {"dataset": "digits", "find_unused_parameters": True, "scales": ["1x1"]},
            "scaling.own.find_unused_parameters: is no longer an option: give `ddp: {find_unused_parameters: true}`",
        ),
        (
            {"script": "t.py {lr}", "scales": ["1x1"]},
            "the script has {lr}, which is neither an argument nor predefined; known: ",
        ),
        ({"launcher": "srun", "scales": ["1x1"], "dataset": "digits"}, "launcher: is for `script`, not"),
        ({"dataset": "digits", "skript": "x.py", "scales": ["1x1"]}, ".skript: unknown key; did you mean 'script'?"),
    ],
    "datasets.digits": [("digits", ": must be a mapping, not 'digits'; known: ")],
    "sweeps.depth.env": [("torch", ": is for `command`, not for `train`")],
    "scaling.study.python": [("python3", ": is no longer an option: give `env`, which may also be an interpreter")],
    "scaling.study.ddp": [
        ({"timeout_minutes": 0}, "ddp.timeout_minutes: input should be greater than 0 (is 0)"),
        ({"timeout_minutes": 1e9}, "ddp.timeout_minutes: input should be less than or equal to 10080"),
    ],
    "sweeps.depth.train.schedule": [
        ({"gamma": 0.1}, "the schedule constant has no argument 'gamma'; known: name, warmup_fraction"),
        ({"name": "onecycle", "warmup_fraction": 0.1}, "give pct_start instead of warmup_fraction"),
    ],
    "sweeps.depth.train.nesterov": [
        (True, "nesterov: is no longer an option: give `optimizer_args: {nesterov: true}`"),
    ],
    "sweeps.depth.stop": [
        ({"method": "asha", "grace_period": 0}, ".grace_period: input should be gr"),
        (
            {"method": "median", "min_samples": 1},
            "stop.min_samples: is no longer an option: `median` compares with five other trials or more",
        ),
        ({"method": "asha", "least_of": 1}, "stop.least_of: unknown key; known: epochs, grace_period"),
        ({"method": "percentile"}, ".method: 'percentile' is not known; known: asha, hyperband, median"),
    ],
    "sweep": [({}, ": unknown key; did you mean 'sweeps'?")],
    "scaling.study": [({"dataset": "digits"}, ".scales: is required, but missing")],
}
ALL_MISTAKES = [
    *((place, *mistake) for place, mistakes in MISTAKES.items() for mistake in mistakes),
    *(
        ("scaling.own", {"script": f"t.py {text}", "scales": ["1x1"]}, f"scaling.own.script: {error}")
        for text, error in {
            "2>&1 | tee log": "2>&1 would be an argument of the script, which runs without a shell: remove it",
            "|| true": "|| would be an argument of the script",
            "> log.txt": "> would be an argument of the script",
            "it's": "no closing quotation",
        }.items()
    ),
    *(
        (
            "sweeps.own",
            {"command": "./x {lr}"} | part,
            f"{text!r} is among numbers, but is text: correct it, or write all of them in quotes",
        )
        for text in ("1-e4", "1e--4", "1e- 4", "1 e-4", "1.e-", "-.5-e+3")
        for part in (
            {"grid": {"lr": [1e-3, text]}},
            {"sample": {"count": 1, "values": {"lr": [text, 2]}}},
            {"search": {"trials": 1, "values": {"lr": [text, 2]}}},
            {"trials": [{"lr": 1e-3}, {"lr": text}]},
        )
    ),
]


# Valid commands that resemble these errors.
RIGHT = [
    {"command": "x {resume} | tee y", "resume": "--resume"},
    {"command": "x\n", "resume": "--resume"},
    {"command": "x \\\n  --n {n}", "args": {"n": "a"}, "resume": "--resume"},
    {"command": "x > y 2>&1", "resume": "--resume"},
    {"command": "x 'a\n--b' <<E\n- c\n--d\nE"},
    {"command": "case {n} in\n  -v|--verbose) x;;\nesac", "args": {"n": 1}},
    {"command": ["x", "a\n--b"]},
    {"command": ["env", "bash", "-euc", "{n}"], "args": {"n": "a b"}},
    {"command": ["bash", "-e", "x.sh", "-c", "{n}"], "args": {"n": "a b"}, "resume": "--resume"},
    {"command": "bash x.sh -c y", "resume": "--resume"},
    {"command": ["bash", "-euo", "pipefail", "x.sh", "-c", "$(y)"], "resume": "--resume"},
    {"command": ["bash", "-c", 'x "$@"', "bash", "{resume}", "{n}"], "args": {"n": "$(y)"}, "resume": "--resume"},
    {"command": ["x", "{resume}", "y"], "resume": "--from '{resume_from}'", "checkpoint": "*.pt"},
    {"command": "x {resume}", "args": {"resume": "auto"}, "resume": "--resume"},
    {"command": 'x $(({n} * {cpus})) "$(y {n})"', "grid": {"n": [1, 2.5]}},
    {"command": "x | awk '{ print $1 }' ${HOME}"},
    {"command": "x {n}", "grid": {"n": [1, 2]}, "metrics": {"file": "a/../m.csv"}},
    {"command": "x {n}", "grid": {"n": [1, 0.5, "auto", "10-20", "2024-01-01", "5e", "1.2.3", "0,1", "e-mail", "1e4"]}},
    {"command": "x {n}", "grid": {"n": ["1-e4", "1e-3", True]}},  # no number among them
]


@pytest.mark.parametrize("sweep", RIGHT)
def test_a_command_that_can_be_run_is_accepted(sweep):
    assert check_config({"sweeps": {"own": sweep}}).sweeps["own"].command == sweep["command"]


def with_mistake(config: dict, place: str, value: object) -> dict:
    """The config with one value changed; the part after `grid` is one key, including its dots."""
    changed = copy.deepcopy(config)
    head, grid, key = place.partition(".grid.")
    parts = [*head.split("."), "grid", key] if grid else place.split(".")
    inner = changed
    for part in parts[:-1]:
        inner = inner.setdefault(part, {})
    inner[parts[-1]] = value
    return changed


def test_a_good_config_is_accepted():
    assert check_config(GOOD).sweeps["depth"].train.model == "resnet"


@pytest.mark.parametrize(("place", "value", "message"), ALL_MISTAKES, ids=lambda value: str(value)[:40])
def test_an_error_has_place_reason_and_remedy(place, value, message):
    with pytest.raises(ConfigError) as caught:
        check_config(with_mistake(GOOD, place, value))
    assert (f"{place}{message}" if message[0] in ":." else message) in str(caught.value)
    assert str(caught.value).startswith("1 error in config"), "one error"


def test_an_empty_command_is_shown_as_it_is():
    with pytest.raises(ConfigError, match=r"sweeps\.own\.command: input should be a valid list \(is None\)"):
        check_config({"sweeps": {"own": {"command": None}}})


def test_false_turns_an_option_off():
    config = check_config(with_mistake(GOOD, "sweeps.depth.train.augment", {"mixup": False, "flip": True}))
    assert config.sweeps["depth"].train.augment.mixup == 0


def test_all_errors_are_reported_at_once():
    wrong = GOOD
    for place, value in [("sweeps.depth.tran", {}), ("scaling.study.mode", "x"), ("sweeps.trees.trees.library", "y")]:
        wrong = with_mistake(wrong, place, value)
    with pytest.raises(ConfigError) as caught:
        check_config(wrong)
    assert str(caught.value).startswith("3 errors in config")


def test_strong_scaling_splits_the_batch_evenly():
    study = {"dataset": "digits", "scales": ["1x1", "1x3"], "mode": "strong", "train": {"batch_size": 64}}
    with pytest.raises(ConfigError, match="64 cannot be split evenly at 1x3"):
        check_config({**GOOD, "scaling": {"study": study}})


# Numbers as in the core schema of YAML 1.2; they may have underscores, as in Python.
FLOATS = {
    "1e-5": 1e-5, "1e5": 1e5, "1E+3": 1e3, "-1e-05": -1e-5, "1.5e3": 1500.0, "1.e2": 100.0, ".5": 0.5, "-.5": -0.5,
    "+.5e1": 5.0, "1e+16": 1e16, ".inf": math.inf, "-.INF": -math.inf, "0.1": 0.1, "1_000.5": 1000.5,
}  # fmt: skip
NOT_FLOATS = {
    "3": 3, "08": 8, "-0012": -12, "1_000": 1000, "0x1F": 31, "0o17": 15, "1:30": "1:30", "1:30.5": "1:30.5",
    "'1e-5'": "1e-5", "1.2.3": "1.2.3", "e5": "e5", "1e": "1e", "x1e5": "x1e5", ".": ".",
}  # fmt: skip


def read_as(folder, text, name="config.yaml"):
    path = folder / name
    path.write_text(text)
    return compose([path], {})


@pytest.mark.parametrize(("text", "value"), [*FLOATS.items(), *NOT_FLOATS.items()])
def test_numbers_are_read_as_in_yaml_1_2(tmp_path, text, value):
    given = read_as(tmp_path, f"sweeps: {{a: {{args: {{x: {text}}}}}}}")["sweeps"]["a"]["args"]["x"]
    assert (given, type(given)) == (value, type(value))


def test_a_date_is_text_as_in_the_config_that_jobs_read(tmp_path):
    """A search that varied one ended in a stack trace, since its digest is one of JSON."""
    (tmp_path / "c.yaml").write_text("a: [2024-01-01, 2024-01-01 10:00:00, 2024-01-01T10:00:00Z]")
    dates = ["2024-01-01", "2024-01-01T10:00:00", "2024-01-01T10:00:00Z"]
    assert read_file(tmp_path / "c.yaml") == {"a": dates}
    naive = datetime.datetime(2024, 1, 1, 10)
    assert parse_value([naive.date(), naive, naive.replace(tzinfo=datetime.UTC)]) == dates


def test_json_is_read_as_json(tmp_path):
    given = read_as(tmp_path, '{"data": {"x": [1e-05, 1e+16, Infinity, -Infinity, "1e-05"]}}', "config.json")
    assert given["data"]["x"] == [1e-05, 1e16, math.inf, -math.inf, "1e-05"]


def test_a_number_that_overflows_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="12e4567 is too large for a number; if it is text, write it in quotes"):
        read_as(tmp_path, "sweeps: {a: {args: {commit: 12e4567}}}")


@pytest.mark.parametrize("number", ["12e999", "1" * 5000])
def test_an_unreadable_number_on_the_command_line_is_an_error_of_one_line(tmp_path, number):
    (tmp_path / "config.yaml").write_text("{}")
    with pytest.raises(ConfigError, match=rf"^--config: {number[:40]} cannot be read as a number") as error:
        compose([tmp_path / "config.yaml"], {"pricing": {"gpu_hour": number}})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["sweeps: &a {s: *a}", "datasets: &a [[1], [*a]]"], ids=["mapping", "list"])
def test_an_alias_of_the_section_that_contains_it_is_an_error(tmp_path, text):
    (tmp_path / "c.yaml").write_text(text)
    for read in (read_config, lambda path: check_config(compose([path], {}))):
        with pytest.raises(ConfigError, match="is nested too deeply"):
            read(tmp_path / "c.yaml")


def test_an_alias_can_be_used_several_times(tmp_path):
    shared = read_as(tmp_path, "sweeps: {a: &a {grid: &g {seed: [1]}}, b: *a, c: {grid: *g}, d: *a}")["sweeps"]
    assert shared["b"] == shared["c"] == shared["d"] == {"grid": {"seed": [1]}}


def test_the_same_error_is_reported_once():
    sweep = {"function": "a:b", "grid": {"x": {"start": 1, "stop": math.inf}}}
    with pytest.raises(ConfigError, match=r"^1 error in config:\n  sweeps\.s\.grid\.x\.stop: input should be a finite"):
        check_config({"sweeps": {"s": sweep}})


def test_keys_are_text_even_if_they_look_like_numbers(tmp_path):
    read = read_as(tmp_path, "sweeps: {a: {args: {1234567890: 1, 12345e6789: 2, 0123456712: 3}}}")
    assert list(read["sweeps"]["a"]["args"]) == ["1234567890", "12345e6789", "0123456712"]


def test_config_files_are_merged_and_the_command_line_overrides_them(tmp_path):
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("sweeps:\n  a: {train: &base {lr: 1e-3, epochs: 2}, grid: {seed: [1]}}\n  b: {train: *base}")
    second.write_text("sweeps: {a: {train: {lr: 1e-4}, grid: null}}\npricing: {gpu_hour: 2}")
    # Snakemake passes all values within --config as text.
    command_line = {"sweeps": {"a": {"retries": "3", "args": {"x": ["1e-5", "b"]}}}, "pricing": {"gpu_hour": "2.5"}}
    assert compose([first, second], command_line) == {
        "sweeps": {
            "a": {"train": {"lr": 1e-4, "epochs": 2}, "grid": None, "retries": 3, "args": {"x": [1e-5, "b"]}},
            "b": {"train": {"lr": 1e-3, "epochs": 2}},
        },
        "pricing": {"gpu_hour": 2.5},
    }


@pytest.mark.parametrize(
    ("command_line", "chosen"),
    [
        ({"sweeps": "a"}, {"sweeps": ["a"], "scaling": ["s"]}),
        ({"sweeps": "a,1e5", "scaling": "none"}, {"sweeps": ["a", "1e5"], "scaling": []}),
        ({"sweeps": ["1e5"], "scaling": "all"}, {"sweeps": ["1e5"], "scaling": ["s"]}),
        ({"sweeps": 7}, {"sweeps": ["7"], "scaling": ["s"]}),
    ],
)
def test_studies_are_selected_on_the_command_line(tmp_path, command_line, chosen):
    path = tmp_path / "config.yaml"
    path.write_text("sweeps: {a: {}, 1e5: {}, 7: {}}\nscaling: {s: {dataset: d}}\ndatasets: {d: {}, e: {}}")
    composed = compose([path], command_line)
    assert {name: list(composed[name]) for name in chosen} == chosen
    assert list(composed["datasets"]) == (["d"] if "s" in chosen["scaling"] else [])


def test_a_missing_study_cannot_be_selected(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("sweeps: {depth: {}}")
    with pytest.raises(ConfigError, match="--config sweeps: there is no 'dept'; did you mean 'depth'"):
        compose([path], {"sweeps": "dept"})


def test_local_copies_can_be_turned_off_by_a_boolean(tmp_path):
    assert check_config(read_as(tmp_path, "data: {local: off}")).data.local == "off"


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.floats()
    | st.sampled_from([1e-5, 1e16, -0.0, "1e-05", "Infinity", "off", "~"])
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner))
names = st.sampled_from(["a", "b", "c", "d.e", "lr"])
choices = st.lists(values, min_size=1, max_size=3)
rates = st.floats(1e-30, 1e30, exclude_min=True)
own = st.fixed_dictionaries(
    {"function": st.just("a:b"), "args": st.dictionaries(st.sampled_from(["a", "b", "x"]), values, max_size=2)},
    optional={"grid": st.dictionaries(names, choices, max_size=2), "trials": st.lists(st.dictionaries(names, values))},
)
trained = st.fixed_dictionaries(
    {
        "dataset": st.just("digits"),
        "train": st.fixed_dictionaries({"lr": rates, "model_args": st.dictionaries(st.text(), values, max_size=2)}),
        "grid": st.fixed_dictionaries({"weight_decay": st.lists(rates, min_size=1, max_size=3)}),
    },
    optional={"slots": st.just("auto"), "retrain": st.integers(0, 3)},
)


def _up_to_that(high):
    return {"low": high / 10, "high": high, "log": True}


searched = st.fixed_dictionaries(
    {
        "function": st.just("a:b"),
        "search": st.fixed_dictionaries(
            {"trials": st.just(3), "values": st.fixed_dictionaries({"x": choices, "y": rates.map(_up_to_that)})}
        ),
    }
)


@given(own | trained | searched)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_programs_read_the_same_config_as_snakemake(sweep):
    try:
        check_config({**GOOD, "sweeps": {"s": sweep}})
    except ConfigError:  # `d.e` where `d` is a number
        reject()
    with TemporaryDirectory() as folder:
        workflow = Workflow({**GOOD, "sweeps": {"s": sweep}}, results=Path(folder))
        workflow.write_config()
        read = read_config(workflow.config_file)
    resolved = [json.dumps(each.model_dump(mode="json", exclude_unset=True)) for each in (workflow.config, read)]
    assert resolved[0] == resolved[1]
    sweeps = [each.sweeps["s"] for each in (workflow.config, read)]
    assert TrialSpace(sweeps[0], "d").search_key == TrialSpace(sweeps[1], "d").search_key
    trials = [expand(each).trials for each in sweeps]
    assert [each.identity("d") for each in trials[0]] == [each.identity("d") for each in trials[1]]
    assert repr([each.values for each in trials[1]]) == repr([each.values for each in trials[0]])


def test_numbers_that_are_not_finite_change_the_identity():
    sweep = {"function": "a:b", "grid": {"x": [math.inf, -math.inf, math.nan, None, "Infinity"]}}
    trials = expand(check_config({"sweeps": {"s": sweep}}).sweeps["s"]).trials
    assert len({trial.identity("d") for trial in trials}) == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "not valid YAML"),
        ("sweeps: {}\nsweeps: {}", "line 2, column 1: not valid YAML: duplicate key 'sweeps', which line 1 has, too"),
        ("a: 1\n b: 2", r"config.yaml, line 2, column 3: not valid YAML: mapping values are not allowed in this"),
        ("a:\n\tb: 2", r"line 2, column 1: not valid YAML: .*; indent with spaces, not with tabs"),
        ('a: "\\d"', "not valid YAML: .*; put text with backslashes, such as a pattern, in single quotes"),
        ("a: {b: 1\nc: 2", r"line 2, column 2: not valid YAML: .*begun in line 1\): did not find expected ',' or '}'"),
        ("a: [8, 16\nb: '(?P<b>x)'", r"line 2, column 2: .* or '\]'; is its bracket closed\?$"),
        ("metrics: {pattern: acc=(?P<acc>{number})}", r"; put the pattern in single quotes: '\.\.\.'"),
        ("pattern: {number} val loss", r"19: .*expected key; put the value in '\.\.\.', with each ' in it as ''$"),
        ("a:\n  - {x} y", r"line 2, column 9: .*; put the value in '\.\.\.'"),
        ("a: 'it's x'", r"; put the value in '\.\.\.', with each ' in it as ''"),
        ("pattern: loss: {number}", r"column 14: .* in this context; put the value in '\.\.\.'"),
        ("a:\n  b:\n    c: 1\n   d: 2", r"line 4, column 4: .*; indent 'd: 2' as a key above it"),
        ("- 1", "the file"),
        ("a: \xff", "not valid YAML: 'utf-8' codec can't decode"),
        ('{"a": 1', "line 1, column 8: not valid JSON: Expecting"),
        ('{"sweeps": {}, "sweeps": {}}', "not valid JSON: duplicate key 'sweeps'"),
    ],
)
def test_a_file_that_is_not_a_config_is_rejected(tmp_path, text, message):
    path = tmp_path / ("config.json" if text.startswith("{") else "config.yaml")
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=message):
        read_config(path)


def test_a_key_that_is_missing_beside_a_misspelt_one_is_no_second_error():
    with pytest.raises(ConfigError) as error:
        check_config({"sweeps": {"s": {"comand": "./x {lr}", "grid": {"lr": [1, 2]}}}}, source="c.yaml")
    assert str(error.value) == "1 error in c.yaml:\n  sweeps.s.comand: unknown key; did you mean 'command'?"


def test_references_are_checked_even_if_other_sections_have_errors():
    raw = {
        "datasets": {"digits": {"source": "digits"}, "wrong": {"source": "digit"}},
        "sweeps": {
            "a": {"dataset": "digit", "grid": {"lr": [0.1]}},
            "b": {"dataset": "wrong", "grid": {"lr": [0.1]}},
            "c": {"dataset": "digits", "gird": {}},
        },
        "pricing": {"gpu_hour": "free"},
    }
    with pytest.raises(ConfigError) as error:
        check_config(raw)
    places = [line.strip().partition(": ")[0] for line in str(error.value).splitlines()[1:]]
    assert sorted(places) == ["datasets.wrong", "pricing.gpu_hour", "sweeps.a.dataset", "sweeps.c.gird"]


PATTERNS = ["epoch (?P<epoch>{number})", "acc=(?P<val_accuracy>{number})"]


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"pattern": PATTERNS, "sample": "epoch 3: acc=91.2%"}, ""),
        ({"pattern": PATTERNS, "sample": ["epoch 3\nacc=91.2%", "done"]}, ""),
        (
            {"pattern": PATTERNS, "sample": "epoch 3: acc 91.2%"},
            "acc=.* matches nothing in the sample, epoch 3: acc 91.2%: it matches up to acc, but not the rest, =",
        ),
        (
            {"pattern": "loss (?P<loss>{number}) acc", "sample": "step 1,000: loss 2,4661 acc 1"},
            r"not the rest,  acc",
        ),
        ({"file": "x.csv", "sample": "epoch"}, "sample is for pattern"),
    ],
)
def test_a_pattern_must_match_in_its_sample(metrics, message):
    raw = {"sweeps": {"s": {"command": "run", "metrics": metrics}}}
    if message:
        with pytest.raises(ConfigError, match=message):
            check_config(raw)
        return
    config = check_config(raw)
    without = check_config({"sweeps": {"s": {"command": "run", "metrics": {"pattern": PATTERNS}}}})
    assert config.model_dump(mode="json", exclude_unset=True) == without.model_dump(mode="json", exclude_unset=True)
    assert config.sweeps["s"].metrics.digest == without.sweeps["s"].metrics.digest


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: there is no such file"):
        read_config(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(
    ("slots", "count"),
    [
        ({"gpus_per_node": 4}, 4),
        ({"gpus_per_node": 4, "gpus_per_trial": 2}, 2),
        ({"gpus_per_node": 2, "gpus_per_trial": 0.25}, 8),
        ({"gpus_per_node": 1, "gpus_per_trial": 0.3}, 3),
        ({"gpus_per_node": 8, "gpus_per_trial": 3}, 2),
    ],
)
def test_slots_never_share_a_gpu_unevenly(slots, count):
    assert Slots.model_validate(slots).count == count


@pytest.mark.parametrize(
    ("given", "jobs"),
    [
        ({}, 1),
        ({"nodes": 1}, 1),
        ({"jobs": 8, "nodes": 1}, 8),
        ({"nodes_per_trial": 3}, 1),
        ({"jobs": 2, "nodes_per_trial": 3}, 2),
    ],
)
def test_a_job_has_the_nodes_of_one_trial(given, jobs):
    assert Slots.model_validate({"gpus_per_node": 2, **given}).jobs == jobs


def test_a_trial_on_several_nodes_is_the_only_slot_of_its_job():
    slots = Slots(nodes_per_trial=2, gpus_per_node=4, cpus_per_trial=8)
    assert (slots.count, slots.gpus, slots.cpus_per_node) == (1, 8, 8)
    assert (slots.share, slots.node_share, slots.ranks, slots.scale) == (8, 4, 8, "2x4")
    assert Slots(gpus_per_node=4, gpus_per_trial=2).scale == "1x2"
    assert Slots(gpus_per_node=1, gpus_per_trial=0.5).scale == Slots(gpus_per_node=0).scale == "1x1"


def test_slots_without_gpus_are_counted_and_charged_by_cpus():
    slots = Slots.model_validate({"cpus": 12, "cpus_per_trial": 4})
    assert (slots.count, slots.cpus_per_node, slots.gpus, slots.share) == (3, 12, 0, 0)
    assert (slots.unit, slots.units, slots.units_per_trial) == ("CPU", 12, 4)
    shared = Slots.model_validate({"gpus_per_node": 2, "gpus_per_trial": 0.25, "cpus_per_trial": 4})
    assert (shared.unit, shared.units, shared.units_per_trial) == ("GPU", 2, 0.25)


def test_schema_and_option_tables_are_current():
    done = subprocess.run([sys.executable, ROOT / "tools/options.py", "--check"], text=True, capture_output=True)
    assert done.returncode == 0, done.stdout


SCHEMA = ROOT / "workflow/schemas/config.schema.json"
OF_HYDRA = ROOT / "examples/conf"  # configs of a user's script
SHIPPED = [
    *sorted((ROOT / "config").glob("*.yaml")),
    *(path for path in sorted((ROOT / "examples").rglob("*.yaml")) if path.parent != OF_HYDRA),
]


@pytest.fixture(scope="module")
def schema():
    return jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_configs_are_valid_and_editors_find_their_schema(path, schema):
    read_config(path)
    first = path.read_text().splitlines()[0]
    named = re.fullmatch(r"# yaml-language-server: \$schema=(\S+)", first)
    assert named, "the first line must name the schema, as in config/config.yaml"
    assert (path.parent / named[1]).resolve() == SCHEMA
    schema.validate(read_file(path))


OWN = {"function": "os:getcwd"}


def made_of(sweep):
    return TypeAdapter(AnySweep).validate_python(sweep)


SEARCH = {"trials": 2, "values": {"x": [1, 2]}}
REPORTED, COUNTED = ["accuracy", "rmse"], ["step", "accuracy", "lr"]


@pytest.mark.parametrize(
    ("sweep", "judged"),
    [
        ({"dataset": "d"}, ("val_accuracy", "max")),
        ({"dataset": "d", "metric": "val_loss"}, ("val_loss", "min")),
        (OWN, None),
        ({**OWN, "mode": "min"}, None),
        ({**OWN, "metric": "rmse"}, ("rmse", None)),
        ({**OWN, "metric": "rmse", "mode": "max"}, ("rmse", "max")),
        ({**OWN, "metric": "nowhere", "mode": "min"}, None),
        ({**OWN, "search": SEARCH, "metric": "rmse"}, ("rmse", "min")),
        ({**OWN, "search": SEARCH, "metric": "rmse", "mode": "max"}, ("rmse", "max")),
        ({**OWN, "search": SEARCH, "metric": "rmse", "stop": {"method": "asha"}}, ("rmse", "min")),
        ({**OWN, "stop": {"method": "asha"}, "metric": "accuracy", "mode": "min"}, ("accuracy", "min")),
    ],
)
def test_the_ranking_metric_follows_from_metric_and_mode(sweep, judged):
    made = made_of(sweep)
    reported = ["val_loss", "val_accuracy"] if isinstance(made, TrainSweep) else REPORTED
    assert made.ranking_metric(reported) == judged
    assert made_of(made.model_dump(exclude_unset=True)).ranking_metric(reported) == judged
    if made.search or made.stop:
        assert made.compared_by == judged, "search and stop use the same"


@pytest.mark.parametrize(
    ("more", "reported", "judged"),
    [
        ({}, ["train_loss", "val_accuracy"], ("val_accuracy", "max")),  # it takes precedence over the first one
        ({"mode": "min"}, ["train_loss", "val_accuracy"], ("val_accuracy", "min")),
        ({}, COUNTED, ("accuracy", None)),  # the only one that is no counter
        ({"mode": "min"}, COUNTED, ("accuracy", "min")),
        ({"metric": "x"}, COUNTED, None),  # one that the config names is not replaced
        ({}, [], None),
    ],
)
def test_without_a_metric_one_of_the_reported_ones_ranks_trials(more, reported, judged):
    assert made_of({**OWN, **more}).ranking_metric(reported) == judged


@pytest.mark.parametrize("given", [{}, {"sweeps": "all", "scaling": "none"}], ids=["all", "sweeps"])
@pytest.mark.parametrize("path", sorted((ROOT / "config").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_resolved_config_resolves_to_itself(tmp_path, path, given):
    """Jobs read the one that Snakemake writes at its start, and get the same `--config`."""
    resolved = check_config(compose([path], given)).model_dump(mode="json", exclude_unset=True)
    again = tmp_path / "resolved.json"
    write_json(again, resolved)
    assert check_config(compose([again], given)).model_dump(mode="json", exclude_unset=True) == resolved


@pytest.mark.parametrize("start", ["^", r"(?:^|\s)", "(?=^)", "(?i:^)", r"(?<=^)", r"\^", "[^a]", "(?P<epoch>^)"])
def test_a_start_of_the_line_may_be_in_a_group(start):
    metrics = {"pattern": f"{start}acc (?P<acc>{{number}})"}
    check_config({"sweeps": {"s": {"command": "run", "metrics": metrics}}})


def test_the_only_metric_of_a_pattern_judges_trials_also_where_the_config_does_not_name_it():
    def monitored(pattern):
        sweep = {"command": "x {lr}", "grid": {"lr": [1, 2]}, "metrics": {"pattern": pattern}}
        return check_config({"sweeps": {"s": sweep}}).sweeps["s"].monitored_metrics

    assert monitored("epoch (?P<epoch>{number}) acc (?P<acc>{number})") == ["acc"]
    assert monitored("loss (?P<loss>{number}) acc (?P<acc>{number})") == []


def test_two_names_of_a_parameter_of_trees_are_refused_where_one_is_varied():
    sweep = {"dataset": "table", "trees": {"learning_rate": 0.1}, "grid": {"eta": [0.1, 0.3]}}
    with pytest.raises(ConfigError, match="eta and learning_rate are two names of one parameter"):
        check_config({"datasets": GOOD["datasets"], "sweeps": {"t": sweep}})
    for trees in ({"alpha": 0.5, "reg_alpha": 1, "library": "lightgbm"}, {"eta": 0.1, "reg_alpha": 1}):
        check_config({"datasets": GOOD["datasets"], "sweeps": {"t": {"dataset": "table", "trees": trees}}})


def test_automatic_slots_of_trees_are_cpus():
    sweep = {"dataset": "table", "trees": {}, "slots": "auto", "grid": {"eta": [0.1, 0.3]}}
    (found,) = check_config({"datasets": GOOD["datasets"], "sweeps": {"t": sweep}}).sweeps.values()
    assert (found.slots.gpus, found.slots.cpus, found.goal) == (0, 8, "fastest")
