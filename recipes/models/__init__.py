"""Shapes of the models that the production configs name."""
