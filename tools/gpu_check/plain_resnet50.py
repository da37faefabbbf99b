"""Images per second of ResNet-50 in a plain training loop, without Trainyard: what the loop of Trainyard should reach.

200 classes, images of 64x64 pixels that lie on the GPU. Prints a JSON object a line for each variant.

    python tools/gpu_check/plain_resnet50.py [--toy] [--seconds 60]
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torchvision
from torch import Tensor, nn

WARM_UP_STEPS = 10
STEPS = 60


@dataclass(frozen=True)
class Variant:
    """How a training runs."""

    batch_size: int = 512
    cudnn_benchmark: bool = False
    compile: str = ""  # the mode of torch.compile
    channels_last: bool = True


VARIANTS = (
    Variant(),
    Variant(cudnn_benchmark=True),
    Variant(batch_size=1024),
    Variant(compile="default"),
    Variant(compile="reduce-overhead"),
    Variant(channels_last=False),
)


def measure(variant: Variant, images: Tensor, labels: Tensor, *, toy: bool) -> dict[str, Any]:
    """Images per second, the times of a step and of its launch in ms, and the seconds of the first steps."""
    torch.backends.cudnn.benchmark = variant.cudnn_benchmark
    torch._dynamo.reset()
    torch.manual_seed(0)
    device = images.device
    build = torchvision.models.resnet18 if toy else torchvision.models.resnet50
    memory_format = torch.channels_last if variant.channels_last else torch.contiguous_format
    model = build(num_classes=200).to(device=device, memory_format=memory_format)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, fused=device.type == "cuda")

    def compute_loss(pixels: Tensor, targets: Tensor) -> Tensor:
        pixels = pixels.permute(0, 3, 1, 2).contiguous(memory_format=memory_format)
        with torch.autocast(device.type, torch.bfloat16, enabled=not toy):  # on some CPUs, bf16 is very slow
            return nn.functional.cross_entropy(model((pixels.float() - 127) / 73), targets)

    call = torch.compile(compute_loss, mode=variant.compile) if variant.compile else compute_loss

    def take_step(number: int) -> None:
        first = number * variant.batch_size
        batch = torch.arange(first, first + variant.batch_size, device=device) % len(images)
        if variant.compile == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        loss = call(images[batch], labels[batch])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def synchronize() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    steps = 2 if toy else STEPS
    began = time.perf_counter()
    for number in range(1 if toy else WARM_UP_STEPS):
        take_step(number)
    synchronize()
    warmed_up = time.perf_counter()
    for number in range(steps):
        take_step(number)
    launched = time.perf_counter()
    synchronize()
    ended = time.perf_counter()
    return {
        "img/s": round(steps * variant.batch_size / (ended - warmed_up)),
        "step ms": round(1000 * (ended - warmed_up) / steps, 2),
        "launch ms": round(1000 * (launched - warmed_up) / steps, 2),
        "warm-up s": round(warmed_up - began, 1),
    }


def _toy(variant: Variant) -> Variant:
    return replace(variant, batch_size=8, compile="")


def main() -> None:
    """Measure each variant until the time is up."""
    parser = argparse.ArgumentParser(description="Images per second of ResNet-50 in a plain training loop.")
    parser.add_argument("--toy", action="store_true", help="a small model on the CPU, to test this program")
    parser.add_argument("--seconds", type=float, default=60, help="no variant begins after so many seconds")
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    device = torch.device("cpu" if options.toy else "cuda")
    if options.toy:
        torch.set_num_threads(1)  # threads that wait for each other are slow on a busy machine
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    count, side = (64, 32) if options.toy else (20_480, 64)
    images = torch.randint(256, (count, side, side, 3), dtype=torch.uint8, device=device)
    labels = torch.randint(200, (count,), device=device)
    for variant in dict.fromkeys(map(_toy, VARIANTS)) if options.toy else VARIANTS:
        result: dict[str, Any] = {"skipped": "no time left"}
        if time.monotonic() < until:
            try:
                result = measure(variant, images, labels, toy=options.toy)
            except RuntimeError as error:  # out of memory, for example
                result = {"error": str(error)[:300]}
        print(json.dumps({"plain": asdict(variant), **result}), flush=True)
        if not options.toy:
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
