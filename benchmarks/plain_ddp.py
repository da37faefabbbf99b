"""A training script as users write it, with DDP, DataLoader and loss.item(); the baseline of benchmarks/training.py.

benchmarks/training.py starts it with torchrun. Its data are the staged arrays as float tensors, or with --imagefolder
the JPEGs of a folder. With --channels-last, --fused and --compile, it is as fast as a user makes it in a few lines.
"""

import argparse
import contextlib
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torchvision import models, transforms
from torchvision.datasets import ImageFolder


class BasicBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)

    def forward(self, x):
        inner = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(x + self.norm2(self.conv2(inner)))


def small_resnet(classes, width, blocks):
    stem = [nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)]
    return nn.Sequential(*stem, *[BasicBlock(width) for _ in range(blocks)], *head)


def dataset(arguments):
    if arguments.imagefolder:
        change = [transforms.RandomHorizontalFlip(), transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.5] * 3)]
        return ImageFolder(arguments.data, transforms.Compose(change))
    images = torch.from_numpy(np.load(f"{arguments.data}/train-images.npy")).permute(0, 3, 1, 2).float() / 255
    images = (images - images.mean((0, 2, 3), keepdim=True)) / images.std((0, 2, 3), keepdim=True)
    return TensorDataset(images.contiguous(), torch.from_numpy(np.load(f"{arguments.data}/train-labels.npy")))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--imagefolder", action="store_true")
    parser.add_argument("--model", default="small_resnet")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--precision", default="fp32", choices=["fp32", "fp16", "bf16"])
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--fused", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    torch.manual_seed(0)
    if arguments.model == "small_resnet":
        model = small_resnet(arguments.classes, arguments.width, arguments.blocks)
    else:
        model = models.get_model(arguments.model, num_classes=arguments.classes)
    memory_format = torch.channels_last if arguments.channels_last else torch.contiguous_format
    model = model.to(device, memory_format=memory_format)
    if dist.get_world_size() > 1:
        model = nn.parallel.DistributedDataParallel(model, device_ids=[local_rank] if cuda else None)
    if arguments.compile:
        model = torch.compile(model)
    data = dataset(arguments)
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(
        data,
        arguments.batch_size,
        sampler=sampler,
        num_workers=arguments.workers,
        pin_memory=cuda,
        drop_last=True,
        persistent_workers=arguments.workers > 0,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=arguments.fused)
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(arguments.precision)
    scaler = torch.amp.GradScaler(device.type, enabled=arguments.precision == "fp16")
    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        model.train()
        began, images, total = time.perf_counter(), 0, 0.0
        for inputs, labels in loader:
            inputs, labels = inputs.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            inputs = inputs.contiguous(memory_format=memory_format)
            with torch.autocast(device.type, dtype) if dtype else contextlib.nullcontext():
                loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            total += loss.item() * len(labels)
            images += len(labels)
        if cuda:
            torch.cuda.synchronize()
        rate = images * dist.get_world_size() / (time.perf_counter() - began)
        if rank == 0:
            print(f"epoch {epoch + 1} loss {total / images:.3f} images_per_second {rate:.1f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
