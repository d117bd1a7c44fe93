"""Queries `nvidia-smi` about this machine's GPUs. No torch."""

import subprocess


def gpus(*fields: str) -> list[list[str]]:
    """Return these fields of each GPU, with sizes in MiB; empty if `nvidia-smi` is missing or fails."""
    question = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(question, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [[word.strip() for word in line.split(",")] for line in answer.splitlines()]
