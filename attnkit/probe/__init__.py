"""Probes: what a model does, as numbers, for any task and any composition. Names: `attnkit.probes.names()`."""

from attnkit.probe.base import Findings, Probe

__all__ = ["Findings", "Probe"]
