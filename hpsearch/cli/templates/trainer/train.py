import hpsearch
import torch
from hpsearch_trainers import Parts, Trainer
from hpsearch_trainers.digits import digits
from torch import nn


def accuracy(output, target):
    return (output.argmax(1) == target).float()


class Training(Trainer):  # the training loop is hpsearch's, on one worker or several
    def build(self, params):
        hidden = params["hidden"]
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
        data = digits()  # replace it with your data: two tensors, a data set or a DataLoader
        return Parts(
            model,
            torch.optim.SGD(model.parameters(), lr=params["lr"], momentum=0.9),
            nn.functional.cross_entropy,
            train=(data.images, data.labels),
            validation=(data.validation_images, data.validation_labels),
            metrics={"accuracy": accuracy},
            batch_size=32,
        )


if __name__ == "__main__":  # python train.py: one trial, without a sweep
    hpsearch.try_out(Training, lr=0.1, hidden=64, max_iter=3)
