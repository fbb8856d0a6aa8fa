"""Triton kernels for CUDA: one launch does what the reference does in many. Nothing else imports Triton."""
