"""`import attnkit` sets limits of the allocator, so that the memory of a training does not grow with every shape of a batch."""

import os
import subprocess
import sys

import pytest

NAMES = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")
# 200 shapes through a map that oneDNN computes on every x86 CPU. A primitive takes a third of a MB or more, so 200 of them over 60 MB;
# 32 of each kind were made before the measurement begins, and replace each other; tensors, of half a MB at the most, are freed.
GROWTH = """
import attnkit, resource, torch
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 1e6
weight = torch.ones(512, 128)
def step(rows):
    torch.ops.mkldnn._linear_pointwise(torch.ones(rows, 128), weight, None, "none", [], "")
for rows in range(1, 40):
    step(rows)
began = resident()
for rows in range(40, 240):
    step(rows)
print(resident() - began)
"""


def python(code: str, **variables: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k not in NAMES} | variables
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True).stdout.strip()


def test_onednn_caches_are_small_unless_the_user_overrides_them() -> None:
    code = f"import attnkit, os, sys; print(*(os.environ[n] for n in {NAMES}), 'torch' in sys.modules)"
    assert python(code) == "32 32 False"
    assert python(code, LRU_CACHE_CAPACITY="100") == "100 32 False"


@pytest.mark.skipif(sys.platform != "linux" or os.uname().machine != "x86_64", reason="reads /proc, and needs oneDNN")
def test_memory_does_not_grow_with_new_batch_shapes() -> None:
    bounded, unbounded = (float(python(GROWTH, **variables)) for variables in ({}, dict.fromkeys(NAMES, "1024")))
    assert bounded < 20 < 60 < unbounded
