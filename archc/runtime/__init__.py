"""What generated kernels call when they run. Only this folder of archc imports triton."""
