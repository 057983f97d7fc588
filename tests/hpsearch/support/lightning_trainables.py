"""A small network on digits as Lightning has it: dropout, momentum, a schedule, shuffled batches, a random split."""

from __future__ import annotations

import importlib
import logging
import warnings
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from hpsearch import RunningTrial
from hpsearch.integrations.lightning import fit
from hpsearch_trainers.digits import digits

SCHEDULES = ["plateau", "epoch", "step"]


def _module(pl: Any, params: Any) -> Any:
    class Net(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 10))

        def loss(self, batch: Any) -> torch.Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def training_step(self, batch, index):
            loss = self.loss(batch)
            self.log("train_loss", loss, on_step=False, on_epoch=True)
            return loss

        def validation_step(self, batch, index):
            self.log("val_loss", self.loss(batch))

        def on_train_epoch_end(self):
            self.log("epoch", float(self.current_epoch))
            self.log("used", float(self.optimizers().param_groups[0]["lr"]))

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=params.get("lr", 0.1), momentum=0.9)
            schedules = torch.optim.lr_scheduler
            if params["schedule"] == "plateau":
                plateau = schedules.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
                when = {"monitor": "val_loss", "frequency": params.get("every", 1)}
                return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, **when}}
            if params["schedule"] == "epoch":
                return {"optimizer": optimizer, "lr_scheduler": schedules.StepLR(optimizer, 1, 0.5)}
            cycle = schedules.OneCycleLR(optimizer, 0.1, total_steps=400)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cycle, "interval": "step"}}

        def train_dataloader(self):
            data = digits()
            part, _ = random_split(TensorDataset(data.images[:600], data.labels[:600]), [500, 100])
            return DataLoader(part, batch_size=100, shuffle=True)

        def val_dataloader(self):
            data = digits()
            return DataLoader(TensorDataset(data.validation_images, data.validation_labels), batch_size=400)

    return Net()


def train(trial: RunningTrial) -> None:
    warnings.simplefilter("ignore")  # Lightning's advice on loaders and logging
    library = trial.params.get("library", "lightning.pytorch")
    pl = importlib.import_module(library)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    trainer = pl.Trainer(
        max_epochs=trial.params.get("epochs", 20),
        check_val_every_n_epoch=trial.params.get("every", 1),
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=trial.directory,
    )
    fit(trainer, _module(pl, trial.params))
    print("ended", trainer.state.status.value)
