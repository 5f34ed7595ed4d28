"""What people look at: `clustermim show` draws a tokenizer, `clustermim report` writes a page about many runs."""

from clustermim.drawing.colors import class_colors, token_colors
from clustermim.reports.gallery import SampleImages, TokenGallery, collect_tokens
from clustermim.reports.show import draw_tokens, show

__all__ = [
    "SampleImages",
    "TokenGallery",
    "class_colors",
    "collect_tokens",
    "draw_tokens",
    "show",
    "token_colors",
]
