"""The one place that states the version; pyproject.toml and CMakeLists.txt read it from here."""

__version__ = "0.1.0"
