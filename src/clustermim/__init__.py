"""clustermim: a laboratory for discrete visual tokenizers in masked image modelling."""

__version__ = "0.1.0"
