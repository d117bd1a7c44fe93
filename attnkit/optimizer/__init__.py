"""Optimizers that are not in `torch.optim`."""
