"""`python -m fastdllm`, for torchrun."""

from fastdllm.cli import main

main()
