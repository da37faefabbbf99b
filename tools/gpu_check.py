"""Check the training loop on one GPU, and measure its speed.

python tools/gpu_check.py correct            numerics, host syncs, non-finite losses, resuming, out of memory, compile, DDP
python tools/gpu_check.py speed              throughput of ResNet-50 on 64x64 images and of small ResNets
python tools/gpu_check.py whatif             CUDA graphs of whole steps, fused models, a profile, processes sharing the GPU
python tools/gpu_check.py one NAME [NAME...] single checks of `correct`; the names are listed in CHECKS

Without a GPU, `correct` and `speed` run at toy sizes, which tests only this program; `whatif` needs a GPU. Results are also
written to gpu_check_<what>.json in --out. The exit code is 1 if a check fails.

Known failures, also at toy size on a CPU: `fp16` with SGD, `compile` with activation checkpointing, `compiled_sweep` (after
8 models, the recompilation limit is reached), and `ranks` (running statistics of batch normalization differ among ranks).
"""

import argparse
import gc
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import numpy as np
import torch
from torch import nn
from trainyard.config.config import Data
from trainyard.config.train import Augment, Train
from trainyard.training import trainer as trainer_module
from trainyard.training import warmup
from trainyard.training.augment import Augmenter
from trainyard.training.checkpoints import CheckpointStore
from trainyard.training.flops import gpu_utilization, model_cost
from trainyard.training.loaders import InputData, LoaderSplit, MappedSplit, ResidentSplit
from trainyard.training.process_group import Group
from trainyard.training.sampler import BatchSizes, training_batches

GPU = torch.cuda.is_available()
DEV = torch.device("cuda", 0) if GPU else torch.device("cpu")
NAME = torch.cuda.get_device_name() if GPU else "cpu"
RESULTS, BEGAN = {}, time.time()
ME = Path(__file__).resolve()


# ---- helpers


def arrays(n, side, ch, classes, seed=0):
    g = np.random.default_rng(seed)
    return g.integers(0, 256, (n, side, side, ch), np.uint8), g.integers(0, classes, n).astype(np.int64)


def data(n=2048, side=32, ch=3, classes=10, val=512, device=DEV, kind="resident"):
    if not GPU:  # toy sizes
        n, side, val = min(n, 640), min(side, 8), min(val, 64)

    def split(count, seed):
        images, labels = arrays(count, side, ch, classes, seed)
        if kind == "resident":
            return ResidentSplit(images, labels, device)
        return MappedSplit(images, labels, device, prefetch=2)

    mean, std = (torch.full((1, ch, 1, 1), value, device=device) for value in (127.0, 73.0))
    return InputData(split(n, 1), split(val, 2), mean, std, classes, (side, side, ch))


def training(spec, what, batch=None, group=None, **more):
    group = group or Group(0, 0, 1, what.mean.device)
    return trainer_module.Trainer(
        spec, what, group, batch=batch or BatchSizes(spec.batch_size * spec.accumulation, spec.batch_size), **more
    )


SMALL = dict(model="resnet", model_args={"blocks": 2, "width": 16}, batch_size=64, lr=0.02)


def state_of(t):
    return torch.cat([v.double().flatten().cpu() for v in t.module.state_dict().values()])


def free():
    gc.collect()
    if GPU:
        torch.cuda.empty_cache()


def report(name, ok, words):
    result = {True: "PASS", False: "FAIL", None: "info"}[ok]
    RESULTS.setdefault("checks", []).append([name, result, str(words)])
    print(f"[{time.time() - BEGAN:5.0f} s] {result} {name}: {words}", flush=True)


# ---- correctness


def check_environment():
    report("environment", None, f"{sys.version.split()[0]}, torch {torch.__version__}, cudnn "
        f"{torch.backends.cudnn.version()}, {NAME}, {os.cpu_count()} CPUs")  # fmt: skip
    if GPU:
        a = torch.empty(2**30, dtype=torch.uint8, device=DEV)
        b = torch.empty_like(a)
        seconds = _time(lambda: b.copy_(a), 20)
        m = torch.randn(8192, 8192, device=DEV, dtype=torch.bfloat16)
        mm = _time(lambda: m @ m, 10)
        report(
            "ceilings",
            None,
            f"copy {2 * 2**30 / seconds / 1e12:.2f} TB/s, bf16 matmul {2 * 8192**3 / mm / 1e12:.0f} TFLOP/s",
        )


def _time(what, repeats):
    for _ in range(3):
        what()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(repeats):
        what()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / repeats


