"""The cures: one file a remedy, independent of each other."""
