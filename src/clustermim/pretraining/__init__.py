"""Masked pretraining: source, target and model put together for the training loop."""

from clustermim.pretraining.stage import pretrain

__all__ = ["pretrain"]