def check_telemetry():
    from trainyard.training.telemetry import visible_gpus

    with visible_gpus() as gpus:
        rows = [gpu.sample() for gpu in gpus]
    report("telemetry (NVML by UUID)", bool(rows) if GPU else None, rows)


def check_numerics():
    """The loss after the same steps on the CPU in fp32 and on the GPU in each precision, within a tolerance."""
    cpu = data(n=640, side=16, val=128, device=torch.device("cpu"))
    limit = {"fp32": 2e-3, "tf32": 1e-2, "bf16": 5e-2, "fp16": 3e-2}
    for optimizer, lr in (("sgd", 0.02), ("adamw", 0.002)):
        make = lambda p: Train(
            **{
                **SMALL,
                "precision": p,
                "optimizer": optimizer,
                "lr": lr,
                "augment": Augment(crop_padding=2, flip=True),
                "clip_norm": 5.0,
                "weight_decay": 1e-4,
            }
        )
        base = next(training(make("fp32"), cpu).epochs())
        for p in limit if GPU else ("bf16",):
            row = next(training(make(p), data(n=640, side=16, val=128)).epochs())
            off = abs(row.train_loss - base.train_loss)
            report(
                f"numerics {optimizer} {p}",
                off < limit[p],
                f"train loss {row.train_loss:.5f}, CPU fp32 {base.train_loss:.5f}",
            )


def check_data():
    """Augmentation and the three input paths are bit-identical to the CPU."""
    images, labels = arrays(1000, 32, 3, 10)
    order = list(training_batches(1000, BatchSizes(96, 96), rank=0, seed=0, epoch=1))

    def all_of(split, device):
        augment = Augmenter(Augment(crop_padding=4, flip=True), size=1000, seed=0, epoch=1)
        return [(augment(b.pixels, b.indices).cpu(), b.labels.cpu()) for b in split.batches(iter(order))]

    want = all_of(ResidentSplit(images, labels, torch.device("cpu")), "cpu")

    class Own(torch.utils.data.Dataset):
        def __len__(self):
            return 1000

        def __getitem__(self, index):
            return images[index], int(labels[index])

    ways = {
        "resident": ResidentSplit(images, labels, DEV),
        "mapped": MappedSplit(images, labels, DEV, prefetch=2),
        "loaded": LoaderSplit(Own(), DEV, Data(workers=2)),
    }
    for name, split in ways.items():
        got = all_of(split, DEV)
        same = all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(want, got, strict=True))
        report(f"data path {name}", same, "bit-identical to the CPU" if same else "DIFFERS")


def check_syncs():
    """No operation of a step synchronizes with the GPU, according to torch's sync debug mode."""
    if not GPU:
        return report("host syncs", None, "needs a GPU")
    for kind in ("resident", "mapped"):
        spec = Train(**{**SMALL, "precision": "bf16", "augment": Augment(crop_padding=4, flip=True), "clip_norm": 1.0})
        t = training(spec, data(kind=kind))
        real, seen = t._step, []

        def step(images, augment, real=real, t=t, seen=seen):
            if t.state.progress.step < 5:
                return real(images, augment)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                torch.cuda.set_sync_debug_mode("warn")
                try:
                    return real(images, augment)
                finally:
                    torch.cuda.set_sync_debug_mode("default")
                    seen += [f"{Path(w.filename).name}:{w.lineno}" for w in caught if "synchroniz" in str(w.message)]

        t._step = step
        next(t.epochs())
        report(f"host syncs in {t.steps - 5} steps, {kind}", not seen, sorted(set(seen)) or "none")


def check_bad_loss():
    """A non-finite loss is reported with its step, and its update is cancelled on the device."""
    t = training(Train(**{**SMALL, "precision": "bf16", "momentum": 0.9}), data())
    real = t.compute_loss

    def compute_loss(images, **more):
        loss, sums = real(images, **more)
        if more.get("training") and t.state.progress.step == 5:
            loss = loss * float("nan")
            sums = sums * float("nan")
        return loss, sums

    t.compute_loss = compute_loss
    try:
        next(t.epochs())
        report("bad loss", False, "not detected")
    except trainer_module.Diverged as error:
        finite = all(torch.isfinite(p).all() for p in t.module.parameters())
        report(
            "bad loss",
            "step 6 " in str(error) and bool(finite),
            f"{str(error)[:80]}...; parameters finite: {bool(finite)}",
        )


