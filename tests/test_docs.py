"""The docs say what is true: examples run, names exist, commands are there."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import fastdllm

ROOT = Path(__file__).parent.parent
MODULES = [
    info.name
    for info in pkgutil.walk_packages(fastdllm.__path__, "fastdllm.")
    if info.name != "fastdllm.kernel"  # needs Triton
]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_every_certificate_function_has_an_example() -> None:
    from fastdllm import certificate

    helpers = {"check_probabilities", "check_like"}
    for name, function in vars(certificate).items():
        ours = getattr(function, "__module__", "") == certificate.__name__
        if ours and not name.startswith("_") and name not in helpers:
            assert ">>>" in function.__doc__, name


@pytest.mark.parametrize("page", ["README.md", "docs/theory.md"])
def test_python_blocks_run(page: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    scope: dict = {}
    for block in blocks:
        exec(compile(block, page, "exec"), scope)
    assert blocks or page != "README.md"


def test_theory_names_functions_and_tests_that_exist() -> None:
    text = (ROOT / "docs/theory.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and "`test_" in line]
    assert len(rows) >= 12
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").glob("test_*.py"))
    for row in rows:
        for name in re.findall(r"`(test_\w+)`", row):
            assert f"def {name}(" in sources, name
        for name in re.findall(r"`(\w+\.\w+)`", row):
            module, attribute = name.split(".")
            assert hasattr(importlib.import_module(f"fastdllm.{module}"), attribute), name


def test_all_names_are_public() -> None:
    for name in fastdllm.__all__:
        assert getattr(fastdllm, name) is not None
    with pytest.raises(AttributeError):
        fastdllm.Frechett  # noqa: B018


def test_make_targets_exist() -> None:
    text = (ROOT / "Makefile").read_text()
    for page in ("README.md", "CONTRIBUTING.md"):
        for target in re.findall(r"(?m)(?:^|`)make ([a-z-]+)", (ROOT / page).read_text()):
            assert re.search(rf"^{target}:", text, re.MULTILINE), f"{page}: make {target}"
