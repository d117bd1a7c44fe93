"""Registries: from names to classes, importing only what is requested.

A built-in component is a module of its family's package: `attnkit/attention/additive.py` registers `additive`.
The names are listed in a table (`attnkit/registry/families.py`), so that `attnkit list` never imports torch.
A third party registers with a decorator, or with one entry-point line in its `pyproject.toml`:

    [project.entry-points."attnkit.components"]
    "attentions.gaussian" = "my_package.gaussian:Gaussian"

A component is described by a *spec*, which is plain data: a name (`"additive"`), or a mapping with a name and
arguments (`{"name": "additive", "hidden_dim": 32}`). jsonargparse's `{"class_path": ..., "init_args": ...}` is understood too.
The import path of a class (`"my_package.kernels.Gaussian"`) is accepted wherever a name is. Its module is imported, unless
`importing(False)` forbids it.
"""

from attnkit.registry.arguments import Argument, WrongType, refuse_unread
from attnkit.registry.base import Registry, Spec
from attnkit.registry.class_path import importing
from attnkit.registry.description import Description
from attnkit.registry.errors import ConfigurationError, check_positive, did_you_mean, nearest, require_at_least
from attnkit.registry.families import (
    FAMILIES,
    AttentionSpec,
    BackendName,
    CorpusSpec,
    EmbeddingSpec,
    FeedForwardSpec,
    HeadSpec,
    InitSpec,
    LayerSpec,
    MixerSpec,
    MultiTokenSpec,
    NormalizerSpec,
    NormSpec,
    OptimizerSpec,
    PositionSpec,
    ProbeSpec,
    ResidualSpec,
    RotaryScalingSpec,
    ScheduleSpec,
    StackSpec,
    TokenizerSpec,
    attentions,
    backends,
    corpora,
    datasets,
    embeddings,
    feed_forwards,
    heads,
    inits,
    layer_kinds,
    mixers,
    multi_tokens,
    normalizers,
    norms,
    optimizers,
    positions,
    probes,
    residuals,
    rotary_scalings,
    schedules,
    stacks,
    tasks,
    tokenizers,
)
from attnkit.registry.imports import IMPORTS, import_modules, module_names
from attnkit.registry.keywords import fields_as_keywords, keywords_of
from attnkit.registry.names import ENTRY_POINT_GROUP, name_of_path, registered_name
from attnkit.registry.resolved import ResolvedSpec
from attnkit.registry.values import Word, plain_data

__all__ = [
    "Argument", "attentions", "AttentionSpec", "BackendName", "backends", "check_positive", "ConfigurationError", "corpora", "CorpusSpec",
    "datasets", "Description", "did_you_mean", "embeddings", "EmbeddingSpec", "ENTRY_POINT_GROUP", "FAMILIES", "feed_forwards",
    "FeedForwardSpec", "fields_as_keywords", "heads", "HeadSpec", "import_modules", "importing", "IMPORTS", "inits", "InitSpec",
    "keywords_of", "layer_kinds", "LayerSpec", "mixers", "MixerSpec", "module_names", "multi_tokens", "MultiTokenSpec", "name_of_path",
    "nearest", "normalizers", "NormalizerSpec", "norms", "NormSpec", "optimizers", "OptimizerSpec", "plain_data", "positions",
    "PositionSpec", "probes", "ProbeSpec", "refuse_unread", "registered_name", "Registry", "require_at_least", "residuals", "ResidualSpec",
    "ResolvedSpec", "rotary_scalings", "RotaryScalingSpec", "schedules", "ScheduleSpec", "Spec", "stacks", "StackSpec", "tasks",
    "tokenizers", "TokenizerSpec", "Word", "WrongType",
]  # fmt: skip