def check_fp16_first_overflow():
    """The scaler skips the first step: torch's fused SGD then leaves its momentum uninitialized (a known failure)."""
    for optimizer in ("sgd", "adamw"):
        t = training(Train(**{**SMALL, "precision": "fp16", "optimizer": optimizer, "lr": 0.005, "epochs": 2}), data())
        t.state.scaler._init_scale = 2.0**24  # the first steps overflow, as they do with real networks
        junk = [
            torch.full((2**20,), 1e4, device=DEV) for _ in range(64)
        ]  # freed memory that the allocator returns again
        del junk
        try:
            rows = list(t.epochs())
            buffers = [v for s in t.state.optimizer.state.values() for k, v in s.items() if k != "step"]
            largest = max(float(b.abs().max()) for b in buffers)
            ok = math.isfinite(largest) and largest < 100 and rows[-1].train_loss < 3
            words = f"losses {[round(r.train_loss, 3) for r in rows]}, largest optimizer state {largest:.3g}"
        except trainer_module.Diverged as error:
            ok, words = False, str(error)[:90]
        report(f"fp16 whose first step overflows, {optimizer}", ok, words)


def check_resume():
    """A training that is stopped within an epoch and resumed equals an uninterrupted one."""
    for deterministic in (False, True):
        torch.backends.cudnn.deterministic = deterministic
        spec = Train(**{**SMALL, "precision": "bf16", "epochs": 2, "augment": Augment(flip=True)})
        whole = training(spec, data())
        list(whole.epochs())
        again = training(spec, data())
        list(again.epochs())
        with tempfile.TemporaryDirectory() as name:
            store = CheckpointStore(Path(name) / "c")
            first = training(spec, data(), store=store)
            real = first._is_late
            first._is_late = lambda: first.state.progress.step >= 9 or real()
            try:
                list(first.epochs())
            except trainer_module.Stopped:
                pass
            at = first.state.progress.step
            second = training(spec, data(), store=store)
            list(second.epochs())
        torch.backends.cudnn.deterministic = False
        runs = (state_of(whole) - state_of(again)).abs().max().item()
        resumed = (state_of(whole) - state_of(second)).abs().max().item()
        report(f"resume, cudnn.deterministic={deterministic}", resumed == 0 if deterministic else None,
            f"stopped after step {at}; largest difference of two runs {runs:.2g}, of a resumed run {resumed:.2g}")  # fmt: skip


def check_memory():
    """A micro-batch that does not fit the memory is halved until it does."""
    if not GPU:
        return report("out of memory", None, "needs a GPU")
    total = torch.cuda.get_device_properties(0).total_memory
    for compiled in (False, True):
        free()
        torch.cuda.set_per_process_memory_fraction(6 * 2**30 / total)
        try:
            halved = []
            spec = Train(model="resnet50", batch_size=4096, precision="bf16", compile=compiled, lr=0.01)
            t = training(
                spec, data(n=8192, side=64, classes=200), batch=BatchSizes(4096, 4096), on_halved=halved.append
            )
            rows = list(t.epochs())
            report(f"out of memory, compile={compiled}", bool(halved) and math.isfinite(rows[0].train_loss),
                f"micro-batches of {t.batch.micro}, loss {rows[0].train_loss:.3f}, peak {torch.cuda.max_memory_reserved() / 2**30:.1f} GiB")  # fmt: skip
        except Exception as error:
            report(f"out of memory, compile={compiled}", False, f"{type(error).__name__}: {str(error)[:160]}")
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
            t = None
            torch._dynamo.reset() if compiled else None
            free()


def check_share():
    """Trials share a GPU: resident images must fit the memory share of their process."""
    if not GPU:
        return report("share of memory", None, "needs a GPU")
    from trainyard.packing import gpu_sharing
    from trainyard.training.loaders import RESIDENT_SHARE

    total = torch.cuda.get_device_properties(0).total_memory
    gpu_sharing.limit_gpu_memory(0.02)
    cap = total * max(0.02, 0.02 - gpu_sharing.CONTEXT_MIB * 2**20 / total)
    would = RESIDENT_SHARE * torch.cuda.mem_get_info(0)[0]
    torch.cuda.set_per_process_memory_fraction(1.0)
    report(
        "share of memory",
        would <= cap,
        f"the share is {cap / 2**30:.1f} GiB, resident images take up to {would / 2**30:.1f} GiB",
    )


