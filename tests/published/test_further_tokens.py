"""Multi-token prediction equals transformers' modules of DeepSeek-V3 with copied weights."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from published.engine import Pair, assert_close, double, families

import attnkit

LAYER, COUNT = 1, 2  # a layer with experts, like the modules; modules

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own


def test_sequential_modules_match_deepseek_v3() -> None:
    family = next(family for family in families() if family.name == "DeepSeek-V3")
    pair = Pair(replace(family, config={**family.config, "num_mtp_layers": COUNT}))
    modeling = pytest.importorskip("transformers.modeling_layers")
    with double():
        theirs = modeling.MtpModel(pair.theirs, COUNT).double().eval()
    for x in theirs.layers.state_dict().values():
        torch.nn.init.normal_(x, std=0.3)
    spec = {"name": "sequential", "num_tokens": 1 + COUNT}
    model: Any = attnkit.compose(**{**family.spec, "multi_token": spec}).double().eval()
    weights = dict(pair.ours.state_dict())
    for k, (layer, further) in enumerate(zip(theirs.layers, model.multi_token.stacks, strict=True)):
        block = {f"model.layers.{LAYER}.{name}": x for name, x in layer.mtp_block.state_dict().items()}
        for row in pair.table:
            if all(name in block for name in row.theirs):
                for name, x in zip(row.ours, row.to_ours([block.pop(name) for name in row.theirs]), strict=True):
                    weights[f"multi_token.stacks.{k}.{name.replace(f'stack.decoder.layers.{LAYER}', 'decoder.layers.0')}"] = x
        assert not block, sorted(block)
        embedding, hidden = layer.eh_proj.weight.chunk(2, 1)  # theirs reads the embedding first
        own = {"norms": layer.hnorm, "embedding_norms": layer.enorm}
        weights |= {f"multi_token.{name}.{k}.weight": norm.weight for name, norm in own.items()}
        weights[f"multi_token.joins.{k}.weight"] = torch.cat([hidden, embedding], 1)
        weights[f"multi_token.stacks.{k}.decoder.final_norm.weight"] = layer.post_norm.weight
        assert further.decoder.final_norm is not None
    model.load_state_dict(weights)
    with double(), torch.no_grad():
        ours = model(pair.tokens, further=True)
        hidden = pair.theirs.model(pair.tokens, use_cache=False).last_hidden_state
        assert_close(ours[0], pair.theirs.lm_head(hidden), "logits", 1e-10)
        for offset in range(1, 1 + COUNT):
            tokens = pair.tokens[:, offset:]  # the last ones have no token behind them to embed
            places = torch.arange(offset, pair.tokens.shape[1])[None]
            hidden = theirs.forward_layer(offset - 1, hidden[:, : tokens.shape[1]], places, None, input_ids=tokens)
            assert_close(ours[offset][:, : tokens.shape[1]], theirs.shared_head(hidden), f"logits at offset {offset + 1}", 1e-10)
