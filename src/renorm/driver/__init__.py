"""From a model to a module: compile, build, optimize."""
