"""A typical DDP training script, which reads the environment that a launcher sets and does not use Trainyard.

torchrun --nproc-per-node 2 examples/train_ddp.py --epochs 3
"""

import argparse
import os
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="per GPU")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--checkpoint", type=Path, help="file to save the model to after each epoch")
    options = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    distributed.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    rank, world = distributed.get_rank(), distributed.get_world_size()

    torch.manual_seed(0)
    labels = torch.randint(10, (1800,))
    images = torch.randn(10, 64)[labels] + 2 * torch.randn(1800, 64)  # ten patterns in noise
    data = TensorDataset(images[:1500], labels[:1500])
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, batch_size=options.batch_size, sampler=sampler)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=options.lr, momentum=0.9)

    for epoch in range(1, options.epochs + 1):
        sampler.set_epoch(epoch)
        began, seen, total = time.time(), 0, 0.0
        for batch, target in loader:
            loss = nn.functional.cross_entropy(ddp(batch.to(device)), target.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen, total = seen + len(target), total + loss.item() * len(target)
        mean = torch.tensor([total / seen], device=device)
        distributed.all_reduce(mean)
        if rank == 0:
            with torch.no_grad():
                correct = model(images[1500:].to(device)).argmax(1).cpu() == labels[1500:]
            speed = seen * world / (time.time() - began)
            accuracy = correct.float().mean()
            print(
                f"epoch {epoch}: loss {mean.item() / world:.4f}, val acc {accuracy:.4f}, {speed:.1f} img/s", flush=True
            )
            if options.checkpoint:
                torch.save(model.state_dict(), options.checkpoint)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
