"""One run of a study, or a question about one, in its own process.

`job` and `launch` start such processes, and `folder` reads their files; these import no torch. `run`, `inspection` and `probe` are the
processes. A worker handles a single run: designs, comparisons and reports are in `attnkit.ablation`.
"""

from time import time_ns

BEGAN = time_ns()  # before this process, if it is a worker, imported anything else that takes time
