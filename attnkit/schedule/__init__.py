"""Learning-rate schedules."""

from attnkit.schedule.base import Schedule

__all__ = ["Schedule"]
