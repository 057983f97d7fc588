import hpsearch
import lightning
import torch
from hpsearch.integrations.lightning import fit
from hpsearch_trainers.digits import digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self, lr, hidden):
        super().__init__()
        self.lr = lr
        self.model = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    def training_step(self, batch, index):
        images, labels = batch
        return functional.cross_entropy(self.model(images), labels)

    def validation_step(self, batch, index):
        images, labels = batch
        correct = self.model(images).argmax(1) == labels
        self.log("accuracy", correct.float().mean(), batch_size=len(labels))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


def train(trial):
    data = digits()  # replace it with your data
    training = DataLoader(TensorDataset(data.images, data.labels), batch_size=32, shuffle=True)
    validation = DataLoader(TensorDataset(data.validation_images, data.validation_labels), batch_size=360)
    trainer = lightning.Trainer(
        max_epochs=9,  # of the whole training: the max_iter of the sweep
        accelerator="cpu",
        default_root_dir=trial.directory,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Classifier(trial.params["lr"], trial.params["hidden"])
    fit(trainer, model, training, validation)  # in place of trainer.fit(model, ...)


if __name__ == "__main__":  # python train.py: one trial, without a sweep
    hpsearch.try_out(train, lr=0.1, hidden=64, max_iter=3)
