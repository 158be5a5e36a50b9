"""What is needed to put Fencepost into service: the embedded models and their recipe."""
