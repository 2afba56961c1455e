"""How much memory a call takes beyond its arguments."""

from collections.abc import Callable

import torch


def peak_bytes(function: Callable[[], object]) -> int:
    """The most that was allocated on the CPU at once, as torch's own profiler saw it."""
    function()  # so that nothing is counted that only the first call makes
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profiler:
        function()
    inner = profiler.profiler
    assert inner is not None
    events = [e for e in inner.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak
