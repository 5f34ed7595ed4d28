"""The one driver of all training: `fit(task, schedule)`."""

from clustermim.training.checkpoint import CHECKPOINT, init_from, load_checkpoint, save_checkpoint
from clustermim.training.devices import Device, Precision, find_device, open_fabric
from clustermim.training.driver import Out, fit, run_opener
from clustermim.training.interrupts import Stopped
from clustermim.training.loop import Loop, TrainResult
from clustermim.training.optimizer import LARS, adamw, layer_groups, lr_at, parameter_groups, scaled_lr, set_lr
from clustermim.training.parts import Share
from clustermim.training.randomness import SeededBatches
from clustermim.training.schedule import RunOptions, Schedule
from clustermim.training.state import Settings
from clustermim.training.task import Task

__all__ = ["CHECKPOINT", "LARS", "Device", "Loop", "Out", "Precision", "RunOptions", "Schedule", "SeededBatches"]
__all__ += ["Settings", "Share", "Stopped", "Task", "TrainResult", "adamw", "find_device", "fit", "init_from"]
__all__ += ["layer_groups", "load_checkpoint", "lr_at", "open_fabric", "parameter_groups", "save_checkpoint"]
__all__ += ["run_opener", "scaled_lr", "set_lr"]
