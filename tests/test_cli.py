"""The command as a user meets it: a process, its output and its exit code."""

import subprocess
import sys

import pytest


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from fastdllm.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120
    )


def test_demo_prints_the_table() -> None:
    done = run("demo", "--select", "full frechet:0.25", "--sequences", "2", "--length", "12")
    assert done.returncode == 0, done.stderr
    for word in ("full", "frechet:0.25", "tokens/step", "certified", "errors"):
        assert word in done.stdout


def test_rules_lists_every_rule() -> None:
    from fastdllm.selection import RULES

    listed = run("rules").stdout
    assert all(name in listed for name in RULES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("demo", "--select", "frechet:0.25 frechett:0.3"), "did you mean 'frechet'?"),
        (("demo", "--select", "frechet:1.5"), "wanted a number in [0, 1), try 0.99"),
        (("figure", "profil"), "did you mean 'profile'?"),
        (("demo", "--select", ""), "no rule was named"),
        (("demo", "--sequences", "1", "--length", "2", "--seed", "32"), "given as a hint"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.strip().splitlines()) == 1
    assert message in done.stderr


def test_help_and_version_do_not_wait_for_torch() -> None:
    code = (
        "import sys; sys.argv = ['fastdllm', '--help']\n"
        "from fastdllm.cli import main\n"
        "try: main()\n"
        "except SystemExit: assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "demo" in done.stdout
    assert run("--version").stdout.startswith("fastdllm 0.")


def test_figure_is_written(tmp_path) -> None:
    done = run("figure", "profile", "--output", str(tmp_path / "new"))
    assert done.returncode == 0, done.stderr
    names = {path.name: path.stat().st_size for path in (tmp_path / "new").iterdir()}
    assert names.keys() == {"profile.svg", "profile.png"}
    assert min(names.values()) > 5000
