import argparse

import torch
from torch import nn
from torch.nn import functional

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--hidden", type=int, default=64)
args = parser.parse_args()

inputs = torch.randn(1000, 8, generator=torch.Generator().manual_seed(0))
targets = (inputs[:, 0] > inputs[:, 1]).long()
model = nn.Sequential(nn.Linear(8, args.hidden), nn.ReLU(), nn.Linear(args.hidden, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
for epoch in range(9):
    for rows in torch.randperm(800).split(32):
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs[rows]), targets[rows]).backward()
        optimizer.step()
    accuracy = (model(inputs[800:]).argmax(1) == targets[800:]).float().mean()
    print(f"epoch {epoch}: {accuracy:.3f}")
