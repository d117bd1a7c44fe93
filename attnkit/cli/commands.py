"""The commands of `attnkit` and their arguments. Heavy modules are imported only when a command is carried out."""

import atexit
import gc
import io
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from importlib import import_module
from typing import Any

from typing_extensions import override

from attnkit.cli.kept import kept
from attnkit.cli.suggesting import SuggestingParser, seed
from attnkit.registry import IMPORTS, ConfigurationError, import_modules

Arguments = list[str]

ON_GPU = "It uses a CUDA GPU if there is one; CUDA_VISIBLE_DEVICES= hides it."
# options of `attnkit generate` for the fields of attnkit.decoding.Generation
GENERATION: tuple[tuple[str, type, str], ...] = (
    ("max_length", int, "maximum number of tokens of an output (default: as trained)"),
    ("min_length", int, "minimum number of tokens of an output (default: 0)"),
    ("beam_size", int, "number of beams; 1: greedy decoding (default: as trained)"),
    ("length_penalty", float, "exponent of the length by which a beam's log-probability is divided (default: as trained)"),
    ("temperature", float, "sample each token; 1: from the model's distribution, below 1: more conservatively (default: no sampling)"),
    ("top_k", int, "sample only from the N most probable tokens"),
    ("top_p", float, "sample only from the most probable tokens whose total probability reaches X"),
    ("repetition_penalty", float, "above 1: repeat less (default: 1)"),
    ("seed", int, "make sampling reproducible; text i is sampled with the seed N + i"),
)


def _run(command: str) -> Callable[[Arguments], None]:
    def carry_out(arguments: Arguments) -> None:
        from attnkit.cli.help import overview, trainer_overview

        if {"-h", "--help"} & set(arguments):
            print(overview(command))
        elif "--trainer.help" in arguments:
            print(kept("trainer", trainer_overview))
        else:
            from attnkit.cli.arguments import read_arguments

            request = read_arguments(arguments)
            if request.help_of is not None:
                from attnkit.cli.help import describe_slot

                print(describe_slot(request))
            else:
                is_first = "attnkit.train.run" not in sys.modules
                gc.disable()  # modules stay: collecting garbage among their million objects takes a fifth of start-up and exit
                from attnkit.train.run import carry_out

                gc.enable()
                if is_first:
                    gc.freeze()
                    atexit.register(_unfreeze_triton)
                carry_out(command, request)

    return carry_out


def _unfreeze_triton() -> None:
    if "triton" in sys.modules:  # its nanobind bindings report uncollected objects at exit as leaks
        gc.unfreeze()


def _list(arguments: Arguments) -> None:
    from attnkit.cli.components import list_components

    parser = _Parser("list")
    parser.add_argument("family", nargs="?", help="attention, position, norm, ... (default: all)")
    print(list_components(parser.parse_args(arguments).family))


def _describe(arguments: Arguments) -> None:
    from attnkit.cli.components import describe, find_component

    parser = _Parser("describe")
    parser.add_argument("name", help="such as additive, or attention.additive")
    print(describe(*find_component(parser.parse_args(arguments).name)))


def _check(arguments: Arguments) -> int:
    parser = _Parser("check")
    parser.add_argument("names", nargs="*", metavar="NAME", help="such as additive, or attention.additive")
    parser.add_argument("--all", action="store_true", help="every component, plugins included, and all combinations of them in stacks")
    parser.add_argument(
        "--docs", action="store_true", help="check the documentation instead: equation, paper, arguments, a running example"
    )
    chosen = parser.parse_args(arguments)
    if chosen.all == bool(chosen.names):
        parser.error("give names, or --all")
    from attnkit.cli.check import check

    return 0 if check(chosen.names, docs=chosen.docs) else 1


def _generate(arguments: Arguments) -> None:
    parser = _Parser("generate")
    parser.add_argument("checkpoint", help="a .ckpt file, or a .safetensors file of `attnkit export`")
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="inputs (default: the lines of stdin)")
    for name, kind, meaning in GENERATION:
        parser.add_argument(f"--{name}", type=kind, metavar="N" if kind is int else "X", help=meaning)
    parser.add_argument("--n_best", type=int, metavar="N", help="print the N best outputs of each text, each after its score and a tab")
    parser.add_argument("--stream", action="store_true", help="print each output as it is generated")
    parser.add_argument("--out", metavar="FILE", help="write the outputs to this file, which is created only when complete")
    parser.epilog = ON_GPU
    chosen = parser.parse_args(arguments)
    options: Any = {name: value for name, *_ in GENERATION if (value := getattr(chosen, name)) is not None}
    from attnkit.cli.generate import generate

    generate(chosen.checkpoint, chosen.texts, options, n_best=chosen.n_best, stream=chosen.stream, out=chosen.out)


