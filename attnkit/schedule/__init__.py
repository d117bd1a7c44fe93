"""Schedules of the learning rate."""

from attnkit.schedule.base import Schedule

__all__ = ["Schedule"]
