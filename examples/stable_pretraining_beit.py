"""The BEiT of stable-pretraining on tokens of clustermim, in the place of the random hash that is its default.

pip install clustermim stable-pretraining
python examples/stable_pretraining_beit.py
"""

import timm
import torch
from stable_pretraining.methods.beit import BEiT

import clustermim as cm

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # how its images are normalised
PATCH, SIDE = 4, 32

train = cm.open("textures:?images=1024&grid=8&patch=4")  # or images of your own: "folder:photos/train?size=32"
tokenizer = cm.KMeansTokenizer(k=64, patch_size=PATCH, space="pixel-white").fit(train)

pixels = train.read(range(len(train))).images.float() / 255  # (B, 3, 32, 32) in [0, 1]
counts = torch.bincount(tokenizer(pixels).flatten())
images = (pixels - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]

torch.manual_seed(0)
vit = timm.create_model("vit_tiny_patch16_224", img_size=SIDE, patch_size=PATCH, depth=4, num_classes=0)
tokens = tokenizer.for_normalized(MEAN, STD)  # what BEiT asks: images as it has them to ids (B, N)
model = BEiT(vit, tokens, tokenizer.vocab_size, patch_size=PATCH, image_size=SIDE)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.05)

print(f"guessing by frequency: {torch.distributions.Categorical(counts).entropy():.3f} nats a token")
for epoch in range(1, 4):
    losses = []
    for batch in images[torch.randperm(len(images))].split(128):
        loss = model(batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"epoch {epoch}: {sum(losses) / len(losses):.3f} nats a masked token")
