"""The public name of the exception tree: `from renorm.errors import RenormError`."""

from renorm.core.errors import *  # noqa: F403
