"""bench/gpu/models without a GPU: rows at small sizes on the CPU, what is said of absent peers, and
that a wrong result is named and not timed."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "bench/gpu/models"
# One row of each kind; MODELS_ROWS= in the environment is all of them.
ROWS = os.environ.get(
    "MODELS_ROWS",
    "triangle and left|additive|cross attention, 4|16 documents|pages of 64|cross decode|128, sinks"
    "|softcap 30|MLA|dropout|nanoGPT|2k, 8x128|N 256, 4x32, fp32|AttentionPairBias|shifted"
    "|mixed step",
)


def run(code: str, *arguments: str) -> str:
    given = ("--device", "cpu", "--tiny", "--repeats", "1", "--span-ms", "0.01", *arguments)
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(FOLDER)!r}); {code}", *given],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        text=True,
        capture_output=True,
    ).stdout


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "rows.json"
    text = run("import models; models.main()", "--rows", ROWS, "--json", str(path))
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(text.splitlines()) == len(found)  # printed as they come
    return [row for row in found if "pass" in row], path


def test_each_row_is_right_and_timed(rows):
    cases = {row["case"] for row in rows[0]}
    assert len(cases) >= 16
    for row in rows[0]:
        assert "fulmen" in row["seconds"], row
        assert row["errors"]["fulmen"] < (1e-5 if "fp32" in row["case"] else 0.02), row
        assert row["kernel"].startswith("cpu."), row
    passes = {(row["case"], row["pass"]) for row in rows[0]}
    assert {p for c, p in passes if "softcap" in c} == {"forward", "backward"}
    assert {p for c, p in passes if "pages" in c} == {"forward"}


def test_absent_peers_are_named(rows):
    row = next(row for row in rows[0] if "16 documents" in row["case"])
    assert row["refused"]["flash4"].startswith("absent: ")
    # What has no argument for a call is no peer of it: bias for FlashAttention 4.
    row = next(row for row in rows[0] if "AttentionPairBias" in row["case"])
    assert "flash4" not in row["refused"]
    assert row["best"] == "math"


def test_tables_have_every_row(rows):
    text = run("import models; models.main()", "--markdown", str(rows[1]))
    for row in rows[0]:
        assert f"| {row['case']} |" in text


WRONG = """
import models, peers
true = peers.fulmen
def wrong(call, *given):
    run = true(call, *given)
    return lambda x: run({**x, "v": x["v"] * 1.1})
peers.fulmen = wrong
models.main()
"""


def test_a_wrong_result_is_named_and_not_timed(tmp_path):
    path = tmp_path / "rows.json"
    run(f"exec({WRONG!r})", "--rows", "softcap 30|fp32, 2 x 2k, 8x128", "--json", str(path))
    found = [json.loads(line) for line in path.read_text().splitlines()]
    found = [row for row in found if "pass" in row]
    assert len(found) == 4
    for row in found:
        assert row["refused"]["fulmen"].startswith("WRONG: error "), row
        assert "fulmen" not in row["seconds"]
        assert "ratio" not in row
