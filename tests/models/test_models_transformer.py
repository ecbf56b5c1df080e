"""The causal transformer against torch's own layers, and what its positions see."""

import pytest
import torch
from torch import nn

from hindcast.models.return_policy import CausalTransformer

SIZE, HEADS = 8, 2


def tokens(length=6, seed=0):
    return torch.randn(3, length, SIZE, generator=torch.Generator().manual_seed(seed))


def made(layers=2, dropout=0.0):
    torch.manual_seed(0)
    model = CausalTransformer(SIZE, layers, HEADS, dropout)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def test_its_layers_are_torchs():
    model, found = made(), tokens()
    expected = found
    for own in model.layers:
        layer = nn.TransformerEncoderLayer(SIZE, HEADS, 4 * SIZE, 0.0, batch_first=True, norm_first=True)
        with torch.no_grad():
            layer.self_attn.in_proj_weight.copy_(own.projections.weight)
            layer.self_attn.in_proj_bias.copy_(own.projections.bias)
        pairs = (
            (layer.self_attn.out_proj, own.merge),
            (layer.linear1, own.dense[0]),
            (layer.linear2, own.dense[2]),
            (layer.norm1, own.before_attention),
            (layer.norm2, own.before_dense),
        )
        for theirs, ours in pairs:
            theirs.load_state_dict(ours.state_dict())
        expected = layer(expected, nn.Transformer.generate_square_subsequent_mask(6), is_causal=True)
    torch.testing.assert_close(model(found), model.norm(expected), atol=1e-5, rtol=1e-5)


def test_a_position_sees_no_later_token():
    model, one, other = made(), tokens(), tokens(seed=1)
    mixed = torch.cat([one[:, :4], other[:, 4:]], 1)
    torch.testing.assert_close(model(mixed)[:, :4], model(one)[:, :4])
    assert not torch.allclose(model(mixed)[:, 4:], model(one)[:, 4:])


@pytest.mark.parametrize("unknown", [0, 1, 4])
def test_unknown_tokens_before_count_as_absent(unknown):
    model, found = made(), tokens()
    known = (torch.arange(6) >= unknown).expand(3, 6)
    torch.testing.assert_close(
        model(found, known)[:, unknown:], model(found[:, unknown:]), atol=1e-5, rtol=1e-5
    )


def test_dropout_is_of_training_alone():
    model, found = made(dropout=0.5), tokens()
    assert not torch.equal(model(found), model(found))
    with torch.no_grad():
        assert torch.equal(model(found), model(found)), "targets have none, in training mode too"
    model.eval()
    assert torch.equal(model(found), model(found))
