"""Where models are computed: `cpu` (the C++ core)."""