def check_compile():
    """torch.compile with each option of the spec."""
    size = dict(n=1024, side=32, val=256) if GPU else dict(n=64, side=8, val=16)
    bs = 128 if GPU else 16
    eager = next(training(Train(**{**SMALL, "batch_size": bs, "precision": "bf16"}), data(**size)).epochs()).train_loss
    cases = {
        "bf16": {"precision": "bf16"},
        "tf32": {"precision": "tf32"},
        "fp32": {"precision": "fp32"},
        "accumulation 2 (CUDA graphs; pytorch #169545)": {
            "precision": "bf16",
            "accumulation": 2,
            "batch_size": bs // 2,
        },
        "activation_checkpointing": {"precision": "bf16", "activation_checkpointing": True},
        "two epochs, clip, smoothing": {"precision": "bf16", "epochs": 2, "clip_norm": 1.0},
    }
    for name, values in cases.items():
        torch._dynamo.reset()
        try:
            t = training(Train(**{**SMALL, "batch_size": bs, "compile": True, **values}), data(**size))
            warmup.warm_up(t)
            rows = list(t.epochs())
            near = abs(rows[0].train_loss - eager) < 0.05
            report(f"compile {name}", near, f"loss {rows[0].train_loss:.4f}, eager {eager:.4f}")
        except Exception as error:
            report(f"compile {name}", False, f"{type(error).__name__}: {str(error).splitlines()[0][:200]}")
    torch._dynamo.reset()
    free()


def check_compiled_sweep():
    """Ten models in one process, as in the worker of a sweep: the last one is still compiled, and memory is freed."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    used = []
    for blocks in range(1, 11):
        counters.clear()
        spec = Train(**{**SMALL, "model_args": {"blocks": blocks, "width": 16}, "compile": True, "precision": "bf16",
                        "batch_size": 64 if GPU else 16})  # fmt: skip
        t = training(spec, data(n=256, side=16, val=64) if GPU else data(n=32, side=8, val=16))
        warmup.warm_up(t)
        list(t.epochs())
        frames = (
            counters["frames"].get("ok", 0),
            sum(counters["recompile_limit"].values()) if "recompile_limit" in counters else 0,
        )
        t = None
        free()
        used.append([blocks, counters["stats"].get("unique_graphs", 0), frames,
                     torch.cuda.memory_reserved() // 2**20 if GPU else 0])  # fmt: skip
    torch._dynamo.reset()
    report("compiled sweep", used[-1][1] > 0, f"[blocks, graphs compiled, frames, MiB held] {used}")


RANK = """
import os, sys
sys.argv = ["x"]
sys.path.insert(0, os.path.dirname({me!r}))
import gpu_check as c, torch, torch.distributed as dist, time
from trainyard.training.process_group import Group, process_group
import dataclasses
if os.environ.get("GLOO"):
    real = dist.init_process_group
    dist.init_process_group = lambda backend, **k: real("gloo", **k)

class Forced(Group):  # uses DDP and collectives on a single rank
    def wrap(self, model, **options):
        from torch.nn.parallel import DistributedDataParallel
        options.pop("compiled")
        hook = options.pop("compression")
        wrapped = DistributedDataParallel(model, device_ids=[self.device.index] if self.device.type == "cuda" else None,
                                          gradient_as_bucket_view=True, **options)
        if hook == "bf16":
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
            wrapped.register_comm_hook(None, bf16_compress_hook)
        return wrapped
    def all_reduce_sum(self, values):
        dist.all_reduce(values); return values
    def all_reduce_min(self, values):
        return dist.all_reduce(values, dist.ReduceOp.MIN, async_op=True)

with process_group() as g:
    forced = os.environ.get("FORCED")
    if forced:
        g = Forced(g.rank, g.local_rank, g.world_size, g.device)
    def check(name, **values):
        try:
            spec = c.Train(**{{**c.SMALL, "precision": "bf16" if c.GPU else "fp32", **values}})
            per = 64 // g.world_size
            t = c.training(spec, c.data(n=1024, side=16, val=130, device=g.device), batch=c.BatchSizes(per, per, g.world_size), group=g)
            if g.world_size > 1 or forced:
                from trainyard.training.warmup import warm_up
                warm_up(t)
            row = next(t.epochs())
            buffers = torch.cat([b.double().flatten() for n, b in t.module.named_buffers() if "running" in n]).cpu()
            all_of = g.all_gather_object(buffers)
            apart = max(float((each - all_of[0]).abs().max()) for each in all_of)
            if g.is_main:
                print(f"RESULT {{name}}: loss {{row.train_loss:.4f}} val {{row.val_loss:.4f}} {{row.images_per_second:.0f}} img/s; "
                      f"running statistics of ranks differ by {{apart:.2g}}", flush=True)
        except Exception as error:
            print(f"RESULT {{name}}: {{type(error).__name__}} {{str(error)[:150]}}", flush=True)
    check("plain")
    check("bf16 gradients", gradient_compression="bf16")
    check("recomputed", activation_checkpointing=True)
    if c.GPU:
        check("sync_batchnorm", sync_batchnorm=True)
        check("channels first", channels_last=False)
