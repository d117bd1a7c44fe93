"""What a training costs before it is begun: operations, memory, communication and time; and what a machine can do."""
