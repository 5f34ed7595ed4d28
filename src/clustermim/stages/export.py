"""`clustermim export`: an encoder as a folder that another library loads."""

from __future__ import annotations

from clustermim.distributed import barrier, rank
from clustermim.models import export as library
from clustermim.models.export import Library
from clustermim.runs import check_not_inside


def export(
    run: str,
    to: Library,
    out: str,
    license: str = "other",
    push: str | None = None,
    public: bool = False,
    overwrite: bool = False,
) -> None:
    """Write the encoder of a run as a model of timm or transformers, with a model card.

    Args:
        run: the folder of a pretrained or fine-tuned encoder; of the latter, without its head.
        to: the library that shall load it.
        out: the folder to write.
        license: of the weights, for the model card, such as cc-by-4.0.
        push: also upload the folder to the Hugging Face hub, as OWNER/NAME; log in with `hf auth login` first. Nothing
            is uploaded without this option.
        public: let everybody see a repository that --push makes; by default it is private. One that is there stays as
            it is.
        overwrite: replace an older export in `out`.
    """
    check_not_inside(run, out, "the run to export")
    if rank() == 0:
        library.export(run, to, out, license=license, push=push, public=public, overwrite=overwrite)
        usage = f"timm.create_model({f'local-dir:{out}'!r}, pretrained=True)"
        if to == "transformers":
            usage = f"transformers.AutoModel.from_pretrained({out!r})"
        pushed = f" and to {push} on the hub" if push else ""
        print(f"wrote an encoder for {to} to {out}{pushed}; load it with {usage}")
    barrier()
