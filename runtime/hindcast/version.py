"""What is installed, apart from the public names, so that a room can say it without importing those."""

from importlib.metadata import PackageNotFoundError, version

__version__ = "0.1.0"


def package_versions() -> dict[str, str | None]:
    """Versions of the packages that results depend on; None where one is not installed."""
    found: dict[str, str | None] = {}
    for package in ("torch", "ray", "pyarrow", "gymnasium", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found
