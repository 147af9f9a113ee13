"""Measurements: the cost curve, workloads, and other engines to compare with."""
