"""Segmentation: against a loop over pixels, against scikit-learn, toys whose answer is known, bad inputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

import clustermim as cm
from clustermim.data import open_source
from clustermim.errors import ConfigError, DataError, RunError
from clustermim.evaluation import segment
from clustermim.evaluation.iou import Tally, interval, mean_iou
from clustermim.evaluation.patches import draw_patches, majority
from clustermim.evaluation.segmentation import find_neighbours, fit_linear, held_out_images, upsample

CPU = torch.device("cpu")
TRAIN, TEST = (f"textures:{split}?images=40&grid=4&patch=4&points=3&shared=1&classes=2" for split in ("train", "test"))


def draw_halves(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 8, 8) of two halves, side by side or one above the other, and their classes, which are the pixels."""
    images = np.zeros((count, 8, 8), np.uint8)
    for image, (first, second, upright) in zip(
        images, np.random.default_rng(seed).integers(0, 4, (count, 3)), strict=True
    ):
        image[:], half = first, image.T if upright % 2 else image
        half[:, 4:] = second
    return images, images.copy()


@pytest.fixture
def save_masked(tmp_path: Path) -> Callable[..., str]:
    """A function that writes images and masks, and gives their spec."""

    def save(name: str, images: Any, masks: Any) -> str:
        for kind, pictures in (("images", images), ("masks", masks)):
            folder = tmp_path / name / kind
            folder.mkdir(parents=True)
            for place, picture in enumerate(pictures):
                Image.fromarray(picture).save(folder / f"{place:03}.png")
        return f"folder:{tmp_path / name / 'images'}?masks={tmp_path / name / 'masks'}"

    return save


def one_hot(images: Tensor) -> Tensor:
    """Tokens (B, 1+16, 4) of patches of 2 pixels: the class is the value of their first pixel."""
    values = (images[:, 0, ::2, ::2] * 255).round().long().flatten(1)  # (B, 16)
    tokens = torch.nn.functional.one_hot(values, 4).float()
    return torch.cat([tokens.mean(1, keepdim=True), tokens], dim=1)


def test_features_that_are_the_class_are_perfect(save_masked: Callable[..., str]) -> None:
    train, test = save_masked("train", *draw_halves(40, 0)), save_masked("test", *draw_halves(20, 1))
    found = segment(one_hot, train, test, k=5, device="cpu")
    for one in (found.linear, found.knn):
        assert (one.mean_iou, one.pixel_accuracy, one.patch_accuracy) == (1.0, 1.0, 1.0)
        assert one.mean_iou_interval == one.pixel_accuracy_interval == one.patch_accuracy_interval == (1.0, 1.0)
        assert one.iou == {"0": 1.0, "1": 1.0, "2": 1.0, "3": 1.0}
        assert one.details["train_patches"] == 640
        assert one.details["test_images"] == 20
    assert json.loads(json.dumps(found.to_dict()))["knn"]["k"] == 5
    assert [row[0] for row in found.table().rows] == ["linear", "kNN"]
    assert "100.00 %" in str(found)
    assert "mean over 4 classes" in str(found)


def test_ignored_pixels_do_not_count(save_masked: Callable[..., str]) -> None:
    """Wrong classes behind 255 change nothing, nor do patches that are mostly 255."""
    images, masks = draw_halves(20, 1)
    damaged = masks.copy()
    damaged[:, ::2, 1::2] = 255  # a quarter of every patch
    damaged[:, :2] = 255
    wrong = images.copy()
    wrong[:, :2] = (wrong[:, :2] + 1) % 4  # where nothing is asked
    train = save_masked("train", *draw_halves(40, 0))
    found = segment(one_hot, train, save_masked("test", wrong, damaged), k=5, device="cpu")
    assert found.linear.patch_accuracy == 1.0  # three of four rows of patches
    tally = Tally()
    tally.add_pixels(torch.zeros(1, 2, 2, dtype=torch.long), torch.tensor([[[0, -1], [-1, 1]]]))
    assert tally.classes().tolist() == [[[1, 1, 2], [0, 1, 0]]]
    nothing = save_masked("nothing", images, np.full_like(masks, 255))
    with pytest.raises(DataError, match="the masks of the test images have no pixel with a class"):
        segment(one_hot, train, nothing, k=5, device="cpu")
    with pytest.raises(DataError, match="give no patch a class"):
        segment(one_hot, nothing, train, k=5, device="cpu")


