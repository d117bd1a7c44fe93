"""The device of commands that have no trainer."""

import torch


def best_device() -> torch.device:
    """Return the first CUDA GPU, or the CPU if there is none. An empty `CUDA_VISIBLE_DEVICES` hides all GPUs.

    Example:
        >>> best_device().type in ("cuda", "cpu")
        True
    """
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
