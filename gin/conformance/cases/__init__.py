"""The cases, one module per family."""
