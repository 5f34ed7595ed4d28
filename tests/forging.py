"""A stranger's tokenizer, for tests of what its files may do."""

from __future__ import annotations

import json
from pathlib import Path

from clustermim.tokenizers import KMeansTokenizer
from clustermim.tokenizers.base import checksum


def forge_teacher(folder: Path, data: str, teacher: object) -> Path:
    """A tokenizer whose file names another teacher than it was fitted with, its checksum right."""
    KMeansTokenizer(4, 4, "features", teacher="hog:").fit(data).save(folder)
    path = folder / "tokenizer.json"
    record = json.loads(path.read_text())
    record["config"]["teacher"] = teacher
    del record["sha256"]
    path.write_text(json.dumps({**record, "sha256": checksum(record)}))
    return folder
