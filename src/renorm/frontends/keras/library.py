"""The h5py package, an extra: weights are HDF5."""

from __future__ import annotations

from types import ModuleType

from renorm.core.errors import InvalidInput

INSTALL = 'pip install "renorm[hdf5]"'


def h5py(label: str) -> ModuleType:
    """Return the package. Raises InvalidInput, about the file `label`, where it is not installed."""
    try:
        import h5py as package
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "h5py":
            raise
        raise InvalidInput(f"{label}: its weights are HDF5, and h5py is not installed", do=INSTALL) from error
    return package
