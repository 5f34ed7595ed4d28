"""Studies: a YAML list of stages becomes run folders, a record of their results, and a table."""

from clustermim.studies.cells import Cell, expand
from clustermim.studies.description import Study, read_study
from clustermim.studies.result import StudyResult
from clustermim.studies.running import run_study

__all__ = ["Cell", "Study", "StudyResult", "expand", "read_study", "run_study"]
