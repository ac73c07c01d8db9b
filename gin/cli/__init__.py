"""The command line of gin."""
