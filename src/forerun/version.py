"""The package's version; the build reads it here."""

__version__ = "0.1.0"
