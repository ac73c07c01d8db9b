"""Comparing results: what differs is joined on everything else, as ratios with intervals and thresholds."""
