import os
import random
from collections.abc import Callable

import numpy as np
import problems
import pytest

# The workers that pytest-xdist starts read it, and tests' programs.
os.environ["FULMEN_TEST_SEED"] = str(problems.SEED)


def pytest_report_header() -> str:
    return f"FULMEN_TEST_SEED={problems.SEED}"


def drawn(items: list[pytest.Item]) -> set[pytest.Item]:
    """Half of the cases, by the seed, of each test that has four or more."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    found: set[pytest.Item] = set()
    for test, group in cases.items():
        random_of_test = random.Random(f"{problems.SEED} {test}")
        taken = len(group) if len(group) < 4 else len(group) // 2
        found.update(random_of_test.sample(group, taken))
    return found


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    taken = {item for item in items if problems.LONG_RUN or not item.get_closest_marker("long")}
    if problems.SAMPLED_RUN:
        taken = drawn([item for item in items if item in taken])
    if left_out := [item for item in items if item not in taken]:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item in taken]


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
