"""The three commands as a user sees them, and what bad input gets."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from clustermim.cli import main as command_line
from clustermim.errors import ConfigError, DataError, UserError, WriteError
from clustermim.theory import toy_incidence
from clustermim.theory.theorem import interval_text
from paper import audit, theorem, toy
from paper.closed import convention_alpha, toy_joint
from paper.shell import run
from paper.toy_report import weight_text

BLOCKS = [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]


def words(options: dict[str, Any]) -> list[str]:
    """Options as words of a command line."""
    listed = [(f"--{name}", value if isinstance(value, list) else [value]) for name, value in options.items()]
    return [word for name, values in listed for word in (name, *(str(value) for value in values if value is not True))]


def theory_audit(**options: Any) -> None:
    audit.main(words(options))


def theory_toy(**options: Any) -> None:
    toy.main(words(options))


def theory_theorem(weights: str, **options: Any) -> None:
    theorem.main([weights, *words(options)])


def printed_json(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_audit_json_and_markdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "audit.md"
    theory_audit(json=True, markdown=str(file))
    values = printed_json(capsys)
    assert len(values["rows"]) == 28
    assert values["verdicts"] == {"right": 3, "typo": 6, "wrong": 10, "conclusion affected": 9}
    assert values["rows"][6]["checks"][2]["printed"] == "461/625"
    assert len(values["correlations"]) == 8
    assert len(values["tcas_ranges"]) == 12
    text = file.read_text()
    assert text.count("\n| ") == 28 + 2 + 8 + 2 + 12 + 2 + 2 + 2
    assert "**conclusion affected**" in text
    theory_audit(markdown=str(file))
    assert capsys.readouterr().out == ""
    assert file.read_text() == text
    with pytest.raises(WriteError, match=r"audit\.md"):
        theory_audit(markdown=str(file / "below a file"))


def test_audit_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    theory_audit()
    text = capsys.readouterr().out
    assert "28 rows: 3 right, 6 typo, 10 wrong, 9 conclusion affected" in text
    assert "coefficient of t^0: printed 7/2, exact 9/4" in text
    assert "-0.920" in text


def test_toy_table(capsys: pytest.CaptureFixture[str]) -> None:
    theory_toy()
    text = capsys.readouterr().out
    for part in ("identity *", "1.40960", "from 1.843 on", "0.8192 … 1.843", "1.024 … 1.843"):
        assert part in text
    theory_toy(shared=0)
    assert "nowhere: there is no overlap" in capsys.readouterr().out


def test_toy_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tok.csv"
    file.write_text("0,0,0,1,1,1,1,0\n")
    theory_toy(points=5, shared=2, tokenizer=str(file), convention="excl", json=True)
    values = printed_json(capsys)
    rows = {row["name"]: row for row in values["rows"]}
    assert list(rows) == ["identity", "class", "cross", str(file)]
    assert rows[str(file)]["tok"] == [0, 0, 0, 1, 1, 1, 1, 0]
    assert rows[str(file)]["alpha"]["excl"] == convention_alpha(toy_incidence(5, 2), rows[str(file)]["tok"], "excl")
    assert rows["identity"]["wins"][1] is None  # infinite
    assert values["overlap"] == 0.4
    theory_toy(points=4, shared=4, json=True)
    assert printed_json(capsys)["rows"][0]["intra"] is None


@pytest.mark.parametrize(
    ("sizes", "tokenizer"),
    [((2, 20, 4), "identity"), ((3, 12, 2), "pattern"), ((2, 10, 0), "class"), ((2, 4, 4), "cross")],
)
def test_toy_figure(sizes: tuple[int, int, int], tokenizer: str, tmp_path: Path) -> None:
    file = tmp_path / "toy.png"
    theory_toy(
        **dict(zip(("classes", "points", "shared"), sizes, strict=True)),
        tokenizer=tokenizer,
        ratio=0 if sizes[2] == 0 else 2.5,
        figure=str(file),
    )
    with Image.open(file) as image:
        assert image.width == 1800
        assert np.asarray(image.convert("L")).std() > 10


@pytest.mark.parametrize("form", ["csv", "npy", "json", "object"])
def test_theorem_files(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / f"weights.{'json' if form == 'object' else form}"
    if form == "csv":
        file.write_text("# two classes\n" + "\n".join(",".join(map(str, row)) for row in BLOCKS))
    elif form == "npy":
        np.save(file, np.array(BLOCKS) / 8)
    else:
        file.write_text(json.dumps(BLOCKS if form == "json" else {"weights": BLOCKS, "y1": [1, 1, 0, 0]}))
    theory_theorem(str(file), json=True)
    values = printed_json(capsys)
    assert values["partitions"] == 15
    assert values["optimal"] == [pytest.approx(3), None]
    assert (values["necessary"], values["sufficient"]) == (2, 4)
    assert not values["labels_optimal"]
    assert values["counterexample"]["bound"] < values["labels"]["bound"]
    assert values["labels"]["tok"] == [0, 0, 1, 1]


def test_theorem_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "weights.json"
    file.write_text(json.dumps(BLOCKS))
    theory_theorem(str(file))
    text = capsys.readouterr().out
    for part in ("15 tokenizers of 4 targets", "NOT optimal", "from 3 on", "≥ 2", "beats the labels below 3"):
        assert part in text
    theory_theorem(str(file), ratio=5)
    assert "the labels are optimal;" in capsys.readouterr().out
    theory_theorem(str(file), y1=[0, 1, 0, 1])
    assert "NOT met" in capsys.readouterr().out


def fails(message: str, call: Any, kind: type[UserError] = DataError) -> None:
    with pytest.raises(kind, match=message) as error:
        call()
    assert "\n" not in str(error.value)


def test_bad_weights_files(tmp_path: Path) -> None:
    def weights(text: str, name: str = "weights.csv", **options: Any) -> Any:
        (tmp_path / name).write_text(text)
        return lambda: theory_theorem(str(tmp_path / name), **options)

    fails("negative", weights("1,-1\n0,1"))
    fails("all zero", weights("0,0\n0,0"))
    fails("cannot be read", weights("1,2\n3"))
    fails("cannot be read", weights("1,a"))
    fails("no numbers", weights(""))
    fails("cannot be read", weights("{", "weights.json"))
    fails("no key `weights`", weights("{}", "weights.json"))
    fails("must hold numbers", weights('["a"]', "weights.json"))
    fails("ragged", weights("[[1], [1, 2]]", "weights.json"))
    fails("ending in", weights("1", "weights.pkl"))
    fails("not found", lambda: theory_theorem(str(tmp_path / "none.csv")))
    fails("one component", weights("1,1\n1,1"), ConfigError)
    fails("y2 is given without y1", weights("1,0\n0,1", y2=[0, 1]), ConfigError)
    fails("1 to 10 targets, not 11", weights("\n".join(",".join(map(str, row)) for row in np.eye(11))), ConfigError)
    fails("2 points", weights("1,0\n0,1", y1=[0, 1], y2=[0, 1, 1]))
    fails("ratio", weights("1,0\n0,1", ratio=-1.0), ConfigError)
    (tmp_path / "objects.npy").write_bytes(b"no array")
    fails("cannot be read", lambda: theory_theorem(str(tmp_path / "objects.npy")))
    (tmp_path / "empty.npy").touch()
    fails("cannot be read", lambda: theory_theorem(str(tmp_path / "empty.npy")))


def test_bad_toys(tmp_path: Path) -> None:
    def tokens(text: str, name: str = "tok.csv") -> Any:
        (tmp_path / name).write_text(text)
        return lambda: theory_toy(points=3, shared=1, tokenizer=str(tmp_path / name))

    fails("too few", lambda: theory_toy(classes=3, points=4, shared=3), ConfigError)
    fails("identity, class, cross, pattern or a file", lambda: theory_toy(tokenizer="labels"), ConfigError)
    fails("convention", lambda: theory_toy(convention="hard"), ConfigError)
    fails("ratio", lambda: theory_toy(ratio=math.nan), ConfigError)
    fails("tokens", lambda: theory_toy(tokens=100), ConfigError)
    fails("gap", tokens("0,0,0,2,2"))
    fails("5 targets", tokens("0,1"))
    fails("list of token ids", tokens("{}", "tok.json"))
    fails("must end in .png, .pdf, .svg", lambda: theory_toy(figure=str(tmp_path / "toy.nothing")), ConfigError)


def test_column_of_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tok.csv"
    file.write_text("0\n0\n1\n1\n0\n")
    theory_toy(points=3, shared=1, tokenizer=str(file), json=True)
    assert printed_json(capsys)["rows"][3]["tokens"] == 2


def test_texts() -> None:
    assert interval_text(None) == "nowhere"
    assert weight_text((0.1, 0.2)) == "0.1–0.2"
    assert toy_joint(toy_incidence(2, 1)).sum() == pytest.approx(1)


def test_how_the_commands_end(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(toy.main, ["--shared", "0"]) == 0
    assert "20 points" in capsys.readouterr().out
    assert run(toy.main, ["--ratio", "-1"]) == 2
    assert capsys.readouterr().err == "error: the ratio c2/c1 must be 0 or a positive number, not -1.0\n"
    (tmp_path / "file").touch()
    assert run(audit.main, ["--markdown", str(tmp_path / "file" / "audit.md")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_no_command_of_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(["theory", "audit"]) == 2
    assert "python -m paper.audit" in capsys.readouterr().err
