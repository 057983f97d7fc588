"""A training script for `configs/script.yaml`: a linear classifier on the digits, an epoch per iteration."""

from __future__ import annotations

import argparse

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import train_test_split

import hpsearch


def main() -> None:
    """Train where the last segment ended, and report after each epoch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--alpha", type=float, required=True)
    parser.add_argument("--eta0", type=float, required=True)
    parser.add_argument("--loss", required=True)
    args = parser.parse_args()
    trial = hpsearch.current_trial()

    features, labels = load_digits(return_X_y=True)
    split = train_test_split(features / 16.0, labels, test_size=0.25, random_state=0, stratify=labels)
    train_x, valid_x, train_y, valid_y = split
    model = SGDClassifier(
        loss=args.loss, alpha=args.alpha, eta0=args.eta0, learning_rate="constant", random_state=trial.seed
    )
    # Without this first call there are no coefficients for a checkpoint to fill.
    model.partial_fit(train_x[:1], train_y[:1], classes=np.arange(10))
    if trial.checkpoint is not None:
        model.coef_ = np.array(trial.checkpoint["coef"])
        model.intercept_ = np.array(trial.checkpoint["intercept"])

    for _ in trial.iterations():
        model.partial_fit(train_x, train_y)
        trial.report(
            {"accuracy": float(model.score(valid_x, valid_y))},
            checkpoint=lambda: {"coef": model.coef_.tolist(), "intercept": model.intercept_.tolist()},
        )


if __name__ == "__main__":
    main()
