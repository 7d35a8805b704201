import os
from collections.abc import Callable

import numpy as np
import problems
import pytest

# The workers that pytest-xdist starts read it, and tests' programs.
os.environ["FULMEN_TEST_SEED"] = str(problems.SEED)


def pytest_report_header() -> str:
    return f"FULMEN_TEST_SEED={problems.SEED}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = (
        [] if problems.LONG_RUN else [item for item in items if item.get_closest_marker("long")]
    )
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def rng() -> np.random.Generator:
    return problems.generator()


@pytest.fixture
def plans(monkeypatch, capfd) -> Callable[[], list[str]]:
    """The kernels that ran on the CPU since the last call, a line for each pass."""
    monkeypatch.setenv("FLASH_ATTENTION_DEBUG", "1")
    return lambda: [
        line
        for line in capfd.readouterr().err.splitlines()
        if line.startswith("fulmen: ") and " on cpu for " in line
    ]
