import hpsearch
import torch
from hpsearch_trainers.digits import digits
from torch import nn
from torch.nn import functional


class Train:
    def __init__(self, trial):
        self.data = digits()  # replace it with your data; it stays in memory from one segment to the next
        self.model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        settings = {name: trial.params[name] for name in ("lr", "momentum", "weight_decay")}
        self.optimizer = torch.optim.SGD(self.model.parameters(), **settings)
        trial.note(parent=str(trial.parent), torch=torch.__version__)  # hpsearch trials DIR --notes shows them

    def step(self):  # an iteration
        for rows in torch.randperm(len(self.data.labels)).split(32):
            self.optimizer.zero_grad()
            functional.cross_entropy(self.model(self.data.images[rows]), self.data.labels[rows]).backward()
            self.optimizer.step()
        with torch.no_grad():
            correct = self.model(self.data.validation_images).argmax(1) == self.data.validation_labels
        return {"accuracy": correct.float().mean()}

    def state_dict(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state):  # of this trial, or of the better one that it is a copy of
        self.model.load_state_dict(state["model"])
        hpsearch.restore(self.optimizer, state["optimizer"])  # a copy keeps its own settings


if __name__ == "__main__":
    hpsearch.try_out(Train, lr=0.1, momentum=0.9, weight_decay=0.0, max_iter=3)
