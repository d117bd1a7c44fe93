"""One run of a study, or a question about one, in a process of its own.

`job` and `launch` begin such processes, and `folder` reads what they leave; these import no torch. `run`, `inspection` and `probe` are the
processes. What is compared with what, and how, is not in here: a worker knows one run.
"""
