"""Drafters, one file each: they guess what the target will say, and never see it."""
