"""Teachers: frozen networks whose patch features are clustered or predicted. A new family is one file and one entry."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import cast

from clustermim.errors import TeacherError
from clustermim.models.encoder import Encoder
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
    "module": "clustermim.teachers.custom:open_module_teacher",
}


def open_teacher(teacher: object) -> Teacher:
    """The teacher that a text such as `hf:facebook/dino-vits16?layer=-2`, `run:FOLDER` or a run's folder names.

    A teacher is returned as it is; an encoder becomes one.
    """
    if isinstance(teacher, Teacher):
        return teacher
    if isinstance(teacher, Encoder):
        return EncoderTeacher("an encoder in memory", teacher.backbone, teacher.model, teacher.mean, teacher.std)
    if not isinstance(teacher, str | Path):
        raise TeacherError(f"a teacher is a text such as hf:NAME or run:FOLDER, or an encoder, not {teacher!r:.60}")
    spec = parse_teacher(str(teacher))
    module, function = OPENERS[spec.scheme].split(":")
    return cast(Opener, getattr(importlib.import_module(module), function))(spec)
