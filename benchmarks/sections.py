"""What docs/performance.md says of each record: a title, then what was measured and what limits it."""

SECTIONS: dict[str, tuple[str, str]] = {
    "growth": (
        "How cost grows",
        "k-means on patches of images drawn from the toy model, and a step of pretraining micro, one size changing "
        "at a time. Tokenizing is proportional to the number of patches; fitting grows more slowly, because early "
        "iterations see a part of them, and more slowly with the numbers of a patch, because iterations run in the "
        "leading principal components. With many clusters fitting is the product of patches and centres, and grows "
        "as they do. A step is proportional to tokens and, from a batch that fills the cores on, to images: attention, "
        "which grows with the square of the tokens, does not show at these sizes. Last, images a second of pretraining "
        "under torchrun on two cores. Rows of equal sizes were measured at different times and show how calm the "
        "machine was.",
    ),
    "loading": (
        "Loading",
        "Random resized crops from a folder of JPEGs of 500×375 pixels, against a `DataLoader` of Pillow's with as "
        "many workers, idle and beside processes that load both cores. The limit is the decoder: the bits of a file "
        "must be read one after the other, which costs both sides the same, so that the ratio falls as files grow.",
    ),
    "waiting": (
        "Waiting for data",
        "The share of its time in which pretraining (micro, 64 pixels, patch 8) waits for crops from such a folder, "
        "idle and beside processes that load both cores. On a CPU, decoding and training share the cores.",
    ),
    "data-share": (
        "Preparing a batch from arrays",
        "What preparing a batch costs beside the step it is for, both in the foreground; a thread prepares in "
        "training.",
    ),
    "vit-speed-small": (
        "A step of ViT-S/16 at 224 pixels",
        "Against transformers' `ViTMAEForPreTraining`, processes taking turns. The share is that of the machine's "
        "speed in large matrix products, measured in the same run.",
    ),
    "vit-speed-micro": (
        "A step of micro at 32 pixels",
        "The same for micro, patch 4, in the shape of CIFAR-10.",
    ),
    "threads": (
        "One thread or all",
        "Steps of micro at several sizes, with one thread and with one a core, idle and beside a busy process. Alone "
        "on the machine all cores are faster, of the smallest steps hardly. Beside other work one thread is faster at "
        "every size that was measured.",
    ),
    "gpu-memory": (
        "Memory of a step",
        "Bytes that a step keeps at 224 pixels, counted on torch's meta device; nothing was measured on a GPU.",
    ),
    "scaling": (
        "On many GPUs",
        "100 epochs of ImageNet-1K, reckoned from counted operations, not measured; docs/scaling.md says how.",
    ),
    "kmeans-imagenette": (
        "k-means",
        "Patches of 16×16×3 pixels of real images, in memory, idle and beside processes that load every core; inertia "
        "is the mean squared distance on all of them. faiss has its own settings (25 iterations) and all patches. Ours "
        "is also stopped after fewer iterations; the fewest that reach the inertia of faiss, seed by seed, are a row "
        "of their own. The authors' procedure is timed once, for some epochs, from which a hundred follow.",
    ),
    "kmeans-size": (
        "k-means at size",
        "Fits in processes of their own, and k-means++ alone. The last rows are extrapolated to 25 million patches and "
        "K = 8,192, not measured: memory in proportion to patches, k-means++ to K², all else to patches times K.",
    ),
    "nearest": (
        "Nearest centres",
        "The search as a share of the machine's speed in large matrix products, and of the time of its own product. "
        "With few numbers a patch, adding and comparing the distances, not their product, is the limit.",
    ),
    "score-overhead": (
        "Scoring",
        "What `score` costs beside tokenizing every image, and random views of some.",
    ),
    "memory": (
        "Memory of k-means",
        "Peak memory of fitting on a stream: it must not grow with the number of images.",
    ),
    "inertia-cifar10": (
        "Inertia on CIFAR-10",
        "Against scikit-learn's `KMeans` run to convergence on the same patches.",
    ),
    "inertia-imagenette": (
        "Inertia on Imagenette",
        "The same on patches of 16×16×3 pixels.",
    ),
    "probe-sweep": (
        "Linear probe",
        "The sweep of penalties of the linear probe by L-BFGS.",
    ),
    "probe-speed": (
        "Linear probe against 90 epochs",
        "L-BFGS on features computed once, against 90 epochs of MAE's protocol.",
    ),
    "knn": (
        "Nearest neighbours",
        "The vote among neighbours in blocks, against brute force of other libraries.",
    ),
    "theory-sparse": (
        "Mask graphs",
        "The two terms of the bound on a large sparse graph.",
    ),
}
ELSEWHERE = ("tcas-by-size-cifar10",)  # records of something else than speed or memory
