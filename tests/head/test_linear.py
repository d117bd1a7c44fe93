import pytest
import torch
from torch import nn

import attnkit

X = torch.linspace(-9, 9, 24, dtype=torch.float64).view(2, 3, 4)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_logits_follow_their_equation(tied: bool, bias: bool, seed: int) -> None:
    table = attnkit.embeddings.build("token", vocab_size=5, d_model=4).double()
    spec = {"name": "linear", "bias": bias, "scale": 0.5, "softcap": 3.0}
    head = attnkit.heads.build(spec, d_model=4, outputs=5, tied=table if tied else None).double()
    for parameter in head.parameters():
        nn.init.normal_(parameter)
    weight = table.weight if tied else head.projection.weight
    added = 0 if not bias else head.bias if tied else head.projection.bias
    expected = 3 * torch.tanh((0.5 * X @ weight.T + added) / 3)
    torch.testing.assert_close(head(X), expected, rtol=1e-12, atol=1e-12)
    assert len(list(head.parameters())) == (not tied) + bias
    plain = attnkit.heads.build("linear", d_model=4, outputs=5, tied=table if tied else None).double()
    assert plain.bias is None
    assert plain.projection is None or plain.projection.bias is None


@pytest.mark.parametrize("softcap", [0.0, float("inf"), float("nan")])
def test_a_softcap_must_be_positive_and_finite(softcap: float) -> None:
    with pytest.raises(attnkit.ConfigurationError, match=f"softcap must be (positive and )?finite, but is {softcap}"):
        attnkit.heads.build({"name": "linear", "softcap": softcap}, d_model=4, outputs=5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_excluded_outputs_are_never_chosen_and_others_unchanged(softcap: float | None, tied: bool, dtype: torch.dtype, seed: int) -> None:
    table = attnkit.embeddings.build("token", vocab_size=5, d_model=4).to(dtype)
    spec = {"name": "linear", "softcap": softcap}
    plain, head = (
        attnkit.heads.build(each, d_model=4, outputs=5, tied=table if tied else None).to(dtype)
        for each in (spec, {**spec, "excluded": [3, 0]})
    )
    head.load_state_dict(plain.state_dict())  # an option, not a parameter or a buffer
    x = X.to(dtype).requires_grad_()
    logits, kept = head(x), [1, 2, 4]
    assert torch.equal(logits[..., kept], plain(x)[..., kept])
    assert logits.isfinite().all()
    probabilities = logits.softmax(-1)
    assert not probabilities[..., [0, 3]].any()
    assert torch.equal(probabilities[..., kept], plain(x)[..., kept].softmax(-1))
    weight = table.weight if tied else head.projection.weight
    (gradient,) = torch.autograd.grad(logits.logsumexp(-1).sum(), weight)
    assert not gradient[[0, 3]].any()
    assert gradient[kept].all()


@pytest.mark.parametrize("excluded", [[5], [-1], [0, 1, 2, 3, 4]])
def test_excluded_must_be_valid_ids_and_leave_some_outputs(excluded: list[int]) -> None:
    with pytest.raises(attnkit.ConfigurationError, match=r"excluded must be some of the ids 0 to 4, but is \["):
        attnkit.heads.build({"name": "linear", "excluded": excluded}, d_model=4, outputs=5)


def test_generation_and_label_smoothing_exclude_ids(seed: int) -> None:
    tokenizer = attnkit.tokenizers.build("character").train(["attention"]).spec
    stack = {"name": "decoder", "d_model": 16, "num_layers": 1, "num_heads": 2}
    options = {"name": "causal_lm", "stack": stack, "tokenizer": tokenizer, "label_smoothing": 0.3}
    task = attnkit.tasks.build({**options, "head": {"name": "linear", "excluded": [0, 1, 3, 4, 5]}})
    found = task.generate(["ten"] * 20, temperature=50.0, seed=0, min_length=30, max_length=30)
    assert {len(text) for text in found} == {30}
    assert len(set("".join(found))) == len(task.tokenizer) - 6  # the end, and the first two characters, are missing
    tokens = torch.tensor([[6, 7, 8, 6]])
    assert task.objective({"tokens": tokens}).loss < 30  # no mass for ids that have logits of -10,000


def test_the_softcap_matches_gemma_2(seed: int) -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(
        vocab_size=9, hidden_size=4, intermediate_size=4, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, head_dim=4,
        final_logit_softcapping=2.0,
    )  # fmt: skip
    theirs = Gemma2ForCausalLM(config).double()
    nn.init.normal_(theirs.lm_head.weight, std=3)
    found = {}
    theirs.model.norm.register_forward_hook(lambda _, __, y: found.update(x=y))
    logits = theirs(torch.tensor([[3, 4, 5]])).logits
    head = attnkit.heads.build({"name": "linear", "softcap": 2.0}, d_model=4, outputs=9).double()
    head.load_state_dict({"projection.weight": theirs.lm_head.weight})
    torch.testing.assert_close(head(found["x"]), logits, rtol=1e-10, atol=1e-10)
    assert logits.abs().max() > 1


def test_models_tie_the_requested_tables(seed: int) -> None:
    def tables(tie: str) -> tuple[int, bool, bool]:
        model = attnkit.compose(
            stack="encoder_decoder",
            d_model=16,
            num_layers=1,
            num_heads=2,
            src_vocab_size=9,
            tgt_vocab_size=9,
            tie=tie,  # type: ignore
        )
        return len(model.embeddings), "shared" in model.embeddings, model.head.projection is None

    assert tables("none") == (2, False, False)
    assert tables("output") == (2, False, True)
    assert tables("inputs") == (1, True, False)
    assert tables("all") == (1, True, True)
    with pytest.raises(attnkit.ConfigurationError, match="tie 'inputs' shares one table between source and target"):
        attnkit.compose(stack="encoder_decoder", d_model=16, num_layers=1, num_heads=2, src_vocab_size=9, tgt_vocab_size=8, tie="inputs")


def test_an_embedding_accepts_any_scale() -> None:
    tokens = torch.tensor([[1, 2]])
    for scale, factor in {True: 2.0, False: 1.0, 12.0: 12.0}.items():
        table = attnkit.embeddings.build({"name": "token", "scale": scale}, vocab_size=5, d_model=4)
        assert torch.equal(table(tokens), factor * table.weight[tokens])


def test_beams_wider_than_the_allowed_ids_return_no_excluded_ids(seed: int) -> None:
    head = {"name": "linear", "excluded": [0, 1, 3, 4, 5]}
    model = attnkit.compose(stack="decoder", d_model=16, num_layers=1, num_heads=2, vocab_size=7, head=head)
    tokens, scores = model.n_best(torch.tensor([[6]]), beam_size=7, max_length=2)
    kept = scores > float("-inf")
    assert kept.tolist() == [[True] * 3 + [False] * 4]  # eos; 6 eos; 6 6
    assert set(tokens[kept].flatten().tolist()) == {0, 2, 6}
    assert not tokens[~kept].any()
    log_probs = model(torch.tensor([[6, 6]]))[0].log_softmax(-1)
    expected = [log_probs[0, 2], (log_probs[0, 6] + log_probs[1, 2]) / 2, (log_probs[0, 6] + log_probs[1, 6]) / 2]
    torch.testing.assert_close(scores[kept], torch.stack(sorted(expected, reverse=True)))


def test_an_excluded_target_is_refused(seed: int) -> None:
    tokenizer = attnkit.tokenizers.build({"name": "character", "extra_tokens": ["<mask>"]}).train(["attention"]).spec
    options = {"tokenizer": tokenizer, "head": {"name": "linear", "excluded": [0, 6]}}
    tokens = torch.tensor([[5, 7, 8, 6]])
    task = attnkit.tasks.build(
        {"name": "causal_lm", "stack": {"name": "decoder", "d_model": 16, "num_layers": 1, "num_heads": 2}, **options}
    )
    task.configure_model()
    assert task.objective({"tokens": tokens[:, :3]}).targets == 2
    with pytest.raises(attnkit.ConfigurationError, match="the id 6 is a target, but the head excludes it"):
        task.objective({"tokens": tokens})
    stack = {"name": "encoder", "d_model": 16, "num_layers": 1, "num_heads": 2}
    task = attnkit.tasks.build({"name": "masked_lm", "stack": stack, "mask_probability": 0.999, **options})
    task.configure_model()
    with pytest.raises(attnkit.ConfigurationError, match="the id 6 is a target, but the head excludes it"):
        task.objective({"tokens": tokens, "masked": task.hide({"tokens": tokens}, 0, "evaluation")})
