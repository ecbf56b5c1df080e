"""The error for an episode that is not running, shared by servers and clients."""

from hindcast.errors import DataError


class UnknownEpisode(DataError):
    """An episode that is not running: it was never started, has ended, or was cut when its writer ended."""


def unknown_episode(id_: str) -> UnknownEpisode:
    """The error for an episode that is not running."""
    return UnknownEpisode(
        f"episode {id_!r} is not running: it was not started, has ended, or was cut when its writer was closed or "
        "killed; start another one"
    )
