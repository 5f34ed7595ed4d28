"""Studies: a YAML list of stages becomes run folders, a record of their results, and a table."""

from clustermim.studies.cells import Cell, expand
from clustermim.studies.description import Study, read_study
from clustermim.studies.stage import study

__all__ = ["Cell", "Study", "expand", "read_study", "study"]
