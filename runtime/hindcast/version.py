"""Versions of Hindcast and the packages that results depend on."""

from importlib.metadata import PackageNotFoundError, version

__version__ = "0.1.0"


def package_versions() -> dict[str, str | None]:
    """Return the versions of the packages that results depend on; None for one that is not installed."""
    versions: dict[str, str | None] = {}
    for package in ("torch", "ray", "pyarrow", "gymnasium", "numpy"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return versions
