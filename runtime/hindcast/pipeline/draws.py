"""`Draws`: which items come next where they are drawn with replacement, uniformly or by priority."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hindcast.episodes.columns import Columns
from hindcast.errors import UserCodeError
from hindcast.pipeline.feeds import refuse_priorities
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.priorities import FIRST, Priorities
from hindcast.pipeline.rng import Uniforms
from hindcast.pipeline.window import Batch


class Draws:
    """Draws from items 0 to `size` - 1.

    Draw number d follows from the seed, d and, by priority, the priorities of that moment. Each learner draws the whole
    batch, and all hold all priorities, which the losses' are gathered for: with a part of them each, a learner could
    only draw from its own part, and several would not draw what one draws.

    Args:
        needs: say how items are drawn: by priority, or else uniformly.
        seed: another one gives other draws.
        size: items; each has the first priority.
        device: of the draws.

    Attributes:
        size: items now.
        count: draws made.
    """

    def __init__(self, needs: Needs, seed: int, size: int, device: torch.device | None = None) -> None:
        self.size = size
        self.count = 0
        self._needs = needs
        self._device = device
        self._uniforms = Uniforms(seed, "draw")
        self._priorities: Priorities | None = None
        self._unanswered: Tensor | None = None
        if needs.sampling == "prioritized":
            self._priorities = Priorities(max(size, 1), needs.alpha, device)
            self._priorities.fill(slice(0, size), FIRST)

    def next(self, count: int) -> tuple[Tensor, Batch]:
        """The next `count` items, `[count]` int64, and the columns that come of how they were drawn.

        Raises:
            UserCodeError: the items before have not been given their priorities.
        """
        if self._unanswered is not None:
            raise UserCodeError(
                "The algorithm draws by priority, and the losses of the batch before gave none: set `priorities` of "
                "`Losses`."
            )
        uniform = torch.from_numpy(self._uniforms.take(self.count, count)).to(self._device)
        self.count += count
        if self._priorities is None:
            return (uniform * self.size).long(), {}
        self._unanswered, likelier = self._priorities.draw(uniform)
        return self._unanswered, {Columns.WEIGHTS: (likelier**-self._needs.beta).float()}

    def prioritise(self, priorities: Tensor) -> None:
        """See `Feed`.

        Raises:
            UserCodeError: items are not drawn by priority, or there is not one for each item.
        """
        if self._priorities is None:
            refuse_priorities()
        assert self._unanswered is not None
        if priorities.shape != self._unanswered.shape:
            raise UserCodeError(
                f"The algorithm's losses give priorities of shape {list(priorities.shape)} for "
                f"{len(self._unanswered)} items; it must be one for each."
            )
        self._priorities.set(self._unanswered, priorities)
        self._unanswered = None

    def replace(self, leaving: int, coming: int) -> None:
        """Items go and come: the first `leaving` of the old ones and the `coming` new ones, which follow them.

        New ones have the greatest priority that is held.
        """
        held = self.size
        self.size += coming - leaving
        if self._priorities is None:
            return
        powers = self._priorities.powers[:held]
        greatest = (
            powers.amax().clamp(min=self._priorities.power(FIRST)) if held else self._priorities.power(FIRST)
        )
        new = torch.ones(coming, dtype=powers.dtype, device=self._device) * greatest
        self._priorities = Priorities(self.size, self._needs.alpha, self._device)
        self._priorities.put(torch.cat([powers, new])[leaving:])

    def check(self) -> None:
        """Refuse priorities that were NaN or infinite; waits for the device.

        Raises:
            DataError: there were such.
        """
        if self._priorities is not None:
            self._priorities.check()

    def tensors(self) -> dict[str, Tensor]:
        """The priorities, for a checkpoint."""
        return {} if self._priorities is None else self._priorities.tensors()

    def load(self, count: int, size: int, tensors: Mapping[str, Tensor]) -> None:
        """Go on after `count` draws, with `size` items and what `tensors` gave."""
        self.count, self.size, self._unanswered = count, size, None
        if self._priorities is not None:
            self._priorities = Priorities(max(size, 1), self._needs.alpha, self._device)
            self._priorities.load(tensors)
