"""Masked pretraining: `pretrain(source, target)` gives an encoder."""

from clustermim.pretraining.driver import PRETRAINING, Architecture, Objective, make_task, pretrain
from clustermim.pretraining.masked_batch import MaskedBatch, MaskedCollator, Masking
from clustermim.pretraining.task import MaskedModeling, masked_loss, masked_values, model_inputs, token_accuracy

__all__ = ["PRETRAINING", "Architecture", "MaskedBatch", "MaskedCollator", "MaskedModeling", "Masking", "Objective"]
__all__ += ["make_task", "masked_loss", "masked_values", "model_inputs", "pretrain", "token_accuracy"]
