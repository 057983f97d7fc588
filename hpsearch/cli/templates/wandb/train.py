import hpsearch.compat.wandb as wandb  # in place of import wandb
import torch
from hpsearch_trainers.digits import digits
from torch import nn
from torch.nn import functional

wandb.init(config={"lr": 0.1, "hidden": 64})  # in a sweep, its parameters override these
config = wandb.config
data = digits()  # replace it with your data

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, config.hidden), nn.ReLU(), nn.Linear(config.hidden, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=config.lr, momentum=0.9)

for epoch in range(9):
    for rows in torch.randperm(len(data.labels)).split(32):
        optimizer.zero_grad()
        functional.cross_entropy(model(data.images[rows]), data.labels[rows]).backward()
        optimizer.step()
    with torch.no_grad():
        correct = model(data.validation_images).argmax(1) == data.validation_labels
    wandb.log({"accuracy": correct.float().mean().item()})
