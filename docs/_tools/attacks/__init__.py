"""The attacks of `docs/_tools/reliability.py`."""
