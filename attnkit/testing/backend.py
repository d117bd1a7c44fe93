"""Rules for backends: each agrees with the reference for every score that it supports."""

from unittest import SkipTest

import torch

from attnkit.attention import Attention
from attnkit.registry import Registry, Spec, attentions
from attnkit.testing import attention as rules
from attnkit.testing.component import has_a_running_example, is_documented


def agrees_with_the_reference_on_every_score(registry: Registry, spec: Spec) -> None:
    """Compares values and gradients for each registered attention whose score the backend supports, of which there must be one.

    Skipped, by `unittest.SkipTest`, where the backend cannot compute on a CPU.
    """
    name, _ = registry.split(spec)
    if (reason := registry.build(spec).refuses_device(torch.device("cpu"))) is not None:
        raise SkipTest(reason)
    computed = 0
    for score in attentions.names():
        built: Attention = rules.make(attentions, score)
        if name in built.backends:
            computed += rules.agrees_with_the_reference(attentions, score, name)
    assert computed, f"backend {name} refused every call on this machine, so nothing was tested"


RULES = (is_documented, has_a_running_example, agrees_with_the_reference_on_every_score)
