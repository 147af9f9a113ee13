"""Training drafters for a model on one's own machine: the model writes the data, torch trains on it."""
