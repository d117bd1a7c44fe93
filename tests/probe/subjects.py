"""Models to probe, with their data."""

import torch

from attnkit.registry import datasets, probes, tasks

ROWS = {"train_rows": 32, "validation_rows": 16, "test_rows": 16}
COPY = {"name": "copy", "length": 4, "distance": 1, "vocabulary": 5, **ROWS}
DECODER = {"name": "decoder", "num_heads": 2}
PROMPTED = {"name": "prompted_text", "corpus": COPY, "tokenizer": "word", "batch_tokens": 200}
PAIRS = {"name": "text_pairs", "corpus": COPY, "src_tokenizer": "word", "tgt_tokenizer": "word", "batch_tokens": 200}


def subject(stack, *, task="causal_lm", data=PROMPTED, width=16, layers=1, **arguments):
    """Return a new task and its data."""
    module = datasets.build(data)
    given = {key: getattr(module, attribute) for key, attribute in tasks.from_data(task).items()}
    torch.manual_seed(0)
    spec = {"name": task, "stack": {"d_model": width, "num_layers": layers, **stack}, **given, **arguments}
    return tasks.build(spec), module


def ask(spec, task, data=None):
    return probes.build(spec)(task, data).rows


SUBJECTS = {
    "decoder": lambda: subject(DECODER, layers=2),
    "lstm": lambda: subject({"name": "recurrent_decoder", "cell": "lstm"}, layers=2),
    "encoder_decoder": lambda: subject({"name": "encoder_decoder", "num_heads": 2}, task="seq2seq", data=PAIRS, metrics=[]),
    "shared": lambda: subject(
        {**DECODER, "layers": [{"share": True}], "residual": "hyper_connections"}, layers=3, multi_token="independent"
    ),
    "side_by_side": lambda: subject({**DECODER, "mixer": {"name": "parallel", "mixers": ["multi_head", "multi_head"]}}, layers=2),
    "attentive_gru": lambda: subject(
        {"name": "recurrent_encoder_decoder", "cell": "gru", "attention": "additive"}, task="seq2seq", data=PAIRS, metrics=[]
    ),
}
INAPPLICABLE = {("lstm", "heads"), ("lstm", "saturation"), ("lstm", "rollout"), ("attentive_gru", "rollout")}
INAPPLICABLE |= {("shared", "rollout"), ("side_by_side", "rollout")}
QUICK = {"cost": {"lengths": [4, 8], "repeats": 1}, "recall": {"distances": [0, 2]}, "gradient": {"length": 9}}
