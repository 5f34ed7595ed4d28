"""How a teacher is written: `SCHEME:PLACE?option=value&…`, or the folder of a pretrained encoder alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from clustermim.data.spec import OptionReader, parse_options
from clustermim.errors import TeacherError, did_you_mean
from clustermim.files import user_path
from clustermim.models.encoder import DESCRIPTION

# Of each kind of teacher the function that opens it, imported when needed since some are heavy, and its options.
TEACHERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "hf": ("clustermim.teachers.hub:open_hf_teacher", ("layer", "size")),
    "run": ("clustermim.teachers.encoders:open_run_teacher", ("layer",)),
    "random": ("clustermim.teachers.encoders:open_random", ("layer", "patch", "image", "channels", "seed")),
    "hog": ("clustermim.teachers.handcrafted:HOGTeacher", ("cells", "channels")),
    "pixels": ("clustermim.teachers.handcrafted:PixelTeacher", ("patch", "window", "normalize", "channels")),
    "module": ("clustermim.teachers.custom:CallableTeacher", ()),
}

UNNAMED = {"hog": "hog: or hog:?cells=2", "pixels": "pixels:?patch=4"}  # kinds without a name or a folder

_HEAD = re.compile(r"([A-Za-z]\w*):(.*)", re.DOTALL)


@dataclass(frozen=True)
class TeacherSpec(OptionReader):
    """A parsed text: `place` is a name, a folder or a size, whatever the scheme asks for."""

    error: ClassVar = TeacherError
    text: str
    scheme: str
    place: str
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def layer(self) -> int | None:
        """The number of a layer, negative from the end; None for what the network gives in the end."""
        return self.integer("layer", 0, minimum=-10_000) if "layer" in self.options else None

    def find_layer(self, last: int) -> int | None:
        """The layer counted from the beginning, of those from 0 to `last`; None if none was chosen."""
        if (layer := self.layer) is None:
            return None
        if not -last - 1 <= layer <= last:
            self.refuse("layer", f"0 … {last}, or −1 … −{last + 1} from the end")
        return layer % (last + 1)


def parse_teacher(text: str) -> TeacherSpec:
    """The parsed text, its scheme and the names of its options checked."""
    head, _, tail = text.partition("?")
    match = _HEAD.fullmatch(head)
    if match and match[1] in TEACHERS:
        scheme, place = match[1], match[2]
    elif (user_path(head) / DESCRIPTION).is_file():  # so that a study's @cell can be a teacher
        scheme, place = "run", head
    else:
        name = match[1] if match else head
        problem = f"there is no kind of teacher {name!r}, nor an encoder in such a folder"
        raise TeacherError(f"{text}: {problem}{did_you_mean(name, TEACHERS)}")
    if not place and scheme not in UNNAMED:
        raise TeacherError(f"{text}: {scheme} needs a name or a folder after the colon")
    if place and scheme in UNNAMED:
        raise TeacherError(f"{text}: {scheme} has no name; write {UNNAMED[scheme]}")
    spec = TeacherSpec(text, scheme, place, parse_options(text, tail, TeacherError))
    spec.check_names(TEACHERS[scheme][1])
    return spec