def _attention(arguments: Arguments) -> None:
    parser = _Parser("attention")
    meaning = "a .ckpt or .safetensors file; a page shows several side by side"
    parser.add_argument("checkpoints", nargs="+", metavar="CHECKPOINT", help=meaning)
    parser.add_argument("--text", required=True, help="the input of the model")
    parser.add_argument("--target", help="the target (default: the generated one), or for a language model the continuation of the text")
    parser.add_argument("--out", required=True, metavar="FILE", help="map.html (interactive), map.png or map.svg")
    parser.add_argument("--kind", choices=["self", "cross", "all"], default="all", help="the kind of attention (default: all)")
    parser.add_argument("--layer", dest="layers", type=int, nargs="+", metavar="N", help="layers, from 0 (default: all)")
    parser.add_argument("--head", dest="heads", type=int, nargs="+", metavar="N", help="heads, from 0 (default: all)")
    parser.add_argument("--beam_size", type=int, help="number of beams; 1: greedy decoding (default: as trained)")
    chosen = parser.options(arguments)
    from attnkit.cli.attention import attention

    attention(**chosen)


def _draw(arguments: Arguments) -> None:
    from attnkit.cli.draw_options import add_kinds

    parser = _Parser("draw")
    add_kinds(parser)
    chosen = parser.options(arguments)
    from attnkit.cli.draw import draw

    draw(**chosen)


def _probe(arguments: Arguments) -> None:
    parser = _Parser("probe")
    parser.add_argument("name", help="see `attnkit list probes`; `attnkit describe probe.NAME` shows its arguments")
    parser.add_argument("subject", help="a .ckpt or .safetensors file, or a recipe, whose model is untrained")
    parser.add_argument("--out", action="append", default=[], metavar="FILE", help="also write a figure (.svg) or the plain data (.json)")
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="seed of the weights of an untrained model (default: 0)")
    parser.epilog = f"Arguments of the probe follow as --KEY VALUE, and changes to the recipe as --model... and --data... {ON_GPU}"
    chosen, rest = parser.parse_known_args(arguments)
    import_modules(chosen.imports)
    from attnkit.cli.probe import probe

    probe(chosen.name, chosen.subject, rest, out=chosen.out, seed=chosen.seed)


def _new(arguments: Arguments) -> None:
    parser = _Parser("new")
    parser.add_argument("kind", choices=["translation", "language_model", "classification", "regression"], help="what the model learns")
    parser.add_argument("--train", required=True, metavar="FILE", help="pairs or labelled texts (.tsv, .csv, .jsonl, .parquet), or a text")
    parser.add_argument("--validation", metavar="FILE", help="the same for validation (default: a part of the training rows)")
    parser.add_argument(
        "--columns", nargs=2, default=[], metavar="COLUMN", help="names, or numbers from 0 in a table without a header line"
    )
    parser.add_argument("--out", metavar="FILE.yaml", help="the recipe to write (default: KIND.yaml)")
    chosen = parser.options(arguments)
    from attnkit.cli.new import new

    new(**chosen)


def _export(arguments: Arguments) -> None:
    parser = _Parser("export")
    parser.add_argument("checkpoint", help="a .ckpt file, or the folder of a sharded checkpoint; for transformers also a .safetensors file")
    parser.add_argument("--out", required=True, metavar="PATH", help="model.safetensors: weights and spec; vectors.txt, .vec: word vectors")
    parser.add_argument("--format", choices=["transformers"], help="write a language model as a folder for transformers, vLLM, ...")
    parser.add_argument("--model_type", metavar="TYPE", help="with --format: llama, ... (default: the first that can express the model)")
    parser.add_argument("--context", type=int, metavar="N", help="with --format: how many tokens the model reads (default: as trained)")
    chosen = parser.parse_args(arguments)
    if chosen.format is not None:
        from attnkit.cli.export_model import export_model

        export_model(chosen.checkpoint, chosen.out, model_type=chosen.model_type, context=chosen.context)
        return
    if chosen.model_type is not None or chosen.context is not None:
        parser.error("--model_type and --context need --format transformers")
    if chosen.out.endswith((".txt", ".vec")):
        from attnkit.task.words import export_vectors

        print(export_vectors(chosen.checkpoint, chosen.out))
        return
    from attnkit.checkpoint import export

    is_average = export(chosen.checkpoint, chosen.out)
    print(f"Wrote {chosen.out}{' (averaged weights)' if is_average else ''}")


