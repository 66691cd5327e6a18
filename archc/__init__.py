"""archc: a compiler for sequence-model architectures."""
