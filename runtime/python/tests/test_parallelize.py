"""Models of transformers whose layers are divided among ranks, beside the whole models."""

import copy

import mkernel
import mkernel.nn
import pytest
import torch
import transformers
from mkernel.nn import blocks

SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
KINDS = {
    "llama": (transformers.LlamaConfig, {}),
    "llama with biases": (transformers.LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "mistral": (transformers.MistralConfig, {"sliding_window": 4}),
    "qwen2": (transformers.Qwen2Config, {}),
    "qwen3 with tied embeddings": (transformers.Qwen3Config, {"tie_word_embeddings": True}),
}


def model(kind, more):
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(kind(**(SIZES | more)))
    # Weights of norms and biases that are all equal would hide mistakes.
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return made.bfloat16()


def tokens(rows=2, positions=8):
    return torch.randint(0, SIZES["vocab_size"], (rows, positions), generator=torch.Generator().manual_seed(1))


def difference(result, expected):
    """Return the difference of two tensors, relative to the second."""
    return ((result.double() - expected.double()).norm() / expected.double().norm()).item()


def close(result, expected, exact, name=""):
    """Compare with a result of the whole model in bf16, which differs itself from the exact result in fp64."""
    own = difference(expected, exact)
    assert difference(result, exact) <= 1.5 * own + 0.004, (name, difference(result, exact), own)


def loss_of(model, ids):
    return model(input_ids=ids, labels=ids).loss


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_training_step(kind, sequence_parallel, world):
    whole, ids = model(*KINDS[kind]), tokens()
    exact = copy.deepcopy(whole).double()
    losses = [loss_of(one, ids) for one in (whole, exact)]
    for loss in losses:
        loss.backward()

    def rank(group):
        own = mkernel.nn.parallelize(copy.deepcopy(whole), sequence_parallel=sequence_parallel)
        own.zero_grad()
        loss = loss_of(own, ids)
        loss.backward()
        close(loss, *losses, "loss")
        exacts = dict(exact.named_parameters())
        for name, parameter in whole.named_parameters():
            mine = gradient(own, name, parameter, group)
            close(mine, parameter.grad, exacts[name].grad, name)
        return [parameter.grad for name, parameter in own.named_parameters() if "norm" in name or "embed" in name]

    grads = mkernel.run(rank, world)
    # Parameters that every rank has stay equal on all ranks.
    assert all(torch.equal(a, b) for other in grads for a, b in zip(grads[0], other, strict=True))


def gradient(model, name, whole, group):
    """Return the gradient of a parameter of the whole model, from those of all ranks."""
    path, _, own = name.rpartition(".")
    module = model.get_submodule(path)
    if isinstance(module, mkernel.nn.RowParallelLinear) and own == "weight":
        return gathered(module.weight.grad.t().contiguous(), group).t()
    if isinstance(module, mkernel.nn.ColumnParallelLinear):
        return gathered(getattr(module, own).grad, group)
    if isinstance(module, torch.nn.Module) and hasattr(module, "first"):
        fused = model.get_submodule(path.rpartition(".")[0]).columns
        return gathered(getattr(fused, own).grad[module.first : module.end], group)
    return module.get_parameter(own).grad


def gathered(part, group):
    return mkernel.all_gather(part.contiguous().view(part.shape[0], -1) if part.dim() > 1 else part.view(1, -1)).view(
        -1, *part.shape[1:]
    )


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("kind", [*KINDS, "qwen3 with experts"])
def test_greedy_tokens(kind, world):
    declared = KINDS.get(kind) or (transformers.Qwen3MoeConfig, EXPERTS)
    whole, ids = model(*declared).eval(), tokens(positions=5)
    exact = copy.deepcopy(whole).double() if kind in KINDS else copy.deepcopy(whole).float()

    @torch.no_grad()
    def rank(group):
        own = mkernel.nn.parallelize(copy.deepcopy(whole))
        logits = own(input_ids=ids).logits
        if kind in KINDS:  # The whole model may choose another expert in bf16.
            close(logits, whole(input_ids=ids).logits, exact(input_ids=ids).logits)
        return logits, own.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0)

    results = mkernel.run(rank, world)
    for logits, generated in results:
        assert torch.equal(logits, results[0][0]) and torch.equal(generated, results[0][1])
    # A token that is not the most likely one is at most as far from it as the errors of two logits in bf16.
    chosen = results[0][1]
    with torch.no_grad():
        expected, own = (one(input_ids=chosen[:, :-1]).logits[:, ids.shape[1] - 1 :].double() for one in (exact, whole))
    error = (own - expected).abs().max().item()
    picked = expected.gather(2, chosen[:, ids.shape[1] :, None])[..., 0]
    assert picked.shape == (2, 6) and (expected.amax(2) - picked).max().item() <= 3 * error


