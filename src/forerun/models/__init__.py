"""What a model is: its configuration, its checkpoint, and the protocols of what runs it."""
