from collections.abc import Callable

import numpy as np
import problems
import pytest


def pytest_report_header() -> str:
    return f"FULMEN_TEST_SEED={problems.SEED}"


@pytest.fixture
def rng() -> np.random.Generator:
    return problems.generator()


@pytest.fixture
def plans(monkeypatch, capfd) -> Callable[[], list[str]]:
    """What ran on the CPU since the last time that it was asked, a line for each pass."""
    monkeypatch.setenv("FLASH_ATTENTION_DEBUG", "1")
    return lambda: [line for line in capfd.readouterr().err.splitlines() if line.startswith("fulmen: ") and " on cpu for " in line]
