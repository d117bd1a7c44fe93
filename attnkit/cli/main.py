"""The `attnkit` command: dispatches to the subcommands and turns errors into messages and exit statuses."""

import sys
from collections.abc import Callable, Sequence

from attnkit import __version__
from attnkit.cli.commands import COMMANDS
from attnkit.registry import ConfigurationError, nearest
from attnkit.train.encoding import escape_unprintable
from attnkit.train.out_of_memory import is_out_of_memory, what_failed

PRINTS_DATA = ("generate", "predict")  # commands whose output must not change


def main(argv: Sequence[str] | None = None) -> int:
    """Run the `attnkit` command, with the arguments after it (default: those of this process), and return its exit status.

    An error prints one message on stderr. The status is 2 if the command or the recipe is wrong, or the run's folder belongs to a running
    process; 1 if a file cannot be read or written, memory ran out, a check failed, or one of several processes died; 3 if training was
    stopped because its loss, a gradient or a parameter was not finite, or because it diverged; 130, 143 or 138 if it was stopped by SIGINT,
    SIGTERM or, in a job of SLURM, SIGUSR1.

    Example:
        >>> main(["--version"])
        attnkit 0.1.0
        0
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    command, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])

    def carry_out() -> int:
        if command in ("-h", "--help"):
            print(_overview())
        elif command in ("-V", "--version"):
            print(f"attnkit {__version__}")
        elif command in COMMANDS:
            if command not in PRINTS_DATA:
                escape_unprintable()
            return COMMANDS[command][1](rest) or 0
        else:
            raise ConfigurationError(f"unknown command {command!r}.{nearest(command, COMMANDS)} Commands: {', '.join(COMMANDS)}.")
        return 0

    return exit_status(carry_out)


def exit_status(carry_out: Callable[[], int | None]) -> int:
    """Call `carry_out` and return its result, 0 for None; an error prints one message and returns its own status, see `main`."""
    try:
        status = carry_out() or 0
        if sys.stdout is not None:  # None if it was closed, as by `>&-`
            sys.stdout.flush()
        return status
    except ConfigurationError as error:
        return _report(error, status=2)
    except BrokenPipeError:  # the reader closed the pipe, as in `attnkit list | head -1`
        sys.stderr.close()  # else Python complains at exit that it cannot flush stdout
        return 1
    except OSError as error:
        return _report(f"{error.filename}: {error.strerror}" if error.filename else error, status=1)
    except UnicodeEncodeError as error:
        lacking = error.object[error.start : error.start + 1]
        if error.encoding == "utf-8":  # a lone surrogate, which may stand for a byte of an argument
            if not any(lacking in word for word in sys.argv):
                raise
            encoding = sys.getfilesystemencoding()
            advice = "rename the file" if encoding == "utf-8" else "set PYTHONUTF8=1, or rename the file"
            return _report(f"an argument is not text in {encoding}, the encoding of this locale: {advice}", status=2)
        return _report(
            f"the output's encoding, {error.encoding}, lacks {lacking!a}: set PYTHONIOENCODING=utf-8, or use --out FILE", status=1
        )
    except MemoryError as error:
        return _report(str(error) or "out of memory", status=1)
    except RuntimeError as error:
        if "operator torchvision::" in str(error):  # Lightning imports it through torchmetrics if it is installed
            return _report(
                f"the installed torchvision cannot be imported ({error}): it was built for another torch. Install the one built for "
                "this torch, or uninstall it: only transforms of `augmentation` need it",
                status=2,
            )
        if not is_out_of_memory(error):
            raise
        return _report(what_failed(error), status=1)
    except KeyboardInterrupt:
        return 130
    except SystemExit as end:  # from argparse, after --help or wrong usage
        return end.code if isinstance(end.code, int) else 0


def _report(message: object, *, status: int) -> int:
    print(f"attnkit: error: {message}", file=sys.stderr)
    return status


def _overview() -> str:
    lines = "\n".join(f"  {name:<10} {summary}" for name, (summary, _) in COMMANDS.items())
    return f"usage: attnkit COMMAND ...\n\n{lines}\n\nattnkit COMMAND --help shows its options. attnkit --version prints the version."
