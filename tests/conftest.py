"""Shapes are checked while tests run: every annotated function of the package, by jaxtyping."""

import os

import jaxtyping
import pytest
from hypothesis import settings

os.environ.setdefault("TRITON_INTERPRET", "1")  # before the kernel is first imported
jaxtyping.install_import_hook("fastdllm", "checker.check")

# The same examples in every run: a failure in CI is a failure here.
settings.register_profile("fastdllm", deadline=None, derandomize=True, max_examples=200)
settings.load_profile("fastdllm")


@pytest.fixture
def unchecked():
    """As a user runs it, without the shape checks: for tests of our own words on bad input."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
