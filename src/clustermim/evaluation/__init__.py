"""What an encoder learned, measured: a linear probe, nearest neighbours, segmentation, and fine-tuning."""

from clustermim.evaluation.finetuning import FINETUNING, Classifier, FinetuneOptions, FinetuneResult, finetune
from clustermim.evaluation.frozen import knn
from clustermim.evaluation.labels import Accuracy, EvaluationResult
from clustermim.evaluation.mixing import MixConfig
from clustermim.evaluation.probing import PROBING, ProbeOptions, linear_probe
from clustermim.evaluation.segmentation import Segmentation, SegmentationResult, segment

__all__ = ["FINETUNING", "PROBING", "Accuracy", "Classifier", "EvaluationResult", "FinetuneOptions", "FinetuneResult"]
__all__ += [
    "MixConfig",
    "ProbeOptions",
    "Segmentation",
    "SegmentationResult",
    "finetune",
    "knn",
    "linear_probe",
    "segment",
]
