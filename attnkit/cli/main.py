"""The `attnkit` command: chooses what to do, and turns mistakes into messages. Imports nothing heavy before it is needed."""

import argparse
import sys
from collections.abc import Callable, Sequence

from attnkit import __version__
from attnkit.registry import ConfigurationError, nearest

Arguments = list[str]


def _run(command: str) -> Callable[[Arguments], int]:
    def carry_out(arguments: Arguments) -> int:
        from attnkit.cli.run import run

        run(command, arguments)
        return 0

    return carry_out


def _list(arguments: Arguments) -> int:
    from attnkit.cli.components import list_components

    parser = _parser("list")
    parser.add_argument("family", nargs="?", help="attention, position, norm, ... (default: all)")
    print(list_components(parser.parse_args(arguments).family))
    return 0


def _describe(arguments: Arguments) -> int:
    from attnkit.cli.components import describe, find_component

    parser = _parser("describe")
    parser.add_argument("name", help="such as additive, or attention.additive")
    print(describe(*find_component(parser.parse_args(arguments).name)))
    return 0


def _check(arguments: Arguments) -> int:
    parser = _parser("check")
    parser.add_argument("names", nargs="*", metavar="NAME", help="such as additive, or attention.additive")
    parser.add_argument("--all", action="store_true", help="every component, plugins included")
    chosen = parser.parse_args(arguments)
    if chosen.all == bool(chosen.names):
        parser.error("give names, or --all")
    from attnkit.cli.check import check

    return 0 if check(chosen.names) else 1


def _generate(arguments: Arguments) -> int:
    parser = _parser("generate")
    parser.add_argument("checkpoint", help="a .ckpt file, or a .safetensors file of `attnkit export`")
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="inputs (default: the lines of stdin)")
    parser.add_argument("--beam_size", type=int, help="1: greedy (default: as trained)")
    parser.add_argument("--max_length", type=int, help="the most tokens that an output may have (default: as trained)")
    chosen = parser.parse_args(arguments)
    from attnkit.cli.generate import generate

    generate(chosen.checkpoint, chosen.texts, beam_size=chosen.beam_size, max_length=chosen.max_length)
    return 0


def _export(arguments: Arguments) -> int:
    parser = _parser("export")
    parser.add_argument("checkpoint", help="a .ckpt file, or the folder of a sharded checkpoint")
    parser.add_argument("--out", required=True, metavar="FILE.safetensors", help="where to write the weights and the spec")
    chosen = parser.parse_args(arguments)
    from attnkit.task.checkpoint import export

    export(chosen.checkpoint, chosen.out)
    print(f"Wrote {chosen.out}")
    return 0


def _schema(arguments: Arguments) -> int:
    _parser("schema").parse_args(arguments)
    from attnkit.cli.schema import recipe_schema

    print(recipe_schema())
    return 0


COMMANDS: dict[str, tuple[str, Callable[[Arguments], int]]] = {
    "fit": ("train a model by a recipe", _run("fit")),
    "validate": ("measure a checkpoint on the validation data", _run("validate")),
    "test": ("measure a checkpoint on the test data", _run("test")),
    "predict": ("print a checkpoint's predictions for the data to predict", _run("predict")),
    "generate": ("text in, text out, from a checkpoint alone", _generate),
    "list": ("the names of all components, or of one family", _list),
    "describe": ("equation, arguments, paper and source of a component", _describe),
    "check": ("run the conformance kit on components", _check),
    "export": ("write a checkpoint's model as safetensors", _export),
    "schema": ("the JSON schema of recipes, for editors", _schema),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the `attnkit` command and return its exit status.

    A mistake prints one message on stderr. The status is 2 if the command or the recipe is wrong, and 1 if a file cannot be read or a
    check failed.

    Args:
        argv: The arguments after `attnkit` (default: those of this process).

    Example:
        >>> main(["--version"])
        attnkit 0.1.0
        0
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    command, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    try:
        if command in ("-h", "--help"):
            print(_overview())
        elif command in ("-V", "--version"):
            print(f"attnkit {__version__}")
        elif command in COMMANDS:
            status = COMMANDS[command][1](rest)
            sys.stdout.flush()
            return status
        else:
            raise ConfigurationError(f"unknown command {command!r}.{nearest(command, COMMANDS)} Commands: {', '.join(COMMANDS)}.")
    except ConfigurationError as error:
        return _report(error, status=2)
    except BrokenPipeError:  # the reader has gone, as in `attnkit list | head -1`
        sys.stderr.close()  # or Python complains at exit that stdout cannot be flushed
        return 1
    except OSError as error:
        return _report(f"{error.filename}: {error.strerror}" if error.filename else error, status=1)
    except KeyboardInterrupt:
        return 130
    except SystemExit as end:  # of argparse, after --help or a wrong usage
        return end.code if isinstance(end.code, int) else 0
    return 0


def _report(message: object, *, status: int) -> int:
    print(f"attnkit: error: {message}", file=sys.stderr)
    return status


def _parser(command: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(prog=f"attnkit {command}", description=COMMANDS[command][0], allow_abbrev=False)


def _overview() -> str:
    lines = "\n".join(f"  {name:<10} {summary}" for name, (summary, _) in COMMANDS.items())
    return f"usage: attnkit COMMAND ...\n\n{lines}\n\nattnkit COMMAND --help says more. attnkit --version prints the version."
