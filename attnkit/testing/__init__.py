"""The conformance kit: the rules that every component must satisfy, as checks for any registered name, including those of plugins.

From the command line, `attnkit check gaussian`. From pytest, one decorator:

    import attnkit.testing

    @attnkit.testing.parametrize("attentions", "gaussian")
    def test_conformance(check):
        check()

From Python, a check is a function that raises AssertionError, with the seed that reproduces it:

    for check in attnkit.testing.checks_for("attentions", "gaussian"):
        check()

To check a component with required arguments, pass its spec, as in `checks_for("attentions", {"name": "gaussian", "width": 2.0})`.
"""

from attnkit.testing.kit import Check, checks_for, parametrize

__all__ = ["Check", "checks_for", "parametrize"]
