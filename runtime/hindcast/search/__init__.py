"""Searches for the best settings of a training on recorded episodes alone, without stepping an environment.

    from hindcast.search import loguniform, search, take

    result = search("training.yaml", {"config.lr": [1e-4, 1e-3], "model.fcnetHiddens": [[64], [256, 256]]})
    print(result.sentence)
    take(result, "policy")

`hindcast tune` is the same on the command line. (`hindcast.tune` is Ray Tune with Hindcast's algorithms.)
"""

from hindcast.search.results import Confirmation, Run, Search, Trial
from hindcast.search.runner import search
from hindcast.search.space import Range, loguniform, uniform
from hindcast.search.winner import retrain, take

__all__ = [
    "Confirmation",
    "Range",
    "Run",
    "Search",
    "Trial",
    "loguniform",
    "retrain",
    "search",
    "take",
    "uniform",
]
