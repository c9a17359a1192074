"""How fast a step could run on its machine: the work that its model asks for, the ceilings, and what lies between."""
