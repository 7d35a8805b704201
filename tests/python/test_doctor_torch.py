"""`fulmen doctor --torch`: what torch's attention would run, why not flash, and what to write."""

import sys

import pytest
import torch
from fulmen import _program
from fulmen.torch import _doctor


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["fulmen", "doctor", "--torch", *arguments])
    _program.main()
    return capsys.readouterr().out.splitlines()


def test_the_program_tells_of_each_call(monkeypatch, capsys):
    lines = run(monkeypatch, capsys, "--device", "cpu")
    assert lines[0].startswith(f"torch {torch.__version__} on cpu")
    for call, line in zip(_doctor.CALLS, lines[1:], strict=True):
        assert line.startswith("pass") and call.name in line and "fulmen: cpu." in line, line


def test_wrong_arguments_are_named(monkeypatch, capsys):
    with pytest.raises(SystemExit, match="--device nonsense: torch's cuda"):
        run(monkeypatch, capsys, "--device", "nonsense")
    with pytest.raises(SystemExit):
        run(monkeypatch, capsys, "--x")
    assert "--x" in capsys.readouterr().err


def test_torchs_own_reasons_are_read():
    q = torch.zeros(1, 2, 8, 64)
    (reason,) = _doctor.reasons_against_flash((q, q, q, None, 0.0, False, False))
    # What this torch says of tensors of the CPU, without the place in its sources.
    assert reason.startswith("All tensors need to be on cuda device."), reason
    assert "sdp_utils" not in reason and "function" not in reason, reason


REASON = "Flash attention on gfx1201 is experimental: set TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1"


@pytest.mark.parametrize("rocm", [False, True])
def test_the_silent_math_path_is_told_with_what_to_write(rocm):
    findings = _doctor.examine(
        "cpu", choice=lambda arguments: "math", reasons=lambda arguments: [REASON]
    )
    first = findings[0]._replace(why=REASON)
    text = _doctor.report([first], "cuda", rocm)
    assert text.startswith("warn  causal, 64 dims")
    assert f"not flash: {REASON}" in text and "-> fulmen.torch.enable_sdpa()" in text
    assert ("=1 before Python starts" in text) == rocm
    # Nothing is to be written where Fulmen serves no such call, or torch takes another kernel.
    assert _doctor.report([first._replace(ours="none: no")], "cuda", rocm).startswith("pass")
    assert _doctor.report([first._replace(taken="efficient")], "cuda", rocm).startswith("pass")


def test_a_call_that_torch_refuses_is_told():
    def refuse(arguments):
        raise RuntimeError("no kernel\nand more")

    findings = _doctor.examine("cpu", choice=refuse)
    assert {finding.taken for finding in findings} == {"no kernel"}
