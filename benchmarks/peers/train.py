"""A small training as a user would write it: a ResNet on scikit-learn's digits, on one thread.

./train.py BLOCKS SEED
"""

import sys

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

WIDTH, EPOCHS, BATCH_SIZE = 8, 1, 64


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(WIDTH)
        self.conv2 = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(WIDTH)

    def forward(self, x):
        inner = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(x + self.norm2(self.conv2(inner)))


def train(blocks, seed):
    torch.manual_seed(seed)
    digits = load_digits()
    split = train_test_split(digits.images, digits.target, test_size=0.2, stratify=digits.target, random_state=0)
    images, val_images = (torch.tensor(each, dtype=torch.float32).unsqueeze(1) / 16 for each in split[:2])
    labels, val_labels = (torch.tensor(each) for each in split[2:])
    stem = [nn.Conv2d(1, WIDTH, 3, padding=1, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, 10)]
    model = nn.Sequential(*stem, *[Block() for _ in range(blocks)], *head)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(1, EPOCHS + 1):
        model.train()
        for batch in torch.randperm(len(images)).split(BATCH_SIZE):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            accuracy = (model(val_images).argmax(1) == val_labels).float().mean()
        print(f"epoch {epoch}: loss {loss:.4f}, val acc {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    train(int(float(sys.argv[1])), int(sys.argv[2]))
