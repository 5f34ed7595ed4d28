"""The MAE of lightly with tokens of clustermim in the place of pixels: another last layer, and cross-entropy.

pip install clustermim lightly timm
python examples/lightly_mae.py
"""

import timm
import torch
from lightly.models import utils
from lightly.models.modules import MaskedVisionTransformerDecoderTIMM, MaskedVisionTransformerTIMM
from torch import Tensor, nn

import clustermim as cm

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # as lightly's transforms normalise
PATCH, SIDE, WIDTH = 4, 32, 96


class TokenMAE(nn.Module):
    """lightly's MAE, but for its last layer: images (B, C, H, W) to logits of the tokens of masked patches."""

    def __init__(self, vit: nn.Module, vocab_size: int) -> None:
        super().__init__()
        self.backbone = MaskedVisionTransformerTIMM(vit=vit)
        self.embed = nn.Linear(vit.embed_dim, WIDTH)
        self.decoder = MaskedVisionTransformerDecoderTIMM(vit.patch_embed.num_patches, WIDTH, depth=1, num_heads=3)
        self.predict = nn.Linear(WIDTH, vocab_size)  # tokens instead of pixels

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (B, m, vocab_size), and which patches (B, m) they are of, counted from 0."""
        size = len(images), self.backbone.sequence_length
        keep, mask = utils.random_token_mask(size, mask_ratio=0.75, device=images.device)
        seen = self.embed(self.backbone.encode(images, idx_keep=keep))  # (B, 1+n, WIDTH)
        x = utils.set_at_index(utils.repeat_token(self.decoder.mask_token, size), keep, seen)  # (B, 1+N, WIDTH)
        logits = self.predict(utils.get_at_index(self.decoder(x), mask))  # (B, m, vocab_size)
        return logits, mask - 1  # the class token is number 0 of the sequence


train = cm.open("textures:?images=1024&grid=8&patch=4")  # or images of your own: "folder:photos/train?size=32"
tokenizer = cm.KMeansTokenizer(k=64, patch_size=PATCH, space="pixel-white").fit(train)
tokens = tokenizer.for_normalized(MEAN, STD)  # images as lightly has them to ids (B, N)

pixels = train.read(range(len(train))).images.float() / 255  # (B, 3, 32, 32) in [0, 1]
counts = torch.bincount(tokenizer(pixels).flatten())
images = (pixels - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]

torch.manual_seed(0)
vit = timm.create_model("vit_tiny_patch16_224", img_size=SIDE, patch_size=PATCH, depth=4, num_classes=0)
model = TokenMAE(vit, tokenizer.vocab_size)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.05)

print(f"guessing by frequency: {torch.distributions.Categorical(counts).entropy():.3f} nats a token")
for epoch in range(1, 4):
    losses = []
    for batch in images[torch.randperm(len(images))].split(128):
        logits, masked = model(batch)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens(batch).gather(1, masked).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"epoch {epoch}: {sum(losses) / len(losses):.3f} nats a masked token")
