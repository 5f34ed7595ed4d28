"""Masked pretraining: `pretrain(source, target)` gives an encoder."""

from clustermim.pretraining.driver import PRETRAINING, Architecture, Objective, make_task, pretrain
from clustermim.pretraining.masked_batch import MaskedBatch, MaskedCollator, Masking
from clustermim.pretraining.task import MaskedModeling, masked_loss, masked_values, model_inputs, token_accuracy
from clustermim.pretraining.watching import Watch, make_watch

__all__ = ["PRETRAINING", "Architecture", "MaskedBatch", "MaskedCollator", "MaskedModeling", "Masking", "Objective"]
__all__ += [
    "Watch",
    "make_task",
    "make_watch",
    "masked_loss",
    "masked_values",
    "model_inputs",
    "pretrain",
    "token_accuracy",
]
