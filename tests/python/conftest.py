import numpy as np
import problems
import pytest


def pytest_report_header() -> str:
    return f"FULMEN_TEST_SEED={problems.SEED}"


@pytest.fixture
def rng() -> np.random.Generator:
    return problems.generator()
