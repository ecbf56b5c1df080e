"""The error for an episode that does not run, which servers and clients know."""

from hindcast.errors import DataError


class UnknownEpisode(DataError):
    """An episode that does not run: it was never started, has ended, or was cut when its writer ended."""


def unknown_episode(id_: str) -> UnknownEpisode:
    """The sentence for an episode that does not run."""
    return UnknownEpisode(
        f"episode {id_!r} does not run: it was not started, has ended, or was cut when its writer was closed or "
        "killed; start another one"
    )
