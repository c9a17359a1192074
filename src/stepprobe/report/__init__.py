"""The paper: a Report in, text out. Sees the model alone."""
