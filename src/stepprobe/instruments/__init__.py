"""What we see: everything that touches the machine or the user's process."""
