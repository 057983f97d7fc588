import socket

import hpsearch
import torch
from torch import nn

inputs = torch.randn(2000, 8, generator=torch.Generator().manual_seed(0))  # replace it with your data
targets = inputs[:, :1] * inputs[:, 1:2]


def train(trial):
    trial.note(host=socket.gethostname())  # hpsearch trials runs/lab --notes
    hidden = trial.params["hidden"]
    model = nn.Sequential(nn.Linear(8, hidden), nn.ReLU(), nn.Linear(hidden, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=trial.params["lr"])
    if trial.checkpoint is not None:
        model.load_state_dict(trial.checkpoint["model"])
        optimizer.load_state_dict(trial.checkpoint["optimizer"])
    for _ in trial.iterations():
        for rows in torch.randperm(1600).split(32):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs[rows]), targets[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            loss = nn.functional.mse_loss(model(inputs[1600:]), targets[1600:])
        trial.report(
            {"loss": loss},
            checkpoint=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        )


if __name__ == "__main__":
    hpsearch.try_out(train, lr=0.01, hidden=32, max_iter=3)
