"""What the user's own step answered: from the lines of experiments to figures, tables and findings."""
