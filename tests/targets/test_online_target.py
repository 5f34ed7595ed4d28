"""Sinkhorn against plain loops, what it promises, and the parts of the online target by hand."""

from __future__ import annotations

import math
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from clustermim.data import open_source
from clustermim.errors import ConfigError
from clustermim.models import Encoder, build_backbone
from clustermim.models.masking import Mask
from clustermim.targets import make_target
from clustermim.targets.online import OnlineOptions, OnlineTarget
from clustermim.targets.sinkhorn import collapse, sinkhorn, use_of

DATA = "textures:?images=40&grid=2&patch=4"


def cosines(groups: int, patches: int, prototypes: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    points, directions = torch.randn(groups, patches, 5, generator=generator), torch.randn(prototypes, 5)
    return F.normalize(points, dim=2) @ F.normalize(directions, dim=1).T


def plain_sinkhorn(scores: list[list[float]], temperature: float, iterations: int) -> list[list[float]]:
    """Columns to one sum, then rows to 1, number by number."""
    table = [[math.exp(score / temperature) for score in row] for row in scores]
    for _ in range(iterations):
        for column in range(len(table[0])):
            total = sum(row[column] for row in table)
            for row in table:
                row[column] /= total
        table = [[value / sum(row) for value in row] for row in table]
    return table


@pytest.mark.parametrize("iterations", [1, 3, 10])
@pytest.mark.parametrize("queued", [0, 4])
def test_each_position_by_itself_as_in_plain_loops(iterations: int, queued: int) -> None:
    scores = cosines(3, 6 + queued, 4)
    queue = scores[:, 6:] if queued else None
    found = sinkhorn(scores[:, :6], 0.06, iterations, queue)
    for group in range(3):
        expected = plain_sinkhorn(scores[group].double().tolist(), 0.06, iterations)[:6]
        torch.testing.assert_close(found[group].double(), torch.tensor(expected).double(), rtol=1e-3, atol=1e-6)


@given(st.integers(2, 12), st.integers(2, 9), st.floats(0.05, 1.0), st.integers(0, 1000))
def test_marginals(patches: int, prototypes: int, temperature: float, seed: int) -> None:
    """Rows are shares; in the limit every prototype gets as much as any other, whatever the numbers are."""
    scores = cosines(2, patches, prototypes, seed)
    rows = sinkhorn(scores, temperature, 3).sum(2)
    torch.testing.assert_close(rows, torch.ones_like(rows), rtol=1e-4, atol=1e-4)
    balanced = sinkhorn(scores, max(temperature, 0.3), 200)
    columns = balanced.sum(1)
    torch.testing.assert_close(columns, torch.full_like(columns, patches / prototypes), rtol=1e-3, atol=1e-3)
    assert (balanced >= 0).all()


def test_what_a_position_has_in_common_changes_nothing() -> None:
    """An offset of every prototype's score, such as what all patches of one place share, is taken away."""
    scores = cosines(2, 8, 5)
    shifted = scores * 0.5 + 0.3 * torch.linspace(-1, 1, 5)
    torch.testing.assert_close(sinkhorn(shifted, 0.1, 1), sinkhorn(scores * 0.5, 0.1, 1))


def test_the_sharpest_temperature_stays_finite() -> None:
    worst = torch.full((1, 6, 3), -1.0)
    worst[0, :, 0] = 1.0
    worst[0, 0] = -1.0  # far from everything
    found = sinkhorn(worst, 0.03, 5)
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found.sum(2), torch.ones(1, 6))


def make(**options: float) -> OnlineTarget:
    torch.manual_seed(0)
    encoder = Encoder(build_backbone("micro", (8, 8), 4), "micro", [0.5] * 3, [0.25] * 3)
    target = OnlineTarget(encoder, prototypes=6, **options)  # type: ignore[arg-type]
    target.start(open_source(DATA), 0)
    return target