"""


def check_ranks():
    """DDP on one rank with NCCL, then on two ranks with gloo that share the GPU."""
    with tempfile.TemporaryDirectory() as name:
        program = Path(name) / "rank.py"
        program.write_text(RANK.format(me=str(ME)))
        for ranks, environment in ((1, {"FORCED": "1"}), (2, {"GLOO": "1"})):
            line = [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node",
                str(ranks),
                str(program),
            ]
            environment |= {"PYTHONPATH": f"{ROOT / 'scripts'}:{os.environ.get('PYTHONPATH', '')}", "YARD": str(ROOT)}
            try:
                done = subprocess.run(line, env=os.environ | environment, text=True, capture_output=True, timeout=150)
                found = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
                lines = found or (done.stdout + done.stderr).splitlines()[-4:]
            except subprocess.TimeoutExpired:
                lines = ["TIMED OUT after 150 s"]
            backend = "gloo" if "GLOO" in environment or not GPU else "NCCL"
            for each in lines:
                ok = "Error" not in each and "TIMED" not in each
                if "differ by" in each and not each.rstrip().endswith("by 0"):
                    ok = False  # the ranks validate with different models
                report(f"{ranks} rank(s), {backend}", ok, each.removeprefix("RESULT "))


def check_launch():
    """The programs stage and train, with torchrun, telemetry and summary."""
    import yaml

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = (
            {"images": 20_000, "val_images": 1000, "height": 64, "width": 64}
            if GPU
            else {"images": 64, "val_images": 16, "height": 8, "width": 8}
        )
        train = {"model": "resnet50", "batch_size": 512, "precision": "bf16"} if GPU else {"batch_size": 16}
        config = {"datasets": {"d": {"source": "synthetic", "classes": 20, **size}},
                  "scaling": {"s": {"dataset": "d", "train": {**train, "epochs": 3}, "scales": ["1x1"], "cpus_per_gpu": 8,
                                    "telemetry_seconds": 0.5}}}  # fmt: skip
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        for program, options in (("stage", ["--dataset", "d"]), ("train", ["--study", "s", "--scale", "1x1"])):
            line = [sys.executable, str(ROOT / f"scripts/{program}.py"), "--config", "config.yaml", *options]
            done = subprocess.run(line, cwd=folder, text=True, capture_output=True, timeout=240)
            if done.returncode:
                return report(f"program {program}", False, (done.stdout + done.stderr)[-600:])
        kept = json.loads((folder / "results/scaling/s/1x1/summary.json").read_text())
        names = ("images_per_second", "step_ms_p50", "data_wait_fraction", "mfu", "roofline_images_per_second", "gpu0_peak_mib",
                 "startup_seconds", "warmup_seconds", "train_seconds", "device")  # fmt: skip
        report("programs stage and train", True, {each: kept[each] for each in names})
        rows = (folder / "results/scaling/s/1x1/telemetry").glob("gpu-*.csv")
        report("telemetry file", None, [path.read_text().splitlines()[-1] for path in rows])
    return None


# ---- speed


def rate(label, spec, what, *, epochs=3, before=None, batch=None, table="speed"):
    """Print a row: images per second without the first epoch, step times, time of the host per step, MFU, ..."""
    free()
    if GPU:
        torch.cuda.reset_peak_memory_stats()
    try:
        spec = spec.model_copy(update={"epochs": epochs})
        t = training(spec, what, batch=batch)
        if before:
            before(t)
        began = time.perf_counter()
        if GPU or spec.compile:
            warmup.warm_up(t)
        warm = time.perf_counter() - began
        rows = list(t.epochs())
        host = host_time(t) if GPU else float("nan")
        rates = [row.images_per_second for row in rows[1:]] or [rows[0].images_per_second]
        work = model_cost(spec, shape=what.shape, classes=what.classes, precision=t.precision)
        use = gpu_utilization(
            work, images_per_second=statistics.median(rates), gpus=1, precision=t.precision, device_name=NAME
        )
        peak = torch.cuda.max_memory_allocated() / 2**30 if GPU else 0
        row = [label, round(statistics.median(rates)), round(rows[-1].step_ms_p50, 3), round(rows[-1].step_ms_p95, 3),
               round(1e3 * host, 3), round(use["mfu"] or 0, 4), round(use["roofline_images_per_second"] or 0), round(peak, 1), round(warm, 1)]  # fmt: skip
    except Exception as error:
        row = [label, f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"]
    RESULTS.setdefault(table, []).append(row)
    print(f"[{time.time() - BEGAN:5.0f} s] | " + " | ".join(map(str, row)) + " |", flush=True)


def host_time(t):
    """Seconds that the host takes to launch one step on an idle GPU."""
    spent = []
    order = training_batches(len(t.data.train), t.batch, rank=0, seed=0, epoch=99)
    augment = Augmenter(t.spec.augment, size=len(t.data.train), seed=0, epoch=99)
    batches = t.data.train.batches(order)
    t.module.train()
    for _ in range(min(12, t.steps)):
        torch.cuda.synchronize()
        began = time.perf_counter()
        t._step(batches, augment)
        spent.append(time.perf_counter() - began)
    batches.close()
    torch.cuda.synchronize()
    return statistics.median(spent)


HEAD = "| what | img/s | step p50 ms | p95 | host ms | mfu | eager roofline | GiB | warm-up s |"


def speed():
    print(HEAD)
    big = data(n=100_000 if GPU else 64, side=64 if GPU else 8, classes=200, val=2000 if GPU else 16)
    model = {"model": "resnet50"} if GPU else {"model": "resnet", "model_args": {"blocks": 2, "width": 8}}
    sizes = (512, 1024, 2048) if GPU else (16,)
    base = {**model, "precision": "bf16", "lr": 0.05}

    def benchmark(t):
        torch.backends.cudnn.benchmark = True

    for bs in sizes:
        rate(f"RN50 64x64 bf16 eager bs {bs}", Train(**base, batch_size=bs), big)
    mid = sizes[len(sizes) // 2]
    rate(f"same bs {mid}, crop+flip", Train(**base, batch_size=mid, augment=Augment(crop_padding=4, flip=True)), big)
    rate(
        f"same bs {mid}, fp16 (cuDNN's batch norm)",
        Train(**{**base, "precision": "fp16", "lr": 0.01}, batch_size=mid),
        big,
    )
    rate(f"same bs {mid}, NCHW", Train(**base, batch_size=mid, channels_last=False), big)
    torch.backends.cudnn.benchmark = True
    rate(f"same bs {mid}, cudnn.benchmark", Train(**base, batch_size=mid), big)
    rate(f"same bs {sizes[-1]}, cudnn.benchmark", Train(**base, batch_size=sizes[-1]), big)
    torch.backends.cudnn.benchmark = False
    for bs in sizes[1:] or sizes:
        torch._dynamo.reset()
        rate(f"compile: true (CUDA graphs) bs {bs}", Train(**base, batch_size=bs, compile=True), big)
    torch._dynamo.reset()
    mapped = data(n=100_000 if GPU else 64, side=64 if GPU else 8, classes=200, val=512, kind="mapped")
    rate(f"eager bs {mid}, images read ahead, not resident", Train(**base, batch_size=mid), mapped, epochs=2)
    del big, mapped
    free()
    print("--- small ResNets: launch-bound?")
    shapes = [(8, 1, 64), (8, 1, 256), (32, 3, 128), (32, 3, 512)] if GPU else [(8, 1, 16)]
    for side, ch, bs in shapes:
        what = data(n=bs * (60 if GPU else 2), side=side, ch=ch, val=bs)
        for blocks in (4, 20, 80) if side == 8 else (8,):
            small = dict(
                model="resnet", model_args={"blocks": blocks, "width": 32}, batch_size=bs, precision="bf16", lr=0.01
            )
            rate(f"resnet {blocks} blocks, {side}x{side}, bs {bs}, eager", Train(**small), what)
            if blocks <= 8:
                torch._dynamo.reset()
                rate("  compile: true", Train(**small, compile=True), what)


# ---- possible optimizations


def whole_step_graph(label, spec, what, steps=100, compiled=False):
    """Print a row: a whole step (gather, normalize, forward, backward, fused SGD) as one replayed CUDA graph."""
    free()
    try:
        t = training(spec, what)
        device, bs = what.mean.device, spec.batch_size
        index = torch.randint(len(what.train), (bs,), device=device)
        sums = torch.zeros(3, dtype=torch.float64, device=device)
        model = torch.compile(t.module) if compiled else t.module
        for module in t.module.modules():  # ResNet-50 has 53 small kernels that count batches
            if isinstance(module, nn.BatchNorm2d):
                module.num_batches_tracked = None
                module.momentum = 0.1
        optimizer = t.state.optimizer

        def step():
            optimizer.zero_grad(set_to_none=True)
            pixels = torch.index_select(what.train._images, 0, index)
            from trainyard.training.loaders import ImageBatch

            loss, part = t.compute_loss(ImageBatch(pixels, what.train._labels[index], index), model=model)
            loss.backward()
            optimizer.step()
            sums.add_(part)

        t.module.train()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(4):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        order = torch.randperm(len(what.train), device=device)
        replays = max(1, min(steps, len(order) // bs))

        def go():
            for k in range(replays):
                index.copy_(order[k * bs : (k + 1) * bs])
                graph.replay()

        seconds = _time(go, 2) / replays
        row = [label, round(bs / seconds), round(1e3 * seconds, 3), f"loss {float(sums[0] / sums[2]):.3f}"]
    except Exception as error:
        row = [label, f"{type(error).__name__}: {str(error).splitlines()[0][:140]}"]
    RESULTS.setdefault("whatif", []).append(row)
    print(f"[{time.time() - BEGAN:5.0f} s] | " + " | ".join(map(str, row)) + " |", flush=True)


class Fused(nn.Module):
    """K ResNets as one model with grouped convolutions (HFTA, Wang et al. 2021)."""

    def __init__(self, k, channels, classes, blocks, width):
        super().__init__()
        self.k, self.classes = k, classes
        conv = lambda i: nn.Conv2d(i * k, width * k, 3, padding=1, bias=False, groups=k)
        self.stem, self.norm = conv(channels), nn.BatchNorm2d(width * k)
        self.convs = nn.ModuleList(conv(width) for _ in range(2 * blocks))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width * k) for _ in range(2 * blocks))
        self.head = nn.Conv2d(width * k, classes * k, 1, groups=k)

    def forward(self, x):
        x = torch.relu(self.norm(self.stem(x.repeat(1, self.k, 1, 1))))
        for i in range(0, len(self.convs), 2):
            inner = torch.relu(self.norms[i](self.convs[i](x)))
            x = torch.relu(x + self.norms[i + 1](self.convs[i + 1](inner)))
        return self.head(x.mean((2, 3), keepdim=True)).view(-1, self.classes)  # the mean over K losses


def fused_models(k, side, ch, bs, blocks=8, width=32):
    free()
    try:
        model = Fused(k, ch, 10, blocks, width).to(DEV, memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
        x = torch.randn(bs, ch, side, side, device=DEV).to(memory_format=torch.channels_last)
        y = torch.randint(10, (bs * k,), device=DEV)

        def step():
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x), y) * k
            loss.backward()
            optimizer.step()

        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(4):
                step()
        torch.cuda.synchronize()
        eager = _time(step, 20)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        graphed = _time(graph.replay, 50)
        row = [
            f"{k} models fused, {side}x{side} bs {bs}",
            round(k * bs / eager),
            round(k * bs / graphed),
            "model-images/s eager, graphed",
        ]
    except Exception as error:
        row = [f"{k} models fused", f"{type(error).__name__}: {str(error).splitlines()[0][:140]}"]
    RESULTS.setdefault("fused", []).append(row)
    print(f"[{time.time() - BEGAN:5.0f} s] | " + " | ".join(map(str, row)) + " |", flush=True)


def profile(out):
    """Time of a ResNet-50 step by kernel."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    spec = Train(
        model="resnet50", batch_size=1024, precision="bf16", augment=Augment(crop_padding=4, flip=True), epochs=1
    )
    t = training(spec, data(n=20_480, side=64, classes=200, val=512))
    next(t.epochs())
    order = training_batches(len(t.data.train), t.batch, rank=0, seed=0, epoch=2)
    augment = Augmenter(spec.augment, size=len(t.data.train), seed=0, epoch=2)
    batches = t.data.train.batches(order)
    t.module.train()
    with profiler(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        for _ in range(5):
            t._step(batches, augment)
        torch.cuda.synchronize()
    batches.close()
    kernels = [e for e in found.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    busy = sum(e.device_time_total for e in kernels) / 5 / 1e3
    print(f"{len(kernels) / 5:.0f} kernels and copies a step, {busy:.2f} ms of the GPU")
    text = found.key_averages().table(sort_by="self_device_time_total", row_limit=40, max_name_column_width=70)
    (out / "profile.txt").write_text(text)
    print("\n".join(line[:72] + line[-90:] for line in text.splitlines()[:22]))


def sharing_processes():
    """Total images per second of 1, 4 and 8 processes that each train a small ResNet on the GPU."""
    for count in (1, 4, 8):
        line = [sys.executable, str(ME), "worker", "--share", str(1 / count)]
        began = time.time()
        running = [subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=os.environ | {"START": str(began + 30)})
                   for _ in range(count)]  # fmt: skip
        found = [json.loads(each.communicate(timeout=120)[0].splitlines()[-1]) for each in running]
        row = [
            f"{count} processes",
            round(sum(each["rate"] for each in found)),
            f"busy by NVML {[each['busy'] for each in found]}",
        ]
        RESULTS.setdefault("sharing", []).append(row)
        print(f"[{time.time() - BEGAN:5.0f} s] | " + " | ".join(map(str, row)) + " |", flush=True)


def train_beside_others(share):
    """Train on a share of the GPU for 8 s; print images per second and GPU utilization as JSON."""
    from trainyard.packing import gpu_sharing

    torch.set_num_threads(2)
    gpu_sharing.limit_gpu_memory(share)
    spec = Train(model="resnet", model_args={"blocks": 8, "width": 32}, batch_size=128, precision="bf16", epochs=1000)
    t = training(spec, data(n=128 * 100, side=32, val=128))
    it = t.epochs()
    next(it)
    time.sleep(max(0.0, float(os.environ["START"]) - time.time()))
    began, images = time.time(), 0
    with gpu_sharing.measure_gpu() as uses:
        while time.time() - began < 8:
            next(it)
            images += 128 * 100
    print(json.dumps({"rate": images / (time.time() - began), "busy": round(uses[0].busy, 2) if uses else None}))


def whatif(out):
    big = data(n=100_000, side=64, classes=200, val=512)
    base = dict(model="resnet50", precision="bf16", lr=0.05)
    torch.backends.cudnn.benchmark = True
    for bs in (512, 1024):
        whole_step_graph(f"RN50 whole step as a CUDA graph, eager kernels, bs {bs}", Train(**base, batch_size=bs), big)
    torch._dynamo.reset()
    whole_step_graph("RN50 whole step, model compiled, bs 1024", Train(**base, batch_size=1024), big, compiled=True)
    torch._dynamo.reset()

    def all_compiled(t):  # normalize, model and loss in one graph
        real = t.compute_loss
        t.compute_loss = torch.compile(real, dynamic=False)

    rate(
        "RN50 loss_of compiled whole, bs 1024", Train(**base, batch_size=1024), big, before=all_compiled, table="whatif"
    )
    torch.backends.cudnn.benchmark = False
    torch._dynamo.reset()
    del big
    for side, ch, bs, blocks in ((8, 1, 64, 8), (8, 1, 256, 8), (8, 1, 64, 80), (32, 3, 128, 8), (32, 3, 512, 8)):
        what = data(n=bs * 100, side=side, ch=ch, val=bs)
        spec = Train(
            model="resnet", model_args={"blocks": blocks, "width": 32}, batch_size=bs, precision="bf16", lr=0.01
        )
        whole_step_graph(f"resnet {blocks} blocks {side}x{side} bs {bs}, whole step as a graph", spec, what)
    for k in (1, 4, 8, 16):
        fused_models(k, 8, 1, 64)
    for k in (1, 4, 8):
        fused_models(k, 32, 3, 128)
    profile(out)
    sharing_processes()


CHECKS = {
    "environment": check_environment, "telemetry": check_telemetry, "numerics": check_numerics, "data": check_data,
    "syncs": check_syncs, "bad_loss": check_bad_loss, "fp16": check_fp16_first_overflow, "resume": check_resume,
    "share": check_share, "memory": check_memory, "compile": check_compile, "compiled_sweep": check_compiled_sweep,
    "ranks": check_ranks, "launch": check_launch,
}  # fmt: skip


def guard(name, what):
    try:
        what()
    except Exception:
        report(name, False, traceback.format_exc()[-700:])
    free()


def main():
    """Run the checks or measurements, and write their results to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["correct", "speed", "whatif", "one", "worker"])
    parser.add_argument("names", nargs="*", choices=[*CHECKS, []], metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")), metavar="DIR")
    parser.add_argument("--share", type=float, default=1.0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.what == "worker":
        train_beside_others(arguments.share)
        return 0
    torch.set_num_threads(min(8, os.cpu_count() or 1))
    if arguments.what in ("correct", "one"):
        for name in CHECKS if arguments.what == "correct" else arguments.names:
            guard(name, CHECKS[name])
    elif arguments.what == "speed":
        guard("speed", speed)
    elif GPU:
        guard("whatif", lambda: whatif(arguments.out))
    else:
        report("whatif", None, "needs a GPU")
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / f"gpu_check_{arguments.what}.json").write_text(json.dumps(RESULTS, indent=1, default=str))
    failed = [name for name, result, _ in RESULTS.get("checks", []) if result == "FAIL"]
    print(f"{len(failed)} checks failed", *failed, sep="\n  ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