def test_counts_of_a_loop() -> None:
    """Mean IoU and accuracy of random predictions, counted pixel by pixel."""
    generator = np.random.default_rng(0)
    truth, predicted = generator.integers(-1, 5, (6, 7, 9)), generator.integers(0, 6, (6, 7, 9))
    truth[truth == 3] = 2  # a class that is predicted only; 5 is as well
    tally = Tally()
    for part in (slice(0, 4), slice(4, 6)):
        tally.add_pixels(torch.from_numpy(predicted[part]), torch.from_numpy(truth[part]))
    known, right, both, either = 0, 0, dict.fromkeys(range(6), 0), dict.fromkeys(range(6), 0)
    for there, here in zip(truth.flatten().tolist(), predicted.flatten().tolist(), strict=True):
        if there >= 0:
            known, right = known + 1, right + (there == here)
            both[there] += there == here
            for number in {there, here}:
                either[number] += 1
    expected = np.mean([both[number] / either[number] for number in range(6) if either[number]])
    assert float(mean_iou(tally.classes().sum(0))) == pytest.approx(expected, abs=1e-12)
    assert tally.pixels().sum(0).tolist() == [right, known]
    assert tally.classes().shape == (6, 6, 3)


def test_the_whole_against_a_loop(save_masked: Callable[..., str]) -> None:
    """The linear classifier's result, computed again from its own scores, image by image and pixel by pixel."""
    generator = np.random.default_rng(3)
    masks = generator.integers(0, 3, (24, 4, 4)).repeat(3, 1).repeat(3, 2).astype(np.uint8)[:, :8, :8]
    images = (masks * 60 + generator.integers(0, 90, masks.shape)).astype(np.uint8)
    train, test = save_masked("train", images[:16], masks[:16]), save_masked("test", images[16:], masks[16:])

    found = segment(_blocks, train, test, k=3, device="cpu").linear
    patches = draw_patches(_blocks, open_source(train), 10_000, 4, 0, CPU)
    assert len(patches.labels) == 16 * 16
    classifier = fit_linear(patches.values, patches.labels, patches.images, 3, 0)
    right, both, either = 0, [0] * 3, [0] * 3
    for image, mask in zip(images[16:], masks[16:], strict=True):
        scores = classifier.score(_blocks(torch.from_numpy(image)[None, None] / 255)[0, 1:])  # (16, 3)
        for row in range(8):
            for column in range(8):
                place = [min(max((at + 0.5) / 2 - 0.5, 0), 3) for at in (row, column)]
                low = [int(at) for at in place]
                value = torch.zeros(3)
                for down in (0, 1):
                    for across in (0, 1):
                        weight = 1.0
                        for at, start, step in zip(place, low, (down, across), strict=True):
                            weight *= (at - start) if step else 1 - (at - start)
                        where = min(low[0] + down, 3) * 4 + min(low[1] + across, 3)
                        value += weight * scores[where]
                here, there = int(value.argmax()), int(mask[row, column])
                right += here == there
                both[there] += here == there
                for number in {here, there}:
                    either[number] += 1
    assert found.pixel_accuracy == right / (8 * 64)
    assert found.mean_iou == pytest.approx(np.mean([a / b for a, b in zip(both, either, strict=True)]))
    low, high = found.mean_iou_interval
    assert low < found.mean_iou < high


def _blocks(images: Tensor) -> Tensor:
    """Tokens of patches of 2 pixels: the pixels themselves."""
    tokens = torch.nn.functional.unfold(images[:, :1], 2, stride=2).transpose(1, 2)  # (B, 16, 4)
    return torch.cat([tokens.mean(1, keepdim=True), tokens], dim=1)


def test_neighbours_of_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(0)
    values, queries = torch.randn(300, 6, generator=generator), torch.randn(90, 6, generator=generator)
    labels = torch.randint(4, (300,), generator=generator)
    peer = KNeighborsClassifier(7, metric="cosine", algorithm="brute", weights=lambda d: np.exp(-d / 0.07))
    expected = peer.fit(values.numpy(), labels.numpy()).predict_proba(queries.numpy())
    votes = find_neighbours(values, labels, 4, 7, 0.07).score(queries)
    shares = (votes / votes.sum(1, keepdim=True)).numpy()
    np.testing.assert_allclose(shares, expected, atol=1e-4)


