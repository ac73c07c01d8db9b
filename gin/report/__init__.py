"""`gin report`: results as one self-contained HTML file, and as PNG for papers."""
