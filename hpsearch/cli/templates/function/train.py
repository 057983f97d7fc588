import hpsearch
import torch
from hpsearch_trainers.digits import digits
from torch import nn
from torch.nn import functional

data = digits()  # replace it with your data


def train(trial):
    hidden = trial.params["hidden"]
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=trial.params["lr"], momentum=0.9)
    if trial.checkpoint is not None:
        model.load_state_dict(trial.checkpoint["model"])
        optimizer.load_state_dict(trial.checkpoint["optimizer"])
    for epoch in trial.iterations():  # after the checkpoint, to the scheduler's next decision
        for rows in torch.randperm(len(data.labels)).split(32):
            optimizer.zero_grad()
            functional.cross_entropy(model(data.images[rows]), data.labels[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            correct = model(data.validation_images).argmax(1) == data.validation_labels
        trial.report(
            {"accuracy": correct.float().mean()},
            checkpoint=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        )


if __name__ == "__main__":  # python train.py: one trial, without a sweep
    hpsearch.try_out(train, lr=0.1, hidden=64, max_iter=3)
