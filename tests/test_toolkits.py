"""Our side of other toolkits: a function from normalised images to ids; and the examples, as far as they use us."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clustermim as cm
from clustermim.data import to_float
from clustermim.errors import TokenizerError
from clustermim.tokenizers import Tokenizer

ROOT = Path(__file__).parents[1]
EXAMPLES = [ROOT / "examples" / name for name in ("stable_pretraining_beit.py", "lightly_mae.py")]
DATA = "textures:?images=64&grid=4x6&patch=4"  # images of 16×24 pixels
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return cm.KMeansTokenizer(k=12, patch_size=4, space="pixel-white").fit(DATA)


@pytest.fixture(scope="module")
def pixels() -> Tensor:
    return to_float(cm.open(DATA).read(range(20)).images)


def normalise(pixels: Tensor) -> Tensor:
    return (pixels - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]


class Toolkit(nn.Module):
    """What a BEiT asks of a tokenizer: it calls it on its own images, and predicts the ids of masked patches."""

    def __init__(self, tokenizer: object, vocab_size: int) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.head = nn.Linear(48, vocab_size)

    def forward(self, images: Tensor) -> Tensor:
        ids = self.tokenizer(images)  # type: ignore[operator]
        logits = self.head(F.unfold(images, 4, stride=4).transpose(1, 2))
        masked = torch.arange(ids.shape[1]) % 2 == 0
        return F.cross_entropy(logits[:, masked].flatten(0, 1), ids[:, masked].flatten())


def test_a_toolkit_trains_on_our_tokens(tokenizer: Tokenizer, pixels: Tensor) -> None:
    model, images = Toolkit(tokenizer.for_normalized(MEAN, STD), tokenizer.vocab_size), normalise(pixels)
    assert set(model.state_dict()) == {"head.weight", "head.bias"}  # the function is no part of it
    first = model(images.requires_grad_())
    first.backward()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(20):
        optimizer.zero_grad()
        loss = model(images.detach())
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.8 * float(first.detach())


def test_what_a_toolkit_gets(tokenizer: Tokenizer, pixels: Tensor) -> None:
    ids = tokenizer.for_normalized(MEAN, STD)(normalise(pixels).requires_grad_())
    assert (ids.dtype, ids.shape, ids.requires_grad) == (torch.int64, (20, 24), False)
    assert torch.equal(ids, tokenizer(pixels))


def test_patches_are_counted_row_by_row() -> None:
    tokenizer = cm.KMeansTokenizer(k=8, patch_size=4).fit(DATA)
    plain = torch.full((1, 3, 16, 24), 0.5)
    for row, column in ((0, 0), (0, 5), (2, 1), (3, 5)):
        image = plain.clone()
        image[:, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = tokenizer.center_patches()[
            (int(tokenizer(plain)[0, 0]) + 1) % 8
        ]
        changed = tokenizer.for_normalized(MEAN, STD)(normalise(image)) != tokenizer(plain)
        assert changed.nonzero().tolist() == [[0, 6 * row + column]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_images_of_any_precision(dtype: torch.dtype, tokenizer: Tokenizer, pixels: Tensor) -> None:
    full = pixels.clone()
    full[:, :, ::5], full[:, :, 1::5] = 0.0, 1.0  # at both ends, where rounding leaves [0, 1]
    found = tokenizer.for_normalized(MEAN, STD)(normalise(full).to(dtype))
    assert float((found == tokenizer(full)).float().mean()) > (0.75 if dtype == torch.bfloat16 else 0.95)
    for beyond in (-0.1, 1.1):
        with pytest.raises(TokenizerError, match="and these have values in"):
            tokenizer.for_normalized(MEAN, STD)(normalise(torch.full_like(full, beyond)).to(dtype))


def test_normalised_images_are_told_apart_from_bytes(tokenizer: Tokenizer, pixels: Tensor) -> None:
    with pytest.raises(TokenizerError, match=r"they look normalised; use tokenizer.for_normalized\(mean, std\)"):
        tokenizer(normalise(pixels))
    with pytest.raises(TokenizerError, match="divide bytes by 255"):
        tokenizer(255 * pixels)
    with pytest.raises(TokenizerError, match="takes float images"):
        tokenizer.for_normalized(MEAN, STD)((255 * pixels).to(torch.uint8))


def attributes(tree: ast.AST, name: str) -> set[str]:
    """The attributes of a name that code uses."""
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return {node.attr for node in found if isinstance(node.value, ast.Name) and node.value.id == name}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_use_what_there_is(path: Path, tokenizer: Tokenizer) -> None:
    """They run where their packages are installed; here the names that they use of ours are looked up."""
    tree = ast.parse(path.read_text())
    assert {"open", "KMeansTokenizer"} <= attributes(tree, "cm") <= set(cm.__all__)
    assert {"for_normalized", "vocab_size"} <= attributes(tree, "tokenizer") <= set(dir(tokenizer))


def test_the_document_shows_lines_of_the_examples() -> None:
    text = (ROOT / "docs" / "toolkits.md").read_text()
    code = "\n".join(path.read_text() for path in EXAMPLES)
    lines = [
        line for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) for line in block.strip().splitlines()
    ]
    assert len(lines) == 6
    assert all(line in code for line in lines)
