"""Many tokenizers fitted and scored, one chosen: `advise` and `iterate` are two uses of it."""

from clustermim.selection.advice import Advice, AdviseOptions, advise
from clustermim.selection.candidates import Candidate, ranked
from clustermim.selection.rounds import IterateOptions, Rounds, iterate

__all__ = ["Advice", "AdviseOptions", "Candidate", "IterateOptions", "Rounds", "advise", "iterate", "ranked"]
