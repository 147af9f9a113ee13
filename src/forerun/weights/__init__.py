"""How weights are read: files are mapped, their headers distrusted, their tensors handed on as they lie."""
