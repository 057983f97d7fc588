import torch
from torch import nn
from torch.nn import functional

inputs = torch.randn(1000, 8, generator=torch.Generator().manual_seed(0))
targets = (inputs[:, 0] > inputs[:, 1]).long()


def train(config):
    model = nn.Sequential(nn.Linear(8, config["hidden"]), nn.ReLU(), nn.Linear(config["hidden"], 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    for epoch in range(9):
        for rows in torch.randperm(800).split(32):
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs[rows]), targets[rows]).backward()
            optimizer.step()
        accuracy = (model(inputs[800:]).argmax(1) == targets[800:]).float().mean()
        print(f"epoch {epoch}: {accuracy:.3f}")