def written_out(target: OnlineTarget, images: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors (B, N, Q) of a training step in float64, and the cosines with prototypes (B, N, K)."""
    features = target.teacher(images)[:, 1:].double() @ target.axes.double()
    means = 0.9 * target.means.double() + 0.1 * features.mean(0)
    centred = features - means
    variance = 0.9 * target.variance.double() + 0.1 * centred.square().mean((0, 1))
    vectors = centred / (variance + 1e-6).sqrt()
    vectors = vectors / vectors.norm(dim=2, keepdim=True)
    directions = target.prototypes.double() / target.prototypes.double().norm(dim=1, keepdim=True)
    return vectors, vectors @ directions.T


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("queued", [0, 7])
def test_assignments_and_loss_written_out(together: bool, queued: int) -> None:
    target = make(positions_together=together, queue_images=queued).train()
    images = torch.rand(10, 3, 8, 8)
    before = deepcopy(target)
    assigned = target.assign(images)
    vectors, scores = written_out(before, images)  # (B, N, Q), (B, N, K)
    directions = F.normalize(before.prototypes.detach().double(), dim=1)
    rows = torch.cat([scores, before.queue.double() @ directions.T]).transpose(0, 1).detach()  # (N, B + R, K)
    if together:
        table = plain_sinkhorn(rows.flatten(0, 1).tolist(), 0.06, 3)
        expected = torch.tensor(table).double().view(4, 10 + queued, 6)[:, :10]
    else:
        expected = torch.stack([torch.tensor(plain_sinkhorn(part.tolist(), 0.06, 3)).double() for part in rows])[:, :10]
    torch.testing.assert_close(assigned.values.double(), expected, rtol=1e-3, atol=1e-5)
    logs = (scores / 0.12).log_softmax(2).transpose(0, 1)  # (N, B, K)
    torch.testing.assert_close(assigned.loss.double(), -(expected * logs).sum(2).mean(), rtol=1e-4, atol=1e-5)
    assert not assigned.values.requires_grad
    assigned.loss.backward()  # type: ignore[no-untyped-call]
    assert {name for name, value in target.named_parameters() if value.grad is not None} == {"prototypes"}
    if queued:
        torch.testing.assert_close(target.queue.double(), vectors[:queued], rtol=1e-3, atol=1e-5)
    mask = Mask(torch.tensor([[0, 1]] * 10), torch.tensor([[2, 3]] * 9 + [[0, 3]]))
    chosen = assigned.masked(mask)  # (B, m, K)
    assert torch.equal(chosen[3], assigned.values[2:, 3])
    assert torch.equal(chosen[9], assigned.values[[0, 3], 9])


def test_the_queue_keeps_the_newest() -> None:
    target = make(queue_images=7).train()
    first, second = torch.rand(2, 4, 3, 8, 8)
    target.assign(first)
    kept = target.queue[:4].clone()
    target.assign(second)
    assert torch.equal(target.queue[4:], kept[:3])
    before = target.queue.clone()
    means = target.means.clone()
    target(first)
    target.eval().assign(first)
    assert torch.equal(target.queue, before)  # a look changes nothing
    assert torch.equal(target.means, means)


def test_it_starts_from_whitened_clusters() -> None:
    """Vectors at the start have no mean at any position and unit variance; prototypes are near them, and all in use."""
    target = make(queue_images=12, prototype_rate=2.0)
    images = open_source(DATA).read(range(40)).images.float() / 255
    features = target.teacher(images)[:, 1:] @ target.axes - target.means
    torch.testing.assert_close(features.mean(0), torch.zeros(4, 64), rtol=0, atol=1e-2)
    variance = features.flatten(0, 1).var(0)
    assert ((variance > 0.9) & (variance < 1.1))[:20].all()
    assert torch.equal(target.variance, torch.ones(64))
    ids = target(images)
    assert ids.shape == (40, 4)
    assert ids.unique().tolist() == list(range(6))
    torch.testing.assert_close(target.prototypes.norm(dim=1), torch.full((6,), 4.0))  # √64 over the rate
    torch.testing.assert_close(target.queue.norm(dim=2), torch.ones(12, 4))
    drawn = torch.randn(6, 64)
    points = target.points(images).flatten(0, 1)
    near, far = ((points @ F.normalize(some, dim=1).T).amax(1).mean() for some in (target.prototypes.detach(), drawn))
    assert near > far + 0.05


def test_features_themselves() -> None:
    target = make(whiten=0, image_mean_weight=-1.0)
    images = torch.rand(5, 3, 8, 8)
    features = target.teacher(images)[:, 1:]
    features = features - features.mean(1, keepdim=True) - target.means
    torch.testing.assert_close(target.points(images), F.normalize(features, dim=2))
    assert target.axes.shape == (0, 0)


@pytest.mark.parametrize("constant", [False, True])
def test_the_teacher_follows(constant: bool) -> None:
    target = make(teacher_momentum=0.9, constant_momentum=constant)
    student = deepcopy(target.teacher.backbone)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(torch.randn_like(parameter))
    before = {name: value.clone() for name, value in target.teacher.backbone.named_parameters()}
    target.follow(student, 3, 8)
    keep = 0.9 if constant else 1 - 0.1 * (1 + math.cos(math.pi * 2 / 8)) / 2
    for name, value in target.teacher.backbone.named_parameters():
        expected = keep * before[name] + (1 - keep) * student.get_parameter(name)
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
        assert not value.requires_grad
    last = {name: value.clone() for name, value in target.teacher.backbone.named_parameters()}
    target.follow(student, 9, 8)  # the end of the cosine
    assert constant or all(torch.equal(value, last[name]) for name, value in target.teacher.backbone.named_parameters())


def test_what_is_logged() -> None:
    values = torch.zeros(2, 3, 4)
    values[:, :, 0], values[:, :, 1] = 0.75, 0.25
    values[0, 0] = torch.tensor([0.0, 0.0, 1.0, 0.0])
    found = use_of(values)
    assert found["used"] == 0.5
    assert found["confidence"].item() == pytest.approx((5 * 0.75 + 1) / 6)
    shares = (5 / 6, 1 / 6)
    assert found["perplexity"].item() == pytest.approx(math.exp(-sum(share * math.log(share) for share in shares)))


def test_a_collapse_is_named() -> None:
    assert collapse(0.9, 0.3, 512, 1000) is None
    assert "collapsed to 5 of 512 prototypes: start from an encoder" in str(collapse(5 / 512, 0.9, 512, 10_000))
    assert "the same for all patches: lower --teacher-temperature" in str(collapse(1.0, 0.0021, 512, 10_000))
    assert collapse(0.08, 0.9, 512, 60) is None  # 60 patches cannot use more
    alike = use_of(sinkhorn(torch.full((4, 9, 30), 0.5), 0.06, 3))
    assert collapse(float(alike["used"]), float(alike["confidence"]), 30, 36) is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"teacher_momentum": 1.0}, "--teacher-momentum 1 must be at least 0 and below 1: with 1 the teacher never"),
        ({"teacher_momentum": -0.1}, "--teacher-momentum -0.1 must be"),
        ({"teacher_momentum": math.nan}, "--teacher-momentum nan must be"),
        ({"teacher_temperature": 0.02}, "--teacher-temperature 0.02 must be a number from 0.03 on"),
        ({"student_temperature": math.inf}, "--student-temperature inf must be a number from 0.01 on"),
        ({"prototype_rate": 0.0}, "--prototype-rate 0 must be a number from 0.001 on"),
        ({"prototypes": 1}, "--prototypes 1 is too small: at least 2"),
        ({"sinkhorn_iterations": 0}, "--sinkhorn-iterations 0 is too small"),
        ({"queue_images": -1}, "--queue-images -1 is too small"),
        ({"whiten": -1}, "--whiten -1 is too small"),
        ({"image_mean_weight": math.nan}, "--image-mean-weight nan must be a finite number"),
    ],
)
def test_bad_options(options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        OnlineOptions(**options)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def test_more_prototypes_than_patches_or_components() -> None:
    encoder = Encoder(build_backbone("micro", (8, 8), 4), "micro", [0.5] * 3, [0.25] * 3)
    with pytest.raises(ConfigError, match=r"--prototypes: k = 500, but there are only .* choose --prototypes"):
        OnlineTarget(encoder, prototypes=500).start(open_source(DATA), 0)
    with pytest.raises(ConfigError, match="--whiten 129 is more than the 128 numbers"):
        OnlineTarget(encoder, whiten=129)
    with pytest.raises(ConfigError, match=r"there is no target 'onlin'.*; did you mean online"):
        make_target("onlin", open_source(DATA))
