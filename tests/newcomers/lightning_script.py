import argparse

import lightning
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self, lr, hidden):
        super().__init__()
        self.lr = lr
        self.model = nn.Sequential(nn.Linear(8, hidden), nn.ReLU(), nn.Linear(hidden, 2))

    def training_step(self, batch, index):
        return functional.cross_entropy(self.model(batch[0]), batch[1])

    def validation_step(self, batch, index):
        self.log("accuracy", (self.model(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--hidden", type=int, default=64)
args = parser.parse_args()

inputs = torch.randn(1000, 8, generator=torch.Generator().manual_seed(0))
targets = (inputs[:, 0] > inputs[:, 1]).long()
training = DataLoader(TensorDataset(inputs[:800], targets[:800]), batch_size=32, shuffle=True)
validation = DataLoader(TensorDataset(inputs[800:], targets[800:]), batch_size=200)
trainer = lightning.Trainer(max_epochs=9, accelerator="cpu", logger=False, enable_checkpointing=False)
trainer.fit(Classifier(args.lr, args.hidden), training, validation)
