"""`hindcast version`: show the installed versions."""

from hindcast.cli.command import command
from hindcast.cli.screen import Screen


@command
def version(screen: Screen) -> None:
    """Show the versions of Hindcast, Python and the packages it depends on."""
    import platform

    from hindcast.version import __version__, package_versions

    versions = {"hindcast": __version__, "python": platform.python_version(), **package_versions()}
    lines = [f"{name} {number or 'not installed'}" for name, number in versions.items()]
    screen.show_result(versions, "\n".join(lines))
