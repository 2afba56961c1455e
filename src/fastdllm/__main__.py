"""`python -m fastdllm`, for torchrun."""

from fastdllm.cli import main

if __name__ == "__main__":
    main()
