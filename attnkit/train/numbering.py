"""The number of a process among those of its run. No torch."""

import os

from attnkit.registry import ConfigurationError

RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")
"""The environment variables from which Lightning reads the number of a process: the first that is set."""

LAUNCHED = (*RANKS, "SLURM_NTASKS", "TORCHELASTIC_RUN_ID", "LSB_JOBID")
"""These, and those from which Lightning concludes that a launcher has numbered the process: with only the latter, it fails."""


def refuse_foreign_rank(rank: int, *, processes: int) -> None:
    """Raise a `ConfigurationError` if a run has one process, but the environment numbers it as another than the first.

    It would train without logs, and write into the folder `version_0`, which may hold another run.
    """
    if rank and processes == 1:
        found = [name for name in RANKS if name in os.environ] or [RANKS[0]]
        raise ConfigurationError(
            f"this run has a single process, but {found[0]}={rank} in the environment numbers it as one of several: start it with "
            f"`env {' '.join(f'-u {name}' for name in found)} ...`, or give trainer.devices and trainer.num_nodes the number of all"
        )
