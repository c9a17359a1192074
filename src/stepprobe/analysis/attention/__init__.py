"""What attention calls and masks mean: reference, structure, kernels, assertions. Pure."""
