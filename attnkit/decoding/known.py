"""Which models keep nothing but their state between steps, so that repeating the calls of one step takes the next."""

from typing import Any

from torch import Tensor, nn

from attnkit.registry import backends

HOMES = {"attnkit", "builtins", "collections", "functools", "torch"}
PLAIN = {bool, dict, float, int, list, set, str, tuple, type(None)}


def is_known(model: Any) -> bool:
    """Return whether a model is made of attnkit's and torch's own modules, backends and functions, none of them replaced or compiled.

    Other code may count its calls, draw numbers in Python or fill a cache, which the calls of a single step do not show. So steps with a
    plugin's components are not repeated from a list of calls, unless their classes declare `repeatable = True`; nor are compiled models,
    which would be compiled again to be recorded.

    Example:
        >>> import attnkit
        >>> model = attnkit.compose(stack="decoder", d_model=16, num_layers=2, num_heads=2, vocab_size=20)
        >>> is_known(model), is_known(lambda tokens, state: (tokens, state))
        (True, False)
    """
    if not isinstance(model, nn.Module) or set(backends.names()) - backends.built_in():
        return False
    return all(map(_is_known, model.modules()))


def is_repeatable(module: nn.Module) -> bool:
    """Return whether a module's class is attnkit's or torch's, or declares `repeatable = True` itself (subclasses do not inherit it)."""
    owner = type(module)
    return owner.__module__.startswith(("attnkit.", "torch.nn.")) or vars(owner).get("repeatable") is True


def _is_known(module: nn.Module) -> bool:
    owner = type(module)
    if not is_repeatable(module) or module._compiled_call_impl is not None:
        return False
    tensors = (*module._parameters.values(), *module._buffers.values())
    if any(tensor is not None and type(tensor) not in (Tensor, nn.Parameter) for tensor in tensors):
        return False
    return not any(type(value) not in PLAIN and _is_foreign(owner, name, value) for name, value in vars(module).items())


def _is_foreign(owner: type, name: str, value: Any) -> bool:
    """Return whether an attribute of a module replaces one of its class, is compiled, or comes from another package."""
    if not callable(value):
        return type(value).__module__.partition(".")[0] not in HOMES
    home = getattr(value, "__module__", None) or type(value).__module__
    return hasattr(owner, name) or hasattr(value, "_torchdynamo_orig_callable") or home.partition(".")[0] not in HOMES
