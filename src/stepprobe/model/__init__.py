"""What we know: frozen records, no behaviour beyond keeping themselves true."""
