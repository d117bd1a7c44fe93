"""The registries of attnkit, and the annotations of the slots for their components."""

from typing import Annotated

from attnkit.registry.arguments import NameOf
from attnkit.registry.base import Registry, Spec
from attnkit.registry.specialized import Corpora, LayerKinds, TorchOptimizers

# A new module must be listed here: a test compares these names with the files.
attentions = Registry(
    "attentions", family="attention", bases=("attnkit.attention.Attention",), given=("head_dim", "num_heads", "num_kv_heads"),
    built_in=("additive", "cosine", "dot_product", "general", "scaled_dot_product"),
)  # fmt: skip
normalizers = Registry(
    "normalizers", family="normalizer", bases=("attnkit.normalizer.Normalizer",), given=("num_heads",),
    built_in=("entmax", "sigmoid", "softmax", "softmax_off_by_one", "softmax_with_sink"),
)  # fmt: skip
backends = Registry(
    "backends", family="backend", package="attnkit.attention.backend", bases=("attnkit.attention.backend.Backend",),
    built_in=("additive_compiled", "additive_eager", "additive_triton", "blockwise", "chunked", "flex", "reference", "sdpa", "tiled"),
)  # fmt: skip
mixers = Registry(
    "mixers", family="mixer", bases=("attnkit.mixer.Mixer",),
    given=(
        "d_model", "direction", "num_heads", "num_kv_heads", "head_dim", "attention", "query_key_norm", "attention_dropout", "bias",
        "window", "backend", "dropout",
    ),
    built_in=(
        "convolution", "delta_rule", "fourier", "gated_delta", "gated_linear_attention", "gru", "latent_attention", "linear_attention",
        "lstm", "mlstm", "multi_head", "none", "parallel", "retention", "rg_lru", "rnn", "rwkv", "rwkv7", "rwkv_channel",
        "selective_state_space", "slstm", "state_space",
    ),
)  # fmt: skip
positions = Registry(
    "positions", family="position", bases=("attnkit.position.Position",), given=("d_model", "head_dim", "num_heads", "bidirectional"),
    built_in=("alibi", "cope", "fire", "kerple", "learned", "none", "relative", "rotary", "shaw", "sinusoidal", "xpos"),
)  # fmt: skip
rotary_scalings = Registry(
    "rotary_scalings", family="rotary_scaling", package="attnkit.position.scaling", bases=("attnkit.position.scaling.Scaling",),
    built_in=("linear", "llama3", "longrope", "ntk", "proportional", "yarn"),
)  # fmt: skip
norms = Registry(
    "norms", family="norm", bases=("attnkit.norm.base.Norm",), given=("d_model",),
    built_in=("dynamic_tanh", "layer_norm", "none", "rms_norm"),
)  # fmt: skip
feed_forwards = Registry(
    "feed_forwards", family="feed_forward", bases=("attnkit.feed_forward.FeedForward",), given=("d_model",),
    built_in=("glu", "mixture_of_experts", "mlp", "none"),
)  # fmt: skip
residuals = Registry(
    "residuals", family="residual", bases=("attnkit.residual.Residual",), given=("make_norm", "dropout", "d_model", "sublayer"),
    built_in=(
        "deep_norm", "hyper_connections", "layer_scale", "manifold_hyper_connections", "none", "output_norm", "parallel", "post_norm",
        "pre_norm", "rezero", "sandwich_norm",
    ),
)  # fmt: skip
embeddings = Registry(
    "embeddings", family="embedding", bases=("attnkit.embedding.Embedding",),
    given=("vocab_size", "d_model", "image_shape", "num_features"), built_in=("frames", "patch", "pretrained", "token"),
)  # fmt: skip
tokenizers = Registry(
    "tokenizers", family="tokenizer", bases=("attnkit.tokenizer.base.Tokenizer",), built_in=("bpe", "character", "word", "wordpiece")
)
layer_kinds = LayerKinds(
    "layer_kinds", family="layer", package="attnkit.layers", bases=("torch.nn.Module",),
    given=("d_model", "direction", "cross_mixer", "cross_attention", "layer", "depth", "memory_depth"), built_in=("transformer_layer",),
)  # fmt: skip
heads = Registry(
    "heads", family="head", bases=("attnkit.head.Head",), given=("d_model", "outputs", "tied", "norm"), built_in=("bert", "linear")
)
stacks = Registry(
    "stacks", family="stack", bases=("attnkit.stack.EncoderStack", "attnkit.stack.DecoderStack", "attnkit.stack.EncoderDecoderStack"),
    built_in=(
        "decoder", "encoder", "encoder_decoder", "recurrent_decoder", "recurrent_encoder", "recurrent_encoder_decoder",
    ),
)  # fmt: skip
optimizers = TorchOptimizers("optimizers", family="optimizer", bases=("torch.optim.Optimizer",), given=("params",), built_in=("muon",))
schedules = Registry(
    "schedules", family="schedule", bases=("attnkit.schedule.base.Schedule",), given=("total_steps",),
    built_in=("constant", "cosine", "inverse_sqrt", "linear", "warmup_stable_decay"),
)  # fmt: skip
tasks = Registry(
    "tasks", family="task", bases=("lightning.pytorch.LightningModule",), linked=True,
    built_in=("causal_lm", "classification", "masked_lm", "question_answering", "regression", "seq2seq", "tagging", "word_vectors"),
)  # fmt: skip
datasets = Registry(
    "datasets", family="dataset", package="attnkit.data", bases=("lightning.pytorch.LightningDataModule",), linked=True,
    built_in=(
        "labelled_images", "labelled_text", "prompted_text", "questions", "signal_text", "span_corruption", "tagged_text", "text",
        "text_pairs",
    ),
)  # fmt: skip
corpora = Corpora(
    "corpora", family="corpus", bases=("attnkit.corpus.Corpus",), given=("seed", "labels"),
    built_in=(
        "adding", "associative_recall", "cmudict", "copy", "fashion_mnist", "fashion_strips", "files", "imdb", "induction", "kjv",
        "libreoffice_help", "mixture", "movie_snippets", "nested_brackets", "reverse", "scan", "selective_copy",
    ),
)  # fmt: skip

