"""What was promised of a run, which of it was done in the next one, and what that gained."""
