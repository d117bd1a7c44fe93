"""Worker processes: each carries out one run of a study, or answers a question about runs.

`job` and `launch` start the processes, and `folder` reads their files; none of these imports torch. `run`, `inspection` and `probe` are the
programs of the processes. Designs, comparisons and reports are in `attnkit.ablation`.
"""
