"""Encoders and losses that both the study and the sweeps compare, as changes to params.yaml."""

from study.experiments import Values

# The papers' loss over the default bag of embeddings, and over one without n-grams: the gain of auxiliary vectors is
# larger where the encoder itself can do less.
TRIPLET: Values = {"encoder.loss": "triplet", "encoder.lr": 0.001, "encoder.aux_lr": 0.005, "encoder.epochs": 15}
TOKENS: Values = {**TRIPLET, "encoder.ngrams": 1, "encoder.aux_lr": 0.01, "encoder.patience": 0}
# What two cores can afford of a transformer; `encoder.layers` is its size.
TRANSFORMER: Values = {
    "encoder.kind": "transformer",
    "encoder.lr": 0.0001,
    "encoder.epochs": 1,
    "encoder.positives": 1,
}