probes = Registry(
    "probes", family="probe", bases=("attnkit.probe.Probe",),
    built_in=("cost", "free_running", "gradient", "heads", "layers", "linear", "order", "recall", "rollout", "saturation", "word_map"),
)  # fmt: skip

multi_tokens = Registry(
    "multi_tokens", family="multi_token", bases=("attnkit.multi_token.MultiToken",), given=("stack", "norm"),
    built_in=("independent", "sequential"),
)  # fmt: skip

inits = Registry("inits", family="init", bases=("attnkit.init.Init",), built_in=("bert", "deep_norm", "default", "gpt2", "mup", "t5"))

FAMILIES: tuple[Registry, ...] = (
    attentions, normalizers, backends, mixers, positions, rotary_scalings, norms, feed_forwards, residuals, layer_kinds, embeddings,
    tokenizers, stacks, heads, multi_tokens, inits, optimizers, schedules, tasks, datasets, corpora, probes,
)  # fmt: skip

# The annotations of component slots: plain data for mypy, and the registry for code that reads signatures.
AttentionSpec = Annotated[Spec, attentions]
NormalizerSpec = Annotated[Spec, normalizers]
BackendName = Annotated[str, NameOf(backends, "auto")]
MixerSpec = Annotated[Spec, mixers]
PositionSpec = Annotated[Spec, positions]
RotaryScalingSpec = Annotated[Spec, rotary_scalings]
NormSpec = Annotated[Spec, norms]
FeedForwardSpec = Annotated[Spec, feed_forwards]
ResidualSpec = Annotated[Spec, residuals]
LayerSpec = Annotated[Spec, layer_kinds]
EmbeddingSpec = Annotated[Spec, embeddings]
TokenizerSpec = Annotated[Spec, tokenizers]
StackSpec = Annotated[Spec, stacks]
HeadSpec = Annotated[Spec, heads]
MultiTokenSpec = Annotated[Spec, multi_tokens]
InitSpec = Annotated[Spec, inits]
OptimizerSpec = Annotated[Spec, optimizers]
ScheduleSpec = Annotated[Spec, schedules]
CorpusSpec = Annotated[Spec, corpora]
ProbeSpec = Annotated[Spec, probes]
