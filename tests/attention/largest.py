"""Measures the largest tensor of a computation."""

from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


class LargestTensor:
    """Records the size, in float32 numbers, of the largest tensor created by any operation, custom operators included."""

    numel = 0

    def __enter__(self) -> "LargestTensor":
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        # without acc_events, torch 2.11 warns on a GPU that it clears the events of each cycle; here is only one
        self.profile = profile(activities=activities, profile_memory=True, acc_events=True)
        self.profile.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.profile.__exit__(*error)
        self.numel = max(max(event.self_cpu_memory_usage, event.self_device_memory_usage) for event in self.profile.events() or ()) // 4
