"""A second, smaller model that guesses for another one."""
