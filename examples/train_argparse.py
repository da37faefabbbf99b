"""A typical training script, which reads its settings with argparse and does not use Trainyard.

python examples/train_argparse.py --lr 0.1 --hidden 64 32 --batch-norm
"""

import argparse
import itertools
from pathlib import Path

import torch
from torch import nn


def parse_options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--hidden", type=int, nargs="+", default=[64], help="widths of the hidden layers")
    parser.add_argument("--batch-norm", action="store_true")
    parser.add_argument("--out", type=Path, help="folder to save the model in")
    return parser.parse_args()


def train(*, epochs, batch_size, lr, hidden, batch_norm, out=None):
    torch.manual_seed(0)
    labels = torch.randint(10, (1800,))
    images = torch.randn(10, 64)[labels] + 2 * torch.randn(1800, 64)  # ten patterns in noise
    model = nn.Sequential()
    for inputs, outputs in itertools.pairwise([64, *hidden]):
        model.extend([nn.Linear(inputs, outputs), *([nn.BatchNorm1d(outputs)] if batch_norm else []), nn.ReLU()])
    model.append(nn.Linear(hidden[-1], 10))
    weights = list(model.parameters())
    for epoch in range(1, epochs + 1):
        model.train()
        for batch in torch.randperm(1500).split(batch_size):
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            gradients = torch.autograd.grad(loss, weights)
            with torch.no_grad():
                for weight, gradient in zip(weights, gradients, strict=True):
                    weight -= lr * gradient
        model.eval()
        accuracy = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean()
        print(f"epoch {epoch}: loss {loss:.4f}, val acc {accuracy:.4f}", flush=True)
    if out:
        torch.save(model.state_dict(), out / "model.pt")


if __name__ == "__main__":
    train(**vars(parse_options()))
