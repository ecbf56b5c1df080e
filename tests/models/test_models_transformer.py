"""The causal transformer equals torch's own layers, and its positions attend to the right tokens."""

import pytest
import torch
from torch import nn

from hindcast.models.return_policy import CausalTransformer

SIZE, HEADS = 8, 2


def make_tokens(length=6, seed=0):
    return torch.randn(3, length, SIZE, generator=torch.Generator().manual_seed(seed))


def build_transformer(layers=2, dropout=0.0):
    torch.manual_seed(0)
    model = CausalTransformer(SIZE, layers, HEADS, dropout)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def test_transformer_equals_torch_layers():
    model, embeddings = build_transformer(), make_tokens()
    expected = embeddings
    for block in model.layers:
        layer = nn.TransformerEncoderLayer(SIZE, HEADS, 4 * SIZE, 0.0, batch_first=True, norm_first=True)
        with torch.no_grad():
            layer.self_attn.in_proj_weight.copy_(block.projections.weight)
            layer.self_attn.in_proj_bias.copy_(block.projections.bias)
        pairs = (
            (layer.self_attn.out_proj, block.merge),
            (layer.linear1, block.dense[0]),
            (layer.linear2, block.dense[2]),
            (layer.norm1, block.before_attention),
            (layer.norm2, block.before_dense),
        )
        for torch_parameter, parameter in pairs:
            torch_parameter.load_state_dict(parameter.state_dict())
        expected = layer(expected, nn.Transformer.generate_square_subsequent_mask(6), is_causal=True)
    torch.testing.assert_close(model(embeddings), model.norm(expected), atol=1e-5, rtol=1e-5)


def test_position_does_not_depend_on_later_tokens():
    model, embeddings, other_embeddings = build_transformer(), make_tokens(), make_tokens(seed=1)
    changed_embeddings = torch.cat([embeddings[:, :4], other_embeddings[:, 4:]], 1)
    torch.testing.assert_close(model(changed_embeddings)[:, :4], model(embeddings)[:, :4])
    assert not torch.allclose(model(changed_embeddings)[:, 4:], model(embeddings)[:, 4:])


@pytest.mark.parametrize("num_masked", [0, 1, 4])
def test_masked_leading_tokens_count_as_absent(num_masked):
    model, embeddings = build_transformer(), make_tokens()
    is_recorded = (torch.arange(6) >= num_masked).expand(3, 6)
    actual, expected = model(embeddings, is_recorded)[:, num_masked:], model(embeddings[:, num_masked:])
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def test_transformer_dropout_applies_in_training_only():
    model, embeddings = build_transformer(dropout=0.5), make_tokens()
    assert not torch.equal(model(embeddings), model(embeddings))
    with torch.no_grad():
        assert torch.equal(model(embeddings), model(embeddings)), "no dropout without gradients"
    model.eval()
    assert torch.equal(model(embeddings), model(embeddings))
