"""Keeps the output of a training run to one message per mistake, without noise."""

import logging
import re
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from lightning.fabric.utilities.exceptions import MisconfigurationException

from attnkit.checkpoint.errors import CheckpointError, misfit
from attnkit.lightning_internals import is_restoring
from attnkit.registry import ConfigurationError, Registry
from attnkit.train.out_of_memory import ADVICE, is_out_of_memory, what_failed

NOISE = (
    r".*isinstance\(treespec, LeafSpec\)",  # Lightning's own use of torch
    r".*does not have many workers",  # loading token ids takes no time
    r".*callbacks used to create the checkpoint need to be provided",  # `best.ckpt` is a model, not a state to resume from
    r"You're resuming from a checkpoint that ended before the epoch ended and your dataloader is not",  # completed batches are skipped
    r".*The dirpath has changed",  # a run started from a checkpoint has its own folder
    r".*Checkpoint directory .* exists and is not empty",  # a resumed run keeps its folder
    r".*AMP with fp16 is not supported on CPU",  # attnkit raises an error instead
    r".*Logging can impact raw speed so it is disabled under this setting",  # `barebones` has already said so
    r".*WeightAveraging callback with a model that overrides",  # every task does
    r".*WeightAveraging callback, but loading a checkpoint outside",  # the weights in a checkpoint are the average
)

UNION = "Does not validate against any of the Union subtypes"
_ITEM = re.compile(r"^ *- (.+(?:\n(?! *- | *Given value).+)*)", re.MULTILINE)  # an error in jsonargparse's list
_UNINFORMATIVE = ("Expected a ", "Not a valid subclass", "Does not validate", "a class path", "a dict ")


def _is_useful(record: logging.LogRecord) -> bool:
    """Return whether a record is neither an advertisement nor the hint to set TF32 in Python code, which recipes do not have."""
    return not any(text in record.getMessage() for text in ("For seamless cloud", "that has Tensor Cores"))


@contextmanager
def quiet(*others: str) -> Iterator[None]:
    """Suppress irrelevant warnings, and those that match `others`, inside the `with` block."""
    with warnings.catch_warnings():
        for message in (*NOISE, *others):
            warnings.filterwarnings("ignore", message=message)
        logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(_is_useful)
        yield


def reasons_in(text: str) -> list[str]:
    """Extract from jsonargparse's message why it rejected a value for a union, skipping the types that were not meant.

    Example:
        >>> errors = "  - Not a valid subclass of Logger\\n  - no server\\n    answers\\n  - Expected a <class 'bool'>"
        >>> reasons_in(f"{UNION}\\nSubtypes: []\\nErrors:\\n{errors}\\nGiven value type: <class 'list'>")
        ['no server\\n    answers']
    """
    return [item for item in _ITEM.findall(text) if not item.startswith(_UNINFORMATIVE)]


@contextmanager
def restoring() -> Iterator[None]:
    """Turn an error that Lightning raises while restoring a checkpoint's state into a `CheckpointError`."""
    try:
        yield
    except Exception as error:  # a malformed state can raise anything; the types below already explain themselves
        if isinstance(error, ConfigurationError | OSError | MemoryError) or not is_restoring(error):
            raise
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
        raise CheckpointError(f"the state in the checkpoint cannot be restored ({reason}): use an earlier checkpoint") from error


@contextmanager
def one_message() -> Iterator[None]:
    """Turn late errors caused by the recipe into a `ConfigurationError`, out-of-memory errors into a `MemoryError`, ..."""
    try:
        yield
    except MisconfigurationException as error:
        if str(error).startswith("No supported gpu backend"):
            raise ConfigurationError(
                "trainer.accelerator is gpu, but torch finds no GPU: set it to auto or cpu, or install a CUDA build of torch"
            ) from error
        raise ConfigurationError(str(error)) from error
    except ValueError as error:
        if str(error).startswith(UNION) and (reasons := reasons_in(str(error))):
            raise ConfigurationError(f"trainer: {reasons[0]}") from error  # a class in the trainer section, such as a logger
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        if not isinstance(error, ConfigurationError) and _is_of_trainer([str(frame.f_globals.get("__name__")) for frame in frames]):
            raise ConfigurationError(f"trainer: {' '.join(str(error).split())}") from error
        if isinstance(error, ConfigurationError) or all(frame.f_code is not Registry.build.__code__ for frame in frames):
            raise
        raise ConfigurationError(str(error)) from error  # a component rejected its arguments
    except AttributeError as error:
        if not str(error).startswith("When using the learning rate finder"):
            raise
        raise ConfigurationError(
            "trainer.callbacks: LearningRateFinder sets the attribute `lr` or `learning_rate` of a module or its hyperparameters, but "
            "this one has neither. Remove the callback and set the learning rate yourself; for attnkit's tasks it is model.optimizer.lr"
        ) from error
    except ModuleNotFoundError as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if not frame.f_globals["__name__"].startswith("lightning."):
            raise
        raise ConfigurationError(f"trainer: {' '.join(str(error).split())}") from error  # a callback or logger needs a package
    except (ConnectionError, EOFError) as error:
        names = [frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(error.__traceback__)]
        if "torch.multiprocessing.reductions" not in names:
            raise
        raise _dead_worker(error) from error  # while a batch was passed on
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise MemoryError(f"{what_failed(error)}. {ADVICE}") from error
        if str(error).startswith("DataLoader worker (pid"):
            raise _dead_worker(error) from error
        if "Early stopping conditioned on metric" in str(error):
            raise ConfigurationError(f"trainer.callbacks: {error}") from error
        if "loading state_dict" not in str(error):
            raise
        raise ConfigurationError(f"the weights in the checkpoint do not fit this model: {misfit(error)}") from error


def _is_of_trainer(modules: Sequence[str]) -> bool:
    """Return whether an error that passed through these modules is Lightning's own, such as about conflicting settings.

    Example:
        >>> _is_of_trainer(["__main__", "lightning.pytorch.trainer.trainer", "lightning.pytorch.loops.fit_loop"])
        True
        >>> _is_of_trainer(["__main__", "lightning.pytorch.trainer.trainer", "my_project", "lightning.pytorch.core.module"])
        False
    """
    trainer = "lightning.pytorch.trainer.trainer"
    inside = modules[modules.index(trainer) :] if trainer in modules else ()
    return bool(inside) and inside[-1].startswith("lightning.") and all(m.startswith(("lightning.", "attnkit.")) for m in inside)


def _dead_worker(error: BaseException) -> ChildProcessError:
    reason = str(error).rstrip(" .") or type(error).__name__
    return ChildProcessError(
        f"a process that loads batches died ({reason}), most often because memory ran out: lower data.num_workers (0 loads them in the "
        f"main process)"
    )
