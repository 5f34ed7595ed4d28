"""`clustermim export`: an encoder as a run folder that another library loads."""

from __future__ import annotations

from clustermim.models.encoder import load_encoder
from clustermim.models.export import Library, transformers_class
from clustermim.runs import check_not_inside, open_run


def export(run: str, to: Library, out: str, overwrite: bool = False) -> None:
    """Write the encoder of a run as a model of timm or transformers.

    Args:
        run: the folder of a pretrained or fine-tuned encoder; of the latter, without its head.
        to: the library that shall load it.
        out: the folder to write.
        overwrite: replace a complete run in `out`.
    """
    check_not_inside(run, out, "the run to export")
    encoder = load_encoder(run)
    with open_run(out, "export", {"run": run, "to": to}, overwrite=overwrite) as folder:
        encoder.export(to, folder.folder)
        parameters = sum(parameter.numel() for parameter in encoder.parameters())
        folder.summary = {"results": {"parameters": parameters}, "weights": encoder.weights}
    usage = f"timm.create_model({f'local-dir:{out}'!r}, pretrained=True)"
    if to == "transformers":
        more = "" if encoder.backbone.registers else ", add_pooling_layer=False"
        usage = f"transformers.{transformers_class(encoder.backbone)}.from_pretrained({out!r}{more})"
    print(f"wrote an encoder for {to} to {out}; load it with {usage}")