@pytest.fixture
def products(monkeypatch):
    """The rows of each product that has taken in a norm."""
    rows, product = [], blocks.gemm_ar_rms_norm
    monkeypatch.setattr(
        blocks, "gemm_ar_rms_norm", lambda a, *args, **options: rows.append(len(a)) or product(a, *args, **options)
    )
    return rows


@pytest.mark.parametrize("kind, count", [("llama with biases", 4), ("qwen3 with experts", 2)])
def test_products_take_in_norms(kind, count, products):
    whole = model(*(KINDS.get(kind) or (transformers.Qwen3MoeConfig, EXPERTS))).eval()

    def rank(_):
        own = mkernel.nn.parallelize(whole)
        with torch.no_grad():
            own(input_ids=tokens())
            assert products == [16] * count
        if kind in KINDS:
            own(input_ids=tokens())
            assert len(products) == count

    mkernel.run(rank, 1)


@pytest.mark.parametrize("of_layers", [True, False])
def test_hooks_see_what_they_see_without_ranks(of_layers, products):
    whole = model(*KINDS["llama"]).eval()

    def steer(output):
        return (output[0] * 2, *output[1:]) if isinstance(output, tuple) else output.add_(1.0)

    @torch.no_grad()
    def rank(_):
        own, expected = mkernel.nn.parallelize(copy.deepcopy(whole)), copy.deepcopy(whole)
        for one in (own, expected):
            for layer in one.model.layers:
                (layer if of_layers else layer.self_attn).register_forward_hook(lambda _, __, output: steer(output))
        exact = copy.deepcopy(expected).double()
        close(*(one(input_ids=tokens()).logits for one in (own, expected, exact)))

    mkernel.run(rank, 2)
    assert len(products) == (4 if of_layers else 0)


@pytest.mark.parametrize("world", [1, 2])
def test_prefill_with_experts(world):
    whole, ids = model(transformers.Qwen3MoeConfig, EXPERTS).eval(), tokens()

    @torch.no_grad()
    def rank(group):
        own = mkernel.nn.parallelize(copy.deepcopy(whole), sequence_parallel=True)
        return own(input_ids=ids).logits

    with torch.no_grad():
        expected = whole(input_ids=ids).logits
    for logits in mkernel.run(rank, world):
        assert difference(logits, expected) < 0.03


def test_mistakes():
    def rank(group):
        with pytest.raises(mkernel.Error, match="num_key_value_heads = 1, which 2 ranks cannot share") as caught:
            mkernel.nn.parallelize(model(transformers.LlamaConfig, {"num_attention_heads": 1, "num_key_value_heads": 1}))
        assert "num_attention_heads = 1" in str(caught.value)
        with pytest.raises(mkernel.Error, match="GPT2LMHeadModel has no plan"):
            mkernel.nn.parallelize(transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_embd=64, n_head=2)))
        own = mkernel.nn.parallelize(model(transformers.LlamaConfig, {}), sequence_parallel=True)
        with pytest.raises(mkernel.Error, match="7 positions, which 2 ranks cannot share"):
            own(input_ids=tokens(positions=7))
        experts = mkernel.nn.parallelize(model(transformers.Qwen3MoeConfig, EXPERTS))
        with pytest.raises(mkernel.Error, match="no backward pass"):
            experts(input_ids=tokens())

    mkernel.run(rank, 2)


def test_a_compiled_model(products):
    whole, ids = model(*KINDS["llama"]).eval(), tokens()

    @torch.no_grad()
    def rank(_):
        own = mkernel.nn.parallelize(whole)
        compiled = torch.compile(own, fullgraph=True, backend="aot_eager")
        logits = compiled(input_ids=ids).logits
        assert products
        assert torch.equal(logits, own(input_ids=ids).logits)

    mkernel.run(rank, 1)
