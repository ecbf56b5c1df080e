import pytest
import torch

from no_device_reads import NoDeviceReads


@pytest.mark.parametrize(
    "read",
    [
        float,
        bool,
        torch.nonzero,
        lambda scalar: [2.0, 3.0][int(scalar)],
        lambda scalar: scalar[scalar > 0],
        lambda scalar: scalar.item(),
    ],
)
def test_operation_that_reads_the_device_fails(read):
    scalar = torch.ones(())
    with NoDeviceReads(), pytest.raises(AssertionError, match="aten"):
        read(scalar)


def test_operation_on_the_device_passes():
    weights = torch.ones(3, requires_grad=True)
    with NoDeviceReads():
        (weights * 2).sum().backward()
    assert weights.grad.tolist() == [2, 2, 2]
