"""Teachers: frozen networks whose patch features are clustered or predicted."""

from clustermim.teachers.contract import Teacher

__all__ = ["Teacher"]
