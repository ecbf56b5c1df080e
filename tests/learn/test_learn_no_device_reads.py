import pytest
import torch

from no_device_reads import NoDeviceReads


@pytest.mark.parametrize(
    "read",
    [
        float,
        bool,
        torch.nonzero,
        lambda one: [2.0, 3.0][int(one)],
        lambda one: one[one > 0],
        lambda one: one.item(),
    ],
)
def test_operation_that_reads_the_device_fails(read):
    one = torch.ones(())
    with NoDeviceReads(), pytest.raises(AssertionError, match="aten"):
        read(one)


def test_operation_on_the_device_passes():
    weights = torch.ones(3, requires_grad=True)
    with NoDeviceReads():
        (weights * 2).sum().backward()
    assert weights.grad.tolist() == [2, 2, 2]
