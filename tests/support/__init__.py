"""What several tests build their models from."""