def test_blocks_of_neighbours_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from clustermim.evaluation import frozen, segmentation

    whole = segment(_encoder(), TRAIN, TEST, k=3, device="cpu")
    monkeypatch.setattr(frozen, "_CHUNK", 1)
    monkeypatch.setattr(segmentation, "_SCORES", 1)
    assert segment(_encoder(), TRAIN, TEST, k=3, batch_size=7, device="cpu").knn == whole.knn


def _encoder() -> Any:
    return cm.pretrain(TRAIN, patch_size=4, epochs=0, device="cpu")


def test_an_encoder_that_sees_nothing() -> None:
    """It gives every patch one class: the most frequent of train by the linear classifier."""
    found = segment(lambda images: torch.ones(len(images), 17, 8), TRAIN, TEST, k=3, device="cpu")
    masks, test = (open_source(spec).masks.read(range(40)) for spec in (TRAIN, TEST))  # type: ignore[union-attr]
    share = float((test == int(masks.flatten().mode().values)).float().mean())
    assert found.linear.pixel_accuracy == found.linear.patch_accuracy == pytest.approx(share)
    assert found.linear.mean_iou == pytest.approx(share / len(found.linear.iou))
    assert 0 < found.knn.pixel_accuracy < 0.5


def test_textures_are_told_apart_and_a_seed_repeats() -> None:
    one, two = (segment(_encoder(), TRAIN, TEST, k=3, max_patches=200, seed=4, device="cpu") for _ in range(2))
    assert one == two
    assert one.linear.details["train_patches"] == 200
    assert one.linear.patch_accuracy > 0.9
    assert one.linear.details["classes"] == len(one.linear.iou) == 5
    assert "prototype 0" in one.knn.iou
    other = segment(_encoder(), TRAIN, TEST, k=3, max_patches=200, seed=5, device="cpu")
    assert other.linear.mean_iou != one.linear.mean_iou


def test_drawn_patches() -> None:
    """Each is drawn at most once, with the features and the class that it has."""
    source, encoder = open_source(TRAIN), _encoder()
    some = draw_patches(encoder, source, 100, 7, 0, CPU)
    assert some.values.shape == (100, 128)
    every = draw_patches(encoder, source, 10**6, 40, 0, CPU)
    assert every.labels.tolist() == source.patch_ids(range(40)).flatten().tolist()  # type: ignore[attr-defined]
    near = torch.cdist(some.values, every.values).argmin(1)
    assert len(set(near.tolist())) == 100
    assert torch.equal(every.labels[near], some.labels)
    assert torch.equal(every.images[near], some.images)
    with torch.no_grad():
        torch.testing.assert_close(
            every.values[:16], encoder(source.read([0]).images / 255)[0, 1:], rtol=1e-4, atol=1e-5
        )


def test_held_out_patches_are_of_other_images() -> None:
    images = torch.arange(30).repeat_interleave(4)
    held = held_out_images(images, 0)
    assert int(held.sum()) == 12
    assert set(images[held].tolist()).isdisjoint(images[~held].tolist())
    assert not torch.equal(held, held_out_images(images, 1))
    with pytest.raises(DataError, match="of 9 images, too few to hold out a tenth"):
        held_out_images(torch.arange(9), 0)


def test_majority_of_pixels() -> None:
    masks = torch.tensor([[[0, 0, 5, 5], [0, 1, 5, -1], [-1, -1, 2, 3], [-1, 4, 3, 2]]])
    assert majority(masks, (2, 2)).tolist() == [[0, 5, -1, 2]]
    assert majority(torch.tensor([[[-1, 3], [3, -1]]]), (1, 1)).tolist() == [[3]]
    assert majority(torch.full((1, 2, 2), -1), (2, 1)).tolist() == [[-1, -1]]


def test_bootstrap() -> None:
    """The interval of a mean over images is about 1.96 standard errors wide, on each side."""
    counts = np.stack([np.random.default_rng(0).binomial(50, 0.3, 400), np.full(400, 50)], axis=1)

    def share(sums: Any) -> Any:
        return sums[..., 0] / sums[..., 1]

    low, high = interval(share, counts, 0)
    error = 1.96 * (counts[:, 0] / 50).std(ddof=1) / 20
    assert high - low == pytest.approx(2 * error, rel=0.1)
    assert interval(share, counts[:1], 0) == pytest.approx((share(counts[0]),) * 2)


