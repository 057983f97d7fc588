import hpsearch
import torch
from hpsearch.integrations.transformers import train
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


def rows(count, seed):  # replace it with your tokenized texts: the label is whether token 7 occurs
    texts = torch.randint(1, 20, (count, 16), generator=torch.Generator().manual_seed(seed))
    return [{"input_ids": text, "labels": int(7 in text)} for text in texts]


def accuracy(prediction):
    return {"accuracy": (prediction.predictions.argmax(-1) == prediction.label_ids).mean()}


def tune(trial):
    config = BertConfig(
        vocab_size=20,
        hidden_size=trial.params["hidden"],
        intermediate_size=2 * trial.params["hidden"],
        num_hidden_layers=trial.params["layers"],
        num_attention_heads=4,
        max_position_embeddings=16,
    )
    arguments = TrainingArguments(
        output_dir=str(trial.directory),
        num_train_epochs=9,  # of the whole training: the max_iter of the sweep
        eval_strategy="epoch",
        save_strategy="no",
        learning_rate=trial.params["lr"],
        per_device_train_batch_size=32,
        seed=trial.seed,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=BertForSequenceClassification(config),
        args=arguments,
        train_dataset=rows(1000, seed=0),
        eval_dataset=rows(500, seed=1),
        compute_metrics=accuracy,
    )
    train(trainer)  # in place of trainer.train()


if __name__ == "__main__":
    hpsearch.try_out(tune, lr=1e-3, hidden=32, layers=1, max_iter=3)
