"""Teachers: frozen networks whose patch features are clustered or predicted. A new family is one file and one entry."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import cast

from clustermim.teachers.base import Teacher, hash_weights
from clustermim.teachers.encoders import EncoderTeacher
from clustermim.teachers.spec import TeacherSpec, parse_teacher

__all__ = ["OPENERS", "EncoderTeacher", "Teacher", "hash_weights", "open_teacher"]

Opener = Callable[[TeacherSpec], Teacher]

# The opener of each family as "module:function", imported when needed since some are heavy.
OPENERS = {
    "hf": "clustermim.teachers.hub:open_hf",
    "run": "clustermim.teachers.encoders:open_run",
    "random": "clustermim.teachers.encoders:open_random",
    "hog": "clustermim.teachers.gradients:open_hog",
    "pixels": "clustermim.teachers.pixels:open_pixels",
    "timm": "clustermim.teachers.timm_models:open_timm",
    "module": "clustermim.teachers.custom:open_module",
}


def open_teacher(text: str) -> Teacher:
    """The teacher that a text names, such as `hf:facebook/dino-vits16?layer=-2`, `run:FOLDER` or a run's folder."""
    spec = parse_teacher(text)
    module, function = OPENERS[spec.scheme].split(":")
    return cast(Opener, getattr(importlib.import_module(module), function))(spec)
