"""The benchmark: the same kernels on every backend, every payload verified, results side by side and as files."""
