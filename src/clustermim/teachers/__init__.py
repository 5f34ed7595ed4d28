"""Teachers: frozen networks whose patch features are clustered or predicted. A new one is one file and one entry."""

from __future__ import annotations

import importlib
from copy import deepcopy
from pathlib import Path

from clustermim.errors import TeacherError
from clustermim.models.encoder import Encoder
from clustermim.teachers.base import Teacher, hash_weights
from clustermim.teachers.encoders import EncoderTeacher
from clustermim.teachers.spec import TEACHERS, parse_teacher

__all__ = ["TEACHERS", "EncoderTeacher", "Teacher", "hash_weights", "open_teacher"]


def open_teacher(teacher: object) -> Teacher:
    """The teacher that a text such as `hf:facebook/dino-vits16?layer=-2`, `run:FOLDER` or a run's folder names.

    A teacher is returned as it is; an encoder becomes one, as a copy that is frozen.

    >>> open_teacher("hog:?channels=1").channels
    1
    """
    if isinstance(teacher, Teacher):
        return teacher
    if isinstance(teacher, Encoder):
        return EncoderTeacher("an encoder in memory", deepcopy(teacher))
    if not isinstance(teacher, str | Path):
        raise TeacherError(f"a teacher is a text such as hf:NAME or run:FOLDER, or an encoder, not {teacher!r:.60}")
    spec = parse_teacher(str(teacher))
    module, function = TEACHERS[spec.scheme][0].split(":")
    found: Teacher = getattr(importlib.import_module(module), function)(spec)
    return found
