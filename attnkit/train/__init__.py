"""Running a recipe: resolving its specs, managing its run's folder and logs, and training with Lightning."""
