"""Models: an embedding, a stack and a head, as plain `torch.nn.Module`s."""

from attnkit.models.base import Model
from attnkit.models.classifier import ClassifierModel
from attnkit.models.compose import compose
from attnkit.models.decoder import DecoderModel
from attnkit.models.encoder import EncoderModel
from attnkit.models.encoder_decoder import EncoderDecoderModel

__all__ = ["ClassifierModel", "DecoderModel", "EncoderDecoderModel", "EncoderModel", "Model", "compose"]
