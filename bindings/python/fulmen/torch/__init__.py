"""What only PyTorch needs."""
