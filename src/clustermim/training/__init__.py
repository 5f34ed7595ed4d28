"""The one driver of all training: `fit(task, schedule)`."""

from clustermim.training.batches import SeededBatches
from clustermim.training.checkpoint import CHECKPOINT, init_from, load_checkpoint, save_checkpoint
from clustermim.training.devices import Device, Precision, find_device, open_fabric
from clustermim.training.driver import Out, fit
from clustermim.training.interrupts import Stopped
from clustermim.training.lars import LARS
from clustermim.training.loop import AfterEpoch, Batches, Step, TrainResult, train
from clustermim.training.optimizer import adamw, layer_groups, lr_at, parameter_groups, scaled_lr, set_lr
from clustermim.training.randomness import batch_generator
from clustermim.training.schedule import RunOptions, Schedule, make_schedule, make_settings
from clustermim.training.state import Settings
from clustermim.training.task import Task
from clustermim.training.trackers import Tracker, check_trackers

__all__ = [
    "CHECKPOINT",
    "LARS",
    "AfterEpoch",
    "Batches",
    "Device",
    "Out",
    "Precision",
    "RunOptions",
    "Schedule",
    "SeededBatches",
    "Settings",
    "Step",
    "Stopped",
    "Task",
    "Tracker",
    "TrainResult",
    "adamw",
    "batch_generator",
    "check_trackers",
    "find_device",
    "fit",
    "init_from",
    "layer_groups",
    "load_checkpoint",
    "lr_at",
    "make_schedule",
    "make_settings",
    "open_fabric",
    "parameter_groups",
    "save_checkpoint",
    "scaled_lr",
    "set_lr",
    "train",
]