def _import(arguments: Arguments) -> None:
    parser = _Parser("import")
    parser.add_argument("folder", help="config.json, model.safetensors and tokenizer.json, as transformers' save_pretrained writes them")
    parser.add_argument(
        "--out", required=True, metavar="FILE", help="model.safetensors: a causal_lm, for generate, attention, probe, init_from"
    )
    chosen = parser.parse_args(arguments)
    from attnkit.cli.import_model import import_model

    import_model(chosen.folder, chosen.out)


def _schema(arguments: Arguments) -> None:
    parser = _Parser("schema")
    parser.add_argument("--study", action="store_true", help="print the schema of study files, for attnkit ablate, instead")
    chosen = parser.parse_args(arguments)
    if chosen.study:
        from attnkit.cli.study_schema import study_schema

        print(study_schema())
    else:
        print(_recipe_schema(imports=chosen.imports))


def _recipe_schema(*, imports: Sequence[str] = ()) -> str:
    def make() -> str:
        from attnkit.cli.schema import recipe_schema

        return recipe_schema()

    return make() if imports else kept("schema", make)  # the imported modules may change


def _completion(arguments: Arguments) -> None:
    from attnkit.cli.completion import SCRIPTS, candidates

    if arguments[:1] == ["answer"]:
        print("\n".join(candidates(arguments[1:], commands=COMMANDS, help_of=help_of, schema=_recipe_schema)))
        return
    parser = _Parser("completion")
    parser.add_argument("shell", choices=SCRIPTS, help='in ~/.bashrc: eval "$(attnkit completion bash)"; fish: ... | source')
    print(SCRIPTS[parser.parse_args(arguments).shell], end="")


def help_of(words: Sequence[str]) -> str:
    """Return the output of `attnkit WORDS --help`, empty for an unknown command."""
    command, *rest = words
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()), suppress(SystemExit, ConfigurationError):
        if command in COMMANDS:
            COMMANDS[command][1]([*rest, "--help"])
    return out.getvalue()


class _Parser(SuggestingParser):
    """Parser of a command that looks up names; imports the modules of `--imports` first."""

    def __init__(self, command: str) -> None:
        super().__init__(prog=f"attnkit {command}", description=COMMANDS[command][0], allow_abbrev=False)
        self.add_argument(
            f"--{IMPORTS}",
            action="append",
            default=[],
            metavar="MODULE",
            help="import this module first; it registers components, or defines the classes that class paths name",
        )

    @override
    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        chosen = super().parse_args(args, namespace)
        import_modules(chosen.imports)
        return chosen

    def options(self, arguments: Arguments) -> dict[str, Any]:
        """Return the parsed options as keyword arguments for the command's function."""
        return {name: value for name, value in vars(self.parse_args(arguments)).items() if name != IMPORTS}


COMMANDS: dict[str, tuple[str, Callable[[Arguments], int | None]]] = {
    "new": ("inspect your own file, and write a recipe that trains on it", _new),
    "fit": ("train a model from a recipe", _run("fit")),
    "validate": ("evaluate a checkpoint on the validation data", _run("validate")),
    "test": ("evaluate a checkpoint on the test data", _run("test")),
    "predict": ("print a checkpoint's predictions for new inputs", _run("predict")),
    "generate": ("generate text from input texts, using only a checkpoint", _generate),
    "attention": ("draw the attention of a checkpoint for a text", _attention),
    "probe": ("run a diagnostic on the model of a checkpoint or a recipe, such as how far its gradients reach", _probe),
    "draw": ("draw a position encoding, a mask, a score, or a step of decoding", _draw),
    "plan": (
        "estimate a recipe's memory and step time on a number of GPUs, and its bottleneck",
        lambda words: import_module("attnkit.cli.plan").plan(words),
    ),
    "bench": (
        "time models (your own and others') in alternation, or measure the peak rates of this machine, for plan",
        lambda words: import_module("attnkit.cli.bench").bench(words),
    ),
    "ablate": ("plan, run and report ablation studies", lambda words: import_module("attnkit.cli.ablate").ablate(words)),
    "list": ("list the names of all components, or of one family", _list),
    "describe": ("show the equation, cost, arguments, paper and source of a component, and an example", _describe),
    "check": ("run the conformance kit on components", _check),
    "export": ("write a checkpoint's model as safetensors or for transformers, or its word vectors as text", _export),
    "import": ("convert a published model of transformers, such as Llama or Qwen3", _import),
    "schema": ("print the JSON schema of recipes or studies, for editors", _schema),
    "completion": ("print the shell script that completes commands, names, keys and recipes", _completion),
}
