"""What an encoder learned, measured: a linear probe, nearest neighbours, and fine-tuning."""

from clustermim.evaluation.finetuning import FINETUNING, Classifier, FinetuneOptions, FinetuneResult, finetune
from clustermim.evaluation.frozen import knn
from clustermim.evaluation.labels import Accuracy, EvaluationResult
from clustermim.evaluation.mixing import MixConfig
from clustermim.evaluation.probing import PROBING, ProbeOptions, linear_probe

__all__ = ["FINETUNING", "PROBING", "Accuracy", "Classifier", "EvaluationResult", "FinetuneOptions", "FinetuneResult"]
__all__ += ["MixConfig", "ProbeOptions", "finetune", "knn", "linear_probe"]
