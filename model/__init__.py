"""Network definitions: plain PyTorch modules that know tensors and checkpoint folders, not agents, text or training."""
