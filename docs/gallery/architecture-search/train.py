import hpsearch
import torch
from hpsearch_trainers import Parts, Trainer
from hpsearch_trainers.architectures import network
from hpsearch_trainers.digits import digits
from torch import nn


def accuracy(output, target):
    return (output.argmax(1) == target).float()


class Training(Trainer):
    def build(self, params):
        data = digits()  # replace it with your data
        model = network(params["layers"], inputs=(1, 8, 8), outputs=10)
        return Parts(
            model,
            torch.optim.SGD(model.parameters(), lr=params["lr"], momentum=0.9),
            nn.functional.cross_entropy,
            train=(data.images, data.labels),
            validation=(data.validation_images, data.validation_labels),
            metrics={"accuracy": accuracy},
        )


if __name__ == "__main__":
    hpsearch.try_out(Training, lr=0.05, layers=[{"conv": {"channels": 16}}, "pool"], max_iter=3)
