"""Optimizers beyond those of `torch.optim`."""
