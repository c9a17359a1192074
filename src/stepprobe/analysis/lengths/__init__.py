"""What the lengths of a dataset mean: padding, bucketing, packing, and the memory of the loss."""
