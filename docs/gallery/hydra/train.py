import hpsearch
import hydra
import torch
from hpsearch_trainers.digits import digits
from hydra.utils import instantiate
from torch import nn
from torch.nn import functional


@hydra.main(version_base=None, config_path=".", config_name="config")
def main(config):
    trial = hpsearch.current_trial(max_iter=config.epochs)  # alone: python train.py optimizer.lr=0.01
    data = digits()  # replace it with your data
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, config.hidden), nn.ReLU(), nn.Linear(config.hidden, 10))
    optimizer = instantiate(config.optimizer, params=model.parameters())
    if trial.checkpoint is not None:
        model.load_state_dict(trial.checkpoint["model"])
        optimizer.load_state_dict(trial.checkpoint["optimizer"])
    for _ in trial.iterations():
        for rows in torch.randperm(len(data.labels)).split(32):
            optimizer.zero_grad()
            functional.cross_entropy(model(data.images[rows]), data.labels[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            loss = functional.cross_entropy(model(data.validation_images), data.validation_labels)
        trial.report(
            {"loss": loss},
            checkpoint=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        )


if __name__ == "__main__":
    main()