def test_upsampling_keeps_the_grid() -> None:
    scores = torch.eye(6)[None]  # 2×3 patches, each of its own class
    found = upsample(scores, (2, 3), torch.Size((4, 6)))
    assert found.tolist() == [[[0, 0, 1, 1, 2, 2]] * 2 + [[3, 3, 4, 4, 5, 5]] * 2]


def test_bad_inputs(save_masked: Callable[..., str]) -> None:
    with pytest.raises(DataError, match="digits/train has no masks, and segmentation needs them"):
        segment(_encoder(), "digits", TEST)
    with pytest.raises(DataError, match=r"are 3×16×16 and those of .* 3×32×32"):
        segment(_encoder(), TRAIN, TEST + "&size=32")
    with pytest.raises(DataError, match="have other classes"):
        segment(_encoder(), TRAIN, TEST.replace("points=3", "points=4"))
    for option, message in {
        "k": "--k 0 neighbours",
        "max_patches": "--max-patches 0",
        "batch_size": "--batch-size 0",
    }.items():
        with pytest.raises(ConfigError, match=message):
            segment(_encoder(), TRAIN, TEST, **{option: 0})
    with pytest.raises(ConfigError, match="--temperature 0 is not above 0"):
        segment(_encoder(), TRAIN, TEST, temperature=0)
    with pytest.raises(ConfigError, match="--k 9 neighbours cannot be had from 8 train patches"):
        segment(_encoder(), TRAIN, TEST, max_patches=8, k=9)
    with pytest.raises(ConfigError, match="not tokens"):
        segment(lambda images: images, TRAIN, TEST)
    with pytest.raises(ConfigError, match="5 patches, which are no grid"):
        segment(lambda images: torch.ones(len(images), 6, 2), TRAIN, TEST)
    with pytest.raises(RunError, match="patch features are NaN or infinite"):
        segment(lambda images: torch.full((len(images), 17, 2), float("nan")), TRAIN, TEST)
    images, masks = draw_halves(12, 0)
    with pytest.raises(DataError, match="are of one class: a classifier needs at least two"):
        segment(one_hot, save_masked("one", images, masks * 0), save_masked("two", images, masks))


def test_command(tmp_path: Path, command: Callable[..., int], refuse: Callable[..., str], capsys: Any) -> None:
    cm.pretrain(TRAIN, patch_size=4, epochs=0, device="cpu").save(tmp_path / "run")
    words = ("segment", tmp_path / "run", "--data", TRAIN, "--test-data", TEST, "--k", "3")
    assert command(*words, "--device", "cpu") == 0
    assert "mean IoU" in capsys.readouterr().out
    summary = json.loads((tmp_path / "run" / "segment" / "summary.json").read_text())
    assert summary["results"]["linear"]["mean_iou"] > 0.5
    assert set(summary["results"]["knn"]) >= {"mean_iou", "pixel_accuracy", "patch_accuracy", "iou", "train_patches"}
    assert command(*words, "--json", "--max-patches", "100") == 0  # replaces it
    assert json.loads(capsys.readouterr().out)["linear"]["train_patches"] == 100
    assert "no masks" in refuse("segment", tmp_path / "run", "--data", "digits", "--test-data", TEST)
    assert "--k 0" in refuse(*words[:-1], "0")
    assert "--device" in refuse(*words, "--device", "gpu9")
    assert "no pretrained encoder" in refuse("segment", tmp_path / "other", *words[2:])
    assert summary["results"] != json.loads((tmp_path / "run" / "segment" / "summary.json").read_text())["results"]


def test_in_a_study(tmp_path: Path) -> None:
    from clustermim.studies import run_study

    options = {"data": TRAIN, "target": "pixels", "epochs": 0, "patch_size": 4}
    column = {"stage": "dense", "value": "linear.mean_iou", "percent": True}
    measured = {"data": TRAIN, "test_data": TEST, "k": 3}
    study = {
        "title": "dense",
        "stages": [
            {"name": "run", "stage": "pretrain", "options": options},
            {"name": "dense", "stage": "segment", "grid": {"run": ["@run"]}, "options": measured},
        ],
        "table": {"rows": {"untrained": "run"}, "columns": {"mIoU": column}},
    }
    (tmp_path / "study.yaml").write_text(json.dumps(study))
    table = str(run_study(tmp_path / "study.yaml", tmp_path / "out"))
    assert "mIoU" in table
    assert "untrained" in table
