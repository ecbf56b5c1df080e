"""`hindcast version`: what is installed."""

from hindcast.cli.command import command
from hindcast.cli.screen import Screen

PACKAGES = ("torch", "ray", "pyarrow", "gymnasium", "numpy")


@command
def version(screen: Screen) -> None:
    """Show the versions of Hindcast, Python and the packages it depends on."""
    import platform
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    import hindcast

    versions: dict[str, str | None] = {"hindcast": hindcast.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = installed(package)
        except PackageNotFoundError:
            versions[package] = None
    lines = [f"{name} {number or 'not installed'}" for name, number in versions.items()]
    screen.result(versions, "\n".join(lines))
