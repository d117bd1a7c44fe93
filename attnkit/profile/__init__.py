"""The cost of a training run before it starts (FLOPs, memory, communication, time), and the performance of a machine."""
