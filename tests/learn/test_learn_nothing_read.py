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
def test_what_waits_for_a_device_is_refused(read):
    one = torch.ones(())
    with NoDeviceReads(), pytest.raises(AssertionError, match="aten"):
        read(one)


def test_what_a_device_does_by_itself_is_not():
    weights = torch.ones(3, requires_grad=True)
    with NoDeviceReads():
        (weights * 2).sum().backward()
    assert weights.grad.tolist() == [2, 2, 2]
