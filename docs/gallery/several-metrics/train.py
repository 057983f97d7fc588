import hpsearch
import torch
from hpsearch_trainers import Parts, Trainer
from hpsearch_trainers.digits import digits
from hpsearch_trainers.measures import parameters
from torch import nn


def accuracy(output, target):
    return (output.argmax(1) == target).float()


class Training(Trainer):
    def build(self, params):
        data = digits()  # replace it with your data
        widths = [64, *[params["width"]] * params["depth"]]
        hidden = [layer for pair in zip(widths, widths[1:]) for layer in (nn.Linear(*pair), nn.ReLU())]
        model = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(widths[-1], 10))
        return Parts(
            model,
            torch.optim.Adam(model.parameters(), lr=params["lr"]),
            nn.functional.cross_entropy,
            train=(data.images, data.labels),
            validation=(data.validation_images, data.validation_labels),
            metrics={"accuracy": accuracy},
            measures={"weights": parameters},  # or latency(images), or a function of the model
        )


if __name__ == "__main__":
    hpsearch.try_out(Training, lr=0.01, width=32, depth=2, max_iter=3)
